/* sequence_gate.c — selection of one head and the gate behind it (0x09K): accept, widen once, fetch exactly, or give a verdict on the
 * whole step. Worker threads; one call per (sequence, layer, K/V head), nothing shared between calls but the verdict's atomics. What was selected
 * and what became of it goes to the flight recorder. */
#include "runtime/service/engine.h"

#include "kernels/digest.h"

#include <math.h>
#include <string.h>

/* Reading every row of one head exactly, per row: what a dense head costs on a slow core, so that a deadline is not missed by hope. */
#define EXACT_FETCH_US_PER_ROW 0.05
enum { FINITE_RUN = 16 };

static struct kv_fallback_state state_of(const struct kv_engine *e, const struct kv_sequence *s, enum kv_status status, double mass,
                                         bool widened)
{
    double slack_us = s->deadline_us ? (double)(s->deadline_us - kv_engine_now_us()) : 1e12;
    int32_t first = s->frontier < s->cache.n_rows ? s->frontier : s->cache.n_rows;
    return (struct kv_fallback_state){
        .force_exact = s->contract == KV_EXACT,
        .uncertain = status != KV_OK || !(mass <= e->gate.max_omitted_mass), /* an estimate that is no number is none */
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
static enum kv_status accept(struct kv_sequence *s, int32_t layer, int32_t kv_head, const struct kv_attention *a, int64_t omitted,
                             struct kv_head_plan *out)
{
    struct kv_selection *sel = s->selection;
    size_t group = (size_t)sel->group;
    if (omitted == 0) return KV_OK; /* every row: plain attention is the same, and cheaper than its masks */
    out->support = sel->support + (size_t)kv_head * group * (size_t)sel->max_blocks;
    if (sel->estimates) {
        float *estimate = sel->estimate + (size_t)kv_head * group * (size_t)sel->d_head;
        struct kv_rows rows = kv_selection_rows(sel, a, a->visible[0]);
        size_t unit = (size_t)layer * (size_t)sel->n_kv_heads + (size_t)kv_head;
        enum kv_status status = sel->method->estimate(sel->selector[unit], &rows, a->q, out->support, a->n_blocks, estimate);
        if (status != KV_OK) { /* as good as no answer: every row is read */
            atomic_store(&s->gate_status, (int32_t)status);
            out->support = NULL;
            return status;
        }
        out->output = estimate;
    }
    atomic_fetch_or(&s->verdict, KV_STEP_OMITTED);
    return KV_OK;
}

static void refused(struct kv_sequence *s, enum kv_status status)
{
    struct kv_selection *sel = s->selection;
    atomic_store(&s->gate_status, (int32_t)status);
    if (status == KV_INDEX_MISS) atomic_fetch_add(&sel->missed, 1);
    else if (status == KV_BUDGET_EXCEEDED) atomic_fetch_add(&sel->over_budget, 1);
    else if (status == KV_STALE_INDEX || status == KV_STALE_SELECTOR_GENERATION || status == KV_IDENTITY_MISMATCH) atomic_fetch_add(&sel->stale, 1);
}

static void record(struct kv_engine *e, const struct kv_step_item *item, int32_t layer, int32_t kv_head, const struct kv_attention *a,
                   const struct kv_head_plan *plan, struct kv_flight *f)
{
    const struct kv_sequence *s = item->owner;
    const struct kv_selection *sel = s->selection;
    const struct kv_index_snapshot *index = &sel->index[(size_t)layer * (size_t)sel->n_kv_heads + (size_t)kv_head];
    f->request = s->id, f->candidate = s->candidate;
    f->position = item->position, f->layer = (int16_t)layer, f->kv_head = (int16_t)kv_head;
    f->frontier = a->visible[0], f->covered = (int32_t)index->covered, f->index = (uint32_t)index->index.n;
    f->rows = plan->support ? (int32_t)sel->ledger[kv_head].rows : f->frontier;
    if (plan->support) f->support = kv_xxh3(plan->support, (size_t)sel->group * (size_t)a->n_blocks * sizeof *plan->support);
    kv_flight_put(e->flight, f);
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
    struct kv_flight f = {0};
    if (item->rehearsed) ranked.q = item->rehearsed + (size_t)kv_head * (size_t)sel->group * (size_t)sel->d_head;
    for (int widened = 0; widened < 2; widened++) {
        double mass;
        int64_t omitted;
        enum kv_status status = kv_selection_query(sel, layer, kv_head, &ranked, a->visible[0], widened, &mass, &omitted);
        if (status == KV_OK && item->rehearsed) atomic_fetch_add_explicit(&sel->ahead_bytes, sel->ledger[kv_head].transfer_bytes, memory_order_relaxed);
        if (status == KV_OK && kv_fault_strikes(&s->cache.faults, KV_FAULT_forced_candidate_cap)) status = KV_BUDGET_EXCEEDED;
        if (status != KV_OK) refused(s, status);
        enum kv_fallback_action action = decide(e, s, status, mass, widened);
        if (action == KV_WIDEN_SEARCH && !widened) continue;
        if (action == KV_ACCEPT_APPROXIMATE || action == KV_ACCEPT_DECLARED_DEGRADED) status = accept(s, layer, kv_head, a, omitted, out);
        else if (action == KV_RECOMPUTE_EXACT) atomic_fetch_or(&s->verdict, KV_STEP_RECOMPUTE);
        else if (action == KV_POSTPONE_FOR_EXACT_RETRY) atomic_fetch_or(&s->verdict, KV_STEP_POSTPONE);
        else if (action == KV_REJECT_NO_LEGAL_PATH) atomic_fetch_or(&s->verdict, KV_STEP_REJECT);
        f = (struct kv_flight){.status = (uint16_t)status, .action = (uint8_t)action, .widened = (uint8_t)widened, .mass = mass == mass ? (float)mass : -1};
        break;
    }
    record(e, item, layer, kv_head, a, out, &f);
}

/* ---------------------------------------------------------------- decode thread */

void kv_sequence_bind(const struct kv_engine *e, const struct kv_sequence *s, struct kv_selection *sel, uint64_t candidate)
{
    const struct kv_chunk_identity *base = &e->prefix_base;
    /* Rows under a live index are never replaced: a sequence that is truncated or taken over loses its index. So the request's generation stands for the cache's. */
    struct kv_source_binding b = {.logical_cache_abi = base->cache_abi, .cache_layout = base->numerics, .model_artifact = base->model, .adapter_set = base->adapters,
                                  .position_contract = base->position_contract, .ns = base->ns, .request = {s->id}, .cache = {s->id}, .publication = {e->now.epoch}};
    memcpy(b.tenant, s->tenant, sizeof b.tenant);
    sel->source = kv_source_digest(&b, e->shape.n_layers, e->shape.n_kv_heads, e->shape.d_head, s->contract);
    sel->generation = (struct kv_selector_generation){candidate};
}

static bool finite_run(const float *x)
{
    uint32_t bits[FINITE_RUN], any = 0;
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < FINITE_RUN; i++) any |= (bits[i] & UINT32_C(0x7f800000)) + UINT32_C(0x00800000); /* an exponent of ones carries into the sign */
    return !(any >> 31);
}

static int32_t first_not_finite(const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        while (n - i >= FINITE_RUN && finite_run(x + i)) i += FINITE_RUN;
        if (i < n && !isfinite(x[i])) return i;
    }
    return -1;
}

void kv_sequence_attended(struct kv_engine *e, struct kv_step_item *it, int32_t layer)
{
    struct kv_sequence *s = it->owner;
    struct kv_flight f = {.request = s->id, .candidate = s->candidate, .position = it->position, .frontier = it->position + it->n, .rows = it->position + it->n,
                          .mass = -1, .layer = (int16_t)layer, .kv_head = -1, .action = KV_FALLBACK_ACTIONS};
    if (it->selects && !(atomic_load(&s->verdict) & KV_STEP_POSTPONE)) {
        int32_t width = e->shape.n_q_heads * e->shape.d_head, at = first_not_finite(kv_attention_output(kv_transformer_attention(e->transformer)) + (size_t)it->row * (size_t)width, width);
        if (at < 0) return;
        atomic_store(&s->gate_status, KV_NAN_ATTENTION);
        atomic_fetch_or(&s->verdict, KV_STEP_POSTPONE);
        atomic_fetch_add(&s->actions[KV_POSTPONE_FOR_EXACT_RETRY], 1);
        f.kv_head = (int16_t)(at / (s->selection->group * e->shape.d_head));
        f.status = KV_NAN_ATTENTION, f.action = KV_POSTPONE_FOR_EXACT_RETRY;
    } else if (!it->placement->prefetch) {
        return;
    } else {
        f.status = (uint16_t)it->placement_status;
    }
    kv_flight_put(e->flight, &f);
}
