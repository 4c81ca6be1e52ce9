/* emulated_engine.h — a release port without an engine: the word, the candidate, and samples of a candidate that equals the baseline. */
#ifndef EMULATED_ENGINE_H
#define EMULATED_ENGINE_H

#include "controller/release/control.h"

#include <stdatomic.h>
#include <string.h>

#define EMULATED_LATCH (UINT64_C(1) << 63)
static struct {
    _Atomic uint64_t word, candidate;
    _Atomic bool traffic; /* every tick measures a few hundred equal units */
} emulated;

static enum kv_status emulated_install(void *ctx, const struct kv_candidate *c, bool shadow, uint64_t expected, uint64_t epoch, struct kv_error *err)
{
    (void)ctx, (void)shadow;
    if (!atomic_compare_exchange_strong(&emulated.word, &expected, epoch)) return kv_fail(err, KV_SUPERSEDED, "epoch", "superseded");
    emulated.candidate = c ? c->id : 0;
    return KV_OK;
}
static enum kv_status emulated_rearm(void *ctx, uint64_t epoch, struct kv_error *err)
{
    (void)ctx;
    if (!(emulated.word & EMULATED_LATCH)) return kv_fail(err, KV_CONFLICT, "word", "not latched");
    emulated.candidate = 0;
    emulated.word = epoch;
    return KV_OK;
}
static struct kv_release_word emulated_word(void *ctx)
{
    (void)ctx;
    uint64_t w = emulated.word;
    return (struct kv_release_word){.latched = w & EMULATED_LATCH, .epoch = w & ~EMULATED_LATCH};
}
static void emulated_rollback(void *ctx, struct kv_rollback *out)
{
    (void)ctx;
    uint64_t before = atomic_fetch_or(&emulated.word, EMULATED_LATCH);
    *out = (struct kv_rollback){.epoch = before & ~EMULATED_LATCH, .already = before & EMULATED_LATCH, .fence_us = 1};
}
static int32_t emulated_recomputing(void *ctx)
{
    (void)ctx;
    return 0;
}
static void emulated_set_fallback(void *ctx, const struct kv_fallback_table *t, double max)
{
    (void)ctx, (void)t, (void)max;
}
static size_t emulated_samples(void *ctx, struct kv_sample *out, size_t cap)
{
    (void)ctx;
    size_t n = emulated.traffic && emulated.candidate ? (cap < 200 ? cap : 200) : 0;
    for (size_t i = 0; i < n; i++) out[i] = (struct kv_sample){.kind = KV_SAMPLE_UNIT, .epoch = emulated.word & ~EMULATED_LATCH, .candidate = emulated.candidate, .exact_equal = true, .bound_holds = true};
    static bool served; /* every other call, so that a drain ends */
    return (served = !served) ? n : 0;
}
static void emulated_stats(void *ctx, struct kv_engine_stats *out)
{
    (void)ctx;
    memset(out, 0, sizeof *out);
}
static inline struct kv_release_port emulated_port(void)
{
    return (struct kv_release_port){NULL, emulated_install, emulated_rearm, emulated_word, emulated_rollback, emulated_recomputing, emulated_set_fallback, emulated_samples, emulated_stats};
}
static inline void emulated_reset(void)
{
    emulated.word = emulated.candidate = 0;
    emulated.traffic = false;
}

#endif
