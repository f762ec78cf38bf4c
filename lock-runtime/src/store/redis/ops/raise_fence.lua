-- Raises a fencing counter to a token that another slot of the cluster has given out, so that the next
-- token of this one is greater. Tokens are compared as text: see `next_fence`.
-- KEYS: the fencing counter. ARGV: the token.
local last, token = redis.call('GET', KEYS[1]), ARGV[1]
if not last or #last < #token or #last == #token and last < token then
  redis.call('SET', KEYS[1], token, 'PX', 604800000)
end
return 1
