/* page.c — an opened page: its lines, the chosen link marked. */
#include "console/views/views.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void draw_line(struct kv_grid *g, int row, const struct kv_line *l, int chosen, const char *find)
{
    int c = 1 + l->indent;
    bool here = l->link >= 0 && l->link == chosen;
    bool found = find[0] && (strcasestr(l->text, find) || strcasestr(l->key, find));
    if (l->link >= 0) kv_grid_text(g, row, c > 1 ? c - 2 : 0, 1, here ? KV_STYLE_SELECTED : KV_STYLE_ACCENT, false, "▸");
    if (l->key[0]) kv_grid_text(g, row, c, KV_LINE_KEY - 1, KV_STYLE_BOLD, false, l->key), c += KV_LINE_KEY;
    enum kv_style style = here ? KV_STYLE_SELECTED : found ? KV_STYLE_WARN : l->link >= 0 ? KV_STYLE_ACCENT : l->style == KV_STYLE_NORMAL ? kv_word_style(l->text) : l->style;
    kv_grid_text(g, row, c, 0, style, false, l->text);
}

void kv_draw_page(const struct kv_app *a, struct kv_grid *g)
{
    const struct kv_page *p = &a->page[a->depth - 1];
    int n, room = g->rows - 2, top = p->top;
    struct kv_line *l = kv_page_lines(p, g->cols, &n);
    if (n > room && g->rows > 4) room--; /* the last row says that there is more */
    for (int i = 0; i < n && !p->top; i++) /* follow the chosen link */
        if (l[i].link >= 0 && l[i].link == p->link && i >= room) top = i - room + 1;
    for (int i = 0; i < room && top + i < n; i++) draw_line(g, 1 + i, &l[top + i], p->link, a->find);
    if (n > room && g->rows > 4) kv_grid_printf(g, g->rows - 2, 1, 0, KV_STYLE_DIM, "lines %d to %d of %d%s", top + 1, top + room < n ? top + room : n, n, top + room < n ? "; PgDn goes on" : "");
    free(l);
}
