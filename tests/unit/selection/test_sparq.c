/* test_sparq.c — SparQ against a plain reference; its toy with and without the mean term; its traffic. */
#include "tests/unit/selection/case.h"

#include <math.h>
#include <string.h>

enum { MAX_T = 256, MAX_D = 32 };

static bool in(const int32_t *list, int32_t n, int32_t x)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == x) return true;
    return false;
}

/* Plain reference: channels, proxy sums over the group, support of one K/V head. */
static void reference(const struct test_case *t, int32_t h, int32_t r, int32_t k, int32_t local, bool support[MAX_T], double *alpha)
{
    int32_t d = t->c.d_head, n = t->c.n_rows, group = t->c.n_q_heads / t->c.n_kv_heads, channels[MAX_D];
    double total[MAX_T] = {0}, own[8][MAX_T];
    for (int32_t i = 0; i < r; i++) {
        double best = -1;
        for (int32_t c = 0; c < d; c++) {
            double sum = 0;
            for (int32_t g = 0; g < group; g++) sum += fabs((double)t->q[(h * group + g) * d + c]);
            if (sum > best && !in(channels, i, c)) best = sum, channels[i] = c;
        }
    }
    for (int32_t g = 0; g < group; g++) {
        const float *q = t->q + (h * group + g) * d;
        double whole = 0, part = 0, z[MAX_T], sum = 0;
        for (int32_t c = 0; c < d; c++) whole += fabs((double)q[c]);
        for (int32_t i = 0; i < r; i++) part += fabs((double)q[channels[i]]);
        for (int32_t x = 0; x < n; x++) {
            z[x] = 0;
            for (int32_t i = 0; i < r; i++) z[x] += (double)q[channels[i]] * (double)t->k[((size_t)h * (size_t)n + (size_t)x) * (size_t)d + (size_t)channels[i]];
            sum += z[x] = exp(z[x] / sqrt(d * part / whole));
        }
        for (int32_t x = 0; x < n; x++) total[x] += own[g][x] = z[x] / sum;
    }
    for (int32_t x = n - local; x < n; x++) total[x] += group; /* the source's "+1", by head */
    memset(support, 0, MAX_T * sizeof *support);
    for (int32_t i = 0; i < k && i < n; i++) {
        int32_t best = -1;
        for (int32_t x = 0; x < n; x++)
            if (!support[x] && (best < 0 || total[x] > total[best])) best = x;
        support[best] = true;
    }
    for (int32_t g = 0; g < group; g++) {
        alpha[g] = 0;
        for (int32_t x = 0; x < n; x++) alpha[g] += support[x] ? own[g][x] : 0;
    }
}

START_TEST(support_is_that_of_the_reference)
{
    for (int i = 0; i < 12; i++) {
        struct test_case t;
        int32_t n = 40 + 16 * i, k = 10 + i, r = 2 + i % 5, local = i % 4;
        case_random(&t, "sparq", 4, 2, 16, n, (uint64_t)i);
        case_param(&t, "k", k);
        case_param(&t, "r", r);
        case_param(&t, "local_rows", local);
        struct kv_lab_result got = case_run(&t);
        for (int32_t h = 0; h < 2; h++) {
            bool want[MAX_T];
            double alpha[8];
            reference(&t, h, r, k, local, want, alpha);
            for (int32_t g = 0; g < 2; g++) {
                for (int32_t x = 0; x < n; x++) ck_assert_int_eq(kv_mask_has(got.support + (2 * h + g) * got.n_blocks, x), want[x]);
                ck_assert_double_eq_tol(got.estimated_omitted_mass[2 * h + g], 1 - alpha[g], 1e-5);
            }
        }
        kv_lab_result_free(&got);
        case_free(&t);
    }
}
END_TEST

/* Five tokens, two of four channels, three rows: the proxy misses the best row, 4. */
static void toy(struct test_case *t)
{
    static const float q[4] = {2, -1.5f, 1, 0.5f};
    static const float k[5][4] = {{1, -0.5f, 0, 1.75f}, {-0.25f, -2, -1.25f, -0.75f}, {0, -1.5f, 0.5f, -1.5f}, {1.5f, 0, -1.5f, -0.25f}, {1, -0.25f, 2, -0.5f}};
    case_random(t, "sparq", 1, 1, 4, 5, 0);
    memcpy(t->q, q, sizeof q);
    memcpy(t->k, k, sizeof k);
    memset(t->v, 0, 20 * sizeof *t->v);
    t->v[0] = 0.597f;
    t->v[4 * 4] = -0.269f;
    case_param(t, "r", 2);
    case_param(t, "k", 3);
    case_param(t, "local_rows", 0);
}

START_TEST(the_mean_term_shrinks_the_toy_error)
{
    struct test_case t;
    toy(&t);
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 3}, 3);
    ck_assert_double_eq_tol(r.head[0].output_error, 0.3023, 5e-5);
    kv_lab_result_free(&r);
    case_param(&t, "mean_term", 1);
    r = case_run(&t);
    ck_assert_double_eq_tol(r.head[0].output_error, 0.1967, 5e-5);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

/* A head whose energy lies outside the group's channels, and a zero query, still rank: every row alike. */
START_TEST(a_query_without_energy_ranks_all_rows_alike)
{
    struct test_case t;
    toy(&t);
    memset(t.q, 0, 4 * sizeof *t.q);
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 2}, 3);
    ck_assert_double_eq_tol(r.estimated_omitted_mass[0], 0.4, 1e-6);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

START_TEST(the_ledger_follows_the_traffic_formula)
{
    struct test_case t;
    case_random(&t, "sparq", 1, 1, 128, 4096, 1);
    t.c.row_type = KV_F16;
    struct kv_lab_result r = case_run(&t); /* r 32, k 128 */
    /* T r + 2 k d of the source's T r + 2 k d + 4 d, which also appends a row and updates the mean */
    ck_assert_uint_eq((r.ledger.candidate_bytes + r.ledger.payload_bytes) / 2, 164352 - 4 * 128);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

START_TEST(a_window_larger_than_k_is_refused)
{
    struct test_case t;
    struct kv_lab_result r;
    struct kv_error err;
    toy(&t);
    case_param(&t, "local_rows", 4);
    ck_assert_int_eq(kv_lab_run(&t.c, &r, &err), KV_BAD_ARGUMENT);
    ck_assert_str_eq(err.where, "local_rows");
    case_free(&t);
}
END_TEST

Suite *suite_sparq(void);
Suite *suite_sparq(void)
{
    Suite *s = suite_create("sparq");
    TCase *c = tcase_create("sparq");
    tcase_add_test(c, support_is_that_of_the_reference);
    tcase_add_test(c, the_mean_term_shrinks_the_toy_error);
    tcase_add_test(c, a_query_without_energy_ranks_all_rows_alike);
    tcase_add_test(c, the_ledger_follows_the_traffic_formula);
    tcase_add_test(c, a_window_larger_than_k_is_refused);
    suite_add_tcase(s, c);
    return s;
}
