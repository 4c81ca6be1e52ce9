/* rank.h — row masks, and the one order by which every method ranks: higher score first, ties to the lower index.
 *
 * A score that is not a number ranks first: a damaged row then reaches attention and is reported, instead of being hidden. */
#ifndef KV_RANK_H
#define KV_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline int32_t kv_mask_words(int32_t n_rows) { return (int32_t)(((int64_t)n_rows + 63) / 64); }
static inline void kv_mask_set(uint64_t *mask, int32_t row) { mask[row >> 6] |= UINT64_C(1) << (row & 63); }
static inline bool kv_mask_has(const uint64_t *mask, int32_t row) { return mask[row >> 6] >> (row & 63) & 1; }
void kv_mask_set_range(uint64_t *mask, int32_t from, int32_t to); /* rows [from, to) */
int32_t kv_mask_count(const uint64_t *mask, int32_t n_words);

/* Packs (score, index) so that ascending keys are the ranking order. */
static inline uint64_t kv_rank_key(float score, uint32_t index)
{
    uint32_t bits;
    if (score == 0) score = 0; /* -0 ties with +0 */
    memcpy(&bits, &score, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    uint32_t descending = score != score ? 0 : ~ascending;
    return (uint64_t)descending << 32 | index;
}
static inline uint32_t kv_rank_index(uint64_t key) { return (uint32_t)key; }
void kv_rank_keys(const float *score, size_t n, uint64_t *keys); /* keys[i] = kv_rank_key(score[i], i) */
/* Moves the first k of the ranking to keys[0, k), unordered. 0 ≤ k ≤ n. Expected O(n). */
void kv_rank_select(uint64_t *keys, size_t n, size_t k);
/* Moves to the front as many first ones of the ranking as it takes for their units' sizes, size[index] ≥ 0, to reach `rows`, the last of them
 * at the end; returns how many (n when all do not). Expected O(n). */
size_t kv_rank_cover(uint64_t *keys, size_t n, const int32_t *size, int64_t rows);
void kv_rank_sort(uint64_t *keys, size_t n); /* the whole ranking, in order */

#endif
