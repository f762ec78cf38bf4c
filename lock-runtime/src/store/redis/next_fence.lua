-- The next fencing token: one more than the last, and at least the server's microseconds, so that it does not start anew after data loss.
-- It is returned as text, because Lua's numbers are exact only up to 2^53.
local function next_fence(counter)
  local last = redis.call('INCR', counter)
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2]
  if last < micros then
    redis.call('SET', counter, string.format('%.0f', micros))
  end
  return redis.call('GET', counter)
end
