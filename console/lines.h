/* lines.h — text as lines of a page, broken where the page ends: records, policies, help. */
#ifndef KV_LINES_H
#define KV_LINES_H

#include "console/grid.h"

#include <jansson.h>

enum { KV_LINE_KEY = 22 }; /* columns of a line's key */

struct kv_line {
    char key[24], text[320];
    int indent, link; /* link: its number, -1 none */
    enum kv_style style;
};

struct kv_lines {
    struct kv_line *line; /* the owner frees */
    int n, cap, cols;     /* cols: of the screen */
};

/* The first line of what was added, NULL without memory or past the most lines. key may be NULL. */
struct kv_line *kv_lines_add(struct kv_lines *l, int indent, const char *key, enum kv_style style, const char *text);
/* Any JSON, objects and arrays by their members; bytes also in larger units. */
void kv_lines_value(struct kv_lines *l, int indent, const char *key, json_t *v);
void kv_lines_members(struct kv_lines *l, int indent, json_t *v);

#endif
