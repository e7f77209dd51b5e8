-- Extends the locks that hold our tokens to a full time to live, and sets those that are gone.
--
-- KEYS     the locks
-- ARGV     time to live in milliseconds, then a token for each lock
-- answers  for each: 1 ours, 0 another token
local answers = {}
for i, key in ipairs(KEYS) do
  local found, token = redis.pcall('GET', key), ARGV[i + 1]
  if found == token then
    answers[i] = redis.call('PEXPIRE', key, ARGV[1])
  elseif not found and redis.call('SET', key, token, 'NX', 'PX', ARGV[1]) then
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers
