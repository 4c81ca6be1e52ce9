/* rank.h — row masks, and the one order by which every method ranks: higher score first, ties to the lower index.
 *
 * A score that is not a number ranks first: a damaged row then reaches attention and is reported, instead of being hidden. */
#ifndef KV_RANK_H
#define KV_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline int32_t kv_mask_words(int32_t n_rows) { return (int32_t)(((int64_t)n_rows + 63) / 64); }
static inline void kv_mask_set(uint64_t *mask, int32_t row) { mask[row >> 6] |= UINT64_C(1) << (row & 63); }
static inline bool kv_mask_has(const uint64_t *mask, int32_t row) { return mask[row >> 6] >> (row & 63) & 1; }
void kv_mask_set_range(uint64_t *mask, int32_t from, int32_t to); /* rows [from, to) */
int32_t kv_mask_count(const uint64_t *mask, int32_t n_words);

/* Packs (score, index) so that ascending keys are the ranking order. */
uint64_t kv_rank_key(float score, uint32_t index);
static inline uint32_t kv_rank_index(uint64_t key) { return (uint32_t)key; }
/* Moves the first k of the ranking to keys[0, k), unordered. 0 ≤ k ≤ n. Expected O(n). */
void kv_rank_select(uint64_t *keys, size_t n, size_t k);
void kv_rank_sort(uint64_t *keys, size_t n); /* the whole ranking, in order */

#endif
