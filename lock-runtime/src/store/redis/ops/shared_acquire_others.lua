-- The other cases: the lock has waiters, or holders of other classes, or some whose lease is over, or no room, or
-- this very holder; or an owner takes a token.
for i = 1, locks do
  local lock, queue, value, lease = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i + 2], ARGV[2 * i + 3]
  -- pcall: a key of another type must not keep the other locks from being taken.
  local found = not answers[i] and redis.pcall('ZSCORE', lock, value)
  if type(found) == 'table' then
    answers[i] = found
  elseif not answers[i] and is_spent() then
    -- Asked for again by itself. A call that tries once must not take this for a busy lock.
    answers[i] = {err = 'ERR the run has reached its limit'}
  elseif not answers[i] then
    local held = look(lock, now)
    if held then
      serve(held, queue, ARGV[1])
      answers[i] = enter(held, queue, KEYS[#KEYS], value, lease, fencing) or {0, first_to_end(held)}
      settle(held)
    else
      answers[i] = NO_LOCK
    end
  end
end
return answers
