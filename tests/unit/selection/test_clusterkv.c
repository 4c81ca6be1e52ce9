/* test_clusterkv.c — ClusterKV: the source's toy, a centroid that hides the best row, windows, empty clusters. */
#include "tests/unit/selection/case.h"

#include <math.h>
#include <string.h>

/* Angles whose normalised means are the source's (.991, .136), (.118, .993), (−.998, .055). Row 0 is the sink. */
static void toy(struct test_case *t, float k[9][2])
{
    static const double degrees[9] = {0, 2.8, 7.8, 12.8, 78.2, 83.2, 88.2, 171.8, 181.8};
    static const float q[2] = {1, 0.1f};
    static const int32_t seeds[3] = {1, 5, 8};
    for (int i = 0; i < 9; i++) {
        k[i][0] = (float)cos(degrees[i] * 3.141592653589793 / 180);
        k[i][1] = (float)sin(degrees[i] * 3.141592653589793 / 180);
    }
    case_plane(t, "clusterkv", q, (const float (*)[2])k, NULL, 9);
    case_param(t, "sink_rows", 1);
    case_param(t, "budget_rows", 5);
    t->c.cluster_seeds = seeds;
    t->c.n_cluster_seeds = 3;
}

START_TEST(the_toy_trims_the_last_cluster)
{
    struct test_case t;
    float k[9][2];
    toy(&t, k);
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 2, 3, 4, 5}, 6); /* the sink, cluster {1,2,3}, two rows of {4,5,6} */
    static const double centroid[3][2] = {{0.991, 0.136}, {0.118, 0.993}, {-0.998, 0.055}};
    for (int c = 0; c < 3; c++) ck_assert_double_eq_tol((double)r.score[c], centroid[c][0] + 0.1 * centroid[c][1], 1e-3);
    ck_assert(r.chosen[0] && r.chosen[1] && !r.chosen[2]);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* The cluster of the better mean is read; the best row sits in the other. */
START_TEST(a_centroid_can_hide_the_best_row)
{
    static const float k[6][2] = {{9, 1}, {-0.1f, 2}, {-0.1f, 2}, {0.1f, -2}, {0.1f, -2}, {0.1f, -2}}, q[2] = {1, -1};
    struct test_case t;
    case_plane(&t, "clusterkv", q, k, NULL, 6);
    memcpy(t.k, (const float[]){0.9f, 9, -0.1f, 2, -0.1f, 2, 0.1f, -2, 0.1f, -2, 0.1f, -2}, 12 * sizeof *t.k);
    t.q[0] = 10, t.q[1] = -0.5f;
    case_param(&t, "sink_rows", 0);
    case_param(&t, "budget_rows", 3);
    t.c.cluster_seeds = (const int32_t[]){1, 3};
    t.c.n_cluster_seeds = 2;
    struct kv_lab_result r = case_run(&t);
    int32_t best = 0;
    for (int32_t i = 1; i < 6; i++)
        if (case_logit(&t, 0, i) > case_logit(&t, 0, best)) best = i;
    ck_assert_int_eq(best, 0);
    expect_rows(&r, 0, (const int32_t[]){3, 4, 5}, 3);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* Two seeds on one row: the second cluster stays empty, is not ranked, and nothing is lost. */
START_TEST(an_empty_cluster_is_never_ranked)
{
    struct test_case t;
    float k[9][2];
    toy(&t, k);
    for (int i = 2; i < 4; i++) memcpy(t.k + 2 * i, t.k + 2, 2 * sizeof *t.k); /* three rows of one direction: a centroid that cannot move */
    t.c.cluster_seeds = (const int32_t[]){1, 1, 5, 8};
    t.c.n_cluster_seeds = 4;
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 2, 3, 4, 5}, 6);
    ck_assert_uint_eq(r.ledger.candidates, 3);
    ck_assert(isnan(r.score[1]) && !r.chosen[1]);
    kv_lab_result_free(&r);
    case_param(&t, "budget_rows", 9);
    r = case_run(&t);
    ck_assert_int_eq(kv_mask_count(r.support, r.n_blocks), 9);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

START_TEST(windows_are_sealed_behind_the_newest_row)
{
    struct test_case t;
    case_random(&t, "clusterkv", 1, 1, 8, 61, 3);
    case_param(&t, "sink_rows", 0);
    case_param(&t, "clusters", 2);
    case_param(&t, "budget_rows", 1);
    case_param(&t, "window_rows", 20);
    struct kv_lab_step steps[] = {{KV_LAB_BUILD, 40}, {KV_LAB_APPEND, 20}, {KV_LAB_APPEND, 1}, {KV_LAB_DROP, 50}, {KV_LAB_SEAL, 0}};
    t.c.steps = steps;
    static const int32_t clusters[] = {2, 2, 6}, rows[] = {1, 21, 2};
    for (int i = 0; i < 3; i++) {
        t.c.n_steps = i + 1;
        struct kv_lab_result r = case_run(&t);
        ck_assert_int_eq(r.n_units[0], clusters[i]);
        ck_assert_int_eq(kv_mask_count(r.support, r.n_blocks), rows[i]);
        kv_lab_result_free(&r);
    }
    t.c.n_steps = 5; /* ten members of the window are gone, the rest keep their clusters */
    case_param(&t, "budget_rows", 61);
    struct kv_lab_result r = case_run(&t);
    ck_assert_int_eq(kv_mask_count(r.support, r.n_blocks), 50);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

START_TEST(seeds_outside_the_clustered_rows_are_refused)
{
    struct test_case t;
    struct kv_lab_result r;
    struct kv_error err;
    float k[9][2];
    toy(&t, k);
    t.c.cluster_seeds = (const int32_t[]){0, 5, 8}; /* the sink is not clustered */
    ck_assert_int_eq(kv_lab_run(&t.c, &r, &err), KV_BAD_ARGUMENT);
    case_param(&t, "clusters", 2);
    t.c.cluster_seeds = (const int32_t[]){1, 5, 8};
    ck_assert_int_eq(kv_lab_run(&t.c, &r, &err), KV_BAD_ARGUMENT);
    case_free(&t);
}
END_TEST

Suite *suite_clusterkv(void);
Suite *suite_clusterkv(void)
{
    Suite *s = suite_create("clusterkv");
    TCase *c = tcase_create("clusterkv");
    tcase_add_test(c, the_toy_trims_the_last_cluster);
    tcase_add_test(c, a_centroid_can_hide_the_best_row);
    tcase_add_test(c, an_empty_cluster_is_never_ranked);
    tcase_add_test(c, windows_are_sealed_behind_the_newest_row);
    tcase_add_test(c, seeds_outside_the_clustered_rows_are_refused);
    suite_add_tcase(s, c);
    return s;
}
