-- Tells what waits in a stream. Only an id leaves the server: a waiting entry may be large.
--
-- KEYS[1]  the stream
-- ARGV     group
-- answers  entries in the stream, those delivered and not settled, and the id of the oldest one
--          that was never delivered, or false
local length = redis.call('XLEN', KEYS[1])
local pending, start = 0, '-'
local groups = length > 0 and redis.pcall('XINFO', 'GROUPS', KEYS[1]) or {}
for _, pairs_ in ipairs(groups) do
  local group = {}
  for i = 1, #pairs_, 2 do group[pairs_[i]] = pairs_[i + 1] end
  if group.name == ARGV[1] then
    pending, start = group.pending, '(' .. group['last-delivered-id']
  end
end
local oldest = redis.call('XRANGE', KEYS[1], start, '+', 'COUNT', 1)[1]
return { length, pending, oldest and oldest[1] }
