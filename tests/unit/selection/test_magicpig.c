/* test_magicpig.c — MagicPIG: inclusion frequency, the estimator by its formula, its finite-sample bias, zero inclusion. */
#include "runtime/selection/draw.h"
#include "runtime/selection/projections.h"
#include "tests/unit/selection/case.h"

#include <math.h>
#include <string.h>

/* Plain u for L tables, K bits, at least two meetings. */
static double reference_inclusion(double cosine, int bits, int tables)
{
    double p = pow(1 - acos(cosine) / M_PI, bits);
    return 1 - pow(1 - p, tables) - tables * p * pow(1 - p, tables - 1);
}

START_TEST(rows_are_sampled_as_often_as_u_says)
{
    static const float q[2] = {1, 0}, k[4][2] = {{2, 0.3f}, {1, 1}, {-0.2f, 1}, {0, 1}};
    struct test_case t;
    enum { SEEDS = 600 };
    int hits[3] = {0};
    case_plane(&t, "magicpig", q, k, NULL, 4);
    case_param(&t, "sink_rows", 0);
    case_param(&t, "local_rows", 1);
    case_param(&t, "centre", 0);
    case_param(&t, "bits", 2);
    case_param(&t, "tables", 5);
    for (int seed = 0; seed < SEEDS; seed++) {
        case_param(&t, "seed", seed);
        struct kv_lab_result r = case_run(&t);
        for (int i = 0; i < 3; i++) hits[i] += kv_mask_has(r.support, i);
        ck_assert(kv_mask_has(r.support, 3));
        kv_lab_result_free(&r);
    }
    for (int i = 0; i < 3; i++) {
        double u = reference_inclusion((double)k[i][0] / hypot((double)k[i][0], (double)k[i][1]), 2, 5);
        ck_assert_double_eq_tol((double)hits[i] / SEEDS, u, 4 * sqrt(u * (1 - u) / SEEDS) + 1e-3);
    }
    case_free(&t);
}
END_TEST

START_TEST(the_estimator_is_its_formula)
{
    for (int trial = 0; trial < 8; trial++) {
        struct test_case t;
        int32_t n = 120, sink = 3, local = 10, d = 8;
        case_random(&t, "magicpig", 4, 2, d, n, (uint64_t)trial);
        case_param(&t, "sink_rows", sink);
        case_param(&t, "local_rows", local);
        case_param(&t, "bits", 4);
        case_param(&t, "tables", 30);
        case_param(&t, "centre", trial % 2);
        struct kv_lab_result r = case_run(&t);
        for (int32_t h = 0; h < 4; h++) {
            const float *k = t.k + (size_t)(h / 2) * 120 * 8, *v = t.v + (size_t)(h / 2) * 120 * 8, *q = t.q + h * 8;
            double mean[8] = {0}, out[8] = {0}, sum = 0;
            for (int32_t i = sink; i < n - local; i++)
                for (int32_t c = 0; c < d; c++) mean[c] += trial % 2 ? (double)k[i * d + c] / (n - local - sink) : 0;
            for (int32_t i = 0; i < n; i++) {
                if (!kv_mask_has(r.support + h * r.n_blocks, i)) continue;
                double dot = 0, qq = 0, kk = 0, u = 1;
                for (int32_t c = 0; c < d; c++) {
                    double x = (double)k[i * d + c] - mean[c];
                    dot += (double)q[c] * x, qq += (double)q[c] * (double)q[c], kk += x * x;
                }
                if (i >= sink && i < n - local) u = reference_inclusion(dot / sqrt(qq * kk), 4, 30);
                double w = exp(dot / sqrt(d)) / u;
                for (int32_t c = 0; c < d; c++) out[c] += w * (double)v[i * d + c];
                sum += w;
            }
            for (int32_t c = 0; c < d; c++) ck_assert_double_eq_tol((double)r.output[h * d + c], out[c] / sum, 1e-5);
        }
        kv_lab_result_free(&r);
        case_free(&t);
    }
}
END_TEST

/* Nothing hashed: centring cancels and the estimator is dense attention, to rounding. */
START_TEST(static_rows_alone_are_dense_attention)
{
    struct test_case t;
    case_random(&t, "magicpig", 2, 1, 16, 68, 1);
    struct kv_lab_result r = case_run(&t);
    for (int32_t i = 0; i < 32; i++) ck_assert_float_eq_tol(r.output[i], r.dense[i], 1e-5);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* One hashed row of value 1 against one static row of value 0, equal logits: dense says ½. A sample says 0 or 1 / (1 + u). */
START_TEST(the_ratio_is_biased_on_finite_samples)
{
    static const float q[2] = {1, 0}, k[2][2] = {{0, 1}, {0, -1}}, v[2][2] = {{1, 0}, {0, 0}};
    struct test_case t;
    enum { SEEDS = 400 };
    double mean = 0, worst = 0, u = reference_inclusion(0, 2, 3);
    case_plane(&t, "magicpig", q, k, v, 2);
    case_param(&t, "sink_rows", 0);
    case_param(&t, "local_rows", 1);
    case_param(&t, "centre", 0);
    case_param(&t, "bits", 2);
    case_param(&t, "tables", 3);
    for (int seed = 0; seed < SEEDS; seed++) {
        case_param(&t, "seed", seed);
        struct kv_lab_result r = case_run(&t);
        double x = (double)r.output[0];
        ck_assert(fabs(x) < 1e-6 || fabs(x - 1 / (1 + u)) < 1e-5);
        mean += x / SEEDS;
        worst = fmax(worst, r.head[0].output_error);
        kv_lab_result_free(&r);
    }
    ck_assert_double_eq_tol(mean, u / (1 + u), 0.08);
    ck_assert_double_gt(fabs(mean - 0.5), 0.3);
    ck_assert_double_ge(worst, 0.5 - 1e-6);
    case_free(&t);
}
END_TEST

/* Products under the smallest number hash as zero on both sides: opposite rows meet although u says they cannot. */
START_TEST(zero_inclusion_is_an_error)
{
    static const float q[2] = {1e-45f, 0}, k[2][2] = {{-1e-45f, 0}, {0, 0}};
    struct test_case t;
    struct kv_lab_result r;
    struct kv_error err;
    case_plane(&t, "magicpig", q, k, NULL, 2);
    case_param(&t, "sink_rows", 0);
    case_param(&t, "local_rows", 1);
    case_param(&t, "centre", 0);
    case_param(&t, "bits", 1);
    for (int seed = 0; seed < 20; seed++) {
        case_param(&t, "seed", seed);
        enum kv_status status = kv_lab_run(&t.c, &r, &err);
        if (status == KV_ZERO_INCLUSION) break;
        ck_assert_int_eq(status, KV_OK);
        kv_lab_result_free(&r);
        ck_assert_int_lt(seed, 19);
    }
    case_free(&t);
}
END_TEST

START_TEST(a_seed_decides_the_sample)
{
    struct test_case t;
    case_random(&t, "magicpig", 1, 1, 16, 400, 1);
    case_param(&t, "bits", 6);
    case_param(&t, "tables", 40);
    struct kv_lab_result a = case_run(&t), b = case_run(&t);
    ck_assert_mem_eq(a.support, b.support, (size_t)a.n_blocks * sizeof *a.support);
    ck_assert_mem_eq(a.output, b.output, 16 * sizeof *a.output);
    kv_lab_result_free(&b);
    case_param(&t, "seed", 1);
    b = case_run(&t);
    ck_assert_mem_ne(a.support, b.support, (size_t)a.n_blocks * sizeof *a.support);
    kv_lab_result_free(&a);
    kv_lab_result_free(&b);
    case_free(&t);
}
END_TEST

/* The paper's projections are shared: a layer, or a K/V head, with the same keys and query samples the same rows. */
START_TEST(heads_share_their_projections)
{
    struct test_case t;
    case_random(&t, "magicpig", 2, 2, 16, 400, 1);
    case_param(&t, "bits", 6);
    case_param(&t, "tables", 40);
    memcpy(t.q + 16, t.q, 16 * sizeof *t.q);
    memcpy(t.k + 400 * 16, t.k, 400 * 16 * sizeof *t.k);
    struct kv_lab_result r = case_run(&t);
    ck_assert_int_lt(kv_mask_count(r.support, r.n_blocks), 400);
    ck_assert_mem_eq(r.support, r.support + r.n_blocks, (size_t)r.n_blocks * sizeof *r.support);
    kv_lab_result_free(&r);
    case_free(&t);
    const float *a = kv_projections_take(1, 640), *again = kv_projections_take(1, 640), *b = kv_projections_take(2, 640), *longer = kv_projections_take(1, 641);
    ck_assert_ptr_eq(a, again);
    ck_assert(a != b && a != longer);
    ck_assert_mem_eq(a, longer, 640 * sizeof *a);
    kv_projections_give(a);
    ck_assert_float_eq(again[639], longer[639]); /* one user is left */
    kv_projections_give(again), kv_projections_give(b), kv_projections_give(longer);
}
END_TEST

/* Layers 0, 16, 32 … attend to all rows. */
START_TEST(every_sixteenth_layer_is_dense)
{
    const struct kv_selector_method *m = kv_selector_find("magicpig");
    for (int32_t l = 0; l < 80; l++) ck_assert_int_eq(kv_selector_dense(m, l), l % 16 == 0);
    for (int32_t l = 0; l < 80; l++) ck_assert_int_eq(kv_selector_dense(kv_selector_find("quest"), l), l < 2);
}
END_TEST

START_TEST(dropped_rows_are_not_met)
{
    struct test_case t;
    case_random(&t, "magicpig", 1, 1, 8, 100, 1);
    case_param(&t, "sink_rows", 0);
    case_param(&t, "local_rows", 0);
    case_param(&t, "bits", 1);
    case_param(&t, "tables", 20);
    struct kv_lab_step steps[] = {{KV_LAB_BUILD, 100}, {KV_LAB_DROP, 5}, {KV_LAB_APPEND, 10}};
    t.c.steps = steps;
    t.c.n_steps = 3;
    struct kv_lab_result r = case_run(&t);
    ck_assert_uint_le(r.ledger.candidates, 5 * 20);
    for (int32_t i = 5; i < 15; i++) ck_assert(kv_mask_has(r.support, i));
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* Signs counted one by one, in double, over more rows than a table's entry can name; rows that a plane passes close to are left out. */
START_TEST(rows_met_are_those_whose_signs_agree)
{
    enum { N = 66000, D = 4, TABLES = 9, BITS = 5, SINK = 3, LOCAL = 10, LEAST = 2, SEED = 7 };
    struct test_case t;
    struct kv_lab_rows stored;
    struct kv_selector *s;
    struct kv_error err;
    struct kv_ledger ledger = {0};
    double mean[D] = {0}, plane[TABLES][BITS][D];
    static uint64_t support[(N + 63) / 64];
    int seen[2] = {0};
    case_random(&t, "magicpig", 1, 1, D, N, 5);
    const struct kv_selector_method *m = t.c.method;
    case_param(&t, "tables", TABLES);
    case_param(&t, "bits", BITS);
    case_param(&t, "sink_rows", SINK);
    case_param(&t, "local_rows", LOCAL);
    case_param(&t, "seed", SEED);
    ck_assert_int_eq(kv_lab_rows_create(KV_F32, D, 1, 0.5f, N, t.k, t.v, &stored), KV_OK);
    ck_assert_int_eq(m->create(&t.c.params, D, 1, N, 1, &s, &err), KV_OK);
    ck_assert_int_eq(m->build(s, &stored.rows, NULL, 0), KV_OK);
    ck_assert_int_eq(m->query(s, &stored.rows, t.q, 0, support, (N + 63) / 64, NULL, &ledger), KV_OK);
    for (int i = SINK; i < N - LOCAL; i++)
        for (int c = 0; c < D; c++) mean[c] += (double)t.k[i * D + c] / (N - LOCAL - SINK);
    for (int i = 0; i < TABLES * BITS * D; i++) plane[i / D / BITS][i / D % BITS][i % D] = (double)(float)kv_draw_normal(kv_draw(0, SEED), (uint64_t)i);
    for (int i = SINK; i < N - LOCAL; i++) {
        int met = 0;
        bool close = false;
        for (int a = 0; a < TABLES; a++) {
            bool same = true;
            for (int b = 0; b < BITS; b++) {
                double of_q = 0, of_k = 0;
                for (int c = 0; c < D; c++) of_q += plane[a][b][c] * (double)t.q[c], of_k += plane[a][b][c] * ((double)t.k[i * D + c] - mean[c]);
                close |= fabs(of_k) < 1e-4;
                same &= (of_q >= 0) == (of_k >= 0);
            }
            met += same;
        }
        if (close) continue;
        seen[i >= 65536] += met >= LEAST;
        ck_assert_msg(kv_mask_has(support, i) == (met >= LEAST), "row %d meets the query in %d tables", i, met);
    }
    ck_assert(seen[0] > 100 && seen[1] > 0);
    m->destroy(s);
    kv_lab_rows_free(&stored);
    case_free(&t);
}
END_TEST

Suite *suite_magicpig(void);
Suite *suite_magicpig(void)
{
    Suite *s = suite_create("magicpig");
    TCase *c = tcase_create("magicpig");
    tcase_set_timeout(c, 30);
    tcase_add_test(c, rows_are_sampled_as_often_as_u_says);
    tcase_add_test(c, rows_met_are_those_whose_signs_agree);
    tcase_add_test(c, the_estimator_is_its_formula);
    tcase_add_test(c, static_rows_alone_are_dense_attention);
    tcase_add_test(c, the_ratio_is_biased_on_finite_samples);
    tcase_add_test(c, zero_inclusion_is_an_error);
    tcase_add_test(c, dropped_rows_are_not_met);
    tcase_add_test(c, a_seed_decides_the_sample);
    tcase_add_test(c, heads_share_their_projections);
    tcase_add_test(c, every_sixteenth_layer_is_dense);
    suite_add_tcase(s, c);
    return s;
}
