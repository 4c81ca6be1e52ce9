/* test_cohort.c — who meets a candidate, and that they stay where they are. */
#include "controller/release/cohort.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t seed[32] = {1, 2, 3};

static enum kv_arm arm(const char *session, double fraction, enum kv_contract exactness, enum kv_contract asked)
{
    struct kv_cohort all = {0};
    struct kv_cohort_key k = {.tenant = "alpha", .class = "chat", .session = session, .contract = asked};
    return kv_cohort_arm(&all, seed, exactness, fraction, &k);
}

START_TEST(growing_the_fraction_only_adds)
{
    int counts[11] = {0};
    for (int i = 0; i < 4000; i++) {
        char session[16];
        snprintf(session, sizeof session, "s%d", i);
        bool before = false;
        for (int f = 0; f <= 10; f++) {
            bool now = arm(session, f / 10.0, KV_APPROXIMATE, KV_APPROXIMATE) == KV_ARM_CANDIDATE;
            ck_assert(now || !before);
            counts[f] += now;
            before = now;
        }
    }
    ck_assert_int_eq(counts[0], 0);
    ck_assert_int_eq(counts[10], 4000);
    for (int f = 1; f < 10; f++) ck_assert_int_lt(abs(counts[f] - 400 * f), 130); /* 4 standard deviations of 4000 draws */
}
END_TEST

START_TEST(exact_requests_never_meet_an_approximate_candidate)
{
    ck_assert_int_eq(arm("s", 1, KV_APPROXIMATE, KV_EXACT), KV_ARM_OUTSIDE);
    ck_assert_int_eq(arm("s", 1, KV_APPROXIMATE, KV_APPROXIMATE), KV_ARM_CANDIDATE);
    ck_assert_int_eq(arm("s", 1, KV_EXACT, KV_EXACT), KV_ARM_CANDIDATE);
    ck_assert_int_eq(arm("s", 1, KV_EXACT, KV_APPROXIMATE), KV_ARM_CANDIDATE);
}
END_TEST

START_TEST(no_session_means_the_baseline)
{
    ck_assert_int_eq(arm(NULL, 1, KV_EXACT, KV_EXACT), KV_ARM_OUTSIDE);
    ck_assert_int_eq(arm("", 1, KV_EXACT, KV_EXACT), KV_ARM_OUTSIDE);
}
END_TEST

START_TEST(filters_bound_the_blast_radius)
{
    struct kv_cohort c = {.n_tenants = 1, .n_classes = 2};
    strcpy(c.tenants[0], "alpha");
    strcpy(c.classes[0], "batch");
    strcpy(c.classes[1], "chat");
    struct kv_cohort_key k = {.tenant = "alpha", .class = "chat", .session = "s", .contract = KV_APPROXIMATE};
    ck_assert_int_eq(kv_cohort_arm(&c, seed, KV_APPROXIMATE, 1, &k), KV_ARM_CANDIDATE);
    k.tenant = "alpha2";
    ck_assert_int_eq(kv_cohort_arm(&c, seed, KV_APPROXIMATE, 1, &k), KV_ARM_OUTSIDE);
    k.tenant = NULL;
    ck_assert_int_eq(kv_cohort_arm(&c, seed, KV_APPROXIMATE, 1, &k), KV_ARM_OUTSIDE);
    k.tenant = "alpha";
    k.class = "interactive";
    ck_assert_int_eq(kv_cohort_arm(&c, seed, KV_APPROXIMATE, 1, &k), KV_ARM_OUTSIDE);
}
END_TEST

START_TEST(places_are_keyed)
{
    uint8_t other[32] = {9};
    ck_assert_double_ne(kv_cohort_place(seed, "a", "bc"), kv_cohort_place(seed, "ab", "c"));
    ck_assert_double_ne(kv_cohort_place(seed, "a", "b"), kv_cohort_place(other, "a", "b"));
    ck_assert_double_eq(kv_cohort_place(seed, "a", "b"), kv_cohort_place(seed, "a", "b"));
}
END_TEST

Suite *suite_cohort(void);
Suite *suite_cohort(void)
{
    Suite *s = suite_create("cohort");
    TCase *t = tcase_create("cohort");
    tcase_add_test(t, growing_the_fraction_only_adds);
    tcase_add_test(t, exact_requests_never_meet_an_approximate_candidate);
    tcase_add_test(t, no_session_means_the_baseline);
    tcase_add_test(t, filters_bound_the_blast_radius);
    tcase_add_test(t, places_are_keyed);
    suite_add_tcase(s, t);
    return s;
}
