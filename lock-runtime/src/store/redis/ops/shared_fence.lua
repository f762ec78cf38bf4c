-- Takes a fencing token for a lock that is still held.
-- KEYS: the lock, the counter. ARGV: the holder's value.
-- Returns the token as text, 0 if the value no longer holds the lock, or -1 if the present holders
-- also exclude it.
local held = look(KEYS[1], now_ms())
if not held then
  return NO_LOCK
end
local class = class_of(ARGV[1])
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local fence = token_for(held, class, KEYS[2])
  if shares_token(class) then
    redis.call('ZADD', KEYS[1], 0, 'fence:' .. fence)
  end
  return fence
end
settle(held)
return is_admitted(held, class) and 0 or -1
