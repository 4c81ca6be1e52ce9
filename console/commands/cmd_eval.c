/* cmd_eval.c — kvasir eval: pipelines against the exact baseline on tasks of a wanted length, offline, through the serving engine.
 *
 * No suite is scored on which the exact baseline itself does not do well enough: a loss could not show there. */
#include "console/commands/cli.h"
#include "console/commands/eval_report.h"
#include "console/commands/offline.h"
#include "console/output.h"
#include "console/progress_line.h"
#include "controller/config_paths.h"
#include "controller/embedded.h"
#include "runtime/evaluate/budget.h"
#include "runtime/selection/selector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PARAMS = 16, MAX_SUITES = 16, MAX_PIPELINES = 32, MAX_SAMPLES = 1000, LEAST_LENGTH = 64 };

struct options {
    const char *model, *suites, *pipelines, *sweep, *prose;
    char *params[MAX_PARAMS];
    int n_params, length, samples, threads, budget; /* budget -1: length / 8 where every method is asked, else the methods' own */
    long long seed;
    double sampled, gate, link; /* link: bytes per second of an emulated one; 0: none */
    bool baselines;
};

struct evaluation {
    const struct options *o;
    struct kv_model *model;
    const struct kv_suite *suite[MAX_SUITES];
    int n_suites;
    struct kv_trial_setup setup[MAX_PIPELINES * 8];
    char variant[MAX_PIPELINES * 8][48];
    const char *named[MAX_PIPELINES]; /* of the source's baselines; NULL: it is none */
    int doubts; /* of them, which one falls back by an estimate; -1: none */
    int n_setups;
    struct kv_task *tasks; /* [samples] of the suite in work */
    json_t *rows, *verdicts;
    int scored;
    bool json;
    struct kv_progress_line line;
};

/* ---------------------------------------------------------------- what is asked for */

static int usage(const char *why)
{
    fprintf(stderr, "kvasir eval: %s\nusage: kvasir eval [--suite A,B…] [--pipeline P,Q… [--param key=value]…] [--budget ROWS] [--length TOKENS] [--samples N]\n"
                    "                   [--sweep METHOD | --baselines [--link BYTES_PER_SECOND]] [--gate MASS] [--sampled SHARE] [--seed N] [--threads N] [--model M] [--prose FILE] [--json]\nsuites:\n", why);
    for (size_t i = 0; i < kv_suite_count(); i++) fprintf(stderr, "  %-16s %s\n", kv_suite_at(i)->name, kv_suite_at(i)->title);
    return KV_EXIT_USAGE;
}

static bool whole_number(const char *v, long long least, long long most, long long *out)
{
    char *end;
    *out = strtoll(v, &end, 10);
    return *v && !*end && *out >= least && *out <= most;
}

static const char *parse(int argc, char **argv, struct options *o)
{
    static char why[160];
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        const char **text = !strcmp(a, "--model") ? &o->model : !strcmp(a, "--suite") ? &o->suites : !strcmp(a, "--pipeline") ? &o->pipelines
                          : !strcmp(a, "--sweep") ? &o->sweep : !strcmp(a, "--prose") ? &o->prose : NULL;
        const struct { const char *name; int *to, least, most; } numbers[] = {
            {"--length", &o->length, LEAST_LENGTH, 1 << 20}, {"--samples", &o->samples, 1, MAX_SAMPLES}, {"--threads", &o->threads, 0, 256},
            {"--budget", &o->budget, 0, 1 << 20}};
        if (!strcmp(a, "--baselines")) {
            o->baselines = true;
            continue;
        }
        double *rate = !strcmp(a, "--link") ? &o->link : NULL, *share = !strcmp(a, "--gate") ? &o->gate : !strcmp(a, "--sampled") ? &o->sampled : NULL;
        size_t n = 0;
        while (n < sizeof numbers / sizeof *numbers && strcmp(numbers[n].name, a)) n++;
        bool number = n < sizeof numbers / sizeof *numbers, param = !strcmp(a, "--param"), seed = !strcmp(a, "--seed");
        snprintf(why, sizeof why, text || number || param || share || rate || seed ? "%s needs a value" : "unknown option '%s'", a);
        if (!(text || number || param || share || rate || seed) || !v || (param && o->n_params == MAX_PARAMS)) return why;
        long long value = 0;
        char *end = NULL;
        snprintf(why, sizeof why, "%s cannot be '%s'", a, v);
        if (text) *text = v;
        else if (param) o->params[o->n_params++] = argv[i + 1];
        else if (rate && (!((*rate = strtod(v, &end)) > 0 && *rate <= 1e15) || *end || end == v)) return why;
        else if (share && (!((*share = strtod(v, &end)) >= 0 && *share <= 1) || *end || end == v)) return why;
        else if (seed && !whole_number(v, 0, 1LL << 53, &o->seed)) return why;
        else if (number && !whole_number(v, numbers[n].least, numbers[n].most, &value)) return why;
        else if (number) *numbers[n].to = (int)value;
        i++;
    }
    if (o->baselines && o->sweep) return "--baselines and --sweep exclude each other";
    if (o->link > 0 && !o->baselines) return "--link goes with --baselines";
    if (o->sweep && o->pipelines) return "--sweep names the method itself; leave --pipeline out";
    if (o->n_params && !o->pipelines && !o->sweep && !o->baselines) return "--param needs one --pipeline";
    return NULL;
}

static enum kv_status choose_suites(struct evaluation *v, struct kv_error *err)
{
    char list[512], *rest = list;
    snprintf(list, sizeof list, "%s", v->o->suites ? v->o->suites : v->o->sweep ? "niah_multikey" : "passkey,niah_multikey,kv");
    for (char *name; (name = strsep(&rest, ","));) {
        const struct kv_suite *s = kv_suite_find(name);
        if (!s) {
            kv_fail(err, KV_NOT_FOUND, "--suite", "no suite is named '%s'", name);
            kv_hint(err, "kvasir eval --help lists them");
            return KV_NOT_FOUND;
        }
        if (v->n_suites == MAX_SUITES) return kv_fail(err, KV_BAD_ARGUMENT, "--suite", "more than %d suites", MAX_SUITES);
        v->suite[v->n_suites++] = s;
    }
    return KV_OK;
}

/* Defaults, budget, then what was given by name. */
static enum kv_status add_setup(struct evaluation *v, const char *name, int budget, struct kv_error *err)
{
    const struct kv_pipeline *p = kv_pipeline_find(name);
    if (!p) {
        kv_fail(err, KV_UNKNOWN_PIPELINE, "--pipeline", "no pipeline is named '%s'", name);
        kv_hint(err, "kvasir pipelines names them");
        return KV_UNKNOWN_PIPELINE;
    }
    if (!p->built) return kv_fail(err, KV_NOT_BUILT, "--pipeline", "pipeline %s is registered but not built", name);
    if (v->n_setups == MAX_PIPELINES) return kv_fail(err, KV_BAD_ARGUMENT, "--pipeline", "more than %d pipelines", MAX_PIPELINES);
    struct kv_trial_setup *s = &v->setup[v->n_setups++];
    *s = (struct kv_trial_setup){.pipeline = p, .n_threads = v->o->threads, .sampled = v->o->sampled, .max_omitted_mass = v->o->gate};
    kv_params_default(p, &s->params);
    enum kv_status status = budget > 0 ? kv_budget_set(p, budget, &s->params, err) : KV_OK;
    for (int i = 0; status == KV_OK && i < v->o->n_params; i++) status = kv_offline_param(p, v->o->params[i], &s->params, err);
    return status;
}

static enum kv_status choose_pipelines(struct evaluation *v, struct kv_error *err)
{
    const struct options *o = v->o;
    int each = o->budget >= 0 ? o->budget : o->length / 8 < KV_BUDGET_LEAST ? KV_BUDGET_LEAST : o->length / 8;
    if (o->sweep) {
        enum kv_status status = add_setup(v, o->sweep, each, err);
        if (status == KV_OK && !v->setup[0].pipeline->selector)
            return kv_fail(err, KV_BAD_ARGUMENT, "--sweep", "%s selects nothing and has no ablations", o->sweep);
        return status;
    }
    if (o->pipelines) {
        char list[512], *rest = list;
        snprintf(list, sizeof list, "%s", o->pipelines);
        for (char *name; (name = strsep(&rest, ","));) {
            if (!strcmp(name, "resident")) continue; /* the baseline is always there */
            enum kv_status status = add_setup(v, name, o->budget > 0 ? o->budget : 0, err);
            if (status != KV_OK) return status;
        }
        return KV_OK;
    }
    for (size_t i = 0; i < kv_pipeline_count(); i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        if (!p->built || !p->selector) continue;
        enum kv_status status = add_setup(v, p->name, each, err);
        if (status != KV_OK) return status;
    }
    return KV_OK;
}

static struct kv_trial_setup *add_named(struct evaluation *v, const char *name, const struct kv_trial_setup *s)
{
    v->named[v->n_setups] = name;
    v->setup[v->n_setups] = *s;
    return &v->setup[v->n_setups++];
}

/* The source's seven (0x09E); the first, all rows resident, is the exact baseline of every evaluation. */
static enum kv_status choose_baselines(struct evaluation *v, struct kv_error *err)
{
    const struct options *o = v->o;
    int budget = o->budget > 0 ? o->budget : o->length / 8 < KV_BUDGET_LEAST ? KV_BUDGET_LEAST : o->length / 8;
    enum kv_status status = add_setup(v, o->pipelines ? o->pipelines : "quest", budget, err);
    if (status != KV_OK) return status;
    struct kv_trial_setup retrieval = v->setup[0], offload = {.pipeline = kv_pipeline_find("layerwise"), .n_threads = o->threads, .max_omitted_mass = 1, .link_bytes_per_second = o->link};
    if (!retrieval.pipeline->selector) return kv_fail(err, KV_BAD_ARGUMENT, "--pipeline", "%s selects nothing; name one pipeline that does", retrieval.pipeline->name);
    v->n_setups = 0;
    kv_params_default(offload.pipeline, &offload.params);
    add_named(v, "exact offload, no overlap", &offload)->serial = true;
    add_named(v, "exact offload, pipelined", &offload);
    add_named(v, "static window, exact offload", &offload)->window_rows = budget;
    struct kv_trial_setup *oracle = add_named(v, "retrieval, full-attention oracle", &retrieval);
    oracle->sampled = 1;
    oracle->max_omitted_mass = 1;
    v->doubts = v->n_setups;
    struct kv_trial_setup *fallback = add_named(v, "retrieval, exact fallback", &retrieval);
    if (kv_params_get(fallback->pipeline, &fallback->params, "estimate_rows") == 0) kv_params_set(fallback->pipeline, &fallback->params, "estimate_rows", o->length / 32 > 64 ? 64 : o->length / 32, NULL);
    add_named(v, "recompute", &(struct kv_trial_setup){.n_threads = o->threads, .max_omitted_mass = 1, .cold = true});
    return KV_OK;
}

/* The sweep's setups: the first one, and one more for every other value of every parameter in the method's ablations. */
static enum kv_status expand_sweep(struct evaluation *v, struct kv_error *err)
{
    const struct kv_trial_setup base = v->setup[0];
    int budget = v->o->budget >= 0 ? v->o->budget : v->o->length / 8;
    snprintf(v->variant[0], sizeof v->variant[0], "as it stands");
    for (size_t i = 0; i < kv_ablation_count(); i++) {
        const struct kv_ablation *a = kv_ablation_at(i);
        for (int32_t k = 0; k < a->n && !strcmp(a->method, base.pipeline->selector); k++) {
            double value = a->of_budget ? (double)(long long)(a->value[k] * budget) : a->value[k];
            if (value == kv_params_get(base.pipeline, &base.params, a->param)) continue;
            struct kv_trial_setup *s = &v->setup[v->n_setups];
            *s = base;
            enum kv_status status = kv_params_set(base.pipeline, &s->params, a->param, value, err);
            if (status != KV_OK) return status;
            snprintf(v->variant[v->n_setups++], sizeof v->variant[0], "%s=%g", a->param, value);
        }
    }
    return KV_OK;
}

/* ---------------------------------------------------------------- the work */

static void progress(void *ctx, int32_t done)
{
    struct evaluation *v = ctx;
    if (!v->json) kv_progress_line_told(&v->line, (uint64_t)done, (uint64_t)v->o->samples);
}

static const char *prose_of(const struct options *o, char **owned, size_t *n, struct kv_error *err)
{
    *owned = NULL;
    for (const struct kv_embedded *e = kv_embedded_table; !o->prose && e->name; e++)
        if (!strcmp(e->name, "runtime/evaluate/prose.txt")) return *n = e->size, e->data;
    FILE *f = o->prose ? fopen(o->prose, "rb") : NULL;
    enum { MOST = 16 << 20 };
    *owned = f ? malloc(MOST) : NULL;
    *n = *owned ? fread(*owned, 1, MOST, f) : 0;
    if (f) fclose(f);
    if (!*n) kv_fail(err, KV_FILE_UNREADABLE, "--prose", "no prose could be read from %s", o->prose ? o->prose : "the program");
    return *n ? *owned : NULL;
}

static void show(struct evaluation *v, const struct kv_eval_row *row)
{
    if (!v->json && row->baseline_name) kv_eval_baseline_row(row);
    else if (v->json) json_array_append_new(v->rows, kv_eval_row_json(row));
    else kv_eval_table_row(row);
}

/* A method without an online estimate never doubts: run as the fallback's row it would be the oracle's under another name. */
static bool show_missing(struct evaluation *v, const struct kv_suite *suite, int i)
{
    const struct kv_eval_row row = {.suite = suite, .setup = &v->setup[i], .baseline_name = v->named[i]};
    char why[128];
    if (kv_selector_find(row.setup->pipeline->selector)->online_estimate) return false;
    snprintf(why, sizeof why, "%s has no online estimate of the omitted mass, so nothing would fall back", row.setup->pipeline->name);
    if (v->json) json_array_append_new(v->rows, kv_eval_missing_json(&row, why));
    else kv_eval_missing_row(&row, why);
    return true;
}

static enum kv_status run_suite(struct evaluation *v, const struct kv_suite *suite, struct kv_error *err)
{
    const struct options *o = v->o;
    const struct kv_trial_setup exact = {.n_threads = o->threads, .max_omitted_mass = 1};
    struct kv_trial baseline = {0};
    v->line.what = suite->name;
    enum kv_status status = kv_trial_run(v->model, &exact, suite, v->tasks, o->samples, progress, v, &baseline, err);
    kv_progress_line_end(&v->line);
    if (status != KV_OK) return status;
    const char *insane = kv_trial_insane(suite, &baseline, v->tasks);
    if (!v->json && o->baselines) kv_eval_baseline_head(suite, o->length, o->samples, o->link > 0);
    else if (!v->json) kv_eval_table_head(suite, o->length, o->samples);
    show(v, &(struct kv_eval_row){.suite = suite, .setup = &exact, .trial = &baseline, .tasks = v->tasks, .insane = insane,
                                  .baseline_name = o->baselines ? "full cache, resident" : NULL});
    json_array_append_new(v->verdicts, json_pack("{s:s,s:b,s:s?}", "suite", suite->name, "sane", !insane, "reason", insane));
    v->scored += !insane;
    for (int i = 0; !insane && status == KV_OK && i < v->n_setups; i++) {
        struct kv_trial trial;
        if (i == v->doubts && show_missing(v, suite, i)) continue;
        status = kv_trial_run(v->model, &v->setup[i], suite, v->tasks, o->samples, progress, v, &trial, err);
        kv_progress_line_end(&v->line);
        if (status != KV_OK) break;
        show(v, &(struct kv_eval_row){.suite = suite, .setup = &v->setup[i], .variant = o->sweep ? v->variant[i] : NULL, .baseline_name = v->named[i], .trial = &trial, .baseline = &baseline,
                                      .tasks = v->tasks});
        kv_trial_free(&trial);
    }
    kv_trial_free(&baseline);
    return status;
}

static enum kv_status run_all(struct evaluation *v, struct kv_error *err)
{
    const struct options *o = v->o;
    char *owned;
    size_t prose_bytes;
    const char *prose = prose_of(o, &owned, &prose_bytes, err);
    enum kv_status status = prose ? KV_OK : err->status;
    v->tasks = calloc((size_t)o->samples, sizeof *v->tasks);
    if (!v->tasks) status = kv_fail(err, KV_OUT_OF_MEMORY, "--samples", "no memory for %d tasks", o->samples);
    for (int s = 0; status == KV_OK && s < v->n_suites; s++) {
        /* Answers need room beyond the length: the engine checks the sum against the model's context. */
        for (int i = 0; status == KV_OK && i < o->samples; i++)
            status = kv_task_make(v->suite[s], v->model, prose, prose_bytes, o->length, (uint64_t)o->seed * 1000003 + (uint64_t)i, &v->tasks[i], err);
        if (status == KV_OK) status = run_suite(v, v->suite[s], err);
        for (int i = 0; i < o->samples; i++) kv_task_free(&v->tasks[i]);
    }
    free(v->tasks);
    free(owned);
    return status;
}

static void print_json(const struct evaluation *v)
{
    const struct options *o = v->o;
    json_t *out = json_pack("{s:s,s:i,s:i,s:I,s:f,s:f,s:O,s:O}", "model", kv_model_info(v->model)->name, "length", o->length, "samples", o->samples, "seed",
                            (json_int_t)o->seed, "gate", o->gate, "sampled", o->sampled, "suites", v->verdicts, "rows", v->rows);
    kv_output_json(out, JSON_REAL_PRECISION(9) | JSON_INDENT(1));
    putchar('\n');
    json_decref(out);
}

int kv_cmd_eval(int argc, char **argv, const struct kv_cli *cli)
{
    struct options o = {.length = 2048, .samples = 10, .budget = -1, .sampled = 0.05, .gate = 0.1, .seed = 1};
    const char *why = parse(argc, argv, &o);
    if (why) return usage(why);
    struct kv_error err = {0};
    struct evaluation *v = calloc(1, sizeof *v);
    char path[4096];
    enum kv_status s = v ? KV_OK : kv_fail(&err, KV_OUT_OF_MEMORY, "eval", "no memory");
    if (s != KV_OK) goto done;
    *v = (struct evaluation){.o = &o, .doubts = -1, .rows = json_array(), .verdicts = json_array(), .json = cli->json, .line.unit = "samples"};
    s = choose_suites(v, &err);
    if (s == KV_OK) s = o.baselines ? choose_baselines(v, &err) : choose_pipelines(v, &err);
    if (s == KV_OK && o.sweep) s = expand_sweep(v, &err);
    if (s == KV_OK && !o.model) {
        static char unset[] = "";
        s = kv_config_model_path(&(struct kv_config){.model = unset}, path, sizeof path, &err);
        o.model = path;
    }
    if (s == KV_OK) s = kv_offline_model(o.model, &v->model, &err);
    if (s == KV_OK) s = run_all(v, &err);
    if (s == KV_OK && cli->json) print_json(v);
done:
    if (s != KV_OK) kv_offline_complain("eval", &err);
    int status = s == KV_OK && v->scored ? KV_EXIT_DONE : KV_EXIT_REFUSED;
    if (v) {
        json_decref(v->rows);
        json_decref(v->verdicts);
        kv_model_close(v->model);
    }
    free(v);
    return status;
}
