/* metrics_text.c — GET /metrics: Prometheus text of the status snapshot. Labels are bounded: tiers, stages, policy kinds, gates of the live rollout. */
#include "controller/extents.h"
#include "controller/fault_lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct page {
    FILE *f;
    char *at;
    size_t n;
};

static void head(struct page *p, const char *name, const char *type, const char *help)
{
    fprintf(p->f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void counter(struct page *p, const char *name, const char *help, uint64_t v)
{
    head(p, name, "counter", help);
    fprintf(p->f, "%s %llu\n", name, (unsigned long long)v);
}

static void seconds(struct page *p, const char *name, const char *help, uint64_t ns)
{
    head(p, name, "counter", help);
    fprintf(p->f, "%s %.9f\n", name, (double)ns / 1e9);
}

static void gauge(struct page *p, const char *name, const char *help, double v)
{
    if (isnan(v)) return; /* not measured yet: absent, not zero */
    head(p, name, "gauge", help);
    fprintf(p->f, "%s %.10g\n", name, v);
}

static void engine_metrics(struct page *p, const struct kv_engine_stats *e)
{
    gauge(p, "kvasir_requests_active", "requests being decoded", e->active);
    gauge(p, "kvasir_requests_queued", "requests waiting", e->queued);
    gauge(p, "kvasir_requests_recomputing", "sequences recomputed after a rollback", e->recomputing);
    counter(p, "kvasir_requests_total", "requests admitted", e->requests);
    counter(p, "kvasir_requests_finished_total", "requests finished", e->finished);
    counter(p, "kvasir_requests_cancelled_total", "requests cancelled", e->cancelled);
    counter(p, "kvasir_requests_rejected_total", "requests refused", e->rejected);
    counter(p, "kvasir_prompt_tokens_total", "prompt tokens taken in", e->prompt_tokens);
    counter(p, "kvasir_published_tokens_total", "tokens published", e->published_tokens);
    counter(p, "kvasir_exact_tokens_total", "tokens published under the exact contract", e->exact_tokens);
    counter(p, "kvasir_approximate_tokens_total", "tokens published under the approximate contract", e->approximate_tokens);
    counter(p, "kvasir_exact_mismatches_total", "exact units whose bits differed from the baseline's", e->exact_mismatches);
    counter(p, "kvasir_illegal_fallbacks_total", "fallbacks the contract forbids, refused", e->illegal_fallbacks);
    counter(p, "kvasir_tenant_failures_total", "rows asked for under another tenant, refused", e->tenant_failures);
    counter(p, "kvasir_allocation_failures_total", "allocations that failed", e->allocation_failures);
    counter(p, "kvasir_full_fallbacks_total", "heads that fell back to a full exact fetch", e->full_fallbacks);
    counter(p, "kvasir_index_missed_total", "of them, those that had no index", e->index_missed);
    counter(p, "kvasir_index_stale_total", "those whose index was of other rows, parameters or an older frontier", e->index_stale);
    counter(p, "kvasir_budget_exceeded_total", "those whose selector found more candidates than its budget", e->budget_exceeded);
    counter(p, "kvasir_not_finite_total", "steps discarded and run again over every row because attention over selected rows gave what is not a number", e->not_finite);
    counter(p, "kvasir_flight_copies_total", "copies of the flight recorder made at a fault", e->flights_kept);
    counter(p, "kvasir_widened_total", "selections widened once", e->widened);
    counter(p, "kvasir_selections_total", "heads whose rows a selector chose", e->selections);
    seconds(p, "kvasir_selection_seconds_total", "time in which they were chosen, of all threads", e->selection_ns);
    seconds(p, "kvasir_index_build_seconds_total", "time of steps in which selectors built their indexes, of all threads", e->index_build_ns);
    counter(p, "kvasir_index_waits_total", "heads that read all rows because their index was being built", e->index_waits);
    counter(p, "kvasir_below_break_even_total", "heads that read all rows because selecting was no cheaper by engine.break_even", e->below_break_even);
    counter(p, "kvasir_shadow_units_total", "shadowed units measured", e->units_sampled);
    counter(p, "kvasir_shadow_units_dropped_total", "shadowed units dropped by the bounded queue", e->units_dropped);
    counter(p, "kvasir_samples_dropped_total", "measurements dropped by the bounded ring", e->samples_dropped);
}

static void tier_metrics(struct page *p, const struct kv_engine_stats *e)
{
    static const struct { const char *name, *type, *help; size_t offset; } rows[] = {
#define ROW(name, type, help, field) {"kvasir_tier_" name, type, help, offsetof(struct kv_tier_stats, field)}
        ROW("capacity_bytes", "gauge", "cap of the tier", capacity_bytes), ROW("used_bytes", "gauge", "bytes in use", used_bytes),
        ROW("persistent_bytes", "gauge", "bytes of rows that stay", persistent_bytes), ROW("staging_bytes", "gauge", "bytes of rows on their way in or out", staging_bytes),
        ROW("pinned_bytes", "gauge", "bytes a device copies from directly", pinned_bytes), ROW("scratch_bytes", "gauge", "bytes of buffers beside the cap", scratch_bytes), ROW("hits_total", "counter", "blocks found", hits),
        ROW("misses_total", "counter", "blocks not found", misses), ROW("in_bytes_total", "counter", "bytes that came in: found at the start or saved; remote: sent", bytes_in),
        ROW("out_bytes_total", "counter", "bytes that went out: evicted or dropped", bytes_out), ROW("transfers_in_flight", "gauge", "transfers under way", transfers_in_flight),
        ROW("failures_total", "counter", "transfers that failed", failures),
#undef ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        head(p, rows[i].name, rows[i].type, rows[i].help);
        for (int32_t t = 0; t < e->n_tiers; t++)
            fprintf(p->f, "%s{tier=\"%s\",emulated=\"%s\"} %llu\n", rows[i].name, e->tier[t].name, e->tier[t].emulated ? "true" : "false",
                    (unsigned long long)*(const uint64_t *)((const char *)&e->tier[t] + rows[i].offset));
    }
}

/* What only a remote tier has; and the store that this server keeps for others. */
static void remote_metrics(struct page *p, const struct kv_engine_stats *e, struct kv_app *app)
{
    for (int32_t t = 0; t < e->n_tiers; t++) {
        const struct kv_tier_stats *r = &e->tier[t];
        if (!r->breaker) continue;
        gauge(p, "kvasir_remote_objects", "objects in the remote tier's store, of all daemons", (double)r->objects);
        counter(p, "kvasir_remote_skipped_total", "blocks not asked for or not sent: the breaker was open, or too much was on its way", r->skipped);
        counter(p, "kvasir_remote_refused_total", "objects that came back as something else than was sealed", r->refused);
        gauge(p, "kvasir_remote_breaker_open", "1 while the remote tier is not asked, is tried again, or is full and sent nothing", strcmp(r->breaker, "closed") != 0);
    }
    struct kv_extents_stats s;
    if (!app->extents) return;
    kv_extents_stats(app->extents, &s);
    gauge(p, "kvasir_extents_objects", "objects kept for the remote tiers of other daemons", (double)s.objects);
    gauge(p, "kvasir_extents_bytes", "their bytes", (double)s.bytes);
    gauge(p, "kvasir_extents_capacity_bytes", "cap of their files", (double)s.capacity_bytes);
    counter(p, "kvasir_extents_hits_total", "objects handed out", s.hits);
    counter(p, "kvasir_extents_misses_total", "objects asked for that are not here", s.misses);
    counter(p, "kvasir_extents_puts_total", "objects taken", s.puts);
    counter(p, "kvasir_extents_evictions_total", "objects that went for others", s.evictions);
    counter(p, "kvasir_extents_refused_total", "objects that were too long, or had no space", s.refused);
}

static void session_metrics(struct page *p, const struct kv_turn_stats *s)
{
    const struct { const char *name, *type, *help; double value; } rows[] = {
        {"kvasir_session_saves_total", "counter", "turns whose history was saved", (double)s->saves},
        {"kvasir_session_restores_total", "counter", "turns that began with saved history", (double)s->restores},
        {"kvasir_session_restores_overlapped_total", "counter", "of them, those under whose read a step ran", (double)s->overlapped},
        {"kvasir_session_prefetches_total", "counter", "of the restores, those read while the request still waited for its turn", (double)s->prefetches},
        {"kvasir_session_prefetched_bytes_total", "counter", "bytes read for them", (double)s->prefetched_bytes},
        {"kvasir_session_recomputes_total", "counter", "turns whose history was there and was computed again, being expected to be faster", (double)s->recomputes},
        {"kvasir_session_failures_total", "counter", "saves and restores that fell short", (double)s->failures},
        {"kvasir_session_restored_tokens_total", "counter", "tokens that were read and not computed", (double)s->restored_tokens},
        {"kvasir_session_restored_bytes_total", "counter", "bytes read for them", (double)s->restored_bytes},
        {"kvasir_session_restore_wait_seconds_total", "counter", "time that steps waited for rows being read", s->restore_wait_us / 1e6},
        {"kvasir_session_restore_bytes_per_second", "gauge", "rate of the last reads", s->restore_bytes_per_second},
        {"kvasir_sessions", "gauge", "sessions in the table", (double)s->sessions},
        {"kvasir_session_transfers_waiting", "gauge", "reads and saves that are not over", s->waiting}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        head(p, rows[i].name, rows[i].type, rows[i].help);
        fprintf(p->f, "%s %.17g\n", rows[i].name, rows[i].value);
    }
}

static void release_metrics(struct page *p, const struct kv_status_view *v)
{
    head(p, "kvasir_release_stage", "gauge", "1 at the stage of the release");
    for (int s = 0; s < KV_STAGES; s++) fprintf(p->f, "kvasir_release_stage{stage=\"%s\"} %d\n", kv_stage_name((enum kv_stage)s), (int)v->stage == s);
    gauge(p, "kvasir_release_fraction_ratio", "share of eligible sessions on the candidate", v->fraction);
    gauge(p, "kvasir_release_epoch", "epoch of the release word", (double)v->epoch);
    gauge(p, "kvasir_release_latched", "1 when rolled back", v->latched);
    head(p, "kvasir_rollbacks_total", "counter", "live rollouts sent back to the exact baseline since the start, whoever or whatever did it");
    for (int i = 0; i < KV_ROLLBACK_CAUSES; i++)
        fprintf(p->f, "kvasir_rollbacks_total{reason=\"%s\"} %llu\n", kv_rollback_cause[i] ? kv_status_name(kv_rollback_cause[i]) : "OTHER", (unsigned long long)v->rollbacks[i]);
    gauge(p, "kvasir_release_frozen", "1 when releases are frozen", v->frozen);
    gauge(p, "kvasir_omitted_mass_ratio", "mean omitted attention mass of the candidate", v->omitted_mass_mean);
    gauge(p, "kvasir_omitted_mass_upper_ratio", "its upper confidence bound", v->omitted_mass_upper);
    gauge(p, "kvasir_tokens_per_second", "published tokens a second, last ten seconds", v->tokens_per_s);
    gauge(p, "kvasir_tpot_p50_seconds", "time per token, median, last ten seconds", v->tpot_p50_ms / 1000);
    gauge(p, "kvasir_tpot_p99_seconds", "time per token, 99th percentile, last ten seconds", v->tpot_p99_ms / 1000);
    gauge(p, "kvasir_ttft_p50_seconds", "time to first token, median, last ten seconds", v->ttft_p50_ms / 1000);
    gauge(p, "kvasir_exposed_stall_seconds", "transfer wait exposed to compute, last ten seconds", v->stall_ms / 1000);
}

static void gate_metrics(struct page *p, struct kv_control *control, uint64_t rollout)
{
    struct kv_rollout_view *v = rollout ? calloc(1, sizeof *v) : NULL;
    if (v && !kv_control_rollout(control, rollout, v, NULL)) {
        head(p, "kvasir_gate_verdict", "gauge", "1 for the gate's verdict in the live rollout");
        for (int32_t i = 0; i < v->n_gates; i++)
            fprintf(p->f, "kvasir_gate_verdict{gate=\"%s\",verdict=\"%s\"} 1\n", v->gates[i].metric, kv_verdict_name(v->gates[i].verdict));
    }
    free(v);
}

static void policy_metrics(struct page *p, struct kv_app *app)
{
    struct kv_policy_view v[KV_POLICY_KINDS];
    kv_control_policies(app->control, v);
    head(p, "kvasir_policy_faults_total", "counter", "policy calls that failed; the exact baseline's answer was taken");
    for (int i = 0; i < KV_POLICY_KINDS; i++) fprintf(p->f, "kvasir_policy_faults_total{kind=\"%s\"} %llu\n", kv_policy_kind_name(v[i].kind), (unsigned long long)v[i].faults);
}

static void fault_metrics(struct page *p, struct kv_app *app)
{
    struct kv_fault_view v;
    int armed = 0;
    if (app->fault_lab) head(p, "kvasir_fault_hits_total", "counter", "how often an injected fault struck");
    for (int k = 0; app->fault_lab && k < KV_FAULTS; k++) {
        kv_faults_view(kv_fault_lab_faults(app->fault_lab), (enum kv_fault)k, &v);
        armed += v.armed;
        fprintf(p->f, "kvasir_fault_hits_total{fault=\"%s\"} %llu\n", kv_fault_info((enum kv_fault)k)->name, (unsigned long long)v.hits);
    }
    gauge(p, "kvasir_faults_armed", "faults that are armed by an operator", armed);
}

KV_HANDLER(kv_metrics)
{
    struct kv_app *app = r->app;
    struct page p = {0};
    struct kv_status_view *v = calloc(1, sizeof *v);
    if (!v || !(p.f = open_memstream(&p.at, &p.n))) {
        free(v);
        return kv_fail(err, KV_OUT_OF_MEMORY, "metrics", "no memory for the page");
    }
    kv_control_status(app->control, v);
    head(&p, "kvasir_build_info", "gauge", "version and instruction set");
    fprintf(p.f, "kvasir_build_info{version=\"%s\",isa=\"%s\"} 1\n", KVASIR_VERSION, kv_engine_isa(app->engine));
    gauge(&p, "kvasir_uptime_seconds", "time since start", (double)(kv_monotonic_us() - app->started_us) / 1e6);
    engine_metrics(&p, &v->engine);
    tier_metrics(&p, &v->engine);
    remote_metrics(&p, &v->engine, app);
    session_metrics(&p, &(&v->engine)->turns);
    release_metrics(&p, v);
    gate_metrics(&p, app->control, v->rollout);
    policy_metrics(&p, app);
    fault_metrics(&p, app);
    gauge(&p, "kvasir_http_connections", "open connections", kv_http_connections(app->http));
    gauge(&p, "kvasir_event_readers", "open event streams", kv_events_readers(app->events));
    counter(&p, "kvasir_receipts_total", "receipts in the store", v->store.receipts);
    gauge(&p, "kvasir_receipts_queued", "receipts waiting to be written", (double)v->store.queued);
    counter(&p, "kvasir_receipts_refused_total", "receipts that found the queue full; admission waited for them", v->store.refused);
    gauge(&p, "kvasir_store_ok", "1 while receipts can be written", v->store.ok);
    gauge(&p, "kvasir_store_bytes", "size of the database", (double)v->store.bytes);
    free(v);
    fclose(p.f);
    enum kv_status st = kv_http_reply_text(r, 200, "text/plain; version=0.0.4", p.at, p.n, err);
    free(p.at);
    return st;
}
