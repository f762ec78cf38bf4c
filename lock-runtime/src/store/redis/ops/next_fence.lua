-- Returns the next fencing token: one more than the last, and at least the server's time in
-- microseconds, so that tokens keep growing after data loss, unless the clock lags behind the one
-- that they were drawn from by more than the outage.
-- The token is text, because Lua's numbers are exact only up to 2^53.
local function next_fence(counter)
  local last = redis.call('INCR', counter)
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2]
  if last < micros then
    redis.call('SET', counter, string.format('%.0f', micros))
  end
  -- The counter of a slot of a cluster: there may be many. After a week without a lock, the server's
  -- time is greater than the last token.
  if string.sub(counter, -1) == '}' then
    redis.call('PEXPIRE', counter, 604800000)
  end
  return redis.call('GET', counter)
end
