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
    if (l->key[0]) c += kv_grid_printf(g, row, c, 0, KV_STYLE_BOLD, "%-16s ", l->key);
    enum kv_style style = here ? KV_STYLE_SELECTED : found ? KV_STYLE_WARN : l->link >= 0 ? KV_STYLE_ACCENT : l->style == KV_STYLE_NORMAL ? kv_word_style(l->text) : l->style;
    kv_grid_text(g, row, c, 0, style, false, l->text);
}

static void draw(struct kv_grid *g, const struct kv_page *p, const char *find)
{
    int n, room = g->rows - 2, top = p->top;
    struct kv_line *l = kv_page_lines(p, &n);
    for (int i = 0; i < n && !p->top; i++) /* follow the chosen link */
        if (l[i].link >= 0 && l[i].link == p->link && i >= room) top = i - room + 1;
    for (int i = 0; i < room && top + i < n; i++) draw_line(g, 1 + i, &l[top + i], p->link, find);
    if (n > top + room && g->rows > 4) {
        char more[40];
        int w = snprintf(more, sizeof more, " %d more lines ", n - top - room);
        kv_grid_text(g, g->rows - 2, g->cols - w - 1, 0, KV_STYLE_TITLE, false, more);
    }
    free(l);
}

void kv_draw_page(const struct kv_app *a, struct kv_grid *g)
{
    draw(g, &a->page[a->depth - 1], a->find);
}
