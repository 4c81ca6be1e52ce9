/* progress.c — what has taken over a second: a bar above the last row of every view, and the load while there is nothing else to see. */
#include "console/progress_line.h"
#include "console/views/views.h"

#include <string.h>

/* The one that has taken longest; *n: how many there are. A load is told from its beginning. */
static const json_t *longest(const struct kv_app *a, int *n)
{
    const json_t *found = NULL;
    size_t i;
    json_t *t;
    *n = 0;
    json_array_foreach(a->tasks, i, t) {
        double s = kv_field_number(t, "seconds");
        if (!(s >= 1) && strcmp(kv_field_text(t, "kind"), "load")) continue;
        ++*n;
        if (!found || s > kv_field_number(found, "seconds")) found = t;
    }
    return found;
}

bool kv_progress_shows(const struct kv_app *a)
{
    int n;
    return longest(a, &n) != NULL;
}

void kv_draw_progress(const struct kv_app *a, struct kv_grid *g)
{
    char text[160];
    int n, c = 1, width = g->cols >= 100 ? 24 : 12;
    const json_t *t = longest(a, &n);
    if (!t) return;
    double total = kv_field_number(t, "total");
    kv_progress_text(kv_field_number(t, "done"), total > 0 ? total : 0, kv_field_text(t, "unit"), width, text, sizeof text);
    kv_grid_text(g, g->rows - 2, 0, 0, KV_STYLE_ACCENT, true, "");
    c += kv_grid_printf(g, g->rows - 2, c, 0, KV_STYLE_ACCENT, "%s %s ", kv_field_text(t, "kind"), text);
    c += kv_grid_printf(g, g->rows - 2, c, 0, KV_STYLE_ACCENT, " %.0f s  %s", kv_field_number(t, "seconds"), kv_field_text(t, "what"));
    if (n > 1) kv_grid_printf(g, g->rows - 2, c, 0, KV_STYLE_ACCENT, "  and %d more", n - 1);
}
