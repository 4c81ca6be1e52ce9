/* grid.c — cells of a screen; knows UTF-8 and character widths, nothing of terminals. */
#include "console/grid.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

bool kv_grid_init(struct kv_grid *g, int rows, int cols, bool ascii)
{
    *g = (struct kv_grid){.rows = rows < 1 ? 1 : rows, .cols = cols < 1 ? 1 : cols, .ascii = ascii};
    g->cell = calloc((size_t)g->rows * (size_t)g->cols, sizeof *g->cell);
    if (g->cell) kv_grid_clear(g);
    return g->cell;
}

void kv_grid_free(struct kv_grid *g)
{
    free(g->cell);
    g->cell = NULL;
}

void kv_grid_clear(struct kv_grid *g)
{
    for (int i = 0; i < g->rows * g->cols; i++) g->cell[i] = (struct kv_cell){" ", KV_STYLE_NORMAL};
}

/* Length of the UTF-8 sequence at s and its code point; 1 and U+FFFD for a byte that starts none. */
static int decode(const char *s, unsigned *cp)
{
    unsigned char c = (unsigned char)*s;
    int n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    *cp = n == 1 ? c : n ? c & (0xffu >> (n + 1)) : 0xfffd;
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80) return *cp = 0xfffd, 1;
        *cp = *cp << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return n ? n : 1;
}

static const char *plain(unsigned cp)
{
    switch (cp) {
    case 0x2500: case 0x2013: case 0x2014: return "-";
    case 0x2502: return "|";
    case 0x25cf: return "*";
    case 0x25cb: return "o";
    case 0x2713: return "+";
    case 0x2717: return "x";
    case 0x2192: case 0x25b8: case 0x203a: return ">";
    case 0x25b2: return "^";
    case 0x25bc: return "v";
    case 0x2260: return "#";
    case 0x2264: return "<";
    case 0x2265: return ">";
    case 0x2026: return "~";
    case 0x00b7: return ".";
    default: return "?";
    }
}

int kv_grid_text(struct kv_grid *g, int row, int col, int width, enum kv_style style, bool pad, const char *text)
{
    if (row < 0 || row >= g->rows || col < 0 || col >= g->cols) return 0;
    if (width <= 0 || width > g->cols - col) width = g->cols - col;
    struct kv_cell *line = g->cell + (size_t)row * (size_t)g->cols;
    int used = 0, last = -1;
    while (*text) {
        unsigned cp;
        int n = decode(text, &cp);
        int w = cp < 0x20 || cp == 0x7f || cp == 0xfffd ? 1 : g->ascii && cp > 0x7e ? 1 : wcwidth((wchar_t)cp);
        if (w < 0) w = 1, cp = 0xfffd;
        if (w == 0) { /* a combining mark joins the character before it */
            if (last >= 0 && strlen(line[col + last].text) + (size_t)n < sizeof line->text) strncat(line[col + last].text, text, (size_t)n);
            text += n;
            continue;
        }
        if (used + w > width) {
            if (last >= 0) snprintf(line[col + last].text, sizeof line->text, "%s", g->ascii ? "~" : "…");
            for (int i = last + 1; last >= 0 && i < used; i++) snprintf(line[col + i].text, sizeof line->text, " ");
            break;
        }
        struct kv_cell *c = &line[col + used];
        c->style = (unsigned char)style;
        if (cp < 0x20 || cp == 0x7f || cp == 0xfffd) snprintf(c->text, sizeof c->text, "?");
        else if (g->ascii && cp > 0x7e) snprintf(c->text, sizeof c->text, "%s", plain(cp));
        else snprintf(c->text, sizeof c->text, "%.*s", n, text);
        if (w == 2) line[col + used + 1] = (struct kv_cell){"", (unsigned char)style};
        last = used;
        used += w;
        text += n;
    }
    for (int i = used; pad && i < width; i++) line[col + i] = (struct kv_cell){" ", (unsigned char)style};
    return pad ? width : used;
}

int kv_grid_printf(struct kv_grid *g, int row, int col, int width, enum kv_style style, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return kv_grid_text(g, row, col, width, style, false, text);
}

/* A column of braille dots, from below: how many of four are set, in the left or the right half. */
static unsigned dots(double v, double top, int right)
{
    static const unsigned char left_bits[] = {0x40, 0x44, 0x46, 0x47}, right_bits[] = {0x80, 0xa0, 0xb0, 0xb8};
    if (!isfinite(v)) return 0;
    int level = top > 0 ? (int)(v / top * 3.999) : 0;
    return (right ? right_bits : left_bits)[level < 0 ? 0 : level];
}

static void braille(struct kv_cell *c, const double *v, int n, double top)
{
    unsigned bits = dots(v[0], top, 0) | (n > 1 ? dots(v[1], top, 1) : 0);
    snprintf(c->text, sizeof c->text, "%c%c%c", 0xe2, (char)(0xa0 | bits >> 6), (char)(0x80 | (bits & 0x3f)));
}

static void bar(struct kv_cell *c, double v, double top, bool ascii)
{
    static const char *const block[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const plain_bar[] = {"_", "_", ".", ".", "-", "-", "=", "#"};
    int level = isfinite(v) && top > 0 ? (int)(v / top * 7.999) : 0;
    snprintf(c->text, sizeof c->text, "%s", isfinite(v) ? (ascii ? plain_bar : block)[level < 0 ? 0 : level] : " ");
}

void kv_grid_spark(struct kv_grid *g, int row, int col, int width, enum kv_style style, const double *v, int n)
{
    int each = g->ascii || g->block ? 1 : 2, from = n > width * each ? n - width * each : 0;
    double top = 0;
    if (row < 0 || row >= g->rows || col < 0 || width > g->cols - col) return;
    for (int i = from; i < n; i++)
        if (v[i] > top) top = v[i];
    for (int i = from; i < n; i += each) {
        struct kv_cell *c = &g->cell[row * g->cols + col + (i - from) / each];
        c->style = (unsigned char)style;
        if (each == 2) braille(c, v + i, n - i, top);
        else bar(c, v[i], top, g->ascii);
    }
}

void kv_grid_row_text(const struct kv_grid *g, int row, char *out, size_t cap)
{
    size_t n = 0, end = 0;
    out[0] = 0;
    for (int c = 0; c < g->cols; c++) {
        const char *t = g->cell[row * g->cols + c].text;
        size_t len = strlen(t);
        if (n + len + 1 > cap) break;
        memcpy(out + n, t, len + 1);
        n += len;
        if (strcmp(t, " ")) end = n;
    }
    out[end] = 0;
}
