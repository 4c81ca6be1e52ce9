/* test_kernels_attention.c — attention states: equality on every table, the aligned tree, absent blocks and unwritten rows. */
#include <check.h>

#include "tests/unit/kernels/kernels_random.h"

#define MAX_BLOCKS 24

struct problem {
    struct kv_attention a;
    const void *k[MAX_BLOCKS], *v[MAX_BLOCKS];
    int32_t visible[64];
    uint64_t support[64 * MAX_BLOCKS];
    float *q;
};

static void problem_make(struct problem *p, uint64_t seed, int special, int blocks)
{
    static const int32_t widths[] = {32, 48, 64, 80, 128, 256, 40};
    struct rng r = {seed, special};
    enum kv_type type = (const enum kv_type[]){KV_F16, KV_BF16, KV_F32}[rng_below(&r, 3)];
    int32_t d = widths[rng_below(&r, 7)], group = 1 + rng_below(&r, 8), tokens = 1 + rng_below(&r, 4), n_q = group * tokens;
    int32_t last = blocks * 64 - rng_below(&r, 64);
    size_t stride = (size_t)d + (size_t)rng_below(&r, 5);
    p->q = rng_floats(&r, (size_t)n_q * stride);
    for (int b = 0; b < blocks; b++) {
        p->k[b] = rng_rows(&r, type, 64 * (size_t)d), p->v[b] = rng_rows(&r, type, 64 * (size_t)d);
        if (rng_below(&r, 10)) continue;
        free((void *)(uintptr_t)p->k[b]), free((void *)(uintptr_t)p->v[b]);
        p->k[b] = p->v[b] = 0;
    }
    for (int i = 0; i < n_q; i++) p->visible[i] = rng_below(&r, 12) ? last - tokens + 1 + i / group : rng_below(&r, last + 1);
    for (int i = 0; i < n_q * blocks; i++) {
        int kind = rng_below(&r, 5);
        uint64_t m = (uint64_t)rng_u32(&r) << 32 | rng_u32(&r);
        p->support[i] = kind == 0 ? 0 : kind == 1 ? ~(uint64_t)0 : kind == 2 ? (uint64_t)1 << rng_below(&r, 64) : kind == 3 ? m & m >> 21 & m << 17 : m;
    }
    p->a = (struct kv_attention){d, n_q, p->q, stride, type, 0.125f, blocks, p->k, p->v, p->visible, rng_below(&r, 2) ? p->support : 0};
}

static void problem_free(struct problem *p)
{
    for (int b = 0; b < p->a.n_blocks; b++) free((void *)(uintptr_t)p->k[b]), free((void *)(uintptr_t)p->v[b]);
    free(p->q);
}

static size_t state_floats(const struct kv_attention *a)
{
    return (size_t)a->n_q * (size_t)(a->d_head + 2);
}

static struct kv_states states_in(float *f, const struct kv_attention *a)
{
    return (struct kv_states){f, f + a->n_q, f + 2 * a->n_q};
}

static float *subtree(const struct kv_kernels *k, const struct kv_attention *a, int level, int index)
{
    float *out = malloc(state_floats(a) * 4), *scratch = malloc(4 * kv_attend_scratch_floats(a->n_q, a->d_head, level));
    kv_attend_subtree(k, a, level, index, states_in(out, a), scratch);
    free(scratch);
    return out;
}

START_TEST(states_equal_scalar)
{
    const struct kv_kernels *table[2], *scalar = kv_kernels_for("scalar");
    for (int i = 0, n = fast_tables(table); i < n; i++)
        for (uint64_t seed = 0; seed < 80; seed++) {
            struct problem p;
            problem_make(&p, seed, seed % 3 ? 0 : 3000, seed % 5 ? 1 + (int)(seed % 5) : 20);
            float *want = subtree(scalar, &p.a, 5, 0), *got = subtree(table[i], &p.a, 5, 0);
            size_t stride = (size_t)p.a.d_head + 3, bytes = (size_t)p.a.n_q * stride * 4;
            float *out_want = calloc(1, bytes), *out_got = calloc(1, bytes);
            scalar->finish(p.a.n_q, p.a.d_head, states_in(want, &p.a), out_want, stride);
            table[i]->finish(p.a.n_q, p.a.d_head, states_in(got, &p.a), out_got, stride);
            ck_assert_msg(!memcmp(want, got, state_floats(&p.a) * 4), "%s state, seed %d", table[i]->isa, (int)seed);
            ck_assert_msg(!memcmp(out_want, out_got, bytes), "%s output, seed %d", table[i]->isa, (int)seed);
            free(want), free(got), free(out_want), free(out_got);
            problem_free(&p);
        }
}
END_TEST

/* Any cut into aligned subtrees, at any mixture of levels, folds to the bits of the whole. */
START_TEST(partitions_fold_to_the_whole)
{
    const struct kv_kernels *k = kv_kernels();
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct problem p;
        problem_make(&p, 1000 + seed, seed % 4 ? 0 : 3000, 1 + (int)(seed * 7 % MAX_BLOCKS));
        float *whole = subtree(k, &p.a, 5, 0);
        for (int level = 0; level <= 5; level++) {
            int n = (p.a.n_blocks + (1 << level) - 1) >> level;
            float *part[MAX_BLOCKS] = {0};
            struct kv_states s[MAX_BLOCKS];
            for (int i = 0; i < n; i++) part[i] = subtree(k, &p.a, level, i), s[i] = states_in(part[i], &p.a);
            kv_fold_subtrees(k, p.a.n_q, p.a.d_head, s, n);
            ck_assert_msg(!memcmp(whole, part[0], state_floats(&p.a) * 4), "seed %d level %d", (int)seed, level);
            for (int i = 0; i < n; i++) free(part[i]);
        }
        problem_free(&p);
        free(whole);
    }
}
END_TEST

/* A chain of left folds is another tree: the comparison above must be able to see that. */
START_TEST(a_left_fold_is_noticed)
{
    const struct kv_kernels *k = kv_kernels();
    int noticed = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct problem p;
        problem_make(&p, 2000 + seed, 0, 9);
        float *whole = subtree(k, &p.a, 4, 0), *left = subtree(k, &p.a, 0, 0);
        for (int i = 1; i < 9; i++) {
            float *next = subtree(k, &p.a, 0, i);
            k->fold(p.a.n_q, p.a.d_head, states_in(left, &p.a), states_in(next, &p.a));
            free(next);
        }
        noticed += memcmp(whole, left, state_floats(&p.a) * 4) != 0;
        free(whole), free(left);
        problem_free(&p);
    }
    ck_assert_int_ge(noticed, 10);
}
END_TEST

/* Chunks: query rows computed alone give the bits they have among others. */
START_TEST(rows_do_not_depend_on_the_chunk)
{
    const struct kv_kernels *k = kv_kernels();
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct problem p;
        problem_make(&p, 3000 + seed, 0, 5);
        if (seed >= 30) /* one support for all: they share each pass then */
            for (int i = 1; i < p.a.n_q; i++) memcpy(p.support + i * p.a.n_blocks, p.support, (size_t)p.a.n_blocks * sizeof *p.support);
        float *whole = subtree(k, &p.a, 3, 0);
        for (int i = 0; i < p.a.n_q; i++) {
            struct kv_attention one = p.a;
            one.n_q = 1, one.q += (size_t)i * one.q_stride, one.visible += i;
            if (one.support) one.support += i * one.n_blocks;
            float *s = subtree(k, &one, 3, 0);
            ck_assert(!memcmp(s, whole + i, 4) && !memcmp(s + 1, whole + p.a.n_q + i, 4));
            ck_assert_mem_eq(s + 2, whole + 2 * p.a.n_q + (size_t)i * (size_t)p.a.d_head, (size_t)p.a.d_head * 4);
            free(s);
        }
        free(whole);
        problem_free(&p);
    }
}
END_TEST

/* Rows past the visible ones hold NaN and Inf: an unwritten row must not reach a result. */
START_TEST(unwritten_rows_are_never_read_into_a_result)
{
    const struct kv_kernels *table[3] = {kv_kernels_for("scalar")};
    int n = 1 + fast_tables(table + 1);
    enum { D = 64 };
    for (int i = 0; i < n; i++)
        for (int32_t rows = 0; rows <= 64; rows += 7) {
            struct rng r = {(uint64_t)rows, 0};
            uint16_t *k = rng_rows(&r, KV_F16, 64 * D), *v = rng_rows(&r, KV_F16, 64 * D);
            for (int j = rows * D; j < 64 * D; j++) k[j] = j % 2 ? 0x7e00 : 0x7c00, v[j] = j % 2 ? 0xfc00 : 0x7e01;
            float *q = rng_floats(&r, 2 * D), f[2 * (D + 2)];
            const void *kp = k, *vp = v;
            struct kv_attention a = {D, 2, q, D, KV_F16, 1, 1, &kp, &vp, (const int32_t[]){rows, rows / 2}, 0};
            table[i]->attend_block(&a, 0, states_in(f, &a));
            for (int j = 4; j < 2 * (D + 2); j++) ck_assert_msg(f[j] - f[j] == 0, "%s, %d rows", table[i]->isa, rows);
            if (!rows) ck_assert(f[0] == -__builtin_inff() && f[2] == 0 && f[4] == 0);
            free(k), free(v), free(q);
        }
}
END_TEST

START_TEST(a_nan_in_a_visible_row_shows)
{
    const struct kv_kernels *table[3] = {kv_kernels_for("scalar")};
    int n = 1 + fast_tables(table + 1);
    for (int i = 0; i < n; i++) {
        struct rng r = {5, 0};
        float *k = rng_rows(&r, KV_F32, 64 * 32), *v = rng_rows(&r, KV_F32, 64 * 32), *q = rng_floats(&r, 32), f[34], out[32];
        k[9 * 32 + 3] = kv_float(0xffc54321u);
        const void *kp = k, *vp = v;
        struct kv_attention a = {32, 1, q, 32, KV_F32, 1, 1, &kp, &vp, (const int32_t[]){64}, 0};
        table[i]->attend_block(&a, 0, states_in(f, &a));
        table[i]->finish(1, 32, states_in(f, &a), out, 32);
        for (int c = 0; c < 32; c++) ck_assert_uint_eq(kv_bits(out[c]), KV_NAN_BITS);
        free(k), free(v), free(q);
    }
}
END_TEST

Suite *suite_kernels_attention(void);
Suite *suite_kernels_attention(void)
{
    Suite *s = suite_create("kernels_attention");
    TCase *c = tcase_create("states");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, states_equal_scalar);
    tcase_add_test(c, partitions_fold_to_the_whole);
    tcase_add_test(c, a_left_fold_is_noticed);
    tcase_add_test(c, rows_do_not_depend_on_the_chunk);
    tcase_add_test(c, unwritten_rows_are_never_read_into_a_result);
    tcase_add_test(c, a_nan_in_a_visible_row_shows);
    suite_add_tcase(s, c);
    return s;
}
