/* top.h — the first rows of a ranking of many scores, without ordering all of them. */
#ifndef KV_TOP_H
#define KV_TOP_H

#include <stdint.h>

/* Sets the bits of the first k of the n scores' ranking in mask, and leaves their keys (kv_rank_key) at key[0, k), unordered. 0 ≤ k ≤ n. key: [n].
 * What few scores of a sample outrank bars the way for most rows; the answer is the ranking's, whatever the sample. */
void kv_top_rows(const float *score, int32_t n, int32_t k, uint64_t *key, uint64_t *mask);

#endif
