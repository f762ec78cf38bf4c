-- Releases locks in shared modes, and hands them to waiters. Keeps a place for the rest of the
-- minimum hold instead, if told to.
-- KEYS: for each lock the lock and its queue.
-- ARGV: the channels' prefix, then for each lock: the holder's value; the time to keep its place in
-- ms, or 0 to release it; the member to take out of the queue, or ''; and one argument that only
-- exclusive locks use.
-- Returns for each lock nil (the value does not hold it), 0 (released or kept, and it has other
-- holders), 1 (released, and it is free) or an error.
local now = now_ms()

local function release(lock, queue, value, keep, member)
  leave(queue, member)
  -- pcall: a key of another type must not stop the release of the other locks.
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
  serve(held, queue, ARGV[1])
  settle(held)
  return done and (next(held.counts) and 0 or 1)
end

local answers = {}
for i = 1, #KEYS / 2 do
  answers[i] = release(KEYS[2 * i - 1], KEYS[2 * i], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i])
end
return answers
