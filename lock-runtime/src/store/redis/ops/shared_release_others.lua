-- The other cases: the lock has waiters, or holders of other classes, or some whose lease is over, or a token; or
-- a place is to be kept, or a member taken out of the queue.

if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function release(lock, queue, value, keep, member)
  leave(queue, member)
  -- pcall: a key of another type must not stop the release of the other locks.
  local ends = redis.pcall('ZSCORE', lock, value)
  if type(ends) == 'table' then
    return ends
  end
  local held = look(lock, now)
  if not held then
    return NO_LOCK
  end
  local done = false
  if ends and tonumber(ends) > now then
    done = true
    if keep == '0' then
      take_out(held, value)
    else
      redis.call('ZADD', lock, now + keep, kept_name(value))
      redis.call('ZREM', lock, value)
    end
    expire_with_last(held)
  elseif keep ~= '0' then
    done = redis.call('ZSCORE', lock, kept_name(value)) ~= false
  end
  serve(held, queue, ARGV[1])
  settle(held)
  return done and (next(held.counts) and 0 or 1)
end

for i = 1, #KEYS / 2 do
  if answers[i] == nil then
    answers[i] = release(KEYS[2 * i - 1], KEYS[2 * i], terms_of(i))
  end
end
return answers
