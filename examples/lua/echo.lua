-- The smallest procedure: returns its input.
function echo(input, output)
  for name, value in pairs(input) do
    output[name] = value
  end
  return __kyototycoon__.RVSUCCESS
end
