/* decode.c — tokens per second of the serving engine on one GGUF: decode at two depths, prefill of 512, a batch of 8; with the floor
 * that memory sets, measured in the same run. One JSON line per figure.
 * usage: decode [MODEL.gguf] [--name 135m/q8_0] [--threads N] [--depth N]… [--tokens N] */
#include "runtime/kvasir.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_DEPTHS = 8, BATCH = 8, PREFILL = 512, SWEEP_BYTES = 256 << 20 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
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
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int pass = 0; pass < 4; pass++)
        for (size_t i = 0; i + 4 <= s->n; i += 4) a += s->words[i], b ^= s->words[i + 1], c += s->words[i + 2], d ^= s->words[i + 3];
    s->sum = a + b + c + d;
    return NULL;
}

static double read_bytes_per_s(int32_t threads)
{
    size_t words = (size_t)SWEEP_BYTES / sizeof(uint64_t), each = words / (size_t)threads;
    uint64_t *m = malloc(words * sizeof *m);
    pthread_t t[64];
    struct sweep s[64];
    if (!m || threads > 64) exit(1);
    memset(m, 1, words * sizeof *m);
    double began = now_s();
    for (int32_t i = 0; i < threads; i++) {
        s[i] = (struct sweep){m + (size_t)i * each, each, 0};
        if (pthread_create(&t[i], NULL, read_all, &s[i])) exit(1);
    }
    for (int32_t i = 0; i < threads; i++) pthread_join(t[i], NULL);
    double rate = 4.0 * (double)each * (double)threads * sizeof(uint64_t) / (now_s() - began);
    free(m);
    return rate;
}

/* ---------------------------------------------------------------- runs of the engine */

struct timed {
    double first_s, last_s; /* when the first and the last token came */
    int32_t n;
};

static struct timed run(struct kv_engine *e, const int32_t *ids, int32_t depth, int32_t tokens, int32_t batch)
{
    struct kv_stream *stream[BATCH];
    struct kv_error err = {0};
    struct timed t = {0};
    for (int32_t i = 0; i < batch; i++) {
        struct kv_request q = {.prompt = ids, .n_prompt = depth, .max_tokens = tokens, .ignore_eos = true,
                               .sampling = {.top_p = 1, .repetition_penalty = 1}};
        if (kv_engine_submit(e, &q, &stream[i], &err) != KV_OK) {
            fprintf(stderr, "decode: %s\n", err.message);
            exit(1);
        }
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
        kv_stream_close(stream[i]);
    }
    return t;
}

static void print(const char *what, const char *name, const char *which, double value, double floor)
{
    printf("{\"name\":\"%s/%s/%s\",\"value\":%.2f,\"unit\":\"tokens/s\"", what, name, which, value);
    if (floor > 0) printf(",\"floor\":%.2f,\"ratio\":%.3f}\n", floor, value / floor);
    else puts(",\"floor\":null,\"ratio\":null}");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *path = "models/kvasir-demo-q8_0.gguf", *name = NULL;
    int32_t threads = 0, depths[MAX_DEPTHS] = {0, 3840}, n_depths = 0, tokens = 32;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--name")) name = value, i++;
        else if (!strcmp(argv[i], "--threads")) threads = atoi(value), i++;
        else if (!strcmp(argv[i], "--tokens")) tokens = atoi(value), i++;
        else if (!strcmp(argv[i], "--depth") && n_depths < MAX_DEPTHS) depths[n_depths++] = atoi(value), i++;
        else path = argv[i];
    }
    struct kv_error err = {0};
    struct kv_model *m;
    struct kv_engine *e;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = threads;
    c.iteration_us = INT32_MAX; /* whole chunks: throughput is measured, not fairness */
    c.prefix_reuse = false; /* every run computes its prompt */
    c.host_bytes = UINT64_C(8) << 30;
    if (kv_model_open(path, NULL, &m, &err) != KV_OK || kv_engine_create(m, &c, &e, &err) != KV_OK) {
        fprintf(stderr, "decode: %s\n", err.message);
        return 1;
    }
    const struct kv_model_info *info = kv_model_info(m);
    if (!name) name = info->name;
    if (!n_depths) n_depths = 2;
    int32_t longest = PREFILL;
    for (int i = 0; i < n_depths; i++) longest = depths[i] > longest ? depths[i] : longest;
    int32_t *ids = malloc((size_t)longest * sizeof *ids);
    if (!ids) return 1;
    for (int32_t i = 0; i < longest; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % info->n_vocab;
    long processors = threads ? threads : 2;
    double rate = read_bytes_per_s((int32_t)processors);
    double row_bytes = 2.0 * 2 * info->n_layers * info->n_kv_heads * info->d_head;

    (void)run(e, ids, 16, 8, 1); /* warm-up */
    for (int i = 0; i < n_depths; i++) {
        int32_t depth = depths[i] < 1 ? 1 : depths[i];
        if (depth + tokens > info->context_length) continue;
        struct timed t = run(e, ids, depth, tokens, 1);
        char which[32];
        snprintf(which, sizeof which, "depth-%d", depths[i]);
        double bytes = (double)info->weight_bytes + row_bytes * (depth + tokens / 2.0);
        print("decode", name, which, (t.n - 1) / (t.last_s - t.first_s), rate / bytes);
    }
    double began = now_s();
    struct timed t = run(e, ids, PREFILL, 1, 1);
    print("prefill", name, "512", PREFILL / (t.last_s - began), 0);
    t = run(e, ids, 16, tokens, BATCH);
    print("batch", name, "8", (t.n - BATCH) / (t.last_s - t.first_s), 0);
    free(ids);
    kv_engine_destroy(e);
    kv_model_close(m);
    return 0;
}
