/* avx2_float.c — products with F32, F16 and BF16 rows. Lanes are independent until the tree, so a tile of four rows by three
 * tokens runs lanes 0–7 along the whole row, then lanes 8–15: twelve chains fill the registers. */
#include "kernels/x86/avx2.h"

#define TOKEN_BLOCK 48 /* tokens that share one pass over the weights */

/* R rows, row_bytes apart, × N tokens, H halves of the lanes at a time; R·N·H ≤ 12. */
KV_INLINE void tile(const enum kv_type type, const int R, const int N, const int H, const uint8_t *w, size_t row_bytes,
                    const float *x, int32_t cols, float *y, size_t token_stride, size_t row_stride)
{
    float lane[12][KV_LANES];
    int32_t whole = cols / 16 * 16;
    for (int h0 = 0; h0 < 2; h0 += H) {
        __m256 acc[12];
        for (int i = 0; i < R * N * H; i++) acc[i] = _mm256_setzero_ps();
        for (int32_t k = 8 * h0; k < whole; k += 16)
            for (int h = 0; h < H; h++) {
                __m256 xk[3];
                for (int t = 0; t < N; t++) xk[t] = _mm256_loadu_ps(x + (size_t)t * (size_t)cols + k + 8 * h);
                for (int r = 0; r < R; r++) {
                    __m256 wk = kv_load8(type, w + (size_t)r * row_bytes, (size_t)(k + 8 * h));
                    for (int t = 0; t < N; t++) acc[(h * N + t) * R + r] = _mm256_fmadd_ps(wk, xk[t], acc[(h * N + t) * R + r]);
                }
            }
        for (int h = 0; h < H; h++)
            for (int i = 0; i < R * N; i++) _mm256_storeu_ps(lane[i] + 8 * (h0 + h), acc[h * R * N + i]);
    }
    for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) {
            float *l = lane[t * R + r];
            for (int32_t k = whole; k < cols; k++)
                l[k % KV_LANES] = kv_fma(kv_load1(type, w + (size_t)r * row_bytes, (size_t)k), x[(size_t)t * (size_t)cols + (size_t)k], l[k % KV_LANES]);
            y[(size_t)t * token_stride + (size_t)r * row_stride] = kv_canon(kv_tree8(_mm256_loadu_ps(l), _mm256_loadu_ps(l + 8)));
        }
}

KV_INLINE void rows_of(const enum kv_type type, const struct kv_mat *w, const float *x, int32_t n, int32_t row0, int32_t row1,
                       float *y, size_t y_stride)
{
    size_t row_bytes = (size_t)w->cols * kv_width(type), cols = (size_t)w->cols;
    int32_t r = row0, quarter = (row1 - row0) / 4;
    if (n == 1) { /* reading is all: four long streams run at the memory's rate, four neighbouring rows at two thirds of it */
        for (; r < row0 + quarter; r++) tile(type, 4, 1, 2, (const uint8_t *)w->data + (size_t)r * row_bytes, (size_t)quarter * row_bytes, x, w->cols, y + r, 0, (size_t)quarter);
        r = row0 + 4 * quarter;
    }
    for (; r + 4 <= row1; r += 4) {
        const uint8_t *wr = (const uint8_t *)w->data + (size_t)r * row_bytes;
        int32_t t = 0;
        for (; t + 3 <= n; t += 3) tile(type, 4, 3, 1, wr, row_bytes, x + (size_t)t * cols, w->cols, y + (size_t)t * y_stride + r, y_stride, 1);
        for (; t < n; t++) tile(type, 4, 1, 2, wr, row_bytes, x + (size_t)t * cols, w->cols, y + (size_t)t * y_stride + r, y_stride, 1);
    }
    for (; r < row1; r++)
        for (int32_t t = 0; t < n; t++)
            tile(type, 1, 1, 2, (const uint8_t *)w->data + (size_t)r * row_bytes, row_bytes, x + (size_t)t * cols, w->cols,
                 y + (size_t)t * y_stride + r, y_stride, 1);
}

void kv_avx2_float(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    for (int32_t t0 = 0; t0 < x->n; t0 += TOKEN_BLOCK) {
        int32_t n = x->n - t0 < TOKEN_BLOCK ? x->n - t0 : TOKEN_BLOCK;
        const float *from = x->f32 + (size_t)t0 * (size_t)w->cols;
        float *to = y + (size_t)t0 * y_stride;
        if (w->type == KV_F32) rows_of(KV_F32, w, from, n, row0, row1, to, y_stride);
        else if (w->type == KV_F16) rows_of(KV_F16, w, from, n, row0, row1, to, y_stride);
        else rows_of(KV_BF16, w, from, n, row0, row1, to, y_stride);
    }
}
