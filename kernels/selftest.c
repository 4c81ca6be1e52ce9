/* selftest.c — every operation on fixed inputs: the bytes whose hash is the numerics_id. */
#include <string.h>

#include "kernels/scalar/pack.h"
#include "kernels/scalar/real.h"

#define ROWS 20
#define COLS 256
#define TOKENS 3

struct run {
    const struct kv_kernels *k;
    uint8_t *out;
    size_t n, cap;
    uint64_t random;
};

static void put(struct run *r, const void *bytes, size_t n)
{
    if (n > r->cap - r->n) n = r->cap - r->n;
    memcpy(r->out + r->n, bytes, n);
    r->n += n;
}

static uint32_t next(struct run *r)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->random >> 32);
}

/* Values of both signs over 16 binades. */
static float next_float(struct run *r)
{
    uint32_t u = next(r);
    return kv_float((u & 0x807fffffu) | (119 + (u >> 23 & 15)) << 23);
}

static void fill(struct run *r, float *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = next_float(r);
}

static void test_elementwise(struct run *r)
{
    static const uint32_t special[] = {0, 0x80000000u, KV_INF_BITS, 0xff800000u, 0x7fa12345u, 0xffc00001u, 1, 0x80000001u,
                                       0x7f7fffffu, 0xc2cff1b5u, 0x42b17218u, 0x42b17219u};
    float x[COLS], y[COLS], z[COLS];
    uint16_t h[COLS];
    fill(r, x, COLS), fill(r, y, COLS);
    memcpy(x + 19, special, sizeof special);
    r->k->exp(x, COLS - 3, z), put(r, z, (COLS - 3) * 4);
    r->k->swiglu(x, y, COLS - 5, z), put(r, z, (COLS - 5) * 4);
    r->k->add(x, y, COLS - 1, z), put(r, z, (COLS - 1) * 4);
    for (int bf = 0; bf < 2; bf++) {
        r->k->to_rows(bf ? KV_BF16 : KV_F16, x, COLS, h), put(r, h, sizeof h);
        r->k->from_rows(bf ? KV_BF16 : KV_F16, h, COLS, z), put(r, z, sizeof z);
    }
    r->k->rmsnorm(y, x + 64, 83, 1e-5f, z), put(r, z, 83 * 4);
    for (int layout = 0; layout < 2; layout++) {
        float table[32];
        fill(r, x, 128), fill(r, table, 32);
        r->k->rope(x, 2, 48, 32, table, layout ? KV_ROPE_NEOX : KV_ROPE_NORMAL), put(r, x, 96 * 4);
    }
}

static void test_products(struct run *r)
{
    static const enum kv_type quantised[] = {KV_Q4_0, KV_Q4_1, KV_Q5_0, KV_Q5_1, KV_Q8_0, KV_Q4_K, KV_Q5_K, KV_Q6_K, KV_IQ4_NL};
    static const enum kv_type floats[] = {KV_F32, KV_F16, KV_BF16};
    uint8_t file[ROWS * 288];
    _Alignas(64) uint8_t packed[2 * (COLS * KV_GROUP_ROWS + COLS / 16 * KV_GROUP_ROWS * 8)];
    float x[TOKENS * COLS], y[TOKENS * ROWS], d[TOKENS * COLS / 32], w[ROWS * 83];
    int8_t q[TOKENS * COLS];
    int32_t sum[TOKENS * COLS / 32];
    struct kv_act act = {TOKENS, COLS, x, q, d, sum};
    struct kv_mat mat;
    fill(r, x, TOKENS * COLS);
    r->k->quantise(&act);
    put(r, q, sizeof q), put(r, d, sizeof d), put(r, sum, sizeof sum);
    for (size_t i = 0; i < sizeof quantised / sizeof *quantised; i++) {
        for (size_t j = 0; j < sizeof file; j++) file[j] = (uint8_t)(next(r) & 0x3f); /* fp16 scales stay finite */
        kv_mat_pack(&mat, quantised[i], file, ROWS, COLS, packed);
        r->k->matmul(&mat, &act, 0, ROWS, y, ROWS), put(r, y, sizeof y);
    }
    act.cols = 83;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        uint16_t h[ROWS * 83];
        fill(r, w, ROWS * 83);
        if (floats[i] != KV_F32) r->k->to_rows(floats[i], w, ROWS * 83, h);
        kv_mat_pack(&mat, floats[i], floats[i] == KV_F32 ? (void *)w : (void *)h, ROWS, 83, 0);
        r->k->matmul(&mat, &act, 0, ROWS, y, ROWS), put(r, y, sizeof y);
    }
}

static void test_attention(struct run *r)
{
    enum { D = 48, Q = 5, BLOCKS = 3 };
    float rows[64 * D], q[Q * D], out[Q * D], scratch[3 * (2 * 16 + Q * D)], m[Q], l[Q], u[Q * D], lo[D] = {0}, hi[D] = {0};
    uint16_t k[BLOCKS][64 * D], v[BLOCKS][64 * D];
    const void *kp[BLOCKS], *vp[BLOCKS];
    static const int32_t visible[Q] = {150, 151, 152, 64, 0};
    uint64_t support[Q * BLOCKS];
    for (int b = 0; b < BLOCKS; b++) {
        fill(r, rows, 64 * D), r->k->to_rows(KV_F16, rows, 64 * D, k[b]);
        fill(r, rows, 64 * D), r->k->to_rows(KV_F16, rows, 64 * D, v[b]);
        kp[b] = k[b], vp[b] = v[b];
    }
    fill(r, q, Q * D);
    for (int i = 0; i < Q * BLOCKS; i++) support[i] = (uint64_t)next(r) << 32 | next(r);
    struct kv_attention a = {D, Q, q, D, KV_F16, 0.144f, BLOCKS, kp, vp, visible, 0};
    struct kv_states s = {m, l, u};
    for (int masked = 0; masked < 2; masked++) {
        a.support = masked ? support : 0;
        kv_attend_subtree(r->k, &a, 2, 0, s, scratch);
        put(r, m, sizeof m), put(r, l, sizeof l), put(r, u, sizeof u);
        r->k->finish(Q, D, s, out, D), put(r, out, sizeof out);
    }
    r->k->extrema(KV_F16, k[0], 3, 61, D, lo, hi), put(r, lo, sizeof lo), put(r, hi, sizeof hi);
    r->k->page_bounds(KV_F16, q, 2, D, k[0], 1, D / 2, rows, 64), put(r, rows, 2 * 64 * 4);
}

/* What selection ranks by: labels, products of channels and of scattered rows, sums of rows, a bar over scores. */
static void test_ranking(struct run *r)
{
    enum { D = 24, Q = 2, BLOCKS = 2, N = BLOCKS * 64, CENTRES = 20, WIDTH = 6 };
    _Alignas(64) float x[N * D], centre[WIDTH * 32], square[32], weight[Q * D], out[Q * N];
    _Alignas(64) uint16_t stored[N * D];
    static const int32_t pick[] = {17, 0, 23, 5, 6}, row[] = {3, 64, 127, 0, 99, 63, 64};
    enum { N_PICK = sizeof pick / sizeof *pick, N_ROW = sizeof row / sizeof *row };
    const void *const blocks[BLOCKS] = {stored, stored + 64 * D};
    int32_t label[D], above;
    uint64_t mask[BLOCKS];
    fill(r, x, N * D), fill(r, centre, WIDTH * 32), fill(r, square, 32), fill(r, weight, Q * D);
    r->k->to_rows(KV_F16, x, N * D, stored);
    r->k->nearest(x, D, WIDTH + 1, centre, square, CENTRES, WIDTH, label), put(r, label, sizeof label);
    r->k->nearest_two(x, D, WIDTH + 1, centre, square, CENTRES, WIDTH, label, out, out + D), put(r, label, sizeof label), put(r, out, 2 * D * 4);
    r->k->column_dots(KV_F16, stored, D, KV_BLOCK_ROWS, NULL, weight, Q, D, BLOCKS, out, N), put(r, out, sizeof out);
    r->k->column_dots(KV_F16, stored, D, KV_BLOCK_ROWS, pick, weight, Q, N_PICK, BLOCKS, out, N), put(r, out, sizeof out);
    above = r->k->outrank(out, N - 7, out[5], mask), put(r, &above, sizeof above), put(r, mask, sizeof mask);
    r->k->row_dots(KV_F16, blocks, row, N_ROW, weight, D, out), put(r, out, N_ROW * 4);
    r->k->row_sum(KV_F16, blocks, row, N_ROW, weight, D, out), put(r, out, D * 4);
    out[0] = r->k->dot(x, x + 101, 99), put(r, out, 4);
}

size_t kv_numerics_selftest(const struct kv_kernels *k, uint8_t *out, size_t cap)
{
    struct run r = {k, out, 0, cap, 1};
    test_elementwise(&r);
    test_products(&r);
    test_attention(&r);
    test_ranking(&r);
    return r.n;
}
