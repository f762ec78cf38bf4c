-- Gives exclusive locks back: to the first in their queues, or to nobody. Or keeps them for the rest of their minimum hold.
-- KEYS: the fencing counter, then for each lock the lock and its queue.
-- ARGV: the channels' prefix, then for each lock the holder's value, time to keep the key in ms, 0 not to, and the member to take out of the
-- queue or ''.
-- Returns for each lock 1 (done), 0 (the key is gone), -1 (it holds something else) or an error.
local function release(lock, queue, value, keep, member)
  if member ~= '' and redis.call('ZREM', queue, member) == 1 and not first_in(queue) then
    redis.call('DEL', queue)
  end
  -- pcall: a key of another type must not keep the others from being released.
  local holder = redis.pcall('GET', lock)
  if type(holder) == 'table' then
    return holder
  end
  -- A kept key gets its token backwards: a renewal that is still on its way then finds it is not its own, and
  -- cannot end the minimum hold early or late.
  local kept = string.reverse(string.sub(value, 1, 32)) .. string.sub(value, 33)
  if holder == value then
    if keep == '0' then
      if not hand_over(lock, queue, KEYS[1], ARGV[1]) then
        redis.call('DEL', lock)
      end
    elseif redis.pcall('SET', lock, kept, 'PX', keep).err then
      -- An old server that is out of memory still changes an expiry.
      redis.call('PEXPIRE', lock, keep)
    end
    return 1
  end
  if holder == kept and keep ~= '0' then
    return 1
  end
  return holder and -1 or 0
end

local answers = {}
for i = 1, (#KEYS - 1) / 2 do
  answers[i] = release(KEYS[2 * i], KEYS[2 * i + 1], ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1])
end
return answers
