-- Atomic counters, as decimal text that every client can read.
-- Call them with the option for record locking, so that calls on one key exclude each other:
--
--   tcrmgr ext -xlr HOST count visits 1      the new number
--   tcrmgr ext -xlr HOST count_to visits 10  the new number, at most 10

local function add(key, delta, max)
   local number = (tonumber(_get(key)) or 0) + delta
   if max and number > max then number = max end
   if not _put(key, number) then return nil end
   return number
end

function count(key, delta) return add(key, tonumber(delta) or 1) end

function count_to(key, max) return add(key, 1, tonumber(max)) end

-- Counters of 4 bytes need no lock: the server adds by itself.
function count_binary(key, delta) return _addint(key, tonumber(delta) or 1) end

-- Counts in the memory of the server, for figures that may be lost.
function count_in_stash(key, delta)
   _lock(key)
   local number = (tonumber(_stashget(key)) or 0) + (tonumber(delta) or 1)
   _stashput(key, number)
   _unlock(key)
   return number
end
