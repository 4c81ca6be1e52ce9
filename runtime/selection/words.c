/* words.c — rows listed by their code word. */
#include "runtime/selection/words.h"

#include "runtime/selection/rank.h"

#include <stdlib.h>

bool kv_words_create(struct kv_words *w, int32_t n, int32_t cap)
{
    size_t words = (size_t)n, rows = (size_t)cap;
    *w = (struct kv_words){.n = n, .count = calloc(words, sizeof *w->count), .last = calloc(words, sizeof *w->last), .before = calloc(rows, sizeof *w->before),
                           .word = calloc(rows, sizeof *w->word), .live = calloc(words, sizeof *w->live), .size = calloc(words, sizeof *w->size),
                           .tied = calloc((size_t)kv_mask_words(cap), sizeof *w->tied)};
    kv_words_reset(w, 0);
    return w->count && w->last && w->before && w->word && w->live && w->size && w->tied;
}

void kv_words_free(struct kv_words *w)
{
    void *const owned[] = {w->count, w->last, w->before, w->word, w->live, w->size, w->tied};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

void kv_words_reset(struct kv_words *w, int32_t first)
{
    w->first = w->end = first;
    for (int32_t i = 0; w->count && w->last && i < w->n; i++) w->count[i] = 0, w->last[i] = -1;
}

void kv_words_add(struct kv_words *w, uint16_t word)
{
    int32_t row = w->end++;
    w->word[row] = word;
    w->before[row] = w->last[word];
    w->last[word] = row;
    w->count[word]++;
}

void kv_words_cut(struct kv_words *w, int32_t to)
{
    while (w->end > to && w->end > w->first) {
        int32_t row = --w->end;
        w->last[w->word[row]] = w->before[row];
        w->count[w->word[row]]--;
    }
}

int32_t kv_words_live(struct kv_words *w)
{
    int32_t n = 0;
    for (int32_t i = 0; i < w->n; i++)
        if (w->count[i]) w->live[n] = i, w->size[n++] = w->count[i];
    return n;
}

static void set_rows(const struct kv_words *w, int32_t word, uint64_t *mask)
{
    int32_t row = w->last[word];
    for (int32_t i = 0; i < w->count[word]; i++, row = w->before[row]) kv_mask_set(mask, row);
}

void kv_words_take(struct kv_words *w, uint64_t *key, int32_t n_live, int32_t rows, uint64_t *mask)
{
    size_t taken = kv_rank_cover(key, (size_t)n_live, w->size, rows);
    if (!taken) return;
    uint64_t score = key[taken - 1] >> 32; /* of the words that may not go in whole */
    int32_t words = kv_mask_words(w->end);
    for (size_t i = 0; i < taken; i++) {
        uint32_t at = kv_rank_index(key[i]);
        if (key[i] >> 32 == score) continue;
        set_rows(w, w->live[at], mask);
        rows -= w->size[at];
    }
    for (int32_t b = 0; b < words; b++) w->tied[b] = 0;
    for (int32_t i = 0; i < n_live; i++)
        if (key[i] >> 32 == score) set_rows(w, w->live[kv_rank_index(key[i])], w->tied);
    for (int32_t b = 0; b < words && rows > 0; b++)
        for (uint64_t left = w->tied[b]; left && rows > 0; left &= left - 1, rows--) mask[b] |= left & -left;
}
