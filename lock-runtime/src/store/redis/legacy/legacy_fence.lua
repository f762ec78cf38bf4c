-- Takes a fencing token for a lock that is still held.
-- KEYS: the lock, the key that names its holder, the counter. ARGV: the holder's value.
-- Returns the token as text, 0 if the key is gone, or -1 if the caller does not hold it.
local found = verdict(redis.call('GET', KEYS[1]), KEYS[2], ARGV[1], now_ms())
if found == 1 then
  return next_fence(KEYS[3])
end
return found
