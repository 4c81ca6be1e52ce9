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

static int draw_gates(const struct kv_app *a, struct kv_grid *g, int row, int last)
{
    size_t i;
    json_t *gate;
    int wide = g->cols >= 76;
    kv_grid_text(g, row, 1, 0, KV_STYLE_BOLD, false, "gate                 verdict");
    if (wide) kv_grid_text(g, row, 36, 0, KV_STYLE_BOLD, false, "    value      bound  limit       n/min");
    row++;
    json_array_foreach(json_object_get(a->rollout, "gates"), i, gate) {
        if (row > last) break;
        const char *verdict = kv_field_text(gate, "verdict");
        kv_grid_text(g, row, 1, 20, KV_STYLE_NORMAL, true, kv_field_text(gate, "name"));
        kv_grid_text(g, row, 22, 2, kv_word_style(verdict), true, kv_verdict_glyph(verdict));
        kv_grid_text(g, row, 24, 12, kv_word_style(verdict), true, verdict);
        if (wide) {
            double value = kv_field_number(gate, "value"), upper = kv_field_number(gate, "upper");
            const char *compare = kv_field_text(gate, "comparison");
            kv_grid_printf(g, row, 36, 10, KV_STYLE_NORMAL, isfinite(value) ? "%9.4g" : "        –", value);
            kv_grid_printf(g, row, 46, 11, KV_STYLE_DIM, isfinite(upper) ? "%10.4g" : "         –", upper);
            kv_grid_printf(g, row, 58, 11, KV_STYLE_NORMAL, "%s %.4g", *compare ? compare : "<=", kv_field_number(gate, "threshold"));
            kv_grid_printf(g, row, 70, 0, KV_STYLE_DIM, "%.0f/%.0f", kv_field_number(gate, "n"), kv_field_number(gate, "min_n"));
        }
        row++;
    }
    if (!json_array_size(json_object_get(a->rollout, "gates"))) kv_grid_text(g, row++, 1, 0, KV_STYLE_DIM, false, "no gate has been evaluated yet");
    return row;
}

static void draw_line(struct kv_grid *g, int row, const char *name, const struct kv_series *s, const char *unit)
{
    double v = s->n ? s->v[s->n - 1] : NAN;
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
    static const char *const names[] = {"tenants", "classes"};
    int c = 1 + kv_grid_text(g, row, 1, 0, KV_STYLE_DIM, false, "cohort");
    size_t i, said = 0;
    json_t *v;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const json_t *list = json_object_get(cohort, names[k]);
        if (json_array_size(list)) c += kv_grid_printf(g, row, c, 0, KV_STYLE_NORMAL, " %s", names[k]), said++;
        json_array_foreach(list, i, v) c += kv_grid_printf(g, row, c, 0, KV_STYLE_BOLD, " %s", json_string_value(v) ? json_string_value(v) : "");
    }
    if (!said) c += kv_grid_text(g, row, c, 0, KV_STYLE_NORMAL, false, " everybody who allows it");
    double recomputing = kv_field_number(json_object_get(a->status, "live"), "recomputing");
    if (recomputing > 0) kv_grid_printf(g, row, c + 2, 0, KV_STYLE_WARN, "%.0f sequences recompute exactly", recomputing);
}

static int draw_rows(const struct kv_app *a, struct kv_grid *g, enum kv_view v, int row, int last, size_t most)
{
    static const json_t *rows[KV_ROWS_KEPT];
    size_t n = kv_app_rows(a, v, rows, KV_ROWS_KEPT);
    if (!n || row + 1 > last) return row;
    kv_grid_printf(g, row++, 1, 0, KV_STYLE_BOLD, "%s", kv_view_name(v));
    for (size_t i = 0; i < n && i < most && row <= last; i++) kv_draw_cells(g, row++, kv_view_table(v), rows[i], KV_STYLE_NORMAL);
    return row;
}

void kv_draw_rollout(const struct kv_app *a, struct kv_grid *g)
{
    int row = 1, last = g->rows - 2;
    if (!a->rollout) {
        kv_grid_text(g, 2, 1, 0, KV_STYLE_NORMAL, false, "No rollout yet: all traffic is served by the exact baseline.");
        kv_grid_text(g, 3, 1, 0, KV_STYLE_DIM, false, "Start one with: kvasir rollout create -f FILE.json");
        row = 5;
    } else {
        kv_grid_printf(g, row++, 1, 0, KV_STYLE_BOLD, "%s  %s  pipeline %s  contract %s%s", kv_field_text(a->rollout, "id"), kv_field_text(a->rollout, "name"),
                       kv_field_text(a->rollout, "pipeline"), kv_field_text(a->rollout, "contract"), json_is_true(json_object_get(a->rollout, "paused")) ? "  PAUSED" : "");
        row = draw_track(a, g, row);
        draw_cohort(a, g, row++);
        row = draw_gates(a, g, row + (g->rows >= 24), last - 5) + 1;
    }
    if (row <= last) draw_line(g, row++, "throughput", &a->tokens_per_s, "tokens/s");
    if (row <= last) draw_line(g, row++, "per token p50", &a->p50, "ms");
    if (row <= last) draw_line(g, row++, "per token p99", &a->p99, "ms");
    if (row <= last) draw_line(g, row++, "omitted mass", &a->mass, "share");
    row++;
    const json_t *transition = json_object_get(a->rollout, "transitions");
    for (size_t n = json_array_size(transition), i = 0; i < n && i < 3 && row <= last; i++)
        kv_draw_cells(g, row++, kv_table_find("transitions"), json_array_get(transition, n - 1 - i), KV_STYLE_NORMAL);
    row = draw_rows(a, g, KV_VIEW_FAILURES, row, last, 2);
    draw_rows(a, g, KV_VIEW_RECEIPTS, row, last, KV_ROWS_KEPT);
}
