-- Counts the words of all values, or of the values of some keys.
--
--   tcrmgr ext HOST word_count '' ''          each word and its count, one word per line
--   tcrmgr ext HOST word_count 'k1 k2' ''     only in the values of these keys

function word_count(keys)
   local lines = {}
   local function map(_, value, emit)
      for word in string.gmatch(string.lower(value), "%w+") do
         if not emit(word, 1) then return false end
      end
      return true
   end
   local function reduce(word, ones)
      lines[#lines + 1] = word .. "\t" .. #ones
      return true
   end
   local wanted = #keys > 0 and _split(keys, " ") or nil
   if not _mapreduce(map, reduce, wanted) then return nil end
   return table.concat(lines, "\n")
end
