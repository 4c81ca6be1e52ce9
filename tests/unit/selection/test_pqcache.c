/* test_pqcache.c — PQCache: a fit that cannot go wrong, a counterexample, window exit, the dense rule. */
#include "tests/unit/selection/case.h"

#include <math.h>
#include <string.h>

static void small(struct test_case *t, double bits, double top)
{
    case_param(t, "subspaces", 1);
    case_param(t, "bits", bits);
    case_param(t, "sink_rows", 0);
    case_param(t, "local_rows", 0);
    case_param(t, "top_rows", top);
}

/* Keys repeat few distinct values: with a centroid for each the codes lose nothing, and ranking is that of the exact logits. */
START_TEST(lossless_codes_rank_as_exact_logits)
{
    struct test_case t;
    case_random(&t, "pqcache", 4, 2, 8, 120, 4);
    for (int32_t h = 0; h < 2; h++)
        for (int32_t i = 0; i < 120; i++)
            for (int32_t half = 0; half < 2; half++) memcpy(t.k + ((h * 120 + i) * 8 + 4 * half), t.v + 4 * ((i * (half + 1) + i / 7) % 5), 4 * sizeof *t.k);
    case_param(&t, "bits", 6);
    case_param(&t, "sink_rows", 2);
    case_param(&t, "local_rows", 3);
    case_param(&t, "top_rows", 9);
    struct kv_lab_result r = case_run(&t);
    for (int32_t h = 0; h < 2; h++) {
        double total[120] = {0}, least = INFINITY, best_left = -INFINITY;
        for (int32_t g = 0; g < 2; g++) {
            double sum = 0;
            for (int32_t i = 2; i < 117; i++) sum += exp(case_logit(&t, 2 * h + g, i));
            for (int32_t i = 2; i < 117; i++) total[i] += exp(case_logit(&t, 2 * h + g, i)) / sum;
        }
        const uint64_t *mask = r.support + 2 * h * r.n_blocks;
        for (int32_t i = 2; i < 117; i++) {
            if (kv_mask_has(mask, i)) least = fmin(least, total[i]);
            else best_left = fmax(best_left, total[i]);
        }
        ck_assert_double_ge(least, best_left * (1 - 1e-5));
        ck_assert_int_eq(kv_mask_count(mask, r.n_blocks), 2 + 9 + 3);
        for (int32_t i = 0; i < 2; i++) ck_assert(kv_mask_has(mask, i));
    }
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* Two clusters far apart along x; the query looks along y. The mean of the cluster with the best row is low. */
START_TEST(nearest_codes_can_miss_the_best_row)
{
    static const float k[6][2] = {{100, 5}, {100, -4}, {100, -4}, {-100, 1}, {-100, 1}, {-100, 1}}, q[2] = {0, 1};
    struct test_case t;
    case_plane(&t, "pqcache", q, k, NULL, 6);
    small(&t, 1, 3);
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){3, 4, 5}, 3);
    ck_assert_double_gt(r.head[0].omitted_mass, 0.5); /* row 0 is the best by far */
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

START_TEST(few_candidates_are_all_taken)
{
    struct test_case t;
    case_random(&t, "pqcache", 1, 1, 8, 160, 2);
    case_param(&t, "top_rows", 1); /* sink 32, window 64: 64 candidates for 64 centroids */
    struct kv_lab_result r = case_run(&t);
    ck_assert_int_eq(kv_mask_count(r.support, r.n_blocks), 160);
    kv_lab_result_free(&r);
    case_free(&t);
    case_random(&t, "pqcache", 1, 1, 8, 161, 2);
    case_param(&t, "top_rows", 1);
    r = case_run(&t);
    ck_assert_int_eq(kv_mask_count(r.support, r.n_blocks), 32 + 64 + 1);
    kv_lab_result_free(&r);
    struct kv_lab_step steps[] = {{KV_LAB_BUILD, 161}, {KV_LAB_DROP, 160}}; /* fitted, and again few */
    t.c.steps = steps;
    t.c.n_steps = 2;
    r = case_run(&t);
    ck_assert_int_eq(kv_mask_count(r.support, r.n_blocks), 160);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* A row gets its codes when it leaves the window: index bytes grow by one code per subspace and row. */
START_TEST(codes_are_made_at_window_exit)
{
    struct test_case t;
    case_random(&t, "pqcache", 1, 1, 8, 100, 2);
    small(&t, 3, 8);
    case_param(&t, "local_rows", 10);
    struct kv_lab_step steps[] = {{KV_LAB_BUILD, 80}, {KV_LAB_APPEND, 5}};
    t.c.steps = steps;
    t.c.n_steps = 1;
    struct kv_lab_result before = case_run(&t);
    t.c.n_steps = 2;
    struct kv_lab_result after = case_run(&t);
    ck_assert_uint_eq(before.ledger.candidates, 70);
    ck_assert_uint_eq(after.ledger.candidates, 75);
    ck_assert_uint_eq(before.ledger.index_bytes, 70 + 8 * 8 * sizeof(float));
    ck_assert_uint_eq(after.ledger.index_bytes - before.ledger.index_bytes, 5);
    kv_lab_result_free(&before);
    kv_lab_result_free(&after);
    case_free(&t);
}
END_TEST

/* Words are ranked as their rows would be, through appends and drops; ties go to the lower row across words, too. */
START_TEST(ranking_words_is_ranking_rows)
{
    enum { N = 400, WORDS = 7 };
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct test_case t;
        struct kv_lab_rows stored;
        struct kv_selector *s;
        struct kv_error err;
        case_random(&t, "pqcache", 3, 1, 8, N, seed);
        if (seed % 3 == 0) /* few distinct keys: many rows of a word, and words of one score */
            for (int i = 0; i < N; i++) memcpy(t.k + i * 8, t.k + (i * 13 % 23) * 8, 8 * sizeof *t.k);
        if (seed % 4 == 0) memset(t.q, 0, 8 * 3 * sizeof *t.q);
        case_param(&t, "bits", seed % 2 ? 3 : 6);
        case_param(&t, "top_rows", (double)(10 + seed * 3));
        case_param(&t, "local_rows", 9);
        ck_assert_int_eq(kv_lab_rows_create(KV_F16, 8, 3, 0.3f, N, t.k, t.v, &stored), KV_OK);
        ck_assert_int_eq(t.c.method->create(&t.c.params, 8, 3, N, 3, &s, &err), KV_OK);
        struct kv_rows *rows = &stored.rows;
        rows->n_rows = 300;
        ck_assert_int_eq(t.c.method->build(s, rows, NULL, 0), KV_OK);
        for (int step = 0; step < 6; step++) {
            uint64_t words[3 * WORDS], plain[3 * WORDS];
            float score[3 * N];
            uint8_t chosen[3 * N];
            struct kv_trace trace = {N, 0, score, chosen};
            struct kv_ledger ledger = {0};
            ck_assert_int_eq(t.c.method->query(s, rows, t.q, 0, words, WORDS, NULL, &ledger), KV_OK);
            ledger.trace = &trace;
            ck_assert_int_eq(t.c.method->query(s, rows, t.q, 0, plain, WORDS, NULL, &ledger), KV_OK);
            ck_assert_msg(!memcmp(words, plain, sizeof words), "seed %d step %d", (int)seed, step);
            int32_t at = step % 2 ? rows->n_rows - 20 : rows->n_rows;
            ck_assert_int_eq(t.c.method->drop(s, at), KV_OK);
            rows->n_rows = at + 25;
            ck_assert_int_eq(t.c.method->append(s, rows, at), KV_OK);
        }
        t.c.method->destroy(s);
        kv_lab_rows_free(&stored);
        case_free(&t);
    }
}
END_TEST

START_TEST(subspaces_must_divide_the_width)
{
    struct test_case t;
    struct kv_lab_result r;
    struct kv_error err;
    case_random(&t, "pqcache", 1, 1, 8, 10, 2);
    case_param(&t, "subspaces", 3);
    ck_assert_int_eq(kv_lab_run(&t.c, &r, &err), KV_BAD_ARGUMENT);
    ck_assert_str_eq(err.where, "subspaces");
    case_free(&t);
}
END_TEST

Suite *suite_pqcache(void);
Suite *suite_pqcache(void)
{
    Suite *s = suite_create("pqcache");
    TCase *c = tcase_create("pqcache");
    tcase_add_test(c, lossless_codes_rank_as_exact_logits);
    tcase_add_test(c, nearest_codes_can_miss_the_best_row);
    tcase_add_test(c, few_candidates_are_all_taken);
    tcase_add_test(c, codes_are_made_at_window_exit);
    tcase_add_test(c, ranking_words_is_ranking_rows);
    tcase_add_test(c, subspaces_must_divide_the_width);
    suite_add_tcase(s, c);
    return s;
}
