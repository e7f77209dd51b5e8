-- Reads new entries for a consumer until a number of entries or a number of bytes is reached.
-- Bytes are counted over names and values; the entry that reaches the limit is still taken. While
-- every payload keeps to the largest size allowed, the limit is passed by at most one entry.
--
-- KEYS[1]  the stream
-- ARGV     group, consumer, entries, bytes, largest payload
-- answers  the entries, as XRANGE would
local left, bytes, largest = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local out = {}
while left > 0 and bytes > 0 do
  local count = math.max(1, math.min(left, math.floor(bytes / largest)))
  local reply = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', count,
    'STREAMS', KEYS[1], '>')
  if not reply then break end
  local entries = reply[1][2]
  for _, entry in ipairs(entries) do
    out[#out + 1] = entry
    for _, part in ipairs(entry[2]) do bytes = bytes - #part end
  end
  left = left - #entries
  if #entries < count then break end
end
return out
