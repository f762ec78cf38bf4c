-- A lock in the form from before Redis 2.6.12 is a string: the time at which it ends, in ms since
-- 1970. A lock of this library has a second key beside it, <that time>:<the holder's value>. A
-- client that overwrites the first key has taken the lock away.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns true for a time in ms from 2001 to 2286: not for seconds, microseconds or other data.
local function is_time(text)
  return #text == 13 and string.match(text, '^[1-9]%d+$')
end

-- Returns the holder of the lock that ends at this time, if it is a lock of this library.
local function holder_of(ends, side)
  -- pcall: a key of another type names no holder.
  local told = redis.pcall('GET', side)
  if type(told) == 'string' and string.sub(told, 1, #ends + 1) == ends .. ':' then
    return string.sub(told, #ends + 2)
  end
  return nil
end

-- Returns 1 if the holder has the lock and it has not ended, 0 if the key is gone, or -1 if it has
-- another holder or has ended.
local function verdict(ends, side, value, now)
  if not ends then
    return 0
  end
  if type(ends) == 'string' and holder_of(ends, side) == value and tonumber(ends) >= now then
    return 1
  end
  return -1
end

-- Writes the lock last, since that is what grants it.
local function put(lock, side, value, ends)
  ends = string.format('%.0f', ends)
  redis.call('SET', side, ends .. ':' .. value, 'PXAT', ends)
  redis.call('SET', lock, ends, 'PXAT', ends)
end
