-- Takes a fencing token for a lock that is still held.
-- KEYS: the lock, the counter. ARGV: the holder's value.
-- Returns the token as text, 0 if the key is gone, or -1 if it holds another value.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  return next_fence(KEYS[2])
end
return holder and -1 or 0
