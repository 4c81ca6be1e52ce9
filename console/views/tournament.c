/* tournament.c — below the pipelines: which of them reads the fewest bytes at equal measured mass. */
#include "console/views/views.h"

int kv_draw_tournament(const struct kv_app *a, struct kv_grid *g)
{
    const json_t *t = json_object_get(a->list[KV_VIEW_PIPELINES], "tournament"), *entries = json_object_get(t, "entries"), *e;
    int n = (int)json_array_size(entries), rows = n + 2, from = g->rows - 1 - rows;
    if (!n || from < 6) return 0; /* the list needs some room too */
    kv_grid_printf(g, from, 1, 0, KV_STYLE_ACCENT, "tournament %s  mass %.4g  units %.0f of %.0f  dropped %.0f", kv_field_text(t, "state"), kv_field_number(t, "mass"),
                   kv_field_number(t, "units"), kv_field_number(t, "limit"), kv_field_number(t, "dropped"));
    const struct kv_table *table = kv_table_find("tournament");
    kv_draw_header(g, from + 1, table, 0, false);
    size_t i;
    json_array_foreach(entries, i, e)
        kv_draw_cells(g, from + 2 + (int)i, table, e, KV_STYLE_NORMAL);
    return rows;
}
