/* kernels_random.h — random inputs for kernel tests: a counter, so that a failing case can be made again from its seed. */
#ifndef KV_TEST_KERNELS_RANDOM_H
#define KV_TEST_KERNELS_RANDOM_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/scalar/real.h"

struct rng {
    uint64_t state;
    int special; /* one value in `special` is NaN, Inf, a zero or denormal; 0 for none */
};

static inline uint32_t rng_u32(struct rng *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = r->state ^ r->state >> 33;
    return (uint32_t)(x * 0xff51afd7ed558ccdu >> 32);
}

static inline int rng_below(struct rng *r, int n)
{
    return (int)(rng_u32(r) % (uint32_t)n);
}

static inline float rng_float(struct rng *r)
{
    static const uint32_t special[] = {0, 0x80000000u, KV_INF_BITS, 0xff800000u, 0x7fc00000u, 0xffc12345u, 0x7f812345u, 1,
                                       0x807fffffu, 0x7f7fffffu, 0xff7fffffu};
    if (r->special && !rng_below(r, r->special)) return kv_float(special[rng_below(r, 11)]);
    uint32_t u = rng_u32(r);
    return kv_float((u & 0x807fffffu) | (121 + (u >> 23 & 7)) << 23); /* 2^-6 … 4, both signs */
}

static inline float *rng_floats(struct rng *r, size_t n)
{
    float *x = malloc((n ? n : 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = rng_float(r);
    return x;
}

/* Rows as stored, converted by the scalar table. */
static inline void *rng_rows(struct rng *r, enum kv_type t, size_t n)
{
    float *x = rng_floats(r, n);
    if (t == KV_F32) return x;
    void *out = malloc((n ? n : 1) * 2);
    kv_kernels_for("scalar")->to_rows(t, x, (int32_t)n, out);
    free(x);
    return out;
}

/* A quantised file's bytes: random codes under scales of moderate size. */
static inline uint8_t *rng_quantised(struct rng *r, enum kv_type t, size_t bytes)
{
    static const struct {
        enum kv_type type;
        int block, halves, first;
    } scales[] = {{KV_Q4_0, 18, 1, 0}, {KV_Q4_1, 20, 2, 0}, {KV_Q5_0, 22, 1, 0}, {KV_Q5_1, 24, 2, 0}, {KV_Q8_0, 34, 1, 0},
                  {KV_Q4_K, 144, 2, 0}, {KV_Q5_K, 176, 2, 0}, {KV_Q6_K, 210, 1, 208}, {KV_IQ4_NL, 18, 1, 0}};
    uint8_t *p = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)rng_u32(r);
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
        if (scales[s].type == t)
            for (size_t b = 0; b + (size_t)scales[s].block <= bytes; b += (size_t)scales[s].block)
                for (int h = 0; h < scales[s].halves; h++) {
                    uint16_t v = kv_to_f16(rng_float(r) / 64);
                    memcpy(p + b + scales[s].first + 2 * h, &v, 2);
                }
    return p;
}

static inline struct kv_act act_make(const struct kv_kernels *k, const float *x, int32_t n, int32_t cols)
{
    size_t blocks = ((size_t)cols + 31) / 32 * (size_t)n;
    struct kv_act a = {n, cols, x, malloc(blocks * 32 + 1), malloc(blocks * 4 + 1), malloc(blocks * 4 + 1)};
    k->quantise(&a);
    return a;
}

static inline void act_free(struct kv_act *a)
{
    free(a->q), free(a->d), free(a->sum);
}

/* The tables this machine can run, scalar left out. */
static inline int fast_tables(const struct kv_kernels *out[2])
{
    static const char *const names[] = {"avx2", "avx512"};
    int n = 0;
    for (int i = 0; i < 2; i++)
        if ((out[n] = kv_kernels_for(names[i]))) n++;
    return n;
}

#endif
