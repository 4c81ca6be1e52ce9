/* test_quest.c — Quest against a plain reference; its bound, its counterexample, its tail page. */
#include "tests/unit/selection/case.h"

#include <math.h>

static double reference_bound(const struct test_case *t, int32_t head, int32_t page, int32_t page_rows)
{
    int32_t d = t->c.d_head, h = head / (t->c.n_q_heads / t->c.n_kv_heads);
    double sum = 0;
    for (int32_t c = 0; c < d; c++) {
        double best = -INFINITY, q = (double)t->q[head * d + c];
        for (int32_t i = page * page_rows; i < (page + 1) * page_rows; i++) {
            double k = (double)t->k[((size_t)h * (size_t)t->c.n_rows + (size_t)i) * (size_t)d + (size_t)c];
            if (q * k > best) best = q * k;
        }
        sum += best;
    }
    return sum;
}

START_TEST(pages_are_those_of_the_reference)
{
    static const int32_t page_rows[] = {4, 16, 5, 64};
    for (int i = 0; i < 12; i++) {
        struct test_case t;
        int32_t rows = page_rows[i % 4], n = 150 + 17 * i, pages = (n + rows - 1) / rows, take = 1 + i % 3;
        case_random(&t, "quest", 4, 2, 8 + 4 * (i % 3), n, (uint64_t)i);
        case_param(&t, "page_rows", rows);
        case_param(&t, "budget_rows", rows * (take + 1));
        struct kv_lab_result r = case_run(&t);
        for (int32_t h = 0; h < 4; h++) {
            const uint8_t *chosen = r.chosen + (size_t)h * (size_t)r.cap_units;
            ck_assert(chosen[pages - 1]);
            for (int32_t p = 0; p < pages - 1; p++) {
                double bound = reference_bound(&t, h, p, rows);
                int32_t better = 0;
                ck_assert_double_eq_tol((double)r.score[(size_t)h * (size_t)r.cap_units + (size_t)p], bound, 1e-4);
                for (int32_t o = 0; o < pages - 1; o++) better += reference_bound(&t, h, o, rows) > bound;
                ck_assert_int_eq(chosen[p], better < take);
                for (int32_t x = p * rows; x < (p + 1) * rows; x++) ck_assert_double_le(case_logit(&t, h, x) * sqrt(t.c.d_head), bound + 1e-4);
            }
        }
        kv_lab_result_free(&r);
        case_free(&t);
    }
}
END_TEST

/* Page 0's corner (2, 2) belongs to no row: its bound 4 beats page 2, which holds the best row with 3. Page 3 is the tail. */
static const float corner_k[8][2] = {{2, -2}, {-2, 2}, {1, 1}, {1, 1}, {1.5f, 1.5f}, {0, 0}, {0, 0}, {0, 0}};
static const float corner_q[2] = {1, 1};

/* One value that is not a number among numbers, in any place of a page, in rows of any type, appended or built: the page ranks first, as dense
 * attention would show it. */
START_TEST(a_damaged_value_is_not_passed_over)
{
    static const enum kv_type types[] = {KV_F32, KV_F16, KV_BF16};
    static const int32_t widths[] = {3, 8, 64};
    for (int32_t i = 0; i < 3 * 3 * 16; i++) {
        struct test_case t;
        struct kv_lab_rows stored;
        struct kv_error err;
        struct kv_selector *s;
        int32_t d = widths[i / 16 % 3], row = 32 + i % 16, channel = i * 7 % d;
        case_random(&t, "quest", 1, 1, d, 96, (uint64_t)i);
        case_param(&t, "budget_rows", 32); /* one page beside the tail's */
        t.k[row * d + channel] = NAN;
        ck_assert_int_eq(kv_lab_rows_create(types[i / 48], d, 1, 0.3f, 96, t.k, t.v, &stored), KV_OK);
        ck_assert_int_eq(t.c.method->create(&t.c.params, d, 1, 96, 0, &s, &err), KV_OK);
        stored.rows.n_rows = i % 2 ? 96 : 33; /* built at once, or the page's later rows one by one */
        ck_assert_int_eq(t.c.method->build(s, &stored.rows, NULL, 0), KV_OK);
        for (; stored.rows.n_rows < 96;) {
            stored.rows.n_rows++;
            ck_assert_int_eq(t.c.method->append(s, &stored.rows, stored.rows.n_rows - 1), KV_OK);
        }
        uint64_t support[2];
        struct kv_ledger ledger = {0};
        ck_assert_int_eq(t.c.method->query(s, &stored.rows, t.q, 0, support, 2, NULL, &ledger), KV_OK);
        ck_assert_msg(kv_mask_has(support, row), "type %d, width %d, row %d, channel %d", types[i / 48], d, row, channel);
        t.c.method->destroy(s);
        kv_lab_rows_free(&stored);
        case_free(&t);
    }
}
END_TEST

START_TEST(a_valid_bound_can_miss_the_best_row)
{
    struct test_case t;
    case_plane(&t, "quest", corner_q, corner_k, NULL, 8);
    case_param(&t, "page_rows", 2);
    case_param(&t, "budget_rows", 4);
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){0, 1, 6, 7}, 4);
    ck_assert_float_eq(r.score[0], 4);
    ck_assert_float_eq(r.score[2], 3);
    ck_assert_double_lt(r.head[0].recall, 1);
    kv_lab_result_free(&r);
    case_param(&t, "budget_rows", 6);
    r = case_run(&t);
    ck_assert(kv_mask_has(r.support, 4));
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

START_TEST(the_tail_page_takes_one_slot)
{
    struct test_case t;
    case_plane(&t, "quest", corner_q, corner_k, NULL, 8);
    case_param(&t, "page_rows", 3);
    case_param(&t, "budget_rows", 5); /* one page, and rows to spare that are not a page */
    struct kv_lab_result r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){6, 7}, 2);
    kv_lab_result_free(&r);
    case_param(&t, "budget_rows", 2); /* less than a page is still the tail */
    r = case_run(&t);
    expect_rows(&r, 0, (const int32_t[]){6, 7}, 2);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

START_TEST(the_ledger_counts_extrema_and_pages)
{
    struct test_case t;
    case_plane(&t, "quest", corner_q, corner_k, NULL, 8);
    t.c.row_type = KV_F16; /* a row of K and V is 8 bytes */
    case_param(&t, "page_rows", 2);
    case_param(&t, "budget_rows", 4);
    t.c.resident = (const int32_t[]){0, 6};
    t.c.n_resident = 2;
    struct kv_lab_result r = case_run(&t);
    ck_assert_uint_eq(r.ledger.candidates, 3);
    ck_assert_uint_eq(r.ledger.candidate_bytes, 3 * 2 * 2 * 2); /* pages, lo and hi, channels, bytes */
    ck_assert_uint_eq(r.ledger.selector_macs, 3 * 2);
    ck_assert_uint_eq(r.ledger.payload_bytes, 4 * 8);
    ck_assert_uint_eq(r.ledger.transfer_bytes, 2 * 8);
    ck_assert_uint_eq(r.ledger.descriptor_bytes, 64);
    kv_lab_result_free(&r);
    case_free(&t);
}
END_TEST

Suite *suite_quest(void);
Suite *suite_quest(void)
{
    Suite *s = suite_create("quest");
    TCase *c = tcase_create("quest");
    tcase_add_test(c, pages_are_those_of_the_reference);
    tcase_add_test(c, a_valid_bound_can_miss_the_best_row);
    tcase_add_test(c, a_damaged_value_is_not_passed_over);
    tcase_add_test(c, the_tail_page_takes_one_slot);
    tcase_add_test(c, the_ledger_counts_extrema_and_pages);
    suite_add_tcase(s, c);
    return s;
}
