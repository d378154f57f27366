-- The least that a procedure can do: what comes in goes out.
function echo(input, output)
  for name, value in pairs(input) do
    output[name] = value
  end
  return __kyototycoon__.RVSUCCESS
end
