-- Expiry of rows of a table by their column "x", the Unix time of their end.
-- Start the server with: ttserver -ext expiry.lua -extpc expire 1 sessions.tct#idx=x:dec
--
-- The periodic function removes the rows whose time is over. Rows without the column stay.

function expire()
   _misc("search", "addcond\0x\0NUMGT\0" .. "0", "addcond\0x\0NUMLE\0" .. math.floor(_time()), "out")
end

-- Stores a row that lives for some seconds: tcrmgr ext HOST put_for KEY 'SECONDS name value ...'
function put_for(key, value)
   local words = _split(value, " ")
   local seconds = tonumber(table.remove(words, 1))
   if not seconds then return nil end
   words[#words + 1] = "x"
   words[#words + 1] = math.floor(_time() + seconds)
   return _misc("put", key, words) and "ok" or nil
end
