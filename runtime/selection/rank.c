/* rank.c — row masks, and the one order by which every method ranks: higher score first, ties to the lower index. */
#include "runtime/selection/rank.h"

#include "kernels/kernels.h"

void kv_mask_set_range(uint64_t *mask, int32_t from, int32_t to)
{
    while (from < to) {
        int32_t word = from >> 6, end = (word + 1) * 64 < to ? (word + 1) * 64 : to;
        uint64_t bits = end - from == 64 ? ~UINT64_C(0) : (UINT64_C(1) << (end - from)) - 1;
        mask[word] |= bits << (from & 63);
        from = end;
    }
}

/* Compiled twice: what the oldest x86-64 counts bit by bit is one instruction wherever AVX2 is. */
static inline __attribute__((always_inline)) int32_t count(const uint64_t *mask, int32_t n_words)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_words; i++) n += __builtin_popcountll(mask[i]);
    return n;
}

/* Sixteen at a time, a constant length that the compiler keeps in vectors. */
static inline __attribute__((always_inline)) void make_keys(const float *restrict score, size_t n, uint64_t *restrict keys)
{
    size_t whole = n / 16 * 16;
    for (size_t i = 0; i < whole; i += 16)
        for (size_t t = 0; t < 16; t++) keys[i + t] = kv_rank_key(score[i + t], (uint32_t)(i + t));
    for (size_t i = whole; i < n; i++) keys[i] = kv_rank_key(score[i], (uint32_t)i);
}

#if defined(__x86_64__)
__attribute__((target("avx2,popcnt"))) static int32_t count_avx2(const uint64_t *mask, int32_t n_words) { return count(mask, n_words); }

__attribute__((target("avx512f,avx512dq,prefer-vector-width=512"))) static void make_keys_avx512(const float *score, size_t n, uint64_t *keys)
{
    make_keys(score, n, keys);
}
#endif

int32_t kv_mask_count(const uint64_t *mask, int32_t n_words)
{
#if defined(__x86_64__)
    if (strcmp(kv_kernels()->isa, "scalar")) return count_avx2(mask, n_words);
#endif
    return count(mask, n_words);
}

void kv_rank_keys(const float *score, size_t n, uint64_t *keys)
{
#if defined(__x86_64__)
    if (!strcmp(kv_kernels()->isa, "avx512")) {
        make_keys_avx512(score, n, keys);
        return;
    }
#endif
    make_keys(score, n, keys);
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t t = *a;
    *a = *b;
    *b = t;
}

/* Partitions keys[lo, hi), hi - lo > 1, by the median of three of them; returns where that one now stands. Every key is swapped, whichever side it
 * is for, so that there is no branch to mispredict. */
static size_t partition(uint64_t *keys, size_t lo, size_t hi)
{
    size_t mid = lo + (hi - lo) / 2, last = hi - 1;
    if (keys[mid] < keys[lo]) swap(&keys[mid], &keys[lo]);
    if (keys[last] < keys[lo]) swap(&keys[last], &keys[lo]);
    if (keys[mid] < keys[last]) swap(&keys[mid], &keys[last]); /* the median of three is the pivot, at last */
    uint64_t pivot = keys[last];
    size_t store = lo;
    for (size_t i = lo; i < last; i++) {
        uint64_t key = keys[i];
        keys[i] = keys[store];
        keys[store] = key;
        store += key < pivot;
    }
    swap(&keys[store], &keys[last]);
    return store;
}

void kv_rank_select(uint64_t *keys, size_t n, size_t k)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1 && k > lo && k < hi) {
        size_t at = partition(keys, lo, hi);
        if (at == k) return;
        if (at < k) lo = at + 1;
        else hi = at;
    }
}

size_t kv_rank_cover(uint64_t *keys, size_t n, const int32_t *size, int64_t rows)
{
    size_t lo = 0, hi = n;
    while (lo < hi && rows > 0) { /* keys[0, lo) are taken; `rows` are still to be covered; keys[0, hi) cover them, or hi = n */
        size_t at = hi - lo > 1 ? partition(keys, lo, hi) : lo;
        int64_t left = 0;
        for (size_t i = lo; i < at; i++) left += size[kv_rank_index(keys[i])];
        if (left >= rows) {
            hi = at;
            continue;
        }
        rows -= left + size[kv_rank_index(keys[at])];
        lo = at + 1;
    }
    return lo;
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
