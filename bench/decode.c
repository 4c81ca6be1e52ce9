/* decode.c — tokens per second of the serving engine on one GGUF: decode at given depths, prefill of 512, a batch of 8; with the floor
 * that memory sets, measured in the same run. One JSON line per figure.
 *
 * The rows of a depth are put into the engine's index of prefixes as random bits, where the request finds them: what a step costs depends
 * on how many there are. usage: decode MODEL.gguf [--name 135m/q8_0] [--threads N] [--tokens N] PART…, a PART being
 * depth-N, prefill-512 or batch-8. */
#include "runtime/service/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_PARTS = 8, BATCH = 8, PREFILL = 512, PROMPT = 16, REPEATS = 3, SWEEP_BYTES = 128 << 20, SWEEPS = 7, MAX_THREADS = 64, LANES = 32 };

struct options {
    const char *path, *name, *part[MAX_PARTS];
    int32_t threads, n_parts, tokens;
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "decode: %s: %s\n", what, why);
    exit(1);
}

static void *need(void *p)
{
    if (!p) fail("memory", "out of memory");
    return p;
}

/* ---------------------------------------------------------------- read bandwidth */

struct sweep {
    const uint64_t *words;
    size_t n;
    uint64_t sum;
};

static void *read_all(void *arg)
{
    struct sweep *s = arg;
    uint64_t lane[LANES] = {0};
    for (size_t i = 0; i + LANES <= s->n; i += LANES)
        for (size_t l = 0; l < LANES; l++) lane[l] += s->words[i + l];
    for (int l = 0; l < LANES; l++) s->sum += lane[l];
    return NULL;
}

/* The best of several, and of all measured before: other work on the machine only ever lowers it. */
static double read_bytes_per_s(int32_t threads)
{
    static uint64_t *m;
    static double best;
    size_t words = (size_t)SWEEP_BYTES / sizeof *m, each = words / (size_t)threads;
    if (!m) {
        m = need(aligned_alloc(4096, SWEEP_BYTES));
        memset(m, 1, SWEEP_BYTES);
    }
    for (int k = 0; k < SWEEPS; k++) {
        pthread_t t[MAX_THREADS];
        struct sweep s[MAX_THREADS];
        double began = now_s();
        for (int32_t i = 0; i < threads; i++) {
            s[i] = (struct sweep){m + (size_t)i * each, each, 0};
            if (pthread_create(&t[i], NULL, read_all, &s[i])) fail("threads", "could not be started");
        }
        for (int32_t i = 0; i < threads; i++) pthread_join(t[i], NULL);
        double rate = (double)each * (double)threads * sizeof *m / (now_s() - began);
        if (rate > best) best = rate;
    }
    return best;
}

/* ---------------------------------------------------------------- runs of the engine */

struct timed {
    double first_s, last_s; /* when the first and the last token came */
    int32_t n, reused;
};

static struct timed run(struct kv_engine *e, const int32_t *ids, int32_t n_prompt, int32_t tokens, int32_t batch)
{
    struct kv_stream *stream[BATCH];
    struct kv_error err = {0};
    struct timed t = {0};
    for (int32_t i = 0; i < batch; i++) {
        struct kv_request q = {.prompt = ids, .n_prompt = n_prompt, .max_tokens = tokens, .ignore_eos = true,
                               .sampling = {.top_p = 1, .repetition_penalty = 1}};
        if (kv_engine_submit(e, &q, &stream[i], &err) != KV_OK) fail("request", err.message);
    }
    for (int32_t i = 0; i < batch; i++) {
        enum kv_finish finish = KV_RUNNING;
        while (finish == KV_RUNNING) {
            struct kv_chunk c;
            int32_t got;
            kv_stream_read(stream[i], &c, 1, 60000, &got, &finish);
            if (got && !t.first_s) t.first_s = now_s();
            t.n += got;
        }
        t.last_s = now_s();
        struct kv_request_stats stats;
        kv_stream_stats(stream[i], &stats);
        t.reused += stats.n_reused;
        kv_stream_close(stream[i]);
    }
    return t;
}

/* Makes the blocks of prefix `ids` findable. The engine is idle: its index and arena are nobody else's. */
static void make_rows(struct kv_engine *e, const int32_t *ids, int32_t n_blocks)
{
    struct kv_prefix_digest prefix;
    struct kv_chunk_digest key, parent;
    int32_t layers = e->info->n_layers;
    size_t slab_bytes = kv_slab_bytes(KV_ROW_TYPE, e->info->n_kv_heads, e->info->d_head);
    uint8_t **slab = need(calloc((size_t)layers, sizeof *slab));
    uint64_t x = 1;
    for (int32_t b = 0; b < n_blocks; b++, parent = key) {
        prefix = kv_prefix_extend(b ? &prefix : NULL, ids + (size_t)b * KV_BLOCK_ROWS, KV_BLOCK_ROWS);
        key = kv_prefix_key(&e->prefix_base, &prefix, b);
        for (int32_t l = 0; l < layers; l++) {
            slab[l] = need(kv_arena_take_raw(e->arena));
            for (size_t i = 0; i < slab_bytes; i += 8) {
                x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                uint64_t four = ((x ^ x >> 29) & UINT64_C(0x83ff83ff83ff83ff)) | UINT64_C(0x3000300030003000); /* fp16 of magnitude 1/8 to 1/4 */
                memcpy(slab[l] + i, &four, 8);
            }
        }
        kv_prefix_put(e->prefix, e->arena, &key, b ? &parent : NULL, slab, 1);
        for (int32_t l = 0; l < layers; l++) kv_arena_give(e->arena, slab[l]); /* the index holds them */
    }
    free(slab);
}

static void print(const char *what, const char *name, const char *which, double value, double floor)
{
    printf("{\"name\":\"%s/%s/%s\",\"value\":%.2f,\"unit\":\"tokens/s\"", what, name, which, value);
    if (floor > 0) printf(",\"floor\":%.2f,\"ratio\":%.3f}\n", floor, value / floor);
    else puts(",\"floor\":null,\"ratio\":null}");
    fflush(stdout);
}

static void bench_depth(struct kv_engine *e, const struct options *o, const int32_t *ids, int32_t depth)
{
    double row_bytes = 2.0 * 2 * e->info->n_layers * e->info->n_kv_heads * e->info->d_head, best = 0, floor = 0;
    for (int k = 0; k < REPEATS; k++) {
        struct timed t = run(e, ids, depth + 1, o->tokens, 1);
        if (t.reused < depth / KV_BLOCK_ROWS * KV_BLOCK_ROWS) fail("depth", "the rows made were not found");
        double rate = (t.n - 1) / (t.last_s - t.first_s);
        if (rate > best) best = rate;
        floor = read_bytes_per_s(o->threads) / ((double)e->info->weight_bytes + row_bytes * (depth + o->tokens / 2.0));
    }
    char which[32];
    snprintf(which, sizeof which, "depth-%d", depth);
    print("decode", o->name, which, best, floor);
}

static void bench_prefill(struct kv_engine *e, const struct options *o, int32_t *ids)
{
    double best = 0;
    for (int k = 0; k < REPEATS; k++) {
        ids[0] = (ids[0] + 1) % e->info->n_vocab; /* another prefix: every run computes its prompt */
        double began = now_s();
        struct timed t = run(e, ids, PREFILL, 1, 1);
        double rate = PREFILL / (t.last_s - began);
        if (rate > best) best = rate;
    }
    print("prefill", o->name, "512", best, 0);
}

static void bench_batch(struct kv_engine *e, const struct options *o, const int32_t *ids)
{
    double one = 0, all = 0;
    for (int k = 0; k < REPEATS; k++) {
        struct timed t = run(e, ids, PROMPT, o->tokens, 1);
        double rate = (t.n - 1) / (t.last_s - t.first_s);
        if (rate > one) one = rate;
        t = run(e, ids, PROMPT, o->tokens, BATCH);
        rate = (t.n - BATCH) / (t.last_s - t.first_s);
        if (rate > all) all = rate;
    }
    print("batch", o->name, "8", all, 0);
    printf("{\"name\":\"speedup/%s/batch-8\",\"value\":%.2f,\"unit\":\"x\",\"floor\":null,\"ratio\":null}\n", o->name, all / one);
    fflush(stdout);
}

static struct options read_options(int argc, char **argv)
{
    struct options o = {.threads = 2, .tokens = 32};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--name")) o.name = value, i++;
        else if (!strcmp(argv[i], "--threads")) o.threads = atoi(value), i++;
        else if (!strcmp(argv[i], "--tokens")) o.tokens = atoi(value), i++;
        else if (!o.path) o.path = argv[i];
        else if (o.n_parts < MAX_PARTS) o.part[o.n_parts++] = argv[i];
    }
    if (!o.path || !o.n_parts) fail("usage", "decode MODEL.gguf [--name NAME] [--threads N] [--tokens N] depth-N|prefill-512|batch-8 ...");
    if (o.threads < 1 || o.threads > MAX_THREADS || o.tokens < 2) fail("options", "1 to 64 threads, 2 tokens or more");
    return o;
}

/* -1: this part is none. */
static int32_t depth_of(const char *part)
{
    return strncmp(part, "depth-", 6) ? -1 : atoi(part + 6);
}

int main(int argc, char **argv)
{
    struct options o = read_options(argc, argv);
    struct kv_error err = {0};
    struct kv_model *m;
    struct kv_engine *e;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = o.threads;
    c.iteration_us = INT32_MAX; /* whole chunks: throughput is measured, not fairness */
    c.host_bytes = UINT64_C(8) << 30;
    if (kv_model_open(o.path, NULL, &m, &err) != KV_OK || kv_engine_create(m, &c, &e, &err) != KV_OK) fail(o.path, err.message);
    if (!o.name) o.name = e->info->name;
    int32_t deepest = 0;
    for (int i = 0; i < o.n_parts; i++) deepest = depth_of(o.part[i]) > deepest ? depth_of(o.part[i]) : deepest;
    if (deepest + 1 + o.tokens > e->context_length) fail("depth", "exceeds the model's context");
    int32_t n = (deepest > PREFILL ? deepest : PREFILL) + 1, *ids = need(malloc((size_t)n * sizeof *ids));
    for (int32_t i = 0; i < n; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % e->info->n_vocab;
    make_rows(e, ids, deepest / KV_BLOCK_ROWS);
    (void)run(e, ids + 1, PROMPT, 8, 1); /* warm-up */
    for (int i = 0; i < o.n_parts; i++) {
        if (depth_of(o.part[i]) >= 0) bench_depth(e, &o, ids, depth_of(o.part[i]));
        else if (!strcmp(o.part[i], "prefill-512")) bench_prefill(e, &o, ids);
        else if (!strcmp(o.part[i], "batch-8")) bench_batch(e, &o, ids);
        else fail(o.part[i], "not depth-N, prefill-512 or batch-8");
    }
    free(ids);
    kv_engine_destroy(e);
    kv_model_close(m);
    return 0;
}
