-- What wrk sends: the bodies of a file in turn, a line each; and what it tells: one line of JSON.
local bodies, at = {}, 0
for line in io.lines(os.getenv("BODIES")) do
  bodies[#bodies + 1] = line
end

function request()
  at = at % #bodies + 1
  return wrk.format("POST", nil, { ["content-type"] = "application/json" }, bodies[at])
end

function done(summary, latency)
  local failed = 0
  for _, count in pairs(summary.errors) do
    failed = failed + count
  end
  local told = '{"requests": %d, "failed": %d, "seconds": %.6f, "p50": %.3f, "p95": %.3f}\n'
  local middle, tail = latency:percentile(50) / 1000, latency:percentile(95) / 1000
  io.stderr:write(told:format(summary.requests, failed, summary.duration / 1e6, middle, tail))
end
