-- Takes locks in shared modes, unless they have waiters.
-- KEYS: for each lock the lock and its queue, then the fencing counter if tokens are taken.
-- ARGV: the channels' prefix, 1 to take fencing tokens, 1 to use all the commands that the shared modes need, so
-- that one that is not allowed is found before a lock is taken, then for each lock the holder's value and the
-- lease in ms.
-- Returns for each lock its token, or 1 without one, if granted, {0, a holder's value or '', the rest of the lease
-- that ends first in ms} if busy, or an error.

-- The common case first, before the other functions are created: the lock has no waiters, and is free or
-- shared by holders of one class. An owner's holders share a token, which is found below.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local locks, fencing = (#ARGV - 3) / 2, ARGV[2] == '1'
local answers = {}
local others = false
-- One command for all of them. Refused, or if one of the keys is there, each is looked at below.
local are_gone, granted_in = redis.pcall('EXISTS', unpack(KEYS, 1, 2 * locks)) == 0, {}
for i = 1, locks do
  local lock, value, ends = KEYS[2 * i - 1], ARGV[2 * i + 2], now + ARGV[2 * i + 3]
  local class = string.match(value, '^([^:]*):') or ''
  local most, tally = most_of(class), '#' .. class
  if ARGV[3] == '0' and most and not (fencing and shares_token(class))
    and (are_gone or redis.pcall('PTTL', KEYS[2 * i]) == -2) then
    local count, last
    if are_gone and not granted_in[lock] or redis.call('PTTL', lock) == -2 then
      count, last = 0, 0
    else
      -- The only tally, and the holder whose lease ends first. A tally is a small number, so the second is a holder.
      -- pcall: a key of another type must not keep the other locks from being taken.
      local found = redis.pcall('ZRANGE', lock, 0, 1, 'WITHSCORES')
      if found.err then
        answers[i] = found
      -- Its own value is there if the request was delivered twice.
      elseif found[1] == tally and found[4] and tonumber(found[4]) > now and tonumber(found[2]) < most
        and not redis.call('ZSCORE', lock, value) then
        count, last = found[2], redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2]
      end
    end
    if count then
      -- Takes the token first: if that fails, no lock is left behind.
      local granted = fencing and next_fence(KEYS[#KEYS], locks - i + 1) or 1
      redis.call('ZADD', lock, ends, value, count + 1, tally)
      redis.call('PEXPIRE', lock, count == 0 and ARGV[2 * i + 3] or life_until(math.max(last, ends), now))
      answers[i], granted_in[lock] = granted, true
    end
  end
  others = others or not answers[i]
end
if not others then
  return answers
end
