/* control_world.h — what the tests of the control thread share: an emulated engine, a real store and a clock that the test turns. */
#ifndef CONTROL_WORLD_H
#define CONTROL_WORLD_H

#include "controller/release/control.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- an emulated engine */

#define LATCH (UINT64_C(1) << 63)
static struct {
    _Atomic uint64_t word;
    uint64_t candidate;
    double byte_cost, index_share; /* share -1: the engine's own */
    bool shadow;
    int32_t recomputing;
    struct kv_sample sample[4096];
    size_t n_samples;
    struct kv_engine_stats stats;
    int installs, die_in_install, die_in_rollback;
    void (*in_install)(void);
    double max_mass;
} engine;

static inline enum kv_status install(void *ctx, const struct kv_candidate *c, bool shadow, uint64_t expected, uint64_t epoch, struct kv_error *err)
{
    (void)ctx;
    if (engine.die_in_install) kill(getpid(), SIGKILL);
    if (engine.in_install) engine.in_install();
    if (!atomic_compare_exchange_strong(&engine.word, &expected, epoch)) return kv_fail(err, KV_SUPERSEDED, "epoch", "superseded");
    engine.candidate = c ? c->id : 0;
    engine.byte_cost = c ? c->byte_cost : 0;
    engine.index_share = c && c->own_share ? c->index_share : -1;
    engine.shadow = shadow;
    engine.installs++;
    return KV_OK;
}
static inline enum kv_status rearm(void *ctx, uint64_t epoch, struct kv_error *err)
{
    (void)ctx;
    if (engine.recomputing || !(engine.word & LATCH)) return kv_fail(err, KV_CONFLICT, "x", "not yet");
    engine.candidate = 0;
    engine.word = epoch;
    return KV_OK;
}
static inline struct kv_release_word word(void *ctx)
{
    (void)ctx;
    uint64_t w = engine.word;
    return (struct kv_release_word){.latched = w & LATCH, .epoch = w & ~LATCH};
}
static inline void rollback(void *ctx, struct kv_rollback *out)
{
    (void)ctx;
    uint64_t before = atomic_fetch_or(&engine.word, LATCH);
    *out = (struct kv_rollback){.epoch = before & ~LATCH, .already = before & LATCH, .fence_us = 3, .unsent_tokens = 2};
    if (engine.die_in_rollback) kill(getpid(), SIGKILL);
}
static inline int32_t recomputing(void *ctx)
{
    (void)ctx;
    return engine.recomputing;
}
static inline void set_fallback(void *ctx, const struct kv_fallback_table *t, double max)
{
    (void)ctx, (void)t;
    engine.max_mass = max;
}
static inline size_t samples(void *ctx, struct kv_sample *out, size_t cap)
{
    (void)ctx;
    size_t n = engine.n_samples < cap ? engine.n_samples : cap;
    memcpy(out, engine.sample, n * sizeof *out);
    memmove(engine.sample, engine.sample + n, (engine.n_samples - n) * sizeof *out);
    engine.n_samples -= n;
    return n;
}
static inline void stats(void *ctx, struct kv_engine_stats *out)
{
    (void)ctx;
    *out = engine.stats;
}

/* ---------------------------------------------------------------- a clock, a world */

static char dir[64];
static int64_t now_us;
static struct kv_store *store;
static struct kv_control *control;
static int events;

static inline int64_t clock_us(void *ctx)
{
    (void)ctx;
    return now_us;
}
static inline void on_event(void *ctx, enum kv_control_event what, uint64_t rollout, const char *line)
{
    (void)ctx, (void)what, (void)line, (void)rollout;
    events++;
}

static double break_even, index_share; /* of the engine that the next start meets */
static bool drills_before_full; /* of the next start */
static inline void start_with(uint8_t model)
{
    struct kv_error err = {0};
    memset(&engine, 0, sizeof engine);
    struct kv_release_port port = {NULL, install, rearm, word, rollback, recomputing, set_fallback, samples, stats, index_share};
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = dir}, &store, &err) == KV_OK, "%s", err.message);
    struct kv_control_config c = {.manual = true, .monotonic_us = clock_us, .realtime_us = clock_us, .on_event = on_event, .model_artifact = {model}, .drills_before_full = drills_before_full, .break_even = break_even};
    ck_assert_msg(kv_control_create(port, store, &c, &control, &err) == KV_OK, "%s", err.message);
}
static inline void start(void)
{
    start_with(1);
}
static inline void stop(void)
{
    kv_control_destroy(control);
    kv_store_close(store);
    control = NULL;
    store = NULL;
}
static inline void set_up(void)
{
    strcpy(dir, "/tmp/kvasir-control-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    now_us = 1000000000;
    start();
}
static inline void tear_down(void)
{
    if (control) stop();
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static inline struct kv_rollout_view *view(uint64_t id)
{
    static struct kv_rollout_view v;
    ck_assert_int_eq(kv_control_rollout(control, id, &v, NULL), KV_OK);
    return &v;
}

static inline uint64_t create(const char *pipeline)
{
    struct kv_rollout_request q = {.name = "candidate", .pipeline = pipeline};
    struct kv_error err = {0};
    uint64_t id = 0;
    kv_params_default(kv_pipeline_find(pipeline), &q.params);
    q.contract = kv_pipeline_find(pipeline)->exactness;
    ck_assert_msg(kv_control_create_rollout(control, &q, "operator:test", &id, &err) == KV_OK, "%s", err.message);
    return id;
}

static inline void push(const struct kv_sample *s)
{
    ck_assert_uint_lt(engine.n_samples, 4096);
    engine.sample[engine.n_samples] = *s;
    if (!s->epoch) engine.sample[engine.n_samples].epoch = engine.word & ~LATCH; /* the engine stamps them */
    engine.n_samples++;
}

/* Traffic of one second: shadowed units, tokens of both arms, stalls. mass: omitted by the candidate; equal: its bits. */
static inline void second(double mass, bool equal, double slowdown)
{
    static uint64_t request;
    for (int i = 0; i < 200; i++) {
        if (engine.candidate) push(&(struct kv_sample){.kind = KV_SAMPLE_UNIT, .candidate = engine.candidate, .shadow = engine.shadow, .omitted_mass = mass,
                                                       .output_error_relative = mass, .exact_equal = equal, .bound_holds = true});
        bool candidate = engine.candidate && !engine.shadow && i % 2;
        request++;
        kv_control_started(control, request, candidate ? KV_ARM_CANDIDATE : KV_ARM_CONTROL);
        push(&(struct kv_sample){.kind = KV_SAMPLE_TOKEN, .request = request, .candidate = candidate ? engine.candidate : 0, .token_us = (candidate ? slowdown : 1) * (1000 + i)});
        if (candidate) push(&(struct kv_sample){.kind = KV_SAMPLE_STALL, .candidate = engine.candidate, .token_us = 10});
    }
    for (int i = 0; i < 5; i++) {
        now_us += 200000;
        kv_control_tick(control);
    }
}

static inline void run(int seconds, double mass, bool equal, double slowdown)
{
    for (int i = 0; i < seconds; i++) second(mass, equal, slowdown);
}

#endif
