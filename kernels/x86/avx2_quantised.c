/* avx2_quantised.c — products with packed quantised weights: pairs of bytes by maddubs, whose 16-bit sums cannot saturate
 * because codes of 6 bits or less stay unsigned and codes of 8 bits take the sign trick. */
#include "kernels/scalar/pack.h"
#include "kernels/x86/avx2.h"

#define TOKEN_BLOCK 32 /* tokens that share one pass over the weights */
#define UNIT_CHUNK 128 /* units whose corrections are held on the stack; even */

struct chunk {
    const int8_t *q; /* first token's codes at the chunk's first unit */
    const float *d;
    size_t q_stride, d_stride;
    int32_t units;
    union {
        int32_t correction[TOKEN_BLOCK][UNIT_CHUNK]; /* −offset·Σq, where codes are used unsigned */
        float sum[TOKEN_BLOCK][UNIT_CHUNK];          /* Σq, where the type has minima */
    } of;
};

static void prepare(const struct kv_pack_form *f, const struct kv_act *x, int32_t t0, int32_t n, int32_t u0, int32_t units,
                    struct chunk *c)
{
    c->q_stride = ((size_t)x->cols + 31) / 32 * 32, c->d_stride = c->q_stride / 32;
    c->q = x->q + (size_t)t0 * c->q_stride + (size_t)u0 * (size_t)f->unit;
    c->d = x->d + (size_t)t0 * c->d_stride + (size_t)u0 * (size_t)f->unit / 32;
    c->units = units;
    int32_t offset = f->offset == 128 ? 0 : f->offset;
    for (int32_t t = 0; t < n; t++)
        for (int32_t u = 0; u < units; u++) {
            int32_t sum = 0;
            if (f->unit == 32) sum = x->sum[(size_t)(t0 + t) * c->d_stride + (size_t)(u0 + u)];
            else
                for (int i = 0; i < 16; i++) sum += c->q[(size_t)t * c->q_stride + (size_t)(16 * u + i)];
            if (f->minimum) c->of.sum[t][u] = (float)sum;
            else c->of.correction[t][u] = -offset * sum;
        }
}

KV_INLINE __m256 scales_at(bool half, const uint8_t *p, int h)
{
    if (half) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16 * h)));
    return _mm256_loadu_ps((const float *)(const void *)(p + 32 * h));
}

/* Four codes of eight rows times four activations, added to eight sums. wide: codes hold 8 bits, 128 added. */
KV_INLINE __m256i dot4(bool wide, __m256i sum, __m256i w, const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, 4);
    __m256i x = _mm256_set1_epi32(four);
    if (wide) {
        w = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
        x = _mm256_sign_epi8(x, w);
        w = _mm256_abs_epi8(w);
    }
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}

/* N tokens from t on, H halves of eight rows from half h0 on, one chunk of units. y: [N] rows of 16 at stride 16. */
KV_INLINE void tile(const struct kv_pack_form f, const int H, const int N, const uint8_t *group, int h0, const struct chunk *c,
                    int32_t t, float *y)
{
    const bool wide = f.table || (!f.nibble && f.offset == 128);
    const int8_t *q = c->q + (size_t)t * c->q_stride;
    const float *d = c->d + (size_t)t * c->d_stride;
    const __m256i low = _mm256_set1_epi8(15), table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)kv_iq4_codes));
    __m256 acc[2][4];
    for (int h = 0; h < H; h++)
        for (int i = 0; i < N; i++) acc[h][i] = _mm256_loadu_ps(y + 16 * i + 8 * (h0 + h));
    for (int32_t u = 0; u < c->units; u++) {
        __m256i dot[2][4];
        for (int h = 0; h < H; h++)
            for (int i = 0; i < N; i++) dot[h][i] = f.minimum ? _mm256_setzero_si256() : _mm256_set1_epi32(c->of.correction[t + i][u]);
        const struct kv_unit at = kv_unit_at(&f, group, u);
        const int8_t *qu = q + u * f.unit;
        for (int j = 0; j < (f.nibble ? 4 : f.unit / 4); j++)
            for (int h = 0; h < H; h++) {
                __m256i w = _mm256_loadu_si256((const __m256i *)(at.codes + 64 * j + 32 * (h0 + h))), high = w;
                if (f.nibble) {
                    high = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
                    w = _mm256_and_si256(w, low);
                    if (f.table) w = _mm256_shuffle_epi8(table, w), high = _mm256_shuffle_epi8(table, high);
                }
                for (int i = 0; i < N; i++) {
                    dot[h][i] = dot4(wide, dot[h][i], w, qu + (size_t)i * c->q_stride + 4 * j);
                    if (f.nibble) dot[h][i] = dot4(wide, dot[h][i], high, qu + (size_t)i * c->q_stride + 16 + 4 * j);
                }
            }
        for (int h = 0; h < H; h++) {
            __m256 scale = scales_at(f.half, at.scales, h0 + h), minimum = scale;
            if (f.minimum) minimum = scales_at(f.half, at.minima, h0 + h);
            for (int i = 0; i < N; i++) {
                __m256 dx = _mm256_set1_ps(d[(size_t)i * c->d_stride + (size_t)(f.unit == 32 ? u : u / 2)]);
                acc[h][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[h][i]), _mm256_mul_ps(scale, dx), acc[h][i]);
                if (f.minimum) acc[h][i] = _mm256_fmadd_ps(_mm256_set1_ps(c->of.sum[t + i][u]), _mm256_mul_ps(minimum, dx), acc[h][i]);
            }
        }
    }
    for (int h = 0; h < H; h++)
        for (int i = 0; i < N; i++) _mm256_storeu_ps(y + 16 * i + 8 * (h0 + h), acc[h][i]);
}

KV_INLINE void rows_of(const struct kv_pack_form f, const struct kv_mat *w, const struct chunk *c, int32_t n, int32_t u0,
                       int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    bool first = u0 == 0, last = u0 + c->units == w->cols / f.unit;
    for (int32_t r = row0; r < row1; r += KV_GROUP_ROWS) {
        const uint8_t *g = kv_group_at(&f, w, r / KV_GROUP_ROWS) + (size_t)(u0 / 2) * kv_pair_bytes(&f);
        size_t rows = row1 - r < KV_GROUP_ROWS ? (size_t)(row1 - r) : KV_GROUP_ROWS;
        for (int32_t t = 0; t < n;) {
            float part[4 * KV_GROUP_ROWS] = {0};
            int32_t tokens = n - t >= 4 ? 4 : 1;
            for (int32_t i = 0; !first && i < tokens; i++) memcpy(part + 16 * i, y + (size_t)(t + i) * y_stride + r, rows * 4);
            if (tokens == 4) tile(f, 1, 4, g, 0, c, t, part), tile(f, 1, 4, g, 1, c, t, part);
            else tile(f, 2, 1, g, 0, c, t, part);
            for (int32_t i = 0; i < tokens; i++) {
                for (int j = 0; last && j < KV_GROUP_ROWS; j++) part[16 * i + j] = kv_canon(part[16 * i + j]);
                memcpy(y + (size_t)(t + i) * y_stride + r, part + 16 * i, rows * 4);
            }
            t += tokens;
        }
    }
}

/* One instance of the loops for each shape of packed form; of the offset only "128 or not" matters here. */
#define FORM(name, unit, nibble, table, half, minimum, offset)                                                          \
    static void name(const struct kv_mat *w, const struct chunk *c, int32_t n, int32_t u0, int32_t row0, int32_t row1,  \
                     float *y, size_t y_stride)                                                                         \
    {                                                                                                                   \
        rows_of((struct kv_pack_form){unit, nibble, table, half, minimum, offset}, w, c, n, u0, row0, row1, y, y_stride); \
    }
FORM(wide_bytes, 32, false, false, true, false, 128)
FORM(bytes, 32, false, false, true, false, 16)
FORM(bytes_min, 32, false, false, true, true, 0)
FORM(bytes_min_f32, 32, false, false, false, true, 0)
FORM(bytes_16_f32, 16, false, false, false, false, 32)
FORM(nibbles, 32, true, false, true, false, 8)
FORM(nibbles_table, 32, true, true, true, false, 128)
FORM(nibbles_min, 32, true, false, true, true, 0)
FORM(nibbles_min_f32, 32, true, false, false, true, 0)

void kv_avx2_quantised(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    const struct kv_pack_form *f = kv_pack_form(w->type);
    struct chunk c;
    for (int32_t t0 = 0; t0 < x->n; t0 += TOKEN_BLOCK)
        for (int32_t u0 = 0, all = w->cols / f->unit; u0 < all; u0 += UNIT_CHUNK) {
            int32_t n = x->n - t0 < TOKEN_BLOCK ? x->n - t0 : TOKEN_BLOCK, units = all - u0 < UNIT_CHUNK ? all - u0 : UNIT_CHUNK;
            float *to = y + (size_t)t0 * y_stride;
            prepare(f, x, t0, n, u0, units, &c);
            switch (w->type) {
            case KV_Q8_0: wide_bytes(w, &c, n, u0, row0, row1, to, y_stride); break;
            case KV_Q5_0: bytes(w, &c, n, u0, row0, row1, to, y_stride); break;
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
