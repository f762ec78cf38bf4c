-- Raises the fencing counter to a token that another master of a quorum has given out, for a lock that is
-- still held. Tokens are compared as text: see `next_fence`.
-- KEYS: the lock, the counter. ARGV: the holder's value, the token.
-- Returns 1, 0 if the key is gone, or -1 if it holds another value.
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then
  return holder and -1 or 0
end
local last, token = redis.call('GET', KEYS[2]), ARGV[2]
if not last or #last < #token or #last == #token and last < token then
  redis.call('SET', KEYS[2], token)
end
return 1
