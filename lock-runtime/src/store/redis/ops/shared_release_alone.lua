-- Releases a lock in a shared mode whose queue is on another node of the cluster at the moment.
-- KEYS: the lock. ARGV: the holder's value; the time to keep its place in ms, or 0 to release it.
-- Returns nil (the value does not hold it), 0 (released or kept, and it has other holders) or 1
-- (released, and it is free).
local now = now_ms()
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
local held = look(KEYS[1], now)
if not held then
  return NO_LOCK
end
local done = false
if ends and tonumber(ends) > now then
  done = true
  if ARGV[2] == '0' then
    take_out(held, ARGV[1])
  else
    redis.call('ZADD', KEYS[1], now + ARGV[2], kept_name(ARGV[1]))
    redis.call('ZREM', KEYS[1], ARGV[1])
  end
  expire_with_last(held)
elseif ARGV[2] ~= '0' then
  done = redis.call('ZSCORE', KEYS[1], kept_name(ARGV[1])) ~= false
end
settle(held)
return done and (next(held.counts) and 0 or 1)
