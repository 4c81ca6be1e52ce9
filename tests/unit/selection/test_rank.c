/* test_rank.c — the one ranking order and the row masks. */
#include "runtime/selection/rank.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

START_TEST(keys_order_scores_then_indices)
{
    static const float descending[] = {INFINITY, 3e38f, 2, 1.5f, 1e-45f, 0, -1e-45f, -1, -3e38f, -INFINITY};
    for (size_t i = 0; i + 1 < sizeof descending / sizeof *descending; i++)
        ck_assert_uint_lt(kv_rank_key(descending[i], 9), kv_rank_key(descending[i + 1], 0));
    ck_assert_uint_lt(kv_rank_key(1, 3), kv_rank_key(1, 4));
    ck_assert_uint_lt(kv_rank_key(NAN, 9), kv_rank_key(INFINITY, 0));
    ck_assert_uint_eq(kv_rank_key(-NAN, 7), kv_rank_key(NAN, 7));
    ck_assert_uint_eq(kv_rank_key(-0.0f, 7), kv_rank_key(0.0f, 7));
    ck_assert_uint_eq(kv_rank_index(kv_rank_key(-5, 123456789)), 123456789);
}
END_TEST

START_TEST(keys_made_together_are_those_made_alone)
{
    static const float special[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1e-45f};
    float score[100];
    uint64_t key[100];
    srand(5);
    for (size_t n = 0; n <= 100; n++) {
        for (size_t i = 0; i < n; i++) score[i] = rand() % 4 ? (float)rand() - 1e9f : special[rand() % 6];
        kv_rank_keys(score, n, key);
        for (size_t i = 0; i < n; i++) ck_assert_uint_eq(key[i], kv_rank_key(score[i], (uint32_t)i));
    }
}
END_TEST

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

START_TEST(select_and_sort_agree_with_the_library)
{
    enum { N = 700 };
    uint64_t keys[N], want[N], mine[N];
    srand(2);
    for (int trial = 0; trial < 300; trial++) {
        size_t n = (size_t)rand() % N, k = n ? (size_t)rand() % (n + 1) : 0;
        for (size_t i = 0; i < n; i++) keys[i] = kv_rank_key((float)(trial % 3 ? rand() % 5 : trial % 2 ? (int)i : -(int)i), (uint32_t)i);
        memcpy(want, keys, sizeof keys);
        qsort(want, n, sizeof *want, ascending);
        memcpy(mine, keys, sizeof keys);
        kv_rank_sort(mine, n);
        ck_assert(n == 0 || !memcmp(mine, want, n * sizeof *mine));
        memcpy(mine, keys, sizeof keys);
        kv_rank_select(mine, n, k);
        qsort(mine, k, sizeof *mine, ascending);
        ck_assert(k == 0 || !memcmp(mine, want, k * sizeof *mine));
    }
}
END_TEST

START_TEST(cover_stops_where_a_sorted_walk_does)
{
    enum { N = 500 };
    uint64_t keys[N], sorted[N];
    int32_t size[N];
    srand(3);
    for (int trial = 0; trial < 300; trial++) {
        size_t n = (size_t)rand() % N, want = 0;
        int64_t rows = rand() % (trial % 2 ? 3000 : 40), sum = 0;
        for (size_t i = 0; i < n; i++) size[i] = rand() % 9, keys[i] = kv_rank_key((float)(rand() % 50), (uint32_t)i);
        memcpy(sorted, keys, sizeof keys);
        kv_rank_sort(sorted, n);
        while (want < n && sum < rows) sum += size[kv_rank_index(sorted[want++])];
        ck_assert_uint_eq(kv_rank_cover(keys, n, size, rows), want);
        if (want) ck_assert_uint_eq(keys[want - 1], sorted[want - 1]);
        qsort(keys, want, sizeof *keys, ascending);
        ck_assert(!want || !memcmp(keys, sorted, want * sizeof *keys));
    }
}
END_TEST

START_TEST(ranges_of_masks)
{
    for (int32_t from = 0; from <= 200; from += 7)
        for (int32_t to = from; to <= 200; to += 5) {
            uint64_t mask[4] = {0};
            kv_mask_set_range(mask, from, to);
            ck_assert_int_eq(kv_mask_count(mask, 4), to - from);
            for (int32_t i = 0; i < 256; i++) ck_assert_int_eq(kv_mask_has(mask, i), i >= from && i < to);
        }
    ck_assert_int_eq(kv_mask_words(0), 0);
    ck_assert_int_eq(kv_mask_words(64), 1);
    ck_assert_int_eq(kv_mask_words(65), 2);
}
END_TEST

Suite *suite_rank(void);
Suite *suite_rank(void)
{
    Suite *s = suite_create("rank");
    TCase *c = tcase_create("rank");
    tcase_add_test(c, keys_order_scores_then_indices);
    tcase_add_test(c, keys_made_together_are_those_made_alone);
    tcase_add_test(c, select_and_sort_agree_with_the_library);
    tcase_add_test(c, cover_stops_where_a_sorted_walk_does);
    tcase_add_test(c, ranges_of_masks);
    suite_add_tcase(s, c);
    return s;
}
