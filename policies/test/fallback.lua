-- Tests of policies/fallback.lua. Whether each of the 256 answers is legal is checked apart from these.

local gate = { max_estimated_omitted_mass = 0.05 }
local function state(t)
  local s = { force_exact = false, uncertain = false, phase = "initial", can_widen = false, fetch_fits = false, recompute_fits = false,
              retryable = false, approximation_allowed = false }
  for k, v in pairs(t) do s[k] = v end
  return s
end

return {
  sure_answers_are_accepted = function(p)
    assert(p.fallback(state { approximation_allowed = true }, gate).action == "ACCEPT_APPROXIMATE")
  end,
  widens_once = function(p)
    assert(p.fallback(state { uncertain = true, can_widen = true, fetch_fits = true }, gate).action == "WIDEN_SEARCH")
    assert(p.fallback(state { uncertain = true, can_widen = true, phase = "post_widen", fetch_fits = true }, gate).action == "FULL_EXACT_FETCH")
  end,
  exact_requests_stay_exact = function(p)
    assert(p.fallback(state { force_exact = true, fetch_fits = true }, gate).action == "FULL_EXACT_FETCH")
    assert(p.fallback(state { force_exact = true, approximation_allowed = true }, gate).action == "REJECT_NO_LEGAL_PATH")
  end,
  the_order_of_exact_paths = function(p)
    assert(p.fallback(state { uncertain = true, recompute_fits = true, retryable = true }, gate).action == "RECOMPUTE_EXACT")
    assert(p.fallback(state { uncertain = true, retryable = true, approximation_allowed = true }, gate).action == "POSTPONE_FOR_EXACT_RETRY")
    assert(p.fallback(state { uncertain = true, approximation_allowed = true }, gate).action == "ACCEPT_DECLARED_DEGRADED")
    assert(p.fallback(state { uncertain = true }, gate).action == "REJECT_NO_LEGAL_PATH")
  end,
}
