/* layers.c — below the tiers: what each layer's rows took to come, and how long the computation waited for them. */
#include "console/views/views.h"

static const struct kv_table layers = {"layers", "", "layers", "layer",
                                       {{"layer", "layer", 5, KV_CELL_INT, 0}, {"fetch us", "fetch_us", 10, KV_CELL_FLOAT, 0}, {"compute us", "compute_us", 10, KV_CELL_FLOAT, 0},
                                        {"stall us", "stall_us", 10, KV_CELL_FLOAT, 0}, {"predicted", "predicted_stall_us", 10, KV_CELL_FLOAT, 0}}};

int kv_draw_layers(const struct kv_app *a, struct kv_grid *g)
{
    const json_t *list = json_object_get(a->status, "layers"), *l;
    int n = (int)json_array_size(list), most = g->rows - 1 - 8, rows = n < most ? n : most;
    size_t i;
    if (rows < 1) return 0;
    int from = g->rows - 1 - rows - 1;
    kv_draw_header(g, from, &layers, 0, false);
    if (rows < n && g->cols > 70) kv_grid_printf(g, from, 52, 0, KV_STYLE_DIM, "the first %d of %d layers", rows, n);
    json_array_foreach(list, i, l)
        if ((int)i < rows) kv_draw_cells(g, from + 1 + (int)i, &layers, l, KV_STYLE_NORMAL);
    return rows + 2;
}
