/* test_refusals.c — rows of callers who are turned away: bounded, and everyone of them counted. */
#include "controller/http/refusals.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

Suite *suite_refusals(void);

enum { MINUTE = 60000000 };

static struct told {
    uint64_t more;
    int rows;
    char last[64];
    bool full;
} told;

static bool post(void *ctx, const char *address, int status, uint64_t more)
{
    struct told *t = ctx;
    (void)status;
    if (t->full) return false;
    t->more += more;
    t->rows++;
    snprintf(t->last, sizeof t->last, "%s", address);
    return true;
}

static struct kv_refusals *refusals;

static void set_up(void)
{
    refusals = kv_refusals_create();
    memset(&told, 0, sizeof told);
}

static void tear_down(void)
{
    kv_refusals_free(refusals);
}

static int rows(const char *address, int status, int n, int64_t at)
{
    int own = 0;
    for (int i = 0; i < n; i++) own += kv_refusals_own_row(refusals, address, status, at);
    return own;
}

START_TEST(the_first_get_rows_and_the_rest_one_a_minute)
{
    ck_assert_int_eq(rows("192.0.2.1", 401, 5000, 1), KV_REFUSALS_EACH);
    ck_assert_int_eq(rows("192.0.2.1", 403, 3, 2), 3);
    kv_refusals_tell(refusals, MINUTE, post, &told);
    ck_assert_int_eq(told.rows, 0); /* the minute is not over */
    kv_refusals_tell(refusals, MINUTE + 1, post, &told);
    ck_assert_int_eq(told.rows, 1);
    ck_assert_uint_eq(told.more, 5000 - KV_REFUSALS_EACH);
    ck_assert_int_eq(rows("192.0.2.1", 401, 50, MINUTE + 2), KV_REFUSALS_EACH);
    kv_refusals_tell(refusals, 0, post, &told); /* the end: at once */
    ck_assert_uint_eq(told.more, 5000 - KV_REFUSALS_EACH + 50 - KV_REFUSALS_EACH);
}
END_TEST

START_TEST(many_addresses_share_a_bound)
{
    char address[64];
    int own = 0;
    for (int i = 0; i < 2000; i++) {
        snprintf(address, sizeof address, "2001:db8::%x", i);
        own += rows(address, 401, 20, 1);
    }
    ck_assert_int_eq(own, KV_REFUSALS_ROWS);
    kv_refusals_tell(refusals, 0, post, &told);
    ck_assert_int_le(told.rows, KV_REFUSALS_KINDS);
    ck_assert_uint_eq(told.more, 2000 * 20 - KV_REFUSALS_ROWS);
    ck_assert_str_eq(told.last, "other addresses");
}
END_TEST

START_TEST(what_could_not_be_told_is_told_later)
{
    rows("192.0.2.1", 401, 30, 1);
    told.full = true;
    kv_refusals_tell(refusals, MINUTE + 1, post, &told);
    ck_assert_int_eq(rows("192.0.2.1", 401, 5, MINUTE + 2), 0); /* the same minute goes on */
    told.full = false;
    kv_refusals_tell(refusals, MINUTE + 3, post, &told);
    ck_assert_uint_eq(told.more, 30 - KV_REFUSALS_EACH + 5);
    kv_refusals_tell(refusals, 3 * (int64_t)MINUTE, post, &told);
    ck_assert_int_eq(told.rows, 1);
}
END_TEST

Suite *suite_refusals(void)
{
    Suite *s = suite_create("refusals");
    TCase *t = tcase_create("rows");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, the_first_get_rows_and_the_rest_one_a_minute);
    tcase_add_test(t, many_addresses_share_a_bound);
    tcase_add_test(t, what_could_not_be_told_is_told_later);
    suite_add_tcase(s, t);
    return s;
}
