/* list.c — a list as a table, and single rows for other views. */
#include "console/views/views.h"

#include <stdio.h>
#include <string.h>

/* Columns a column gets from c on; 0: the screen has no room for it. */
static int width_at(const struct kv_grid *g, const struct kv_column *col, int c)
{
    int left = g->cols - 1 - c;
    if (g->cols < col->from_cols || left < (int)strlen(col->title)) return 0;
    return col->width && col->width < left ? col->width : left;
}

/* Numbers stand at the right, so that their sizes show; the first column is a name, whatever it is made of. */
static bool at_right(const struct kv_table *t, const struct kv_column *col)
{
    bool number = col->kind == KV_CELL_INT || col->kind == KV_CELL_FLOAT || col->kind == KV_CELL_PERCENT || col->kind == KV_CELL_BYTES || col->kind == KV_CELL_AMOUNT;
    return number && col->width && col != t->column;
}

static void draw_cell(struct kv_grid *g, int row, int c, int width, bool right, enum kv_style style, bool pad, const char *text)
{
    int length = 0;
    for (const char *s = text; *s; s++) length += ((unsigned char)*s & 0xc0) != 0x80;
    int skip = right && length < width ? width - length : 0;
    if (pad) kv_grid_text(g, row, c, width, style, true, "");
    kv_grid_text(g, row, c + skip, width - skip, style, false, text);
}

void kv_draw_cells(struct kv_grid *g, int row, const struct kv_table *t, const json_t *data, enum kv_style style)
{
    int c = 1;
    for (const struct kv_column *col = t->column; col->title; col++) {
        char text[512];
        int width = width_at(g, col, c);
        if (!width) continue;
        kv_cell_text(data, col, g->ascii, text, sizeof text);
        draw_cell(g, row, c, width, at_right(t, col), style == KV_STYLE_NORMAL ? kv_word_style(text) : style, style == KV_STYLE_SELECTED, text);
        c += width + 1;
        if (style == KV_STYLE_SELECTED && c <= g->cols) kv_grid_text(g, row, c - 1, 1, style, true, " ");
    }
}

void kv_draw_header(struct kv_grid *g, int row, const struct kv_table *t, int sort, bool descending)
{
    int c = 1, i = 1;
    for (const struct kv_column *col = t->column; col->title; col++, i++) {
        char title[40];
        int width = width_at(g, col, c);
        if (!width) continue;
        bool here = sort == i;
        snprintf(title, sizeof title, "%s%s", here ? descending ? "▼" : "▲" : "", col->title);
        draw_cell(g, row, c, width, at_right(t, col), here ? KV_STYLE_ACCENT : KV_STYLE_BOLD, false, title);
        c += width + 1;
    }
}

static const char *emptiness(const struct kv_app *a)
{
    if (a->absent[a->view]) return "this kvasird does not serve it";
    if (!a->list[a->view]) return kv_app_stale(a) ? "no answer yet" : "loading";
    if (a->filter[a->view][0]) return "nothing passes the filter; / changes it, Esc clears it";
    switch (a->view) {
    case KV_VIEW_FAILURES: return "no failure: that is the good case";
    case KV_VIEW_RECEIPTS: return "no receipt yet: each request and each change of the release leaves some";
    case KV_VIEW_SESSIONS: return "no session yet: requests that name one (kvasir.session) show here with their arm";
    case KV_VIEW_ROLLOUTS: return "no rollout yet: kvasir rollout apply -f FILE.json starts one at OFF";
    case KV_VIEW_AUDIT: return "nobody has changed anything yet";
    case KV_VIEW_PAUSED: return "no session waits for somebody outside";
    case KV_VIEW_PROGRESS: return "nothing takes a while now";
    default: return "nothing here yet";
    }
}

/* " ARMED: bit_flip on acme, …", or nothing. Returns its length. */
static int armed_faults(const json_t *status, char *out, size_t cap)
{
    size_t i, n = 0;
    json_t *f;
    out[0] = 0;
    json_array_foreach(json_object_get(json_object_get(status, "faults"), "armed"), i, f) {
        const json_t *scope = json_object_get(f, "scope");
        const char *on = kv_field_text(scope, json_object_get(scope, "rollout") ? "rollout" : "tenant");
        n += (size_t)snprintf(out + n, cap - n, "%s %.32s on %.24s", i ? "," : " ARMED:", kv_field_text(f, "name"), on);
        if (n >= cap) return (int)cap - 1;
    }
    return (int)n;
}

/* What selection fell back to since the start, under the failures. Returns the lines taken. */
static int draw_fallbacks(const struct kv_app *a, struct kv_grid *g)
{
    static const char *const names[][2] = {{"index_missed", "index missed"}, {"index_stale", "stale"}, {"budget_exceeded", "over budget"}, {"not_finite", "not numbers"}};
    const json_t *f = json_object_get(json_object_get(a->status, "live"), "fallbacks");
    char text[160];
    if (!f || g->rows < 8) return 0;
    size_t n = (size_t)snprintf(text, sizeof text, "full fallbacks %.0f", kv_field_number(f, "full"));
    for (size_t i = 0; i < sizeof names / sizeof *names && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s %s %.0f", i ? "," : ":", names[i][1], kv_field_number(f, names[i][0]));
    kv_grid_text(g, g->rows - 2, 1, 0, KV_STYLE_DIM, false, text);
    return 1;
}

void kv_draw_list(const struct kv_app *a, struct kv_grid *g)
{
    static const json_t *rows[KV_ROWS_KEPT];
    const struct kv_table *t = kv_view_table(a->view);
    size_t n = kv_app_rows(a, a->view, rows, KV_ROWS_KEPT), at = kv_app_selected(a, a->view, rows, n);
    int below = a->view == KV_VIEW_PIPELINES ? kv_draw_tournament(a, g) : a->view == KV_VIEW_TIERS ? kv_draw_layers(a, g) : a->view == KV_VIEW_FAILURES ? draw_fallbacks(a, g) : 0;
    size_t shown = g->rows > 3 + below ? (size_t)(g->rows - 3 - below) : 0, top = at >= shown ? at - shown + 1 : 0;
    kv_draw_header(g, 1, t, a->sort[a->view], a->descending[a->view]);
    if (!n) kv_grid_text(g, 3, 1, 0, KV_STYLE_DIM, false, emptiness(a));
    for (size_t i = 0; i < shown && top + i < n; i++) {
        char id[128];
        int row = 2 + (int)i;
        bool here = top + i == at;
        kv_row_id(t, rows[top + i], id, sizeof id);
        kv_draw_cells(g, row, t, rows[top + i], here ? KV_STYLE_SELECTED : KV_STYLE_NORMAL);
        if (json_object_get(a->marked[a->view], id)) kv_grid_text(g, row, 0, 1, KV_STYLE_ACCENT, false, "●");
        else if (here) kv_grid_text(g, row, 0, 1, KV_STYLE_SELECTED, false, "▸"); /* monochrome terminals show the cursor too */
    }
    char right[160];
    size_t marks = json_object_size(a->marked[a->view]);
    int used = 0;
    if (a->filter[a->view][0]) used = snprintf(right, sizeof right, " filter /%s (%zu)", a->filter[a->view], n);
    if (marks) used += snprintf(right + used, sizeof right - (size_t)used, " %zu marked", marks);
    if (a->view == KV_VIEW_FAILURES) used += armed_faults(a->status, right + used, sizeof right - (size_t)used);
    if (used && g->cols > used + 1) kv_grid_text(g, 1, g->cols - used - 1, 0, KV_STYLE_WARN, false, right);
}
