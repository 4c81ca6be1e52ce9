/* budget.c — see budget.h. */
#include "runtime/evaluate/budget.h"

#include <math.h>
#include <string.h>

struct share { /* a parameter in the budget's terms: clamp(rows × num / den + add, least, most) */
    const char *method, *param;
    int32_t num, den, add, least, most;
};

enum { ALL = 1 << 20 };
static const struct share shares[] = {
    {"quest", "budget_rows", 1, 1, 0, 1, ALL},
    {"sparq", "k", 1, 1, 0, 1, ALL},
    {"sparq", "local_rows", 1, 4, 0, 0, ALL},
    {"infinigen", "cap_rows", 1, 1, 0, 1, ALL},
    {"pqcache", "sink_rows", 1, 8, 0, 4, 32},
    {"pqcache", "local_rows", 1, 4, 0, 0, 64},
    {"pqcache", "top_rows", 0, 1, 0, 1, ALL}, /* the rest */
    {"infllm", "sink_rows", 1, 8, 0, 4, 128},
    {"infllm", "local_rows", 1, 4, 0, 1, 4096},
    {"infllm", "unit_rows", 1, 16, 0, 8, 128},
    {"infllm", "units", 0, 1, 0, 1, ALL}, /* the rest, in units */
    {"clusterkv", "budget_rows", 1, 1, -16, 1, ALL},
};

static double value_of(const struct share *s, int32_t rows)
{
    int64_t v = (int64_t)rows * s->num / s->den + s->add;
    return (double)(v < s->least ? s->least : v > s->most ? s->most : v);
}

enum kv_status kv_budget_set(const struct kv_pipeline *p, int32_t rows, struct kv_params *params, struct kv_error *err)
{
    if (rows < KV_BUDGET_LEAST) return kv_fail(err, KV_BAD_ARGUMENT, "--budget", "a budget of %d rows is under the least, %d", rows, KV_BUDGET_LEAST);
    double left = rows;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const struct share *s = &shares[i];
        if (!p->selector || strcmp(p->selector, s->method)) continue;
        double v = value_of(s, rows);
        if (!s->num) {
            double unit = strcmp(s->param, "units") ? 1 : kv_params_get(p, params, "unit_rows");
            v = left / unit < 1 ? 1 : (double)(int64_t)(left / unit);
        } else if (!strcmp(s->param, "sink_rows") || !strcmp(s->param, "local_rows")) {
            left -= v;
        }
        enum kv_status status = kv_params_set(p, params, s->param, v, err);
        if (status != KV_OK) return status;
    }
    return KV_OK;
}

static const struct knob { /* from the least to the most, at even ratios; to 0: rows_max */
    const char *method, *param;
    double from, to;
} knobs[] = {
    {"quest", "budget_rows", 16, 0},  {"sparq", "k", 16, 0},     {"infinigen", "alpha", 0.25, 64},       {"pqcache", "top_rows", 8, 0},
    {"infllm", "units", 1, 0},        {"clusterkv", "budget_rows", 16, 0}, {"magicpig", "min_collisions", 32, 1},
};

const char *kv_budget_rung(const struct kv_pipeline *p, int32_t rung, int32_t n_rungs, int32_t rows_max, struct kv_params *params)
{
    const struct knob *k = knobs, *end = knobs + sizeof knobs / sizeof *knobs;
    while (k < end && (!p->selector || strcmp(p->selector, k->method))) k++;
    if (k == end) return NULL;
    double to = k->to > 0 ? k->to : rows_max;
    if (!strcmp(k->param, "units")) to = (int32_t)(rows_max / kv_params_get(p, params, "unit_rows")) + 1;
    double v = k->from * pow(to / k->from, (double)rung / (n_rungs - 1));
    if (!strcmp(k->param, "min_collisions") && v > kv_params_get(p, params, "tables")) v = kv_params_get(p, params, "tables");
    kv_params_set(p, params, k->param, strcmp(k->param, "alpha") ? round(v) : v, NULL);
    if (!strcmp(p->selector, "sparq")) kv_params_set(p, params, "local_rows", floor(round(v) / 4), NULL);
    if (!strcmp(p->selector, "infinigen")) kv_params_set(p, params, "cap_rows", rows_max, NULL);
    return k->param;
}

static const struct kv_ablation ablations[] = {
    {"quest", "page_rows", 4, {8, 16, 32, 64}, false},
    {"quest", "budget_rows", 5, {0.25, 0.5, 1, 2, 4}, true},
    {"sparq", "r", 4, {4, 8, 16, 32}, false},
    {"sparq", "k", 4, {0.25, 0.5, 1, 2}, true},
    {"sparq", "local_rows", 3, {0, 0.125, 0.5}, true},
    {"sparq", "mean_term", 2, {0, 1}, false},
    {"infinigen", "partial_ratio", 4, {0.1, 0.2, 0.3, 0.5}, false},
    {"infinigen", "alpha", 4, {2, 4, 5, 8}, false},
    {"infinigen", "cap_rows", 3, {0.25, 1, 4}, true},
    {"infinigen", "equalise", 2, {0, 1}, false},
    {"infinigen", "rehearse", 2, {0, 1}, false},
    {"pqcache", "subspaces", 3, {1, 2, 4}, false},
    {"pqcache", "bits", 3, {4, 6, 8}, false},
    {"pqcache", "top_rows", 4, {0.125, 0.5, 1, 2}, true},
    {"pqcache", "iterations", 3, {1, 10, 30}, false},
    {"infllm", "unit_rows", 4, {8, 16, 32, 64}, false},
    {"infllm", "representatives", 4, {1, 2, 4, 8}, false},
    {"infllm", "units", 3, {1, 4, 16}, false},
    {"clusterkv", "rows_per_cluster", 4, {20, 40, 80, 160}, false},
    {"clusterkv", "budget_rows", 4, {0.25, 0.5, 1, 2}, true},
    {"clusterkv", "iterations", 3, {1, 5, 20}, false},
    {"magicpig", "tables", 3, {50, 100, 150}, false},
    {"magicpig", "bits", 3, {6, 8, 10}, false},
    {"magicpig", "min_collisions", 2, {1, 2}, false},
    {"magicpig", "centre", 2, {0, 1}, false},
};

size_t kv_ablation_count(void) { return sizeof ablations / sizeof *ablations; }
const struct kv_ablation *kv_ablation_at(size_t i) { return i < kv_ablation_count() ? &ablations[i] : NULL; }
