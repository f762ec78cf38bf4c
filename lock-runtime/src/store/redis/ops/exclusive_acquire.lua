-- Takes an exclusive lock.
-- KEYS: the lock, its queue, and the fencing counter if a token is taken.
-- ARGV: the holder's value, the lease in ms, 1 to take a fencing token, 1 to let the waiters in the
-- queue go first.
-- Returns {1, token or ''} if granted, {0, the holder's value or '', the rest of its lease in ms}
-- if busy.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0, holder, redis.call('PTTL', KEYS[1])}
end
if not holder and ARGV[4] == '1' and first_in(KEYS[2]) then
  return {0, '', 0}
end
-- Takes the token first: if that fails, no lock is left behind.
local fence = ARGV[3] == '1' and next_fence(KEYS[3]) or ''
if holder then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
end
return {1, fence}
