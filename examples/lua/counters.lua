-- Counters: of visits, with an hour's life; of money, with fractions.
local kt = __kyototycoon__
local db = kt.db

-- page: what was visited. Answers how often by now.
function visit(input, output)
  if not input.page then
    return kt.RVEINVALID
  end
  output.visits = db:increment("visits:" .. input.page, 1, 0, 3600)
  return kt.RVSUCCESS
end

-- account, amount: what is paid in, or out if it is negative. Nothing is paid out that is not there.
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

-- Answers all counters of visits, by page.
function report(input, output)
  for _, key in ipairs(db:match_prefix("visits:")) do
    output[key:sub(8)] = db:increment(key)
  end
  return kt.RVSUCCESS
end
