-- Extends the locks that hold our tokens to a full time to live. It sets nothing, so that an
-- extension that arrives after the release brings no lock back.
--
-- KEYS     the locks
-- ARGV     time to live in milliseconds, then a token for each lock
-- answers  for each: 1 ours, 0 another token, -1 gone
local answers = {}
for i, key in ipairs(KEYS) do
  local found = redis.pcall('GET', key)
  if found == ARGV[i + 1] then
    answers[i] = redis.call('PEXPIRE', key, ARGV[1])
  elseif not found then
    answers[i] = -1
  else
    answers[i] = 0
  end
end
return answers
