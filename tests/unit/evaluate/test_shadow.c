/* test_shadow.c — the dense reference against a plain softmax in long double, its identity and bound, and the ways it must fail. */
#include "runtime/evaluate/shadow.h"
#include "tests/unit/selection/case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 8, N = 100, BLOCKS = 2 };

struct unit {
    struct test_case t;
    struct kv_lab_rows stored;
    struct kv_shadow_unit u;
    uint64_t support[BLOCKS];
    double scratch[2 * N + 4 * D + 16];
};

static void open_unit(struct unit *x, uint64_t seed)
{
    memset(x, 0, sizeof *x);
    case_random(&x->t, "dense", 1, 1, D, N, seed);
    ck_assert_int_eq(kv_lab_rows_create(KV_F32, D, 1, (float)(1 / sqrt(D)), N, x->t.k, x->t.v, &x->stored), KV_OK);
    x->t.c.scale = (double)x->stored.rows.scale;
    x->u = (struct kv_shadow_unit){.rows = &x->stored.rows, .q = x->t.q, .support = x->support, .n_blocks = BLOCKS};
}

static void close_unit(struct unit *x)
{
    kv_lab_rows_free(&x->stored);
    case_free(&x->t);
}

static struct kv_shadow_head judge(struct unit *x, struct kv_sample *sample, double *dense, double *retained)
{
    struct kv_shadow_head h;
    ck_assert_int_eq(kv_shadow_unit(&x->u, x->scratch, sizeof x->scratch / sizeof *x->scratch, sample, &h, dense, retained), KV_OK);
    return h;
}

START_TEST(figures_are_those_of_a_plain_softmax)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct unit x;
        struct kv_sample sample = {.request = 42};
        double dense[D], retained[D];
        open_unit(&x, seed);
        for (int32_t i = 0; i < N; i++)
            if ((i * 7 + (int32_t)seed) % 3 == 0) kv_mask_set(x.support, i);
        x.u.recall_k = 10;
        struct kv_shadow_head h = judge(&x, &sample, dense, retained);
        long double all = 0, in = 0, o[D] = {0}, o_r[D] = {0}, error = 0, norm = 0, v_max = 0;
        int32_t rows = 0, hits = 0;
        for (int32_t i = 0; i < N; i++) {
            long double p = expl((long double)case_logit(&x.t, 0, i)), squares = 0;
            bool taken = kv_mask_has(x.support, i);
            int32_t better = 0;
            for (int32_t j = 0; j < N; j++) better += case_logit(&x.t, 0, j) > case_logit(&x.t, 0, i);
            hits += taken && better < 10;
            rows += taken;
            all += p, in += taken ? p : 0;
            for (int32_t c = 0; c < D; c++) {
                long double v = (long double)x.t.v[i * D + c];
                o[c] += p * v, o_r[c] += taken ? p * v : 0, squares += v * v;
            }
            if (squares > v_max * v_max) v_max = sqrtl(squares);
        }
        for (int32_t c = 0; c < D; c++) {
            long double e = o_r[c] / in - o[c] / all;
            error += e * e, norm += o[c] / all * (o[c] / all);
            ck_assert_double_eq_tol(dense[c], (double)(o[c] / all), 1e-13);
            ck_assert_double_eq_tol(retained[c], (double)(o_r[c] / in), 1e-13);
        }
        ck_assert_int_eq(h.rows, rows);
        ck_assert_double_eq_tol(h.retained_mass, (double)(in / all), 1e-13);
        ck_assert_double_eq_tol(h.omitted_mass, 1 - (double)(in / all), 1e-13);
        ck_assert_double_eq_tol(h.output_error, (double)sqrtl(error), 1e-13);
        ck_assert_double_eq_tol(h.output_error_relative, (double)sqrtl(error / norm), 1e-12);
        ck_assert_double_eq_tol(h.v_max, (double)v_max, 1e-12);
        ck_assert_double_eq_tol(h.bound, 2 * h.omitted_mass * (double)v_max, 1e-12);
        ck_assert_double_eq_tol(h.recall, hits / 10.0, 1e-15);
        ck_assert_double_lt(h.identity_residual, 1e-14);
        ck_assert(h.bound_holds);
        ck_assert_uint_eq(sample.request, 42);
        ck_assert_int_eq(sample.rows_selected, rows);
        ck_assert_double_eq(sample.omitted_mass, h.omitted_mass);
        close_unit(&x);
    }
}
END_TEST

START_TEST(whole_and_empty_supports_stand_apart)
{
    struct unit x;
    struct kv_sample sample = {0};
    open_unit(&x, 3);
    x.u.support = NULL;
    struct kv_shadow_head h = judge(&x, &sample, NULL, NULL);
    ck_assert_double_eq(h.omitted_mass, 0);
    ck_assert_double_eq(h.output_error, 0);
    ck_assert(h.bound_holds);
    x.u.support = x.support; /* nothing retained: δ = 1, the output is zero and its error the dense norm */
    h = judge(&x, &sample, NULL, NULL);
    ck_assert_double_eq(h.omitted_mass, 1);
    ck_assert_double_eq(h.output_error, h.output_norm);
    ck_assert_double_eq(h.identity_residual, 0);
    ck_assert(h.bound_holds);
    close_unit(&x);
}
END_TEST

/* exp(-2000) is nothing beside 1, and yet the support has an output of its own. */
START_TEST(a_support_of_vanishing_mass_has_an_output)
{
    struct unit x;
    struct kv_sample sample = {0};
    double retained[D];
    open_unit(&x, 3);
    x.stored.rows.scale = 1;
    float *k = x.stored.block[0];
    for (int c = 0; c < D; c++) k[c] = c ? 0 : 2000 / x.t.q[0], k[D + c] = 0;
    kv_mask_set(x.support, 1);
    x.stored.rows.n_rows = 2;
    struct kv_shadow_head h = judge(&x, &sample, NULL, retained);
    ck_assert_double_eq(h.omitted_mass, 1);
    ck_assert_double_eq(h.l, 1);
    for (int c = 0; c < D; c++) ck_assert_double_eq(retained[c], (double)x.t.v[D + c]);
    close_unit(&x);
}
END_TEST

START_TEST(a_wrong_output_breaks_the_bound)
{
    struct unit x;
    struct kv_sample sample = {0};
    float output[D];
    double retained[D];
    open_unit(&x, 5);
    kv_mask_set_range(x.support, 0, 90);
    judge(&x, &sample, NULL, retained);
    for (int c = 0; c < D; c++) output[c] = (float)retained[c];
    x.u.output = output;
    ck_assert(judge(&x, &sample, NULL, NULL).bound_holds);
    output[3] += 100;
    ck_assert(!judge(&x, &sample, NULL, NULL).bound_holds);
    ck_assert(!sample.bound_holds);
    x.u.estimator = true; /* of which the bound is not promised */
    ck_assert(judge(&x, &sample, NULL, NULL).bound_holds);
    output[3] = NAN;
    x.u.estimator = false;
    ck_assert(!judge(&x, &sample, NULL, NULL).bound_holds);
    ck_assert(isnan(sample.output_error));
    close_unit(&x);
}
END_TEST

/* The live form says what the reference says, to fp32's digits, for supports small, large and whole. */
START_TEST(live_units_are_judged_as_by_the_reference)
{
    struct unit x;
    struct kv_sample reference = {0}, live = {0};
    float output[D];
    double retained[D], scratch[4096];
    open_unit(&x, 5 + (unsigned)_i);
    kv_mask_set_range(x.support, 3, _i == 2 ? 4 : 10 + 40 * _i);
    if (_i == 3) x.u.support = NULL;
    judge(&x, &reference, NULL, retained);
    ck_assert(kv_shadow_online_doubles(N, D, 1) <= sizeof scratch / sizeof *scratch);
    ck_assert_int_eq(kv_shadow_online(&x.u, scratch, kv_shadow_online_doubles(N, D, 1), &live), KV_OK);
    ck_assert_double_eq_tol(live.omitted_mass, reference.omitted_mass, 1e-5);
    ck_assert_double_eq_tol(live.output_error, reference.output_error, 1e-4);
    ck_assert_double_eq_tol(live.output_error_relative, reference.output_error_relative, 1e-4);
    ck_assert_int_eq(live.rows_selected, reference.rows_selected);
    ck_assert(live.bound_holds);
    for (int c = 0; c < D; c++) output[c] = (float)retained[c];
    output[3] += 100;
    x.u.output = output;
    ck_assert_int_eq(kv_shadow_online(&x.u, scratch, sizeof scratch / sizeof *scratch, &live), KV_OK);
    ck_assert(!live.bound_holds);
    output[3] = NAN;
    x.u.estimator = true;
    ck_assert_int_eq(kv_shadow_online(&x.u, scratch, sizeof scratch / sizeof *scratch, &live), KV_OK);
    ck_assert(!live.bound_holds);
    ck_assert_int_eq(kv_shadow_online(&x.u, scratch, kv_shadow_online_doubles(N, D, 1) - 1, &live), KV_BAD_ARGUMENT);
    close_unit(&x);
}
END_TEST

/* Attention as the step left it stands for its own computation, on either side. */
START_TEST(known_states_are_taken_as_they_are)
{
    struct unit x;
    struct kv_sample computed = {0}, known = {0};
    double scratch[4096];
    float whole[2 + D], part[2 + D], tree[8 * (D + 48)];
    int32_t visible = N;
    open_unit(&x, 9);
    kv_mask_set_range(x.support, 3, 60);
    ck_assert_int_eq(kv_shadow_online(&x.u, scratch, sizeof scratch / sizeof *scratch, &computed), KV_OK);
    struct kv_attention a = {D, 1, x.u.q, D, x.u.rows->row_type, x.u.rows->scale, x.u.n_blocks, x.u.rows->k, x.u.rows->v, &visible, NULL};
    struct kv_states all = {whole, whole + 1, whole + 2}, some = {part, part + 1, part + 2};
    kv_attend_subtree(kv_kernels(), &a, kv_tree_level(a.n_blocks), 0, all, tree), kv_kernels()->finish(1, D, all, all.u, D);
    a.support = x.u.support;
    kv_attend_subtree(kv_kernels(), &a, kv_tree_level(a.n_blocks), 0, some, tree), kv_kernels()->finish(1, D, some, some.u, D);
    for (int i = 0; i < 3; i++) {
        x.u.whole = i != 1 ? all : (struct kv_states){0};
        x.u.part = i != 0 ? some : (struct kv_states){0};
        ck_assert_int_eq(kv_shadow_online(&x.u, scratch, sizeof scratch / sizeof *scratch, &known), KV_OK);
        ck_assert_mem_eq(&known, &computed, sizeof known);
    }
    ck_assert_double_gt(computed.omitted_mass, 0.01);
    *all.l *= 2; /* it is used, not computed again */
    ck_assert_int_eq(kv_shadow_online(&x.u, scratch, sizeof scratch / sizeof *scratch, &known), KV_OK);
    ck_assert_double_gt(known.omitted_mass, computed.omitted_mass);
    close_unit(&x);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    struct unit x;
    struct kv_sample sample = {0};
    open_unit(&x, 5);
    ck_assert_int_eq(kv_shadow_unit(&x.u, x.scratch, kv_shadow_scratch_doubles(N, D) - 1, &sample, NULL, NULL, NULL), KV_BAD_ARGUMENT);
    x.u.n_blocks = 1;
    ck_assert_int_eq(kv_shadow_unit(&x.u, x.scratch, sizeof x.scratch / sizeof *x.scratch, &sample, NULL, NULL, NULL), KV_BAD_ARGUMENT);
    close_unit(&x);
}
END_TEST

Suite *suite_shadow(void);
Suite *suite_shadow(void)
{
    Suite *s = suite_create("shadow");
    TCase *c = tcase_create("shadow");
    tcase_add_test(c, figures_are_those_of_a_plain_softmax);
    tcase_add_test(c, whole_and_empty_supports_stand_apart);
    tcase_add_test(c, a_support_of_vanishing_mass_has_an_output);
    tcase_add_test(c, a_wrong_output_breaks_the_bound);
    tcase_add_loop_test(c, live_units_are_judged_as_by_the_reference, 0, 4);
    tcase_add_test(c, known_states_are_taken_as_they_are);
    tcase_add_test(c, what_does_not_fit_is_refused);
    suite_add_tcase(s, c);
    return s;
}
