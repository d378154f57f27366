-- Counters: numbers of visits, which expire after an hour, and amounts of money, with fractions.
local kt = __kyototycoon__
local db = kt.db

-- Counts a visit. Input: page. Output: the number of visits so far.
function visit(input, output)
  if not input.page then
    return kt.RVEINVALID
  end
  output.visits = db:increment("visits:" .. input.page, 1, 0, 3600)
  return kt.RVSUCCESS
end

-- Adds an amount to an account. A negative amount must not exceed the balance.
-- Input: account, amount.
function pay(input, output)
  local amount = kt.atof(input.amount)
  local key = "account:" .. input.account
  local balance = db:increment_double(key, 0) or 0
  if balance + amount < 0 then
    return kt.RVELOGIC
  end
  output.balance = string.format("%.2f", db:increment_double(key, amount))
  return kt.RVSUCCESS
end

-- Returns the counters of all pages.
function report(input, output)
  for _, key in ipairs(db:match_prefix("visits:")) do
    output[key:sub(8)] = db:increment(key)
  end
  return kt.RVSUCCESS
end
