/* credits.c — what transfers may use at once, who holds and who waits for it, and the sessions that are paused. */
#include "console/views/views.h"

#include <math.h>
#include <stdio.h>

/* Header and rows as far as the screen and `most` go; returns the next free row. */
static int draw_rows(struct kv_grid *g, int row, const struct kv_table *t, const json_t *rows, int most)
{
    size_t i;
    json_t *r;
    if (!json_array_size(rows)) return row;
    kv_draw_header(g, row++, t, 0, false);
    json_array_foreach(rows, i, r) {
        if (row >= g->rows - 1) return row;
        if ((int)i == most) {
            kv_grid_printf(g, row++, 1, 0, KV_STYLE_DIM, "%zu more", json_array_size(rows) - i);
            break;
        }
        kv_draw_cells(g, row++, t, r, KV_STYLE_NORMAL);
    }
    return row + 1;
}

static int draw_rates(struct kv_grid *g, int row, const json_t *rates)
{
    static const struct {
        const char *name, *field;
        double unit;
    } shown[] = {{"prefill tokens/s", "prefill_tokens_per_s", 1}, {"decode tokens/s", "decode_tokens_per_s", 1}, {"h2d MB/s", "h2d_bytes_per_s", 1e6}, {"d2h MB/s", "d2h_bytes_per_s", 1e6},
                 {"disk read MB/s", "disk_read_bytes_per_s", 1e6}, {"disk write MB/s", "disk_write_bytes_per_s", 1e6},
                 {"swap KB/iteration", "swap_bytes_per_iteration", 1e3}};
    char number[32];
    int c = 1;
    if (!rates || row >= g->rows - 1) return row;
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        double v = kv_field_number(rates, shown[i].field);
        if (isnan(v)) continue;
        if (c > g->cols - 24) c = 1, row++;
        kv_number_text(v / shown[i].unit, number, sizeof number);
        c += 2 + kv_grid_printf(g, row, c, 0, KV_STYLE_DIM, "%s %s", shown[i].name, number);
    }
    return row + 2;
}

void kv_draw_credits(const struct kv_app *a, struct kv_grid *g)
{
    enum { SOME = 5 };
    const json_t *credits = a->list[KV_VIEW_CREDITS], *paused = json_object_get(a->list[KV_VIEW_PAUSED], "interruptions");
    if (a->absent[KV_VIEW_CREDITS]) {
        kv_grid_text(g, 2, 1, 0, KV_STYLE_DIM, false, "this kvasird does not serve it");
        return;
    }
    if (!credits) {
        kv_grid_text(g, 2, 1, 0, KV_STYLE_DIM, false, kv_app_stale(a) ? "no answer yet" : "loading");
        return;
    }
    int row = draw_rows(g, 1, kv_table_find("credits"), json_object_get(credits, "credits"), SOME);
    row = draw_rates(g, row, json_object_get(credits, "rates"));
    row = draw_rows(g, row, kv_table_find("holders"), json_object_get(credits, "holders"), SOME);
    row = draw_rows(g, row, kv_table_find("waiters"), json_object_get(credits, "waiters"), SOME);
    if (row >= g->rows - 1) return;
    json_int_t total = json_integer_value(json_object_get(a->list[KV_VIEW_PAUSED], "total"));
    kv_grid_printf(g, row++, 1, 0, KV_STYLE_BOLD, "%lld paused session%s%s", (long long)total, total == 1 ? "" : "s", total ? "; Tab opens their list" : "");
    draw_rows(g, row, kv_table_find("interruptions"), paused, g->rows);
}
