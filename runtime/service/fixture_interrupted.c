/* fixture_interrupted.c — the interrupted requests of contract-5-lifecycle: paths, wastes and joint decisions, and results applied once, judged by the
 * lifecycle, the decisions and the result machine that serve (source 0x04L–O). Times in ms, bytes binary. */
#include "runtime/evaluate/fixture.h"
#include "runtime/service/interruption.h"
#include "runtime/service/lifecycle.h"

#include <math.h>
#include <string.h>

enum { MAX_PAUSES = 16, MAX_STATES = 16, MAX_EVENTS = 16 };

#define REFUSE(reason, where, ...) return kv_fail(r->err, reason, where, __VA_ARGS__)

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

/* Each path from RUNNING to RUNNING through the lifecycle's table, by the action it names. */
static enum kv_status check_path(struct kv_fixture_reader *r, int p)
{
    static const struct { const char *action; enum kv_session_state through; } marks[] = {
        {"preserve", KV_SESSION_PAUSED_GPU}, {"swap", KV_SESSION_SWAPPING_OUT}, {"discard", KV_SESSION_TOKEN_ONLY}};
    int32_t n = kv_fixture_count(r, MAX_STATES, "interrupted.paths.%d.states", p);
    const char *action = kv_fixture_text(r, "interrupted.paths.%d.action", p);
    enum kv_session_state at = KV_SESSION_RUNNING;
    bool marked = false, external = false, known = false;
    for (int32_t i = 0; i < n && r->status == KV_OK; i++) {
        const char *name = kv_fixture_text(r, "interrupted.paths.%d.states.%d", p, (int)i);
        int to = kv_lifecycle_state_find(name);
        if (to < 0) REFUSE(KV_UNKNOWN_KEY, "interrupted.paths", "no session state is named '%s'", name);
        if (i == 0 ? to != KV_SESSION_RUNNING : kv_lifecycle_move(&at, (enum kv_session_state)to) != KV_OK)
            REFUSE(KV_ILLEGAL_TRANSITION, "interrupted.paths", "%s cannot follow %s", name, kv_session_state_name(at));
        for (size_t m = 0; m < sizeof marks / sizeof *marks; m++) marked |= !strcmp(action, marks[m].action) && to == (int)marks[m].through;
        external |= to == KV_SESSION_PREFILL_EXTERNAL_RESULT;
    }
    for (size_t m = 0; m < sizeof marks / sizeof *marks; m++) known |= !strcmp(action, marks[m].action);
    if (r->status != KV_OK) return r->status;
    if (!known) REFUSE(KV_BAD_ARGUMENT, "interrupted.paths", "'%s' is no action", action);
    if (at != KV_SESSION_RUNNING || !external) REFUSE(KV_ILLEGAL_TRANSITION, "interrupted.paths", "a path ends RUNNING, after the external result's prefill");
    if (!marked) REFUSE(KV_DECISION_MISMATCH, "interrupted.paths", "the path is not that of %s", action);
    return KV_OK;
}

static enum kv_status check_manifest(struct kv_fixture_reader *r)
{
    int64_t pause = kv_fixture_integer(r, "interrupted.manifest.pause_epoch"), resume = kv_fixture_integer(r, "interrupted.manifest.resume_epoch");
    int64_t frontier = kv_fixture_integer(r, "interrupted.manifest.frontier"), committed = kv_fixture_integer(r, "interrupted.manifest.committed_frontier");
    int64_t arrival = kv_fixture_integer(r, "interrupted.manifest.original_arrival_us"), queued = kv_fixture_integer(r, "interrupted.manifest.resume_arrival_us");
    bool branch = kv_fixture_bool(r, "interrupted.manifest.contains_uncommitted_rows"), sampling = kv_fixture_bool(r, "interrupted.manifest.sampling_state_kept");
    const char *call = kv_fixture_text(r, "interrupted.manifest.call_id");
    if (r->status != KV_OK) return r->status;
    if (!*call) REFUSE(KV_BAD_ARGUMENT, "call_id", "an interrupted request names the call it waits for");
    if (resume != pause + 1) REFUSE(KV_STALE_PAUSE_EPOCH, "resume_epoch", "%lld does not follow %lld", (long long)resume, (long long)pause);
    if (frontier > committed) REFUSE(KV_CANDIDATE_OUT_OF_RANGE, "frontier", "%lld rows are kept of %lld committed", (long long)frontier, (long long)committed);
    if (branch) REFUSE(KV_NOT_VISIBLE, "contains_uncommitted_rows", "rows of a branch that was not committed are kept");
    if (!sampling) REFUSE(KV_STATE_MISMATCH, "sampling_state_kept", "draws would start anew");
    if (queued != arrival) REFUSE(KV_LATENCY_UNDERREPORTED, "resume_arrival_us", "the request's age starts anew at its resume");
    return KV_OK;
}

static void read_costs(struct kv_fixture_reader *r, struct kv_pause_costs *c)
{
    *c = (struct kv_pause_costs){.bytes_per_token = kv_fixture_number(r, "interrupted.costs.bytes_per_token"), .us_per_row = kv_fixture_number(r, "interrupted.costs.forward_us_per_row"),
                                 .swap_bytes_per_s = kv_fixture_number(r, "interrupted.costs.link_bytes_per_s"), .swap_fixed_us = 1e3 * kv_fixture_number(r, "interrupted.costs.fixed_ms"),
                                 .other_tokens = kv_fixture_integer(r, "interrupted.costs.other_tokens"), .hidden_share = kv_fixture_number(r, "interrupted.costs.hidden_share"),
                                 .chunk_rows = kv_recompute_rows((int32_t)kv_fixture_integer(r, "interrupted.costs.saturation_rows"), (int32_t)kv_fixture_integer(r, "interrupted.costs.running_rows"))};
}

static enum kv_status check_figures(struct kv_fixture_reader *r, const struct kv_pause_costs *c)
{
    struct kv_pause_costs naive = *c;
    struct kv_pause_waste w;
    naive.hidden_share = 0;
    int64_t tokens = kv_fixture_integer(r, "interrupted.context_tokens"), limit = kv_swap_tokens(1e3 * kv_fixture_number(r, "interrupted.costs.foreground_ms"), c->swap_bytes_per_s, 0, c->bytes_per_token);
    kv_pause_waste_of(&naive, tokens, 0, &w);
    const struct { const char *name; double value; enum kv_status reason; } figure[] = {
        {"swap_waste_byte_ms", w.swap, KV_COST_MISMATCH}, {"crossing_ms", kv_pause_crossing_us(c, tokens) / 1e3, KV_TOTAL_TIME_MISMATCH}, {"swap_tokens", (double)limit, KV_ITERATION_LEDGER_MISMATCH},
        {"swap_iterations", limit ? ceil((double)tokens / (double)limit) : 0, KV_RECEIPT_COUNT_MISMATCH}, {"recompute_rows", c->chunk_rows, KV_BUDGET_EXCEEDED}};
    for (size_t i = 0; i < sizeof figure / sizeof *figure; i++) {
        double published = kv_fixture_number(r, "interrupted.published.%s", figure[i].name);
        if (r->status != KV_OK) return r->status;
        if (!close_to(published, figure[i].value)) REFUSE(figure[i].reason, figure[i].name, "%.12g is published, %.12g follows", published, figure[i].value);
    }
    return KV_OK;
}

static enum kv_status check_decisions(struct kv_fixture_reader *r, const struct kv_pause_costs *c)
{
    struct kv_pause_choice p[MAX_PAUSES];
    int32_t n = kv_fixture_count(r, MAX_PAUSES, "interrupted.pauses");
    for (int32_t i = 0; i < n; i++)
        p[i] = (struct kv_pause_choice){.tokens = kv_fixture_integer(r, "interrupted.pauses.%d.tokens", (int)i), .elapsed_us = (int64_t)(1e3 * kv_fixture_number(r, "interrupted.pauses.%d.elapsed_ms", (int)i)),
                                        .can_swap = true};
    int64_t budget = kv_fixture_integer(r, "interrupted.swap_budget_bytes");
    if (r->status != KV_OK) return r->status;
    kv_pause_decide(c, p, n, budget > 0 ? (uint64_t)budget : 0);
    for (int32_t i = 0; i < n; i++) {
        const char *action = kv_fixture_text(r, "interrupted.pauses.%d.action", (int)i);
        if (r->status == KV_OK && strcmp(action, kv_pause_action_name(p[i].action)))
            REFUSE(KV_DECISION_MISMATCH, "interrupted.pauses", "pause %d: %s is published, %s follows", (int)i, action, kv_pause_action_name(p[i].action));
    }
    return r->status;
}

static void read_key(struct kv_fixture_reader *r, struct kv_result_key *k, const char *at)
{
    const char *call = kv_fixture_text(r, "%s.call_id", at), *result = kv_fixture_text(r, "%s.result_id", at), *digest = kv_fixture_text(r, "%s.digest", at);
    *k = (struct kv_result_key){.pause_epoch = (uint64_t)kv_fixture_integer(r, "%s.pause_epoch", at)};
    strncpy(k->call_id, call, sizeof k->call_id - 1);
    strncpy(k->result_id, result, sizeof k->result_id - 1);
    kv_sha256(digest, strlen(digest), k->digest);
}

/* The receipt's states in order; what it binds; and the suffix, applied once with its frontier. */
static enum kv_status check_result(struct kv_fixture_reader *r)
{
    struct kv_result_key bound, offered;
    enum kv_result_answer answer;
    enum kv_result_state at = KV_RESULT_UNSEEN;
    int32_t n = kv_fixture_count(r, MAX_EVENTS, "interrupted.result.states"), commits = 0;
    read_key(r, &bound, "interrupted.result.reserved");
    read_key(r, &offered, "interrupted.result.offered");
    for (int32_t i = 0; i < n && r->status == KV_OK; i++) {
        const char *name = kv_fixture_text(r, "interrupted.result.states.%d", (int)i);
        enum kv_result_state to = kv_result_state_from_name(name);
        if (to == KV_RESULT_STATE_COUNT) REFUSE(KV_UNKNOWN_KEY, "interrupted.result.states", "no result state is named '%s'", name);
        if (i && kv_result_move(&at, to) != KV_OK) REFUSE(KV_ILLEGAL_TRANSITION, "interrupted.result.states", "%s cannot follow %s", name, kv_result_state_name(at));
        commits += to == KV_RESULT_RESULT_APPEND_COMMITTED;
    }
    int64_t before = kv_fixture_integer(r, "interrupted.result.frontier_before"), tokens = kv_fixture_integer(r, "interrupted.result.tokens"), after = kv_fixture_integer(r, "interrupted.result.frontier_after");
    int64_t prefills = kv_fixture_integer(r, "interrupted.result.prefills_after_commit");
    bool one = kv_fixture_bool(r, "interrupted.result.one_transaction"), durable = kv_fixture_bool(r, "interrupted.result.durable");
    if (r->status != KV_OK) return r->status;
    enum kv_status s = kv_result_offer(&bound, at, &offered, &answer, r->err);
    if (s != KV_OK) return s;
    if (at != KV_RESULT_APPLIED || commits != 1) REFUSE(KV_RESULT_MISSING, "interrupted.result.states", "the result is %s after %d commits", kv_result_state_name(at), (int)commits);
    if (!one) REFUSE(KV_SUPPORT_INCOMPLETE, "one_transaction", "suffix, rows, frontier and receipt were committed apart");
    if (!durable) REFUSE(KV_STORE_UNAVAILABLE, "durable", "the commit was acknowledged before it was durable");
    if (after != before + tokens) REFUSE(KV_SUPPORT_MISMATCH, "frontier_after", "%lld and %lld tokens end at %lld", (long long)before, (long long)tokens, (long long)after);
    if (prefills) REFUSE(KV_SUPPORT_OVERLAP, "prefills_after_commit", "the suffix was prefilled again after its commit");
    return KV_OK;
}

enum kv_status kv_fixture_interrupted(struct kv_fixture_reader *r)
{
    struct kv_pause_costs c;
    int32_t n = kv_fixture_count(r, MAX_PAUSES, "interrupted.paths");
    enum kv_status s = r->status;
    for (int32_t p = 0; p < n && s == KV_OK; p++) s = check_path(r, (int)p);
    if (s == KV_OK) s = check_manifest(r);
    read_costs(r, &c);
    if (s == KV_OK) s = r->status;
    if (s == KV_OK) s = check_figures(r, &c);
    if (s == KV_OK) s = check_decisions(r, &c);
    return s == KV_OK ? check_result(r) : s;
}
