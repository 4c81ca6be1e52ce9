/* rank.c — row masks, and the one order by which every method ranks: higher score first, ties to the lower index. */
#include "runtime/selection/rank.h"

#include <string.h>

void kv_mask_set_range(uint64_t *mask, int32_t from, int32_t to)
{
    while (from < to) {
        int32_t word = from >> 6, end = (word + 1) * 64 < to ? (word + 1) * 64 : to;
        uint64_t bits = end - from == 64 ? ~UINT64_C(0) : (UINT64_C(1) << (end - from)) - 1;
        mask[word] |= bits << (from & 63);
        from = end;
    }
}

int32_t kv_mask_count(const uint64_t *mask, int32_t n_words)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_words; i++) n += __builtin_popcountll(mask[i]);
    return n;
}

uint64_t kv_rank_key(float score, uint32_t index)
{
    uint32_t bits;
    if (score == 0) score = 0; /* -0 ties with +0 */
    memcpy(&bits, &score, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    uint32_t descending = score != score ? 0 : ~ascending;
    return (uint64_t)descending << 32 | index;
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t t = *a;
    *a = *b;
    *b = t;
}

void kv_rank_select(uint64_t *keys, size_t n, size_t k)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1 && k > lo && k < hi) {
        size_t mid = lo + (hi - lo) / 2, last = hi - 1;
        if (keys[mid] < keys[lo]) swap(&keys[mid], &keys[lo]);
        if (keys[last] < keys[lo]) swap(&keys[last], &keys[lo]);
        if (keys[mid] < keys[last]) swap(&keys[mid], &keys[last]); /* the median of three is the pivot, at last */
        uint64_t pivot = keys[last];
        size_t store = lo;
        for (size_t i = lo; i < last; i++)
            if (keys[i] < pivot) swap(&keys[i], &keys[store++]);
        swap(&keys[store], &keys[last]);
        if (store == k) return;
        if (store < k) lo = store + 1;
        else hi = store;
    }
}

static void sift(uint64_t *keys, size_t root, size_t n)
{
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && keys[child] < keys[child + 1]) child++;
        if (keys[root] >= keys[child]) return;
        swap(&keys[root], &keys[child]);
    }
}

void kv_rank_sort(uint64_t *keys, size_t n)
{
    for (size_t i = n / 2; i-- > 0;) sift(keys, i, n);
    for (size_t end = n; end-- > 1;) {
        swap(&keys[0], &keys[end]);
        sift(keys, 0, end);
    }
}
