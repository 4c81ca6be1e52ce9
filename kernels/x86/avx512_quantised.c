/* avx512_quantised.c — products with packed quantised weights: 16 rows a vector, VNNI block dots, tiles of up to 8 tokens. */
#include "kernels/scalar/pack.h"
#include "kernels/x86/avx512.h"

#define TOKEN_BLOCK 64  /* tokens that share one pass over the weights */
#define UNIT_CHUNK 128  /* units whose corrections are held on the stack; even */
#define TILE 8

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

/* N tokens from t on, 16 rows, one chunk of units from group on. first: no earlier chunk left a sum in y. */
KV_INLINE void tile(const struct kv_pack_form f, const int N, const uint8_t *group, const struct chunk *c, int32_t t, bool first,
                    bool last, __mmask16 rows, float *y, size_t y_stride)
{
    const int8_t *q = c->q + (size_t)t * c->q_stride;
    const float *d = c->d + (size_t)t * c->d_stride;
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)kv_iq4_codes));
    const int D = N == 1 ? 4 : N <= 4 ? 2 : 1; /* integer chains a token, so that few tokens still hide the latency */
    __m512 acc[TILE];
    for (int i = 0; i < N; i++) acc[i] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(rows, y + (size_t)i * y_stride);
    for (int32_t u = 0; u < c->units; u++) {
        __m512i dot[TILE][4];
        for (int i = 0; i < N; i++) {
            dot[i][0] = f.minimum ? _mm512_setzero_si512() : _mm512_set1_epi32(c->of.correction[t + i][u]);
            for (int k = 1; k < D; k++) dot[i][k] = _mm512_setzero_si512();
        }
        const struct kv_unit at = kv_unit_at(&f, group, u);
        const int8_t *qu = q + u * f.unit;
        for (int j = 0; j < (f.nibble ? 4 : f.unit / 4); j++) {
            __m512i w = _mm512_loadu_si512(at.codes + 64 * j), high;
            if (f.nibble) {
                high = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
                w = _mm512_and_si512(w, low);
                if (f.table) w = _mm512_shuffle_epi8(table, w), high = _mm512_shuffle_epi8(table, high);
            }
            for (int i = 0; i < N; i++) {
                int32_t four;
                memcpy(&four, qu + (size_t)i * c->q_stride + 4 * j, 4);
                int k = f.nibble ? 2 * j % D : j % D;
                dot[i][k] = _mm512_dpbusd_epi32(dot[i][k], w, _mm512_set1_epi32(four));
                if (!f.nibble) continue;
                memcpy(&four, qu + (size_t)i * c->q_stride + 16 + 4 * j, 4);
                k = (2 * j + 1) % D;
                dot[i][k] = _mm512_dpbusd_epi32(dot[i][k], high, _mm512_set1_epi32(four));
            }
        }
        __m512 scale = scales_at(f.half, at.scales), minimum = scale;
        if (f.minimum) minimum = scales_at(f.half, at.minima);
        for (int i = 0; i < N; i++) {
            __m512 dx = _mm512_set1_ps(d[(size_t)i * c->d_stride + (size_t)(f.unit == 32 ? u : u / 2)]);
            if (D == 4) dot[i][0] = _mm512_add_epi32(dot[i][0], dot[i][2]), dot[i][1] = _mm512_add_epi32(dot[i][1], dot[i][3]);
            if (D > 1) dot[i][0] = _mm512_add_epi32(dot[i][0], dot[i][1]);
            acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[i][0]), _mm512_mul_ps(scale, dx), acc[i]);
            if (f.minimum) acc[i] = _mm512_fmadd_ps(_mm512_set1_ps(c->of.sum[t + i][u]), _mm512_mul_ps(minimum, dx), acc[i]);
        }
    }
    for (int i = 0; i < N; i++)
        _mm512_mask_storeu_ps(y + (size_t)i * y_stride, rows, last ? kv_canon16(acc[i]) : acc[i]);
}

/* All rows against the n tokens of a chunk. */
KV_INLINE void rows_of(const struct kv_pack_form f, const struct kv_mat *w, const struct chunk *c, int32_t n, int32_t u0,
                       int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    bool first = u0 == 0, last = u0 + c->units == w->cols / f.unit;
    for (int32_t r = row0; r < row1; r += KV_GROUP_ROWS) {
        const uint8_t *g = kv_group_at(&f, w, r / KV_GROUP_ROWS) + (size_t)(u0 / 2) * kv_pair_bytes(&f);
        __mmask16 rows = kv_first(row1 - r);
        int32_t t = 0;
        for (; t + 8 <= n; t += 8) tile(f, 8, g, c, t, first, last, rows, y + (size_t)t * y_stride + r, y_stride);
        if (n - t >= 4) tile(f, 4, g, c, t, first, last, rows, y + (size_t)t * y_stride + r, y_stride), t += 4;
        if (n - t >= 2) tile(f, 2, g, c, t, first, last, rows, y + (size_t)t * y_stride + r, y_stride), t += 2;
        if (n - t >= 1) tile(f, 1, g, c, t, first, last, rows, y + (size_t)t * y_stride + r, y_stride);
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
