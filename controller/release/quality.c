/* quality.c — the thread that scores held-out prompts. */
#include "controller/release/quality.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TICK_MS = 100, READ_MS = 100, CHUNKS = 16 };
static const char tenant[] = "kvasir:quality"; /* a namespace of its own: no traffic finds rows of it, nor it of theirs */

struct kv_quality {
    struct kv_quality_config config;
    struct kv_heldout set;
    double *baseline;            /* [set.n] scores, NAN: not asked yet */
    uint64_t rollout, epoch;     /* of the step in work */
    int32_t asked, start, stride;
    pthread_t thread;
    bool running, stop;          /* stop: lock */
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

static bool stopping(struct kv_quality *q)
{
    pthread_mutex_lock(&q->lock);
    bool stop = q->stop;
    pthread_mutex_unlock(&q->lock);
    return stop;
}

static void rest(struct kv_quality *q, int64_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&q->lock);
    while (!q->stop && pthread_cond_timedwait(&q->wake, &q->lock, &until) == 0) {}
    pthread_mutex_unlock(&q->lock);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---------------------------------------------------------------- one prompt under one arm */

/* False when it did not come to its end, or not all of it on the arm that was asked. */
static bool score(struct kv_quality *q, const struct kv_heldout_item *it, const struct kv_quality_task *arm, double *out)
{
    struct kv_request r = {.prompt = it->ids, .n_prompt = it->n_prompt, .max_tokens = it->n_answer, .force = it->ids + it->n_prompt, .n_force = it->n_answer,
                           .n_logprobs = 1, .ignore_eos = true, .tenant = tenant, .class = "quality", .probe = true,
                           .sampling = {.top_p = 1, .repetition_penalty = 1}};
    if (arm) r.candidate = arm->rollout, r.epoch = arm->epoch, r.contract = arm->contract;
    struct kv_stream *s = NULL;
    if (kv_engine_submit(q->config.engine, &r, &s, NULL) != KV_OK) return false;
    struct kv_chunk chunk[CHUNKS];
    enum kv_finish finish = KV_RUNNING;
    double sum = 0;
    int32_t n = 0, got = CHUNKS;
    bool every = true, likeliest = true;
    while (every && (finish == KV_RUNNING || got == CHUNKS)) {
        if (stopping(q) || kv_stream_read(s, chunk, CHUNKS, READ_MS, &got, &finish) != KV_OK) break;
        for (int32_t i = 0; i < got; i++, n++) {
            every &= chunk[i].candidate == r.candidate;
            likeliest &= chunk[i].n_top > 0 && chunk[i].top_id[0] == chunk[i].token;
            sum += (double)chunk[i].logprob;
        }
    }
    kv_stream_close(s);
    *out = it->exact ? likeliest : exp(sum / it->n_answer);
    return every && n == it->n_answer && *out == *out;
}

/* ---------------------------------------------------------------- the order of a step */

static int32_t gcd(int32_t a, int32_t b)
{
    while (b) {
        int32_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

static void begin(struct kv_quality *q, const struct kv_quality_task *t)
{
    uint64_t x = (t->rollout * UINT64_C(0x9e3779b97f4a7c15)) ^ (t->epoch * UINT64_C(0xbf58476d1ce4e5b9));
    x ^= x >> 29;
    q->rollout = t->rollout;
    q->epoch = t->epoch;
    q->asked = 0;
    q->start = (int32_t)(x % (uint64_t)q->set.n);
    q->stride = (int32_t)(1 + (x >> 32) % (uint64_t)q->set.n);
    while (gcd(q->stride, q->set.n) != 1) q->stride++;
}

static void ask(struct kv_quality *q, const struct kv_quality_task *t)
{
    int32_t i = (int32_t)(((int64_t)q->asked * q->stride + q->start) % q->set.n);
    double candidate;
    if (isnan(q->baseline[i]) && !score(q, &q->set.item[i], NULL, &q->baseline[i])) {
        q->baseline[i] = NAN;
        return;
    }
    if (!score(q, &q->set.item[i], t, &candidate)) return; /* asked again, unless the step is over by then */
    q->asked++;
    kv_control_quality(q->config.control, t, q->baseline[i], candidate);
}

static void *run(void *ctx)
{
    struct kv_quality *q = ctx;
    struct kv_quality_task t;
    struct kv_engine_stats stats;
    while (!stopping(q)) {
        int64_t pause = TICK_MS;
        kv_engine_stats(q->config.engine, &stats);
        if (stats.queued == 0 && kv_control_quality_wanted(q->config.control, &t)) {
            if (t.rollout != q->rollout || t.epoch != q->epoch) begin(q, &t);
            int64_t start = now_ms();
            if (q->asked < q->set.n) {
                ask(q, &t);
                pause = (int64_t)((double)(now_ms() - start) * (1 / q->config.share - 1));
            }
        }
        rest(q, pause);
    }
    return NULL;
}

/* ---------------------------------------------------------------- life */

enum kv_status kv_quality_create(const struct kv_quality_config *c, struct kv_quality **out, struct kv_error *err)
{
    struct kv_quality *q = calloc(1, sizeof *q);
    if (!q) return kv_fail(err, KV_OUT_OF_MEMORY, "quality", "memory could not be had");
    q->config = *c;
    q->config.prompts = NULL;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->wake, &attr);
    pthread_condattr_destroy(&attr);
    enum kv_status st = kv_heldout_load(c->prompts, c->model, c->context_length ? c->context_length : kv_model_info(c->model)->context_length, &q->set, err);
    if (st == KV_OK && !(q->baseline = malloc(sizeof *q->baseline * (size_t)q->set.n))) st = kv_fail(err, KV_OUT_OF_MEMORY, "quality", "memory could not be had");
    for (int32_t i = 0; st == KV_OK && i < q->set.n; i++) q->baseline[i] = NAN;
    if (st == KV_OK) q->running = pthread_create(&q->thread, NULL, run, q) == 0;
    if (st == KV_OK && !q->running) st = kv_fail(err, KV_OUT_OF_MEMORY, "quality", "the thread that scores prompts cannot be started");
    if (st == KV_OK) *out = q;
    else kv_quality_destroy(q);
    return st;
}

void kv_quality_destroy(struct kv_quality *q)
{
    if (!q) return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
    if (q->running) pthread_join(q->thread, NULL);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->wake);
    kv_heldout_free(&q->set);
    free(q->baseline);
    free(q);
}
