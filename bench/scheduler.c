/* scheduler.c — what serving many costs beside the model's own work: the scheduler's share of an iteration at 256 live sequences, tokens in time
 * under ten times what fits, and what moving an 8K-token session out of memory and back adds to the tokens of those that run beside it.
 * usage: scheduler [MODEL.gguf]: of the last measurement; the others take the model that ships. */
#include "runtime/kvasir.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LIVE = 256, PLACES = 16, QUEUE = 32, LOAD_S = 2, TURNS = 3, PROMPT = 64, ANSWER = 32, OUT = PLACES + QUEUE, SESSION = 8192, MATES = 4, SWAP_S = 12, WINDOWS = 9, MAX_GAPS = 1 << 17, CONTEXT = 9600 };

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "scheduler: %s: %s\n", what, why);
    exit(1);
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Time of the processor: other work on the machine adds to the clock and not to this. */
static int64_t spent_us(clockid_t of)
{
    struct timespec t;
    clock_gettime(of, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void wait_us(int64_t us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void row(const char *name, double value, const char *unit, double floor)
{
    printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"floor\":", name, value, unit);
    if (floor > 0) printf("%.6g,\"ratio\":%.4g}\n", floor, !strcmp(unit, "tokens/cpu-s") ? value / floor : floor / value);
    else printf("null,\"ratio\":null}\n");
    fflush(stdout);
}

static struct kv_model *open_model(const char *path)
{
    struct kv_model *m;
    struct kv_error err = {0};
    if (kv_model_open(path, NULL, &m, &err) != KV_OK) fail(path, err.message);
    return m;
}

static struct kv_engine *make(struct kv_model *m, const struct kv_engine_config *c)
{
    struct kv_engine *e;
    struct kv_error err = {0};
    if (kv_engine_create(m, c, &e, &err) != KV_OK) fail("engine", err.message);
    return e;
}

static struct kv_request request(int32_t *prompt, int32_t n, int32_t answer, uint32_t seed)
{
    for (int32_t i = 0; i < n; i++) prompt[i] = 300 + (int32_t)((seed = seed * 1664525u + 1013904223u) >> 10) % 500;
    return (struct kv_request){.prompt = prompt, .n_prompt = n, .max_tokens = answer, .ignore_eos = true, .sampling = {.top_p = 1, .repetition_penalty = 1}};
}

static bool ended(struct kv_stream *s, struct kv_request_stats *st)
{
    kv_stream_stats(s, st);
    return st->finish != KV_RUNNING;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* ---------------------------------------------------------------- the scheduler's share */

static double share_at(struct kv_model *m)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.max_sequences = LIVE;
    c.max_queue = LIVE;
    c.host_bytes = UINT64_C(1) << 30;
    struct kv_engine *e = make(m, &c);
    struct kv_stream *s[LIVE];
    struct kv_engine_stats a, b;
    struct kv_error err = {0};
    int32_t prompt[16];
    float share[WINDOWS];
    for (int i = 0; i < LIVE; i++) {
        struct kv_request q = request(prompt, 16, 600, (uint32_t)i);
        if (kv_engine_submit(e, &q, &s[i], &err) != KV_OK) fail("submit", err.message);
    }
    do kv_engine_stats(e, &a);
    while (a.active < LIVE || a.published_tokens < 2 * LIVE);
    for (int k = 0; k < WINDOWS; k++) { /* the median of several: a thread that was put aside says nothing about the scheduler */
        do {
            wait_us(20000);
            kv_engine_stats(e, &b);
        } while (b.iterations < a.iterations + 8 && b.active == LIVE);
        if (b.active != LIVE) fail("sequences", "some ended during the measurement");
        share[k] = (float)((double)(b.schedule_ns - a.schedule_ns) / (double)(b.step_ns - a.step_ns));
        a = b;
    }
    qsort(share, WINDOWS, sizeof *share, by_value);
    for (int i = 0; i < LIVE; i++) kv_stream_close(s[i]);
    kv_engine_destroy(e);
    return (double)share[WINDOWS / 2];
}

/* ---------------------------------------------------------------- goodput */

/* Tokens of answers that came within their deadline, by second of the processors' time. Requests arrive at `per_s`; 0: one comes as soon as there is a place for it. */
static double offer(struct kv_engine *e, double per_s, int64_t deadline_us)
{
    struct kv_stream *out[OUT] = {0};
    struct kv_request_stats st;
    struct kv_error err = {0};
    int32_t prompt[PROMPT], n_out = 0, most = per_s > 0 ? OUT : PLACES;
    uint64_t offered = 0, tokens = 0;
    int64_t began_us = now_us(), before_us = spent_us(CLOCK_PROCESS_CPUTIME_ID), t_us;
    while ((t_us = now_us() - began_us) < LOAD_S * 1000000) {
        for (int32_t i = 0; i < n_out;) {
            if (!ended(out[i], &st)) {
                i++;
                continue;
            }
            if (st.finish == KV_FINISH_LENGTH) tokens += (uint64_t)st.n_published;
            kv_stream_close(out[i]);
            out[i] = out[--n_out];
        }
        while (per_s > 0 ? (double)offered < (double)t_us / 1e6 * per_s : n_out < most) {
            struct kv_request q = request(prompt, PROMPT, ANSWER, (uint32_t)offered++ * 7919u + (per_s > 0));
            if (deadline_us) q.deadline_us = now_us() + deadline_us;
            if (n_out < OUT && kv_engine_submit(e, &q, &out[n_out], &err) == KV_OK) n_out++;
        }
        wait_us(500);
    }
    double goodput = (double)tokens * 1e6 / (double)(spent_us(CLOCK_PROCESS_CPUTIME_ID) - before_us);
    while (n_out) kv_stream_close(out[--n_out]);
    return goodput;
}

static void measure_goodput(struct kv_model *m)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.max_sequences = PLACES;
    c.max_queue = QUEUE;
    c.prefix_reuse = false;
    struct kv_engine *e = make(m, &c);
    double peak = 0, over = 0;
    for (int turn = 0; turn < TURNS; turn++) { /* in turn, so that both meet the same machine; the best of each */
        peak = fmax(peak, offer(e, 0, 0));
        over = fmax(over, offer(e, 20 * peak / ANSWER, (int64_t)(8e6 * OUT * ANSWER / peak))); /* eight times what a full queue takes of the processors */
    }
    row("scheduler/goodput/ten-times", over, "tokens/cpu-s", peak);
    kv_engine_destroy(e);
}

/* ---------------------------------------------------------------- a session that moves */

enum phase { UNSEEN, ALONE, OUT_OF, BACK, PHASES };

static struct {
    _Atomic int phase;
    int32_t n[PHASES];
    int64_t last_us[MATES];
    int last_phase[MATES];
    float held[MATES]; /* a gap on the way back counts when another follows: in the last one the session itself runs again */
    float gap[PHASES][MAX_GAPS];
} seen;

static void count(int phase, float us)
{
    if (us > 0 && seen.n[phase] < MAX_GAPS) seen.gap[phase][seen.n[phase]++] = us;
}

/* Decode thread. A gap belongs to a phase when both its ends do. */
static void token(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    (void)position, (void)logits, (void)n_vocab;
    int mate = *(int *)ctx, phase = atomic_load(&seen.phase);
    int64_t t_us = spent_us(CLOCK_THREAD_CPUTIME_ID);
    float us = (float)(t_us - seen.last_us[mate]);
    bool whole = phase != UNSEEN && phase == seen.last_phase[mate];
    if (whole && phase == BACK) count(BACK, seen.held[mate]), seen.held[mate] = us;
    else if (whole) count(phase, us);
    if (!whole) seen.held[mate] = 0;
    seen.last_us[mate] = t_us;
    seen.last_phase[mate] = phase;
}

static double p99(float *gap, int32_t n)
{
    qsort(gap, (size_t)n, sizeof *gap, by_value);
    return n ? (double)gap[(size_t)(0.99 * n)] : 0;
}

static uint64_t bytes_of_row(const struct kv_model_info *i)
{
    return (uint64_t)i->n_layers * (uint64_t)i->n_kv_heads * (uint64_t)i->d_head * 4;
}

static void measure_swap(struct kv_model *m)
{
    static int name[MATES];
    static int32_t prompt[CONTEXT], all[CONTEXT];
    const struct kv_model_info *info = kv_model_info(m);
    int32_t context = info->context_length < CONTEXT ? info->context_length : CONTEXT, length = context > SESSION + 600 ? SESSION : context - 600, n = length;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.context_length = context;
    c.host_bytes = (uint64_t)context * (MATES + 2) * bytes_of_row(info);
    c.swap_bytes = (uint64_t)context * bytes_of_row(info);
    c.prefix_reuse = false;
    struct kv_engine *e = make(m, &c);
    struct kv_stream *mate[MATES], *s;
    struct kv_request_stats st;
    struct kv_pause_view v = {0};
    struct kv_error err = {0};
    struct kv_request q = request(prompt, length, context - length, 5);
    q.session = q.tenant = "long";
    if (kv_engine_submit(e, &q, &s, &err) != KV_OK) fail("the long session", err.message);
    do ended(s, &st);
    while (st.n_published < 2);
    for (int i = 0; i < MATES; i++) {
        static int32_t own[MATES][64];
        struct kv_request r = request(own[i], 64, context - 100, (uint32_t)i);
        name[i] = i;
        r.observe = token;
        r.observe_ctx = &name[i];
        if (kv_engine_submit(e, &r, &mate[i], &err) != KV_OK) fail("a mate", err.message);
    }
    for (int64_t until_us = now_us() + SWAP_S * 1000000LL; now_us() < until_us;) {
        if (kv_engine_pause(e, "long", "long", KV_PAUSE_SWAP, &v, &err) != KV_OK) fail("pause", err.message);
        atomic_store(&seen.phase, OUT_OF);
        int64_t began_us = now_us();
        for (; v.state != KV_SESSION_PAUSED_HOST; wait_us(200))
            if (kv_engine_paused(e, v.request, &v) != KV_OK) fail("pause", "it is gone");
        atomic_store(&seen.phase, UNSEEN);
        int64_t moving_us = now_us() - began_us;
        kv_stream_close(s);
        atomic_store(&seen.phase, ALONE);
        wait_us(moving_us > 400000 ? moving_us : 400000); /* as long: a tail of few gaps is none */
        if (kv_engine_paused_tokens(e, v.request, all, CONTEXT, &n) != KV_OK) fail("tokens", "they are gone");
        struct kv_request r = q;
        r.prompt = all, r.n_prompt = n, r.max_tokens = context - n, r.resume = v.request;
        atomic_store(&seen.phase, BACK);
        if (kv_engine_submit(e, &r, &s, &err) != KV_OK) fail("resume", err.message);
        while (kv_engine_paused(e, v.request, &v) == KV_OK) wait_us(200);
        atomic_store(&seen.phase, UNSEEN);
        do ended(s, &st), wait_us(200);
        while (st.n_published < 2 && st.finish == KV_RUNNING);
    }
    memcpy(seen.gap[OUT_OF] + seen.n[OUT_OF], seen.gap[BACK], (size_t)(seen.n[BACK] < MAX_GAPS - seen.n[OUT_OF] ? seen.n[BACK] : MAX_GAPS - seen.n[OUT_OF]) * sizeof(float));
    double moving = p99(seen.gap[OUT_OF], seen.n[OUT_OF] + seen.n[BACK]), alone = p99(seen.gap[ALONE], seen.n[ALONE]);
    if (!seen.n[ALONE] || !(seen.n[OUT_OF] + seen.n[BACK])) fail("swap", "the session moved between two tokens");
    fprintf(stderr, "scheduler: %d gaps while it moved out, %d back, %d of the mates alone\n", (int)seen.n[OUT_OF], (int)seen.n[BACK], (int)seen.n[ALONE]);
    char what[64];
    snprintf(what, sizeof what, "scheduler/swap-%d/p99", (int)length);
    row(what, moving, "us", alone);
    kv_stream_close(s);
    for (int i = 0; i < MATES; i++) kv_stream_close(mate[i]);
    kv_engine_destroy(e);
}

int main(int argc, char **argv)
{
    struct kv_model *m = open_model("models/kvasir-demo-q8_0.gguf"), *large = argc > 1 ? open_model(argv[1]) : m;
    double share = share_at(m);
    row("scheduler/iteration/live-256", 100 * share, "% of the step", 0);
    measure_goodput(m);
    measure_swap(large);
    if (large != m) kv_model_close(large);
    kv_model_close(m);
    return 0;
}
