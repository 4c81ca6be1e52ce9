/* words.h — rows listed by their code word: rows of one word share every score that codes give, so that words are ranked instead of rows. */
#ifndef KV_WORDS_H
#define KV_WORDS_H

#include <stdbool.h>
#include <stdint.h>

enum { KV_WORDS_BITS = 12 }; /* of a word at most: codes of more bits are ranked row by row */

struct kv_words {
    int32_t n, first, end;   /* words; rows [first, end) are listed */
    int32_t *count, *last;   /* [n] rows of a word; the newest of them */
    int32_t *before;         /* [cap] the next older row of the same word, or -1 */
    uint16_t *word;          /* [cap] */
    int32_t *live, *size;    /* [n] words with rows, and their counts, as kv_words_live left them */
    uint64_t *tied;          /* [words of cap] rows among which ties are broken */
};

bool kv_words_create(struct kv_words *w, int32_t n, int32_t cap); /* false: no memory; free anyway */
void kv_words_free(struct kv_words *w);
void kv_words_reset(struct kv_words *w, int32_t first);
void kv_words_add(struct kv_words *w, uint16_t word); /* of row end */
void kv_words_cut(struct kv_words *w, int32_t to);    /* forgets rows from `to` on */
int32_t kv_words_live(struct kv_words *w);            /* how many words have rows */
/* Sets the first `rows` rows of the ranking in mask, ties to the lower row: key[i] ranks live[i] and carries i. Reorders key. */
void kv_words_take(struct kv_words *w, uint64_t *key, int32_t n_live, int32_t rows, uint64_t *mask);

#endif
