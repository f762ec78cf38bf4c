-- Takes a lock that is free or has ended: SETNX, or GET and GETSET, in one step.
-- KEYS: the lock, the key that names its holder, the fencing counter.
-- ARGV: the holder's value, the lease in ms, 1 to take a fencing token.
-- Returns the token, or 1 without one, if granted, {0, the holder's value or else the time of the lock's end,
-- the rest of its lease in ms} if busy, or {2, the key's content, 0} if that is not a time.
local now = now_ms()
local ends = redis.call('GET', KEYS[1])
if ends and not is_time(ends) then
  return {2, ends, 0}
end
if ends and tonumber(ends) >= now then
  local holder = holder_of(ends, KEYS[2])
  if holder ~= ARGV[1] then
    return {0, holder or ends, ends - now}
  end
end
local granted = ARGV[3] == '1' and next_fence(KEYS[3]) or 1
put(KEYS[1], KEYS[2], ARGV[1], now + ARGV[2])
return granted
