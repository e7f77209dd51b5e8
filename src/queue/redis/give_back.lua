-- Sets the idle time of pending entries that are still the caller's, and takes back one from their
-- delivery count, so that whoever reclaims them finds them as if the caller had never had them.
-- Checked and done in one step: a worker that lost an entry cannot steal it back. They are nobody's
-- from then on, so that the caller's own consumer can be deleted when it leaves.
--
-- KEYS[1]  the stream
-- ARGV     group, consumer, then for each entry: id, idle time in milliseconds
-- answers  for each: 1 done, 0 somebody else's business, 2 gone from the stream
local answers = {}
for i = 3, #ARGV, 2 do
  local id, answer = ARGV[i], 0
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
  if not pending or pending[2] == ARGV[2] then
    if #redis.call('XRANGE', KEYS[1], id, id) == 0 then
      answer = 2
    elseif pending then
      redis.call('XCLAIM', KEYS[1], ARGV[1], 'given-back', 0, id, 'IDLE', ARGV[i + 1],
        'RETRYCOUNT', math.max(0, pending[4] - 1), 'JUSTID')
      answer = 1
    end
  end
  answers[#answers + 1] = answer
end
return answers
