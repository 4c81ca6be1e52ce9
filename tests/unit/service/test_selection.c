/* test_selection.c — selection inside the engine: indexes that take longer than a step, and what is served meanwhile. */
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <stdlib.h>

enum { CONTEXT = 1400, STEPS = 120 };

static void install_clusters(struct kv_engine *e, bool shadow)
{
    struct kv_candidate c = {.id = 1, .pipeline = kv_pipeline_find("clusterkv")};
    struct kv_error err = {0};
    kv_params_default(c.pipeline, &c.params);
    ck_assert_int_eq(kv_params_set(c.pipeline, &c.params, "rows_per_cluster", 8, &err), KV_OK);
    ck_assert_int_eq(kv_params_set(c.pipeline, &c.params, "budget_rows", 64, &err), KV_OK);
    struct kv_release_word w = kv_engine_release(e);
    ck_assert_msg(kv_engine_install(e, &c, shadow, w.epoch, w.epoch + 1, &err) == KV_OK, "%s", err.message);
}

static struct kv_engine_stats serve(double index_share, struct run *r)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.index_share = index_share;
    struct kv_engine *e = make_engine(&c);
    install_clusters(e, false);
    run_init(r, 5, CONTEXT, STEPS);
    assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    struct kv_engine_stats stats;
    kv_engine_stats(e, &stats);
    kv_engine_destroy(e);
    return stats;
}

static int first_approximate(const struct run *r)
{
    int i = 0;
    while (i < r->n && r->published[i] == KV_EXACT) i++;
    return i;
}

/* All rows are read until the index is there, so those tokens are exact; from then on it selects. Where that is follows from the work, not from the clock. */
START_TEST(an_index_in_the_making_serves_all_rows)
{
    struct run *r = calloc(3, sizeof *r);
    struct kv_engine_stats parts = serve(3, &r[0]), again = serve(3, &r[1]), whole = serve(0, &r[2]);
    int at = first_approximate(&r[0]);
    ck_assert_int_gt(at, 10);
    ck_assert_int_lt(at, STEPS);
    ck_assert_uint_gt(parts.index_waits, 0);
    ck_assert_int_eq(first_approximate(&r[1]), at);
    ck_assert_uint_eq(again.index_waits, parts.index_waits);
    ck_assert_int_le(first_approximate(&r[2]), 1);
    ck_assert_uint_eq(whole.index_waits, 0);
    free(r);
}
END_TEST

/* Where selecting would read no less, all rows are read, the tokens are exact, and it is counted. */
START_TEST(below_break_even_all_rows_are_read)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_stats stats;
    struct kv_engine *e = make_engine(NULL);
    install(e, "quest", "budget_rows", 512, false);
    run_init(r, 6, 200, 20);
    assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    kv_engine_stats(e, &stats);
    ck_assert_int_eq(first_approximate(r), r->n);
    ck_assert_uint_gt(stats.below_break_even, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

static uint64_t whole_heads(double break_even, int *approximate)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_config c;
    struct kv_engine_stats stats;
    kv_engine_config_default(&c);
    c.break_even = break_even;
    struct kv_engine *e = make_engine(&c);
    install(e, "quest", "budget_rows", 64, false);
    run_init(r, 6, 400, 20);
    assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    kv_engine_stats(e, &stats);
    *approximate = r->n - first_approximate(r);
    kv_engine_destroy(e);
    free(r);
    return stats.below_break_even;
}

/* A budget that pays where bytes are equal does not where each that selecting reads counts ten times. */
START_TEST(bytes_that_cost_more_move_the_break_even)
{
    int equal, dear;
    ck_assert_uint_eq(whole_heads(1, &equal), 0);
    ck_assert_uint_gt(whole_heads(10, &dear), 0);
    ck_assert_int_gt(equal, 0);
    ck_assert_int_eq(dear, 0);
}
END_TEST

START_TEST(a_break_even_below_one_is_refused)
{
    struct kv_engine_config c;
    struct kv_engine *e;
    struct kv_error err = {0};
    kv_engine_config_default(&c);
    c.break_even = 0.5;
    ck_assert_int_eq(kv_engine_create(demo_model(), &c, &e, &err), KV_BAD_ARGUMENT);
    ck_assert_str_eq(err.where, "break_even");
    ck_assert_ptr_nonnull(strstr(err.hint, "byte-cost"));
}
END_TEST

/* In shadow an index is built beside the baseline, one at a time; its units are measured once it is done, and dropped before. */
START_TEST(a_shadowed_index_is_built_step_by_step)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_config c;
    struct kv_engine_stats stats;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.shadow_fraction = 0.2;
    struct kv_engine *e = make_engine(&c);
    install_clusters(e, true);
    run_init(r, 5, CONTEXT, STEPS);
    run_all(e, r);
    kv_engine_stats(e, &stats);
    ck_assert_uint_gt(stats.units_sampled, 0);
    ck_assert_uint_gt(stats.units_dropped, 20);
    for (int i = 0; i < r->n; i++) ck_assert_int_eq(r->published[i], KV_EXACT);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

Suite *suite_selection(void);
Suite *suite_selection(void)
{
    Suite *s = suite_create("selection");
    TCase *c = tcase_create("selection");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, an_index_in_the_making_serves_all_rows);
    tcase_add_test(c, below_break_even_all_rows_are_read);
    tcase_add_test(c, bytes_that_cost_more_move_the_break_even);
    tcase_add_test(c, a_break_even_below_one_is_refused);
    tcase_add_test(c, a_shadowed_index_is_built_step_by_step);
    suite_add_tcase(s, c);
    return s;
}
