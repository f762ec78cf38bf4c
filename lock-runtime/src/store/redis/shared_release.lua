-- Gives locks back that several may hold, and lets those in who wait for it. Or keeps the place for the rest of the minimum hold.
-- KEYS: the fencing counter, then for each lock the lock and its queue.
-- ARGV: the channels' prefix, then for each lock the holder's value, time to keep its place in ms, 0 not to, and the member to take out of
-- the queue or ''.
-- Returns for each lock nil (the value does not hold it), 0 (done, and others hold it), 1 (done, and it is free) or an error.
local now = now_ms()

local function release(lock, queue, value, keep, member)
  -- pcall: who may not use the queue can use the lock all the same.
  if member ~= '' and redis.pcall('ZREM', queue, member) == 1 and not first_in(queue) then
    redis.call('DEL', queue)
  end
  -- pcall: a key of another type must not keep the others from being released.
  local ends = redis.pcall('ZSCORE', lock, value)
  if type(ends) == 'table' then
    return ends
  end
  local held = look(lock, now)
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
  serve(held, queue, KEYS[1], ARGV[1])
  return done and (next(held.counts) and 0 or 1)
end

local answers = {}
for i = 1, (#KEYS - 1) / 2 do
  answers[i] = release(KEYS[2 * i], KEYS[2 * i + 1], ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1])
end
return answers
