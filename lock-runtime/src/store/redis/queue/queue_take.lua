-- Takes an exclusive lock that its queue has handed over, for the whole lease.
-- KEYS: the lock, and the fencing counter if a token is taken.
-- ARGV: the holder's value, the lease in ms, 1 to take a fencing token.
-- Returns the token, or 1 without one, if taken, {0, the holder's value or '', the rest of its lease
-- in ms} if it was not handed over.
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then
  return {0, holder or '', redis.call('PTTL', KEYS[1])}
end
-- Takes the token first: if that fails, the claim is not extended.
local granted = ARGV[3] == '1' and next_fence(KEYS[2]) or 1
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return granted
