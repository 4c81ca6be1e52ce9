/* avx2_ranking.c — what ranking rows takes, eight rows or channels a vector. */
#include "kernels/x86/avx2.h"

/* Half a block and one query row; stride: bytes from channel to channel. */
KV_INLINE void half_dots(const enum kv_type type, const uint8_t *block, size_t stride, const int32_t *pick, const float *weight, int32_t n_channels, size_t first,
                         float *out)
{
    __m256 acc[4];
    for (int v = 0; v < 4; v++) acc[v] = _mm256_setzero_ps();
    for (int32_t c = 0; c < n_channels; c++) {
        const uint8_t *column = block + (size_t)(pick ? pick[c] : c) * stride;
        __m256 w = _mm256_set1_ps(weight[c]);
        for (int v = 0; v < 4; v++) acc[v] = _mm256_fmadd_ps(w, kv_load8(type, column, first + 8 * (size_t)v), acc[v]);
    }
    for (int v = 0; v < 4; v++) _mm256_storeu_ps(out + first + 8 * v, kv_canon8(acc[v]));
}

KV_INLINE void column_dots(const enum kv_type type, const uint8_t *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                           int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride)
{
    for (int32_t first = 0; first < n_blocks * KV_BLOCK_ROWS; first += KV_BLOCK_ROWS, out += KV_BLOCK_ROWS) {
        const uint8_t *block = columns + ((size_t)(first / run) * (size_t)d * (size_t)run + (size_t)(first % run)) * kv_width(type);
        for (int32_t i = 0; i < n_q; i++)
            for (size_t half = 0; half < KV_BLOCK_ROWS; half += 32)
                half_dots(type, block, (size_t)run * kv_width(type), pick, weight + (size_t)i * (size_t)n_channels, n_channels, half, out + (size_t)i * out_stride);
    }
}

void kv_avx2_column_dots(enum kv_type row_type, const void *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                         int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride)
{
    if (row_type == KV_F16) column_dots(KV_F16, columns, d, run, pick, weight, n_q, n_channels, n_blocks, out, out_stride);
    else if (row_type == KV_BF16) column_dots(KV_BF16, columns, d, run, pick, weight, n_q, n_channels, n_blocks, out, out_stride);
    else column_dots(KV_F32, columns, d, run, pick, weight, n_q, n_channels, n_blocks, out, out_stride);
}

int32_t kv_avx2_outrank(const float *x, int32_t n, float least, uint64_t *mask)
{
    const __m256 bar = _mm256_set1_ps(least);
    int32_t count = 0;
    for (int32_t first = 0; first < n; first += 64) {
        uint64_t bits = 0;
        int32_t t = first;
        for (; t < first + 64 && t + 8 <= n; t += 8) bits |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + t), bar, _CMP_NLE_UQ)) << (t - first);
        for (; t < first + 64 && t < n; t++) bits |= (uint64_t)!(x[t] <= least) << (t - first);
        mask[first / 64] = bits;
        count += __builtin_popcountll(bits);
    }
    return count;
}

KV_INLINE const uint8_t *row_at(const void *const *blocks, int32_t row, size_t row_bytes)
{
    return (const uint8_t *)blocks[row / KV_BLOCK_ROWS] + (size_t)(row % KV_BLOCK_ROWS) * row_bytes;
}

KV_INLINE float row_dot(const enum kv_type type, const uint8_t *row, const float *q, int32_t d)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    int32_t c = 0;
    for (; c + 16 <= d; c += 16) {
        low = _mm256_fmadd_ps(kv_load8(type, row, (size_t)c), _mm256_loadu_ps(q + c), low);
        high = _mm256_fmadd_ps(kv_load8(type, row, (size_t)c + 8), _mm256_loadu_ps(q + c + 8), high);
    }
    if (c == d) return kv_canon(kv_tree8(low, high));
    float lane[KV_LANES];
    _mm256_storeu_ps(lane, low), _mm256_storeu_ps(lane + 8, high);
    for (int32_t i = 0; c < d; i++, c++) lane[i] = kv_fma(kv_load1(type, row, (size_t)c), q[c], lane[i]);
    return kv_canon(kv_tree(lane));
}

KV_INLINE void row_dots(const enum kv_type type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out)
{
    for (int32_t i = 0; i < n; i++) out[i] = row_dot(type, row_at(blocks, row[i], (size_t)d * kv_width(type)), q, d);
}

void kv_avx2_row_dots(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out)
{
    if (row_type == KV_F16) row_dots(KV_F16, blocks, row, n, q, d, out);
    else if (row_type == KV_BF16) row_dots(KV_BF16, blocks, row, n, q, d, out);
    else row_dots(KV_F32, blocks, row, n, q, d, out);
}

KV_INLINE void row_sum(const enum kv_type type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out)
{
    const size_t row_bytes = (size_t)d * kv_width(type);
    for (int32_t c = 0; c < d; c++) out[c] = 0;
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *at = row_at(blocks, row[i], row_bytes);
        __m256 w = _mm256_set1_ps(weight[i]);
        int32_t c = 0;
        for (; c + 8 <= d; c += 8) _mm256_storeu_ps(out + c, _mm256_fmadd_ps(w, kv_load8(type, at, (size_t)c), _mm256_loadu_ps(out + c)));
        for (; c < d; c++) out[c] = kv_fma(weight[i], kv_load1(type, at, (size_t)c), out[c]);
    }
    for (int32_t c = 0; c < d; c++) out[c] = kv_canon(out[c]);
}

void kv_avx2_row_sum(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out)
{
    if (row_type == KV_F16) row_sum(KV_F16, blocks, row, n, weight, d, out);
    else if (row_type == KV_BF16) row_sum(KV_BF16, blocks, row, n, weight, d, out);
    else row_sum(KV_F32, blocks, row, n, weight, d, out);
}
