-- Job queues: numbered records, taken from the front. Each job is taken by exactly one worker.
local kt = __kyototycoon__
local db = kt.db

local function place(queue, number)
  return string.format("job:%s:%012d", queue, number)
end

-- Appends a job and returns its number. Input: queue, job.
function push(input, output)
  local number = db:increment("tail:" .. input.queue, 1)
  if not db:add(place(input.queue, number), input.job) then
    return kt.RVEINTERNAL
  end
  output.number = number
  return kt.RVSUCCESS
end

-- Takes the job at the front. Fails with RVELOGIC if the queue is empty. Input: queue.
function pop(input, output)
  local queue = input.queue
  while true do
    local head = db:increment("head:" .. queue, 0) + 1
    if head > (db:increment("tail:" .. queue, 0)) then
      return kt.RVELOGIC
    end
    local job = db:seize(place(queue, head))
    -- The worker that seized the record advances the head; the others try again.
    if job then
      db:increment("head:" .. queue, 1)
      output.job = job
      return kt.RVSUCCESS
    end
  end
end

-- Returns the number of waiting jobs. Input: queue.
function length(input, output)
  output.length = db:increment("tail:" .. input.queue, 0) - db:increment("head:" .. input.queue, 0)
  return kt.RVSUCCESS
end
