/* test_ranking.c — what ranking rows takes: every table equals the scalar one by memcmp, and the scalar one its formula. */
#include "tests/unit/kernels/kernels_random.h"

#include <check.h>
#include <math.h>

enum { BLOCKS = 22, D = 80, HEADS = 6, ROWS = 70 };
static const enum kv_type types[] = {KV_F16, KV_BF16, KV_F32};

static int tables(const struct kv_kernels *out[3])
{
    int n = 0;
    for (const char *const *isa = (const char *const[]){"scalar", "avx2", "avx512", NULL}; *isa; isa++)
        if (kv_kernels_for(*isa)) out[n++] = kv_kernels_for(*isa);
    return n;
}

START_TEST(partial_products_of_columns)
{
    const struct kv_kernels *k[3];
    int n = tables(k);
    for (uint64_t trial = 0; trial < 60; trial++) {
        struct rng r = {trial, trial % 3 ? 0 : 20};
        int run = trial % 4 == 3 ? BLOCKS * 64 : 64 << trial % 2, d = 1 + rng_below(&r, D), channels = 1 + rng_below(&r, d), heads = 1 + rng_below(&r, HEADS), blocks = rng_below(&r, BLOCKS + 1);
        enum kv_type type = types[trial % 3];
        void *columns = rng_rows(&r, type, (size_t)(BLOCKS * d) * 64);
        float *weight = rng_floats(&r, (size_t)(heads * channels)), want[HEADS][BLOCKS * 64 + 8], got[HEADS][BLOCKS * 64 + 8];
        int32_t pick[D];
        for (int c = 0; c < channels; c++) pick[c] = rng_below(&r, d);
        const int32_t *chosen = trial % 2 ? pick : NULL;
        memset(want, 0, sizeof want);
        k[0]->column_dots(type, columns, d, run, chosen, weight, heads, channels, blocks, want[0], BLOCKS * 64 + 8);
        for (int i = 0; i < heads && !r.special; i++)
            for (int t = 0; t < blocks * 64; t++) {
                double sum = 0, size = 1;
                for (int c = 0; c < channels; c++) {
                    float x;
                    size_t at = ((size_t)(t / run * d) + (size_t)(chosen ? pick[c] : c)) * (size_t)run + (size_t)(t % run);
                    kv_dequantise_row(type, (uint8_t *)columns + at * (type == KV_F32 ? 4 : 2), 1, &x);
                    sum += (double)weight[i * channels + c] * (double)x;
                    size += fabs((double)weight[i * channels + c] * (double)x);
                }
                ck_assert_double_eq_tol((double)want[i][t], sum, 1e-5 * size);
            }
        for (int i = 1; i < n; i++) {
            memset(got, 0, sizeof got);
            k[i]->column_dots(type, columns, d, run, chosen, weight, heads, channels, blocks, got[0], BLOCKS * 64 + 8);
            ck_assert_msg(!memcmp(want, got, sizeof want), "%s: column_dots, trial %d", k[i]->isa, (int)trial);
        }
        free(columns), free(weight);
    }
}
END_TEST

START_TEST(scores_over_a_bar_or_no_numbers)
{
    const struct kv_kernels *k[3];
    int tables_n = tables(k);
    for (uint64_t trial = 0; trial < 200; trial++) {
        struct rng r = {trial, 8};
        int n = rng_below(&r, 300);
        float *x = rng_floats(&r, (size_t)n), least = trial % 5 ? rng_float(&r) : -INFINITY;
        if (least != least) least = 0;
        for (int i = 0; i < n; i++)
            if (rng_below(&r, 4) == 0) x[i] = least;
        for (int i = 0; i < tables_n; i++) {
            uint64_t mask[5];
            memset(mask, 0xa5, sizeof mask);
            int32_t count = k[i]->outrank(x, n, least, mask), want = 0;
            for (int t = 0; t < (n + 63) / 64 * 64; t++) {
                bool set = t < n && !(x[t] <= least);
                want += set;
                ck_assert_msg((mask[t / 64] >> (t % 64) & 1) == set, "%s: row %d of %d, trial %d", k[i]->isa, t, n, (int)trial);
            }
            ck_assert_int_eq(count, want);
        }
        free(x);
    }
}
END_TEST

START_TEST(products_with_scattered_rows)
{
    const struct kv_kernels *k[3];
    int tables_n = tables(k);
    for (uint64_t trial = 0; trial < 90; trial++) {
        struct rng r = {trial, trial % 3 ? 0 : 20};
        int d = 1 + rng_below(&r, 2 * D), n = rng_below(&r, ROWS);
        enum kv_type type = types[rng_below(&r, 3)];
        void *stored = rng_rows(&r, type, (size_t)(BLOCKS * 64 * d));
        const void *blocks[BLOCKS];
        for (int b = 0; b < BLOCKS; b++) blocks[b] = (uint8_t *)stored + (size_t)(b * 64 * d) * (type == KV_F32 ? 4 : 2);
        float *q = rng_floats(&r, (size_t)d), *weight = rng_floats(&r, ROWS), dots[2][ROWS], sums[2][2 * D];
        int32_t row[ROWS];
        for (int i = 0; i < n; i++) row[i] = rng_below(&r, BLOCKS * 64);
        for (int i = 0; i < tables_n; i++) {
            int at = i > 0;
            memset(dots[at], 0, sizeof dots[at]), memset(sums[at], 0, sizeof sums[at]);
            k[i]->row_dots(type, blocks, row, n, q, d, dots[at]);
            k[i]->row_sum(type, blocks, row, n, weight, d, sums[at]);
            ck_assert_msg(!at || !memcmp(dots[0], dots[1], sizeof *dots), "%s: row_dots, trial %d", k[i]->isa, (int)trial);
            ck_assert_msg(!at || !memcmp(sums[0], sums[1], sizeof *sums), "%s: row_sum, trial %d", k[i]->isa, (int)trial);
        }
        float one[2 * D];
        for (int i = 0; i < n; i++) {
            kv_dequantise_row(type, (const uint8_t *)blocks[row[i] / 64] + (size_t)(row[i] % 64 * d) * (type == KV_F32 ? 4 : 2), d, one);
            float want = k[0]->dot(one, q, d);
            ck_assert_mem_eq(&want, &dots[0][i], sizeof want);
            for (int c = 0; c < d; c++) sums[1][c] = kv_fma(weight[i], one[c], i ? sums[1][c] : 0);
        }
        for (int c = 0; c < d && n; c++) ck_assert(kv_bits(kv_canon(sums[1][c])) == kv_bits(sums[0][c]));
        free(stored), free(q), free(weight);
    }
}
END_TEST

Suite *suite_ranking(void);
Suite *suite_ranking(void)
{
    Suite *s = suite_create("ranking");
    TCase *c = tcase_create("ranking");
    tcase_add_test(c, partial_products_of_columns);
    tcase_add_test(c, scores_over_a_bar_or_no_numbers);
    tcase_add_test(c, products_with_scattered_rows);
    suite_add_tcase(s, c);
    return s;
}
