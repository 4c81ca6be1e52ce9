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
#include <unistd.h>

enum { LIVE = 256, PLACES = 16, QUEUE = 32, LOAD_S = 2, TURNS = 3, PROMPT = 64, ANSWER = 32, OUT = PLACES + QUEUE, SESSION = 8192, MATES = 4, MATE_TOKENS = 6000,
       SWAP_S = 24, DISK_S = 34, SWAPS = 10, WINDOWS = 9, MAX_GAPS = 1 << 14, CONTEXT = 9600 };

static const double MOST_FOREIGN = 0.04; /* of a processor, that others may have in a turn that counts */

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

/* Each movement beside as many gaps alone, half of them before it and half after: the mates grow longer and slower, and machines change their pace. */
enum window { OUT_OF, BACK, BESIDE_OUT, BESIDE_BACK, SWAP_WINDOWS, BETWEEN = SWAP_WINDOWS };
static const char *const window_name[SWAP_WINDOWS] = {"out", "in", "beside out", "beside in"};

/* Decode thread, but for `window`. A gap counts when the session itself did not run in its iteration, neither with a token nor with rows that are computed
 * again: then the same runs in all windows, and the movement is all that differs. One mate stands for all: they have their tokens at the same times. */
static struct {
    const struct kv_engine *e;
    _Atomic int window;
    int before;
    _Atomic int32_t n[SWAP_WINDOWS]; /* gaps below it stay as they are */
    int32_t tokens;
    int64_t last_us;
    float gap[SWAP_WINDOWS][MAX_GAPS];
} seen;

static void token(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    (void)ctx, (void)position, (void)logits, (void)n_vocab;
    int64_t t_us = now_us();
    int now = atomic_load(&seen.window), of = now == OUT_OF || now == BACK || seen.before > BACK ? now : seen.before;
    bool counts = seen.tokens++ && of != BETWEEN; /* the first ends a prompt */
    for (int32_t i = 0; i < seen.e->n_items; i++) counts &= strcmp(((const struct kv_sequence *)seen.e->items[i].owner)->session, "long") != 0;
    if (counts && seen.n[of] < MAX_GAPS) {
        seen.gap[of][seen.n[of]] = (float)(t_us - seen.last_us);
        atomic_fetch_add(&seen.n[of], 1);
    }
    seen.before = now;
    seen.last_us = t_us;
}

static uint64_t bytes_of_row(const struct kv_model_info *i)
{
    return (uint64_t)i->n_layers * (uint64_t)i->n_kv_heads * (uint64_t)i->d_head * 4;
}

/* Until it has a token: prompts are no part of what a movement costs. */
static void speaks(struct kv_stream *s)
{
    struct kv_request_stats st;
    do wait_us(2000), ended(s, &st);
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
    kv_engine_forget_session(e, "long", "long", true); /* it runs on, and goes there again */
    atomic_store(&erasing, false);
}

static void await_gaps(enum window of, int32_t n)
{
    atomic_store(&seen.window, of);
    for (n += atomic_load(&seen.n[of]); atomic_load(&seen.n[of]) < n;) wait_us(2000);
}

static struct kv_pause_view pause_long(struct kv_engine *e, struct kv_stream **s, enum kv_pause_action how, enum kv_session_state then)
{
    struct kv_pause_view v = {0};
    struct kv_error err = {0};
    if (kv_engine_pause(e, "long", "long", how, &v, &err) != KV_OK) fail("pause", err.message);
    for (; v.state != then; wait_us(2000))
        if (kv_engine_paused(e, v.request, &v) != KV_OK) fail("pause", "it is gone");
    kv_stream_close(*s);
    return v;
}

static struct kv_stream *resume_long(struct kv_engine *e, struct kv_pause_view v, struct kv_request r, int32_t context, enum window of)
{
    static int32_t all[CONTEXT];
    struct kv_engine_stats then, now;
    kv_engine_stats(e, &then);
    if (kv_engine_paused_tokens(e, v.request, all, CONTEXT, &r.n_prompt) != KV_OK) fail("tokens", "they are gone");
    r.prompt = all, r.max_tokens = context - r.n_prompt, r.resume = v.request;
    atomic_store(&seen.window, of);
    struct kv_stream *s = submit(e, &r, "resume");
    while (kv_engine_paused(e, v.request, &v) == KV_OK) wait_us(2000);
    if (!e->turns) atomic_store(&seen.window, BETWEEN);
    speaks(s);
    atomic_store(&seen.window, BETWEEN);
    kv_engine_stats(e, &now);
    if (e->turns && of == BACK && now.turns.restored_tokens - then.turns.restored_tokens < (uint64_t)(r.n_prompt - 2 * KV_BLOCK_ROWS)) fail("resume", "its rows were computed again");
    return s;
}

/* From a pause without movement to the next one. */
static struct kv_pause_view move_once(struct kv_engine *e, struct kv_pause_view v, struct kv_request r, int32_t context, int32_t *half)
{
    await_gaps(BESIDE_OUT, *half);
    struct kv_stream *s = resume_long(e, v, r, context, BETWEEN);
    int32_t before = atomic_load(&seen.n[OUT_OF]);
    atomic_store(&seen.window, OUT_OF);
    v = pause_long(e, &s, KV_PAUSE_SWAP, KV_SESSION_PAUSED_HOST);
    *half = (atomic_load(&seen.n[OUT_OF]) - before) / 2;
    await_gaps(BESIDE_OUT, *half);
    await_gaps(BESIDE_BACK, *half);
    s = resume_long(e, v, r, context, BACK);
    if (e->turns) erase(e);
    v = pause_long(e, &s, KV_PAUSE_PRESERVE, KV_SESSION_PAUSED_GPU);
    await_gaps(BESIDE_BACK, *half);
    atomic_store(&seen.window, BETWEEN);
    return v;
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

/* Rows of the session's prompt, for the index of prefixes to find instead of computing them: what moving costs depends on how many they are, and on what
 * is in them not at all, but that bytes of a cipher's input must not all be one. The engine is idle. */
static void make_rows(struct kv_engine *e, const struct kv_request *r)
{
    struct kv_prefix_digest prefix;
    struct kv_chunk_digest key, parent;
    struct kv_chunk_identity base = e->prefix_base;
    uint8_t *slab[256];
    int32_t layers = e->info->n_layers;
    uint64_t x = 1;
    memset(base.tenant, 0, sizeof base.tenant);
    memcpy(base.tenant, r->tenant, strlen(r->tenant));
    for (int32_t b = 0; layers <= 256 && b < r->n_prompt / KV_BLOCK_ROWS; b++, parent = key) {
        prefix = kv_prefix_extend(b ? &prefix : NULL, r->prompt + (size_t)b * KV_BLOCK_ROWS, KV_BLOCK_ROWS);
        key = kv_prefix_key(&base, &prefix, b);
        for (int32_t l = 0; l < layers; l++) {
            uint64_t *v = (uint64_t *)(slab[l] = kv_arena_take_raw(e->arena)), *end = v + kv_slab_bytes(KV_ROW_TYPE, e->info->n_kv_heads, e->info->d_head) / 8;
            while (v < end) *v++ = ((x = x * UINT64_C(6364136223846793005) + 1) & UINT64_C(0x83ff83ff83ff83ff)) | UINT64_C(0x3000300030003000); /* fp16 of magnitude 1/8 to 1/4 */
        }
        kv_prefix_put(e->prefix, e->arena, &key, b ? &parent : NULL, slab, 1);
        for (int32_t l = 0; l < layers; l++) kv_arena_give(e->arena, slab[l]); /* the index holds them */
    }
}

/* Time of the processors that others had. */
static int64_t foreign_us(void)
{
    long long v[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    if (!f || fscanf(f, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]) != 8) fail("/proc/stat", "it tells nothing of the processors");
    fclose(f);
    return (v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) * (1000000 / sysconf(_SC_CLK_TCK)) - spent_us(CLOCK_PROCESS_CPUTIME_ID);
}

/* In parts of the median of those beside them. Returns the one of all these. */
static float in_parts(const int32_t from[SWAP_WINDOWS])
{
    float usual[2];
    for (int w = OUT_OF; w <= BACK; w++) {
        static float alone[MAX_GAPS];
        int beside = w + BESIDE_OUT - OUT_OF;
        int32_t n = seen.n[beside] - from[beside];
        if (n <= 0) fail("swap", "no token of the mates fell into one of the windows");
        memcpy(alone, seen.gap[beside] + from[beside], (size_t)n * sizeof *alone);
        qsort(alone, (size_t)n, sizeof *alone, by_value);
        usual[w] = alone[n / 2];
        for (int32_t i = from[w]; i < seen.n[w]; i++) seen.gap[w][i] /= usual[w];
        for (int32_t i = from[beside]; i < seen.n[beside]; i++) seen.gap[beside][i] /= usual[w];
    }
    return (usual[OUT_OF] + usual[BACK]) / 2;
}

/* p99 of each window, all turns together, as parts of an iteration alone. */
static void tell(const char *where, int turns, float usual_us, double p99[SWAP_WINDOWS])
{
    for (int w = 0; w < SWAP_WINDOWS; w++) {
        int32_t n = seen.n[w];
        float *g = seen.gap[w];
        double mean = 0;
        qsort(g, (size_t)n, sizeof *g, by_value);
        for (int32_t i = 0; i < n; i++) mean += (double)g[i] / n;
        p99[w] = (double)g[(size_t)(0.99 * n)];
        fprintf(stderr, "scheduler: %s, %d turns, %-10s %5d gaps of %.0f us times: mean %.3f  p50 %.3f  p90 %.3f  p99 %.3f  most %.3f\n", where, turns, window_name[w], n, (double)usual_us, mean,
                (double)g[n / 2], (double)g[(size_t)(0.9 * n)], p99[w], (double)g[n - 1]);
    }
}

/* disk: the rows go there; else to memory beside the arena. */
static void measure_swap(struct kv_model *m, bool disk)
{
    char folder[] = "/tmp/kvasir-bench-XXXXXX", command[64], what[64];
    static int32_t prompt[CONTEXT], own[MATES][PROMPT];
    const struct kv_model_info *info = kv_model_info(m);
    int32_t context = info->context_length < CONTEXT ? info->context_length : CONTEXT, length = context > SESSION + 600 ? SESSION : context - 600;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.context_length = context;
    c.host_bytes = ((uint64_t)context * 2 + MATES * MATE_TOKENS + (MATES + 2) * KV_BLOCK_ROWS) * bytes_of_row(info);
    c.swap_bytes = (uint64_t)context * bytes_of_row(info);
    struct kv_disk_io io = kv_disk_io_system;
    io.pwrite = write_unless_erasing, io.sync = sync_unless_erasing, io.punch = punch_unless_erasing;
    if (disk) {
        if (!mkdtemp(folder)) fail(folder, "cannot be made");
        c.disk_path = folder, c.disk_bytes = 4 * c.swap_bytes + (UINT64_C(64) << 20), c.disk_key[0] = 1, c.disk_io = &io;
    }
    memset(&seen, 0, sizeof seen);
    atomic_store(&seen.window, seen.before = BETWEEN);
    struct kv_engine *e = make(m, &c);
    seen.e = e;
    wear_in(e);
    struct kv_stream *mate[MATES], *s;
    struct kv_request q = request(prompt, length, context - length, 5);
    q.session = q.tenant = "long";
    make_rows(e, &q);
    s = submit(e, &q, "the long session");
    speaks(s);
    e->config.prefix_reuse = false; /* it comes back from where it went */
    kv_engine_forget_session(e, "long", "", false); /* the prefixes */
    for (int i = 0; i < MATES; i++) {
        struct kv_request r = request(own[i], PROMPT, MATE_TOKENS - PROMPT, (uint32_t)i);
        if (i == 0) r.observe = token;
        speaks(mate[i] = submit(e, &r, "a mate"));
    }
    int32_t half = 20, turns = 0, disturbed = 0, from[SWAP_WINDOWS] = {0};
    float usual_us[SWAPS];
    struct kv_request_stats st;
    struct kv_pause_view v = pause_long(e, &s, KV_PAUSE_PRESERVE, KV_SESSION_PAUSED_GPU);
    v = move_once(e, v, q, context, &half); /* wears the other memory in */
    for (int w = 0; w < SWAP_WINDOWS; w++) seen.n[w] = 0;
    for (int64_t until_us = now_us() + (disk ? DISK_S : SWAP_S) * 1000000LL; turns < SWAPS && now_us() < until_us && !ended(mate[0], &st); turns++) {
        int64_t began_us = now_us(), foreign = foreign_us();
        for (int w = 0; w < SWAP_WINDOWS; w++) from[w] = seen.n[w];
        v = move_once(e, v, q, context, &half);
        usual_us[turns] = in_parts(from);
        if ((double)(foreign_us() - foreign) < MOST_FOREIGN * (double)(now_us() - began_us)) continue;
        for (int w = 0; w < SWAP_WINDOWS; w++) seen.n[w] = from[w];
        disturbed++, turns--; /* others had more than MOST_FOREIGN */
    }
    for (int i = 0; i < MATES; i++) kv_stream_close(mate[i]);
    kv_engine_destroy(e);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (disk && system(command)) fail(folder, "cannot be removed");
    if (turns < SWAPS) fprintf(stderr, "scheduler: time for %d of %d turns; %d more were left out, in which others had more than %.0f %% of a processor\n", turns, SWAPS, disturbed, 100 * MOST_FOREIGN);
    if (!turns) return;
    double p99[SWAP_WINDOWS];
    qsort(usual_us, (size_t)turns, sizeof *usual_us, by_value);
    float usual = usual_us[turns / 2];
    tell(disk ? "disk" : "memory", turns, usual, p99);
    for (int w = OUT_OF; w <= BACK; w++) {
        snprintf(what, sizeof what, "scheduler/swap-%s%d/%s-p99", disk ? "disk-" : "", (int)length, window_name[w]);
        row(what, p99[w] * (double)usual, "us", p99[w + BESIDE_OUT - OUT_OF] * (double)usual);
    }
    snprintf(what, sizeof what, "scheduler/alone-%s%d/p99", disk ? "disk-" : "", (int)length); /* what two of the same differ by */
    row(what, p99[BESIDE_BACK] * (double)usual, "us", p99[BESIDE_OUT] * (double)usual);
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
