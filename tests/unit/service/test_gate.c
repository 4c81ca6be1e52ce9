/* test_gate.c — the gate before each publication, with every method: where a method has an estimate of what it leaves out, doubt widens and
 * then fetches everything; where it has none, nothing is made up. */
#include "runtime/evaluate/budget.h"
#include "runtime/selection/selector.h"
#include "runtime/service/fallback.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12 };

static struct kv_engine_stats serve(const char *pipeline, int32_t estimate_rows, double max_mass, struct run *r)
{
    struct kv_engine_config config;
    kv_engine_config_default(&config);
    config.n_threads = 2;
    config.index_share = 0; /* whole at once: every token is selected for, however busy the machine is */
    struct kv_engine *e = make_engine(&config);
    struct kv_fallback_table t;
    struct kv_candidate c = {.id = 1, .pipeline = kv_pipeline_find(pipeline), .byte_cost = 1};
    struct kv_error err = {0};
    const struct { const char *name; double value; } small[] = {{"page_rows", 8}, {"budget_rows", 24}, {"k", 16}, {"local_rows", 8}, {"cap_rows", 16}, {"sink_rows", 4}, {"top_rows", 8},
                                                                 {"bits", 4}, {"unit_rows", 8}, {"units", 1}, {"rows_per_cluster", 12}, {"tables", 4}, {"estimate_rows", estimate_rows}};
    kv_params_default(c.pipeline, &c.params);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) kv_params_set(c.pipeline, &c.params, small[i].name, small[i].value, NULL); /* those it has */
    kv_fallback_source_table(&t);
    kv_engine_set_fallback(e, &t, max_mass);
    struct kv_release_word w = kv_engine_release(e);
    ck_assert_msg(kv_engine_install(e, &c, false, w.epoch, w.epoch + 1, &err) == KV_OK, "%s", err.message);
    run_init(r, 51, PROMPT, STEPS);
    assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    struct kv_engine_stats st;
    kv_engine_drain(e, 5000);
    kv_engine_stats(e, &st);
    kv_engine_destroy(e);
    return st;
}

static int approximate(const struct run *r)
{
    int n = 0;
    for (int32_t i = 0; i < r->n; i++) n += r->published[i] == KV_APPROXIMATE;
    return n;
}

static const char *const methods[] = {"quest", "sparq", "infinigen", "pqcache", "infllm", "clusterkv", "magicpig"};

START_TEST(doubt_widens_where_there_is_an_estimate)
{
    const char *name = methods[_i];
    bool drawn = false, answers = kv_selector_find(name)->online_estimate != NULL;
    for (int32_t i = 0; i < kv_pipeline_find(name)->n_params; i++) drawn |= !strcmp(kv_pipeline_find(name)->params[i].name, "estimate_rows");
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_stats st = serve(name, 4, 0, r); /* whatever is left out is too much */
    ck_assert_msg(answers == (st.widened > 0), "%s: widened %llu times", name, (unsigned long long)st.widened);
    ck_assert_uint_eq(st.illegal_fallbacks, 0);
    if (answers) {
        ck_assert_uint_gt(st.full_fallbacks, 0);
        ck_assert_msg(st.below_break_even < st.widened, "%s: one doubt that cost all rows kept %llu later queries from selecting", name, (unsigned long long)st.below_break_even);
        ck_assert_msg(approximate(r) == 0, "%s published rows it doubted", name);
    } else {
        ck_assert_uint_eq(st.full_fallbacks, 0);
        ck_assert_msg(approximate(r) > 0, "%s left nothing out", name);
    }
    st = serve(name, 4, 1, r); /* nothing is too much */
    ck_assert_uint_eq(st.widened, 0);
    ck_assert_msg(approximate(r) > 0, "%s left nothing out", name);
    if (drawn) { /* nobody asked for an estimate */
        st = serve(name, 0, 0, r);
        ck_assert_uint_eq(st.widened, 0);
        ck_assert_int_gt(approximate(r), 0);
    }
    free(r);
}
END_TEST

Suite *suite_gate(void);
Suite *suite_gate(void)
{
    Suite *s = suite_create("gate");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, doubt_widens_where_there_is_an_estimate, 0, 7);
    suite_add_tcase(s, t);
    return s;
}
