/* rollout.c — the first view: where the candidate stands, what its gates say, how fast all is, what happened last. */
#include "console/views/views.h"

#include <math.h>
#include <string.h>

/* The stages as a track, the present one marked. Returns the next free row. */
static int draw_track(const struct kv_app *a, struct kv_grid *g, int row)
{
    static const char *const stage[] = {"OFF", "SHADOW", "CANARY", "RAMP", "FULL"};
    const char *now = kv_field_text(a->rollout, "stage");
    double percent = 100 * kv_field_number(a->rollout, "fraction");
    int c = 1, reached = 0;
    for (int i = 0; i < 5; i++) reached = !strcmp(now, stage[i]) ? i : reached;
    for (int i = 0; i < 5; i++) {
        int here = !strcmp(now, stage[i]);
        enum kv_style style = here ? kv_word_style(now) : i < reached ? KV_STYLE_NORMAL : KV_STYLE_DIM;
        if (i) c += kv_grid_text(g, row, c, 0, KV_STYLE_DIM, false, g->cols < 60 ? " " : " ── ");
        if (here && i && i < 4) c += kv_grid_printf(g, row, c, 0, style, "[%s %.4g %%]", stage[i], percent);
        else c += kv_grid_printf(g, row, c, 0, style, here ? "[%s]" : "%s", stage[i]);
    }
    if (!strcmp(now, "EXACT_BASELINE")) kv_grid_text(g, row, c + 2, 0, KV_STYLE_BAD, false, "[EXACT_BASELINE]");
    return row + 1;
}

/* A gate's figure in its own unit, short: "1.1 %", "1.02 x", "863 us". */
static void figure(double v, const char *unit, char *out, size_t cap)
{
    bool share = !strcmp(unit, "share"), counted = !*unit || !strcmp(unit, "count") || !strcmp(unit, "relative");
    if (!isfinite(v)) snprintf(out, cap, "–");
    else if (share) snprintf(out, cap, "%.4g %%", 100 * v);
    else if (!strcmp(unit, "ratio")) snprintf(out, cap, "%.3g x", v);
    else if (!strcmp(unit, "us") && v >= 1000) snprintf(out, cap, "%.3g ms", v / 1000);
    else if (!strcmp(unit, "us")) snprintf(out, cap, "%.3g us", v);
    else if (counted || strlen(unit) > 2) kv_number_text(v, out, cap);
    else snprintf(out, cap, "%.4g %s", v, unit);
}

static void draw_gate(struct kv_grid *g, int row, const json_t *gate)
{
    char value[24], upper[24], limit[24];
    const char *verdict = kv_field_text(gate, "verdict"), *unit = kv_field_text(gate, "unit"), *compare = *kv_field_text(gate, "comparison") ? kv_field_text(gate, "comparison") : "<=";
    bool judged = !json_is_false(json_object_get(gate, "judged"));
    enum kv_style style = judged ? kv_word_style(verdict) : KV_STYLE_DIM;
    kv_grid_text(g, row, 1, 20, KV_STYLE_NORMAL, true, kv_field_text(gate, "name"));
    kv_grid_text(g, row, 22, 2, style, true, judged ? kv_verdict_glyph(verdict) : "·");
    kv_grid_text(g, row, 24, 13, style, true, judged ? verdict : "not judged");
    if (g->cols < 76) return;
    figure(kv_field_number(gate, "value"), unit, value, sizeof value);
    figure(kv_field_number(gate, "upper"), unit, upper, sizeof upper);
    figure(kv_field_number(gate, "threshold"), unit, limit, sizeof limit);
    kv_grid_printf(g, row, 37, 9, KV_STYLE_NORMAL, isfinite(kv_field_number(gate, "value")) ? "%9s" : "%11s", value);
    kv_grid_printf(g, row, 47, 9, KV_STYLE_DIM, isfinite(kv_field_number(gate, "upper")) ? "%9s" : "%11s", upper);
    kv_grid_printf(g, row, 57, 11, KV_STYLE_NORMAL, "%s %s", g->ascii ? compare : !strcmp(compare, ">=") ? "≥" : "≤", limit);
    kv_grid_printf(g, row, 68, 0, KV_STYLE_DIM, "%.0f/%.0f", kv_field_number(gate, "n"), kv_field_number(gate, "min_n"));
}

static bool calm(const json_t *gate)
{
    return json_is_false(json_object_get(gate, "judged")) || !strcmp(kv_field_text(gate, "verdict"), "PASS");
}

/* Where not all of them have room, those that do not pass come first and the last row says how many do not show. */
static int draw_gates(const struct kv_app *a, struct kv_grid *g, int row, int last)
{
    size_t i;
    json_t *gate;
    const json_t *gates = json_object_get(a->rollout, "gates");
    int left = (int)json_array_size(gates);
    kv_grid_text(g, row, 1, 0, KV_STYLE_BOLD, false, "gate                 verdict");
    if (g->cols >= 76) kv_grid_text(g, row, 37, 0, KV_STYLE_BOLD, false, "    value     bound limit      samples/min");
    row++;
    if (!left) kv_grid_text(g, row++, 1, 0, KV_STYLE_DIM, false, "no gate has been evaluated yet");
    bool cut = row + left - 1 > last;
    for (int pass = 0; pass <= cut; pass++)
        json_array_foreach(gates, i, gate) {
            if (cut && calm(gate) != (pass == 1)) continue;
            if (row > last) return row;
            if (row == last && left > 1) return kv_grid_printf(g, row, 1, 0, KV_STYLE_DIM, "and %d more; Enter shows all", left), row + 1;
            draw_gate(g, row++, gate);
            left--;
        }
    return row;
}

static void draw_line(struct kv_grid *g, int row, const char *name, const struct kv_series *s, double scale, const char *unit)
{
    double v = s->n ? s->v[s->n - 1] * scale : NAN;
    kv_grid_text(g, row, 1, 0, KV_STYLE_NORMAL, false, name);
    if (isfinite(v)) kv_grid_printf(g, row, 17, 0, KV_STYLE_BOLD, "%10.4g %s", v, unit);
    else kv_grid_printf(g, row, 17, 0, KV_STYLE_DIM, "         – %s", unit);
    int width = g->cols - 42;
    if (width > 4) kv_grid_spark(g, row, 40, width, KV_STYLE_ACCENT, s->v, s->n);
}

/* Who the rollout is for: "tenants a, b; classes chat", or everybody who allows approximation. */
static void draw_cohort(const struct kv_app *a, struct kv_grid *g, int row)
{
    const json_t *cohort = json_object_get(a->rollout, "cohort");
    static const char *const names[] = {"tenants", "classes", "headers"};
    int c = 1 + kv_grid_text(g, row, 1, 0, KV_STYLE_DIM, false, "cohort");
    size_t i, said = 0;
    json_t *v;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const json_t *list = json_object_get(cohort, names[k]);
        if (json_array_size(list)) c += kv_grid_printf(g, row, c, 0, KV_STYLE_NORMAL, " %s", names[k]), said++;
        json_array_foreach(list, i, v) c += kv_grid_printf(g, row, c, 0, KV_STYLE_BOLD, " %s", json_string_value(v) ? json_string_value(v) : "");
    }
    bool exact = !strcmp(kv_field_text(a->rollout, "contract"), "exact");
    if (!said) c += kv_grid_text(g, row, c, 0, KV_STYLE_NORMAL, false, exact ? " everybody" : " everybody who allows approximation");
    double recomputing = kv_field_number(json_object_get(a->status, "live"), "recomputing");
    if (recomputing > 0) kv_grid_printf(g, row, c + 2, 0, KV_STYLE_WARN, "%.0f sequences recompute exactly", recomputing);
}

static void draw_transition(struct kv_grid *g, int row, const json_t *t)
{
    static const struct kv_column at = {"at", "at", 8, KV_CELL_TIME, 0};
    const char *to = kv_field_text(t, "to"), *reason = kv_field_text(t, "reason");
    char time[32];
    kv_cell_text(t, &at, g->ascii, time, sizeof time);
    int c = 1 + kv_grid_printf(g, row, 1, 0, KV_STYLE_NORMAL, "%s %s → ", time, kv_field_text(t, "from"));
    c += kv_grid_text(g, row, c, 0, kv_word_style(to), false, to);
    if (strcmp(reason, "OK")) c += kv_grid_printf(g, row, c, 0, KV_STYLE_BAD, "  %s", reason);
    c += kv_grid_printf(g, row, c, 0, KV_STYLE_DIM, "  receipt %.0f", kv_field_number(t, "receipt"));
    kv_grid_printf(g, row, c, 0, KV_STYLE_NORMAL, "  %s", kv_field_text(t, "detail"));
}

static int draw_rows(const struct kv_app *a, struct kv_grid *g, enum kv_view v, int row, int last, size_t most)
{
    static const json_t *rows[KV_ROWS_KEPT];
    size_t n = kv_app_rows(a, v, rows, KV_ROWS_KEPT);
    if (!n || row + 1 > last) return row;
    kv_grid_printf(g, row++, 1, 0, KV_STYLE_BOLD, "latest %s", kv_view_name(v));
    for (size_t i = 0; i < n && i < most && row <= last; i++) kv_draw_cells(g, row++, kv_view_table(v), rows[i], KV_STYLE_NORMAL);
    return row;
}

void kv_draw_rollout(const struct kv_app *a, struct kv_grid *g)
{
    int row = 1, last = g->rows - 2;
    if (!a->status) { /* nothing is known, so nothing is said about the release */
        kv_grid_printf(g, 2, 1, 0, KV_STYLE_NORMAL, "Waiting for %s.", *a->url ? a->url : "the server");
        kv_grid_text(g, 3, 1, 0, KV_STYLE_DIM, false, "It tries again by itself. :context NAME goes to another daemon; q quits.");
        return;
    }
    if (!a->rollout && !a->list[KV_VIEW_ROLLOUTS]) {
        kv_grid_text(g, 2, 1, 0, KV_STYLE_DIM, false, "loading");
        row = 4;
    } else if (!a->rollout) {
        kv_grid_text(g, 2, 1, 0, KV_STYLE_NORMAL, false, "No rollout yet: all traffic is served by the exact baseline.");
        kv_grid_text(g, 3, 1, 0, KV_STYLE_DIM, false, "Start one with: kvasir rollout apply -f FILE.json (kvasir pipelines lists what can be tried)");
        row = 5;
    } else {
        kv_grid_printf(g, row++, 1, 0, KV_STYLE_BOLD, "%s  %s  pipeline %s  contract %s%s", kv_field_text(a->rollout, "id"), kv_field_text(a->rollout, "name"),
                       kv_field_text(a->rollout, "pipeline"), kv_field_text(a->rollout, "contract"), json_is_true(json_object_get(a->rollout, "paused")) ? "  PAUSED" : "");
        row = draw_track(a, g, row);
        draw_cohort(a, g, row++);
        row = draw_gates(a, g, row + (g->rows >= 23), g->rows >= 16 ? last - 5 : last - 1) + 1;
    }
    if (row <= last) draw_line(g, row++, "throughput", &a->tokens_per_s, 1, "tokens/s");
    if (row <= last) draw_line(g, row++, "per token p50", &a->p50, 1, "ms");
    if (row <= last) draw_line(g, row++, "per token p99", &a->p99, 1, "ms");
    if (row <= last) draw_line(g, row++, "omitted mass", &a->mass, 100, "%");
    row++;
    const json_t *transition = json_object_get(a->rollout, "transitions");
    for (size_t n = json_array_size(transition), i = 0; i < n && i < 3 && row <= last; i++)
        draw_transition(g, row++, json_array_get(transition, n - 1 - i));
    row = draw_rows(a, g, KV_VIEW_FAILURES, row, last, 2);
    draw_rows(a, g, KV_VIEW_RECEIPTS, row, last, KV_ROWS_KEPT);
}
