-- Transactions: moves money from one account to another, completely or not at all.
local kt = __kyototycoon__
local db = kt.db

-- Moves an amount. Input: from, to, amount.
function transfer(input, output)
  local amount = kt.atoi(input.amount)
  local missing = false
  local is_done = db:transaction(function()
    if db:increment(input.from, -amount) < 0 then
      missing = true
      return false
    end
    db:increment(input.to, amount)
    return true
  end)
  if missing then
    return kt.RVELOGIC
  end
  output.left = db:increment(input.from, 0)
  return is_done and kt.RVSUCCESS or kt.RVEINTERNAL
end

-- Opens several accounts at once. Input: the balance of each account by its name.
function open(input)
  db:begin_transaction()
  for name, amount in pairs(input) do
    if not db:add(name, kt.pack("M", { kt.atoi(amount) })) then
      db:end_transaction(false)
      return kt.RVELOGIC
    end
  end
  return db:end_transaction() and kt.RVSUCCESS or kt.RVEINTERNAL
end

-- Begins a transaction and fails before its end. The server aborts it and discards its changes.
function forget()
  db:begin_transaction()
  db:clear()
  error("something came in between")
end
