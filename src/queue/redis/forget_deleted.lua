-- Acknowledges pending entries of a consumer that the stream has lost. Redis 6.2 hands such entries
-- out in XAUTOCLAIM without saying which they are; from Redis 7 on, XAUTOCLAIM does this itself.
--
-- KEYS[1]  the stream
-- ARGV     group, consumer, how many pending entries to look at
-- answers  how many were acknowledged
local gone = 0
for _, pending in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3], ARGV[2])) do
  if #redis.call('XRANGE', KEYS[1], pending[1], pending[1]) == 0 then
    gone = gone + redis.call('XACK', KEYS[1], ARGV[1], pending[1])
  end
end
return gone
