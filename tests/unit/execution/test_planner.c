/* test_planner.c — every worked number of the contract, to the last digit given. */
#include "runtime/execution/planner.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the contract says, written as it says it: the value must print the same with that many digits. */
static const struct {
    const char *model, *term, *printed;
    int digits;
    double scale; /* the printed number is value × scale */
} worked[] = {
    {"row", "row_bytes", "4096", 0, 1},
    {"row", "block_bytes", "256", 0, 1.0 / 1024},
    {"row", "request_mib", "64", 0, 1},
    {"critical-ratio", "kappa_crit", "67.584", 3, 1},
    {"critical-ratio", "full_ratio", "64", 0, 1},
    {"critical-ratio", "cold_ratio", "36", 0, 1},
    {"critical-ratio", "full_transfer_ms", "2.604", 3, 1},
    {"critical-ratio", "compute_ms", "2.750", 3, 1},
    {"critical-ratio", "transfer_bound", "0", 0, 1},
    {"exact-offload", "request_bytes", "64", 0, 1.0 / 1048576},
    {"exact-offload", "h2d_bytes", "36", 0, 1.0 / 1048576},
    {"exact-offload", "d2h_bytes", "1", 0, 1.0 / 1048576},
    {"exact-offload", "iteration_h2d_bytes", "108", 0, 1.0 / 1048576},
    {"exact-offload", "a_read", "1", 0, 1},
    {"exact-offload", "link_only_ms", "1.465", 3, 1},
    {"exact-offload", "no_overlap_ms", "4.595", 3, 1},
    {"exact-offload", "pipeline_ms", "3.469", 3, 1},
    {"exact-offload", "hidden_ms", "1.126", 3, 1},
    {"exact-offload", "stall_ms", "0.719", 3, 1},
    {"exact-offload", "visible_ms", "4.869", 3, 1},
    {"exact-offload", "staging_variable_bytes", "28", 0, 1.0 / 1048576},
    {"exact-offload", "staging_fixed_bytes", "32", 0, 1.0 / 1048576},
    {"exact-offload", "device_peak_variable_mib", "64.26", 2, 1},
    {"exact-offload", "device_peak_fixed_mib", "68.26", 2, 1},
    {"layer-restore", "history_bytes", "48", 0, 1.0 / 1048576},
    {"layer-restore", "load_per_layer_ms", "0.58828125", 8, 1},
    {"layer-restore", "pipeline_ms", "2.803125", 6, 1},
    {"layer-restore", "host_visible_ms", "3.483125", 6, 1},
    {"layer-restore", "disk_visible_ms", "15.483125", 6, 1},
    {"layer-restore", "restore_from_host", "1", 0, 1},
    {"layer-restore", "restore_from_disk", "0", 0, 1},
    {"save", "layer_ms", "0.6459375", 7, 1},
    {"save", "total_ms", "2.58375", 5, 1},
    {"save", "visible_stall_ms", "0", 0, 1},
    {"interruption", "swap_one_way_ms", "1.6625", 4, 1},
    {"interruption", "waste_swap_byte_ms", "334705459.2", 1, 1},
    {"interruption", "crossing_ms", "8.7", 1, 1},
    {"interruption", "preserve", "1", 0, 1},
    {"swap-limit", "tokens_per_iteration", "1048", 0, 1},
    {"swap-limit", "iterations", "2", 0, 1},
    {"recompute-chunk", "chunk_tokens", "2048", 0, 1},
    {"persist", "j_persist", "3.03785", 5, 1},
    {"persist", "j_discard", "7.868", 3, 1},
    {"near-data", "full_kv_bytes", "16777216", 0, 1},
    {"near-data", "near_bytes", "8192", 0, 1},
    {"near-data", "near_transfer_ms", "0.040341", 6, 1},
    {"headwise", "group_bytes", "2097152", 0, 1},
    {"headwise", "layer_bytes", "16777216", 0, 1},
    {"headwise", "groups", "8", 0, 1},
    {"partial-state", "state_bytes_one", "4160", 0, 1},
    {"partial-state", "state_bytes_return", "8320", 0, 1},
    {"neo", "layer_ms", "1.15", 2, 1},
    {"neo", "total_ms", "4.60", 2, 1},
    {"sparq", "dense_elements", "1048832", 0, 1},
    {"sparq", "sparq_elements", "164352", 0, 1},
    {"sparq", "fraction", "0.1567", 4, 1},
    {"sensitivity", "token_kib", "128", 0, 1},
    {"sensitivity", "request_gib", "4", 0, 1},
    {"sensitivity", "resident_gib", "16", 0, 1},
    {"sensitivity", "cold_gib", "8", 0, 1},
    {"sensitivity", "backend_gib", "0.75", 2, 1},
    {"sensitivity", "service_ms", "31.48", 2, 1},
    {"sensitivity", "decode_gib", "96", 0, 1},
    {"sensitivity", "whole_caches", "64", 0, 1},
};

static struct kv_plan_inputs in;
static struct kv_plan_report out;

static void run_example(const char *name)
{
    struct kv_error err = {0};
    const struct kv_plan_model *m = kv_plan_find(name);
    ck_assert_msg(m != NULL, "%s", name);
    kv_plan_example(m, &in);
    ck_assert_msg(kv_plan_run(&in, &out, &err) == KV_OK, "%s: %s", name, err.message);
    ck_assert(!out.overflow);
}

static double term(const char *name)
{
    const struct kv_plan_term *t = kv_plan_term_find(&out, name);
    ck_assert_msg(t != NULL, "no term %s", name);
    return t->value;
}

static void set(const char *name, double v)
{
    struct kv_error err = {0};
    ck_assert_msg(kv_plan_set(&in, name, &v, 1, &err) == KV_OK, "%s", err.message);
}

START_TEST(worked_numbers)
{
    for (size_t i = 0; i < sizeof worked / sizeof *worked; i++) {
        char text[64];
        run_example(worked[i].model);
        snprintf(text, sizeof text, "%.*f", worked[i].digits, term(worked[i].term) * worked[i].scale);
        ck_assert_msg(!strcmp(text, worked[i].printed), "%s.%s is %s, the contract says %s", worked[i].model, worked[i].term, text, worked[i].printed);
    }
}
END_TEST

START_TEST(smaller_worked_sources)
{
    struct kv_error err;
    kv_plan_example(kv_plan_find("row"), &in);
    set("layers", 2), set("kv_heads", 2), set("positions", 8), set("d_head", 4);
    ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_OK);
    ck_assert_double_eq(term("request_bytes"), 512);
    set("layers", 32), set("kv_heads", 8), set("d_head", 128), set("positions", 32768);
    ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_OK);
    ck_assert_double_eq(term("token_kib"), 128);
    ck_assert_double_eq(term("request_gib"), 4);
    kv_plan_example(kv_plan_find("headwise"), &in); /* groups follow H_kv, not H_q */
    set("q_heads", 32);
    ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_OK);
    ck_assert_double_eq(term("groups"), 8);
}
END_TEST

START_TEST(timeline_adds_up)
{
    run_example("exact-offload");
    ck_assert_double_eq_tol(term("pipeline_ms"), term("compute_total_ms") + term("stall_ms"), 1e-9);
    ck_assert_double_eq_tol(term("visible_ms"), 1.4 + term("pipeline_ms"), 1e-9);
    ck_assert_double_eq(term("admitted"), 1);
    ck_assert_double_ge(term("layer_1.start_ms"), term("layer_1.ready_ms"));
}
END_TEST

/* Constant layers: T = F + C + (L − 1) max(F, C). */
START_TEST(constant_layers_have_a_closed_form)
{
    for (int fetch_bound = 0; fetch_bound < 2; fetch_bound++) {
        struct kv_error err;
        kv_plan_example(kv_plan_find("layer-restore"), &in);
        set("prefill_ms", fetch_bound ? 0.2 : 0.9);
        ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_OK);
        double f = 0.58828125, c = fetch_bound ? 0.2 : 0.9;
        ck_assert_double_eq_tol(term("pipeline_ms"), f + c + 3 * (f > c ? f : c), 1e-9);
    }
}
END_TEST

START_TEST(each_budget_refuses_alone)
{
    static const struct { const char *input, *term; double value; } budgets[] = {
        {"recoverable", "fits.recoverable", 0},       {"device_free_bytes", "fits.device", 60 << 20}, {"host_free_bytes", "fits.host", 60 << 20},
        {"pinned_free_bytes", "fits.pinned", 1 << 20}, {"h2d_free_bytes_per_s", "fits.h2d_rate", 1e9}, {"d2h_free_bytes_per_s", "fits.d2h_rate", 1e8},
        {"credits_free", "fits.credits", 3},
    };
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        struct kv_error err;
        kv_plan_example(kv_plan_find("exact-offload"), &in);
        set(budgets[i].input, budgets[i].value);
        ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_OK);
        ck_assert_double_eq(term(budgets[i].term), 0);
        ck_assert_double_eq(term("admitted"), 0);
    }
}
END_TEST

START_TEST(nine_sweeps)
{
    ck_assert_uint_eq(kv_plan_sweep_count(), 9);
    for (size_t i = 0; i < kv_plan_sweep_count(); i++) {
        const struct kv_plan_sweep *s = kv_plan_sweep_at(i);
        int same = 0;
        for (int32_t k = 0; k < s->n; k++) {
            struct kv_error err;
            kv_plan_example(&kv_plan_sensitivity, &in);
            same += kv_plan_get(&in, s->input) == s->value[k];
            set(s->input, s->value[k]);
            ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_OK);
        }
        ck_assert_msg(same == 1, "the sweep of %s does not pass through the base", s->control);
    }
}
END_TEST

START_TEST(bad_inputs)
{
    struct kv_error err;
    double v[2] = {1, 2}, nan = NAN, negative = -1;
    kv_plan_example(kv_plan_find("row"), &in);
    ck_assert_int_eq(kv_plan_set(&in, "layer", v, 1, &err), KV_UNKNOWN_KEY);
    ck_assert_int_eq(kv_plan_set(&in, "layers", v, 2, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_plan_set(&in, "layers", &nan, 1, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_plan_set(&in, "layers", &negative, 1, &err), KV_BAD_ARGUMENT);
    kv_plan_example(kv_plan_find("exact-offload"), &in);
    ck_assert_int_eq(kv_plan_set(&in, "cold_blocks", v, 2, &err), KV_OK);
    ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_BAD_ARGUMENT);
    double more[4] = {65, 0, 0, 0};
    ck_assert_int_eq(kv_plan_set(&in, "cold_blocks", more, 4, &err), KV_OK);
    ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_BAD_ARGUMENT);
}
END_TEST

START_TEST(every_model_runs_its_example)
{
    for (size_t i = 0; i < kv_plan_count(); i++) {
        const struct kv_plan_model *m = kv_plan_at(i);
        ck_assert_int_le(m->n_specs, KV_PLAN_MAX_INPUTS);
        run_example(m->name);
        ck_assert_int_gt(out.n, 0);
        for (int32_t k = 0; k < m->n_specs; k++) { /* the example passes its own range check */
            struct kv_error err = {0};
            ck_assert_msg(kv_plan_set(&in, m->spec[k].name, m->spec[k].example, m->spec[k].n, &err) == KV_OK, "%s.%s: %s", m->name, m->spec[k].name, err.message);
        }
    }
}
END_TEST

/* A machine that holds everything keeps everything on the device; a smaller one is never faster. */
START_TEST(flexgen_prefers_the_device)
{
    struct kv_error err;
    kv_plan_example(&kv_plan_flexgen, &in);
    set("device_bytes", 1e13), set("grid", 4);
    ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_OK);
    ck_assert_double_eq(term("weights.device"), 1);
    ck_assert_double_eq(term("cache.device"), 1);
    double roomy = term("throughput");
    set("device_bytes", 16e9);
    ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_OK);
    ck_assert_double_lt(term("throughput"), roomy);
    ck_assert_double_le(term("peak.device"), 16e9 * 0.8);
    set("device_bytes", 1), set("host_bytes", 1), set("disk_bytes", 1);
    ck_assert_int_eq(kv_plan_run(&in, &out, &err), KV_CAPACITY);
}
END_TEST

Suite *suite_planner(void);
Suite *suite_planner(void)
{
    Suite *s = suite_create("planner");
    TCase *t = tcase_create("planner");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, worked_numbers);
    tcase_add_test(t, smaller_worked_sources);
    tcase_add_test(t, timeline_adds_up);
    tcase_add_test(t, constant_layers_have_a_closed_form);
    tcase_add_test(t, each_budget_refuses_alone);
    tcase_add_test(t, nine_sweeps);
    tcase_add_test(t, bad_inputs);
    tcase_add_test(t, every_model_runs_its_example);
    tcase_add_test(t, flexgen_prefers_the_device);
    suite_add_tcase(s, t);
    return s;
}
