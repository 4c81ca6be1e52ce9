/* cmd_plan.c — kvasir plan: worked numbers from their inputs, offline. */
#include "console/commands/cli.h"
#include "console/commands/offline.h"
#include "console/output.h"
#include "runtime/execution/planner.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const struct kv_error *err)
{
    fprintf(stderr, "kvasir: %s: %s%s%s\n", kv_status_name(err->status), err->message, err->hint[0] ? "; " : "", err->hint);
    return KV_EXIT_REFUSED;
}

static json_t *inputs_json(const struct kv_plan_inputs *in)
{
    json_t *o = json_object();
    for (int32_t i = 0; i < in->model->n_specs; i++) {
        json_t *v = NULL;
        if (in->model->spec[i].n == 1) v = json_real(in->value[i][0]);
        else {
            v = json_array();
            for (int32_t k = 0; k < in->n[i]; k++) json_array_append_new(v, json_real(in->value[i][k]));
        }
        json_object_set_new(o, in->model->spec[i].name, v);
    }
    return o;
}

static int list(bool json)
{
    json_t *all = json_array();
    for (size_t i = 0; i < kv_plan_count(); i++) {
        const struct kv_plan_model *m = kv_plan_at(i);
        if (!json) {
            printf("%-16s %-14s %s\n", m->name, m->section, m->help);
            continue;
        }
        json_t *specs = json_array();
        for (int32_t k = 0; k < m->n_specs; k++)
            json_array_append_new(specs, json_pack("{s:s,s:s,s:s,s:b}", "name", m->spec[k].name, "unit", m->spec[k].unit, "help", m->spec[k].help, "list", m->spec[k].n > 1));
        json_array_append_new(all, json_pack("{s:s,s:s,s:s,s:o}", "model", m->name, "section", m->section, "help", m->help, "inputs", specs));
    }
    if (json) kv_output_json(all, JSON_INDENT(1)), puts("");
    json_decref(all);
    return KV_EXIT_DONE;
}

static enum kv_status read_case(const char *file, struct kv_plan_inputs *in, struct kv_error *err)
{
    const char *key;
    json_t *root, *v;
    enum kv_status read = kv_offline_json(file, 0, &root, err);
    if (read != KV_OK) return read;
    const char *name = json_string_value(json_object_get(root, "model"));
    const struct kv_plan_model *m = name ? kv_plan_find(name) : NULL;
    enum kv_status s = KV_OK;
    if (!m) {
        s = kv_fail(err, KV_NOT_FOUND, "model", name ? "no planner model is named '%s'" : "the case names no \"model\"", name);
        kv_hint(err, "kvasir plan --list names them");
        goto done;
    }
    kv_plan_example(m, in);
    json_object_foreach(json_object_get(root, "inputs"), key, v)
    {
        static double values[KV_PLAN_MAX_VALUES];
        size_t n = json_is_array(v) ? json_array_size(v) : 1;
        for (size_t i = 0; i < n && i < KV_PLAN_MAX_VALUES; i++) {
            json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
            if (!json_is_number(x)) {
                s = kv_fail(err, KV_BAD_ARGUMENT, key, "%s is not a number", key);
                goto done;
            }
            values[i] = json_number_value(x);
        }
        if ((s = kv_plan_set(in, key, values, n > INT32_MAX ? INT32_MAX : (int32_t)n, err)) != KV_OK) goto done;
    }
done:
    json_decref(root);
    return s;
}

static void print_report(const struct kv_plan_inputs *in, const struct kv_plan_report *r, bool json)
{
    json_t *terms = json_array(), *values = json_object();
    for (int32_t i = 0; i < r->n; i++) {
        const struct kv_plan_term *t = &r->term[i];
        if (!json) printf("%-30s %18.9g %-10s %s\n", t->name, t->value, t->unit, t->formula);
        json_array_append_new(terms, json_pack("{s:s,s:f,s:s,s:s}", "name", t->name, "value", t->value, "unit", t->unit, "formula", t->formula));
        json_object_set_new(values, t->name, json_real(t->value));
    }
    json_t *o = json_pack("{s:s,s:s,s:o,s:o,s:o}", "model", in->model->name, "section", in->model->section, "inputs", inputs_json(in), "values", values, "terms", terms);
    if (json) kv_output_json(o, JSON_INDENT(1) | JSON_REAL_PRECISION(15)), puts("");
    json_decref(o);
}

static int sweep(bool json)
{
    static struct kv_plan_inputs in;
    static struct kv_plan_report r;
    static const char *const shown[] = {"request_gib", "resident_gib", "cold_gib", "backend_gib", "service_ms", "decode_gib", "whole_caches"};
    struct kv_error err;
    json_t *all = json_array();
    if (!json) printf("%-18s %14s %10s %10s %10s %10s %12s %10s %8s\n", "control", "value", "req GiB", "res GiB", "cold GiB", "step GiB", "service ms", "dec GiB", "caches");
    for (size_t i = 0; i < kv_plan_sweep_count(); i++) {
        const struct kv_plan_sweep *s = kv_plan_sweep_at(i);
        json_t *points = json_array();
        for (int32_t k = 0; k < s->n; k++) {
            kv_plan_example(&kv_plan_sensitivity, &in);
            if (kv_plan_set(&in, s->input, &s->value[k], 1, &err) != KV_OK || kv_plan_run(&in, &r, &err) != KV_OK) {
                json_decref(points);
                json_decref(all);
                return refuse(&err);
            }
            json_t *point = json_pack("{s:f}", "value", s->value[k]);
            if (!json) printf("%-18s %14.6g", s->control, s->value[k]);
            for (size_t t = 0; t < sizeof shown / sizeof *shown; t++) {
                double v = kv_plan_term_find(&r, shown[t])->value;
                json_object_set_new(point, shown[t], json_real(v));
                if (!json) printf(" %*.6g", t == 4 ? 12 : t == 6 ? 8 : 10, v);
            }
            if (!json) puts("");
            json_array_append_new(points, point);
        }
        json_array_append_new(all, json_pack("{s:s,s:s,s:o}", "control", s->control, "input", s->input, "points", points));
    }
    if (json) kv_output_json(all, JSON_INDENT(1) | JSON_REAL_PRECISION(12)), puts("");
    json_decref(all);
    return KV_EXIT_DONE;
}

int kv_cmd_plan(int argc, char **argv, const struct kv_cli *cli)
{
    static struct kv_plan_inputs in;
    static struct kv_plan_report report;
    struct kv_error err = {0};
    if (argc == 2 && !strcmp(argv[1], "--list")) return list(cli->json);
    if (argc == 2 && !strcmp(argv[1], "--sweep")) return sweep(cli->json);
    if (argc == 3 && !strcmp(argv[1], "--example")) {
        const struct kv_plan_model *m = kv_plan_find(argv[2]);
        if (!m) {
            kv_fail(&err, KV_NOT_FOUND, argv[2], "no planner model is named '%s'", argv[2]);
            kv_hint(&err, "kvasir plan --list names them");
            return refuse(&err);
        }
        kv_plan_example(m, &in);
        json_t *o = json_pack("{s:s,s:o}", "model", m->name, "inputs", inputs_json(&in));
        kv_output_json(o, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
        puts("");
        json_decref(o);
        return KV_EXIT_DONE;
    }
    if (argc != 2 || (argv[1][0] == '-' && argv[1][1])) {
        fprintf(stderr, "usage: kvasir plan CASE.json | plan --list | plan --example MODEL | plan --sweep\n");
        return KV_EXIT_USAGE;
    }
    if (read_case(argv[1], &in, &err) != KV_OK || kv_plan_run(&in, &report, &err) != KV_OK) return refuse(&err);
    print_report(&in, &report, cli->json);
    return KV_EXIT_DONE;
}
