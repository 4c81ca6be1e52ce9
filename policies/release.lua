-- steady: advance when every gate passes and the step's waiting time is over; otherwise hold.
--
-- stage:   "OFF", "SHADOW", "CANARY", "RAMP"
-- gates:   list of { metric, verdict ("PASS", "FAIL", "INCONCLUSIVE", "NO_DATA"), judged (at this stage), value, lower, upper, threshold, n,
--          min_n, detail }; value, lower and upper are nil where there is none
-- history: seconds_in_step, wait_over (min_seconds and min_samples are met, or skipped), fraction, step, steps, contract, pipeline,
--          transitions = list of { from, to, seconds_ago }
-- answer:  action = "ADVANCE", "HOLD" or "ROLLBACK", and a reason for the receipt.
-- A failed gate returns to the exact baseline before this function is asked; an ADVANCE without every judged gate passing is a policy fault.

local function release(stage, gates, history)
  for _, g in ipairs(gates) do
    if g.judged and g.verdict == "FAIL" then
      return { action = "ROLLBACK", reason = "gate " .. g.metric .. " failed" }
    end
  end
  for _, g in ipairs(gates) do
    if g.judged and g.verdict ~= "PASS" then
      return { action = "HOLD", reason = "gate " .. g.metric .. ": " .. g.verdict .. ", " .. g.detail }
    end
  end
  if not history.wait_over then
    return { action = "HOLD", reason = "this step's waiting time is not over" }
  end
  if stage == "OFF" then return { action = "ADVANCE", reason = "start in the shadow of the baseline" } end
  return { action = "ADVANCE", reason = "every gate passed" }
end

return { api = 1, name = "steady", release = release }
