-- Renews or checks many locks.
-- KEYS: for each lock the lock and the key that names its holder.
-- ARGV: for each lock the holder's value and the new lease in ms, or 0 to check only.
-- Returns for each lock 1 (renewed), 0 (the key is gone) or -1 (the caller does not hold it).
local now = now_ms()
local verdicts = {}
for i = 1, #KEYS / 2 do
  local lock, side, value, lease = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i - 1], ARGV[2 * i]
  -- pcall: a key of another type must not stop the renewal of the others.
  verdicts[i] = verdict(redis.pcall('GET', lock), side, value, now)
  if verdicts[i] == 1 and lease ~= '0' then
    put(lock, side, value, now + lease)
    -- A client's own write ends the tracking of the keys. Another read begins it anew.
    redis.call('GET', lock)
    redis.call('GET', side)
  end
end
return verdicts
