/* ranking.c — the definition of what ranking rows takes: partial products by channel, comparing scores, and products with scattered rows. */
#include "kernels/scalar/products.h"
#include "kernels/scalar/real.h"
#include "kernels/scalar/scalar.h"

void kv_scalar_column_dots(enum kv_type row_type, const void *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                           int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride)
{
    size_t width = row_type == KV_F32 ? sizeof(float) : sizeof(uint16_t);
    for (int32_t first = 0; first < n_blocks * KV_BLOCK_ROWS; first += KV_BLOCK_ROWS)
        for (int32_t i = 0; i < n_q; i++) {
            float *sum = out + (size_t)i * out_stride + first;
            for (int32_t t = 0; t < KV_BLOCK_ROWS; t++) sum[t] = 0;
            for (int32_t c = 0; c < n_channels; c++) {
                size_t at = ((size_t)(first / run) * (size_t)d + (size_t)(pick ? pick[c] : c)) * (size_t)run + (size_t)(first % run);
                float column[KV_BLOCK_ROWS];
                kv_dequantise_row(row_type, (const uint8_t *)columns + at * width, KV_BLOCK_ROWS, column);
                for (int32_t t = 0; t < KV_BLOCK_ROWS; t++) sum[t] = kv_fma(weight[(size_t)i * (size_t)n_channels + (size_t)c], column[t], sum[t]);
            }
            for (int32_t t = 0; t < KV_BLOCK_ROWS; t++) sum[t] = kv_canon(sum[t]);
        }
}

int32_t kv_scalar_outrank(const float *x, int32_t n, float least, uint64_t *mask)
{
    int32_t count = 0;
    for (int32_t first = 0; first < n; first += 64) {
        uint64_t bits = 0;
        for (int32_t t = 0; t < 64 && first + t < n; t++) bits |= (uint64_t)!(x[first + t] <= least) << t;
        mask[first / 64] = bits;
        count += __builtin_popcountll(bits);
    }
    return count;
}

static const uint8_t *row_at(enum kv_type row_type, const void *const *blocks, int32_t row, int32_t d)
{
    return (const uint8_t *)blocks[row / KV_BLOCK_ROWS] + (size_t)(row % KV_BLOCK_ROWS) * kv_type_row_bytes(row_type, d);
}

void kv_scalar_row_dots(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out)
{
    for (int32_t i = 0; i < n; i++) out[i] = kv_scalar_float_dot(row_type, row_at(row_type, blocks, row[i], d), q, d);
}

void kv_scalar_row_sum(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out)
{
    size_t width = kv_type_row_bytes(row_type, d) / (size_t)d;
    for (int32_t c = 0; c < d; c++) {
        out[c] = 0;
        for (int32_t i = 0; i < n; i++) {
            float x;
            kv_dequantise_row(row_type, row_at(row_type, blocks, row[i], d) + (size_t)c * width, 1, &x);
            out[c] = kv_fma(weight[i], x, out[c]);
        }
        out[c] = kv_canon(out[c]);
    }
}
