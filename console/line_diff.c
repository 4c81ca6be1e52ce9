/* line_diff.c — the lines in which two short texts differ: longest common subsequence, without what both begin and end with. */
#include "console/policy_remote.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 2, MOST_LINES = 4000 };

struct lines {
    const char **at;
    int *length;
    int n;
};

static void split(const char *text, struct lines *out)
{
    out->at = calloc(MOST_LINES, sizeof *out->at);
    out->length = calloc(MOST_LINES, sizeof *out->length);
    out->n = 0;
    while (out->at && out->length && *text && out->n < MOST_LINES) {
        size_t n = strcspn(text, "\n");
        out->at[out->n] = text;
        out->length[out->n++] = (int)n;
        text += n + (text[n] == '\n');
    }
}

static int equal(const struct lines *a, int i, const struct lines *b, int j)
{
    return a->length[i] == b->length[j] && !memcmp(a->at[i], b->at[j], (size_t)a->length[i]);
}

static void put(char sign, const struct lines *l, int i)
{
    printf("%c%.*s\n", sign, l->length[i], l->at[i]);
}

int kv_line_diff(const char *ta, const char *tb)
{
    struct lines a, b;
    split(ta, &a);
    split(tb, &b);
    int from = 0, enda = a.n, endb = b.n, changed = 0;
    while (from < enda && from < endb && equal(&a, from, &b, from)) from++;
    while (enda > from && endb > from && equal(&a, enda - 1, &b, endb - 1)) enda--, endb--;
    int na = enda - from, nb = endb - from;
    uint16_t *common = calloc((size_t)(na + 1) * (size_t)(nb + 1), sizeof *common); /* [na+1][nb+1], of the tails */
    for (int i = na - 1; common && i >= 0; i--)
        for (int j = nb - 1; j >= 0; j--) {
            uint16_t down = common[(i + 1) * (nb + 1) + j], right = common[i * (nb + 1) + j + 1];
            common[i * (nb + 1) + j] = equal(&a, from + i, &b, from + j) ? (uint16_t)(common[(i + 1) * (nb + 1) + j + 1] + 1) : down > right ? down : right;
        }
    if (na || nb)
        for (int i = from > CONTEXT ? from - CONTEXT : 0; i < from; i++) put(' ', &a, i);
    for (int i = 0, j = 0; common && (i < na || j < nb);) {
        if (i < na && j < nb && equal(&a, from + i, &b, from + j)) put(' ', &a, from + i), i++, j++;
        else if (i < na && (j == nb || common[(i + 1) * (nb + 1) + j] >= common[i * (nb + 1) + j + 1])) put('-', &a, from + i++), changed++;
        else put('+', &b, from + j++), changed++;
    }
    if (na || nb)
        for (int i = enda; i < a.n && i < enda + CONTEXT; i++) put(' ', &a, i);
    free(common);
    free(a.at), free(a.length), free(b.at), free(b.length);
    return changed;
}
