/* grid.h — a screen as cells: what views draw on, what ncurses shows, what tests compare. */
#ifndef KV_GRID_H
#define KV_GRID_H

#include <stdbool.h>
#include <stddef.h>

enum kv_style { KV_STYLE_NORMAL, KV_STYLE_DIM, KV_STYLE_BOLD, KV_STYLE_TITLE, KV_STYLE_GOOD, KV_STYLE_WARN, KV_STYLE_BAD, KV_STYLE_ACCENT, KV_STYLE_SELECTED, KV_STYLES };

struct kv_cell {
    char text[16];  /* one character with its combining marks; empty: right half of a wide one */
    unsigned char style;
};

struct kv_grid {
    int rows, cols;
    bool ascii; /* replace what a plain terminal cannot show */
    bool block; /* lines of blocks instead of braille, for fonts without it */
    struct kv_cell *cell; /* [rows][cols] */
};

bool kv_grid_init(struct kv_grid *g, int rows, int cols, bool ascii);
void kv_grid_free(struct kv_grid *g);
void kv_grid_clear(struct kv_grid *g);
/* Writes UTF-8 text from (row, col), at most width columns (cut with …), padding with spaces when pad. Control characters and invalid bytes
 * show as '?'. Returns the columns used. Anything outside the grid is left out. */
int kv_grid_text(struct kv_grid *g, int row, int col, int width, enum kv_style style, bool pad, const char *text);
int kv_grid_printf(struct kv_grid *g, int row, int col, int width, enum kv_style style, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* The last values scaled to the largest, two to a cell in braille, else one; NaN leaves a gap. */
void kv_grid_spark(struct kv_grid *g, int row, int col, int width, enum kv_style style, const double *v, int n);
/* One row as UTF-8 without trailing spaces. */
void kv_grid_row_text(const struct kv_grid *g, int row, char *out, size_t cap);

#endif
