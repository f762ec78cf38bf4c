-- Renews or checks many holders of locks that several may hold.
-- KEYS: the locks.  ARGV: for each the holder's value and the new lease in ms, 0 to check only.
-- Returns for each 1 (renewed), 0 (it holds the lock no longer) or -1 (nor could it, beside those who do).
local now = now_ms()
local verdicts = {}
for i, lock in ipairs(KEYS) do
  local value, lease = ARGV[2 * i - 1], ARGV[2 * i]
  -- pcall: a key of another type must not keep the others from being renewed.
  local ends = redis.pcall('ZSCORE', lock, value)
  if type(ends) == 'table' then
    verdicts[i] = -1
  elseif ends and tonumber(ends) > now then
    if lease ~= '0' then
      redis.call('ZADD', lock, now + lease, value)
      expire_with_last({lock = lock, now = now})
      -- One's own write ends the tracking of the key, and a read begins it anew.
      redis.call('ZSCORE', lock, value)
    end
    verdicts[i] = 1
  else
    verdicts[i] = is_admitted(look(lock, now), class_of(value)) and 0 or -1
  end
end
return verdicts
