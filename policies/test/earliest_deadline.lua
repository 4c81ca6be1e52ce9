-- Tests of policies/earliest_deadline.lua. Each function gets the policy's table.

local function request(t)
  local r = { tenant = "t", class = "", contract = "exact", prompt_tokens = 10, max_tokens = 10,
              estimate_ms = 1, backend_bytes = 4096, staging_bytes = 4096 }
  for k, v in pairs(t) do r[k] = v end
  return r
end
local free = { pinned_free = 8192, staging_free = 8192, link_free = 8192, queue_free = 2 }

return {
  tighter_slack_goes_first = function(p)
    local tight = p.admission(request { slack_ms = 5 }, free).priority
    local loose = p.admission(request { slack_ms = 500 }, free).priority
    assert(tight > loose)
  end,
  work_that_takes_longer_has_less_slack = function(p)
    local long = p.admission(request { slack_ms = 500, estimate_ms = 400 }, free).priority
    assert(long > p.admission(request { slack_ms = 500 }, free).priority)
  end,
  the_contract_does_not_matter = function(p)
    local exact = p.admission(request { slack_ms = 50 }, free).priority
    assert(p.admission(request { slack_ms = 50, contract = "approximate" }, free).priority == exact)
  end,
  no_deadline_waits_for_those_that_have_one = function(p)
    local none = p.admission(request {}, free).priority
    assert(p.admission(request { slack_ms = 1000000 }, free).priority > none)
  end,
  late_transfers_fall_back = function(p)
    local a = p.admission(request { slack_ms = 2, estimate_ms = 3 }, free)
    assert(a.action == "FALLBACK" and a.cause == "DEADLINE")
  end,
  each_credit_is_looked_at = function(p)
    for _, name in ipairs { "pinned_free", "staging_free", "link_free", "queue_free" } do
      local c = {}
      for k, v in pairs(free) do c[k] = v end
      c[name] = 0
      local a = p.admission(request {}, c)
      assert(a.action == "FALLBACK" and a.cause == "CREDIT_PRESSURE", name)
    end
  end,
}
