/* scheduler.c — what serving many costs beside the model's own work: the scheduler's share of an iteration at 256 live sequences, tokens in time
 * under ten times what fits, and what moving an 8K-token session out of memory and back adds to the tokens of those that run beside it, to other memory and
 * to disk.
 * usage: scheduler [MODEL.gguf [swap|disk]]: of the movements; the others take the model that ships; swap, disk: that movement alone. */
#include "runtime/residency/disk.h"
#include "runtime/service/engine.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LIVE = 256, PLACES = 16, QUEUE = 32, LOAD_S = 2, TURNS = 3, PROMPT = 64, ANSWER = 32, OUT = PLACES + QUEUE, SESSION = 8192, MATES = 4, SWAP_S = 16, MOST_TURNS = 64, WINDOWS = 9, MAX_GAPS = 1 << 17, CONTEXT = 9600 };

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

enum window { ALONE, MOVING, SWAP_WINDOWS };

/* Decode thread, but for `moving`. A gap counts when the session itself did not run in its iteration, neither with a token nor with rows that are computed
 * again: then the same runs in both windows, and the movement is all that differs. */
static struct {
    const struct kv_engine *e;
    _Atomic bool moving;
    bool was_moving[MATES];
    _Atomic int32_t n[SWAP_WINDOWS]; /* gaps below it stay as they are */
    int32_t tokens[MATES], from[SWAP_WINDOWS];
    int64_t last_us[MATES];
    float gap[SWAP_WINDOWS][MAX_GAPS];
} seen;

static void token(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    (void)position, (void)logits, (void)n_vocab;
    int who = *(int *)ctx;
    int64_t t_us = now_us();
    bool moving = atomic_load(&seen.moving), counts = seen.tokens[who]++; /* the first ends a prompt */
    enum window of = moving || seen.was_moving[who] ? MOVING : ALONE;
    for (int32_t i = 0; i < seen.e->n_items; i++) counts &= strcmp(((const struct kv_sequence *)seen.e->items[i].owner)->session, "long") != 0;
    if (counts && seen.n[of] < MAX_GAPS) {
        seen.gap[of][seen.n[of]] = (float)(t_us - seen.last_us[who]);
        atomic_fetch_add(&seen.n[of], 1);
    }
    seen.was_moving[who] = moving;
    seen.last_us[who] = t_us;
}

/* Of the gaps since it was asked last. */
static double p99(enum window of)
{
    int32_t end = atomic_load(&seen.n[of]), n = end - seen.from[of];
    float *gap = seen.gap[of] + seen.from[of];
    if (!n) fail("swap", "no token of the mates fell into one of the windows");
    qsort(gap, (size_t)n, sizeof *gap, by_value);
    seen.from[of] = end;
    return (double)gap[(size_t)(0.99 * n)];
}

struct turn {
    double moving, alone;
};

static int by_ratio(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;
    return (x->moving * y->alone > y->moving * x->alone) - (x->moving * y->alone < y->moving * x->alone);
}

static uint64_t bytes_of_row(const struct kv_model_info *i)
{
    return (uint64_t)i->n_layers * (uint64_t)i->n_kv_heads * (uint64_t)i->d_head * 4;
}

/* Until every one of them has a token: prompts are no part of what a movement costs. */
static void all_speak(struct kv_stream **s, int n)
{
    struct kv_request_stats st;
    for (int i = 0; i < n; i++)
        do wait_us(200), ended(s[i], &st);
        while (st.n_published < 2 && st.finish == KV_RUNNING);
}

static struct kv_stream *submit(struct kv_engine *e, const struct kv_request *r, const char *what)
{
    struct kv_stream *s;
    struct kv_error err = {0};
    if (kv_engine_submit(e, r, &s, &err) != KV_OK) fail(what, err.message);
    return s;
}

/* Blocks that are on disk already would not be written again. Erasing them is no part of a movement, and need not reach the device. */
static _Atomic bool erasing;

static ssize_t write_unless_erasing(int fd, const void *buf, size_t n, off_t at)
{
    return atomic_load(&erasing) ? (ssize_t)n : kv_disk_io_system.pwrite(fd, buf, n, at);
}

static int sync_unless_erasing(int fd)
{
    return atomic_load(&erasing) ? 0 : kv_disk_io_system.sync(fd);
}

static int punch_unless_erasing(int fd, off_t at, off_t n)
{
    return atomic_load(&erasing) ? 0 : kv_disk_io_system.punch(fd, at, n);
}

static void erase(struct kv_engine *e)
{
    struct kv_error err = {0};
    atomic_store(&erasing, true);
    if (kv_engine_session(e, KV_SESSION_DROP, "long", "long", NULL, &err) != KV_OK) fail("drop", err.message);
    atomic_store(&erasing, false);
}

/* Out, mates alone for as long, back, alone again. */
static struct kv_stream *move_once(struct kv_engine *e, struct kv_stream *s, struct kv_request r, int32_t context)
{
    static int32_t all[CONTEXT];
    struct kv_pause_view v = {0};
    struct kv_error err = {0};
    int64_t began_us = now_us();
    atomic_store(&seen.moving, true);
    if (kv_engine_pause(e, "long", "long", KV_PAUSE_SWAP, &v, &err) != KV_OK) fail("pause", err.message);
    for (; v.state != KV_SESSION_PAUSED_HOST; wait_us(200))
        if (kv_engine_paused(e, v.request, &v) != KV_OK) fail("pause", "it is gone");
    atomic_store(&seen.moving, false);
    kv_stream_close(s);
    for (int64_t until_us = 3 * now_us() - 2 * began_us; now_us() < until_us; wait_us(200)) /* as many gaps alone as on both ways, under the same looking on */
        (void)kv_engine_paused(e, v.request, &v);
    if (kv_engine_paused_tokens(e, v.request, all, CONTEXT, &r.n_prompt) != KV_OK) fail("tokens", "they are gone");
    r.prompt = all, r.max_tokens = context - r.n_prompt, r.resume = v.request;
    atomic_store(&seen.moving, true);
    s = submit(e, &r, "resume");
    while (kv_engine_paused(e, v.request, &v) == KV_OK) wait_us(200);
    if (!e->turns) atomic_store(&seen.moving, false);
    all_speak(&s, 1);
    atomic_store(&seen.moving, false);
    if (e->turns) erase(e);
    return s;
}

/* Memory as in a server that has run for a while: its pages are there. The engine is idle. */
static void wear_in(struct kv_engine *e)
{
    size_t n = 0, most = (size_t)(kv_arena_capacity_bytes(e->arena) / 4096 + 1);
    uint8_t **slab = malloc(most * sizeof *slab);
    while (slab && (slab[n] = kv_arena_take_raw(e->arena))) n++;
    for (size_t i = 0; i < n; i++) {
        while (!kv_arena_ready(e->arena, slab[i])) wait_us(200);
        kv_arena_give(e->arena, slab[i]);
    }
    free(slab);
}

/* disk: the rows go there; else to memory beside the arena. */
static void measure_swap(struct kv_model *m, bool disk)
{
    char folder[] = "/tmp/kvasir-bench-XXXXXX", remove[64];
    static int name[MATES];
    static int32_t prompt[CONTEXT], own[MATES][64];
    const struct kv_model_info *info = kv_model_info(m);
    int32_t context = info->context_length < CONTEXT ? info->context_length : CONTEXT, length = context > SESSION + 600 ? SESSION : context - 600;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.context_length = context;
    c.host_bytes = (uint64_t)context * (MATES + 2) * bytes_of_row(info);
    c.swap_bytes = (uint64_t)context * bytes_of_row(info);
    c.prefix_reuse = false;
    struct kv_disk_io io = kv_disk_io_system;
    io.pwrite = write_unless_erasing, io.sync = sync_unless_erasing, io.punch = punch_unless_erasing;
    if (disk) {
        if (!mkdtemp(folder)) fail(folder, "cannot be made");
        c.disk_path = folder, c.disk_bytes = 4 * c.swap_bytes + (UINT64_C(64) << 20), c.disk_key[0] = 1, c.disk_io = &io;
    }
    memset(&seen, 0, sizeof seen);
    struct kv_engine *e = make(m, &c);
    seen.e = e;
    wear_in(e);
    struct kv_stream *mate[MATES], *s;
    struct kv_request q = request(prompt, length, context - length, 5);
    q.session = q.tenant = "long";
    s = submit(e, &q, "the long session");
    all_speak(&s, 1);
    for (int i = 0; i < MATES; i++) {
        struct kv_request r = request(own[i], 64, context - 100, (uint32_t)i);
        name[i] = i;
        r.observe = token, r.observe_ctx = &name[i];
        mate[i] = submit(e, &r, "a mate");
    }
    all_speak(mate, MATES);
    /* The windows of a turn meet the same depth and the same machine, so each is judged beside its own; the first wears the other memory in. */
    struct turn turn[MOST_TURNS];
    int32_t n = 0;
    for (int64_t until_us = now_us() + SWAP_S * 1000000LL; n < MOST_TURNS && now_us() < until_us;) {
        s = move_once(e, s, q, context);
        turn[n].moving = p99(MOVING), turn[n].alone = p99(ALONE);
        n++;
    }
    for (int i = 0; i < MATES; i++) kv_stream_close(mate[i]);
    kv_stream_close(s);
    kv_engine_destroy(e);
    snprintf(remove, sizeof remove, "rm -rf %s", folder);
    if (disk && system(remove)) fail(folder, "cannot be removed");
    if (n < 2) fail("swap", "too slow for two turns");
    fprintf(stderr, "scheduler: %s, p99 in us moving and alone, by turn:", disk ? "disk" : "memory");
    for (int i = 0; i < n; i++) fprintf(stderr, " %.0f/%.0f", turn[i].moving, turn[i].alone);
    fprintf(stderr, "\n");
    qsort(turn + 1, (size_t)(n - 1), sizeof *turn, by_ratio);
    char what[64];
    snprintf(what, sizeof what, "scheduler/swap-%s%d/p99", disk ? "disk-" : "", (int)length);
    row(what, turn[1 + (n - 1) / 2].moving, "us", turn[1 + (n - 1) / 2].alone);
}

int main(int argc, char **argv)
{
    struct kv_model *m = open_model("models/kvasir-demo-q8_0.gguf"), *large = argc > 1 ? open_model(argv[1]) : m;
    if (argc < 3) {
        double share = share_at(m);
        row("scheduler/iteration/live-256", 100 * share, "% of the step", 0);
        measure_goodput(m);
    }
    if (argc < 3 || !strcmp(argv[2], "swap")) measure_swap(large, false);
    if (argc < 3 || !strcmp(argv[2], "disk")) measure_swap(large, true);
    if (large != m) kv_model_close(large);
    kv_model_close(m);
    return 0;
}
