/* avx512_quantised.c — products with packed quantised weights: 16 rows a vector, VNNI block dots, tiles of one group × up to 8 tokens or two × up to 6. */
#include "kernels/scalar/pack.h"
#include "kernels/x86/avx512.h"

#define TOKEN_BLOCK 64  /* tokens that share one pass over the weights */
#define UNIT_CHUNK 128  /* units whose corrections are held on the stack; even */
#define TILE 8          /* tokens that share one stream of groups */
#define PAIR_TILE 6     /* tokens of two groups: 24 sums leave registers for weights and scales */

/* What one chunk of units needs of the activations. */
struct chunk {
    const int8_t *q;  /* first token's codes at the chunk's first unit */
    const float *d;
    size_t q_stride, d_stride;
    int32_t units;
    /* Codes are unsigned: −offset·Σq corrects the dot. Types with minima have offset 0 and need Σq as float instead. */
    union {
        int32_t correction[TOKEN_BLOCK][UNIT_CHUNK];
        float sum[TOKEN_BLOCK][UNIT_CHUNK];
    } of;
};

static void prepare(const struct kv_pack_form *f, const struct kv_act *x, int32_t t0, int32_t n, int32_t u0, int32_t units,
                    struct chunk *c)
{
    c->q_stride = ((size_t)x->cols + 31) / 32 * 32, c->d_stride = c->q_stride / 32;
    c->q = x->q + (size_t)t0 * c->q_stride + (size_t)u0 * (size_t)f->unit;
    c->d = x->d + (size_t)t0 * c->d_stride + (size_t)u0 * (size_t)f->unit / 32;
    c->units = units;
    const __m128i ones = _mm_set1_epi8(1);
    for (int32_t t = 0; t < n; t++)
        for (int32_t u = 0; u < units; u++) {
            int32_t sum;
            if (f->unit == 32) sum = x->sum[(size_t)(t0 + t) * c->d_stride + (size_t)(u0 + u)];
            else {
                __m128i s = _mm_dpbusd_epi32(_mm_setzero_si128(), ones, _mm_loadu_si128((const __m128i *)(c->q + (size_t)t * c->q_stride + 16 * u)));
                s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
                sum = _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
            }
            if (f->minimum) c->of.sum[t][u] = (float)sum;
            else c->of.correction[t][u] = -f->offset * sum;
        }
}

KV_INLINE __m512 scales_at(bool half, const uint8_t *p)
{
    return half ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)) : _mm512_loadu_ps(p);
}

KV_INLINE __m512i codes_at(const struct kv_pack_form f, const uint8_t *p, __m512i *high)
{
    const __m512i low = _mm512_set1_epi8(15), w = _mm512_loadu_si512(p);
    if (!f.nibble) return w;
    *high = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
    if (!f.table) return _mm512_and_si512(w, low);
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)kv_iq4_codes));
    *high = _mm512_shuffle_epi8(table, *high);
    return _mm512_shuffle_epi8(table, _mm512_and_si512(w, low));
}

KV_INLINE __m512i four_codes(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, 4);
    return _mm512_set1_epi32(four);
}

/* Where a tile reads and writes: G groups, N tokens from t on. */
struct place {
    const uint8_t *group[2];
    __mmask16 rows[2];
    int32_t t;
    bool first, last; /* first: no earlier chunk left a sum in y */
    float *y;
    size_t y_stride;
};

KV_INLINE void tile(const struct kv_pack_form f, const int G, const int N, const struct chunk *c, const struct place *p)
{
    const int8_t *q = c->q + (size_t)p->t * c->q_stride;
    const float *d = c->d + (size_t)p->t * c->d_stride;
    const int J = f.nibble ? 4 : f.unit / 4;
    const int D = G > 1 ? 1 : N == 1 ? 4 : N <= 4 ? 2 : 1; /* integer chains a sum, so that few still hide the latency */
    __m512 acc[2][TILE];
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
#pragma GCC unroll 2
        for (int g = 0; g < G; g++)
            acc[g][i] = p->first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(p->rows[g], p->y + (size_t)i * p->y_stride + KV_GROUP_ROWS * g);
    for (int32_t u = 0; u < c->units; u++) {
        __m512i dot[2][TILE][4];
#pragma GCC unroll 8
        for (int i = 0; i < N; i++)
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) {
                dot[g][i][0] = f.minimum ? _mm512_setzero_si512() : _mm512_set1_epi32(c->of.correction[p->t + i][u]);
                for (int k = 1; k < D; k++) dot[g][i][k] = _mm512_setzero_si512();
            }
        struct kv_unit at[2];
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) at[g] = kv_unit_at(&f, p->group[g], u);
        const int8_t *qu = q + u * f.unit;
#pragma GCC unroll 8
        for (int j = 0; j < J; j++) {
            __m512i w[2], high[2];
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) w[g] = codes_at(f, at[g].codes + 64 * j, &high[g]);
#pragma GCC unroll 8
            for (int i = 0; i < N; i++) {
                const int8_t *qi = qu + (size_t)i * c->q_stride + 4 * j;
                const int k = (f.nibble ? 2 * j : j) % D, l = (2 * j + 1) % D;
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) {
                    dot[g][i][k] = _mm512_dpbusd_epi32(dot[g][i][k], w[g], four_codes(qi));
                    if (f.nibble) dot[g][i][l] = _mm512_dpbusd_epi32(dot[g][i][l], high[g], four_codes(qi + 16));
                }
            }
        }
        __m512 scale[2], minimum[2];
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            scale[g] = scales_at(f.half, at[g].scales);
            if (f.minimum) minimum[g] = scales_at(f.half, at[g].minima);
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) {
            const __m512 dx = _mm512_set1_ps(d[(size_t)i * c->d_stride + (size_t)(f.unit == 32 ? u : u / 2)]);
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) {
                __m512i whole = dot[g][i][0];
                for (int k = 1; k < D; k++) whole = _mm512_add_epi32(whole, dot[g][i][k]);
                acc[g][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), _mm512_mul_ps(scale[g], dx), acc[g][i]);
                if (f.minimum) acc[g][i] = _mm512_fmadd_ps(_mm512_set1_ps(c->of.sum[p->t + i][u]), _mm512_mul_ps(minimum[g], dx), acc[g][i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
#pragma GCC unroll 2
        for (int g = 0; g < G; g++)
            _mm512_mask_storeu_ps(p->y + (size_t)i * p->y_stride + KV_GROUP_ROWS * g, p->rows[g], p->last ? kv_canon16(acc[g][i]) : acc[g][i]);
}

/* All rows against the n tokens of a chunk: few tokens read one stream of groups, many share each pair of groups. */
KV_INLINE void rows_of(const struct kv_pack_form f, const struct kv_mat *w, const struct chunk *c, int32_t n, int32_t u0,
                       int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    struct place p = {.first = u0 == 0, .last = u0 + c->units == w->cols / f.unit, .y_stride = y_stride};
    const size_t group_bytes = kv_group_bytes(&f, w->cols);
    const bool pairs = n > TILE;
    for (int32_t r = row0; r < row1; r += pairs ? 2 * KV_GROUP_ROWS : KV_GROUP_ROWS) {
        p.group[0] = kv_group_at(&f, w, r / KV_GROUP_ROWS) + (size_t)(u0 / 2) * kv_pair_bytes(&f);
        p.group[1] = r + KV_GROUP_ROWS < row1 ? p.group[0] + group_bytes : p.group[0];
        p.rows[0] = kv_first(row1 - r), p.rows[1] = kv_first(row1 - r - KV_GROUP_ROWS);
        for (int32_t left = n, m; left > 0; left -= m) {
            int32_t tiles = (left + PAIR_TILE - 1) / PAIR_TILE;
            m = pairs ? (left + tiles - 1) / tiles : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            p.t = n - left, p.y = y + (size_t)p.t * y_stride + r;
            switch (pairs ? -m : m) { /* more than 8 in tiles of at most 6, as equal as can be: none has less than 4 */
            case 1: tile(f, 1, 1, c, &p); break;
            case 2: tile(f, 1, 2, c, &p); break;
            case 4: tile(f, 1, 4, c, &p); break;
            case 8: tile(f, 1, 8, c, &p); break;
            case -4: tile(f, 2, 4, c, &p); break;
            case -5: tile(f, 2, 5, c, &p); break;
            default: tile(f, 2, 6, c, &p); break;
            }
        }
    }
}

/* One instance of the loops for each shape of packed form; the offset is data. */
#define FORM(name, unit, nibble, table, half, minimum)                                                                  \
    static void name(const struct kv_mat *w, const struct chunk *c, int32_t n, int32_t u0, int32_t row0, int32_t row1,  \
                     float *y, size_t y_stride)                                                                         \
    {                                                                                                                   \
        rows_of((struct kv_pack_form){unit, nibble, table, half, minimum, 0}, w, c, n, u0, row0, row1, y, y_stride);    \
    }
FORM(bytes, 32, false, false, true, false)
FORM(bytes_min, 32, false, false, true, true)
FORM(bytes_min_f32, 32, false, false, false, true)
FORM(bytes_16_f32, 16, false, false, false, false)
FORM(nibbles, 32, true, false, true, false)
FORM(nibbles_table, 32, true, true, true, false)
FORM(nibbles_min, 32, true, false, true, true)
FORM(nibbles_min_f32, 32, true, false, false, true)

void kv_avx512_quantised(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    const struct kv_pack_form *f = kv_pack_form(w->type);
    struct chunk c;
    for (int32_t t0 = 0; t0 < x->n; t0 += TOKEN_BLOCK)
        for (int32_t u0 = 0, all = w->cols / f->unit; u0 < all; u0 += UNIT_CHUNK) {
            int32_t n = x->n - t0 < TOKEN_BLOCK ? x->n - t0 : TOKEN_BLOCK, units = all - u0 < UNIT_CHUNK ? all - u0 : UNIT_CHUNK;
            float *to = y + (size_t)t0 * y_stride;
            prepare(f, x, t0, n, u0, units, &c);
            switch (w->type) {
            case KV_Q5_0: case KV_Q8_0: bytes(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_Q5_1: bytes_min(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_Q5_K: bytes_min_f32(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_Q6_K: bytes_16_f32(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_Q4_0: nibbles(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_IQ4_NL: nibbles_table(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_Q4_1: nibbles_min(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_Q4_K: nibbles_min_f32(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_F32: case KV_F16: case KV_BF16: break;
            }
        }
}
