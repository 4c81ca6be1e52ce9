/* avx512_selected.c — what selection asks of attention: bounds of pages, and the state of one block and one query row over selected rows, which are
 * packed sixteen to a vector of scores. */
#include "kernels/x86/avx512.h"

/* Selected rows of the next block, fetched a few at a time while this one computes: all at once they would fill every buffer for misses. */
struct ahead {
    const uint8_t *k, *v;
    uint64_t rows_k, rows_v;
};

KV_INLINE struct ahead look_ahead(const struct kv_attention *a, int32_t i, int32_t b)
{
    while (++b < a->n_blocks) {
        uint64_t rows = a->k[b] ? a->support[(size_t)i * (size_t)a->n_blocks + (size_t)b] : 0;
        if (rows) return (struct ahead){a->k[b], a->v[b], rows, rows};
    }
    return (struct ahead){0};
}

KV_INLINE void fetch_row(const uint8_t *block, uint64_t *rows, size_t row_bytes)
{
    if (!*rows) return;
    const char *row = (const char *)block + (size_t)__builtin_ctzll(*rows) * row_bytes;
    *rows &= *rows - 1;
    for (size_t c = 0; c < row_bytes; c += 64) _mm_prefetch(row + c, _MM_HINT_T1);
}

/* p[j] = scaled score of row at[j], j < n; at is padded to a multiple of four with rows that may be read. */
KV_INLINE void scores(const enum kv_type type, const float *q, const uint8_t *k, size_t d, float scale, const uint8_t *at, int n, struct ahead *next, float *p)
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
            for (int r = 0; r < 4; r++) fetch_row(next->k, &next->rows_k, row_bytes);
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

KV_INLINE void values64(const enum kv_type type, const uint8_t *v, size_t d, size_t c, const uint8_t *at, int n, const float *p, struct ahead *next, float *u)
{
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (int i = 0; i < n; i++) {
        const uint8_t *row = v + at[i] * d * kv_width(type);
        __m512 w = _mm512_set1_ps(p[i]);
        a0 = _mm512_fmadd_ps(w, kv_load16(type, row, c), a0);
        a1 = _mm512_fmadd_ps(w, kv_load16(type, row, c + 16), a1);
        a2 = _mm512_fmadd_ps(w, kv_load16(type, row, c + 32), a2);
        a3 = _mm512_fmadd_ps(w, kv_load16(type, row, c + 48), a3);
        fetch_row(next->v, &next->rows_v, d * kv_width(type));
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
    struct ahead next = look_ahead(a, i, b);
    scores(type, a->q + (size_t)i * a->q_stride, a->k[b], d, a->scale, at, n, &next, p);
    weigh(rows, n, p, out.m + i, out.l + i);
    size_t c = 0;
    for (; c + 64 <= d; c += 64) values64(type, a->v[b], d, c, at, n, p, &next, u);
    for (; c < d; c += 16) values16(type, a->v[b], d, c, at, n, p, u);
    while (next.rows_k) fetch_row(next.k, &next.rows_k, d * kv_width(type));
    while (next.rows_v) fetch_row(next.v, &next.rows_v, d * kv_width(type));
}

void kv_avx512_attend_selected(const struct kv_attention *a, int32_t i, int32_t b, uint64_t rows, struct kv_states out)
{
    if (a->row_type == KV_F16) selected(KV_F16, a, i, b, rows, out);
    else if (a->row_type == KV_BF16) selected(KV_BF16, a, i, b, rows, out);
    else selected(KV_F32, a, i, b, rows, out);
}

/* ---------------------------------------------------------------- bounds of pages */

/* Four pages (fewer: the last ones repeat) and N query rows: out[i] holds a bound a lane. Lanes beyond d hold zeros, which leave a sum that began
 * at +0 as it is. */
KV_INLINE void four_bounds(const enum kv_type type, const int N, const float *q, size_t q_stride, const uint8_t *const page[4], size_t d, __m512 out[4])
{
    const size_t row_bytes = d * kv_width(type);
    __m512 acc[4][4];
    for (int i = 0; i < N; i++)
        for (int p = 0; p < 4; p++) acc[i][p] = _mm512_setzero_ps();
    for (size_t c = 0; c < d; c += 16) {
        const bool whole = c + 16 <= d;
        __mmask16 m = kv_first((int32_t)(d - c));
        __m512 v[4];
        _Pragma("GCC unroll 4") for (int i = 0; i < N; i++) v[i] = _mm512_maskz_loadu_ps(m, q + (size_t)i * q_stride + c);
        _Pragma("GCC unroll 4") for (int p = 0; p < 4; p++)
        {
            __m512 lo = whole ? kv_load16(type, page[p], c) : kv_load16_first(type, m, page[p], c);
            __m512 hi = whole ? kv_load16(type, page[p] + row_bytes, c) : kv_load16_first(type, m, page[p] + row_bytes, c);
            _Pragma("GCC unroll 4") for (int i = 0; i < N; i++) acc[i][p] = _mm512_add_ps(acc[i][p], _mm512_max_ps(_mm512_mul_ps(v[i], lo), _mm512_mul_ps(v[i], hi)));
        }
    }
    const __m512 zero = _mm512_setzero_ps();
    _Pragma("GCC unroll 4") for (int i = 0; i < N; i++)
        out[i] = kv_canon16(kv_tree_tail(kv_tree_head(acc[i][0], acc[i][1], acc[i][2], acc[i][3]), zero, zero, zero));
}

KV_INLINE void bounds(const enum kv_type type, const float *q, int32_t n_q, size_t q_stride, const uint8_t *pages, int32_t n_pages, int32_t d, float *out,
                      size_t out_stride)
{
    const size_t page_bytes = 2 * (size_t)d * kv_width(type);
    for (int32_t p = 0; p < n_pages; p += 4) {
        const uint8_t *page[4];
        __m512 bound[4];
        for (int32_t r = 0; r < 4; r++) page[r] = pages + (size_t)(p + r < n_pages ? p + r : n_pages - 1) * page_bytes;
        for (int32_t i = 0; i < n_q; i += 4) {
            const float *from = q + (size_t)i * q_stride;
            int32_t n = n_q - i < 4 ? n_q - i : 4;
            switch (n) {
            case 1: four_bounds(type, 1, from, q_stride, page, (size_t)d, bound); break;
            case 2: four_bounds(type, 2, from, q_stride, page, (size_t)d, bound); break;
            case 3: four_bounds(type, 3, from, q_stride, page, (size_t)d, bound); break;
            default: four_bounds(type, 4, from, q_stride, page, (size_t)d, bound); break;
            }
            for (int32_t j = 0; j < n; j++) _mm512_mask_storeu_ps(out + (size_t)(i + j) * out_stride + p, kv_first(n_pages - p < 4 ? n_pages - p : 4), bound[j]);
        }
    }
}

void kv_avx512_page_bounds(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *pages, int32_t n_pages, int32_t d, float *out,
                           size_t out_stride)
{
    if (row_type == KV_F16) bounds(KV_F16, q, n_q, q_stride, pages, n_pages, d, out, out_stride);
    else if (row_type == KV_BF16) bounds(KV_BF16, q, n_q, q_stride, pages, n_pages, d, out, out_stride);
    else bounds(KV_F32, q, n_q, q_stride, pages, n_pages, d, out, out_stride);
}

/* ---------------------------------------------------------------- nearest centroids */

/* Products of R rows with 16 V centroids from c on. */
#define PRODUCTS(R, V)                                                                                                         \
    for (int32_t j = 0; j < width; j++) {                                                                                      \
        const float *m = centroids + (size_t)j * stride + c;                                                                   \
        _Pragma("GCC unroll 4") for (int v = 0; v < V; v++)                                                                    \
        {                                                                                                                      \
            __m512 y = _mm512_loadu_ps(m + 16 * v);                                                                            \
            _Pragma("GCC unroll 4") for (int r = 0; r < R; r++) acc[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[(size_t)r * x_stride + (size_t)j]), y, acc[r][v]); \
        }                                                                                                                      \
    }

struct best {
    __m512 least;
    __m512i at;
};

KV_INLINE void improve(struct best *b, __m512 product, __m512 square, __mmask16 there, size_t c)
{
    __m512 distance = _mm512_sub_ps(square, _mm512_mul_ps(_mm512_set1_ps(2), product));
    __mmask16 closer = _mm512_mask_cmp_ps_mask(there, distance, b->least, _CMP_LT_OQ);
    b->least = _mm512_mask_mov_ps(b->least, closer, distance);
    b->at = _mm512_mask_mov_epi32(b->at, closer, _mm512_add_epi32(_mm512_set1_epi32((int)c), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
}

/* Each lane holds the first of its own least ones. */
KV_INLINE int32_t first_of(const struct best *b)
{
    float least = _mm512_reduce_min_ps(b->least);
    if (!(least < kv_float(KV_INF_BITS))) return 0;
    return _mm512_mask_reduce_min_epi32(_mm512_cmp_ps_mask(b->least, _mm512_set1_ps(least), _CMP_EQ_OQ), b->at);
}

/* R rows, all centroids: 64 at a time, then 16. */
KV_INLINE void nearest(const int R, const float *x, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label)
{
    const size_t stride = ((size_t)k + 15) / 16 * 16;
    struct best best[4];
    for (int r = 0; r < R; r++) best[r] = (struct best){_mm512_set1_ps(kv_float(KV_INF_BITS)), _mm512_setzero_si512()};
    size_t c = 0;
    for (; c + 64 <= stride; c += 64) {
        __m512 acc[4][4];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < 4; v++) acc[r][v] = _mm512_setzero_ps();
        PRODUCTS(R, 4)
        for (int v = 0; v < 4; v++) {
            __mmask16 there = kv_first(k - (int32_t)c - 16 * v);
            __m512 s = _mm512_maskz_loadu_ps(there, square + c + 16 * v);
            for (int r = 0; r < R; r++) improve(&best[r], acc[r][v], s, there, c + 16 * (size_t)v);
        }
    }
    for (; c < stride; c += 16) {
        __m512 acc[4][1];
        for (int r = 0; r < R; r++) acc[r][0] = _mm512_setzero_ps();
        PRODUCTS(R, 1)
        __mmask16 there = kv_first(k - (int32_t)c);
        __m512 s = _mm512_maskz_loadu_ps(there, square + c);
        for (int r = 0; r < R; r++) improve(&best[r], acc[r][0], s, there, c);
    }
    for (int r = 0; r < R; r++) label[r] = first_of(&best[r]);
}

void kv_avx512_nearest(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label)
{
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) nearest(4, x + (size_t)i * x_stride, x_stride, centroids, square, k, width, label + i);
    for (; i < n; i++) nearest(1, x + (size_t)i * x_stride, x_stride, centroids, square, k, width, label + i);
}
