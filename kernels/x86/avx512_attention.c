/* avx512_attention.c — the state of one block: up to four query rows share each pass over K and over V. */
#include "kernels/scalar/scalar.h"
#include "kernels/x86/avx512.h"

#define TILE 4

/* Into the second level: a block's K and V fill the first. */
KV_INLINE void fetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

/* s[i][row] for every group of four rows that some query row of the tile sees. ahead: what to fetch
 * meanwhile, as long as the block's K. */
KV_INLINE void scores(const enum kv_type type, const int N, const struct kv_attention *a, int32_t i0, const uint8_t *k,
                      uint64_t any, const uint8_t *ahead, float s[TILE][KV_BLOCK_ROWS])
{
    const size_t d = (size_t)a->d_head, row_bytes = d * kv_width(type);
    const float *q = a->q + (size_t)i0 * a->q_stride;
    const __m512 scale = _mm512_set1_ps(a->scale);
    for (int r16 = 0; r16 < KV_BLOCK_ROWS; r16 += 16) {
        if (!(any >> r16 & 0xffff)) continue;
        __m512 z[TILE][4];
        for (int r4 = 0; r4 < 4; r4++) {
            __m512 acc[TILE][4];
            for (int i = 0; i < N; i++)
                for (int r = 0; r < 4; r++) acc[i][r] = _mm512_setzero_ps();
            if (any >> (r16 + 4 * r4) & 0xf) {
                const uint8_t *rows = k + (size_t)(r16 + 4 * r4) * row_bytes;
                if (ahead) fetch(ahead + (size_t)(r16 + 4 * r4) * row_bytes, 4 * row_bytes);
                for (size_t c = 0; c < d; c += 16) {
                    __m512 qc[TILE];
                    for (int i = 0; i < N; i++) qc[i] = _mm512_loadu_ps(q + (size_t)i * a->q_stride + c);
                    for (int r = 0; r < 4; r++) {
                        __m512 kc = kv_load16(type, rows + (size_t)r * row_bytes, c);
                        for (int i = 0; i < N; i++) acc[i][r] = _mm512_fmadd_ps(kc, qc[i], acc[i][r]);
                    }
                }
            }
            for (int i = 0; i < N; i++) z[i][r4] = kv_tree_head(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        }
        for (int i = 0; i < N; i++)
            _mm512_storeu_ps(s[i] + r16, _mm512_mul_ps(kv_tree_tail(z[i][0], z[i][1], z[i][2], z[i][3]), scale));
    }
}

/* Scores to weights in place, and m and l. Rows outside the mask get weight 0 and are in no sum. */
KV_INLINE void weigh(uint64_t rows, float s[KV_BLOCK_ROWS], float *m_out, float *l_out)
{
    const __m512 none = _mm512_set1_ps(-kv_float(KV_INF_BITS));
    __m512 top = none, v[4], l = _mm512_setzero_ps();
    for (int j = 0; j < 4; j++) {
        v[j] = _mm512_mask_loadu_ps(none, (__mmask16)(rows >> 16 * j), s + 16 * j);
        top = _mm512_max_ps(v[j], top); /* a NaN leaves top as it was */
    }
    float m = _mm512_reduce_max_ps(top) + 0.0f;
    for (int j = 0; j < 4; j++) {
        v[j] = _mm512_maskz_mov_ps((__mmask16)(rows >> 16 * j), kv_exp16(_mm512_sub_ps(v[j], _mm512_set1_ps(m))));
        _mm512_storeu_ps(s + 16 * j, v[j]);
        l = _mm512_add_ps(l, v[j]);
    }
    *m_out = m;
    *l_out = kv_canon(kv_tree16(l));
}

/* C vectors of channels from c on, N query rows. equal: all of them see the same rows. ahead: what to fetch meanwhile. */
KV_INLINE void values(const enum kv_type type, const int N, const int C, const uint8_t *v, size_t d, size_t c, const uint64_t *rows,
                      uint64_t any, bool equal, const uint8_t *ahead, float p[TILE][KV_BLOCK_ROWS], float *u)
{
    __m512 acc[TILE][4];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < C; j++) acc[i][j] = _mm512_setzero_ps();
    for (uint64_t left = any; left; left &= left - 1) {
        int r = __builtin_ctzll(left);
        __m512 x[4];
        if (ahead) fetch(ahead + (size_t)(r * 16 * C) * kv_width(type), (size_t)(16 * C) * kv_width(type));
        for (int j = 0; j < C; j++) x[j] = kv_load16(type, v + (size_t)r * d * kv_width(type), c + 16 * (size_t)j);
        for (int i = 0; i < N; i++) {
            __m512 w = _mm512_set1_ps(p[i][r]);
            __mmask16 sees = equal ? 0xffff : rows[i] >> r & 1 ? 0xffff : 0;
            for (int j = 0; j < C; j++)
                acc[i][j] = equal ? _mm512_fmadd_ps(w, x[j], acc[i][j]) : _mm512_mask3_fmadd_ps(w, x[j], acc[i][j], sees);
        }
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < C; j++) _mm512_storeu_ps(u + (size_t)i * d + c + 16 * (size_t)j, kv_canon16(acc[i][j]));
}

KV_INLINE void tile(const enum kv_type type, const int N, const struct kv_attention *a, int32_t i0, int32_t b, struct kv_states out)
{
    const size_t d = (size_t)a->d_head;
    float s[TILE][KV_BLOCK_ROWS], *u = out.u + (size_t)i0 * d;
    uint64_t rows[TILE], any = 0;
    bool equal = true;
    for (int i = 0; i < N; i++) {
        rows[i] = kv_visible_rows(a, i0 + i, b);
        any |= rows[i];
        equal &= rows[i] == rows[0];
    }
    if (!any) {
        for (int i = 0; i < N; i++) out.m[i0 + i] = -kv_float(KV_INF_BITS), out.l[i0 + i] = 0;
        memset(u, 0, (size_t)N * d * sizeof *u);
        return;
    }
    if (a->support && (N == 1 || !equal)) { /* rows of their own: sharing a pass would compute the union for each */
        for (int i = 0; i < N; i++) kv_avx512_attend_selected(a, i0 + i, b, out);
        return;
    }
    const uint8_t *v = 0, *next = 0; /* the first tile of a dense block fetches for all */
    if (!a->support && !i0) v = a->v[b], next = b + 1 < a->n_blocks ? a->k[b + 1] : 0;
    scores(type, N, a, i0, a->k[b], any, v, s);
    for (int i = 0; i < N; i++) weigh(rows[i], s[i], out.m + i0 + i, out.l + i0 + i);
    for (size_t c = 0; c < d;) {
        const uint8_t *ahead = next ? next + c * KV_BLOCK_ROWS * kv_width(type) : 0;
        if (c + 64 <= d) {
            if (equal) values(type, N, 4, a->v[b], d, c, rows, any, true, ahead, s, u);
            else values(type, N, 4, a->v[b], d, c, rows, any, false, 0, s, u);
            c += 64;
        } else {
            if (equal) values(type, N, 1, a->v[b], d, c, rows, any, true, ahead, s, u);
            else values(type, N, 1, a->v[b], d, c, rows, any, false, 0, s, u);
            c += 16;
        }
    }
}

KV_INLINE void attend(const enum kv_type type, const struct kv_attention *a, int32_t b, struct kv_states out)
{
    for (int32_t i = 0; i < a->n_q;) {
        int32_t left = a->n_q - i, tiles = (left + TILE - 1) / TILE, n = (left + tiles - 1) / tiles;
        switch (n) {
        case 1: tile(type, 1, a, i, b, out); break;
        case 2: tile(type, 2, a, i, b, out); break;
        case 3: tile(type, 3, a, i, b, out); break;
        default: tile(type, 4, a, i, b, out); break;
        }
        i += n;
    }
}

void kv_avx512_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out)
{
    if (!a->k[b] || a->d_head % 16) kv_scalar_attend_block(a, b, out);
    else if (a->row_type == KV_F16) attend(KV_F16, a, b, out);
    else if (a->row_type == KV_BF16) attend(KV_BF16, a, b, out);
    else attend(KV_F32, a, b, out);
}
