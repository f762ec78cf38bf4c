-- Takes many exclusive locks under one value: all of them, or none. If one is busy, releases those
-- that the caller has. With a time to keep, takes and keeps those before the first busy one for as long instead.
-- KEYS: the fencing counter, then for each lock the lock and its queue.
-- ARGV: the channels' prefix, the holder's value, an earlier value of the caller that this one
-- replaces or '', the lease in ms, 1 to take a fencing token, the time to keep
-- in ms or 0.
-- Returns the token, or 1 without one, if granted, {0, the holder's value, the rest of its lease in ms,
-- the index of the busy lock, from 0} if busy.
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
  -- Takes the token first: if that fails, no lock is left behind.
  local granted = ARGV[5] == '1' and next_fence(KEYS[1]) or 1
  for i = 1, locks do
    redis.call('SET', KEYS[2 * i], value, 'PX', lease)
  end
  return granted
end

for i = 1, locks do
  local lock = KEYS[2 * i]
  if ARGV[6] ~= '0' and i < busy then
    redis.call('SET', lock, value, 'PX', ARGV[6])
  elseif own[i] then
    hand_over(lock, KEYS[2 * i + 1], ARGV[1])
  end
end
return {0, other, redis.call('PTTL', KEYS[2 * busy]), busy - 1}
