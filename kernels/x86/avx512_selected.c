/* avx512_selected.c — what selection asks of attention: bounds of pages, and the state of one block and one query row over selected rows, which are
 * packed sixteen to a vector of scores. */
#include "kernels/scalar/scalar.h"
#include "kernels/x86/avx512.h"

/* p[j] = scaled score of row at[j], j < n; at is padded to a multiple of four with rows that may be read. */
KV_INLINE void scores(const enum kv_type type, const float *q, const uint8_t *k, size_t d, float scale, const uint8_t *at, int n, float *p)
{
    const size_t row_bytes = d * kv_width(type);
    for (int g = 0; g < n; g += 16) {
        __m512 z[4];
        for (int r4 = 0; r4 < 4; r4++) {
            const uint8_t *four = at + g + 4 * r4;
            if (g + 4 * r4 >= n) {
                z[r4] = _mm512_setzero_ps();
                continue;
            }
            const uint8_t *k0 = k + four[0] * row_bytes, *k1 = k + four[1] * row_bytes, *k2 = k + four[2] * row_bytes, *k3 = k + four[3] * row_bytes;
            __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
            for (size_t c = 0; c < d; c += 16) {
                __m512 qc = _mm512_loadu_ps(q + c);
                a0 = _mm512_fmadd_ps(kv_load16(type, k0, c), qc, a0);
                a1 = _mm512_fmadd_ps(kv_load16(type, k1, c), qc, a1);
                a2 = _mm512_fmadd_ps(kv_load16(type, k2, c), qc, a2);
                a3 = _mm512_fmadd_ps(kv_load16(type, k3, c), qc, a3);
            }
            z[r4] = kv_tree_head(a0, a1, a2, a3);
        }
        _mm512_storeu_ps(p + g, _mm512_mul_ps(kv_tree_tail(z[0], z[1], z[2], z[3]), _mm512_set1_ps(scale)));
    }
}

/* Scores to weights in place, and m and l: each weight into the lane that its row has in a whole block. */
KV_INLINE void weigh(uint64_t rows, int n, float *p, float *m_out, float *l_out)
{
    const __m512 none = _mm512_set1_ps(-kv_float(KV_INF_BITS));
    __m512 top = none, l = _mm512_setzero_ps();
    for (int g = 0; g < n; g += 16) top = _mm512_max_ps(_mm512_mask_loadu_ps(none, kv_first(n - g), p + g), top); /* a NaN leaves top as it was */
    float m = _mm512_reduce_max_ps(top) + 0.0f;
    for (int g = 0; g < n; g += 16) _mm512_storeu_ps(p + g, kv_exp16(_mm512_sub_ps(_mm512_loadu_ps(p + g), _mm512_set1_ps(m))));
    for (int r16 = 0; r16 < KV_BLOCK_ROWS; r16 += 16) {
        __mmask16 here = (__mmask16)(rows >> r16);
        l = _mm512_add_ps(l, _mm512_maskz_expand_ps(here, _mm512_loadu_ps(p)));
        p += __builtin_popcount(here);
    }
    *m_out = m;
    *l_out = kv_canon(kv_tree16(l));
}

/* Sixteen channels from c on; or four times as many, whose chains run side by side. */
KV_INLINE void values16(const enum kv_type type, const uint8_t *v, size_t d, size_t c, const uint8_t *at, int n, const float *p, float *u)
{
    __m512 acc = _mm512_setzero_ps();
    for (int i = 0; i < n; i++) acc = _mm512_fmadd_ps(_mm512_set1_ps(p[i]), kv_load16(type, v + at[i] * d * kv_width(type), c), acc);
    _mm512_storeu_ps(u + c, kv_canon16(acc));
}

KV_INLINE void values64(const enum kv_type type, const uint8_t *v, size_t d, size_t c, const uint8_t *at, int n, const float *p, float *u)
{
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (int i = 0; i < n; i++) {
        const uint8_t *row = v + at[i] * d * kv_width(type);
        __m512 w = _mm512_set1_ps(p[i]);
        a0 = _mm512_fmadd_ps(w, kv_load16(type, row, c), a0);
        a1 = _mm512_fmadd_ps(w, kv_load16(type, row, c + 16), a1);
        a2 = _mm512_fmadd_ps(w, kv_load16(type, row, c + 32), a2);
        a3 = _mm512_fmadd_ps(w, kv_load16(type, row, c + 48), a3);
    }
    _mm512_storeu_ps(u + c, kv_canon16(a0));
    _mm512_storeu_ps(u + c + 16, kv_canon16(a1));
    _mm512_storeu_ps(u + c + 32, kv_canon16(a2));
    _mm512_storeu_ps(u + c + 48, kv_canon16(a3));
}

KV_INLINE void selected(const enum kv_type type, const struct kv_attention *a, int32_t i, int32_t b, uint64_t rows, struct kv_states out)
{
    const size_t d = (size_t)a->d_head;
    float p[2 * KV_BLOCK_ROWS], *u = out.u + (size_t)i * d; /* weigh reads a vector beyond the last weight */
    uint8_t at[KV_BLOCK_ROWS];
    int n = 0;
    for (uint64_t left = rows; left; left &= left - 1) at[n++] = (uint8_t)__builtin_ctzll(left);
    for (int pad = n; pad % 4; pad++) at[pad] = at[0];
    for (int j = 0; j < 16; j++) p[n + j] = 0;
    scores(type, a->q + (size_t)i * a->q_stride, a->k[b], d, a->scale, at, n, p);
    weigh(rows, n, p, out.m + i, out.l + i);
    size_t c = 0;
    for (; c + 64 <= d; c += 64) values64(type, a->v[b], d, c, at, n, p, u);
    for (; c < d; c += 16) values16(type, a->v[b], d, c, at, n, p, u);
}

void kv_avx512_attend_selected(const struct kv_attention *a, int32_t i, int32_t b, uint64_t rows, struct kv_states out)
{
    if (a->row_type == KV_F16) selected(KV_F16, a, i, b, rows, out);
    else if (a->row_type == KV_BF16) selected(KV_BF16, a, i, b, rows, out);
    else selected(KV_F32, a, i, b, rows, out);
}

/* ---------------------------------------------------------------- bounds of pages */

enum { MAX_D = 1024 };

/* Four pages [4][2][wide] of fp32 and one query row. */
KV_INLINE __m512 four_bounds(const float *q, int32_t d, const float *pages, size_t wide)
{
    const float *p1 = pages + 2 * wide, *p2 = p1 + 2 * wide, *p3 = p2 + 2 * wide;
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (size_t c = 0; c < wide; c += 16) {
        __m512 v = _mm512_maskz_loadu_ps(kv_first(d - (int32_t)c), q + c);
        a0 = _mm512_add_ps(a0, _mm512_max_ps(_mm512_mul_ps(v, _mm512_load_ps(pages + c)), _mm512_mul_ps(v, _mm512_load_ps(pages + wide + c))));
        a1 = _mm512_add_ps(a1, _mm512_max_ps(_mm512_mul_ps(v, _mm512_load_ps(p1 + c)), _mm512_mul_ps(v, _mm512_load_ps(p1 + wide + c))));
        a2 = _mm512_add_ps(a2, _mm512_max_ps(_mm512_mul_ps(v, _mm512_load_ps(p2 + c)), _mm512_mul_ps(v, _mm512_load_ps(p2 + wide + c))));
        a3 = _mm512_add_ps(a3, _mm512_max_ps(_mm512_mul_ps(v, _mm512_load_ps(p3 + c)), _mm512_mul_ps(v, _mm512_load_ps(p3 + wide + c))));
    }
    const __m512 zero = _mm512_setzero_ps();
    return kv_tree_tail(kv_tree_head(a0, a1, a2, a3), zero, zero, zero);
}

/* Pages are converted once for all query rows. Lanes beyond d hold zeros, which leave a sum that began at +0 as it is. */
KV_INLINE void bounds(const enum kv_type type, const float *q, int32_t n_q, size_t q_stride, const uint8_t *pages, int32_t n_pages, int32_t d, float *out,
                      size_t out_stride)
{
    const size_t wide = ((size_t)d + 15) / 16 * 16, row_bytes = (size_t)d * kv_width(type);
    _Alignas(64) float four[8 * MAX_D];
    for (int32_t p = 0; p < n_pages; p += 4) {
        int32_t n = n_pages - p < 4 ? n_pages - p : 4;
        for (int32_t r = 0; r < 8; r++)
            for (size_t c = 0; c < wide; c += 16) {
                const uint8_t *row = pages + ((size_t)p * 2 + (size_t)(r < 2 * n ? r : 0)) * row_bytes;
                __m512 x = c + 16 <= (size_t)d ? kv_load16(type, row, c) : kv_load16_first(type, kv_first(d - (int32_t)c), row, c);
                _mm512_store_ps(four + (size_t)r * wide + c, x);
            }
        for (int32_t i = 0; i < n_q; i++)
            _mm512_mask_storeu_ps(out + (size_t)i * out_stride + p, kv_first(n), kv_canon16(four_bounds(q + (size_t)i * q_stride, d, four, wide)));
    }
}

void kv_avx512_page_bounds(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *pages, int32_t n_pages, int32_t d, float *out,
                           size_t out_stride)
{
    if (d > MAX_D) kv_scalar_page_bounds(row_type, q, n_q, q_stride, pages, n_pages, d, out, out_stride);
    else if (row_type == KV_F16) bounds(KV_F16, q, n_q, q_stride, pages, n_pages, d, out, out_stride);
    else if (row_type == KV_BF16) bounds(KV_BF16, q, n_q, q_stride, pages, n_pages, d, out, out_stride);
    else bounds(KV_F32, q, n_q, q_stride, pages, n_pages, d, out, out_stride);
}
