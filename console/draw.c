/* draw.c — the console's views as cells: bar above, view, bar below. */
#include "console/app.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 2000 };

static const char *text_of(const json_t *o, const char *field)
{
    const char *s = json_string_value(json_object_get(o, field));
    return s ? s : "";
}

static double number_of(const json_t *o, const char *field)
{
    const json_t *v = json_object_get(o, field);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static enum kv_style word_style(const char *word)
{
    static const struct {
        const char *word;
        enum kv_style style;
    } words[] = {{"PASS", KV_STYLE_GOOD}, {"FAIL", KV_STYLE_BAD}, {"INCONCLUSIVE", KV_STYLE_WARN}, {"NO_DATA", KV_STYLE_DIM},
                 {"EXACT_BASELINE", KV_STYLE_BAD}, {"FULL", KV_STYLE_GOOD}, {"SHADOW", KV_STYLE_ACCENT}, {"CANARY", KV_STYLE_WARN},
                 {"RAMP", KV_STYLE_WARN}, {"OFF", KV_STYLE_DIM}, {"ACTIVE", KV_STYLE_GOOD}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i].word)) return words[i].style;
    return KV_STYLE_NORMAL;
}

static const char *verdict_glyph(const char *verdict)
{
    return !strcmp(verdict, "PASS") ? "✓" : !strcmp(verdict, "FAIL") ? "✗" : !strcmp(verdict, "INCONCLUSIVE") ? "~" : "·";
}

static void draw_top(const struct kv_app *a, struct kv_grid *g)
{
    const json_t *r = json_object_get(a->status, "release");
    kv_grid_text(g, 0, 0, 0, KV_STYLE_TITLE, true, "");
    int c = 1 + kv_grid_printf(g, 0, 1, 0, KV_STYLE_TITLE, "kvasir › %s", kv_view_name(a->view));
    if (a->detail) c += kv_grid_text(g, 0, c, 0, KV_STYLE_TITLE, false, " › detail");
    char right[200];
    if (!a->status) snprintf(right, sizeof right, "%s", a->connected ? "waiting" : "connecting");
    else
        snprintf(right, sizeof right, "%s %.4g %%  epoch %.0f%s%s  %s %.1f s", text_of(r, "stage"), 100 * number_of(r, "fraction"),
                 number_of(r, "epoch"), json_is_true(json_object_get(r, "latched")) ? "  LATCHED" : "", a->readonly ? "  read-only" : "",
                 kv_app_stale(a) ? "STALE" : "live", (double)(a->now_ms - a->heard_ms) / 1000);
    int n = (int)strlen(right), at = g->cols - n - 1;
    kv_grid_text(g, 0, at > c + 1 ? at : c + 1, 0, KV_STYLE_TITLE, false, right);
}

static void draw_bottom(const struct kv_app *a, struct kv_grid *g)
{
    int row = g->rows - 1;
    kv_grid_text(g, row, 0, 0, KV_STYLE_TITLE, true, "");
    switch (a->prompt) {
    case KV_PROMPT_CONFIRM: kv_grid_text(g, row, 1, 0, KV_STYLE_SELECTED, true, a->asked_question); return;
    case KV_PROMPT_FILTER: kv_grid_printf(g, row, 1, 0, KV_STYLE_TITLE, "/%s_  Enter keeps, Esc clears", a->filter[a->view]); return;
    case KV_PROMPT_COMMAND: kv_grid_printf(g, row, 1, 0, KV_STYLE_TITLE, ":%s_  Tab completes", a->input); return;
    case KV_PROMPT_NAME: kv_grid_printf(g, row, 1, 0, KV_STYLE_SELECTED, "%s%s_", a->asked_question, a->input); return;
    case KV_PROMPT_NONE: break;
    }
    if (a->message[0]) kv_grid_text(g, row, 1, 0, a->message_style == KV_STYLE_NORMAL ? KV_STYLE_TITLE : KV_STYLE_SELECTED, true, a->message);
    else if (a->frozen) kv_grid_text(g, row, 1, 0, KV_STYLE_SELECTED, true, "FROZEN: the screen holds still; Z goes on");
    else kv_grid_text(g, row, 1, 0, KV_STYLE_TITLE, false, "R rollback  a advance  p pause  1-8 views  / filter  Enter open  ? help  q quit");
}

/* The stages as a track, the present one marked. Returns the next free row. */
static int draw_track(const struct kv_app *a, struct kv_grid *g, int row)
{
    static const char *const stage[] = {"OFF", "SHADOW", "CANARY", "RAMP", "FULL"};
    const char *now = text_of(a->rollout, "stage");
    double percent = 100 * number_of(a->rollout, "fraction");
    int c = 1, reached = 0;
    for (int i = 0; i < 5; i++) reached = !strcmp(now, stage[i]) ? i : reached;
    for (int i = 0; i < 5; i++) {
        int here = !strcmp(now, stage[i]);
        enum kv_style style = here ? word_style(now) : i < reached ? KV_STYLE_NORMAL : KV_STYLE_DIM;
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
    kv_grid_text(g, row, 1, 0, KV_STYLE_BOLD, false, "gate                    verdict");
    if (wide) kv_grid_text(g, row, 39, 0, KV_STYLE_BOLD, false, "   value        bound        limit        n/min");
    row++;
    json_array_foreach(json_object_get(a->rollout, "gates"), i, gate) {
        if (row > last) break;
        const char *verdict = text_of(gate, "verdict");
        kv_grid_text(g, row, 1, 23, KV_STYLE_NORMAL, true, text_of(gate, "name"));
        kv_grid_text(g, row, 25, 2, word_style(verdict), true, verdict_glyph(verdict));
        kv_grid_text(g, row, 27, 12, word_style(verdict), true, verdict);
        if (wide) {
            double value = number_of(gate, "value"), upper = number_of(gate, "upper");
            const char *compare = text_of(gate, "comparison");
            kv_grid_printf(g, row, 39, 12, KV_STYLE_NORMAL, isfinite(value) ? "%11.4g" : "          –", value);
            kv_grid_printf(g, row, 51, 13, KV_STYLE_DIM, isfinite(upper) ? "%12.4g" : "           –", upper);
            kv_grid_printf(g, row, 65, 12, KV_STYLE_NORMAL, "%s %.4g", *compare ? compare : "<=", number_of(gate, "threshold"));
            kv_grid_printf(g, row, 77, 12, KV_STYLE_DIM, " %.0f/%.0f", number_of(gate, "n"), number_of(gate, "min_n"));
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

static void draw_cells(struct kv_grid *g, int row, const struct kv_table *t, const json_t *data, enum kv_style style)
{
    int c = 1;
    for (const struct kv_column *col = t->column; col->title && c < g->cols - 1; col++) {
        char text[512];
        kv_cell_text(data, col, g->ascii, text, sizeof text);
        int width = col->width && col->width < g->cols - 1 - c ? col->width : g->cols - 1 - c;
        enum kv_style s = style == KV_STYLE_NORMAL ? word_style(text) : style;
        kv_grid_text(g, row, c, width, s, style == KV_STYLE_SELECTED, text);
        c += width + 1;
    }
}

static void draw_header(struct kv_grid *g, int row, const struct kv_table *t)
{
    int c = 1;
    for (const struct kv_column *col = t->column; col->title && c < g->cols - 1; col++) {
        kv_grid_text(g, row, c, col->width, KV_STYLE_BOLD, false, col->title);
        c += (col->width ? col->width : g->cols) + 1;
    }
}

static void draw_rollout(const struct kv_app *a, struct kv_grid *g)
{
    int row = 1, last = g->rows - 2;
    if (!a->rollout) {
        kv_grid_text(g, 2, 1, 0, KV_STYLE_NORMAL, false, "No rollout yet: all traffic is served by the exact baseline.");
        kv_grid_text(g, 3, 1, 0, KV_STYLE_DIM, false, "Start one with: kvasir rollout create -f FILE.json");
        row = 5;
    } else {
        kv_grid_printf(g, row++, 1, 0, KV_STYLE_BOLD, "%s  %s  pipeline %s  contract %s%s", text_of(a->rollout, "id"), text_of(a->rollout, "name"),
                       text_of(a->rollout, "pipeline"), text_of(a->rollout, "contract"), json_is_true(json_object_get(a->rollout, "paused")) ? "  PAUSED" : "");
        row = draw_track(a, g, row) + 1;
        row = draw_gates(a, g, row, last - 5) + 1;
    }
    if (row <= last) draw_line(g, row++, "throughput", &a->tokens_per_s, "tokens/s");
    if (row <= last) draw_line(g, row++, "per token p50", &a->p50, "ms");
    if (row <= last) draw_line(g, row++, "per token p99", &a->p99, "ms");
    if (row <= last) draw_line(g, row++, "omitted mass", &a->mass, "share");
    row++;
    const json_t *transition = json_object_get(a->rollout, "transitions");
    for (size_t n = json_array_size(transition), i = 0; i < n && i < 3 && row <= last; i++)
        draw_cells(g, row++, kv_table_find("transitions"), json_array_get(transition, n - 1 - i), KV_STYLE_NORMAL);
    const json_t *rows[MAX_ROWS];
    size_t n = kv_app_rows(a, KV_VIEW_FAILURES, rows, MAX_ROWS);
    if (row + 1 <= last && n) {
        kv_grid_printf(g, row++, 1, 0, KV_STYLE_BOLD, "failures (%zu)", n);
        for (size_t i = 0; i < n && i < 2 && row <= last; i++) draw_cells(g, row++, kv_table_find("failures"), rows[i], KV_STYLE_NORMAL);
    }
    n = kv_app_rows(a, KV_VIEW_RECEIPTS, rows, MAX_ROWS);
    if (row + 1 <= last) kv_grid_text(g, row++, 1, 0, KV_STYLE_BOLD, false, "receipts");
    for (size_t i = 0; i < n && row <= last; i++) draw_cells(g, row++, kv_table_find("receipts"), rows[i], KV_STYLE_NORMAL);
}

static void draw_list(const struct kv_app *a, struct kv_grid *g)
{
    const struct kv_table *t = kv_view_table(a->view);
    const json_t *rows[MAX_ROWS];
    size_t n = kv_app_rows(a, a->view, rows, MAX_ROWS);
    int shown = g->rows - 3, selected = a->selected[a->view], top = 0;
    if (selected >= (int)n) selected = n ? (int)n - 1 : 0;
    if (selected >= shown) top = selected - shown + 1;
    draw_header(g, 1, t);
    if (!n)
        kv_grid_text(g, 3, 1, 0, KV_STYLE_DIM, false, !a->list[a->view] ? "loading" : a->filter[a->view][0] ? "nothing passes the filter; / changes it, Esc clears it" : "nothing here yet");
    for (int i = 0; i < shown && top + i < (int)n; i++) draw_cells(g, 2 + i, t, rows[top + i], top + i == selected ? KV_STYLE_SELECTED : KV_STYLE_NORMAL);
    if (a->filter[a->view][0]) kv_grid_printf(g, 1, g->cols - 30, 0, KV_STYLE_WARN, "filter /%s (%zu)", a->filter[a->view], n);
}

struct lines {
    struct kv_grid *g;
    int row, skip, last;
};

static void line(struct lines *l, int indent, const char *key, const char *value)
{
    if (l->skip > 0) {
        l->skip--;
        return;
    }
    if (l->row > l->last) return;
    int c = 1 + indent;
    if (key) c += kv_grid_printf(l->g, l->row, c, 0, KV_STYLE_BOLD, "%-16s ", key);
    kv_grid_text(l->g, l->row++, c, 0, word_style(value), false, value);
}

/* Any JSON as indented lines; long texts by their own line breaks. */
static void draw_json(struct lines *l, int indent, const char *key, json_t *v)
{
    char text[1024];
    if (json_is_object(v) || json_is_array(v)) {
        const char *k;
        json_t *member;
        size_t i;
        if (key) line(l, indent, key, json_is_array(v) && !json_array_size(v) ? "none" : "");
        if (json_is_object(v)) json_object_foreach(v, k, member) draw_json(l, indent + (key ? 2 : 0), k, member);
        else json_array_foreach(v, i, member) snprintf(text, sizeof text, "%zu", i + 1), draw_json(l, indent + 2, text, member);
        return;
    }
    if (json_is_string(v) && strchr(json_string_value(v), '\n')) {
        line(l, indent, key, "");
        for (const char *s = json_string_value(v); *s;) {
            int n = (int)strcspn(s, "\n");
            snprintf(text, sizeof text, "%.*s", n < 1000 ? n : 1000, s);
            line(l, indent + 2, NULL, text);
            s += n + (s[n] == '\n');
        }
        return;
    }
    if (json_is_string(v)) return line(l, indent, key, json_string_value(v));
    char *dumped = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(8));
    line(l, indent, key, dumped ? dumped : "");
    free(dumped);
}

static void draw_help(struct kv_grid *g)
{
    static const char *const keys[][2] = {
        {"1-8, Tab", "views: rollout receipts failures policies sessions tiers pipelines rollouts"},
        {"j k, arrows", "move; PgUp PgDn Home End"}, {"Enter, Esc", "open a row and what it rests on; back"},
        {"/", "filter; Esc clears"}, {":", "go to a view or run a verb by name; Tab completes"},
        {"y", "copy the id"}, {"Z", "freeze the screen"}, {"r", "read the list again"}, {"q", "quit"}};
    int row = 2;
    kv_grid_text(g, 1, 1, 0, KV_STYLE_BOLD, false, "Keys");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        kv_grid_text(g, row, 3, 14, KV_STYLE_ACCENT, true, keys[i][0]);
        kv_grid_text(g, row++, 18, 0, KV_STYLE_NORMAL, false, keys[i][1]);
    }
    kv_grid_text(g, ++row, 1, 0, KV_STYLE_BOLD, false, "Verbs");
    row++;
    for (int i = 0; i < KV_N_VERBS; i++) {
        const struct kv_verb *v = &kv_verbs[i];
        if (!v->key) continue;
        kv_grid_printf(g, row, 3, 0, v->danger == KV_VERB_DANGER ? KV_STYLE_BAD : KV_STYLE_ACCENT, "%c", v->key);
        kv_grid_text(g, row, 6, 10, KV_STYLE_NORMAL, true, v->name);
        kv_grid_text(g, row++, 18, 0, KV_STYLE_NORMAL, false, v->help);
    }
}

void kv_app_draw(const struct kv_app *a, struct kv_grid *g)
{
    kv_grid_clear(g);
    if (a->detail) {
        struct lines l = {g, 1, a->detail_top, g->rows - 2};
        draw_json(&l, 0, NULL, a->detail);
    } else if (a->view == KV_VIEW_ROLLOUT) draw_rollout(a, g);
    else if (a->view == KV_VIEW_HELP) draw_help(g);
    else draw_list(a, g);
    draw_top(a, g);
    draw_bottom(a, g);
}
