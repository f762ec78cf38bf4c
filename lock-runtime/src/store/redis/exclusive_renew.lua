-- Renews or checks many exclusive locks.
-- KEYS: the locks.  ARGV: for each lock the holder's value and the new lease in ms, 0 to check only.
-- Returns for each lock 1 (renewed), 0 (the key is gone) or -1 (it holds something else).
local verdicts = {}
for i, key in ipairs(KEYS) do
  -- pcall: a key of another type must not keep the others from being renewed.
  local holder = redis.pcall('GET', key)
  if holder == ARGV[2 * i - 1] then
    if ARGV[2 * i] ~= '0' then
      redis.call('PEXPIRE', key, ARGV[2 * i])
      -- One's own write ends the tracking of the key, and a read begins it anew.
      redis.call('GET', key)
    end
    verdicts[i] = 1
  elseif holder then
    verdicts[i] = -1
  else
    verdicts[i] = 0
  end
end
return verdicts
