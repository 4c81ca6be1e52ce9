-- exact-deadline-coalescing: exact work first, then the tightest deadline.
--
-- r:       tenant, class, contract ("exact" or "approximate"), prompt_tokens, max_tokens,
--          slack_ms (nil: no deadline), estimate_ms, backend_bytes (after coalescing), staging_bytes,
--          placement (the candidate's; "": the request only waits for its turn)
-- credits: pinned_free, staging_free, link_free (bytes), queue_free (slots)
-- answer:  action = "ADMIT_TRANSFER", or "FALLBACK" with cause = "DEADLINE" or "CREDIT_PRESSURE";
--          placement: r.placement or none, or "resident": the baseline serves it; any other word is a fault;
--          priority 0 to 100, higher first among waiting requests; reason: one line for the receipt.
-- Whatever this says, a transfer that misses its deadline or exceeds the credits is refused by the program.

local function admission(r, credits)
  if r.slack_ms and r.estimate_ms > r.slack_ms then
    return { action = "FALLBACK", cause = "DEADLINE", reason = "the transfer would miss the deadline" }
  end
  local backend = math.min(credits.pinned_free, credits.link_free)
  if r.backend_bytes > backend or r.staging_bytes > credits.staging_free or credits.queue_free < 1 then
    return { action = "FALLBACK", cause = "CREDIT_PRESSURE", reason = "no credit is free" }
  end
  local priority = r.contract == "exact" and 60 or 20
  if r.slack_ms then -- up to 30 more the closer the deadline
    priority = priority + math.max(0, 30 - (r.slack_ms - r.estimate_ms) // 10)
  end
  return { action = "ADMIT_TRANSFER", priority = math.min(100, priority), reason = "deadline and credits suffice" }
end

return { api = 1, name = "exact-deadline-coalescing", admission = admission }
