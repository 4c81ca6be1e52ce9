-- earliest_deadline: an admission policy that serves the tightest slack first, whatever the contract.
-- Same arguments as admission.lua. It protects slack, and may let a large approximate transfer go before an exact one.

return {
  api = 1,
  name = "earliest-deadline",
  admission = function(r, credits)
    if r.slack_ms and r.estimate_ms > r.slack_ms then
      return { action = "FALLBACK", cause = "DEADLINE", reason = "the transfer would miss the deadline" }
    end
    local backend = math.min(credits.pinned_free, credits.link_free)
    if r.backend_bytes > backend or r.staging_bytes > credits.staging_free or credits.queue_free < 1 then
      return { action = "FALLBACK", cause = "CREDIT_PRESSURE", reason = "no credit is free" }
    end
    local priority = 0 -- no deadline waits for those that have one
    if r.slack_ms then priority = math.max(1, 100 - (r.slack_ms - r.estimate_ms) // 10) end
    return { action = "ADMIT_TRANSFER", priority = priority, reason = "by deadline" }
  end,
}
