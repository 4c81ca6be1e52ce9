/* avx512_float.c — products with F32, F16 and BF16 rows straight from the file: tiles of rows × tokens, one FMA chain a lane. */
#include "kernels/x86/avx512.h"

#define TOKEN_BLOCK 64 /* tokens that share one pass over the weights */

/* R rows, row_bytes apart, × N tokens; R·N ≤ 16. acc[t·R + r] ends in lane t·R + r, which goes to y[t·token_stride + r·row_stride].
 * ahead: rows as long as these to fetch meanwhile, or NULL. */
KV_INLINE void tile(const enum kv_type type, const int R, const int N, const uint8_t *w, size_t row_bytes, const uint8_t *ahead, const float *x,
                    int32_t cols, float *y, size_t token_stride, size_t row_stride)
{
    __m512 acc[16];
    for (int i = 0; i < 16; i++) acc[i] = _mm512_setzero_ps();
    int32_t k = 0;
    for (; k + 16 <= cols; k += 16) {
        __m512 wk[4];
        if (ahead && k % (64 / (int32_t)kv_width(type)) == 0)
            for (int r = 0; r < R; r++) _mm_prefetch((const char *)ahead + (size_t)r * row_bytes + (size_t)k * kv_width(type), _MM_HINT_T1);
        for (int r = 0; r < R; r++) wk[r] = kv_load16(type, w + (size_t)r * row_bytes, (size_t)k);
        for (int t = 0; t < N; t++) {
            __m512 xk = _mm512_loadu_ps(x + (size_t)t * (size_t)cols + k);
            for (int r = 0; r < R; r++) acc[t * R + r] = _mm512_fmadd_ps(wk[r], xk, acc[t * R + r]);
        }
    }
    if (k < cols) {
        __mmask16 m = kv_first(cols - k);
        for (int t = 0; t < N; t++) {
            __m512 xk = _mm512_maskz_loadu_ps(m, x + (size_t)t * (size_t)cols + k);
            for (int r = 0; r < R; r++)
                acc[t * R + r] = _mm512_mask3_fmadd_ps(kv_load16_first(type, m, w + (size_t)r * row_bytes, (size_t)k), xk, acc[t * R + r], m);
        }
    }
    if (R * N == 1) {
        *y = kv_canon(kv_tree16(acc[0]));
        return;
    }
    __m512 z[4];
    for (int i = 0; i < 4; i++) z[i] = kv_tree_head(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
    float out[16];
    _mm512_storeu_ps(out, kv_canon16(kv_tree_tail(z[0], z[1], z[2], z[3])));
    for (int t = 0; t < N; t++)
        for (int r = 0; r < R; r++) y[(size_t)t * token_stride + (size_t)r * row_stride] = out[t * R + r];
}

KV_INLINE void rows_of(const enum kv_type type, const struct kv_mat *w, const float *x, int32_t n, int32_t row0, int32_t row1,
                       float *y, size_t y_stride)
{
    size_t row_bytes = (size_t)w->cols * kv_width(type), cols = (size_t)w->cols;
    int32_t r = row0, quarter = (row1 - row0) / 4;
    if (n == 1) { /* reading is all: four long streams run at the memory's rate, four neighbouring rows at two thirds of it */
        for (; r < row0 + quarter; r++) tile(type, 4, 1, (const uint8_t *)w->data + (size_t)r * row_bytes, (size_t)quarter * row_bytes, NULL, x, w->cols, y + r, 0, (size_t)quarter);
        r = row0 + 4 * quarter;
    }
    for (; r + 4 <= row1; r += 4) {
        const uint8_t *wr = (const uint8_t *)w->data + (size_t)r * row_bytes;
        const uint8_t *ahead = r + 8 <= row1 ? wr + 4 * row_bytes : NULL; /* the first tile fetches for all */
        int32_t t = 0;
        for (; t + 4 <= n; t += 4, ahead = NULL) tile(type, 4, 4, wr, row_bytes, ahead, x + (size_t)t * cols, w->cols, y + (size_t)t * y_stride + r, y_stride, 1);
        if (n - t >= 2) tile(type, 4, 2, wr, row_bytes, ahead, x + (size_t)t * cols, w->cols, y + (size_t)t * y_stride + r, y_stride, 1), t += 2, ahead = NULL;
        if (n - t >= 1) tile(type, 4, 1, wr, row_bytes, ahead, x + (size_t)t * cols, w->cols, y + (size_t)t * y_stride + r, y_stride, 1);
    }
    for (; r < row1; r++)
        for (int32_t t = 0; t < n; t++)
            tile(type, 1, 1, (const uint8_t *)w->data + (size_t)r * row_bytes, row_bytes, NULL, x + (size_t)t * cols, w->cols,
                 y + (size_t)t * y_stride + r, y_stride, 1);
}

void kv_avx512_float(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride)
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
