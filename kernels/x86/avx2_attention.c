/* avx2_attention.c — the state of one block: up to three query rows share each pass over V; K is converted once a block. */
#include "kernels/scalar/scalar.h"
#include "kernels/x86/avx2.h"

#define TILE 3
#define MAX_D 256

/* Rows seen by anybody, as fp32. */
KV_INLINE void convert(const enum kv_type type, const uint8_t *k, size_t d, uint64_t any, float *out)
{
    for (; any; any &= any - 1) {
        size_t row = (size_t)__builtin_ctzll(any);
        for (size_t c = 0; c < d; c += 8) _mm256_storeu_ps(out + row * d + c, kv_load8(type, k + row * d * kv_width(type), c));
    }
}

/* Scores of four rows: eight chains, then four trees at once. */
KV_INLINE __m128 score4(const float *q, const float *const row[4], size_t d)
{
    __m256 lo[4], hi[4];
    for (int r = 0; r < 4; r++) lo[r] = hi[r] = _mm256_setzero_ps();
    for (size_t c = 0; c < d; c += 16) {
        __m256 ql = _mm256_loadu_ps(q + c), qh = _mm256_loadu_ps(q + c + 8);
        for (int r = 0; r < 4; r++) {
            lo[r] = _mm256_fmadd_ps(_mm256_loadu_ps(row[r] + c), ql, lo[r]);
            hi[r] = _mm256_fmadd_ps(_mm256_loadu_ps(row[r] + c + 8), qh, hi[r]);
        }
    }
    for (int r = 0; r < 4; r++) lo[r] = _mm256_add_ps(lo[r], hi[r]);
    __m256 a = _mm256_add_ps(_mm256_permute2f128_ps(lo[0], lo[1], 0x20), _mm256_permute2f128_ps(lo[0], lo[1], 0x31));
    __m256 b = _mm256_add_ps(_mm256_permute2f128_ps(lo[2], lo[3], 0x20), _mm256_permute2f128_ps(lo[2], lo[3], 0x31));
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee)); /* 0 0 2 2 | 1 1 3 3 */
    s = _mm256_add_ps(_mm256_shuffle_ps(s, s, 0x88), _mm256_shuffle_ps(s, s, 0xdd));        /* 0 2 . . | 1 3 . . */
    return _mm_unpacklo_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* The rows of one query: scores, weights, m and l. Four rows at a time, selected ones packed together. */
KV_INLINE void weigh(const float *q, const float *k, size_t d, float scale, uint64_t rows, float p[KV_BLOCK_ROWS], float *m_out,
                     float *l_out)
{
    for (uint64_t left = rows; left;) {
        const float *row[4];
        int at[4], n = 0;
        float four[4];
        for (; n < 4 && left; left &= left - 1, n++) at[n] = __builtin_ctzll(left), row[n] = k + (size_t)at[n] * d;
        for (int i = n; i < 4; i++) row[i] = row[0];
        _mm_storeu_ps(four, _mm_mul_ps(score4(q, row, d), _mm_set1_ps(scale)));
        for (int i = 0; i < n; i++) p[at[i]] = four[i];
    }
    const __m256 none = _mm256_set1_ps(-kv_float(KV_INF_BITS));
    __m256 v[8], top = none, low = _mm256_setzero_ps(), high = low;
    for (int j = 0; j < 8; j++) {
        v[j] = _mm256_blendv_ps(none, _mm256_loadu_ps(p + 8 * j), kv_mask8((uint32_t)(rows >> 8 * j)));
        top = _mm256_max_ps(v[j], top); /* a NaN leaves top as it was */
    }
    float lanes[8], m = -kv_float(KV_INF_BITS);
    _mm256_storeu_ps(lanes, top);
    for (int i = 0; i < 8; i++) m = lanes[i] > m ? lanes[i] : m;
    m += 0.0f;
    for (int j = 0; j < 8; j++) {
        v[j] = _mm256_and_ps(kv_exp8(_mm256_sub_ps(v[j], _mm256_set1_ps(m))), kv_mask8((uint32_t)(rows >> 8 * j)));
        _mm256_storeu_ps(p + 8 * j, v[j]);
        if (j % 2) high = _mm256_add_ps(high, v[j]);
        else low = _mm256_add_ps(low, v[j]);
    }
    *m_out = m;
    *l_out = kv_canon(kv_tree8(low, high));
}

/* C vectors of eight channels from c on, N query rows. */
KV_INLINE void values(const enum kv_type type, const int N, const int C, const uint8_t *v, size_t d, size_t c, const uint64_t *rows,
                      bool equal, float p[TILE][KV_BLOCK_ROWS], float *u)
{
    uint64_t any = 0;
    __m256 acc[TILE][4];
    for (int i = 0; i < N; i++) {
        any |= rows[i];
        for (int j = 0; j < C; j++) acc[i][j] = _mm256_setzero_ps();
    }
    for (; any; any &= any - 1) {
        int r = __builtin_ctzll(any);
        for (int j = 0; j < C; j++) {
            __m256 x = kv_load8(type, v + (size_t)r * d * kv_width(type), c + 8 * (size_t)j);
            for (int i = 0; i < N; i++)
                if (equal || rows[i] >> r & 1) acc[i][j] = _mm256_fmadd_ps(_mm256_set1_ps(p[i][r]), x, acc[i][j]);
        }
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < C; j++) _mm256_storeu_ps(u + (size_t)i * d + c + 8 * (size_t)j, kv_canon8(acc[i][j]));
}

KV_INLINE void tile(const enum kv_type type, const int N, const struct kv_attention *a, int32_t i0, int32_t b, const float *k,
                    struct kv_states out)
{
    const size_t d = (size_t)a->d_head;
    float p[TILE][KV_BLOCK_ROWS] = {{0}}, *u = out.u + (size_t)i0 * d;
    uint64_t rows[TILE];
    bool equal = true;
    for (int i = 0; i < N; i++) {
        rows[i] = kv_visible_rows(a, i0 + i, b);
        equal &= rows[i] == rows[0];
        weigh(a->q + (size_t)(i0 + i) * a->q_stride, k, d, a->scale, rows[i], p[i], out.m + i0 + i, out.l + i0 + i);
    }
    for (size_t c = 0; c < d;) {
        if (c + 32 <= d) {
            if (equal) values(type, N, 4, a->v[b], d, c, rows, true, p, u);
            else values(type, N, 4, a->v[b], d, c, rows, false, p, u);
            c += 32;
        } else {
            values(type, N, 2, a->v[b], d, c, rows, false, p, u);
            c += 16;
        }
    }
}

KV_INLINE void attend(const enum kv_type type, const struct kv_attention *a, int32_t b, struct kv_states out)
{
    float k[KV_BLOCK_ROWS * MAX_D];
    uint64_t any = 0;
    for (int32_t i = 0; i < a->n_q; i++) any |= kv_visible_rows(a, i, b);
    convert(type, a->k[b], (size_t)a->d_head, any, k);
    for (int32_t i = 0; i < a->n_q;) {
        int32_t left = a->n_q - i;
        if (left >= 3 && left != 4) tile(type, 3, a, i, b, k, out), i += 3;
        else if (left >= 2) tile(type, 2, a, i, b, k, out), i += 2;
        else tile(type, 1, a, i, b, k, out), i += 1;
    }
}

void kv_avx2_attend_picks(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out)
{
    (void)ahead;
    for (int32_t j = 0; j < n; j++) {
        const size_t i = (size_t)pick[j].query;
        struct kv_attention one = *a;
        one.n_q = 1;
        one.q += i * a->q_stride;
        one.visible += i;
        if (a->support) one.support += i * (size_t)a->n_blocks;
        kv_avx2_attend_block(&one, pick[j].block, out[j]);
    }
}

void kv_avx2_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out)
{
    if (!a->k[b] || a->d_head % 16 || a->d_head > MAX_D) kv_scalar_attend_block(a, b, out);
    else if (a->row_type == KV_F16) attend(KV_F16, a, b, out);
    else if (a->row_type == KV_BF16) attend(KV_BF16, a, b, out);
    else attend(KV_F32, a, b, out);
}
