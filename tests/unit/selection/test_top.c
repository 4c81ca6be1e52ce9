/* test_top.c — the first rows of long rankings are those of the whole ranking, whatever a sample of the scores says. */
#include "runtime/selection/draw.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/top.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 20000 };

static float score_of(int kind, uint64_t seed, int32_t t)
{
    float x = (float)kv_draw_normal(seed, (uint64_t)t);
    switch (kind) {
    case 0: return x;
    case 1: return roundf(2 * x);                                /* ties */
    case 2: return t % 19 ? -1 : x;                              /* a sample at even distances meets the few high ones, or none */
    case 3: return kv_draw(seed, (uint64_t)t) % 50 ? x : NAN;    /* these rank first */
    case 4: return -INFINITY;
    case 5: return t < 3 ? INFINITY : t % 2 ? 0.0f : -0.0f;
    default: return expf(20 * x);
    }
}

START_TEST(long_rankings_are_cut_where_sorted_ones_are)
{
    static float score[MOST];
    static uint64_t key[MOST], want[MOST], mask[MOST / 64 + 1], expected[MOST / 64 + 1];
    for (uint64_t trial = 0; trial < 70; trial++) {
        int32_t n = trial % 10 == 0 ? (int32_t)(kv_draw(trial, 1) % 300) : trial % 10 < 4 ? 1000 + (int32_t)(kv_draw(trial, 1) % 3200) : 4000 + (int32_t)(kv_draw(trial, 1) % 16000);
        int32_t k = (int32_t)(kv_draw(trial, 2) % (uint64_t)(trial % 3 ? n / 8 + 1 : n + 1));
        for (int32_t t = 0; t < n; t++) score[t] = score_of((int)(trial % 7), trial + 100, t);
        memset(mask, 0, sizeof mask), memset(expected, 0, sizeof expected);
        for (int32_t t = 0; t < n; t++) want[t] = kv_rank_key(score[t], (uint32_t)t);
        kv_rank_sort(want, (size_t)n);
        for (int32_t i = 0; i < k; i++) kv_mask_set(expected, (int32_t)kv_rank_index(want[i]));
        kv_top_rows(score, n, k, key, mask);
        ck_assert_msg(!memcmp(mask, expected, sizeof mask), "first %d of %d, trial %d", k, n, (int)trial);
        kv_rank_sort(key, (size_t)k);
        ck_assert(k == 0 || !memcmp(key, want, (size_t)k * sizeof *key));
    }
}
END_TEST

Suite *suite_top(void);
Suite *suite_top(void)
{
    Suite *s = suite_create("top");
    TCase *c = tcase_create("top");
    tcase_set_timeout(c, 30);
    tcase_add_test(c, long_rankings_are_cut_where_sorted_ones_are);
    suite_add_tcase(s, c);
    return s;
}
