-- Deletes consumers that have nothing pending: the caller's own, the one that holds what was given
-- back, and others that idled for long.
-- DELCONSUMER forgets what is pending for a consumer, so check and deletion are one step.
--
-- KEYS[1]  the stream
-- ARGV     group, consumer, idle time in milliseconds after which others go
-- answers  how many went
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
local gone = 0
for _, pairs_ in ipairs(consumers) do
  local consumer = {}
  for i = 1, #pairs_, 2 do consumer[pairs_[i]] = pairs_[i + 1] end
  local ours = consumer.name == ARGV[2] or consumer.name == 'given-back'
  if consumer.pending == 0 and (ours or consumer.idle >= tonumber(ARGV[3])) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
    gone = gone + 1
  end
end
return gone
