-- Queues of jobs: numbered records, taken from the front. A job is taken by one worker only.
local kt = __kyototycoon__
local db = kt.db

local function place(queue, number)
  return string.format("job:%s:%012d", queue, number)
end

-- queue, job: puts a job at the end. Answers its number.
function push(input, output)
  local number = db:increment("tail:" .. input.queue, 1)
  if not db:add(place(input.queue, number), input.job) then
    return kt.RVEINTERNAL
  end
  output.number = number
  return kt.RVSUCCESS
end

-- queue: takes the job at the front. A missing one is a logical inconsistency.
function pop(input, output)
  local queue = input.queue
  while true do
    local head = db:increment("head:" .. queue, 0) + 1
    if head > (db:increment("tail:" .. queue, 0)) then
      return kt.RVELOGIC
    end
    local job = db:seize(place(queue, head))
    -- Who has seized it moves the head on; others look again.
    if job then
      db:increment("head:" .. queue, 1)
      output.job = job
      return kt.RVSUCCESS
    end
  end
end

-- queue: answers how many jobs wait.
function length(input, output)
  output.length = db:increment("tail:" .. input.queue, 0) - db:increment("head:" .. input.queue, 0)
  return kt.RVSUCCESS
end
