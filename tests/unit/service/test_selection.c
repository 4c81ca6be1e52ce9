/* test_selection.c — selection inside the engine: indexes that take longer than a step, and what is served meanwhile. */
#include "tests/unit/service/engine_runs.h"

#include "runtime/selection/selector.h"
#include "runtime/service/sequence.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 1400, STEPS = 120 };

static void install_clusters(struct kv_engine *e, bool shadow)
{
    struct kv_candidate c = {.id = 1, .pipeline = kv_pipeline_find("clusterkv"), .byte_cost = 1};
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

struct decision {
    uint64_t whole; /* heads that read all rows */
    int approximate;
};

/* quest over 400 rows, by the candidate's own byte_cost (0: what the method declares) and the engine's factor. */
static struct decision decide(double byte_cost, double factor)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_config c;
    struct kv_engine_stats stats;
    struct kv_error err = {0};
    struct kv_candidate k = {.id = 1, .pipeline = kv_pipeline_find("quest"), .byte_cost = byte_cost};
    kv_engine_config_default(&c);
    c.break_even = factor;
    kv_params_default(k.pipeline, &k.params);
    ck_assert_int_eq(kv_params_set(k.pipeline, &k.params, "budget_rows", 64, &err), KV_OK);
    struct kv_engine *e = make_engine(&c);
    struct kv_release_word w = kv_engine_release(e);
    ck_assert_msg(kv_engine_install(e, &k, false, w.epoch, w.epoch + 1, &err) == KV_OK, "%s", err.message);
    run_init(r, 6, 400, 20);
    assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    kv_engine_stats(e, &stats);
    struct decision d = {stats.below_break_even, r->n - first_approximate(r)};
    kv_engine_destroy(e);
    free(r);
    return d;
}

/* A budget that pays where bytes are alike does not where each that selecting reads counts ten times. */
START_TEST(bytes_that_cost_more_move_the_break_even)
{
    struct decision alike = decide(1, 1), dear = decide(10, 1);
    ck_assert_uint_eq(alike.whole, 0);
    ck_assert_int_gt(alike.approximate, 0);
    ck_assert_uint_gt(dear.whole, 0);
    ck_assert_int_eq(dear.approximate, 0);
}
END_TEST

/* What a method declares is multiplied by the engine's factor; a candidate that brings its own is served by that, whatever the factor. */
START_TEST(a_candidates_own_cost_comes_before_the_engines)
{
    double declared = kv_selector_find("quest")->byte_cost;
    ck_assert_int_eq(decide(0, 10 / declared).approximate, 0);
    ck_assert_int_eq(decide(0, 1 / declared).approximate, decide(1, KV_BREAK_EVEN_MOST).approximate);
    ck_assert_int_gt(decide(1, KV_BREAK_EVEN_MOST).approximate, 0);
    ck_assert_int_eq(decide(10, KV_BREAK_EVEN_LEAST).approximate, 0);
}
END_TEST

/* Dense attention is faster over a few thousand rows, so that no method's bytes may count as if they came in order. */
START_TEST(every_method_declares_what_its_bytes_cost)
{
    for (size_t i = 0; i < kv_selector_count(); i++) {
        ck_assert_msg(kv_selector_at(i)->byte_cost >= 1, "%s", kv_selector_at(i)->name);
        ck_assert_msg(kv_selector_at(i)->byte_cost <= 100, "%s", kv_selector_at(i)->name);
    }
}
END_TEST

START_TEST(costs_out_of_range_are_refused)
{
    struct kv_engine_config c;
    struct kv_engine *e;
    struct kv_error err = {0};
    kv_engine_config_default(&c);
    c.break_even = KV_BREAK_EVEN_LEAST / 2;
    ck_assert_int_eq(kv_engine_create(demo_model(), &c, &e, &err), KV_BAD_ARGUMENT);
    ck_assert_str_eq(err.where, "break_even");
    ck_assert_ptr_nonnull(strstr(err.hint, "byte-cost"));
    e = make_engine(NULL);
    struct kv_candidate k = {.id = 1, .pipeline = kv_pipeline_find("quest"), .byte_cost = -1};
    kv_params_default(k.pipeline, &k.params);
    ck_assert_int_eq(kv_engine_install(e, &k, false, 0, 1, &err), KV_BAD_ARGUMENT);
    ck_assert_str_eq(err.where, "byte_cost");
    kv_engine_destroy(e);
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

/* Sampled units of the first layer that selects: under the same tokens what it reads is exact, in shadow and in service. */
static size_t first_layer(const char *name, bool shadow, struct kv_sample *out, size_t cap)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_config c;
    struct kv_error err = {0};
    struct kv_candidate k = {.id = 1, .pipeline = kv_pipeline_find(name), .byte_cost = KV_BREAK_EVEN_LEAST};
    const struct { const char *name; double value; } small[] = {{"page_rows", 8}, {"budget_rows", 24}, {"k", 16}, {"local_rows", 8}, {"cap_rows", 16}, {"sink_rows", 4}, {"top_rows", 8}, {"bits", 4},
                                                                 {"unit_rows", 8}, {"units", 3}, {"rows_per_cluster", 12}, {"tables", 8}, {"rehearse", 0}, {"window_rows", 16}, {"window_clusters", 2}};
    kv_params_default(k.pipeline, &k.params);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) kv_params_set(k.pipeline, &k.params, small[i].name, small[i].value, NULL); /* those it has */
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.shadow_fraction = 0.3;
    c.index_share = 0;
    struct kv_engine *e = make_engine(&c);
    struct kv_release_word w = kv_engine_release(e);
    ck_assert_msg(kv_engine_install(e, &k, shadow, w.epoch, w.epoch + 1, &err) == KV_OK, "%s", err.message);
    run_init(r, 17, PROMPT, 40);
    r->request.force = r->prompt;
    r->request.n_force = 40;
    if (!shadow) assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    kv_engine_drain(e, 5000);
    size_t n = 0, got;
    struct kv_sample s[64];
    while ((got = kv_engine_samples(e, s, 64)))
        for (size_t i = 0; i < got; i++)
            if (s[i].kind == KV_SAMPLE_UNIT && s[i].layer == kv_selector_find(name)->dense_layers && n < cap) out[n++] = s[i];
    kv_engine_destroy(e);
    free(r);
    return n;
}

/* However late the first unit is sampled, its index is the one that would serve: over the prompt's rows and queries, later rows appended. */
START_TEST(shadow_selects_what_serves)
{
    const char *name = kv_selector_at((size_t)_i)->name;
    struct kv_sample shadow[128], served[128];
    size_t n = first_layer(name, true, shadow, 128);
    ck_assert_uint_eq(first_layer(name, false, served, 128), n);
    ck_assert_uint_gt(n, 10);
    for (size_t i = 0; i < n; i++) {
        ck_assert(shadow[i].shadow && !served[i].shadow);
        ck_assert(shadow[i].position == served[i].position && shadow[i].kv_head == served[i].kv_head);
        ck_assert_msg(shadow[i].rows_selected == served[i].rows_selected && shadow[i].rows_selected < shadow[i].rows_total && fabs(shadow[i].omitted_mass - served[i].omitted_mass) < 1e-6,
                      "%s at %d: %d rows leave out %g in shadow, %d rows %g in service", name, (int)shadow[i].position, shadow[i].rows_selected, shadow[i].omitted_mass, served[i].rows_selected,
                      served[i].omitted_mass);
    }
}
END_TEST

Suite *suite_selection(void);
/* ---------------------------------------------------------------- an index that there is no memory for */

static bool no_memory;
typedef enum kv_status create_fn(const struct kv_selector_method *m, const struct kv_params *p, const struct kv_sequence_shape *shape, int32_t max_rows, int32_t n_prompt, bool all,
                                 struct kv_selection **out, struct kv_error *err);
create_fn __real_kv_selection_create, __wrap_kv_selection_create;

enum kv_status __wrap_kv_selection_create(const struct kv_selector_method *m, const struct kv_params *p, const struct kv_sequence_shape *shape, int32_t max_rows, int32_t n_prompt, bool all,
                                          struct kv_selection **out, struct kv_error *err)
{
    return no_memory ? kv_fail(err, KV_OUT_OF_MEMORY, m->name, "none") : __real_kv_selection_create(m, p, shape, max_rows, n_prompt, all, out, err);
}

static int without_index;

static bool count_unindexed(void *ctx, const struct kv_receipt *r)
{
    (void)ctx;
    without_index += r->kind == KV_RECEIPT_FALLBACK && r->reason == KV_OUT_OF_MEMORY && strstr(r->detail, "index");
    return true;
}

/* The request gets its answer from the baseline, and the candidate's gate sees why. */
START_TEST(without_memory_for_an_index_the_baseline_serves)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.sink = (struct kv_receipt_sink){NULL, count_unindexed};
    struct kv_engine *e = make_engine(&c);
    install_clusters(e, false);
    for (int k = 0; k < 2; k++) run_init(&r[k], 5, 200, 8);
    run_all(e, &r[0]);
    assign(e, &r[1], KV_APPROXIMATE);
    no_memory = true;
    run_all(e, &r[1]);
    no_memory = false;
    struct kv_engine_stats stats;
    kv_engine_drain(e, 5000);
    kv_engine_stats(e, &stats);
    ck_assert_int_eq(r[1].stats.finish, KV_FINISH_LENGTH);
    ck_assert_uint_eq(r[1].stats.candidate, 0);
    same_runs(&r[0], &r[1]);
    ck_assert_uint_eq(stats.allocation_failures, 1);
    kv_engine_destroy(e);
    ck_assert_int_eq(without_index, 1);
    free(r);
}
END_TEST

Suite *suite_selection(void)
{
    Suite *s = suite_create("selection");
    TCase *c = tcase_create("selection");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, without_memory_for_an_index_the_baseline_serves);
    tcase_add_test(c, an_index_in_the_making_serves_all_rows);
    tcase_add_test(c, below_break_even_all_rows_are_read);
    tcase_add_test(c, bytes_that_cost_more_move_the_break_even);
    tcase_add_test(c, a_candidates_own_cost_comes_before_the_engines);
    tcase_add_test(c, every_method_declares_what_its_bytes_cost);
    tcase_add_test(c, costs_out_of_range_are_refused);
    tcase_add_test(c, a_shadowed_index_is_built_step_by_step);
    tcase_add_loop_test(c, shadow_selects_what_serves, 0, (int)kv_selector_count());
    suite_add_tcase(s, c);
    return s;
}
