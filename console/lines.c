/* lines.c — see lines.h. */
#include "console/lines.h"

#include "console/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 20000, LEAST_ROOM = 16 };

static struct kv_line *more(struct kv_lines *l)
{
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 64;
        struct kv_line *grown = cap <= MAX_LINES ? realloc(l->line, (size_t)cap * sizeof *grown) : NULL;
        if (!grown) return NULL;
        l->line = grown;
        l->cap = cap;
    }
    struct kv_line *at = &l->line[l->n++];
    *at = (struct kv_line){.link = -1, .style = KV_STYLE_NORMAL};
    return at;
}

/* Bytes of text that fit into so many columns: up to the last space in its latter half, never a part of a character. */
static int fit(const char *text, int columns)
{
    int n = 0, seen = 0, space = 0;
    for (; text[n] && n < (int)sizeof((struct kv_line *)0)->text - 8; n++) {
        if (((unsigned char)text[n] & 0xc0) != 0x80 && seen++ == columns) break;
        if (text[n] == ' ' && seen > columns / 2) space = n;
    }
    return text[n] && space ? space : n;
}

struct kv_line *kv_lines_add(struct kv_lines *l, int indent, const char *key, enum kv_style style, const char *text)
{
    int first = l->n, room = l->cols - 2 - indent - (key ? KV_LINE_KEY : 0);
    if (room < LEAST_ROOM) room = LEAST_ROOM;
    do {
        struct kv_line *at = more(l);
        if (!at) break;
        int n = fit(text, room);
        at->indent = l->n - 1 == first ? indent : indent + (key ? KV_LINE_KEY : 2);
        at->style = style;
        if (key && l->n - 1 == first) snprintf(at->key, sizeof at->key, "%s", key);
        snprintf(at->text, sizeof at->text, "%.*s", n, text);
        text += n + (text[n] == ' ' && n);
        if (!key && l->n - 1 == first) room -= 2;
    } while (*text);
    return l->n > first ? &l->line[first] : NULL;
}

static void long_text(struct kv_lines *l, int indent, const char *key, const char *s)
{
    kv_lines_add(l, indent, key, KV_STYLE_NORMAL, "");
    while (*s) {
        int n = (int)strcspn(s, "\n");
        char *text = strndup(s, (size_t)n);
        kv_lines_add(l, indent + 2, NULL, KV_STYLE_NORMAL, text ? text : "");
        free(text);
        s += n + (s[n] == '\n');
    }
}

void kv_lines_members(struct kv_lines *l, int indent, json_t *v)
{
    const char *k;
    json_t *member;
    size_t i;
    char number[24];
    if (json_is_object(v)) json_object_foreach(v, k, member) kv_lines_value(l, indent, k, member);
    else json_array_foreach(v, i, member) snprintf(number, sizeof number, "%zu", i + 1), kv_lines_value(l, indent, number, member);
}

static void number_line(struct kv_lines *l, int indent, const char *key, json_t *v)
{
    char text[96], bytes[32];
    bool counts_bytes = key && (strstr(key, "_bytes") || !strncmp(key, "bytes", 5)) && !strstr(key, "_per_") && !strstr(key, "_ms");
    char *dumped = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(8));
    snprintf(text, sizeof text, "%s", dumped ? dumped : "");
    if (counts_bytes && json_is_integer(v) && json_integer_value(v) >= 1024) {
        kv_bytes_text(json_number_value(v), bytes, sizeof bytes);
        snprintf(text, sizeof text, "%.40s  %s", dumped ? dumped : "", bytes);
    }
    kv_lines_add(l, indent, key, KV_STYLE_NORMAL, text);
    free(dumped);
}

void kv_lines_value(struct kv_lines *l, int indent, const char *key, json_t *v)
{
    if (json_is_object(v) || json_is_array(v)) {
        if (key) kv_lines_add(l, indent, key, KV_STYLE_NORMAL, json_is_array(v) && !json_array_size(v) ? "none" : "");
        kv_lines_members(l, indent + (key ? 2 : 0), v);
    } else if (json_is_string(v) && strchr(json_string_value(v), '\n')) {
        long_text(l, indent, key, json_string_value(v));
    } else if (json_is_string(v)) {
        kv_lines_add(l, indent, key, KV_STYLE_NORMAL, json_string_value(v));
    } else if (json_is_null(v)) {
        kv_lines_add(l, indent, key, KV_STYLE_DIM, "–");
    } else if (json_is_boolean(v)) {
        kv_lines_add(l, indent, key, KV_STYLE_NORMAL, json_is_true(v) ? "yes" : "no");
    } else {
        number_line(l, indent, key, v);
    }
}
