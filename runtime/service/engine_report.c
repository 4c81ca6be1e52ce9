/* engine_report.c — what leaves the decode thread besides tokens: samples, receipts, statistics. */
#include "runtime/service/engine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define CLOCK_JUMP_US (INT64_C(3600) * 1000000) /* of the injected fault */

int64_t kv_engine_now_us(void)
{
    return kv_now_ns() / 1000;
}

static int64_t wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

void kv_report_sample(struct kv_engine *e, const struct kv_sample *s)
{
    uint64_t head = atomic_load_explicit(&e->ring_head, memory_order_relaxed);
    if (head - atomic_load_explicit(&e->ring_tail, memory_order_acquire) >= KV_SAMPLE_RING) {
        e->stats.samples_dropped++;
        return;
    }
    struct kv_sample *to = &e->ring[head % KV_SAMPLE_RING];
    *to = *s;
    to->at_us = wall_us();
    to->epoch = e->word & ~KV_LATCH;
    atomic_store_explicit(&e->ring_head, head + 1, memory_order_release);
}

size_t kv_engine_samples(struct kv_engine *e, struct kv_sample *out, size_t cap)
{
    uint64_t tail = atomic_load_explicit(&e->ring_tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&e->ring_head, memory_order_acquire);
    size_t n = 0;
    for (; n < cap && tail < head; n++, tail++) out[n] = e->ring[tail % KV_SAMPLE_RING];
    atomic_store_explicit(&e->ring_tail, tail, memory_order_release);
    return n;
}

bool kv_report_flush(struct kv_engine *e)
{
    const struct kv_receipt_sink *sink = &e->config.sink;
    while (e->pending_n && sink->emit && sink->emit(sink->ctx, &e->pending[e->pending_head])) {
        e->pending_head = (e->pending_head + 1) % e->pending_cap;
        e->pending_n--;
    }
    atomic_store(&e->hold, e->pending_n > 0);
    return e->pending_n == 0;
}

bool kv_report_full(const struct kv_engine *e)
{
    return e->pending_n > e->pending_cap / 2;
}

void kv_report_receipt(struct kv_engine *e, struct kv_sequence *s, enum kv_receipt_kind kind, enum kv_status reason, struct kv_receipt r)
{
    if (!e->config.sink.emit) return;
    r.kind = kind;
    r.reason = reason;
    r.at_us = wall_us();
    r.epoch = e->word & ~KV_LATCH;
    if (s) {
        r.request = s->id;
        r.candidate = s->candidate;
        r.contract = s->contract;
        r.published = s->approximate ? KV_APPROXIMATE : KV_EXACT;
        memcpy(r.tenant, s->tenant, sizeof r.tenant);
        memcpy(r.session, s->session, sizeof r.session);
        if (kv_fault_strikes(&s->cache.faults, KV_FAULT_clock_jump)) r.at_us -= CLOCK_JUMP_US;
    }
    /* In order: nothing passes a receipt that waits. The engine runs nothing while kv_report_full, so that the room suffices; only one that is
     * being destroyed with a dead sink gets past it. */
    if (kv_report_flush(e) && e->config.sink.emit(e->config.sink.ctx, &r)) return;
    e->stats.receipts_held++;
    if (e->pending_n == e->pending_cap) {
        e->stats.samples_dropped++;
        return;
    }
    e->pending[(e->pending_head + e->pending_n++) % e->pending_cap] = r;
    atomic_store(&e->hold, true);
}

void kv_report_flight(struct kv_engine *e, const struct kv_sequence *s, struct kv_receipt *r)
{
    if (s && e->config.sink.emit && kv_flight_keep(e->flight, s->id, kv_engine_now_us(), r->digest)) e->stats.flights_kept++;
}

int32_t kv_engine_flight(const struct kv_engine *e, uint64_t request, struct kv_flight *out, int32_t cap)
{
    return kv_flight_read(e->flight, request, out, cap);
}

bool kv_engine_flight_copy(struct kv_engine *e, struct kv_flight_copy *out)
{
    return kv_flight_take(e->flight, out);
}

void kv_report_failure(struct kv_engine *e, struct kv_sequence *s, enum kv_status status, const char *detail)
{
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = s ? s->cache.n_rows : -1};
    snprintf(r.detail, sizeof r.detail, "%s", detail);
    kv_report_flight(e, s, &r);
    kv_report_receipt(e, s, KV_RECEIPT_FAILURE, status, r);
    kv_report_sample(e, &(struct kv_sample){.kind = KV_SAMPLE_FAILURE, .request = s ? s->id : 0, .candidate = s ? s->candidate : 0,
                                            .layer = -1, .kv_head = -1, .status = status});
}

void kv_report_publication(struct kv_engine *e, struct kv_sequence *s)
{
    int32_t n = s->n_tokens - s->segment;
    if (n == 0) return;
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = s->segment, .tokens = (uint64_t)n};
    kv_sha256(s->tokens + s->segment, (size_t)n * sizeof *s->tokens, r.digest);
    r.rows = s->selected.rows;
    r.rows_total = s->selected.visible;
    r.bytes = s->selected.ahead;
    r.value = s->selected.units ? s->selected.mass / s->selected.units : 0;
    memset(&s->selected, 0, sizeof s->selected);
    s->segment = s->n_tokens;
    kv_report_receipt(e, s, KV_RECEIPT_PUBLICATION, KV_OK, r);
}

/* false: it yields tokens, or has not begun. */
static bool work_of(const struct kv_sequence *s, struct kv_work *w)
{
    const struct kv_turn *t = s->turn;
    *w = (struct kv_work){.kind = KV_WORK_PREFILL, .request = s->id, .done = s->cache.n_rows, .total = s->n_prompt, .since_us = s->admitted_us};
    if (s->recomputing) {
        w->kind = KV_WORK_RECOMPUTE;
        w->total = s->recompute_to;
        w->since_us = s->recompute_began_us;
    } else if (t && atomic_load(&t->phase) == KV_TURN_READING) {
        uint32_t ready = atomic_load(&t->ready);
        w->kind = KV_WORK_RESTORE;
        w->total = (t->asked - t->first) * KV_BLOCK_ROWS;
        w->done = ready == KV_ARRIVAL_FAILED ? 0 : (int32_t)((int64_t)w->total * ready / t->chain.n_layers);
    }
    memcpy(w->tenant, s->tenant, sizeof w->tenant);
    memcpy(w->session, s->session, sizeof w->session);
    return w->done < w->total;
}

/* Under the lock. */
static void publish_work(struct kv_engine *e)
{
    e->n_work = 0;
    for (int32_t i = 0; i < e->n_live && e->n_work < KV_WORK_SEEN; i++) e->n_work += work_of(e->live[i], &e->work_out[e->n_work]);
}

/* Staging: rows being read from disk or saved to it. */
static void host_stats(const struct kv_engine *e, struct kv_tier_stats *out)
{
    struct kv_arena_stats a;
    uint64_t block = (uint64_t)e->weights->n_layers * kv_slab_bytes(KV_ROW_TYPE, e->weights->n_kv_heads, e->weights->d_head), staging = e->saving_bytes, moving = e->saving_bytes > 0;
    kv_arena_stats(e->arena, &a);
    if (e->ahead.bytes) staging += (uint64_t)(e->ahead.turn->asked - e->ahead.turn->first) * block, moving++;
    for (int32_t i = 0; i < e->n_live; i++) {
        const struct kv_turn *t = e->live[i]->turn;
        if (t && atomic_load(&t->phase) == KV_TURN_READING) staging += (uint64_t)(t->asked - t->first) * block, moving++;
    }
    if (staging > a.used_bytes) staging = a.used_bytes;
    *out = (struct kv_tier_stats){.name = "host", .capacity_bytes = a.capacity_bytes, .used_bytes = a.used_bytes, .persistent_bytes = a.used_bytes - staging, .staging_bytes = staging,
                                  .pinned_bytes = a.pinned_bytes, .hits = e->prefix_hits, .misses = e->prefix_misses, .bytes_in = a.taken_bytes, .bytes_out = a.given_bytes,
                                  .transfers_in_flight = moving, .huge_pages = a.huge_pages};
}

void kv_report_stats(struct kv_engine *e)
{
    struct kv_engine_stats *s = &e->stats;
    int64_t now_us = kv_engine_now_us(), window_us = now_us - e->window_began_us;
    if (window_us >= 500000) {
        s->tokens_per_s = (double)(s->published_tokens - e->window_tokens) * 1e6 / (double)window_us;
        e->window_tokens = s->published_tokens;
        e->window_began_us = now_us;
    }
    s->active = e->n_live;
    s->recomputing = atomic_load(&e->recomputing);
    s->last_iteration_us = e->last_iteration_us;
    s->reserved_bytes = e->reserved_bytes;
    s->n_tiers = 2;
    kv_placement_tier_stats(e->placements, &s->tier[0]);
    host_stats(e, &s->tier[1]);
    if (e->turns) {
        kv_turns_stats(e->turns, &s->tier[2], &s->tier[3], &s->turns);
        s->n_tiers = s->tier[3].name ? 4 : 3;
    }
    pthread_mutex_lock(&e->lock);
    e->n_timings = kv_placement_timings(e->placements, e->timings_out, e->weights->n_layers);
    kv_engine_rates(e, &s->rates);
    s->queued = e->queue_n;
    e->live_seen = e->n_live + kv_pauses_resuming(e);
    uint64_t requests = e->stats_out.requests, rejected = e->stats_out.rejected;
    e->stats_out = *s;
    e->stats_out.requests = requests; /* counted by the submitting threads */
    e->stats_out.rejected = rejected;
    publish_work(e);
    pthread_mutex_unlock(&e->lock);
}

int32_t kv_engine_work(const struct kv_engine *engine, struct kv_work *out, int32_t cap)
{
    struct kv_engine *e = (struct kv_engine *)engine;
    pthread_mutex_lock(&e->lock);
    int32_t n = e->n_work < cap ? e->n_work : cap;
    memcpy(out, e->work_out, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&e->lock);
    return n;
}

void kv_engine_stats(const struct kv_engine *engine, struct kv_engine_stats *out)
{
    struct kv_engine *e = (struct kv_engine *)engine;
    pthread_mutex_lock(&e->lock);
    *out = e->stats_out;
    out->queued = e->queue_n;
    pthread_mutex_unlock(&e->lock);
    out->recomputing = kv_engine_recomputing(e);
    if (e->turns) kv_turns_stats(e->turns, &out->tier[2], &out->tier[3], &out->turns); /* their threads work on when no iteration follows */
}

int32_t kv_engine_layer_timings(const struct kv_engine *engine, struct kv_layer_timing *out, int32_t cap)
{
    struct kv_engine *e = (struct kv_engine *)engine;
    pthread_mutex_lock(&e->lock);
    int32_t n = e->n_timings < cap ? e->n_timings : cap;
    memcpy(out, e->timings_out, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&e->lock);
    return n;
}

const char *kv_receipt_kind_name(enum kv_receipt_kind k)
{
    static const char *const names[KV_RECEIPT_KINDS] = {"REQUEST", "PUBLICATION", "FALLBACK", "TRANSFER", "FAILURE", "ROLLBACK", "RECOMPUTE", "PAUSE", "RESUME"};
    return (unsigned)k < KV_RECEIPT_KINDS ? names[k] : "UNKNOWN";
}
