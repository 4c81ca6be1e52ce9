/* test_infinigen.c — InfiniGen against a closed-form basis in the plane; its threshold, its cap, its equalised count. */
#include "tests/unit/selection/case.h"

#include <math.h>
#include <string.h>

enum { T = 40, PREFILL = 12 };

struct plane {
    double a[2][2]; /* columns: right singular vectors of the prefill queries, the stronger first */
    int32_t column; /* the one of more evidence */
};

static struct plane closed_form(const struct test_case *t)
{
    struct plane p;
    double xx = 0, yy = 0, xy = 0, evidence[2] = {0};
    for (int32_t i = 0; i < PREFILL; i++) {
        double x = (double)t->prefill[2 * i], y = (double)t->prefill[2 * i + 1];
        xx += x * x, yy += y * y, xy += x * y;
    }
    double angle = 0.5 * atan2(2 * xy, xx - yy);
    p.a[0][0] = p.a[1][1] = cos(angle);
    p.a[1][0] = sin(angle);
    p.a[0][1] = -sin(angle);
    for (int32_t j = 0; j < 2; j++) {
        for (int32_t i = 0; i < PREFILL; i++) evidence[j] += fabs((double)t->prefill[2 * i] * p.a[0][j] + (double)t->prefill[2 * i + 1] * p.a[1][j]);
        for (int32_t i = 0; i < T; i++) evidence[j] += fabs((double)t->k[2 * i] * p.a[0][j] + (double)t->k[2 * i + 1] * p.a[1][j]);
    }
    p.column = evidence[1] > evidence[0];
    return p;
}

START_TEST(rows_are_those_of_the_closed_form)
{
    for (int trial = 0; trial < 20; trial++) {
        struct test_case t;
        case_random(&t, "infinigen", 1, 1, 2, T, (uint64_t)trial);
        case_prefill(&t, PREFILL, (uint64_t)trial);
        for (int32_t i = 0; i < PREFILL; i++) t.prefill[2 * i] *= 4; /* queries of one dominant direction */
        case_param(&t, "partial_ratio", 0.5);
        case_param(&t, "alpha", 1);
        case_param(&t, "cap_rows", 400);
        struct plane p = closed_form(&t);
        struct kv_lab_result r = case_run(&t);
        double score[T], top = -INFINITY, turned = (double)t.q[0] * p.a[0][p.column] + (double)t.q[1] * p.a[1][p.column];
        for (int32_t i = 0; i < T; i++) {
            score[i] = turned * ((double)t.k[2 * i] * p.a[0][p.column] + (double)t.k[2 * i + 1] * p.a[1][p.column]) / sqrt(2);
            if (score[i] > top) top = score[i];
        }
        uint64_t wanted = 0;
        for (int32_t i = 0; i < T; i++) {
            wanted += score[i] > top - 1;
            ck_assert_double_eq_tol((double)r.score[i], score[i], 1e-4);
            ck_assert_int_eq(kv_mask_has(r.support, i), score[i] > top - 1 || i == T - 1);
        }
        ck_assert_uint_eq(r.ledger.candidates, wanted);
        kv_lab_result_free(&r);
        case_free(&t);
    }
}
END_TEST

/* With every channel kept the rotation alone is exact: scores are the full logits. */
START_TEST(skewing_preserves_full_scores)
{
    struct test_case t;
    case_random(&t, "infinigen", 4, 2, 24, 50, 8);
    case_prefill(&t, 9, 8);
    case_param(&t, "partial_ratio", 1);
    struct kv_lab_result r = case_run(&t);
    for (int32_t h = 0; h < 4; h++)
        for (int32_t i = 0; i < 50; i++) ck_assert_double_eq_tol((double)r.score[(size_t)h * (size_t)r.cap_units + (size_t)i], case_logit(&t, h, i), 1e-4);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* Queries lean to x, keys lie along y and outweigh them: the shared column is y. */
START_TEST(keys_are_evidence_too)
{
    static const float q[2] = {1, 1}, k[3][2] = {{0, 9}, {0, 5}, {0, 1}};
    struct test_case t;
    case_plane(&t, "infinigen", q, k, NULL, 3);
    t.c.scale = 1;
    case_prefill(&t, 2, 0);
    memcpy(t.prefill, (const float[]){2, 0, 0, 1}, 4 * sizeof *t.prefill);
    case_param(&t, "partial_ratio", 0.5);
    struct kv_lab_result r = case_run(&t);
    for (int i = 0; i < 3; i++) ck_assert_float_eq_tol(r.score[i], k[i][1], 1e-5);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

static const float line_k[6][2] = {{3, 0}, {2.5f, 0}, {2, 0}, {0, 0}, {-1, 0}, {-2, 0}};

START_TEST(the_cap_is_declared_and_counted)
{
    static const float q[2] = {1, 0};
    struct test_case t;
    case_plane(&t, "infinigen", q, line_k, NULL, 6);
    t.c.scale = 1;
    case_param(&t, "partial_ratio", 1);
    case_param(&t, "alpha", 1.5);
    case_param(&t, "cap_rows", 2);
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 5}, 3);
    ck_assert_uint_eq(r.ledger.candidates, 3);
    ck_assert_uint_eq(r.ledger.units, 2);
    kv_lab_result_free(&r);
    case_param(&t, "alpha", 1); /* 2 is not over 3 - 1 */
    case_param(&t, "cap_rows", 400);
    r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 5}, 3);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* One flat head wants all rows, one sharp head wants one: each takes the mean count. */
START_TEST(equalised_heads_take_the_mean_count)
{
    struct test_case t;
    case_random(&t, "infinigen", 2, 1, 2, 6, 0);
    memcpy(t.k, line_k, sizeof line_k);
    memcpy(t.q, (const float[]){0, 0, 10, 0}, 4 * sizeof *t.q);
    t.c.scale = 1;
    case_param(&t, "partial_ratio", 1);
    case_param(&t, "alpha", 1);
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 2, 5}, 4); /* ⌊(6 + 1) / 2⌋ and the newest */
    expect_rows(&r, 1, (const int32_t[]){0, 1, 2, 5}, 4);
    kv_lab_result_free(&r);
    case_param(&t, "equalise", 0);
    r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 2, 3, 4, 5}, 6);
    expect_rows(&r, 1, (const int32_t[]){0, 5}, 2);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

Suite *suite_infinigen(void);
Suite *suite_infinigen(void)
{
    Suite *s = suite_create("infinigen");
    TCase *c = tcase_create("infinigen");
    tcase_add_test(c, rows_are_those_of_the_closed_form);
    tcase_add_test(c, keys_are_evidence_too);
    tcase_add_test(c, skewing_preserves_full_scores);
    tcase_add_test(c, the_cap_is_declared_and_counted);
    tcase_add_test(c, equalised_heads_take_the_mean_count);
    suite_add_tcase(s, c);
    return s;
}
