-- Resets the idle time of the entries that are still the caller's. Without the owner check, XCLAIM
-- would steal an entry back from the worker that took it over.
--
-- KEYS[1]  the stream
-- ARGV     group, consumer, then the ids (fewer than 1000: `unpack` has a limit)
-- answers  for each id 1 if it is still ours, else 0
local answers, ours = {}, {}
for i = 3, #ARGV do
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  local mine = pending and pending[2] == ARGV[2]
  answers[#answers + 1] = mine and 1 or 0
  if mine then ours[#ours + 1] = ARGV[i] end
end
if #ours > 0 then
  ours[#ours + 1] = 'IDLE'
  ours[#ours + 1] = 0
  ours[#ours + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(ours))
end
return answers
