forms.r, forms.w = '^r$', '^w$'

-- A reader can share the lock with readers.
admits.r = function(counts, class)
  for other in pairs(counts) do
    if other ~= class then
      return false
    end
  end
  return true
end

-- A writer holds the lock alone.
admits.w = function(counts)
  return next(counts) == nil
end
