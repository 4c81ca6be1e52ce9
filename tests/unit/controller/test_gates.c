/* test_gates.c — verdicts, and how often the tests behind them are wrong. */
#include "controller/release/gates.h"
#include "controller/release/metric_confidence.h"
#include "controller/release/metric_switchback.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- random numbers of the tests */

static uint64_t state;
static double uniform(void)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = state;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53 + 0x1p-54;
}
static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

/* ---------------------------------------------------------------- names and ranges */

START_TEST(misspelt_metrics_are_refused_with_the_nearest)
{
    const struct kv_metric *m;
    struct kv_error err;
    ck_assert_int_eq(kv_metric_find("tpot_p99", &m, &err), KV_UNKNOWN_METRIC);
    ck_assert_str_eq(err.hint, "did you mean tpot_p99_ratio?");
    ck_assert_int_eq(kv_metric_find("omited_mass", &m, &err), KV_UNKNOWN_METRIC);
    ck_assert_str_eq(err.hint, "did you mean omitted_mass?");
    ck_assert_int_eq(kv_metric_find("", &m, &err), KV_UNKNOWN_METRIC);
    for (size_t i = 0; i < kv_metric_count(); i++) ck_assert_int_eq(kv_metric_find(kv_metric_at(i)->name, &m, &err), KV_OK);
}
END_TEST

START_TEST(what_must_be_zero_cannot_be_loosened)
{
    static const char *const zero[] = {"exact_mismatches", "illegal_fallbacks", "tenant_failures"};
    for (int i = 0; i < 3; i++) {
        struct kv_gate_spec s[KV_MAX_GATES] = {{.threshold = 1}};
        int32_t n = 1;
        struct kv_error err;
        strcpy(s[0].metric, zero[i]);
        ck_assert_int_eq(kv_gates_complete(KV_EXACT, s, &n, &err), KV_BAD_ARGUMENT);
        ck_assert(err.hint[0]);
    }
}
END_TEST

START_TEST(the_contracts_own_gates_are_added_once)
{
    struct kv_gate_spec s[KV_MAX_GATES] = {{.metric = "omitted_mass", .threshold = 0.02}};
    int32_t n = 1, found = 0;
    ck_assert_int_eq(kv_gates_complete(KV_APPROXIMATE, s, &n, NULL), KV_OK);
    for (int32_t i = 0; i < n; i++) found += !strcmp(s[i].metric, "omitted_mass");
    ck_assert_int_eq(found, 1);
    ck_assert_double_eq(s[0].threshold, 0.02);
    ck_assert_uint_eq(s[0].min_n, 200);
    strcpy(s[1].metric, "omitted_mass");
    n = 2;
    ck_assert_int_eq(kv_gates_complete(KV_APPROXIMATE, s, &n, NULL), KV_BAD_ARGUMENT); /* named twice */
    n = 0;
    ck_assert_int_eq(kv_gates_complete(KV_EXACT, s, &n, NULL), KV_OK);
    ck_assert_str_eq(s[0].metric, "exact_mismatches");
}
END_TEST

/* ---------------------------------------------------------------- verdicts */

static struct kv_gates *gates(enum kv_contract c)
{
    struct kv_gate_spec s[KV_MAX_GATES];
    int32_t n = 0;
    struct kv_gates *g;
    ck_assert_int_eq(kv_gates_complete(c, s, &n, NULL), KV_OK);
    ck_assert_int_eq(kv_gates_create(s, n, 1, &g), KV_OK);
    struct kv_engine_stats stats = {0};
    kv_gates_reset(g, &stats);
    return g;
}

static struct kv_gate_result judge(const struct kv_gates *g, enum kv_stage stage, const char *metric)
{
    struct kv_gate_result r[KV_MAX_GATES], none = {0};
    int32_t n = kv_gates_evaluate(g, stage, r);
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(r[i].metric, metric)) return r[i];
    ck_abort_msg("no gate %s", metric);
    return none;
}

static void unit(struct kv_gates *g, double mass, bool equal, int times)
{
    struct kv_sample s = {.kind = KV_SAMPLE_UNIT, .omitted_mass = mass, .output_error_relative = mass, .exact_equal = equal, .bound_holds = true};
    for (int i = 0; i < times; i++) kv_gates_sample(g, &s, KV_ARM_CANDIDATE);
}

START_TEST(no_data_is_its_own_verdict)
{
    struct kv_gates *g = gates(KV_APPROXIMATE);
    struct kv_gate_result r[KV_MAX_GATES];
    int32_t n = kv_gates_evaluate(g, KV_STAGE_CANARY, r), which;
    for (int32_t i = 0; i < n; i++) ck_assert_msg(r[i].verdict == KV_NO_DATA, "%s", r[i].metric);
    ck_assert_int_eq(kv_gates_decide(r, n, &which), KV_NO_DATA);
    ck_assert_int_eq(kv_gates_decide(r, 0, &which), KV_NO_DATA);
    ck_assert(!judge(g, KV_STAGE_OFF, "omitted_mass").judged);
    ck_assert(!judge(g, KV_STAGE_SHADOW, "tpot_p99_ratio").judged);
    kv_gates_destroy(g);
}
END_TEST

/* Contexts shorter than the budget: whatever the method leaves out of longer ones was not seen. */
START_TEST(units_that_leave_nothing_out_are_no_evidence)
{
    struct kv_gates *g = gates(KV_APPROXIMATE);
    struct kv_sample s = {.kind = KV_SAMPLE_UNIT, .bound_holds = true, .rows_selected = 32, .rows_total = 32};
    for (int i = 0; i < 2000; i++) kv_gates_sample(g, &s, KV_ARM_CANDIDATE);
    for (int i = 0; i < 2; i++) {
        struct kv_gate_result r = judge(g, KV_STAGE_SHADOW, i ? "output_error" : "omitted_mass");
        ck_assert_int_eq(r.verdict, KV_NO_DATA);
        ck_assert_uint_eq(r.n, 0);
        ck_assert_msg(strstr(r.detail, "2000 more left no row out") != NULL, "%s", r.detail);
    }
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "illegal_fallbacks").verdict, KV_PASS); /* that one has seen them run */
    s.rows_total = 64;
    for (int i = 0; i < 300; i++) kv_gates_sample(g, &s, KV_ARM_CANDIDATE);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "omitted_mass").verdict, KV_PASS);
    ck_assert_uint_eq(judge(g, KV_STAGE_SHADOW, "omitted_mass").n, 300);
    kv_gates_destroy(g);
}
END_TEST

START_TEST(a_good_candidate_passes_with_enough_units)
{
    struct kv_gates *g = gates(KV_APPROXIMATE);
    unit(g, 0.01, true, 150);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "omitted_mass").verdict, KV_INCONCLUSIVE); /* under min_n */
    unit(g, 0.01, true, 150);
    struct kv_gate_result r = judge(g, KV_STAGE_SHADOW, "omitted_mass");
    ck_assert_int_eq(r.verdict, KV_PASS);
    ck_assert_double_lt(fabs(r.value - 0.01), 1e-9);
    ck_assert(r.lower <= r.value && r.value <= r.upper && r.upper <= r.threshold);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "illegal_fallbacks").verdict, KV_PASS);
    kv_gates_destroy(g);
}
END_TEST

START_TEST(a_bad_candidate_fails)
{
    struct kv_gates *g = gates(KV_APPROXIMATE);
    unit(g, 0.2, true, 300);
    struct kv_gate_result r = judge(g, KV_STAGE_SHADOW, "omitted_mass");
    ck_assert_int_eq(r.verdict, KV_FAILED);
    ck_assert_double_gt(r.lower, r.threshold);
    kv_gates_destroy(g);
}
END_TEST

START_TEST(one_mismatch_fails_at_once)
{
    struct kv_gates *g = gates(KV_EXACT);
    unit(g, 0, true, 5000);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "exact_mismatches").verdict, KV_PASS);
    unit(g, 0, false, 1);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "exact_mismatches").verdict, KV_FAILED);
    kv_gates_destroy(g);
}
END_TEST

/* What the engine counts itself fails a gate even when no sampled unit shows it; what it counted before this stage does not. */
START_TEST(engine_counters_fail_gates)
{
    struct kv_gates *g = gates(KV_APPROXIMATE);
    struct kv_engine_stats s = {.illegal_fallbacks = 7, .tenant_failures = 1, .allocation_failures = 2};
    kv_gates_reset(g, &s);
    unit(g, 0, true, 500);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "illegal_fallbacks").verdict, KV_PASS);
    s.illegal_fallbacks++;
    kv_gates_counters(g, &s);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "illegal_fallbacks").verdict, KV_FAILED);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "tenant_failures").verdict, KV_PASS);
    s.tenant_failures++;
    kv_gates_counters(g, &s);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "tenant_failures").verdict, KV_FAILED);
    kv_gates_destroy(g);
}
END_TEST

START_TEST(what_is_no_number_counts_as_the_worst)
{
    struct kv_gates *g = gates(KV_APPROXIMATE);
    unit(g, NAN, true, 300);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "omitted_mass").verdict, KV_FAILED);
    kv_gates_destroy(g);
}
END_TEST

START_TEST(a_late_change_is_seen)
{
    struct kv_gates *g = gates(KV_APPROXIMATE);
    unit(g, 0.01, true, 20000);
    ck_assert_int_eq(judge(g, KV_STAGE_FULL, "omitted_mass").verdict, KV_PASS);
    int n = 0;
    while (judge(g, KV_STAGE_FULL, "omitted_mass").verdict != KV_FAILED && n < 2000) unit(g, 0.2, true, 10), n += 10;
    ck_assert_msg(n <= 600, "it took %d units", n); /* of a total that would dilute the mean to 0.0155 */
    kv_gates_destroy(g);
}
END_TEST

START_TEST(held_out_quality_is_a_gate_when_asked_for)
{
    struct kv_gate_spec s[KV_MAX_GATES] = {{.metric = "quality_drop", .threshold = 0.05, .min_n = 50}};
    int32_t n = 1;
    struct kv_gates *g;
    ck_assert_int_eq(kv_gates_complete(KV_APPROXIMATE, s, &n, NULL), KV_OK);
    ck_assert_int_eq(kv_gates_create(s, n, 1, &g), KV_OK);
    struct kv_engine_stats stats = {0};
    kv_gates_reset(g, &stats);
    ck_assert_int_eq(judge(g, KV_STAGE_SHADOW, "quality_drop").verdict, KV_NO_DATA);
    for (int i = 0; i < 400; i++) kv_gates_quality(g, 0.9, 0.6);
    struct kv_gate_result r = judge(g, KV_STAGE_SHADOW, "quality_drop");
    ck_assert_int_eq(r.verdict, KV_FAILED);
    ck_assert_double_lt(fabs(r.value - 0.3), 1e-9);
    kv_gates_destroy(g);
}
END_TEST

/* ---------------------------------------------------------------- error rates */

/* The mean lies exactly at the threshold: an interval looked at after every measurement may be wrong in 5 % of runs. */
START_TEST(the_confidence_sequence_holds_at_any_time)
{
    int passes = 0, alarms = 0, missed = 0;
    enum { RUNS = 400, N = 800 };
    for (int run = 0; run < RUNS; run++) {
        struct kv_confidence c;
        bool under = false, outside = false;
        state = (uint64_t)run * 7919 + 5;
        kv_confidence_init(&c, 0, 1, 0.05);
        for (int i = 0; i < N; i++) {
            kv_confidence_add(&c, uniform() < 0.1 ? uniform() : 0); /* mean 0.05, spiky */
            under |= kv_confidence_under(&c);
            double lower, upper;
            if (i % 10 == 0) kv_confidence_interval(&c, &lower, &upper), outside |= lower > 0.05 || upper < 0.05;
        }
        passes += under;
        alarms += kv_confidence_alarm(&c);
        missed += outside;
    }
    fprintf(stderr, "mean at the threshold, %d runs of %d looks: %d ever passed, %d alarmed, %d intervals missed\n", RUNS, N, passes, alarms, missed);
    ck_assert_int_le(passes, RUNS * 5 / 100);
    ck_assert_int_le(missed, RUNS * 5 / 100);
    ck_assert_int_eq(alarms, 0);
}
END_TEST

/* Attributed work of a token on a shared machine: lognormal, slow drift, and bursts that hit neighbours in time alike. */
struct machine {
    double drift;
    int burst;
};
static double token(struct machine *m, double factor)
{
    m->drift = 0.99 * m->drift + 0.05 * normal();
    if (m->burst > 0) m->burst--;
    else if (uniform() < 0.004) m->burst = 1 + (int)(uniform() * 40);
    return factor * 1000 * exp(0.2 * normal() + 0.3 * m->drift) * (m->burst ? 1 + 3 * uniform() : 1);
}

/* A whole stage of an A/A rollout: the candidate is the baseline. Share of candidate tokens 10 % as in a canary. */
static void aa_rollout(int run, double factor, int tokens, bool *failed, bool *passed)
{
    struct kv_gates *g = gates(KV_APPROXIMATE);
    struct kv_engine_stats stats = {0};
    state = (uint64_t)run * 104729 + 11;
    kv_gates_reset(g, &stats);
    struct machine m = {0};
    *failed = *passed = false;
    for (int i = 0; i < tokens && !*failed; i++) {
        enum kv_arm arm = uniform() < 0.1 ? KV_ARM_CANDIDATE : KV_ARM_CONTROL;
        struct kv_sample t = {.kind = KV_SAMPLE_TOKEN, .token_us = token(&m, arm == KV_ARM_CANDIDATE ? factor : 1)};
        kv_gates_sample(g, &t, arm);
        if (arm == KV_ARM_CANDIDATE) {
            struct kv_sample s = {.kind = KV_SAMPLE_STALL, .token_us = 0};
            kv_gates_sample(g, &s, arm);
            if (uniform() < 0.5) unit(g, fmax(0, 0.01 + 0.01 * normal()), true, 1);
        }
        if (i % 200) continue;
        struct kv_gate_result r[KV_MAX_GATES];
        enum kv_verdict v = kv_gates_decide(r, kv_gates_evaluate(g, KV_STAGE_CANARY, r), NULL);
        *failed |= v == KV_FAILED;
        *passed |= v == KV_PASS;
    }
    kv_gates_destroy(g);
}

START_TEST(an_aa_rollout_rarely_fails)
{
    int failures = 0, passes = 0;
    enum { RUNS = 1000 };
    for (int run = 0; run < RUNS; run++) {
        bool failed, passed;
        aa_rollout(run, 1, 6000, &failed, &passed);
        failures += failed;
        passes += passed && !failed;
    }
    fprintf(stderr, "A/A: %d of %d rollouts failed a gate, %d passed every gate within 6000 tokens\n", failures, RUNS, passes);
    ck_assert_int_le(failures, RUNS / 100);
    ck_assert_int_ge(passes, RUNS * 80 / 100);
}
END_TEST

START_TEST(a_slow_candidate_fails)
{
    int failures = 0, passes = 0;
    enum { RUNS = 50 };
    for (int run = 0; run < RUNS; run++) {
        bool failed, passed;
        aa_rollout(run, 4, 12000, &failed, &passed);
        failures += failed;
        passes += passed;
    }
    fprintf(stderr, "candidate four times slower: %d of %d failed, %d passed\n", failures, RUNS, passes);
    ck_assert_int_ge(failures, RUNS * 9 / 10);
    ck_assert_int_le(passes, RUNS / 20);
}
END_TEST

START_TEST(a_drill_is_worth_something_for_a_while)
{
    struct kv_gate_spec s[1] = {{.metric = "drill_rollback", .threshold = 600, .min_n = 1}};
    struct kv_gates *g;
    struct kv_gate_result r[KV_MAX_GATES];
    const int64_t hour = INT64_C(3600) * 1000000;
    ck_assert_int_eq(kv_gates_create(s, 1, 1, &g), KV_OK);
    kv_gates_now(g, 10 * hour);
    kv_gates_evaluate(g, KV_STAGE_SHADOW, r);
    ck_assert_int_eq(r[0].verdict, KV_NO_DATA);
    kv_gates_drill(g, 0, 10 * hour - 1000000, 30, 0); /* rollback is the first of drills.def */
    kv_gates_reset(g, &(struct kv_engine_stats){0});
    kv_gates_evaluate(g, KV_STAGE_CANARY, r);
    ck_assert_int_eq(r[0].verdict, KV_PASS); /* a step more does not forget it */
    ck_assert(r[0].value == 1 && r[0].n == 30);
    kv_gates_now(g, 11 * hour);
    kv_gates_evaluate(g, KV_STAGE_CANARY, r);
    ck_assert_int_eq(r[0].verdict, KV_INCONCLUSIVE);
    kv_gates_drill(g, 0, 11 * hour, 30, 1);
    kv_gates_evaluate(g, KV_STAGE_CANARY, r);
    ck_assert_int_eq(r[0].verdict, KV_FAILED);
    kv_gates_destroy(g);
}
END_TEST

START_TEST(a_window_pair_never_uses_one_token_twice)
{
    struct kv_switchback s;
    kv_switchback_init(&s, 42, 1.5);
    for (int i = 0; i < 10 * 32; i++) kv_switchback_add(&s, i & 1 ? KV_ARM_CANDIDATE : KV_ARM_CONTROL, 100);
    ck_assert_uint_le(s.pairs, 5); /* half of the tokens fall outside the window that is open */
    ck_assert_uint_ge(s.pairs, 4);
    ck_assert_uint_eq(s.n[0], 160);
    kv_switchback_add(&s, KV_ARM_OUTSIDE, 100);
    kv_switchback_add(&s, KV_ARM_CONTROL, NAN);
    kv_switchback_add(&s, KV_ARM_CONTROL, -1);
    ck_assert_uint_eq(s.n[0], 160);
    ck_assert_double_lt(fabs(kv_switchback_p99(&s, KV_ARM_CONTROL) / 100 - 1), 0.02);
}
END_TEST

Suite *suite_gates(void);
Suite *suite_gates(void)
{
    Suite *s = suite_create("gates");
    TCase *t = tcase_create("verdicts");
    tcase_add_test(t, misspelt_metrics_are_refused_with_the_nearest);
    tcase_add_test(t, what_must_be_zero_cannot_be_loosened);
    tcase_add_test(t, the_contracts_own_gates_are_added_once);
    tcase_add_test(t, no_data_is_its_own_verdict);
    tcase_add_test(t, units_that_leave_nothing_out_are_no_evidence);
    tcase_add_test(t, a_good_candidate_passes_with_enough_units);
    tcase_add_test(t, a_bad_candidate_fails);
    tcase_add_test(t, one_mismatch_fails_at_once);
    tcase_add_test(t, engine_counters_fail_gates);
    tcase_add_test(t, what_is_no_number_counts_as_the_worst);
    tcase_add_test(t, a_late_change_is_seen);
    tcase_add_test(t, held_out_quality_is_a_gate_when_asked_for);
    tcase_add_test(t, a_drill_is_worth_something_for_a_while);
    tcase_add_test(t, a_window_pair_never_uses_one_token_twice);
    suite_add_tcase(s, t);
    t = tcase_create("error rates");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, the_confidence_sequence_holds_at_any_time);
    tcase_add_test(t, an_aa_rollout_rarely_fails);
    tcase_add_test(t, a_slow_candidate_fails);
    suite_add_tcase(s, t);
    return s;
}
