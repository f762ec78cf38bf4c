-- Takes a lock that is free and has no waiters, or joins its queue.
-- KEYS: the lock, its queue, and the fencing counter if a token is taken.
-- ARGV: the holder's value, the lease in ms, the channels' prefix, the process, whether messages reach
-- it as in `heard_of`, the member.
-- Returns the token, or 1 without one, if granted, {0, the holder's value or '', the rest of its lease
-- in ms} if queued.
local holder = redis.call('GET', KEYS[1])
local free = not holder and free_for(KEYS[2]) or 0
if not holder and free == 0 then
  holder = hand_over(KEYS[1], KEYS[2], ARGV[3])
end
-- Its own value is there if the request was delivered twice.
if not holder and free == 0 and not first_in(KEYS[2]) or holder == ARGV[1] then
  local granted = string.match(ARGV[6], '^%d+:1:') and next_fence(KEYS[3]) or 1
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return granted
end
stand(KEYS[2], ARGV[6], ARGV[4], ARGV[5])
-- The rest of the lease. Without a holder, the time for which the lock is left free, or 0 if the
-- run has reached its limit and another look is due at once.
return {0, holder or '', holder and redis.call('PTTL', KEYS[1]) or free}
