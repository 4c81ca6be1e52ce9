/* list.c — a list as a table, and single rows for other views. */
#include "console/views/views.h"

#include <stdio.h>
#include <string.h>

void kv_draw_cells(struct kv_grid *g, int row, const struct kv_table *t, const json_t *data, enum kv_style style)
{
    int c = 1;
    for (const struct kv_column *col = t->column; col->title && c < g->cols - 1; col++) {
        char text[512];
        if (g->cols < col->from_cols) continue;
        kv_cell_text(data, col, g->ascii, text, sizeof text);
        int left = g->cols - 1 - c, width = col->width && col->width < left ? col->width : left;
        enum kv_style s = style == KV_STYLE_NORMAL ? kv_word_style(text) : style;
        kv_grid_text(g, row, c, width, s, style == KV_STYLE_SELECTED, text);
        c += width + 1;
        if (style == KV_STYLE_SELECTED && c <= g->cols) kv_grid_text(g, row, c - 1, 1, style, true, " ");
    }
}

void kv_draw_header(struct kv_grid *g, int row, const struct kv_table *t, int sort, bool descending)
{
    int c = 1, i = 1;
    for (const struct kv_column *col = t->column; col->title && c < g->cols - 1; col++, i++) {
        char title[40];
        if (g->cols < col->from_cols) continue;
        bool here = sort == i;
        snprintf(title, sizeof title, "%s%s", here ? descending ? "▼" : "▲" : "", col->title);
        kv_grid_text(g, row, c, col->width, here ? KV_STYLE_ACCENT : KV_STYLE_BOLD, false, title);
        c += (col->width ? col->width : g->cols) + 1;
    }
}

static const char *emptiness(const struct kv_app *a)
{
    if (a->absent[a->view]) return "this kvasird does not serve it";
    if (!a->list[a->view]) return kv_app_stale(a) ? "no answer yet" : "loading";
    if (a->filter[a->view][0]) return "nothing passes the filter; / changes it, Esc clears it";
    return a->view == KV_VIEW_FAILURES ? "no failure: that is the good case" : "nothing here yet";
}

void kv_draw_list(const struct kv_app *a, struct kv_grid *g)
{
    static const json_t *rows[KV_ROWS_KEPT];
    const struct kv_table *t = kv_view_table(a->view);
    size_t n = kv_app_rows(a, a->view, rows, KV_ROWS_KEPT), at = kv_app_selected(a, a->view, rows, n);
    int below = a->view == KV_VIEW_PIPELINES ? kv_draw_tournament(a, g) : 0;
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
    char right[96];
    size_t marks = json_object_size(a->marked[a->view]);
    int used = 0;
    if (a->filter[a->view][0]) used = snprintf(right, sizeof right, " filter /%s (%zu)", a->filter[a->view], n);
    if (marks) used += snprintf(right + used, sizeof right - (size_t)used, " %zu marked", marks);
    if (used && g->cols > used + 1) kv_grid_text(g, 1, g->cols - used - 1, 0, KV_STYLE_WARN, false, right);
}
