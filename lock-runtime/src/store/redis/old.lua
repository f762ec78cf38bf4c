-- The lock of before Redis 2.6.12 is a string: the time at which it ends, in ms since 1970. What is ours has a second key beside it, <that
-- time>:<the holder's value>. Whoever overwrites the first one has taken the lock away.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Whether it is a time of these centuries, and not seconds, microseconds, or no time at all.
local function is_time(text)
  return #text == 13 and string.match(text, '^[1-9]%d+$')
end

-- Whose the lock is that ends then, if it is ours.
local function holder_of(ends, side)
  -- pcall: a key of another type is nobody's.
  local told = redis.pcall('GET', side)
  if type(told) == 'string' and string.sub(told, 1, #ends + 1) == ends .. ':' then
    return string.sub(told, #ends + 2)
  end
  return nil
end

-- 1: the holder has the lock and it has not ended, 0: it is gone, -1: it is somebody else's.
local function verdict(ends, side, value, now)
  if not ends then
    return 0
  end
  if type(ends) == 'string' and holder_of(ends, side) == value and tonumber(ends) >= now then
    return 1
  end
  return -1
end

-- The lock comes last, for it is what grants.
local function put(lock, side, value, ends)
  ends = string.format('%.0f', ends)
  redis.call('SET', side, ends .. ':' .. value, 'PXAT', ends)
  redis.call('SET', lock, ends, 'PXAT', ends)
end
