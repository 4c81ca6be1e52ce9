/* avx512_selected.c — what selection asks of attention: bounds of pages, nearest centroids, and the states of blocks over selected rows of one query
 * row. The rows of several blocks are packed sixteen to a vector of scores; scores, weights and values are taken one after the other for all of
 * them, so that the chain of one block's operations is hidden behind the others'. */
#include "kernels/scalar/scalar.h"
#include "kernels/x86/avx512.h"

enum { PACKED = KV_BATCH_BLOCKS * KV_BLOCK_ROWS };

struct packed { /* selected rows of several blocks, in order; room for the vector that is stored over the end */
    const uint8_t *k[PACKED + 16], *v[PACKED + 16];
    uint64_t rows[KV_BATCH_BLOCKS];
    int32_t first[KV_BATCH_BLOCKS + 1]; /* of each block, and the number of all */
};

KV_INLINE void pack(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, size_t row_bytes, struct packed *p)
{
    const __m512i row = _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), _mm512_set1_epi64((long long)row_bytes));
    const __m512i eight = _mm512_set1_epi64(8 * (long long)row_bytes);
    int32_t at = 0;
    for (int32_t j = 0; j < n; j++) {
        const uint8_t *kb = a->k[pick[j].block], *vb = a->v[pick[j].block];
        uint64_t left = p->rows[j] = kb ? kv_visible_rows(a, pick[j].query, pick[j].block) : 0;
        __m512i k = _mm512_add_epi64(_mm512_set1_epi64((long long)(uintptr_t)kb), row), v = _mm512_add_epi64(_mm512_set1_epi64((long long)(uintptr_t)vb), row);
        p->first[j] = at;
        for (; left; left >>= 8) {
            _mm512_storeu_si512(p->k + at, _mm512_maskz_compress_epi64((__mmask8)left, k));
            _mm512_storeu_si512(p->v + at, _mm512_maskz_compress_epi64((__mmask8)left, v));
            at += __builtin_popcount((unsigned)left & 0xff);
            k = _mm512_add_epi64(k, eight), v = _mm512_add_epi64(v, eight);
        }
    }
    p->first[n] = at;
    for (int32_t pad = 0; at && pad < 3; pad++) p->k[at + pad] = p->k[0];
}

struct keys { /* of the rows that come next */
    const uint8_t *k[PACKED + 8];
    int32_t n, asked;
};

KV_INLINE void pack_keys(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, size_t row_bytes, struct keys *next)
{
    const __m512i row = _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), _mm512_set1_epi64((long long)row_bytes));
    const __m512i eight = _mm512_set1_epi64(8 * (long long)row_bytes);
    next->n = next->asked = 0;
    for (int32_t j = 0; j < n; j++) {
        __m512i k = _mm512_add_epi64(_mm512_set1_epi64((long long)(uintptr_t)a->k[pick[j].block]), row);
        for (uint64_t left = kv_visible_rows(a, pick[j].query, pick[j].block); left; left >>= 8) {
            _mm512_storeu_si512(next->k + next->n, _mm512_maskz_compress_epi64((__mmask8)left, k));
            next->n += __builtin_popcount((unsigned)left & 0xff);
            k = _mm512_add_epi64(k, eight);
        }
    }
}

KV_INLINE void fetch(const uint8_t *row, size_t row_bytes)
{
    for (size_t c = 0; c < row_bytes; c += 64) _mm_prefetch((const char *)row + c, _MM_HINT_T1);
}

/* score[j] = scaled score of row k[j] for rows [from, to); their values are asked for meanwhile. */
KV_INLINE void scores(const enum kv_type type, const size_t d, const float *q, float scale, const struct packed *at, int32_t from, int32_t to, float *score)
{
    const size_t row_bytes = d * kv_width(type);
    for (int32_t g = from; g < to; g += 16) {
        __m512 z[4];
        _Pragma("GCC unroll 4") for (int r4 = 0; r4 < 4; r4++)
        {
            const int32_t r = g + 4 * r4;
            if (r >= to) {
                z[r4] = _mm512_setzero_ps();
                continue;
            }
            __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
            _Pragma("GCC unroll 8") for (size_t c = 0; c < d; c += 16)
            {
                __m512 qc = _mm512_loadu_ps(q + c);
                a0 = _mm512_fmadd_ps(kv_load16(type, at->k[r], c), qc, a0);
                a1 = _mm512_fmadd_ps(kv_load16(type, at->k[r + 1], c), qc, a1);
                a2 = _mm512_fmadd_ps(kv_load16(type, at->k[r + 2], c), qc, a2);
                a3 = _mm512_fmadd_ps(kv_load16(type, at->k[r + 3], c), qc, a3);
            }
            z[r4] = kv_tree_head(a0, a1, a2, a3);
            for (int32_t j = r; j < r + 4 && j < to; j++) fetch(at->v[j], row_bytes);
        }
        _mm512_storeu_ps(score + g, _mm512_mul_ps(kv_tree_tail(z[0], z[1], z[2], z[3]), _mm512_set1_ps(scale)));
    }
}

/* n scores to weights, and m and l: each weight into the lane that its row has in a whole block. */
KV_INLINE void weigh(uint64_t rows, int32_t n, const float *score, float *w, float *m_out, float *l_out)
{
    const __m512 none = _mm512_set1_ps(-kv_float(KV_INF_BITS));
    __m512 top = none, l = _mm512_setzero_ps();
    for (int32_t g = 0; g < n; g += 16) top = _mm512_max_ps(_mm512_mask_loadu_ps(none, kv_first(n - g), score + g), top); /* a NaN leaves top as it was */
    float m = _mm512_reduce_max_ps(top) + 0.0f;
    for (int32_t g = 0; g < n; g += 16) _mm512_storeu_ps(w + g, kv_exp16(_mm512_sub_ps(_mm512_loadu_ps(score + g), _mm512_set1_ps(m))));
    for (int r16 = 0; r16 < KV_BLOCK_ROWS; r16 += 16) {
        __mmask16 here = (__mmask16)(rows >> r16);
        l = _mm512_add_ps(l, _mm512_maskz_expand_ps(here, _mm512_loadu_ps(w)));
        w += __builtin_popcount(here);
    }
    *m_out = m;
    *l_out = kv_canon(kv_tree16(l));
}

/* Sixteen channels from c on. */
KV_INLINE void values16(const enum kv_type type, const uint8_t *const *v, size_t c, int32_t n, const float *w, float *u)
{
    __m512 acc = _mm512_setzero_ps();
    for (int32_t i = 0; i < n; i++) acc = _mm512_fmadd_ps(_mm512_set1_ps(w[i]), kv_load16(type, v[i], c), acc);
    _mm512_storeu_ps(u + c, kv_canon16(acc));
}

/* Four times as many, whose chains run side by side; with every row, a key of those that come next is asked for. */
KV_INLINE void values64(const enum kv_type type, const uint8_t *const *v, size_t c, int32_t n, const float *w, float *u, const uint8_t *const *next, int32_t ahead,
                        size_t row_bytes)
{
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    for (int32_t i = 0; i < n; i++) {
        __m512 wi = _mm512_set1_ps(w[i]);
        if (i < ahead) fetch(next[i], row_bytes);
        a0 = _mm512_fmadd_ps(wi, kv_load16(type, v[i], c), a0);
        a1 = _mm512_fmadd_ps(wi, kv_load16(type, v[i], c + 16), a1);
        a2 = _mm512_fmadd_ps(wi, kv_load16(type, v[i], c + 32), a2);
        a3 = _mm512_fmadd_ps(wi, kv_load16(type, v[i], c + 48), a3);
    }
    _mm512_storeu_ps(u + c, kv_canon16(a0));
    _mm512_storeu_ps(u + c + 16, kv_canon16(a1));
    _mm512_storeu_ps(u + c + 32, kv_canon16(a2));
    _mm512_storeu_ps(u + c + 48, kv_canon16(a3));
}

/* All channels of one block's rows. */
KV_INLINE void values(const enum kv_type type, const size_t d, const uint8_t *const *v, int32_t rows, const float *w, float *u, struct keys *next)
{
    const size_t row_bytes = d * kv_width(type);
    int32_t ahead = next->n - next->asked < rows ? next->n - next->asked : rows;
    const uint8_t *const *k = next->k + next->asked;
    size_t c = 0;
    for (; c + 64 <= d; c += 64) values64(type, v, c, rows, w, u, k, c ? 0 : ahead, row_bytes);
    for (; c < d; c += 16) values16(type, v, c, rows, w, u);
    for (int32_t i = 0; d < 64 && i < ahead; i++) fetch(k[i], row_bytes);
    next->asked += ahead;
}

/* d: a->d_head, known to the compiler where a row is a few vectors. */
KV_INLINE void selected(const enum kv_type type, const size_t d, const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out)
{
    struct packed at;
    struct keys next;
    const size_t row_bytes = d * kv_width(type);
    float score[PACKED + 16], w[KV_BATCH_BLOCKS][KV_BLOCK_ROWS + 16]; /* weigh reads a vector beyond the last weight */
    pack(a, pick, n, row_bytes, &at);
    for (int32_t j = 0, end; j < n; j = end) { /* blocks of one query row together */
        for (end = j + 1; end < n && pick[end].query == pick[j].query; end++) {}
        scores(type, d, a->q + (size_t)pick[j].query * a->q_stride, a->scale, &at, at.first[j], at.first[end], score);
    }
    for (int32_t j = 0; j < n; j++) weigh(at.rows[j], at.first[j + 1] - at.first[j], score + at.first[j], w[j], out[j].m, out[j].l);
    pack_keys(a, pick + n, ahead, row_bytes, &next);
    for (int32_t j = 0; j < n; j++) values(type, d, at.v + at.first[j], at.first[j + 1] - at.first[j], w[j], out[j].u, &next);
    for (; next.asked < next.n; next.asked++) fetch(next.k[next.asked], row_bytes);
}

static void any_selected(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out)
{
    const size_t d = (size_t)a->d_head;
    if (a->row_type == KV_F16 && d == 64) selected(KV_F16, 64, a, pick, n, ahead, out);
    else if (a->row_type == KV_F16 && d == 128) selected(KV_F16, 128, a, pick, n, ahead, out);
    else if (a->row_type == KV_F16) selected(KV_F16, d, a, pick, n, ahead, out);
    else if (a->row_type == KV_BF16) selected(KV_BF16, d, a, pick, n, ahead, out);
    else selected(KV_F32, d, a, pick, n, ahead, out);
}

void kv_avx512_attend_selected(const struct kv_attention *a, int32_t i, int32_t b, struct kv_states out)
{
    struct kv_states one = {out.m + i, out.l + i, out.u + (size_t)i * (size_t)a->d_head};
    any_selected(a, &(struct kv_pick){i, b}, 1, 0, &one);
}

void kv_avx512_attend_picks(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out)
{
    if (a->d_head % 16) kv_scalar_attend_picks(a, pick, n, ahead, out);
    else any_selected(a, pick, n, ahead, out);
}

/* ---------------------------------------------------------------- bounds of pages */

/* One block of pages and N query rows. The block is read from end to end, as the processor foresees it. */
KV_INLINE void block_bounds(const enum kv_type type, const int N, const float *q, size_t q_stride, const uint8_t *block, int32_t d, float *out, size_t out_stride)
{
    const size_t column = KV_BLOCK_ROWS * kv_width(type);
    __m512 acc[4][4];
    for (int i = 0; i < N; i++)
        for (int v = 0; v < 4; v++) acc[i][v] = _mm512_setzero_ps();
    for (int32_t c = 0; c < d; c++, block += 2 * column)
        _Pragma("GCC unroll 4") for (int i = 0; i < N; i++)
        {
            const float *x = q + (size_t)i * q_stride + c;
            const uint8_t *extremum = block + (column & ((size_t)(kv_bits(*x) >> 31) - 1));
            __m512 w = _mm512_set1_ps(*x);
            _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++) acc[i][v] = _mm512_fmadd_ps(w, kv_load16(type, extremum, 16 * (size_t)v), acc[i][v]);
        }
    for (int i = 0; i < N; i++)
        for (int v = 0; v < 4; v++) _mm512_storeu_ps(out + (size_t)i * out_stride + 16 * v, kv_canon16(acc[i][v]));
}

KV_INLINE void bounds(const enum kv_type type, const float *q, int32_t n_q, size_t q_stride, const uint8_t *columns, int32_t n_blocks, int32_t d, float *out, size_t out_stride)
{
    for (int32_t b = 0; b < n_blocks; b++, out += KV_BLOCK_ROWS, columns += 2 * (size_t)d * KV_BLOCK_ROWS * kv_width(type))
        for (int32_t i = 0; i < n_q; i += 4) {
            const float *from = q + (size_t)i * q_stride;
            float *to = out + (size_t)i * out_stride;
            switch (n_q - i) {
            case 1: block_bounds(type, 1, from, q_stride, columns, d, to, out_stride); break;
            case 2: block_bounds(type, 2, from, q_stride, columns, d, to, out_stride); break;
            case 3: block_bounds(type, 3, from, q_stride, columns, d, to, out_stride); break;
            default: block_bounds(type, 4, from, q_stride, columns, d, to, out_stride); break;
            }
        }
}

void kv_avx512_page_bounds(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *columns, int32_t n_blocks, int32_t d, float *out,
                           size_t out_stride)
{
    if (row_type == KV_F16) bounds(KV_F16, q, n_q, q_stride, columns, n_blocks, d, out, out_stride);
    else if (row_type == KV_BF16) bounds(KV_BF16, q, n_q, q_stride, columns, n_blocks, d, out, out_stride);
    else bounds(KV_F32, q, n_q, q_stride, columns, n_blocks, d, out, out_stride);
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
    __m512 least, second;
    __m512i at;
};

KV_INLINE void improve(struct best *b, const bool two, __m512 product, __m512 square, __mmask16 there, size_t c)
{
    __m512 distance = _mm512_sub_ps(square, _mm512_mul_ps(_mm512_set1_ps(2), product));
    __mmask16 closer = _mm512_mask_cmp_ps_mask(there, distance, b->least, _CMP_LT_OQ);
    if (two) {
        b->second = _mm512_mask_mov_ps(b->second, _mm512_mask_cmp_ps_mask(there, distance, b->second, _CMP_LT_OQ), distance);
        b->second = _mm512_mask_mov_ps(b->second, closer, b->least);
    }
    b->least = _mm512_mask_mov_ps(b->least, closer, distance);
    b->at = _mm512_mask_mov_epi32(b->at, closer, _mm512_add_epi32(_mm512_set1_epi32((int)c), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
}

/* Each lane holds the first of its own least ones; the second of all is in the lane of the least, or the least of another. */
KV_INLINE void first_of(const struct best *b, int32_t *label, float *least_out, float *second_out)
{
    float least = _mm512_reduce_min_ps(b->least);
    *label = 0;
    if (least < kv_float(KV_INF_BITS)) *label = _mm512_mask_reduce_min_epi32(_mm512_cmp_ps_mask(b->least, _mm512_set1_ps(least), _CMP_EQ_OQ), b->at);
    if (!least_out) return;
    __mmask16 chosen = least < kv_float(KV_INF_BITS) ? (__mmask16)(1u << *label % 16) : 0;
    *least_out = least;
    *second_out = _mm512_reduce_min_ps(_mm512_mask_mov_ps(b->least, chosen, b->second));
}

/* R rows, all centroids: 64 at a time, then 16. least and second: NULL, or wanted too. */
KV_INLINE void nearest(const int R, const bool two, const float *x, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width,
                       int32_t *label, float *least, float *second)
{
    const size_t stride = ((size_t)k + 15) / 16 * 16;
    const __m512 none = _mm512_set1_ps(kv_float(KV_INF_BITS));
    struct best best[4];
    for (int r = 0; r < R; r++) best[r] = (struct best){none, none, _mm512_setzero_si512()};
    size_t c = 0;
    for (; c + 64 <= stride; c += 64) {
        __m512 acc[4][4];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < 4; v++) acc[r][v] = _mm512_setzero_ps();
        PRODUCTS(R, 4)
        for (int v = 0; v < 4; v++) {
            __mmask16 there = kv_first(k - (int32_t)c - 16 * v);
            __m512 s = _mm512_maskz_loadu_ps(there, square + c + 16 * v);
            for (int r = 0; r < R; r++) improve(&best[r], two, acc[r][v], s, there, c + 16 * (size_t)v);
        }
    }
    for (; c < stride; c += 16) {
        __m512 acc[4][1];
        for (int r = 0; r < R; r++) acc[r][0] = _mm512_setzero_ps();
        PRODUCTS(R, 1)
        __mmask16 there = kv_first(k - (int32_t)c);
        __m512 s = _mm512_maskz_loadu_ps(there, square + c);
        for (int r = 0; r < R; r++) improve(&best[r], two, acc[r][0], s, there, c);
    }
    for (int r = 0; r < R; r++) first_of(&best[r], label + r, two ? least + r : 0, two ? second + r : 0);
}

void kv_avx512_nearest(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label)
{
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) nearest(4, false, x + (size_t)i * x_stride, x_stride, centroids, square, k, width, label + i, 0, 0);
    for (; i < n; i++) nearest(1, false, x + (size_t)i * x_stride, x_stride, centroids, square, k, width, label + i, 0, 0);
}

void kv_avx512_nearest_two(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label,
                           float *least, float *second)
{
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) nearest(4, true, x + (size_t)i * x_stride, x_stride, centroids, square, k, width, label + i, least + i, second + i);
    for (; i < n; i++) nearest(1, true, x + (size_t)i * x_stride, x_stride, centroids, square, k, width, label + i, least + i, second + i);
}
