-- Deletes the locks of a group that still hold our tokens.
--
-- KEYS     the locks
-- ARGV     a token for each lock
-- answers  how many were deleted
local gone = 0
for i, key in ipairs(KEYS) do
  if redis.pcall('GET', key) == ARGV[i] then gone = gone + redis.call('DEL', key) end
end
return gone
