-- Takes a lock in a shared mode, which the queue has handed over, for the whole lease.
-- KEYS: the lock, its queue, and the fencing counter if a token is taken.
-- ARGV: the holder's value, the lease in ms, 1 to take a fencing token.
-- Returns the token, or 1 without one, if taken, {0, a holder's value or '', the rest of the lease
-- that ends first in ms} if it was not handed over.
local held = look(KEYS[1], now_ms())
if not held then
  return NO_LOCK
end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local answer = {0, first_to_end(held)}
  settle(held)
  return answer
end
return enter(held, KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3] == '1')
