-- Takes a lock that is free or has ended: SETNX, or GET and GETSET, in one step.
-- KEYS: the lock, what tells its holder, the fencing counter.  ARGV: the holder's value, lease in ms, 1 to take a fencing token.
-- Returns {1, fence or ''} when granted, {0, the holder's value or else when it ends, rest of its lease in ms} when busy, {2, what is there,
-- 0} when that is no time.
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
local fence = ARGV[3] == '1' and next_fence(KEYS[3]) or ''
put(KEYS[1], KEYS[2], ARGV[1], now + ARGV[2])
return {1, fence}
