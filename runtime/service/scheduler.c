/* scheduler.c — who runs in an iteration: admission by capacity in order of priority, cancellations and deadlines, one token for
 * every decoding sequence, and prefill or recompute chunks within the iteration's time. */
#include "runtime/service/engine.h"

#include "runtime/execution/arriving.h"

#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- endings */

static void stop_counting(struct kv_engine *e, struct kv_sequence *s)
{
    if (s->counted) atomic_fetch_sub(&e->candidate_live, 1);
    if (s->recomputing) atomic_fetch_sub(&e->recomputing, 1);
    s->counted = s->recomputing = false;
}

void kv_scheduler_finish(struct kv_engine *e, struct kv_sequence *s, enum kv_finish finish, enum kv_status status)
{
    int64_t now_us = kv_engine_now_us();
    int32_t published = s->n_tokens - s->n_prompt;
    double ttft_us = s->first_us ? (double)(s->first_us - s->submitted_us) : 0;
    if (s->placement && s->placement->cancel) s->placement->cancel(e->placements, &s->cache);
    kv_engine_turn_ends(e, s, finish);
    kv_cache_truncate(&s->cache, e->arena, 0);
    e->reserved_bytes -= s->reserved_bytes;
    stop_counting(e, s);
    kv_engine_give_credits(e, s);
    if (s->resume) (void)kv_engine_forget_paused(e, s->resume); /* it ended in the queue: nobody else will take those rows over */
    e->stats.finished += finish == KV_FINISH_STOP || finish == KV_FINISH_LENGTH;
    e->stats.cancelled += finish == KV_FINISH_CANCELLED;
    kv_report_publication(e, s);
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = s->n_tokens, .tokens = (uint64_t)published,
                           .value = (double)(now_us - s->submitted_us)};
    memcpy(r.digest, s->trace_id, sizeof s->trace_id);
    kv_report_receipt(e, s, KV_RECEIPT_REQUEST, status, r);
    if (!s->probe)
        kv_report_sample(e, &(struct kv_sample){.kind = KV_SAMPLE_REQUEST, .request = s->id, .candidate = s->candidate, .layer = -1,
                                                .kv_head = -1, .status = status, .tokens = published, .ttft_us = ttft_us,
                                                .tpot_us = published > 1 ? (double)(now_us - s->first_us) / (published - 1) : 0});
    struct kv_request_stats st = {.finish = finish, .status = status, .id = s->id, .candidate = s->candidate,
                                  .published = s->approximate ? KV_APPROXIMATE : KV_EXACT, .n_prompt = s->n_prompt,
                                  .n_published = published, .n_recomputed = s->n_recomputed, .n_reused = s->n_reused,
                                  .queued_us = (s->admitted_us ? s->admitted_us : now_us) - s->submitted_us,
                                  .ttft_us = (int64_t)ttft_us, .total_us = now_us - s->submitted_us};
    int32_t n = kv_text_take(&s->text, true, s->stream->tail, (int32_t)sizeof s->stream->tail - 1);
    s->stream->tail[n] = 0;
    kv_stream_finish(s->stream, &st);
    kv_sequence_destroy(s);
}

/* Why a sequence must end before it is done; KV_OK: it need not. */
static enum kv_status ending(const struct kv_engine *e, const struct kv_sequence *s, int64_t now_us)
{
    if (atomic_load(&s->stream->cancelled) || atomic_load(&e->cancel_all)) return KV_CANCELLED;
    return s->deadline_us && now_us > s->deadline_us ? KV_DEADLINE : KV_OK;
}

static void end_early(struct kv_engine *e, struct kv_sequence *s, enum kv_status why)
{
    if (why != KV_CANCELLED) kv_report_failure(e, s, why, "the request's deadline passed");
    kv_scheduler_finish(e, s, why == KV_CANCELLED ? KV_FINISH_CANCELLED : KV_FINISH_ERROR, why);
}

void kv_scheduler_sweep(struct kv_engine *e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_live; i++)
        if (e->live[i]) e->live[n++] = e->live[i];
    e->n_live = n;
}

/* ---------------------------------------------------------------- back to the baseline */

void kv_scheduler_to_baseline(struct kv_engine *e, struct kv_sequence *s)
{
    if (s->candidate == 0) return;
    kv_report_publication(e, s);
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = s->frontier == KV_UNTAINTED ? -1 : s->frontier,
                           .tokens = s->frontier < s->cache.n_rows ? (uint64_t)(s->cache.n_rows - s->frontier) : 0};
    if (!(e->word & KV_LATCH)) snprintf(r.detail, sizeof r.detail, "its candidate was retired; the baseline goes on with it");
    kv_report_receipt(e, s, KV_RECEIPT_ROLLBACK, KV_OK, r);
    if (s->placement->cancel) s->placement->cancel(e->placements, &s->cache);
    s->placement = e->resident;
    kv_engine_give_credits(e, s);
    kv_selection_destroy(s->selection);
    s->selection = NULL;
    s->candidate = 0;
    s->cache.faults = kv_faults_match(e->config.faults, s->tenant, s->session, 0);
    if (s->frontier < s->cache.n_rows) {
        s->recompute_to = s->cache.n_rows;
        s->n_recomputed += s->cache.n_rows - s->frontier;
        s->recompute_began_us = kv_engine_now_us();
        kv_cache_truncate(&s->cache, e->arena, s->frontier);
        if (!s->recomputing) atomic_fetch_add(&e->recomputing, 1);
        s->recomputing = true;
    }
    s->frontier = KV_UNTAINTED;
    if (s->counted) atomic_fetch_sub(&e->candidate_live, 1);
    s->counted = false;
}

/* A sequence keeps its candidate while that one is installed to serve and the word is not latched. */
static bool may_serve(const struct kv_engine *e, const struct kv_sequence *s)
{
    return s->candidate && !(e->word & KV_LATCH) && e->now.candidate.id == s->candidate && (!e->now.shadow || s->probe);
}

/* ---------------------------------------------------------------- admission */

static uint64_t bytes_of(const struct kv_engine *e, const struct kv_sequence *s)
{
    return (uint64_t)s->cache.max_blocks * (uint64_t)e->weights->n_layers * s->cache.slab_bytes;
}

/* A fault in transfers strikes only what is transferred: an exact placement, whose bits are the baseline's. */
static void stage_for_faults(struct kv_engine *e, struct kv_sequence *s)
{
    const struct kv_placement *p = kv_placement_find("layerwise");
    if (!(kv_fault_sites(s->cache.faults.mask) & 1u << KV_FAULT_TRANSFER)) return;
    if (p->admit(e->placements, s->n_prompt + s->max_tokens) == KV_OK && kv_engine_take_credits(e, s, p)) s->placement = p;
}

static void admit(struct kv_engine *e, struct kv_sequence *s)
{
    s->admitted_us = kv_engine_now_us();
    s->reserved_bytes = bytes_of(e, s);
    e->reserved_bytes += s->reserved_bytes;
    e->stats.prompt_tokens += (uint64_t)s->n_prompt;
    bool serve = may_serve(e, s);
    if (serve && e->now.placement->admit && e->now.placement->admit(e->placements, s->n_prompt + s->max_tokens) != KV_OK) serve = false;
    if (serve && !kv_engine_take_credits(e, s, e->now.placement)) serve = false;
    if (!serve) {
        kv_selection_destroy(s->selection);
        s->selection = NULL;
        s->candidate = 0;
    }
    if (s->kept_back) {
        struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = -1, .bytes = s->reserved_bytes, .detail = "the admission policy keeps it on the baseline"};
        kv_report_receipt(e, s, KV_RECEIPT_FALLBACK, s->kept_back, r);
    }
    if (s->no_index) {
        struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = -1, .rows_total = (uint64_t)(s->n_prompt + s->max_tokens), .detail = "no memory for the candidate's index; the baseline serves it"};
        e->stats.allocation_failures++;
        kv_report_receipt(e, s, KV_RECEIPT_FALLBACK, KV_OUT_OF_MEMORY, r);
    }
    s->placement = serve ? e->now.placement : e->resident;
    s->cache.faults = kv_faults_match(e->config.faults, s->tenant, s->session, s->candidate);
    if (s->selection) {
        s->selection->faults = &s->cache.faults;
        kv_sequence_bind(e, s, s->selection, s->candidate);
    }
    if (s->cache.faults.mask && !serve) stage_for_faults(e, s);
    if (serve) {
        s->counted = true;
        atomic_fetch_add(&e->candidate_live, 1);
    }
    if (s->resume && kv_pauses_attach(e, s)) return;
    e->live[e->n_live++] = s;
}

static struct kv_sequence **queued(struct kv_engine *e, int32_t i)
{
    return &e->queue[(e->queue_head + i) % e->config.max_queue];
}

/* Who goes next, and its place: the oldest once it has waited too long, else the highest priority, the older of two alike. The queue is by arrival. */
static struct kv_sequence *peek(struct kv_engine *e, int64_t now_us, int32_t *at)
{
    struct kv_sequence *best = NULL;
    pthread_mutex_lock(&e->lock);
    if (e->queue_n) best = *queued(e, *at = 0);
    bool starves = best && now_us - best->arrival_us >= e->config.starvation_us;
    for (int32_t i = 1; i < e->queue_n && !starves; i++)
        if ((*queued(e, i))->priority > best->priority) best = *queued(e, *at = i);
    pthread_mutex_unlock(&e->lock);
    return best;
}

/* Only this thread takes out, and who came since stands by its arrival: s is at `at` or behind it. */
static void take(struct kv_engine *e, struct kv_sequence *s, int32_t at)
{
    pthread_mutex_lock(&e->lock);
    while (*queued(e, at) != s) at++;
    for (; at > 0; at--) *queued(e, at) = *queued(e, at - 1);
    e->queue_head = (e->queue_head + 1) % e->config.max_queue;
    e->queue_n--;
    e->queued_tokens -= s->n_prompt;
    e->live_seen++; /* a drain must not find the engine empty between queue and admission */
    pthread_mutex_unlock(&e->lock);
}

/* Takes out queued requests that were cancelled or ran out of time, wherever they stand. */
static void sweep_queue(struct kv_engine *e, int64_t now_us)
{
    while (!kv_report_full(e) || atomic_load(&e->stopping)) {
        struct kv_sequence *gone = NULL;
        enum kv_status why = KV_OK;
        pthread_mutex_lock(&e->lock);
        for (int32_t i = 0; i < e->queue_n; i++) {
            struct kv_sequence **at = &e->queue[(e->queue_head + i) % e->config.max_queue];
            if (!gone && (why = ending(e, *at, now_us)) != KV_OK) gone = *at;
            else if (gone) e->queue[(e->queue_head + i - 1) % e->config.max_queue] = *at;
        }
        if (gone) {
            e->queue_n--;
            e->queued_tokens -= gone->n_prompt;
            e->live_seen++; /* a drain waits until it was counted */
        }
        pthread_mutex_unlock(&e->lock);
        if (!gone) return;
        end_early(e, gone, why);
    }
}

void kv_scheduler_begin(struct kv_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->word = kv_publication_word(&e->publication);
    e->now = e->assignment;
    if (e->gate_changed) e->gate = e->gate_next;
    e->gate_changed = false;
    pthread_mutex_unlock(&e->lock);
    kv_engine_turns_collect(e);
    bool flushed = kv_report_flush(e);
    if (kv_report_full(e) && !atomic_load(&e->stopping)) return;
    int64_t now_us = kv_engine_now_us();
    for (int32_t i = 0; i < e->n_live; i++) {
        struct kv_sequence *s = e->live[i];
        enum kv_status why = ending(e, s, now_us);
        if (why != KV_OK) {
            end_early(e, s, why);
            e->live[i] = NULL;
        } else if (s->candidate && !may_serve(e, s)) {
            kv_scheduler_to_baseline(e, s);
        }
    }
    kv_scheduler_sweep(e);
    kv_pauses_begin(e);
    sweep_queue(e, now_us);
    if (!flushed) return;
    int32_t at;
    for (struct kv_sequence *s; e->n_live + kv_pauses_resuming(e) < e->config.max_sequences && (s = peek(e, now_us, &at));) {
        /* Room for the whole answer is set aside, so that a running sequence never fails for want of it. */
        if (e->reserved_bytes - kv_pauses_held_bytes(e, s) + bytes_of(e, s) > kv_arena_capacity_bytes(e->arena)) {
            kv_pauses_make_room(e);
            break;
        }
        take(e, s, at);
        admit(e, s);
    }
    kv_engine_prefetch(e);
}

/* ---------------------------------------------------------------- choice */

enum { MIN_SHARE = 16, NO_SHARE_YET = -1 };

static void add_item(struct kv_engine *e, struct kv_sequence *s, int32_t n)
{
    struct kv_step_item *it = &e->items[e->n_items];
    int32_t position = s->cache.n_rows, end = position + n;
    if (kv_engine_reserve(e, s, n) != KV_OK) { /* excluded by the reservation at admission */
        e->stats.allocation_failures++;
        return;
    }
    atomic_store(&s->verdict, 0);
    atomic_store(&s->illegal, 0);
    atomic_store(&s->gate_status, KV_OK);
    for (int a = 0; a < KV_FALLBACK_ACTIONS; a++) atomic_store(&s->actions[a], 0);
    it->cache = &s->cache;
    it->placement = s->arriving ? &kv_placement_arriving : s->placement;
    it->tokens = s->tokens + position;
    it->n = n;
    it->position = position;
    it->selects = s->selection && n == 1 && position >= s->n_prompt && !s->dense_once;
    it->rehearses = it->selects && s->selection->rehearses;
    it->sample = end == s->n_tokens;
    it->every_logits = s->observe_prompt;
    it->owner = s;
    e->n_items++;
}

static int32_t missing(const struct kv_sequence *s)
{
    return s->n_tokens - s->cache.n_rows;
}

/* Rows of prefill in this iteration. Until the first measurement a small chunk: it is the measurement. */
static int32_t prefill_rows(const struct kv_engine *e, int32_t decoding)
{
    double budget = e->us_per_row > 0 ? e->config.iteration_us / e->us_per_row - decoding : 64;
    int32_t rows = budget < 16 ? 16 : budget > e->config.prefill_chunk ? e->config.prefill_chunk : (int32_t)budget;
    return rows < e->config.prefill_chunk ? rows : e->config.prefill_chunk;
}

/* Whether a sequence before this one is about to compute the very block that comes next here: waiting for it is sooner. */
static bool comes_anyway(const struct kv_engine *e, int32_t i)
{
    const struct kv_sequence *s = e->live[i];
    if (s->next_block != s->prefix_blocks || s->cache.n_rows != s->prefix_blocks * KV_BLOCK_ROWS || s->observe_prompt || !e->config.prefix_reuse) return false;
    for (int32_t j = 0; j < i; j++) {
        const struct kv_sequence *o = e->live[j];
        if (e->share[j] == NO_SHARE_YET && o->next_block == o->prefix_blocks && !memcmp(&o->next_key, &s->next_key, sizeof s->next_key)) return true;
    }
    return false;
}

static int32_t give_rows(struct kv_engine *e, int32_t i, int32_t most)
{
    int32_t has = e->share[i] > 0 ? e->share[i] : 0, wants = missing(e->live[i]) - has, n = wants < most ? wants : most;
    if (n > 0) e->share[i] = has + n;
    return n;
}

/* Every sequence that prefills gets an equal share, so that a long prompt holds no short one up. What is left over goes to the one whose
 * deadline is nearest, then by arrival. */
static void share_prefill(struct kv_engine *e, int32_t rows)
{
    int32_t n = 0, urgent = -1;
    for (int32_t i = 0; i < e->n_live; i++) {
        struct kv_sequence *s = e->live[i];
        e->share[i] = 0;
        if (missing(s) == 1) continue;
        if (!s->turn) kv_engine_adopt_prefix(e, s);
        if (kv_engine_turn_waits(e, s)) continue;
        if (comes_anyway(e, i)) continue;
        e->share[i] = NO_SHARE_YET;
        n++;
        if (s->deadline_us && (urgent < 0 || s->deadline_us < e->live[urgent]->deadline_us)) urgent = i;
    }
    if (n == 0) return;
    int32_t left = rows, each = rows / n < MIN_SHARE ? MIN_SHARE : rows / n;
    for (int32_t i = 0; i < e->n_live && left > 0; i++)
        if (e->share[i]) left -= give_rows(e, i, each < left ? each : left);
    if (urgent >= 0) left -= give_rows(e, urgent, left);
    for (int32_t i = 0; i < e->n_live && left > 0; i++)
        if (e->share[i]) left -= give_rows(e, i, left);
}

/* What a decoding sequence would fetch in this step: every row where its placement moves them. */
static struct kv_batch_key key_of(const struct kv_engine *e, const struct kv_sequence *s, int64_t now_us)
{
    uint64_t layer = (uint64_t)s->cache.n_blocks * s->cache.slab_bytes;
    bool moves = s->placement->prefetch != NULL;
    return (struct kv_batch_key){.fetch_bytes = moves ? layer * (uint64_t)e->weights->n_layers : 0, .staging_bytes = moves ? 2 * layer : 0, .tier = moves, .identity = s->candidate,
                                 .candidates = s->selection ? s->cache.n_rows : 0, .slack_us = s->deadline_us ? s->deadline_us - now_us : INT64_MAX, .approximate = s->contract == KV_APPROXIMATE,
                                 .deferred = s->deferred};
}

/* One token for every decoding sequence; where some fetch, as much as the link brings within an iteration. */
static int32_t choose_decoding(struct kv_engine *e)
{
    int64_t now_us = kv_engine_now_us();
    int32_t n = 0;
    bool fetches = false;
    for (int32_t i = 0; i < e->n_live; i++) {
        if (missing(e->live[i]) != 1) continue;
        e->decoding[n] = i;
        e->batch[n] = key_of(e, e->live[i], now_us);
        fetches |= e->batch[n++].fetch_bytes > 0;
    }
    double brings = e->stats.rates.h2d_bytes_per_s * e->config.iteration_us / 1e6;
    int32_t goes = n;
    for (int32_t i = 0; i < n; i++) e->order[i] = i, e->live[e->decoding[i]]->deferred++;
    if (fetches) goes = kv_batch_form(e->batch, n, brings > 0 && brings < 1e18 ? (uint64_t)brings : UINT64_MAX, e->config.device_bytes, e->order);
    for (int32_t i = 0; i < goes; i++) {
        struct kv_sequence *s = e->live[e->decoding[e->order[i]]];
        s->deferred = 0;
        add_item(e, s, 1);
    }
    return goes;
}

int32_t kv_scheduler_choose(struct kv_engine *e)
{
    e->n_items = 0;
    if (kv_report_full(e) && !atomic_load(&e->stopping)) return 0;
    share_prefill(e, prefill_rows(e, choose_decoding(e)));
    for (int32_t i = 0; i < e->n_live; i++)
        if (e->share[i] > 0) add_item(e, e->live[i], e->share[i]);
    return e->n_items;
}
