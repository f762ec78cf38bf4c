-- Takes many exclusive locks under one value, or none: then all that the caller has of them goes back. Or, with `keep`, those before the first
-- busy one.
-- KEYS: the fencing counter, then for each lock the lock and its queue.
-- ARGV: the channels' prefix, the holder's value, an earlier value of its that gives way to it or '', lease in ms, 1 to take a fencing token,
-- 1 to keep.
-- Returns {1, fence or ''} when granted, {0, the holder's value, rest of its lease in ms, number of the busy lock, from 0} when busy.
local value, former, lease = ARGV[2], ARGV[3], ARGV[4]
local locks = (#KEYS - 1) / 2
local own, busy, other = {}, nil, nil
for i = 1, locks do
  local holder = redis.call('GET', KEYS[2 * i])
  own[i] = holder and (holder == value or former ~= '' and holder == former)
  if holder and not own[i] and not busy then
    busy, other = i, holder
  end
end

if not busy then
  -- The fence comes first: if it fails, no lock is left behind.
  local fence = ARGV[5] == '1' and next_fence(KEYS[1]) or ''
  for i = 1, locks do
    redis.call('SET', KEYS[2 * i], value, 'PX', lease)
  end
  return {1, fence}
end

for i = 1, locks do
  local lock = KEYS[2 * i]
  if ARGV[6] == '1' and i < busy then
    redis.call('SET', lock, value, 'PX', lease)
  elseif own[i] and not hand_over(lock, KEYS[2 * i + 1], KEYS[1], ARGV[1]) then
    redis.call('DEL', lock)
  end
end
return {0, other, redis.call('PTTL', KEYS[2 * busy]), busy - 1}
