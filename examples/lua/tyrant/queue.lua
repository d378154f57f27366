-- First-in first-out queues for Tokyo Tyrant's clients, in an ordered or unordered database.
-- Each entry is a record whose key is the name of the queue and a number with leading zeros.
--
--   tcrmgr ext HOST push mail 'Hello'     the number of the entry
--   tcrmgr ext HOST pop mail 2            up to two entries, one per line
--   tcrmgr ext HOST length mail ''        the number of entries

local function entry(queue, number)
   return string.format("%s\t%012d", queue, number)
end

-- Returns the numbers of the entries in ascending order, so that the oldest entry is the first.
local function numbers(queue)
   local found = {}
   for _, key in ipairs(_fwmkeys(queue .. "\t")) do
      found[#found + 1] = tonumber(string.sub(key, #queue + 2))
   end
   table.sort(found)
   return found
end

-- Appends an entry.
function push(queue, value)
   if #queue == 0 then return nil end
   local number = _adddouble(queue, 1)
   if not number or not _putkeep(entry(queue, number), value) then return nil end
   return number
end

-- Removes the oldest entries and returns them. Calls for the same queue run one after another.
function pop(queue, max)
   max = tonumber(max) or 1
   local name = "queue " .. queue
   if not _lock(name) then return nil end
   local taken = {}
   for _, number in ipairs(numbers(queue)) do
      if #taken >= max then break end
      local key = entry(queue, number)
      local value = _get(key)
      if value and _out(key) then taken[#taken + 1] = value end
   end
   _unlock(name)
   return table.concat(taken, "\n")
end

-- Returns the number of entries.
function length(queue)
   return #numbers(queue)
end
