/* sequence_gate.c — selection of one head and the gate behind it (0x09K): accept, widen once, fetch exactly, or give a verdict on the
 * whole step. Worker threads; one call per (sequence, layer, K/V head), nothing shared between calls but the verdict's atomics. */
#include "runtime/service/engine.h"

/* Reading every row of one head exactly, per row: what a dense head costs on a slow core, so that a deadline is not missed by hope. */
#define EXACT_FETCH_US_PER_ROW 0.05

static struct kv_fallback_state state_of(const struct kv_engine *e, const struct kv_sequence *s, enum kv_status status, double mass,
                                         bool widened)
{
    double slack_us = s->deadline_us ? (double)(s->deadline_us - kv_engine_now_us()) : 1e12;
    int32_t first = s->frontier < s->cache.n_rows ? s->frontier : s->cache.n_rows;
    return (struct kv_fallback_state){
        .force_exact = s->contract == KV_EXACT,
        .uncertain = status != KV_OK || mass > e->gate.max_omitted_mass,
        .post_widen = widened,
        .can_widen = status == KV_OK,
        .fetch_fits = s->cache.n_rows * EXACT_FETCH_US_PER_ROW <= slack_us,
        .recompute_fits = (s->n_tokens - first) * e->us_per_row <= slack_us,
        .retryable = e->last_iteration_us * 2 <= slack_us,
        /* A selector that failed has left nothing to accept. */
        .approximation_allowed = s->contract == KV_APPROXIMATE && status == KV_OK,
    };
}

static enum kv_fallback_action decide(struct kv_engine *e, struct kv_sequence *s, enum kv_status status, double mass, bool widened)
{
    struct kv_fallback_state state = state_of(e, s, status, mass, widened);
    enum kv_fallback_action a = (enum kv_fallback_action)e->gate.table.action[kv_fallback_index(&state)];
    if (!kv_fallback_legal(&state, a)) {
        atomic_fetch_add(&s->illegal, 1);
        a = kv_fallback_source(&state);
    }
    atomic_fetch_add(&s->actions[a], 1);
    return a;
}

/* Support or estimate of an accepted head. */
static void accept(struct kv_sequence *s, int32_t layer, int32_t kv_head, const struct kv_attention *a, int64_t omitted,
                   struct kv_head_plan *out)
{
    struct kv_selection *sel = s->selection;
    size_t group = (size_t)sel->group;
    if (omitted == 0) return; /* every row: plain attention is the same, and cheaper than its masks */
    out->support = sel->support + (size_t)kv_head * group * (size_t)sel->max_blocks;
    if (sel->estimates) {
        float *estimate = sel->estimate + (size_t)kv_head * group * (size_t)sel->d_head;
        struct kv_rows rows = kv_selection_rows(sel, a, a->visible[0]);
        size_t unit = (size_t)layer * (size_t)sel->n_kv_heads + (size_t)kv_head;
        enum kv_status status = sel->method->estimate(sel->selector[unit], &rows, a->q, out->support, a->n_blocks, estimate);
        if (status != KV_OK) { /* as good as no answer: every row is read */
            atomic_store(&s->gate_status, (int32_t)status);
            out->support = NULL;
            return;
        }
        out->output = estimate;
    }
    atomic_fetch_or(&s->verdict, KV_STEP_OMITTED);
}

void kv_sequence_plan(void *ctx, int32_t worker, struct kv_step_item *item, int32_t layer, int32_t kv_head,
                      const struct kv_attention *a, struct kv_head_plan *out)
{
    (void)worker;
    struct kv_engine *e = ctx;
    struct kv_sequence *s = item->owner;
    struct kv_selection *sel = s->selection;
    if (kv_selector_dense(sel->method, layer)) return;
    struct kv_attention ranked = *a;
    if (item->rehearsed) ranked.q = item->rehearsed + (size_t)kv_head * (size_t)sel->group * (size_t)sel->d_head;
    for (int widened = 0; widened < 2; widened++) {
        double mass;
        int64_t omitted;
        enum kv_status status = kv_selection_query(sel, layer, kv_head, &ranked, a->visible[0], widened, &mass, &omitted);
        if (status == KV_OK && item->rehearsed) atomic_fetch_add_explicit(&sel->ahead_bytes, sel->ledger[kv_head].transfer_bytes, memory_order_relaxed);
        if (status == KV_OK && kv_fault_strikes(&s->cache.faults, KV_FAULT_forced_candidate_cap)) status = KV_BUDGET_EXCEEDED;
        if (status != KV_OK) atomic_store(&s->gate_status, (int32_t)status);
        switch (decide(e, s, status, mass, widened)) {
        case KV_ACCEPT_APPROXIMATE:
        case KV_ACCEPT_DECLARED_DEGRADED: accept(s, layer, kv_head, a, omitted, out); return;
        case KV_WIDEN_SEARCH: continue;
        case KV_FULL_EXACT_FETCH: return;
        case KV_RECOMPUTE_EXACT: atomic_fetch_or(&s->verdict, KV_STEP_RECOMPUTE); return;
        case KV_POSTPONE_FOR_EXACT_RETRY: atomic_fetch_or(&s->verdict, KV_STEP_POSTPONE); return;
        default: atomic_fetch_or(&s->verdict, KV_STEP_REJECT); return;
        }
    }
}
