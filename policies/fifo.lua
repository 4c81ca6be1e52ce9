-- fifo: an admission policy that keeps the order of arrival. Same arguments as admission.lua.

return {
  api = 1,
  name = "fifo",
  admission = function(r, credits)
    if r.slack_ms and r.estimate_ms > r.slack_ms then
      return { action = "FALLBACK", cause = "DEADLINE", reason = "the transfer would miss the deadline" }
    end
    local backend = math.min(credits.pinned_free, credits.link_free)
    if r.backend_bytes > backend or r.staging_bytes > credits.staging_free or credits.queue_free < 1 then
      return { action = "FALLBACK", cause = "CREDIT_PRESSURE", reason = "no credit is free" }
    end
    return { action = "ADMIT_TRANSFER", priority = 50, reason = "in order of arrival" }
  end,
}
