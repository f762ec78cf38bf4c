forms.o = '^o'

-- A holder of class o<owner> can share the lock with holders of the same class.
admits.o = admits.r

-- A holder of the class that has the lock passes all waiters: otherwise a workflow could wait for
-- itself.
passes.o = function(counts, class)
  return counts[class] ~= nil and admits.o(counts, class)
end

shares_token.o = true
