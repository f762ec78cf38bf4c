-- Reads the mark of a server that is one of several masters. Writes it anew if the server may have
-- forgotten locks: the mark is absent, or of another run of the server. The server is then closed
-- until each of these locks is over.
-- KEYS: the mark. ARGV: the server's run id, the longest lease in ms, 1 to open the server now.
-- Returns {the mark, the time in ms until the server opens, the longest lease in ms that the mark
-- names, 1 if this run has opened a closed server or 0}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- pcall: a key of another type is no mark, and is replaced.
local found = redis.pcall('GET', KEYS[1])
found = type(found) == 'string' and found or ''
local run, opens, longest = string.match(found, '^(%w+):(%d+):(%d+)$')
opens = tonumber(opens) or 0
if run ~= ARGV[1] then
  -- A run that was still closed itself may have forgotten longer leases than its mark names.
  opens = math.max(now + math.max(ARGV[2], longest or 0), opens)
  longest = ARGV[2]
end
local is_opened = ARGV[3] == '1' and longest == ARGV[2] and opens > now
if is_opened then
  opens = now
end
local mark = string.format('%s:%.0f:%s', ARGV[1], opens, longest)
if mark ~= found then
  redis.call('SET', KEYS[1], mark)
end
return {mark, string.format('%.0f', math.max(opens - now, 0)), longest, is_opened and 1 or 0}
