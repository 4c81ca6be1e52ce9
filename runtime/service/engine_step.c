/* engine_step.c — one iteration on the decode thread: run, gate, sample, publish, report. */
#include "runtime/service/engine.h"

#include <signal.h>
#include <string.h>

/* ---------------------------------------------------------------- sample: worker threads, step-local */

static void sample_item(void *ctx, int32_t worker, int32_t i)
{
    struct kv_engine *e = ctx;
    struct kv_step_item *it = &e->items[i];
    struct kv_sequence *s = it->owner;
    struct kv_step_result *r = &s->result;
    r->status = KV_OK;
    if (!it->sample) return;
    int32_t index = s->n_tokens - s->n_prompt;
    const float *logits = kv_transformer_logits(e->transformer, it->logits_row);
    struct kv_history history = {.ids = s->tokens, .n_prompt = s->first_prompt, .n = s->n_tokens};
    uint8_t *allowed = s->constraint ? kv_sampler_mask(e->samplers[worker]) : NULL;
    if (allowed && !kv_constraint_mask(s->constraint, e->model, allowed)) {
        r->status = KV_NO_LEGAL_PATH; /* no token of this vocabulary leads on */
        return;
    }
    r->status = kv_sample(e->samplers[worker], &s->sampling, logits, history, (uint64_t)(s->n_spoken + index), s->n_logprobs, allowed, &r->sampled);
    if (r->status != KV_OK || index >= s->n_force) return;
    double logprob = 0;
    if (s->n_logprobs) r->status = kv_logprob(e->samplers[worker], logits, s->force[index], &logprob);
    r->sampled.id = s->force[index];
    r->sampled.logprob = (float)logprob;
}

/* Observers see logits before the sampler may change them. */
static void observe_all(struct kv_engine *e)
{
    for (int32_t i = 0; i < e->n_items; i++) {
        struct kv_step_item *it = &e->items[i];
        struct kv_sequence *s = it->owner;
        if (it->sample && s->observe)
            s->observe(s->observe_ctx, it->position + it->n - 1, kv_transformer_logits(e->transformer, it->logits_row), e->info->n_vocab);
    }
}

static void observe_row(void *ctx, const struct kv_step_item *item, int32_t token, const float *logits)
{
    struct kv_engine *e = ctx;
    struct kv_sequence *s = item->owner;
    if (s->observe) s->observe(s->observe_ctx, item->position + token, logits, e->info->n_vocab);
}

static void trace_row(void *ctx, const struct kv_step_item *item, int32_t token, int32_t layer, enum kv_operation o, float *x, int32_t n)
{
    const struct kv_sequence *s = item->owner;
    (void)ctx;
    if (s->trace) s->trace(s->observe_ctx, item->position + token, layer, (int)o, x, n);
}

static bool traced(const struct kv_engine *e)
{
    bool any = false;
    for (int32_t i = 0; i < e->n_items; i++) any |= ((const struct kv_sequence *)e->items[i].owner)->trace != NULL;
    return any;
}

static void attended(void *ctx, struct kv_step_item *const *items, int32_t n_items, int32_t layer)
{
    struct kv_engine *e = ctx;
    const float *queries = kv_attention_queries(kv_transformer_attention(e->transformer));
    for (int32_t i = 0; i < n_items; i++) {
        size_t first = (size_t)items[i]->row * (size_t)e->shape.n_q_heads * (size_t)e->shape.d_head;
        kv_sequence_keep_queries(e, items[i], layer, queries + first);
        kv_sequence_attended(e, items[i], layer);
    }
    kv_sequence_shadow(e, items, n_items, layer);
    kv_tournament_offer(e, items, n_items, layer);
}

/* ---------------------------------------------------------------- publish */

/* Appends one sampled token to its sequence and its stream. Returns the finish, KV_RUNNING when it goes on. */
static enum kv_finish append(struct kv_engine *e, struct kv_sequence *s)
{
    const struct kv_sampled *r = &s->result.sampled;
    bool tainted = s->frontier != KV_UNTAINTED;
    s->tokens[s->n_tokens++] = r->id;
    if (!s->first_us) s->first_us = kv_engine_now_us();
    s->approximate |= tainted;
    *(tainted ? &e->stats.approximate_tokens : &e->stats.exact_tokens) += 1;
    e->stats.published_tokens++;

    struct kv_log_top *top;
    struct kv_log_entry *log = kv_stream_next(s->stream, &top); /* never NULL: the log holds max_tokens */
    *log = (struct kv_log_entry){.token = r->id, .logprob = r->logprob, .epoch = e->word & ~KV_LATCH, .candidate = s->candidate,
                                 .published = tainted ? KV_APPROXIMATE : KV_EXACT, .n_top = (uint8_t)r->n_top};
    for (int32_t i = 0; i < r->n_top; i++) top[i] = (struct kv_log_top){r->top_id[i], r->top_logprob[i]};
    char bytes[KV_MAX_TOKEN_BYTES];
    size_t n = kv_token_bytes(e->model, r->id, false, bytes, sizeof bytes);
    bool stop = kv_text_add(&s->text, bytes, n < sizeof bytes ? n : sizeof bytes);
    log->n_text = (uint8_t)kv_text_take(&s->text, false, log->text, (int32_t)sizeof log->text);
    kv_stream_publish(s->stream);
    if (s->constraint && kv_constraint_feed(s->constraint, bytes, n < sizeof bytes ? n : sizeof bytes)) stop |= kv_constraint_closed(s->constraint);
    if (stop || (!s->ignore_eos && kv_token_ends_turn(e->model, r->id))) return KV_FINISH_STOP;
    return s->n_tokens - s->n_prompt == s->max_tokens ? KV_FINISH_LENGTH : KV_RUNNING;
}

/* Rows and token of one item become part of its sequence. */
static enum kv_finish commit(struct kv_engine *e, struct kv_step_item *it)
{
    struct kv_sequence *s = it->owner;
    if ((atomic_load(&s->verdict) & KV_STEP_OMITTED) && it->position < s->frontier) s->frontier = it->position;
    s->cache.n_rows = it->position + it->n;
    s->dense_once = false;
    return it->sample && s->result.status == KV_OK ? append(e, s) : KV_RUNNING;
}

/* An exact request whose step left a row out, which no gate lets through: whatever made it so, it is not published, and the baseline does the step again. */
static void fence_exact(struct kv_engine *e)
{
    for (int32_t i = 0; i < e->n_items; i++) {
        struct kv_sequence *s = e->items[i].owner;
        if (s->contract != KV_EXACT || !(atomic_load(&s->verdict) & KV_STEP_OMITTED)) continue;
        atomic_fetch_or(&s->verdict, KV_STEP_RECOMPUTE);
        e->stats.exact_mismatches++;
        kv_report_failure(e, s, KV_CONTRACT_FORBIDS, "an exact request's step had left rows out; it was not published and runs again on the baseline");
    }
}

/* The only place where tokens leave. finish: [n_items]; committed: [n_items]. */
static void publish(struct kv_engine *e, enum kv_finish *finish, bool *committed)
{
    const uint32_t refused = KV_STEP_RECOMPUTE | KV_STEP_POSTPONE | KV_STEP_REJECT;
    kv_publication_begin(&e->publication);
    bool unchanged = kv_publication_unchanged(&e->publication, e->word);
    for (int32_t i = 0; i < e->n_items; i++) {
        struct kv_sequence *s = e->items[i].owner;
        committed[i] = (unchanged || s->candidate == 0) && !(atomic_load(&s->verdict) & refused);
        finish[i] = committed[i] ? commit(e, &e->items[i]) : KV_RUNNING;
    }
    kv_publication_end(&e->publication);
    for (int32_t i = 0; i < e->n_items; i++)
        if (committed[i] && e->items[i].sample) kv_stream_wake(((struct kv_sequence *)e->items[i].owner)->stream);
}

/* ---------------------------------------------------------------- what the gate and the placement did */

static void report_gate(struct kv_engine *e, struct kv_step_item *it)
{
    struct kv_sequence *s = it->owner;
    if (!it->selects) return;
    enum kv_status reason = (enum kv_status)atomic_load(&s->gate_status);
    struct kv_selection *sel = s->selection;
    if (sel) {
        e->stats.selections += atomic_exchange(&sel->queries, 0);
        e->stats.selection_ns += atomic_exchange(&sel->query_ns, 0);
        e->stats.selection_bytes += atomic_exchange(&sel->ranked_bytes, 0);
        uint64_t rows = atomic_exchange(&sel->rows, 0), visible = atomic_exchange(&sel->visible, 0);
        s->selected.rows += rows, s->selected.visible += visible;
        s->selected.ahead += atomic_exchange(&sel->ahead_bytes, 0);
        e->stats.selected_rows += rows, e->stats.visible_rows += visible;
        e->stats.index_build_ns += atomic_exchange(&sel->build_ns, 0);
        e->stats.index_waits += atomic_exchange(&sel->waits, 0);
        e->stats.below_break_even += atomic_exchange(&sel->whole, 0);
        e->stats.index_missed += atomic_exchange(&sel->missed, 0);
        e->stats.index_stale += atomic_exchange(&sel->stale, 0);
        e->stats.budget_exceeded += atomic_exchange(&sel->over_budget, 0);
    }
    struct kv_receipt kept = {0};
    if (reason != KV_OK) kv_report_flight(e, s, &kept);
    e->stats.not_finite += reason == KV_NAN_ATTENTION;
    e->stats.widened += (uint64_t)atomic_load(&s->actions[KV_WIDEN_SEARCH]);
    e->stats.full_fallbacks += (uint64_t)atomic_load(&s->actions[KV_FULL_EXACT_FETCH]);
    for (int a = KV_WIDEN_SEARCH; a < KV_FALLBACK_ACTIONS; a++) {
        int32_t n = atomic_load(&s->actions[a]);
        if (n == 0) continue;
        struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = it->position, .rows = (uint64_t)n,
                               .rows_total = (uint64_t)it->position + 1};
        strncpy(r.detail, kv_fallback_action_name((enum kv_fallback_action)a), sizeof r.detail - 1);
        memcpy(r.digest, kept.digest, sizeof r.digest);
        kv_report_receipt(e, s, KV_RECEIPT_FALLBACK, reason, r);
    }
    int32_t illegal = atomic_load(&s->illegal);
    e->stats.illegal_fallbacks += (uint64_t)illegal;
    if (illegal) kv_report_failure(e, s, KV_ILLEGAL_FALLBACK, "a fallback the state forbids was proposed; the source's order was followed");
}

static void settle(struct kv_engine *e, struct kv_step_item *it, enum kv_finish finish, bool committed)
{
    struct kv_sequence *s = it->owner;
    uint32_t verdict = atomic_load(&s->verdict);
    report_gate(e, it);
    if (committed) kv_engine_offer_prefix(e, s), kv_engine_turn_runs(e, s);
    if (s->cache.faults.mask && s->n_tokens > s->n_prompt && kv_fault_strikes(&s->cache.faults, KV_FAULT_kill)) raise(SIGKILL);
    if (it->placement_status != KV_OK) kv_report_failure(e, s, it->placement_status, "a placement failed; rows were read where they are authoritative");
    if (verdict & KV_STEP_REJECT) {
        kv_report_failure(e, s, KV_NO_LEGAL_PATH, "the gate left no legal path");
        kv_scheduler_finish(e, s, KV_FINISH_ERROR, KV_NO_LEGAL_PATH);
        return;
    }
    if (verdict & KV_STEP_RECOMPUTE) kv_scheduler_to_baseline(e, s);
    else if (verdict & KV_STEP_POSTPONE) s->dense_once = true;
    else if (committed && s->result.status != KV_OK) {
        kv_report_failure(e, s, s->result.status, "the request ends; others are not touched");
        kv_scheduler_finish(e, s, KV_FINISH_ERROR, s->result.status);
        return;
    }
    if (committed && s->recomputing && s->cache.n_rows >= s->recompute_to) {
        s->recomputing = false;
        atomic_fetch_sub(&e->recomputing, 1);
        struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = s->recompute_to, .tokens = (uint64_t)s->n_recomputed,
                               .value = (double)(kv_engine_now_us() - s->recompute_began_us)};
        kv_report_receipt(e, s, KV_RECEIPT_RECOMPUTE, KV_OK, r);
    }
    if (committed && !s->probe && it->sample && it->n == 1 && it->position >= s->n_prompt)
        kv_report_sample(e, &(struct kv_sample){
            .kind = KV_SAMPLE_TOKEN, .request = s->id, .candidate = s->candidate, .layer = -1, .kv_head = -1, .position = it->position,
            .token_us = (double)atomic_load(&it->own_ns) / 1e3 / kv_workers_count(e->workers) + it->shared_us});
    if (finish == KV_FINISH_STOP && s->pause_at_stop && s->text.stopped) {
        if (s->n_tokens - s->n_prompt == s->max_tokens) finish = KV_FINISH_LENGTH; /* a pause with nothing left to say could never be resumed */
        else if (kv_pauses_hold(e, s, KV_PAUSE_AUTO, true)) return;
    }
    if (finish != KV_RUNNING) kv_scheduler_finish(e, s, finish, KV_OK);
}

/* ---------------------------------------------------------------- the iteration */

static void measure(struct kv_engine *e, double step_us, double stall_us)
{
    int32_t rows = 0, prefill = 0;
    bool candidate = false;
    for (int32_t i = 0; i < e->n_items; i++) {
        rows += e->items[i].n;
        if (e->items[i].n > 1) prefill += e->items[i].n;
        const struct kv_sequence *s = e->items[i].owner;
        candidate |= s->candidate != 0 && !s->probe;
    }
    if (prefill >= 16) {
        double per_row = step_us / rows;
        e->us_per_row = e->us_per_row > 0 ? 0.7 * e->us_per_row + 0.3 * per_row : per_row;
    }
    if (stall_us > 0 || candidate)
        kv_report_sample(e, &(struct kv_sample){.kind = KV_SAMPLE_STALL, .candidate = candidate ? e->now.candidate.id : 0, .layer = -1,
                                                .kv_head = -1, .token_us = stall_us});
    kv_engine_rates_step(e, step_us);
    e->stats.iterations++;
    e->last_iteration_us = step_us;
}

void kv_engine_step(struct kv_engine *e)
{
    int64_t began_us = kv_engine_now_us();
    e->step_jobs = 0;
    e->hooks = (struct kv_step_hooks){.ctx = e, .plan = kv_sequence_plan, .attended = attended, .logits = observe_row, .trace = traced(e) ? trace_row : NULL};
    kv_placement_step_begin(e->placements);
    kv_transformer_step(e->transformer, e->items, e->n_items, &e->hooks);
    double stall_us = kv_placement_step_end(e->placements);
    observe_all(e);
    kv_workers_run(e->workers, sample_item, e, e->n_items);
    measure(e, (double)(kv_engine_now_us() - began_us), stall_us);

    for (int32_t i = 0; i < e->n_items; i++) kv_engine_turn_stepped(&e->items[i]);
    fence_exact(e);
    publish(e, e->finish, e->committed);
    for (int32_t i = 0; i < e->n_items; i++) {
        struct kv_sequence *s = e->items[i].owner;
        int32_t at = 0;
        while (e->live[at] != s) at++;
        bool ends = e->finish[i] != KV_RUNNING || (atomic_load(&s->verdict) & KV_STEP_REJECT) || (e->committed[i] && s->result.status != KV_OK);
        settle(e, &e->items[i], e->finish[i], e->committed[i]);
        if (ends) e->live[at] = NULL;
    }
    kv_scheduler_sweep(e);
}
