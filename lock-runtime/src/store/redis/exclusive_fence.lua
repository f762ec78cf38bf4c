-- Takes a fencing token for a lock that is still held.
-- KEYS: the lock, the counter.  ARGV: the holder's value.
-- Returns the token as text, or 0 (the key is gone) or -1 (it holds something else).
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  return next_fence(KEYS[2])
end
return holder and -1 or 0
