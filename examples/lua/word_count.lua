-- Counts the words of all values by map-reduce.
local kt = __kyototycoon__
local db = kt.db

-- Returns the number of occurrences of each word.
function count(input, output)
  local function map(key, value, emit)
    for word in value:lower():gmatch("%a+") do
      emit(word, 1)
    end
    return true
  end
  local function reduce(word, next)
    local sum = 0
    for number in next do
      sum = sum + number
    end
    output[word] = sum
    return true
  end
  return db:mapreduce(map, reduce) and kt.RVSUCCESS or kt.RVEINTERNAL
end
