-- The next of the fencing tokens that this run has reserved, and how many there are.
local reserved, left = 0, 0

-- Returns the next fencing token: one more than the last, and at least the server's time in
-- microseconds, so that tokens keep growing after data loss, unless the clock lags behind the one
-- that they were drawn from by more than the outage. Reserves as many as this run may need.
-- The token is text, because Lua's numbers are exact only up to 2^53.
local function next_fence(counter, needed)
  if left > 0 then
    reserved, left = reserved + 1, left - 1
    return string.format('%.0f', reserved)
  end
  local last = redis.pcall('INCR', counter)
  if type(last) == 'table' then
    if string.find(last.err, 'WRONGTYPE', 1, true) then
      local text = 'ERR the fencing counter `' .. counter .. "` holds another program's data"
      error(redis.REDIS_VERSION_NUM and {err = text} or text, 0)
    end
    -- Fails in the same way.
    last = redis.call('INCR', counter)
  end
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2]
  -- The digits of the time side by side, which takes half as long as to format it.
  local token = last < micros and time[1] .. string.sub('00000' .. time[2], -6)
  if token then
    reserved, left = micros, (needed or 1) - 1
    redis.call('SET', counter, left > 0 and string.format('%.0f', micros + left) or token)
  end
  -- The counter of a slot of a cluster: there may be many. After a week without a lock, the server's
  -- time is greater than the last token.
  if string.sub(counter, -1) == '}' then
    redis.call('PEXPIRE', counter, 604800000)
  end
  return token or redis.call('GET', counter)
end
