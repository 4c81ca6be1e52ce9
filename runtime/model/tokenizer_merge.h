/* tokenizer_merge.h — joins neighbouring symbols, best pair first, until no pair joins. O(n log n) time; one space serves many texts. */
#ifndef KV_TOKENIZER_MERGE_H
#define KV_TOKENIZER_MERGE_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_symbol {
    int32_t at, len;    /* bytes of the text; len 0: joined into its left neighbour */
    int32_t prev, next; /* -1 at the ends */
    int32_t piece;      /* caller's number of these bytes, -1 when they have none */
};

struct kv_pair { /* a join that was possible when it was queued */
    double order;
    int32_t left, right, len;
    int32_t piece;
};

struct kv_merge_space { /* starts zeroed */
    struct kv_symbol *symbols;
    struct kv_pair *heap;
    size_t cap, n_pairs; /* cap in symbols */
};

/* Whether a and b join: to which piece, and in which order (lowest first; equal ones from left to right). */
typedef bool (*kv_join)(const void *ctx, const char *text, const struct kv_symbol *a, const struct kv_symbol *b, int32_t *piece, double *order);

/* Makes room for texts of n symbols. OUT_OF_MEMORY. */
enum kv_status kv_merge_reserve(struct kv_merge_space *m, size_t n);
/* symbols[0..n) hold at, len and piece; on return the surviving ones are linked by next, from symbols[0]. */
void kv_merge_run(struct kv_merge_space *m, const char *text, int32_t n, kv_join join, const void *ctx);
void kv_merge_free(struct kv_merge_space *m);

#endif
