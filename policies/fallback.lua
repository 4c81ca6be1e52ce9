-- contract-order: the seven prepublication actions in the contract's own order.
--
-- state: force_exact (true for every exact request), uncertain (the estimated omitted mass is over the gate), phase ("initial" or
--        "post_widen"), can_widen, fetch_fits, recompute_fits (inside the deadline's slack), retryable, approximation_allowed
-- gate:  max_estimated_omitted_mass
-- The state is finite: this function runs once per state when the policy is activated, and the 256 answers become a table that the decode thread
-- reads. One illegal answer refuses the whole policy. Widening is possible once; an exact request never gets an approximate action.

local function fallback(state, gate)
  if not state.force_exact and not state.uncertain then
    return { action = "ACCEPT_APPROXIMATE" }
  end
  if state.phase == "initial" and state.uncertain and state.can_widen then
    return { action = "WIDEN_SEARCH" }
  end
  if state.fetch_fits then return { action = "FULL_EXACT_FETCH" } end
  if state.recompute_fits then return { action = "RECOMPUTE_EXACT" } end
  if state.retryable then return { action = "POSTPONE_FOR_EXACT_RETRY" } end
  if state.approximation_allowed and not state.force_exact then
    return { action = "ACCEPT_DECLARED_DEGRADED" }
  end
  return { action = "REJECT_NO_LEGAL_PATH" }
end

return { api = 1, name = "contract-order", fallback = fallback }
