-- Renews or checks many holders of locks in shared modes.
-- KEYS: the locks. ARGV: for each the holder's value and the new lease in ms, or 0 to check only.
-- Returns for each 1 (renewed), 0 (the value no longer holds the lock) or -1 (the present holders
-- also exclude it).
local now = now_ms()
local verdicts = {}
for i, lock in ipairs(KEYS) do
  local value, lease = ARGV[2 * i - 1], ARGV[2 * i]
  -- pcall: a key of another type must not stop the renewal of the others.
  local ends = redis.pcall('ZSCORE', lock, value)
  if type(ends) == 'table' then
    verdicts[i] = -1
  elseif ends and tonumber(ends) > now then
    if lease ~= '0' then
      redis.call('ZADD', lock, now + lease, value)
      expire_with_last({lock = lock, now = now})
      -- A client's own write ends the tracking of the key. Another read begins it anew.
      redis.call('ZSCORE', lock, value)
    end
    verdicts[i] = 1
  else
    local held = look(lock, now)
    if held then
      settle(held)
    end
    verdicts[i] = held and is_admitted(held, class_of(value)) and 0 or -1
  end
end
return verdicts
