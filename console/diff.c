/* diff.c — the longest common subsequence of lines, after what both begin and end with is set aside. */
#include "console/diff.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 3, MOST_CELLS = 16 << 20 }; /* beyond that the middle is one exchange */

struct text {
    const char **line;
    int *length, n;
};

static bool split(const char *s, struct text *t)
{
    int most = 1;
    for (const char *p = s; *p; p++) most += *p == '\n';
    *t = (struct text){calloc((size_t)most, sizeof *t->line), calloc((size_t)most, sizeof *t->length), 0};
    if (!t->line || !t->length) return false;
    while (*s) {
        int n = (int)strcspn(s, "\n");
        t->line[t->n] = s;
        t->length[t->n++] = n;
        s += n + (s[n] == '\n');
    }
    return true;
}

static void release(struct text *t)
{
    free(t->line);
    free(t->length);
}

static bool same(const struct text *a, int i, const struct text *b, int j)
{
    return a->length[i] == b->length[j] && !memcmp(a->line[i], b->line[j], (size_t)a->length[i]);
}

static void add(json_t *out, char mark, const struct text *t, int i)
{
    char text[512];
    int n = t->length[i] < 500 ? t->length[i] : 500;
    while (n && n < t->length[i] && ((unsigned char)t->line[i][n] & 0xc0) == 0x80) n--; /* no character is cut in two */
    snprintf(text, sizeof text, "%c%.*s", mark, n, t->line[i]);
    json_t *s = json_string(text);
    json_array_append_new(out, s ? s : json_string("?"));
}

/* common[i * (m + 1) + j]: how many lines a[i..] and b[j..] share in order. */
static uint16_t *table(const struct text *a, int a0, int n, const struct text *b, int b0, int m)
{
    if ((int64_t)(n + 1) * (m + 1) > MOST_CELLS) return NULL;
    uint16_t *c = calloc((size_t)(n + 1) * (size_t)(m + 1), sizeof *c);
    for (int i = n - 1; c && i >= 0; i--)
        for (int j = m - 1; j >= 0; j--) {
            size_t at = (size_t)i * (size_t)(m + 1) + (size_t)j;
            uint16_t down = c[at + (size_t)m + 1], right = c[at + 1];
            c[at] = same(a, a0 + i, b, b0 + j) ? (uint16_t)(c[at + (size_t)m + 2] + 1) : down > right ? down : right;
        }
    return c;
}

/* Keeps CONTEXT lines beside every change and says where each piece begins. */
static json_t *cut(json_t *all)
{
    int n = (int)json_array_size(all), line = 0;
    json_t *out = json_array();
    bool gap = true;
    for (int i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(all, (size_t)i));
        bool near = false;
        for (int k = i - CONTEXT; k <= i + CONTEXT; k++) near |= k >= 0 && k < n && *json_string_value(json_array_get(all, (size_t)k)) != ' ';
        if (*s != '-') line++;
        if (near && gap) {
            char at[32];
            snprintf(at, sizeof at, "@%d", *s == '-' ? line + 1 : line);
            json_array_append_new(out, json_string(at));
        }
        if (near) json_array_append(out, json_array_get(all, (size_t)i));
        gap = !near;
    }
    return out;
}

json_t *kv_diff_lines(const char *was, const char *is, int *added, int *gone)
{
    struct text a = {0}, b = {0};
    json_t *all = json_array(), *out = NULL;
    *added = *gone = 0;
    if (!split(was, &a) || !split(is, &b) || !all) goto done;
    int from = 0, tail = 0;
    while (from < a.n && from < b.n && same(&a, from, &b, from)) add(all, ' ', &a, from++);
    while (tail < a.n - from && tail < b.n - from && same(&a, a.n - 1 - tail, &b, b.n - 1 - tail)) tail++;
    int n = a.n - from - tail, m = b.n - from - tail, i = 0, j = 0;
    uint16_t *c = table(&a, from, n, &b, from, m);
    while (i < n || j < m) {
        size_t at = (size_t)i * (size_t)(m + 1) + (size_t)j;
        if (c && i < n && j < m && same(&a, from + i, &b, from + j)) add(all, ' ', &a, from + i++), j++;
        else if (i < n && (j >= m || !c || c[at + (size_t)m + 1] >= c[at + 1])) add(all, '-', &a, from + i++), ++*gone;
        else add(all, '+', &b, from + j++), ++*added;
    }
    free(c);
    for (int k = 0; k < tail; k++) add(all, ' ', &a, a.n - tail + k);
    out = cut(all);
done:
    release(&a);
    release(&b);
    json_decref(all);
    return out;
}
