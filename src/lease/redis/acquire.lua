-- Takes the locks of a group, each with its own token, and answers per lock. A key that is not a
-- lock (another type) counts as taken, and spoils nothing for the others.
--
-- KEYS     the locks
-- ARGV     time to live in milliseconds, then a token for each lock
-- answers  for each: 1 ours, else { PTTL of what is there (-1: it never ends), the token there }
local answers = {}
for i, key in ipairs(KEYS) do
  local token = ARGV[i + 1]
  if redis.call('SET', key, token, 'NX', 'PX', ARGV[1]) then
    answers[i] = 1
  else
    local found = redis.pcall('GETRANGE', key, 0, 63)
    if type(found) ~= 'string' then found = '' end
    if found == token then
      answers[i] = redis.call('PEXPIRE', key, ARGV[1])
    else
      answers[i] = { redis.call('PTTL', key), found }
    end
  end
end
return answers
