-- Tests of policies/fifo.lua. Each function gets the policy's table.

local function request(t)
  local r = { tenant = "t", class = "", contract = "exact", prompt_tokens = 10, max_tokens = 10,
              estimate_ms = 1, backend_bytes = 4096, staging_bytes = 4096 }
  for k, v in pairs(t) do r[k] = v end
  return r
end
local free = { pinned_free = 8192, staging_free = 8192, link_free = 8192, queue_free = 2 }

return {
  admits_when_credits_suffice = function(p)
    assert(p.admission(request {}, free).action == "ADMIT_TRANSFER")
  end,
  nothing_jumps_the_queue = function(p)
    local first = p.admission(request {}, free).priority
    assert(p.admission(request { slack_ms = 5 }, free).priority == first)
    assert(p.admission(request { contract = "approximate" }, free).priority == first)
  end,
  late_transfers_fall_back = function(p)
    assert(p.admission(request { slack_ms = 3, estimate_ms = 3 }, free).action == "ADMIT_TRANSFER")
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
