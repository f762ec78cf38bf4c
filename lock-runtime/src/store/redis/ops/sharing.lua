-- The class of a holder in a shared mode: r for a reader, w for a writer, s<N> for a holder of one of N
-- permits, o<owner> for a holder of an owner's lock.

-- No key lives longer, in ms: 366 days of a lease, and as many of a `lock_delay`. Without this limit, a
-- member that another client has added with a later score, or an endless one, would make PEXPIRE fail.
local LONGEST_LIFE = 63244800000

-- Returns the time in ms from `now` to the score of the member that ends last.
local function life_until(last, now)
  return math.ceil(math.max(math.min(last - now, LONGEST_LIFE), 1))
end

-- All holders of an owner's lock share one fencing token.
local function shares_token(class)
  return string.sub(class, 1, 1) == 'o'
end

-- Returns the number of holders that can share a lock if one of them is of this class, or nil for what is no
-- class.
local function most_of(class)
  if class == 'w' then
    return 1
  end
  if class == 'r' or shares_token(class) then
    return math.huge
  end
  local permits = string.match(class, '^s(%d+)$')
  return permits and math.max(tonumber(permits), 1)
end
