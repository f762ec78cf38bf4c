-- Takes exclusive locks.
-- KEYS: for each lock the lock and its queue, then the fencing counter if tokens are taken.
-- ARGV: 1 to take fencing tokens, 1 to let the waiters in the queues go first, then for each lock the holder's
-- value and the lease in ms.
-- Returns for each lock its token, or 1 without one, if granted, {0, the holder's value or '', the rest of its
-- lease in ms} if busy, or an error.
local locks = (#ARGV - 2) / 2
local answers = {}
local function token_for(i)
  return ARGV[1] == '1' and next_fence(KEYS[#KEYS], locks - i + 1) or 1
end
for i = 1, locks do
  local lock, queue, value, lease = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i + 1], ARGV[2 * i + 2]
  -- pcall: as in `first_in`, which costs more.
  local waits = ARGV[2] == '1' and redis.pcall('PTTL', queue) ~= -2
  -- pcall: a server before 7.0 that is out of memory still tells who has the lock.
  local set = not waits and redis.pcall('SET', lock, value, 'NX', 'PX', lease)
  if set and not set.err then
    local has_token, token = pcall(token_for, i)
    if not has_token then
      -- No lock is left behind. From 7.0 on, `pcall` leaves only the text of an error, with its code.
      redis.call('DEL', lock)
      error(redis.REDIS_VERSION_NUM and {err = token} or token, 0)
    end
    answers[i] = token
  else
    -- pcall: a key of another type must not keep the other locks from being taken.
    local holder = redis.pcall('GET', lock)
    if type(holder) == 'table' then
      answers[i] = holder
    elseif holder and holder ~= value then
      answers[i] = {0, holder, redis.call('PTTL', lock)}
    elseif not holder and waits and first_in(queue) then
      answers[i] = {0, '', 0}
    else
      -- Takes the token first: if that fails, no lock is left behind.
      local token = token_for(i)
      if holder then
        redis.call('PEXPIRE', lock, lease)
      else
        redis.call('SET', lock, value, 'NX', 'PX', lease)
      end
      answers[i] = token
    end
  end
end
return answers
