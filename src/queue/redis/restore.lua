-- Adds the fields of an entry again if the stream has lost it and nobody else holds it.
--
-- KEYS[1]  the stream
-- ARGV     group, consumer, id, then the fields: name, value, name, value ...
-- answers  the new id, or false
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if pending and pending[2] ~= ARGV[2] then return false end
if #redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3]) > 0 then return false end
redis.pcall('XACK', KEYS[1], ARGV[1], ARGV[3])
return redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
