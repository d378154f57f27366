-- Three ways to walk over all records: a cursor, a loop, and a visitor.
local kt = __kyototycoon__
local db = kt.db

-- Removes the records with a prefix, and shortens all other values to three bytes. Input: prefix.
function sweep(input, output)
  local removed, left = 0, 0
  local cursor = db:cursor()
  cursor:jump()
  while true do
    local key, value = cursor:get()
    if not key then
      break
    end
    if kt.strfwm(key, input.prefix) then
      cursor:remove()
      removed = removed + 1
    else
      cursor:set_value(value:sub(1, 3), nil, true)
      left = left + 1
    end
  end
  cursor:disable()
  output.removed, output.left = removed, left
  return kt.RVSUCCESS
end

-- Returns all records, read in each of the three ways.
function dump(input, output)
  local sums = {}
  for key, value in db:pairs() do
    sums[1] = (sums[1] or 0) + #key + #value
  end
  db:iterate(function(key, value)
    sums[2] = (sums[2] or 0) + #key + #value
  end, false)
  db:cursor_process(function(cursor)
    cursor:jump()
    for key, value in cursor do
      sums[3] = (sums[3] or 0) + #key + #value
      output[key] = value
    end
  end)
  return sums[1] == sums[2] and sums[2] == sums[3] and kt.RVSUCCESS or kt.RVELOGIC
end

-- Returns the first key at or after `from`, and the last one at or before it. Needs an ordered
-- database. Input: from.
function around(input, output)
  local cursor = db:cursor()
  if not cursor:jump_back(input.from) then
    return cursor:error():code() == kt.Error.NOIMPL and kt.RVENOIMPL or kt.RVELOGIC
  end
  output.before = cursor:get_key()
  cursor:jump(input.from)
  output.behind = cursor:get_key()
  return kt.RVSUCCESS
end
