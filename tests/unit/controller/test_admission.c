/* test_admission.c — how long an answer will take, from rates that were measured. */
#include "controller/openai/admission.h"

#include <check.h>

Suite *suite_admission(void);

static struct kv_engine_stats measured(void)
{
    return (struct kv_engine_stats){.active = 2, .queued = 0, .rates = {.prefill_tokens_per_s = 1000, .decode_step_us = 4000, .h2d_bytes_per_s = 1e9, .live_tokens_left = 200}};
}

START_TEST(every_part_follows_from_its_rate)
{
    struct kv_engine_stats s = measured();
    struct kv_admission_estimate t;
    kv_admission_estimate(&s, 4, 500, 100, 2000000, 30, &t);
    ck_assert_double_eq_tol(t.prefill_ms, 500, 1e-9);
    ck_assert_double_eq_tol(t.decode_ms, 400, 1e-9);
    ck_assert_double_eq_tol(t.transfer_ms, 2.03, 1e-9);
    ck_assert_double_eq(t.queue_ms, 0);
    kv_admission_estimate(&s, 4, 500, 100, 0, 30, &t);
    ck_assert_double_eq(t.transfer_ms, 0); /* nothing moves: nothing is set up */
}
END_TEST

START_TEST(who_waits_counts_what_is_before_it)
{
    struct kv_engine_stats s = measured();
    struct kv_admission_estimate t;
    s.rates.waiting_prompt_tokens = 3000;
    s.active = 4, s.queued = 3, s.rates.live_tokens_left = 400;
    kv_admission_estimate(&s, 4, 1, 1, 0, 0, &t);
    ck_assert_double_eq_tol(t.queue_ms, 3000 + 4 * 100.0 / 4 * 4, 1e-9); /* prompts before it, and four of a hundred tokens on four places */
}
END_TEST

START_TEST(what_is_not_measured_is_not_guessed)
{
    struct kv_engine_stats s = {.active = 8, .queued = 9};
    struct kv_admission_estimate t;
    kv_admission_estimate(&s, 8, 4000, 4000, 1 << 30, 0, &t);
    ck_assert_double_eq(t.queue_ms + t.transfer_ms + t.prefill_ms + t.decode_ms, 0);
}
END_TEST

Suite *suite_admission(void)
{
    Suite *s = suite_create("admission");
    TCase *t = tcase_create("admission");
    tcase_add_test(t, every_part_follows_from_its_rate);
    tcase_add_test(t, who_waits_counts_what_is_before_it);
    tcase_add_test(t, what_is_not_measured_is_not_guessed);
    suite_add_tcase(s, t);
    return s;
}
