/* test_scheduler.c — who goes next among those who wait: by priority, by arrival, and never later than the bound. */
#include "runtime/service/engine.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <stdlib.h>

Suite *suite_scheduler(void);

enum { WAITING = 4 };

static int32_t began[WAITING], n_began; /* decode thread until all have ended */

static void note(struct run *r, int32_t position)
{
    (void)position;
    int32_t who = *(int32_t *)r->ctx;
    if (!n_began || began[n_began - 1] != who) began[n_began++] = who;
}

/* One place, taken; the others arrive 0, 1, 2, 3 with these priorities. Writes the order in which they are served. */
static void served(int64_t starvation_us, const int32_t priority[WAITING])
{
    static const int32_t name[WAITING] = {0, 1, 2, 3};
    struct run *r = calloc(WAITING + 1, sizeof *r);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.max_sequences = 1;
    c.starvation_us = starvation_us;
    struct kv_engine *e = make_engine(&c);
    n_began = 0;
    run_init(&r[WAITING], 5, PROMPT, 60);
    run_begin(e, &r[WAITING]);
    run_read(&r[WAITING], 1);
    for (int32_t i = 0; i < WAITING; i++) {
        run_init(&r[i], (uint32_t)(10 + i), 20, 2);
        r[i].request.priority = priority[i];
        r[i].at = note;
        r[i].ctx = (void *)&name[i];
        run_begin(e, &r[i]);
    }
    for (int32_t i = WAITING; i >= 0; i--) run_end(&r[i]);
    kv_engine_destroy(e);
    free(r);
    ck_assert_int_eq(n_began, WAITING);
}

static void expect(const int32_t order[WAITING])
{
    for (int32_t i = 0; i < WAITING; i++) ck_assert_msg(began[i] == order[i], "place %d went to %d, not %d", i, began[i], order[i]);
}

START_TEST(the_higher_priority_goes_first_and_arrival_decides_between_equals)
{
    static const struct {
        int32_t priority[WAITING], order[WAITING];
    } table[] = {
        {{0, 0, 0, 0}, {0, 1, 2, 3}},
        {{10, 60, 60, 20}, {1, 2, 3, 0}},
        {{100, 1, 50, 99}, {0, 3, 2, 1}},
        {{0, 0, 0, 100}, {3, 0, 1, 2}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        served(60000000, table[i].priority);
        expect(table[i].order);
    }
}
END_TEST

START_TEST(who_has_waited_too_long_passes_every_priority)
{
    served(0, (const int32_t[]){0, 20, 60, 100});
    expect((const int32_t[]){0, 1, 2, 3});
}
END_TEST

START_TEST(a_priority_outside_its_range_is_refused)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    struct kv_stream *s;
    struct kv_error err = {0};
    static const int32_t bad[] = {-1, 101};
    for (int i = 0; i < 2; i++) {
        run_init(r, 1, 10, 2);
        r->request.priority = bad[i];
        ck_assert_int_eq(kv_engine_submit(e, &r->request, &s, &err), KV_BAD_ARGUMENT);
        ck_assert_str_eq(err.where, "priority");
    }
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* One key differs from the first row's in each: who goes first then, and who goes when the step has 1,000 bytes of fetches and 200 of staging. */
START_TEST(every_batch_key_decides)
{
    static const struct kv_batch_key a = {.fetch_bytes = 600, .tier = 1, .candidates = 64, .slack_us = 5000, .identity = 3, .staging_bytes = 100};
#define WITH(field, v) ({ struct kv_batch_key k = a; k.field = v; k; })
    const struct {
        const char *name;
        struct kv_batch_key b;
        bool b_first, both;
    } table[] = {
        {"nothing", a, false, false},
        {"fewer bytes", WITH(fetch_bytes, 300), true, true},
        {"more bytes", WITH(fetch_bytes, 700), false, false},
        {"nothing to fetch", WITH(fetch_bytes, 0), true, true},
        {"nearer tier", WITH(tier, 0), true, false},
        {"farther node", WITH(numa_node, 1), false, false},
        {"fewer candidates", WITH(candidates, 8), true, false},
        {"tighter slack", WITH(slack_us, 100), true, false},
        {"no deadline", WITH(slack_us, INT64_MAX), false, false},
        {"approximate", WITH(approximate, true), false, false},
        {"other identity", WITH(identity, 2), true, false},
        {"less staging", WITH(staging_bytes, 50), true, false},
        {"left out three times", WITH(deferred, KV_DEFER_MAX - 1), false, false},
        {"left out too often", WITH(deferred, KV_DEFER_MAX), true, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct kv_batch_key both[2] = {a, table[i].b};
        int32_t order[2];
        ck_assert_msg((kv_batch_compare(&table[i].b, &a) < 0) == table[i].b_first, "%s", table[i].name);
        int32_t n = kv_batch_form(both, 2, 1000, 200, order);
        ck_assert_msg(n == 1 + table[i].both && order[0] == table[i].b_first, "%s: %d go, %d first", table[i].name, n, order[0]);
    }
    struct kv_batch_key heavy[2] = {WITH(deferred, KV_DEFER_MAX), WITH(deferred, KV_DEFER_MAX)}, wide[2] = {a, WITH(fetch_bytes, 10)};
    int32_t order[2];
    ck_assert_int_eq(kv_batch_form(heavy, 2, 0, 0, order), 2); /* nobody is left out for ever */
    wide[1].staging_bytes = 150;
    ck_assert_int_eq(kv_batch_form(wide, 2, 1000, 200, order), 1); /* staging is a limit of its own */
#undef WITH
}
END_TEST

/* A link far too slow for a step within the iteration's bound, and one that a deadline makes too slow: rows stay where they are. */
START_TEST(exact_offload_needs_the_rate_it_would_take)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    for (int slow = 0; slow < 2; slow++) {
        c.link_bytes_per_second = slow ? 1000 : 0;
        struct kv_engine *e = make_engine(&c);
        install(e, "layerwise", NULL, 0, false);
        run_init(r, 3, 40, 8);
        assign(e, r, KV_EXACT);
        run_all(e, r);
        ck_assert_uint_eq(r->stats.candidate, slow ? 0 : 1);
        struct kv_engine_stats s;
        do kv_engine_stats(e, &s); /* a copy made after the iteration that ended the request */
        while (s.active || s.finished == 0);
        ck_assert_double_gt(s.rates.d2h_bytes_per_s, 0);
        ck_assert_double_gt(s.rates.h2d_bytes_per_s, 0);
        ck_assert_double_lt(s.rates.d2h_bytes_per_s, 1e12); /* no memory is so fast */
        ck_assert_double_gt(s.rates.prefill_tokens_per_s, 0);
        ck_assert_double_gt(s.rates.decode_tokens_per_s, 0);
        ck_assert_double_eq(s.rates.h2d_promised, 0);
        ck_assert_int_eq(s.rates.waiting_prompt_tokens, 0);
        kv_engine_destroy(e);
    }
    free(r);
}
END_TEST

Suite *suite_scheduler(void)
{
    Suite *s = suite_create("scheduler");
    TCase *t = tcase_create("scheduler");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_higher_priority_goes_first_and_arrival_decides_between_equals);
    tcase_add_test(t, who_has_waited_too_long_passes_every_priority);
    tcase_add_test(t, a_priority_outside_its_range_is_refused);
    tcase_add_test(t, every_batch_key_decides);
    tcase_add_test(t, exact_offload_needs_the_rate_it_would_take);
    suite_add_tcase(s, t);
    return s;
}
