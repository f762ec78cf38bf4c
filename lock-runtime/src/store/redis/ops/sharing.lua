-- The class of a holder in a shared mode: r for a reader, w for a writer, s<N> for a holder of one of N
-- permits, o<owner> for a holder of an owner's lock.

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
