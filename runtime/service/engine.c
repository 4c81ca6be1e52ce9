/* engine.c — the engine functions of kvasir.h: made and ended, fed by submit, steered by install, rollback and rearm. */
#include "runtime/service/engine.h"

#include "runtime/evaluate/shadow.h"
#include "runtime/service/fallback.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_HOST_BYTES (UINT64_C(1) << 30)
#define DEFAULT_OMITTED_MASS 0.1
#define MAX_KEPT_BLOCKS (1 << 20) /* of prefixes */
#define AHEAD_BYTES (UINT64_C(32) << 20) /* of host memory whose pages are made before a block needs them */

void kv_engine_config_default(struct kv_engine_config *c)
{
    *c = (struct kv_engine_config){.max_sequences = 32, .max_queue = 256, .starvation_us = 10000000, .host_bytes = DEFAULT_HOST_BYTES, .swap_bytes = UINT64_C(256) << 20, .prefetch_bytes = UINT64_C(256) << 20,
                                   .remote_bytes = UINT64_C(256) << 20, .remote_timeout_ms = 2000, .remote_pause_ms = 10000,
                                   .device_bytes = UINT64_C(256) << 20, .iteration_us = 50000, .prefill_chunk = 256, .prefix_reuse = true, .index_share = 3, .break_even = 1,
                                   .shadow_fraction = 0.02, .shadow_queue = 64};
}

/* ---------------------------------------------------------------- the decode thread */

static bool idle(const struct kv_engine *e)
{
    return e->n_live == 0 && e->queue_n == 0 && !e->turn_event && !atomic_load(&e->stopping) && atomic_load(&e->forget_asked) == e->forgotten && !kv_pauses_busy(e);
}

struct timespec kv_engine_time_in(int64_t us)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + us % 1000000 * 1000;
    return (struct timespec){.tv_sec = t.tv_sec + us / 1000000 + ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/* The engine's lock is held. us < 0: until something happens. */
static void wait_for(struct kv_engine *e, int64_t us)
{
    if (us < 0) {
        pthread_cond_wait(&e->wake, &e->lock);
        return;
    }
    struct timespec until = kv_engine_time_in(us);
    pthread_cond_timedwait(&e->wake, &e->lock, &until);
}

static void sleep_until_work(struct kv_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->live_seen = e->n_live + kv_pauses_resuming(e);
    if (e->live_seen == 0 && e->queue_n == 0) pthread_cond_broadcast(&e->wake);
    bool slept = false;
    for (int64_t us; idle(e) && e->pending_n == 0 && (us = kv_pauses_wait_us(e)) != 0; slept = true) wait_for(e, us);
    /* Receipts wait for their sink, every sequence for the disk, or who queues for room that saves hold: look again shortly. */
    if (!e->turn_event && !atomic_load(&e->stopping) && (e->pending_n || e->n_live || (e->queue_n && !slept))) wait_for(e, 1000);
    pthread_mutex_unlock(&e->lock);
}

/* What was submitted before it was told to stop is seen, and ended. */
static bool is_over(struct kv_engine *e)
{
    bool stops = atomic_load(&e->stopping);
    pthread_mutex_lock(&e->lock);
    bool empty = e->queue_n == 0;
    pthread_mutex_unlock(&e->lock);
    return stops && empty && e->n_live == 0 && !kv_pauses_resuming(e);
}

static void *decode(void *arg)
{
    struct kv_engine *e = arg;
    kv_numerics_enter();
    e->window_began_us = kv_engine_now_us();
    for (;;) {
        int64_t began_ns = kv_now_ns();
        kv_engine_forget_now(e);
        kv_scheduler_begin(e);
        if (kv_scheduler_choose(e)) {
            int64_t chosen_ns = kv_now_ns();
            kv_engine_step(e);
            int64_t stepped_ns = kv_now_ns();
            kv_report_stats(e);
            e->stats.step_ns += (uint64_t)(stepped_ns - chosen_ns);
            e->stats.schedule_ns += (uint64_t)(chosen_ns - began_ns + kv_now_ns() - stepped_ns);
            continue;
        }
        kv_report_stats(e);
        if (is_over(e)) return NULL;
        sleep_until_work(e);
    }
}

/* ---------------------------------------------------------------- create and destroy */

static enum kv_status check_config(const struct kv_engine_config *c, const struct kv_model_info *m, struct kv_error *err)
{
    const struct { const char *name; int64_t value, min, max; } limits[] = {
        {"n_threads", c->n_threads, 0, 256}, {"max_sequences", c->max_sequences, 1, 4096}, {"max_queue", c->max_queue, 1, 1 << 20}, {"starvation_us", c->starvation_us, 0, INT64_MAX},
        {"max_pause_us", c->max_pause_us, 0, INT64_MAX},
        {"context_length", c->context_length, 0, m->context_length}, {"iteration_us", c->iteration_us, 1000, INT32_MAX},
        {"prefill_chunk", c->prefill_chunk, 1, 8192}, {"shadow_queue", c->shadow_queue, 1, 65536}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value < limits[i].min || limits[i].value > limits[i].max)
            return kv_fail(err, KV_BAD_ARGUMENT, limits[i].name, "%s is %lld and must lie in %lld to %lld", limits[i].name,
                           (long long)limits[i].value, (long long)limits[i].min, (long long)limits[i].max);
    if (!(c->shadow_fraction >= 0 && c->shadow_fraction <= 1))
        return kv_fail(err, KV_BAD_ARGUMENT, "shadow_fraction", "shadow_fraction must lie in 0 to 1");
    if (!(c->break_even >= KV_BREAK_EVEN_LEAST && c->break_even <= KV_BREAK_EVEN_MOST)) {
        enum kv_status s = kv_fail(err, KV_BAD_ARGUMENT, "break_even", "break_even is %g and must lie in %g to %d", c->break_even, KV_BREAK_EVEN_LEAST, KV_BREAK_EVEN_MOST);
        kv_hint(err, "1 takes each method's declared byte_cost as it is; this machine's is what make bench prints as select/METHOD/byte-cost");
        return s;
    }
    if (!(c->index_share >= 0 && c->index_share <= 1e6)) return kv_fail(err, KV_BAD_ARGUMENT, "index_share", "index_share must lie in 0 to 1000000");
    return KV_OK;
}

static enum kv_status create_parts(struct kv_engine *e, struct kv_error *err)
{
    const struct kv_weights *w = e->weights;
    const struct kv_engine_config *c = &e->config;
    enum kv_status s = kv_workers_create(c->n_threads, &e->workers);
    if (s != KV_OK) return kv_fail(err, s, "n_threads", "the kernel workers could not be started");
    s = kv_arena_create(kv_slab_bytes(KV_ROW_TYPE, w->n_kv_heads, w->d_head), c->host_bytes, &e->arena);
    if (s != KV_OK) return kv_fail(err, s, "tiers.host.capacity_bytes", "the host arena of %llu bytes could not be had", (unsigned long long)c->host_bytes);
    kv_arena_pin(e->arena);
    kv_arena_go_ahead(e->arena, AHEAD_BYTES);
    struct kv_placement_config p = {w->n_layers, w->n_kv_heads, w->d_head, KV_ROW_TYPE, c->device_bytes, c->link_bytes_per_second, c->link_latency_us, c->serial_transfers, c->window_rows / KV_BLOCK_ROWS};
    s = kv_placement_ctx_create(&p, &e->placements, err);
    if (s != KV_OK) return s;
    s = kv_transformer_create(w, e->workers, e->placements, c->prefill_chunk + c->max_sequences, c->max_sequences, e->context_length, &e->transformer);
    if (s != KV_OK) return kv_fail(err, s, "prefill_chunk", "the buffers of a step could not be had");
    kv_prefix_base(e->model, &e->prefix_base);
    uint64_t kept = c->prefix_reuse ? c->host_bytes / kv_slab_bytes(KV_ROW_TYPE, w->n_kv_heads, w->d_head) / (uint64_t)w->n_layers : 0;
    s = kv_prefix_create(w->n_layers, kept > MAX_KEPT_BLOCKS ? MAX_KEPT_BLOCKS : (int32_t)kept, &e->prefix);
    if (s != KV_OK) return kv_fail(err, s, "prefix_reuse", "no memory for the index of prefixes");
    s = kv_tournament_create(&e->shape, e->context_length, &e->tournament, err);
    if (s != KV_OK) return s;
    s = kv_flight_create(&e->flight);
    if (s != KV_OK) return kv_fail(err, s, "engine", "no memory for the flight recorder");
    s = kv_engine_turns_create(e, err);
    if (s != KV_OK) return s;
    size_t n = (size_t)kv_workers_count(e->workers), live = (size_t)c->max_sequences;
    size_t group = (size_t)(w->n_q_heads / w->n_kv_heads);
    e->shadow_doubles = kv_shadow_online_doubles(e->context_length, w->d_head, w->n_q_heads / w->n_kv_heads);
    e->queue = calloc((size_t)c->max_queue, sizeof *e->queue);
    e->live = calloc(live, sizeof *e->live);
    e->items = calloc(live, sizeof *e->items);
    e->finish = calloc(live, sizeof *e->finish);
    e->committed = calloc(live, sizeof *e->committed);
    e->jobs = calloc((size_t)c->shadow_queue, sizeof *e->jobs);
    e->ring = calloc(KV_SAMPLE_RING, sizeof *e->ring);
    e->pending_cap = 2 * (KV_RECEIPTS_A_SEQUENCE * c->max_sequences + KV_RECEIPTS_OF_QUEUE);
    e->pending = calloc((size_t)e->pending_cap, sizeof *e->pending);
    e->share = calloc(live, sizeof *e->share);
    e->batch = calloc(live, sizeof *e->batch);
    e->decoding = calloc(live, sizeof *e->decoding);
    e->order = calloc(live, sizeof *e->order);
    e->timings_out = calloc((size_t)w->n_layers, sizeof *e->timings_out);
    e->samplers = calloc(n, sizeof *e->samplers);
    e->shadow_scratch = calloc(n, sizeof *e->shadow_scratch);
    e->shadow_output = calloc(n, sizeof *e->shadow_output);
    e->backlog = kv_backlog_create();
    s = kv_engine_credits_create(e, err);
    if (s != KV_OK) return s;
    if (kv_pauses_create(kv_slab_bytes(KV_ROW_TYPE, w->n_kv_heads, w->d_head), c->swap_bytes, &e->pauses) != KV_OK)
        return kv_fail(err, KV_OUT_OF_MEMORY, "engine", "no memory to swap %llu MiB of paused requests to", (unsigned long long)(c->swap_bytes >> 20));
    bool ok = e->queue && e->live && e->items && e->finish && e->committed && e->jobs && e->ring && e->pending && e->share && e->batch && e->decoding && e->order && e->timings_out &&
              e->samplers && e->shadow_scratch && e->shadow_output && e->backlog;
    for (size_t i = 0; ok && i < n; i++) {
        e->shadow_scratch[i] = calloc(e->shadow_doubles, sizeof(double));
        e->shadow_output[i] = calloc(group * (size_t)w->d_head, sizeof(float));
        ok = e->shadow_scratch[i] && e->shadow_output[i] && kv_sampler_create(e->info->n_vocab, &e->samplers[i]) == KV_OK;
    }
    return ok ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "engine", "no memory for the engine's tables");
}

static enum kv_status start_thread(struct kv_engine *e, struct kv_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    /* A rollback may run in a signal handler and waits for the decode thread, which must therefore never run one. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e->started = pthread_create(&e->thread, NULL, decode, e) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e->started ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "engine", "the decode thread could not be started");
}

enum kv_status kv_engine_create(struct kv_model *m, const struct kv_engine_config *c, struct kv_engine **out, struct kv_error *err)
{
    *out = NULL;
    const struct kv_weights *w = kv_model_weights(m);
    enum kv_status s = check_config(c, kv_model_info(m), err);
    if (s != KV_OK) return s;
    struct kv_engine *e = calloc(1, sizeof *e);
    if (!e) return kv_fail(err, KV_OUT_OF_MEMORY, "engine", "no memory for the engine");
    e->config = *c;
    e->next_id = c->last_request;
    if (!e->config.host_bytes) e->config.host_bytes = DEFAULT_HOST_BYTES;
    e->model = m;
    e->info = kv_model_info(m);
    e->weights = w;
    e->shape = (struct kv_sequence_shape){w->n_layers, w->n_q_heads, w->n_kv_heads, w->d_head};
    e->context_length = c->context_length ? c->context_length : e->info->context_length;
    e->resident = kv_placement_find("resident");
    kv_fallback_source_table(&e->gate.table);
    e->gate.max_omitted_mass = DEFAULT_OMITTED_MASS;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t monotonic; /* a wall clock that is set must not lengthen a wait */
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s = create_parts(e, err);
    if (s == KV_OK) kv_engine_rates(e, &e->stats.rates);
    if (s == KV_OK) s = start_thread(e, err);
    if (s != KV_OK) return kv_engine_destroy(e), s;
    *out = e;
    return KV_OK;
}

static bool busy(const struct kv_engine *e)
{
    return e->queue_n > 0 || e->live_seen > 0;
}

void kv_engine_drain(struct kv_engine *e, int32_t timeout_ms)
{
    atomic_store(&e->draining, true);
    if (timeout_ms > 0) atomic_store(&e->stop_ms, timeout_ms);
    struct timespec until = kv_engine_time_in((int64_t)timeout_ms * 1000);
    pthread_mutex_lock(&e->lock);
    while (busy(e) && pthread_cond_timedwait(&e->wake, &e->lock, &until) == 0) continue;
    pthread_mutex_unlock(&e->lock);
    atomic_store(&e->cancel_all, true);
}

static struct kv_engine *volatile left_behind;

void kv_engine_destroy(struct kv_engine *e)
{
    if (!e) return;
    if (e->started) {
        atomic_store(&e->draining, true);
        atomic_store(&e->cancel_all, true);
        pthread_mutex_lock(&e->lock);
        atomic_store(&e->stopping, true);
        pthread_cond_broadcast(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    kv_engine_prefetch_stop(e);
    if (!kv_engine_turns_destroy(e)) {
        left_behind = e; /* the process ends: what a thread that hangs still uses goes with it */
        return;
    }
    kv_tournament_destroy(e->tournament);
    kv_flight_destroy(e->flight);
    kv_transformer_destroy(e->transformer);
    kv_placement_ctx_destroy(e->placements);
    kv_pauses_destroy(e->pauses, e);
    kv_credits_destroy(e->credits);
    kv_prefix_destroy(e->prefix, e->arena);
    kv_arena_destroy(e->arena);
    int32_t n = e->workers ? kv_workers_count(e->workers) : 0;
    for (int32_t i = 0; i < n; i++) {
        if (e->samplers) kv_sampler_destroy(e->samplers[i]);
        if (e->shadow_scratch) free(e->shadow_scratch[i]);
        if (e->shadow_output) free(e->shadow_output[i]);
    }
    kv_workers_destroy(e->workers);
    kv_backlog_unref(e->backlog);
    void *all[] = {e->queue, e->live, e->items, e->finish, e->committed, e->jobs, e->ring, e->pending, e->share, e->batch, e->decoding, e->order, e->timings_out, e->samplers,
                   e->shadow_scratch, e->shadow_output};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

const char *kv_engine_isa(const struct kv_engine *e)
{
    (void)e;
    return kv_kernels()->isa;
}

void kv_numerics_id(uint8_t out[32])
{
    uint8_t bytes[65536];
    kv_numerics_enter();
    kv_sha256(bytes, kv_numerics_selftest(kv_kernels(), bytes, sizeof bytes), out);
}
