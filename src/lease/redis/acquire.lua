-- Takes the locks of a group, each with its own token, and answers per lock. A key that is not a
-- lock (another type) counts as taken, and spoils nothing for the others.
--
-- KEYS     the locks
-- ARGV     time to live in milliseconds, then a token for each lock
-- answers  for each: -3 taken by us, else PTTL of what is there (-1: it never ends)
local answers = {}
for i, key in ipairs(KEYS) do
  if redis.call('SET', key, ARGV[i + 1], 'NX', 'PX', ARGV[1]) then
    answers[i] = -3
  else
    answers[i] = redis.call('PTTL', key)
  end
end
return answers
