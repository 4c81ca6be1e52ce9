/* control.c — the control threads: creation, what each does in a tick, and their end. */
#include "controller/release/control_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t system_clock_us(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t kv_control_monotonic(const struct kv_control *c)
{
    return c->config.monotonic_us ? c->config.monotonic_us(c->config.clock_ctx) : system_clock_us(CLOCK_MONOTONIC);
}

int64_t kv_control_realtime(const struct kv_control *c)
{
    return c->config.realtime_us ? c->config.realtime_us(c->config.clock_ctx) : system_clock_us(CLOCK_REALTIME);
}

void kv_control_note(struct kv_control *c, enum kv_control_event what, uint64_t rollout, const char *fmt, ...)
{
    for (int32_t i = 0; i < c->n_happened; i++) /* one change of a rollout is told once, with its last line */
        if (c->happened[i].what == what && what != KV_EVENT_LOG && c->happened[i].rollout == rollout) {
            memmove(&c->happened[i], &c->happened[i + 1], sizeof *c->happened * (size_t)(c->n_happened - i - 1));
            c->n_happened--;
        }
    if (c->n_happened == MAX_HAPPENED) return;
    struct happened *h = &c->happened[c->n_happened++];
    h->what = what;
    h->rollout = rollout;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h->line, sizeof h->line, fmt, ap);
    va_end(ap);
}

void kv_control_begin(struct kv_control *c)
{
    pthread_mutex_lock(&c->work);
}

void kv_control_end(struct kv_control *c)
{
    struct happened h[MAX_HAPPENED];
    kv_control_show(c);
    int32_t n = c->n_happened;
    memcpy(h, c->happened, sizeof *h * (size_t)n);
    c->n_happened = 0;
    pthread_mutex_unlock(&c->work);
    for (int32_t i = 0; i < n && c->config.on_event; i++) c->config.on_event(c->config.event_ctx, h[i].what, h[i].rollout, h[i].line);
}

/* ---------------------------------------------------------------- the tick */

/* No lock held. What is recorded may wait for a disk, so it is told before. */
static void fall_back(struct kv_control *c, uint64_t live, enum kv_status reason, const char *detail, const char *actor)
{
    pthread_mutex_lock(&c->state);
    bool still = c->live && c->live->r.id == live;
    pthread_mutex_unlock(&c->state);
    if (!still || !kv_control_fall_back(c, live, reason, detail, actor, NULL) || !c->config.on_event) return;
    char line[200];
    snprintf(line, sizeof line, "back on the exact baseline by %.40s: %.120s", actor, detail);
    c->config.on_event(c->config.event_ctx, KV_EVENT_LOG, live, line);
    c->config.on_event(c->config.event_ctx, KV_EVENT_ROLLOUT, live, line);
}

/* A latch that nobody told us of: a signal handler, or the engine itself. */
static void notice_latch(struct kv_control *c)
{
    pthread_mutex_lock(&c->state);
    uint64_t live = c->live && c->port.word(c->port.ctx).latched ? c->live->r.id : 0; /* in this order: a new rollout comes after the latch is gone */
    pthread_mutex_unlock(&c->state);
    if (live) fall_back(c, live, KV_OPERATOR_ROLLBACK, "the release word was latched", "signal");
}

/* After the rollback is written down and every sequence is back on the baseline, a new candidate may start. */
static void rearm(struct kv_control *c)
{
    struct kv_release_word w = c->port.word(c->port.ctx);
    pthread_mutex_lock(&c->state);
    bool wait = c->n_unrecorded > 0 || c->live;
    uint64_t epoch = c->epoch + 1;
    pthread_mutex_unlock(&c->state);
    struct kv_error err;
    if (!w.latched || wait || c->port.recomputing(c->port.ctx) > 0 || c->port.rearm(c->port.ctx, epoch, &err) != KV_OK) return;
    pthread_mutex_lock(&c->state);
    c->epoch = epoch;
    c->uninstall_due = true;
    pthread_mutex_unlock(&c->state);
    kv_control_at(c, KV_AT_REARMED);
    kv_control_note(c, KV_EVENT_LOG, 0, "every sequence is back on the exact baseline; epoch %llu", (unsigned long long)epoch);
}

static void uninstall(struct kv_control *c)
{
    pthread_mutex_lock(&c->state);
    bool due = c->uninstall_due && !c->live;
    uint64_t epoch = c->epoch + 1;
    pthread_mutex_unlock(&c->state);
    if (due && kv_control_install(c, epoch, NULL) == KV_OK) c->uninstall_due = false;
}

static bool verdicts_changed(const struct kv_control *c, const struct kv_gate_result *g, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (g[i].verdict != c->recorded[i].verdict || g[i].judged != c->recorded[i].judged) return true;
    return false;
}

static bool put_gates(struct kv_control *c, const struct entry *e, bool now)
{
    int64_t at = kv_control_monotonic(c);
    bool changed = verdicts_changed(c, e->gates, e->n_gates);
    if (!now && !(changed && at - c->recorded_us >= 1000000) && at - c->recorded_us < 60000000) return true;
    if (kv_store_put_gates(c->store, &e->r, e->gates, e->n_gates, kv_control_realtime(c), NULL) != KV_OK) return false;
    memcpy(c->recorded, e->gates, sizeof c->recorded);
    c->recorded_us = at;
    kv_control_note(c, KV_EVENT_ROLLOUT, e->r.id, "gates evaluated");
    return true;
}

/* work */
static void record_gates(struct kv_control *c)
{
    struct entry *copy = malloc(sizeof *copy);
    pthread_mutex_lock(&c->state);
    struct entry *failed = c->failed;
    c->failed = NULL;
    bool live = !failed && copy && c->live && c->live->r.stage != KV_STAGE_OFF;
    if (live) *copy = *c->live;
    pthread_mutex_unlock(&c->state);
    if (live) put_gates(c, copy, false);
    bool again = failed && !put_gates(c, failed, true);
    pthread_mutex_lock(&c->state);
    if (again && !c->failed) c->failed = failed, failed = NULL;
    pthread_mutex_unlock(&c->state);
    free(failed);
    free(copy);
}

/* Evaluates the live rollout's gates. A failed one falls back at once, before anything is recorded. */
static void judge(struct kv_control *c)
{
    struct kv_gate_result g[KV_MAX_GATES];
    int32_t n = 0, which = -1;
    enum kv_verdict v = KV_NO_DATA;
    pthread_mutex_lock(&c->evidence);
    pthread_mutex_lock(&c->state);
    struct entry *e = c->gates ? c->live : NULL;
    enum kv_stage stage = e ? e->r.stage : KV_STAGE_OFF;
    uint64_t judged = e ? e->r.id : 0;
    pthread_mutex_unlock(&c->state);
    if (e) n = kv_gates_evaluate(c->gates, stage, g);
    pthread_mutex_lock(&c->state);
    if (e && c->live == e) {
        memcpy(e->gates, g, sizeof *g * (size_t)n);
        e->n_gates = n;
        v = kv_gates_decide(g, n, &which);
    }
    struct entry *copy = v == KV_FAILED && !c->failed ? malloc(sizeof *copy) : NULL;
    if (copy) *copy = *e, c->failed = copy;
    pthread_mutex_unlock(&c->state);
    pthread_mutex_unlock(&c->evidence);
    if (v != KV_FAILED) return;
    char detail[160], actor[64];
    snprintf(detail, sizeof detail, "gate %s: %s", g[which].metric, g[which].detail);
    snprintf(actor, sizeof actor, "gate:%s", g[which].metric);
    fall_back(c, judged, !strcmp(g[which].metric, "exact_mismatches") ? KV_EXACT_MISMATCH : KV_GATE_FAILED, detail, actor);
}

static void watch_store(struct kv_control *c)
{
    struct kv_store_health h;
    kv_store_health(c->store, &h);
    if (!h.failing_since_us) return;
    int64_t failing_us = system_clock_us(CLOCK_MONOTONIC) - h.failing_since_us;
    pthread_mutex_lock(&c->state);
    uint64_t served = c->live && c->live->r.stage != KV_STAGE_OFF ? c->live->r.id : 0;
    pthread_mutex_unlock(&c->state);
    if (served && failing_us > (int64_t)c->config.store_patience_ms * 1000) fall_back(c, served, KV_STORE_UNAVAILABLE, "receipts could not be written for too long", "store");
}

static void watch(struct kv_control *c)
{
    pthread_mutex_lock(&c->evidence);
    kv_control_measure(c);
    pthread_mutex_unlock(&c->evidence);
    notice_latch(c);
    judge(c);
    watch_store(c);
    kv_control_show(c);
}

static void record(struct kv_control *c)
{
    kv_control_begin(c);
    kv_control_record_freeze(c);
    kv_control_write_samples(c);
    record_gates(c);
    kv_control_record_pending(c);
    rearm(c);
    uninstall(c);
    kv_control_ask_release(c);
    kv_control_tend_policies(c);
    kv_control_end(c);
}

void kv_control_tick(struct kv_control *c)
{
    watch(c);
    record(c);
}

static void run(struct kv_control *c, void (*tick)(struct kv_control *))
{
    pthread_mutex_lock(&c->state);
    while (!c->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(c->config.tick_ms % 1000) * 1000000L;
        until.tv_sec += c->config.tick_ms / 1000 + until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&c->wake, &c->state, &until);
        if (c->stop) break;
        pthread_mutex_unlock(&c->state);
        tick(c);
        pthread_mutex_lock(&c->state);
    }
    pthread_mutex_unlock(&c->state);
}

static void *run_watch(void *c)
{
    run(c, watch);
    return NULL;
}

static void *run_record(void *c)
{
    run(c, record);
    return NULL;
}

/* ---------------------------------------------------------------- creation */

enum kv_status kv_control_create(struct kv_release_port engine, struct kv_store *store, const struct kv_control_config *config,
                                 struct kv_control **out, struct kv_error *err)
{
    struct kv_control *c = calloc(1, sizeof *c);
    if (!c) return kv_fail(err, KV_OUT_OF_MEMORY, "control", "memory could not be had");
    c->port = engine;
    c->store = store;
    c->config = *config;
    if (c->config.tick_ms <= 0) c->config.tick_ms = 200;
    if (c->config.store_patience_ms <= 0) c->config.store_patience_ms = 10000;
    pthread_mutex_init(&c->work, NULL);
    pthread_mutex_init(&c->evidence, NULL);
    pthread_mutex_init(&c->state, NULL);
    pthread_mutex_init(&c->admission, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attr);
    pthread_condattr_destroy(&attr);
    c->metrics.second_us = kv_control_monotonic(c);
    c->kept = calloc(KV_REPLAY_ADMISSIONS, sizeof *c->kept);
    char path[1024];
    struct kv_intent_record last;
    snprintf(path, sizeof path, "%s/rollback.intent", kv_store_dir(store));
    enum kv_status st = c->kept ? kv_intent_open(path, &c->intent, &last, err) : kv_fail(err, KV_OUT_OF_MEMORY, "control", "memory could not be had");
    if (st == KV_OK) st = kv_control_load_policies(c, err);
    if (st == KV_OK) st = kv_control_resume(c, &last, err);
    if (st == KV_OK) st = kv_control_configured_policies(c, err);
    if (st == KV_OK) kv_control_show(c);
    if (st == KV_OK && !config->manual) {
        while (c->running < 2 && !pthread_create(&c->thread[c->running], NULL, c->running ? run_record : run_watch, c)) c->running++;
        if (c->running < 2) st = kv_fail(err, KV_OUT_OF_MEMORY, "control", "the control threads cannot be started");
    }
    if (st != KV_OK) {
        kv_control_destroy(c);
        return st;
    }
    *out = c;
    return KV_OK;
}

void kv_control_destroy(struct kv_control *c)
{
    if (!c) return;
    if (c->running) {
        pthread_mutex_lock(&c->state);
        c->stop = true;
        pthread_cond_broadcast(&c->wake);
        pthread_mutex_unlock(&c->state);
        for (int i = 0; i < c->running; i++) pthread_join(c->thread[i], NULL);
        kv_control_begin(c);
        kv_control_record_freeze(c);
        record_gates(c);
        kv_control_record_pending(c);
        pthread_mutex_unlock(&c->work);
    }
    for (int k = 0; k < KV_POLICY_KINDS; k++) kv_policy_free(c->script[k]);
    for (int32_t i = 0; i < c->n_rollouts; i++) free(c->rollout[i]);
    free(c->kept);
    free(c->failed);
    kv_gates_destroy(c->gates);
    kv_samples_close(c->samples_kept);
    kv_intent_close(c->intent);
    pthread_mutex_destroy(&c->work);
    pthread_mutex_destroy(&c->evidence);
    pthread_mutex_destroy(&c->state);
    pthread_mutex_destroy(&c->admission);
    pthread_cond_destroy(&c->wake);
    free(c);
}
