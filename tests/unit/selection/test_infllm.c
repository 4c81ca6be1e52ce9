/* test_infllm.c — InfLLM: the source's toy, representatives by influence, sealing. */
#include "tests/unit/selection/case.h"

#include <math.h>
#include <string.h>

static void toy_params(struct test_case *t)
{
    case_param(t, "unit_rows", 3);
    case_param(t, "representatives", 1);
    case_param(t, "units", 2);
    case_param(t, "sink_rows", 1);
    case_param(t, "local_rows", 2);
}

/* Units of rows 1–3, 4–6, 7–9 whose rows agree, scores .95 .20 −.80. */
START_TEST(the_toy_recalls_whole_units)
{
    static const float q[2] = {1, 0};
    static const float k[12][2] = {{0, 1}, {0.95f, 0}, {0.95f, 0}, {0.95f, 0}, {0.2f, 0}, {0.2f, 0}, {0.2f, 0}, {-0.8f, 0}, {-0.8f, 0}, {-0.8f, 0}, {0, 1}, {0, 1}};
    struct test_case t;
    case_plane(&t, "infllm", q, k, NULL, 12);
    toy_params(&t);
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 2, 3, 4, 5, 6, 10, 11}, 9);
    ck_assert_int_eq(r.n_units[0], 3);
    ck_assert_float_eq_tol(r.score[0], 0.95f, 1e-6);
    ck_assert_float_eq_tol(r.score[1], 0.20f, 1e-6);
    ck_assert_float_eq_tol(r.score[2], -0.80f, 1e-6);
    ck_assert(r.chosen[0] && r.chosen[1] && !r.chosen[2]);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* Prefill queries (0, 1) at the last three positions, one K/V head; rows 7–9 lie in front of them: row 8 has the largest y. */
START_TEST(representatives_are_the_rows_of_most_influence)
{
    static const float q[2] = {1, 0};
    float k[12][2] = {{0}};
    k[7][0] = 5, k[8][0] = 7, k[9][0] = 6;
    k[7][1] = 1, k[8][1] = 3, k[9][1] = 2;
    struct test_case t;
    case_plane(&t, "infllm", q, (const float (*)[2])k, NULL, 12);
    toy_params(&t);
    case_prefill(&t, 3, 0);
    memcpy(t.prefill, (const float[]){0, 1, 0, 1, 0, 1}, 6 * sizeof(float));
    struct kv_lab_result r = case_run(&t);
    ck_assert_float_eq_tol(r.score[2], 7, 1e-6);
    kv_lab_result_free(&r);
    t.prefill[5] = 100; /* the query at row 11 lies in the window of row 9 (10 and 11), not of row 8 (9 and 10) */
    r = case_run(&t);
    ck_assert_float_eq_tol(r.score[2], 6, 1e-6);
    kv_lab_result_free(&r);
    t.prefill[5] = 1;
    k[9][1] = 4; /* now the last row of the unit was used most */
    memcpy(t.k, k, sizeof k);
    r = case_run(&t);
    ck_assert_float_eq_tol(r.score[2], 6, 1e-6);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* Units ranked by the sum over group and representatives, against a plain sum when every row represents its unit. */
START_TEST(units_are_ranked_by_the_sum_over_the_group)
{
    struct test_case t;
    case_random(&t, "infllm", 4, 2, 16, 103, 6);
    case_param(&t, "unit_rows", 8);
    case_param(&t, "representatives", 8);
    case_param(&t, "units", 3);
    case_param(&t, "sink_rows", 4);
    case_param(&t, "local_rows", 10);
    struct kv_lab_result r = case_run(&t);
    for (int32_t h = 0; h < 4; h++) {
        ck_assert_int_eq(r.n_units[h], 11);
        for (int32_t u = 0; u < 11; u++) {
            double sum = 0;
            for (int32_t g = 0; g < 2; g++)
                for (int32_t i = 4 + 8 * u; i < 12 + 8 * u; i++) sum += case_logit(&t, h / 2 * 2 + g, i) * sqrt(16);
            ck_assert_double_eq_tol((double)r.score[(size_t)h * (size_t)r.cap_units + (size_t)u], sum, 1e-3);
        }
    }
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

START_TEST(seal_closes_a_short_unit_in_front_of_the_window)
{
    struct test_case t;
    case_random(&t, "infllm", 1, 1, 4, 14, 6);
    toy_params(&t);
    struct kv_lab_step steps[] = {{KV_LAB_BUILD, 11}, {KV_LAB_SEAL, 0}, {KV_LAB_APPEND, 3}};
    t.c.steps = steps;
    t.c.n_steps = 1; /* units 1–3 and 4–6; 7, 8 open; window 9, 10 */
    struct kv_lab_result r = case_run(&t);
    ck_assert_int_eq(r.n_units[0], 2);
    kv_lab_result_free(&r);
    t.c.n_steps = 2; /* 7, 8 become a unit */
    r = case_run(&t);
    ck_assert_int_eq(r.n_units[0], 3);
    kv_lab_result_free(&r);
    t.c.n_steps = 3; /* 9–11 follow it */
    r = case_run(&t);
    ck_assert_int_eq(r.n_units[0], 4);
    ck_assert_int_eq(kv_mask_count(r.support, r.n_blocks), 1 + (r.chosen[2] ? 2 : 3) + 3 + 2);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

Suite *suite_infllm(void);
Suite *suite_infllm(void)
{
    Suite *s = suite_create("infllm");
    TCase *c = tcase_create("infllm");
    tcase_add_test(c, the_toy_recalls_whole_units);
    tcase_add_test(c, representatives_are_the_rows_of_most_influence);
    tcase_add_test(c, units_are_ranked_by_the_sum_over_the_group);
    tcase_add_test(c, seal_closes_a_short_unit_in_front_of_the_window);
    suite_add_tcase(s, c);
    return s;
}
