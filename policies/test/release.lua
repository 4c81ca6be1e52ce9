-- Tests of policies/release.lua.

local function gate(verdict, judged)
  return { metric = "omitted_mass", verdict = verdict, judged = judged ~= false, threshold = 0.05, n = 300, min_n = 200, detail = "" }
end
local over = { seconds_in_step = 20, wait_over = true, fraction = 0.1, step = 2, steps = 4, contract = "approximate", pipeline = "quest", transitions = {} }
local waiting = { seconds_in_step = 2, wait_over = false, fraction = 0.1, step = 2, steps = 4, contract = "approximate", pipeline = "quest", transitions = {} }

return {
  advances_when_all_pass = function(p)
    assert(p.release("CANARY", { gate "PASS" }, over).action == "ADVANCE")
  end,
  waits = function(p)
    assert(p.release("CANARY", { gate "PASS" }, waiting).action == "HOLD")
  end,
  no_data_never_advances = function(p)
    assert(p.release("CANARY", { gate "PASS", gate "NO_DATA" }, over).action == "HOLD")
    assert(p.release("CANARY", { gate "INCONCLUSIVE" }, over).action == "HOLD")
  end,
  failure_rolls_back = function(p)
    assert(p.release("RAMP", { gate "PASS", gate "FAIL" }, over).action == "ROLLBACK")
  end,
  gates_of_other_stages_do_not_hold = function(p)
    assert(p.release("SHADOW", { gate "PASS", gate("NO_DATA", false) }, over).action == "ADVANCE")
  end,
  starts = function(p)
    assert(p.release("OFF", {}, over).action == "ADVANCE")
  end,
}
