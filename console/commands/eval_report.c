/* eval_report.c — see eval_report.h. */
#include "console/commands/eval_report.h"

#include "runtime/evaluate/interval.h"

#include <math.h>
#include <stdio.h>

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *interval(struct kv_interval i)
{
    return json_pack("{s:o,s:o,s:o}", "value", number(i.value), "lower", number(i.lower), "upper", number(i.upper));
}

struct figures { /* the same for table and JSON */
    struct kv_interval score, difference;
    double fallback, widened, attended, select_us, select_bytes, build_ms, mass, error;
};

static double over(double a, double b) { return b > 0 ? a / b : NAN; }

static struct figures figures_of(const struct kv_eval_row *r)
{
    const struct kv_trial *t = r->trial;
    const struct kv_engine_stats *s = &t->stats;
    bool text = r->suite->kind == KV_SUITE_TEXT;
    double queries = (double)s->selections, heads = queries - (double)s->widened; /* a widened head was queried twice */
    struct figures f = {.score = text ? kv_interval_mean(t->score, t->n) : kv_interval_share(t->score, t->n), .difference = {NAN, NAN, NAN},
                        .fallback = over((double)s->full_fallbacks, heads), .widened = over((double)s->widened, heads),
                        .attended = over((double)s->selected_rows, (double)s->visible_rows), .select_us = over((double)s->selection_ns / 1e3, queries),
                        .select_bytes = over((double)s->selection_bytes, queries), .build_ms = over((double)s->index_build_ns / 1e6, t->n),
                        .mass = over(t->mass_sum, (double)t->units), .error = over(t->error_sum, (double)t->units)};
    if (!r->baseline) return f;
    if (!text) f.difference = kv_interval_paired_share(t->score, r->baseline->score, t->n);
    else {
        double d[4096];
        int32_t n = t->n < 4096 ? t->n : 4096;
        for (int32_t i = 0; i < n; i++) d[i] = t->score[i] - r->baseline->score[i];
        f.difference = kv_interval_mean(d, n);
    }
    return f;
}

static json_t *params_json(const struct kv_trial_setup *s)
{
    json_t *o = json_object();
    for (int32_t i = 0; s->pipeline && i < s->pipeline->n_params; i++) json_object_set_new(o, s->pipeline->params[i].name, json_real(s->params.value[i]));
    return o;
}

json_t *kv_eval_row_json(const struct kv_eval_row *r)
{
    struct figures f = figures_of(r);
    const struct kv_trial *t = r->trial;
    json_t *o = json_pack("{s:s,s:s,s:o,s:i}", "suite", r->suite->name, "pipeline", r->setup->pipeline ? r->setup->pipeline->name : "resident", "params",
                          params_json(r->setup), "samples", (int)t->n);
    if (r->variant) json_object_set_new(o, "variant", json_string(r->variant));
    if (r->baseline_name) {
        const struct kv_tier_stats *device = &t->stats.tier[0];
        json_object_set_new(o, "baseline", json_string(r->baseline_name));
        json_object_set_new(o, "emulated", json_boolean(r->setup->link_bytes_per_second > 0));
        json_object_set_new(o, "moved_bytes_a_token", number(over((double)device->bytes_in, t->n_token_us)));
        json_object_set_new(o, "stall_us", number(over(t->stall_us_sum, t->n_stalls)));
        json_object_set_new(o, "cold_ms", number(over(t->cold_us_sum / 1e3, t->n)));
    }
    json_object_set_new(o, "measure", json_string(r->suite->kind == KV_SUITE_TEXT ? "nats_per_token" : r->suite->kind == KV_SUITE_LIST ? "words" : "accuracy"));
    if (!r->insane || !r->baseline) {
        json_object_set_new(o, "score", interval(f.score));
        if (r->suite->kind == KV_SUITE_TEXT) json_object_set_new(o, "perplexity", number(exp(f.score.value)));
    } else {
        json_object_set_new(o, "score", json_null());
    }
    json_object_set_new(o, "difference", r->baseline && !r->insane ? interval(f.difference) : json_null());
    if (r->insane) json_object_set_new(o, "unscored", json_string(r->insane));
    json_object_set_new(o, "omitted_mass", json_pack("{s:o,s:o}", "mean", number(f.mass), "most", t->units ? number(t->mass_most) : json_null()));
    json_object_set_new(o, "output_error", json_pack("{s:o,s:o}", "mean", number(f.error), "most", t->units ? number(t->error_most) : json_null()));
    json_object_set_new(o, "units", json_integer((json_int_t)t->units));
    json_object_set_new(o, "bounds_broken", json_integer((json_int_t)t->bounds_broken));
    json_object_set_new(o, "traffic", json_pack("{s:o,s:o,s:o}", "ranked_bytes", number(f.select_bytes), "unit_bytes", number(over((double)t->unit_bytes, (double)t->units)),
                                                "attended_share", number(f.attended)));
    json_object_set_new(o, "selector_us", number(f.select_us));
    json_object_set_new(o, "index_build_ms", number(f.build_ms));
    json_object_set_new(o, "fallback_share", number(f.fallback));
    json_object_set_new(o, "widened_share", number(f.widened));
    json_object_set_new(o, "token_us", json_pack("{s:o,s:o}", "p50", number(kv_trial_token_us(t, 0.5)), "p99", number(kv_trial_token_us(t, 0.99))));
    json_object_set_new(o, "ttft_ms", number(over(t->ttft_us_sum / 1e3, t->n)));
    return o;
}

/* ---------------------------------------------------------------- for people */

static const char *shown(char *to, size_t cap, const char *fmt, double v)
{
    if (isfinite(v)) snprintf(to, cap, fmt, v);
    else snprintf(to, cap, "–");
    return to;
}

void kv_eval_table_head(const struct kv_suite *s, int32_t length, int32_t samples)
{
    printf("\n%s — %s; %d tasks of %d tokens; %s\n", s->name, s->title, samples, length,
           s->kind == KV_SUITE_TEXT ? "nats per token, lower is better" : "share right");
    printf("  %-34s %-21s %-23s %8s %8s %7s %9s %9s %8s %8s\n", "pipeline", "score (95 %)", "less baseline (95 %)", "omitted", "error", "rows", "select us",
           "ranked", "fallback", "token us");
}

void kv_eval_table_row(const struct kv_eval_row *r)
{
    struct figures f = figures_of(r);
    char name[64], score[48], difference[48], a[8][24];
    snprintf(name, sizeof name, "%s%s%s", r->setup->pipeline ? r->setup->pipeline->name : "resident (exact baseline)", r->variant ? " " : "", r->variant ? r->variant : "");
    snprintf(score, sizeof score, "%.3f [%.3f, %.3f]", f.score.value, f.score.lower, f.score.upper);
    if (r->baseline && !r->insane) snprintf(difference, sizeof difference, "%+.3f [%+.3f, %+.3f]", f.difference.value, f.difference.lower, f.difference.upper);
    else snprintf(difference, sizeof difference, "–");
    if (r->baseline && r->insane) snprintf(score, sizeof score, "not scored");
    printf("  %-34s %-21s %-23s %8s %8s %7s %9s %9s %8s %8s\n", name, score, difference, shown(a[0], 24, "%.4f", f.mass), shown(a[1], 24, "%.4f", f.error),
           shown(a[2], 24, "%.1f%%", 100 * f.attended), shown(a[3], 24, "%.1f", f.select_us), shown(a[4], 24, "%.0f B", f.select_bytes),
           shown(a[5], 24, "%.1f%%", 100 * f.fallback), shown(a[6], 24, "%.0f", kv_trial_token_us(r->trial, 0.5)));
    if (!r->baseline && r->insane) printf("    not scored below: %s\n", r->insane);
    fflush(stdout);
}

void kv_eval_baseline_head(const struct kv_suite *s, int32_t length, int32_t samples, bool emulated)
{
    printf("\n%s — %s; %d tasks of %d tokens; the source's seven baselines%s\n", s->name, s->title, samples, length, emulated ? "; link emulated" : "");
    printf("  %-34s %-11s %-23s %9s %9s %9s %11s %8s %8s %8s\n", "baseline", "pipeline", s->kind == KV_SUITE_TEXT ? "nats less exact (95 %)" : "score less exact (95 %)", "token us",
           "stall us", "cold ms", "moved/token", "omitted", "error", "fallback");
}

void kv_eval_baseline_row(const struct kv_eval_row *r)
{
    struct figures f = figures_of(r);
    const struct kv_trial *t = r->trial;
    char difference[48] = "–", a[7][24];
    if (r->baseline && !r->insane) snprintf(difference, sizeof difference, "%+.3f [%+.3f, %+.3f]", f.difference.value, f.difference.lower, f.difference.upper);
    printf("  %-34s %-11s %-23s %9s %9s %9s %11s %8s %8s %8s\n", r->baseline_name, r->setup->pipeline ? r->setup->pipeline->name : "resident", difference,
           shown(a[0], 24, "%.0f", kv_trial_token_us(t, 0.5)), shown(a[1], 24, "%.0f", over(t->stall_us_sum, t->n_stalls)), shown(a[2], 24, "%.2f", over(t->cold_us_sum / 1e3, t->n)),
           shown(a[3], 24, "%.0f B", over((double)t->stats.tier[0].bytes_in, t->n_token_us)), shown(a[4], 24, "%.4f", f.mass), shown(a[5], 24, "%.4f", f.error),
           shown(a[6], 24, "%.1f%%", 100 * f.fallback));
    fflush(stdout);
}

/* ---------------------------------------------------------------- what cannot be run */

json_t *kv_eval_missing_json(const struct kv_eval_row *r, const char *why)
{
    json_t *o = json_pack("{s:s,s:s,s:o,s:i,s:s,s:s}", "suite", r->suite->name, "pipeline", r->setup->pipeline->name, "params", params_json(r->setup), "samples", 0, "baseline", r->baseline_name,
                          "missing", why);
    const char *const figures[] = {"score", "difference", "omitted_mass", "output_error", "traffic", "selector_us", "fallback_share", "widened_share", "token_us", "ttft_ms"};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) json_object_set_new(o, figures[i], json_null());
    return o;
}

void kv_eval_missing_row(const struct kv_eval_row *r, const char *why)
{
    printf("  %-34s %-11s not run: %s\n", r->baseline_name, r->setup->pipeline->name, why);
    fflush(stdout);
}
