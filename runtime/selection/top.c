/* top.c — see top.h. */
#include "runtime/selection/top.h"

#include "kernels/kernels.h"
#include "runtime/selection/rank.h"

#include <math.h>

enum { SAMPLE = 1024, SMALL_SAMPLE = 256, SAMPLED = 4 /* times as many scores as a sample takes, or all are ranked */, CHUNK_WORDS = 64 };

/* A score that, more likely than not by four deviations of the sample, at least k of the n reach. */
static float bar(const float *score, int32_t n, int32_t k, uint64_t *key)
{
    int32_t sample = n >= SAMPLED * SAMPLE ? SAMPLE : SMALL_SAMPLE, stride = n / sample;
    double expected = (double)k * sample / n;
    int32_t at = (int32_t)(expected + 4 * sqrt(expected) + 4);
    if (at >= sample) return -INFINITY;
    for (int32_t i = 0; i < sample; i++) key[i] = kv_rank_key(score[i * stride], (uint32_t)(i * stride));
    kv_rank_select(key, (size_t)sample, (size_t)at + 1);
    uint64_t last = 0;
    for (int32_t i = 0; i <= at; i++) last = key[i] > last ? key[i] : last;
    return score[kv_rank_index(last)];
}

/* Keys of the scores that reach `least`; how many. */
static int32_t gather(const float *score, int32_t n, float least, uint64_t *key)
{
    uint64_t bits[CHUNK_WORDS];
    float under = nextafterf(least, -INFINITY);
    int32_t m = 0;
    for (int32_t first = 0; first < n; first += 64 * CHUNK_WORDS) {
        int32_t rows = n - first < 64 * CHUNK_WORDS ? n - first : 64 * CHUNK_WORDS;
        if (!kv_kernels()->outrank(score + first, rows, under, bits)) continue;
        for (int32_t w = 0; w < kv_mask_words(rows); w++)
            for (uint64_t left = bits[w]; left; left &= left - 1) {
                int32_t t = first + 64 * w + __builtin_ctzll(left);
                key[m++] = kv_rank_key(score[t], (uint32_t)t);
            }
    }
    return m;
}

void kv_top_rows(const float *score, int32_t n, int32_t k, uint64_t *key, uint64_t *mask)
{
    int32_t m = 0;
    if (n >= SAMPLED * SMALL_SAMPLE) m = gather(score, n, bar(score, n, k, key), key);
    if (m < k || n < SAMPLED * SMALL_SAMPLE) {
        kv_rank_keys(score, (size_t)n, key);
        m = n;
    }
    kv_rank_select(key, (size_t)m, (size_t)k);
    for (int32_t i = 0; i < k; i++) kv_mask_set(mask, (int32_t)kv_rank_index(key[i]));
}
