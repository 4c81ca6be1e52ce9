/* kernels.c — the kernels against what this machine can read, in one run: decode and prefill products, attention at 32K.
 * One JSON line a figure: {"name","value","unit","floor","ratio"}; floor is the plain read rate of the same number of threads,
 * for attention at 32K the slower of that and the same kernel on rows in the cache. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/kernels.h"

#define MAX_THREADS 2
#define REPEATS 9
#define D_MODEL 2048
#define DECODE_ROWS 40960 /* well past the last cache */
#define DEPTH_BLOCKS 512 /* 32,768 rows */

static const struct kv_kernels *kernels;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(size_t bytes)
{
    size_t huge = (size_t)2 << 20, rounded = bytes >= huge ? (bytes + huge - 1) & ~(huge - 1) : (bytes + 4095) & ~(size_t)4095;
    void *p = aligned_alloc(bytes >= huge ? huge : 4096, rounded);
    if (p && bytes >= huge) madvise(p, rounded, MADV_HUGEPAGE); /* as the arenas do; refusal is no error */
    if (!p) {
        fprintf(stderr, "bench/kernels: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

/* A job runs once on each of its threads; part i of n. */
struct job {
    void (*run)(struct job *j, int part, int parts);
    int parts;
    pthread_barrier_t begin, end;
    const uint8_t *bytes;
    size_t n_bytes;
    struct kv_mat mat;
    struct kv_act act;
    float *y;
    struct kv_attention attention[8];
    int n_attention;
    float *state[MAX_THREADS];
    volatile uint64_t sink;
};

struct worker {
    struct job *job;
    int part;
    double start_s[REPEATS], end_s[REPEATS];
};

static void *work(void *arg)
{
    struct worker *w = arg;
    kv_numerics_enter();
    for (int i = 0; i < REPEATS; i++) {
        pthread_barrier_wait(&w->job->begin);
        w->start_s[i] = now_s();
        w->job->run(w->job, w->part, w->job->parts);
        w->end_s[i] = now_s();
        pthread_barrier_wait(&w->job->end);
    }
    return 0;
}

/* Best of REPEATS: other work on the machine only ever adds time. */
static double best_seconds(struct job *j, int parts)
{
    pthread_t thread[MAX_THREADS];
    struct worker w[MAX_THREADS];
    double best = 1e9;
    j->parts = parts;
    pthread_barrier_init(&j->begin, 0, (unsigned)parts);
    pthread_barrier_init(&j->end, 0, (unsigned)parts);
    for (int i = 0; i < parts; i++) {
        w[i].job = j, w[i].part = i;
        if (pthread_create(&thread[i], 0, work, &w[i])) exit(1);
    }
    for (int i = 0; i < parts; i++) pthread_join(thread[i], 0);
    for (int i = 0; i < REPEATS; i++) {
        double start = w[0].start_s[i], end = w[0].end_s[i];
        for (int k = 1; k < parts; k++) {
            if (w[k].start_s[i] < start) start = w[k].start_s[i];
            if (w[k].end_s[i] > end) end = w[k].end_s[i];
        }
        if (end - start < best) best = end - start;
    }
    pthread_barrier_destroy(&j->begin);
    pthread_barrier_destroy(&j->end);
    return best;
}

static void run_read(struct job *j, int part, int parts)
{
    size_t n = j->n_bytes / 8 / (size_t)parts / 32 * 32;
    const uint64_t *p = (const uint64_t *)j->bytes + (size_t)part * n;
    uint64_t s[32] = {0};
    for (size_t i = 0; i < n; i += 32)
        for (int l = 0; l < 32; l++) s[l] += p[i + (size_t)l];
    for (int l = 1; l < 32; l++) s[0] += s[l];
    j->sink = s[0];
}

static struct job reader = {.run = run_read, .n_bytes = (size_t)128 << 20};

/* The best read rate seen so far, measured once more beside the figure that is about to be compared with it. */
static double read_gbs(int threads)
{
    static double best[MAX_THREADS + 1];
    double now_gbs = (double)reader.n_bytes / best_seconds(&reader, threads) * 1e-9;
    if (now_gbs > best[threads]) best[threads] = now_gbs;
    return best[threads];
}

static void run_matmul(struct job *j, int part, int parts)
{
    int32_t groups = j->mat.rows / 16, from = groups * part / parts * 16, to = groups * (part + 1) / parts * 16;
    kernels->matmul(&j->mat, &j->act, from, to, j->y, (size_t)j->mat.rows);
}

static void run_attention(struct job *j, int part, int parts)
{
    for (int h = 0; h < j->n_attention; h++)
        for (int i = part; i < DEPTH_BLOCKS / 64; i += parts) {
            const struct kv_attention *a = &j->attention[h];
            float *f = j->state[part];
            struct kv_states s = {f, f + a->n_q, f + 2 * a->n_q};
            kv_attend_subtree(kernels, a, 6, i, s, f + (size_t)a->n_q * (size_t)(a->d_head + 2));
        }
}

static void report(const char *name, double value, const char *unit, double floor_value)
{
    printf("{\"name\":\"%s\",\"value\":%.2f,\"unit\":\"%s\",\"floor\":", name, value, unit);
    if (floor_value > 0) printf("%.2f,\"ratio\":%.3f}\n", floor_value, value / floor_value);
    else printf("null,\"ratio\":null}\n");
    fflush(stdout);
}

static void make_act(struct kv_act *a, int32_t n, int32_t cols)
{
    size_t blocks = (size_t)n * (size_t)cols / 32;
    float *x = memory(blocks * 32 * 4);
    for (size_t i = 0; i < blocks * 32; i++) x[i] = (float)(rand() % 2001 - 1000) / 500.0f;
    *a = (struct kv_act){n, cols, x, memory(blocks * 32), memory(blocks * 4), memory(blocks * 4)};
    kernels->quantise(a);
}

static void free_act(struct kv_act *a)
{
    free((void *)(uintptr_t)a->f32), free(a->q), free(a->d), free(a->sum);
}

static void bench_products(enum kv_type type, const char *name)
{
    struct job j = {.run = run_matmul};
    size_t file_bytes = kv_type_row_bytes(type, D_MODEL) * (size_t)DECODE_ROWS, packed = kv_mat_packed_bytes(type, DECODE_ROWS, D_MODEL);
    uint8_t *file = memory(file_bytes), *dst = packed ? memory(packed) : 0;
    for (size_t i = 0; i < file_bytes; i++) file[i] = (uint8_t)(rand() & 0x3b);
    kv_mat_pack(&j.mat, type, file, DECODE_ROWS, D_MODEL, dst);
    j.y = memory((size_t)DECODE_ROWS * 4 > (size_t)D_MODEL * 512 * 4 ? (size_t)DECODE_ROWS * 4 : (size_t)D_MODEL * 512 * 4);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        char label[64];
        make_act(&j.act, 1, D_MODEL);
        snprintf(label, sizeof label, "matmul/%s/decode/threads-%d", name, threads);
        report(label, (double)j.mat.data_bytes / best_seconds(&j, threads) * 1e-9, "GB/s", read_gbs(threads));
        free_act(&j.act);
    }
    j.mat.rows = D_MODEL;
    make_act(&j.act, 512, D_MODEL);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        char label[64];
        snprintf(label, sizeof label, "matmul/%s/prefill-512/threads-%d", name, threads);
        report(label, 2.0 * 512 * D_MODEL * D_MODEL / best_seconds(&j, threads) * 1e-9, "GOP/s", 0);
    }
    free_act(&j.act);
    free(file), free(dst), free(j.y);
}

/* heads K/V heads with `group` q heads each over 32,768 fp16 rows; slabs as the cache lays them out. in_l2: every block is the same one. */
static void bench_attention(int heads, int group, int32_t d)
{
    struct job j = {.run = run_attention, .n_attention = heads};
    size_t half = (size_t)KV_BLOCK_ROWS * (size_t)d * 2, slab = 2 * half * (size_t)heads;
    uint16_t *rows = memory(slab * DEPTH_BLOCKS);
    for (size_t i = 0; i < slab * DEPTH_BLOCKS / 2; i++) rows[i] = (uint16_t)(0x3000 + (rand() & 0x87ff));
    const void **pointers = memory(sizeof(void *) * 2 * DEPTH_BLOCKS * (size_t)heads);
    float *q = memory((size_t)(heads * group * d) * 4);
    int32_t visible[8];
    for (int i = 0; i < heads * group * d; i++) q[i] = (float)(rand() % 2001 - 1000) / 1000.0f;
    for (int i = 0; i < group; i++) visible[i] = DEPTH_BLOCKS * KV_BLOCK_ROWS;
    for (int i = 0; i < MAX_THREADS; i++) j.state[i] = memory(4 * kv_attend_scratch_floats(group, d, 7));
    double in_cache[MAX_THREADS + 1];
    for (int in_l2 = 1; in_l2 >= 0; in_l2--) {
        for (int h = 0; h < heads; h++) {
            const void **k = pointers + 2 * DEPTH_BLOCKS * h, **v = k + DEPTH_BLOCKS;
            for (int b = 0; b < DEPTH_BLOCKS; b++) {
                k[b] = (uint8_t *)rows + slab * (size_t)(in_l2 ? 0 : b) + 2 * half * (size_t)h;
                v[b] = (const uint8_t *)k[b] + half;
            }
            j.attention[h] = (struct kv_attention){d, group, q + h * group * d, (size_t)d, KV_F16, 0.1f, DEPTH_BLOCKS, k, v, visible, 0};
        }
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            char label[64];
            snprintf(label, sizeof label, "attention/%s/d-%d/threads-%d", in_l2 ? "in-cache" : "32k", d, threads);
            double rate = (double)(slab * DEPTH_BLOCKS) / best_seconds(&j, threads) * 1e-9, floor = read_gbs(threads);
            if (in_l2) in_cache[threads] = rate;
            report(label, rate, "GB/s", floor < in_cache[threads] ? floor : in_cache[threads]);
        }
    }
    free(rows), free(pointers), free(q);
    for (int i = 0; i < MAX_THREADS; i++) free(j.state[i]);
}

int main(void)
{
    kv_numerics_enter();
    kernels = kv_kernels();
    reader.bytes = memory(reader.n_bytes);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        char label[64];
        snprintf(label, sizeof label, "read/threads-%d", threads);
        report(label, read_gbs(threads), "GB/s", 0);
    }
    printf("{\"name\":\"isa/%s\",\"value\":1,\"unit\":\"\",\"floor\":null,\"ratio\":null}\n", kernels->isa);
    bench_products(KV_Q8_0, "q8_0");
    bench_products(KV_Q4_K, "q4_k");
    bench_products(KV_F16, "f16");
    bench_attention(3, 3, 64);
    bench_attention(2, 4, 128);
    free((void *)(uintptr_t)reader.bytes);
    return 0;
}
