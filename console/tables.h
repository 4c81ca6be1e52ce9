/* tables.h — the lists an operator sees: where each comes from and its columns. The command line and the console share them. */
#ifndef KV_TABLES_H
#define KV_TABLES_H

#include <jansson.h>
#include <stddef.h>

enum kv_cell_kind { KV_CELL_TEXT, KV_CELL_INT, KV_CELL_FLOAT, KV_CELL_PERCENT, KV_CELL_BYTES, KV_CELL_TIME, KV_CELL_BOOL, KV_CELL_HEX, KV_CELL_AMOUNT /* in the row's own unit */ };

struct kv_column {
    const char *title, *field; /* field: "a.b" is member b of a */
    int width; /* 0: the rest of the line */
    enum kv_cell_kind kind;
    int from_cols; /* a screen narrower than this leaves the column out; 0 never */
};

struct kv_table {
    const char *name, *route, *array, *id; /* array: member of the answer that holds the rows; id: field that names a row */
    struct kv_column column[18]; /* the last one has no title */
};

extern const struct kv_table kv_tables[];
const struct kv_table *kv_table_find(const char *name);
const json_t *kv_cell_value(const json_t *row, const struct kv_column *c); /* NULL when absent */
/* One cell as text. Absent fields are "–" (or "-" when ascii). */
void kv_cell_text(const json_t *row, const struct kv_column *c, int ascii, char *out, size_t cap);
void kv_number_text(double v, char *out, size_t cap); /* four digits, and no exponent where a person would write none: "14510", "0.1285" */
void kv_bytes_text(double v, char *out, size_t cap); /* "64.0 MiB" */
/* Control characters, C1 in UTF-8 and those that turn the direction of text too, become '?': what clients name must not steer the operator's terminal. */
void kv_plain_text(char *text);
/* The rows as plain text on stdout, a header first. */
void kv_table_print(const struct kv_table *t, const json_t *rows);

#endif
