-- Takes a lock that is free and that nobody waits for, or stands in its queue.
-- KEYS: the lock, its queue, the fencing counter.
-- ARGV: the holder's value, lease in ms, the channels' prefix, the process, the member.
-- Returns {1, fence or ''} when granted, {0, the holder's value, rest of its lease in ms} when queued.
local holder = redis.call('GET', KEYS[1])
if not holder then
  holder = hand_over(KEYS[1], KEYS[2], KEYS[3], ARGV[3])
end
-- Its own value is there when the request was delivered twice.
if not holder or holder == ARGV[1] then
  local fence = string.match(ARGV[5], '^%d+:1:') and next_fence(KEYS[3]) or ''
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1, fence}
end
stand(KEYS[2], ARGV[5], ARGV[4])
return {0, holder, redis.call('PTTL', KEYS[1])}
