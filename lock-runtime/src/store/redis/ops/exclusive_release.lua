-- Releases exclusive locks, and hands each to the first waiter in its queue, if there is one. Keeps
-- a lock for the rest of its minimum hold instead, if told to.
-- KEYS: for each lock the lock and its queue.
-- ARGV: the channels' prefix, then for each lock the holder's value, and if one of them is released in
-- another way than at once, each value with three more:
-- the time to keep the key in ms, or 0 to release it; the member to take out of the queue, or ''; and
-- '' or <pause>:<every>:<0 or 1> if the lock may be left free for clients that poll: for <pause> ms,
-- once in <every> ms at most, with 1 if calls of the holder's process have waited that long.
-- Returns for each lock 2 (released and left free for a while), 1 (released or kept), 0 (the key is
-- gone), -1 (it holds another value) or an error; for one value alone its answer itself.

-- The common case first, before any function is created: the lock has no waiters.
local answers, released = {}, {}
local others = false
local each = 2 * (#ARGV - 1) / #KEYS
local holders = {}
if #KEYS > 2 then
  local locks = {}
  for i = 1, #KEYS / 2 do
    locks[i] = KEYS[2 * i - 1]
  end
  -- A key that it does not tell, gone or of another type, is asked for by GET below; so is each if MGET is refused.
  holders = redis.pcall('MGET', unpack(locks))
end
for i = 1, #KEYS / 2 do
  local lock, at = KEYS[2 * i - 1], each * (i - 1) + 2
  if each == 1 or ARGV[at + 1] == '0' and ARGV[at + 2] == '' and string.sub(ARGV[at + 3], -2) ~= ':1' then
    -- pcall: a key of another type must not stop the release of the other locks.
    local holder = holders[i] or redis.pcall('GET', lock)
    if holder ~= ARGV[at] then
      answers[i] = type(holder) == 'table' and holder or holder and -1 or 0
    elseif redis.call('PTTL', KEYS[2 * i]) == -2 then
      -- There is no queue. EXISTS would need a permission of its own.
      released[#released + 1] = lock
      answers[i] = 1
    end
  end
  others = others or not answers[i]
end
if released[1] then
  redis.call('DEL', unpack(released))
end
if not others then
  return #ARGV == 2 and answers[1] or answers
end
