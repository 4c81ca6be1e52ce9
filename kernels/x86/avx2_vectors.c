/* avx2_vectors.c — the elementwise operations, folding and bounds, and the AVX2 table. Tails shorter than a vector go through
 * the scalar code, whose bits are the same. */
#include "kernels/scalar/scalar.h"
#include "kernels/x86/avx2.h"
#include "kernels/x86/x86.h"

static void quantise(struct kv_act *a)
{
    size_t blocks = ((size_t)a->cols + 31) / 32;
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256 magic = _mm256_set1_ps(KV_EXP_MAGIC);
    for (int32_t t = 0; t < a->n; t++)
        for (size_t b = 0; b < blocks; b++) {
            const float *x = a->f32 + (size_t)t * (size_t)a->cols + 32 * b;
            size_t n = (size_t)a->cols - 32 * b, at = (size_t)t * blocks + b;
            float padded[32] = {0};
            if (n < 32) memcpy(padded, x, n * 4), x = padded;
            __m256 v[4];
            __m256i m = _mm256_setzero_si256(), q[4];
            for (int j = 0; j < 4; j++) {
                v[j] = _mm256_loadu_ps(x + 8 * j);
                m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
            }
            __m128i h = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
            h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0x4e));
            uint32_t top = (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(h, _mm_shuffle_epi32(h, 0xb1)));
            bool counts = top >= KV_TINY_BITS && top < KV_INF_BITS;
            __m256 inverse = _mm256_set1_ps(counts ? 127.0f / kv_float(top) : 0);
            a->d[at] = counts ? kv_float(top) / 127.0f : top < KV_TINY_BITS ? 0 : kv_float(KV_NAN_BITS);
            __m256i sum = _mm256_setzero_si256();
            for (int j = 0; j < 4; j++) {
                q[j] = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(_mm256_mul_ps(v[j], inverse), magic)), _mm256_castps_si256(magic));
                if (!counts) q[j] = _mm256_setzero_si256();
                sum = _mm256_add_epi32(sum, q[j]);
            }
            __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
            packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256((__m256i *)(a->q + 32 * at), packed);
            h = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
            h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
            a->sum[at] = _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
        }
}

static void matmul(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    if (kv_type_is_quantised(w->type)) kv_avx2_quantised(w, x, row0, row1, y, y_stride);
    else kv_avx2_float(w, x, row0, row1, y, y_stride);
}

static float dot(const float *a, const float *b, int32_t n)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        low = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), low);
        high = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8), high);
    }
    float lane[KV_LANES];
    _mm256_storeu_ps(lane, low), _mm256_storeu_ps(lane + 8, high);
    for (; i < n; i++) lane[i % KV_LANES] = kv_fma(a[i], b[i], lane[i % KV_LANES]);
    return kv_canon(kv_tree8(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 8)));
}

static void rmsnorm(const float *x, const float *weight, int32_t n, float eps, float *y)
{
    float inverse = 1.0f / kv_sqrt(dot(x, x, n) / (float)n + eps);
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, kv_canon8(_mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse)), _mm256_loadu_ps(weight + i))));
    for (; i < n; i++) y[i] = kv_canon(x[i] * inverse * weight[i]);
}

static void rope_normal(float *x, int32_t d_rot, const float *cos_sin)
{
    int32_t i = 0;
    for (; i + 8 <= d_rot; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), cs = _mm256_loadu_ps(cos_sin + i), swapped = _mm256_permute_ps(v, 0xb1);
        __m256 c = _mm256_moveldup_ps(cs), s = _mm256_movehdup_ps(cs);
        __m256 second = _mm256_mul_ps(_mm256_blend_ps(swapped, v, 0xaa), _mm256_blend_ps(s, c, 0xaa));
        _mm256_storeu_ps(x + i, kv_canon8(_mm256_fmaddsub_ps(_mm256_blend_ps(v, swapped, 0xaa), cs, second)));
    }
    if (i < d_rot) kv_scalar_kernels.rope(x + i, 1, d_rot - i, d_rot - i, cos_sin + i, KV_ROPE_NORMAL);
}

static void rope_neox(float *x, int32_t half, const float *cos_sin)
{
    int32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 lo = _mm256_loadu_ps(cos_sin + 2 * i), hi = _mm256_loadu_ps(cos_sin + 2 * i + 8);
        __m256 even = _mm256_permute2f128_ps(lo, hi, 0x20), odd = _mm256_permute2f128_ps(lo, hi, 0x31);
        __m256 c = _mm256_shuffle_ps(even, odd, 0x88), s = _mm256_shuffle_ps(even, odd, 0xdd);
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        _mm256_storeu_ps(x + i, kv_canon8(_mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s))));
        _mm256_storeu_ps(x + half + i, kv_canon8(_mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c))));
    }
    for (; i < half; i++) {
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a = x[i], b = x[half + i];
        x[i] = kv_canon(kv_fma(a, c, -(b * s)));
        x[half + i] = kv_canon(kv_fma(a, s, b * c));
    }
}

static void rope(float *x, int32_t heads, int32_t d_head, int32_t d_rot, const float *cos_sin, enum kv_rope_layout layout)
{
    for (int32_t h = 0; h < heads; h++, x += d_head)
        if (layout == KV_ROPE_NEOX) rope_neox(x, d_rot / 2, cos_sin);
        else rope_normal(x, d_rot / 2 * 2, cos_sin);
}

static void swiglu(const float *gate, const float *up, int32_t n, float *out)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i), e = kv_exp8(_mm256_xor_ps(g, sign));
        _mm256_storeu_ps(out + i, kv_canon8(_mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), _mm256_loadu_ps(up + i))));
    }
    if (i < n) kv_scalar_kernels.swiglu(gate + i, up + i, n - i, out + i);
}

static void add(const float *a, const float *b, int32_t n, float *out)
{
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, kv_canon8(_mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i))));
    if (i < n) kv_scalar_kernels.add(a + i, b + i, n - i, out + i);
}

static void exponential(const float *x, int32_t n, float *out)
{
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, kv_canon8(kv_exp8(_mm256_loadu_ps(x + i))));
    if (i < n) kv_scalar_kernels.exp(x + i, n - i, out + i);
}

static void to_rows(enum kv_type row_type, const float *x, int32_t n, void *out)
{
    int32_t i = 0;
    uint16_t *h = out;
    for (; row_type == KV_F16 && i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
        __m128i narrow = _mm_packs_epi32(_mm_castps_si128(_mm256_castps256_ps128(nan)), _mm_castps_si128(_mm256_extractf128_ps(nan, 1)));
        __m128i rounded = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(h + i), _mm_blendv_epi8(rounded, _mm_set1_epi16(0x7e00), narrow));
    }
    size_t width = kv_width(row_type);
    if (i < n) kv_scalar_kernels.to_rows(row_type, x + i, n - i, (uint8_t *)out + (size_t)i * width);
}

static void from_rows(enum kv_type row_type, const void *x, int32_t n, float *out)
{
    int32_t i = 0;
    for (; row_type == KV_F16 && i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, kv_load8(KV_F16, x, (size_t)i));
    if (i < n) kv_scalar_kernels.from_rows(row_type, (const uint8_t *)x + (size_t)i * kv_width(row_type), n - i, out + i);
}

static void fold(int32_t n_q, int32_t d_head, struct kv_states into, struct kv_states other)
{
    for (int32_t i = 0; i < n_q; i++) {
        struct kv_states a = {into.m + i, into.l + i, into.u + (size_t)i * (size_t)d_head};
        struct kv_states b = {other.m + i, other.l + i, other.u + (size_t)i * (size_t)d_head};
        float m = *a.m > *b.m ? *a.m : *b.m;
        if (m == -kv_float(KV_INF_BITS) || *a.l == 0 || *b.l == 0) { /* an identity may be among them */
            kv_scalar_fold(1, d_head, a, b);
            continue;
        }
        float e1 = kv_expf(*a.m - m), e2 = kv_expf(*b.m - m);
        int32_t c = 0;
        *a.m = m;
        *a.l = kv_canon(kv_fma(*b.l, e2, *a.l * e1));
        for (; c + 8 <= d_head; c += 8) {
            __m256 left = _mm256_mul_ps(_mm256_loadu_ps(a.u + c), _mm256_set1_ps(e1));
            _mm256_storeu_ps(a.u + c, kv_canon8(_mm256_fmadd_ps(_mm256_loadu_ps(b.u + c), _mm256_set1_ps(e2), left)));
        }
        for (; c < d_head; c++) a.u[c] = kv_canon(kv_fma(b.u[c], e2, a.u[c] * e1));
    }
}

KV_INLINE void extrema_of(const enum kv_type type, const void *k, int32_t row0, int32_t row1, int32_t d, float *lo, float *hi)
{
    int32_t c = 0;
    for (; c + 8 <= d; c += 8) {
        __m256 l = _mm256_loadu_ps(lo + c), h = _mm256_loadu_ps(hi + c);
        for (int32_t r = row0; r < row1; r++) {
            __m256 x = kv_load8(type, k, (size_t)r * (size_t)d + (size_t)c);
            l = _mm256_min_ps(x, l);
            h = _mm256_max_ps(x, h);
        }
        _mm256_storeu_ps(lo + c, l);
        _mm256_storeu_ps(hi + c, h);
    }
    for (; c < d; c++)
        for (int32_t r = row0; r < row1; r++) {
            float x = kv_load1(type, k, (size_t)r * (size_t)d + (size_t)c);
            lo[c] = x < lo[c] ? x : lo[c];
            hi[c] = x > hi[c] ? x : hi[c];
        }
}

static void extrema(enum kv_type row_type, const void *k, int32_t row0, int32_t row1, int32_t d, float *lo, float *hi)
{
    if (row_type == KV_F32) extrema_of(KV_F32, k, row0, row1, d, lo, hi);
    else if (row_type == KV_F16) extrema_of(KV_F16, k, row0, row1, d, lo, hi);
    else extrema_of(KV_BF16, k, row0, row1, d, lo, hi);
}

/* Half a block of pages and one query row. */
KV_INLINE void half_bounds(const enum kv_type type, const float *q, const uint8_t *block, int32_t d, float *out)
{
    const size_t column = KV_BLOCK_ROWS * kv_width(type);
    __m256 acc[4];
    for (int v = 0; v < 4; v++) acc[v] = _mm256_setzero_ps();
    for (int32_t c = 0; c < d; c++, block += 2 * column) {
        const uint8_t *extremum = block + (kv_bits(q[c]) >> 31 ? 0 : column);
        __m256 x = _mm256_set1_ps(q[c]);
        for (int v = 0; v < 4; v++) acc[v] = _mm256_fmadd_ps(x, kv_load8(type, extremum, 8 * (size_t)v), acc[v]);
    }
    for (int v = 0; v < 4; v++) _mm256_storeu_ps(out + 8 * v, kv_canon8(acc[v]));
}

KV_INLINE void bounds(const enum kv_type type, const float *q, int32_t n_q, size_t q_stride, const uint8_t *columns, int32_t n_blocks, int32_t d, float *out, size_t out_stride)
{
    const size_t half = KV_BLOCK_ROWS / 2;
    for (int32_t b = 0; b < n_blocks; b++, out += KV_BLOCK_ROWS, columns += 2 * (size_t)d * KV_BLOCK_ROWS * kv_width(type))
        for (size_t i = 0; i < (size_t)n_q; i++)
            for (size_t h = 0; h < 2; h++) half_bounds(type, q + i * q_stride, columns + h * half * kv_width(type), d, out + i * out_stride + h * half);
}

static void page_bounds(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *columns, int32_t n_blocks, int32_t d, float *out,
                        size_t out_stride)
{
    if (row_type == KV_F16) bounds(KV_F16, q, n_q, q_stride, columns, n_blocks, d, out, out_stride);
    else if (row_type == KV_BF16) bounds(KV_BF16, q, n_q, q_stride, columns, n_blocks, d, out, out_stride);
    else bounds(KV_F32, q, n_q, q_stride, columns, n_blocks, d, out, out_stride);
}

static void nearest_two(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label,
                        float *least, float *second)
{
    size_t stride = ((size_t)k + 15) / 16 * 16;
    for (int32_t i = 0; i < n; i++, x += x_stride) {
        label[i] = 0;
        least[i] = second[i] = kv_float(KV_INF_BITS);
        for (size_t c = 0; c < stride; c += 16) {
            __m256 a = _mm256_setzero_ps(), b = a;
            float product[16];
            for (int32_t j = 0; j < width; j++) {
                __m256 v = _mm256_set1_ps(x[j]);
                a = _mm256_fmadd_ps(v, _mm256_loadu_ps(centroids + (size_t)j * stride + c), a);
                b = _mm256_fmadd_ps(v, _mm256_loadu_ps(centroids + (size_t)j * stride + c + 8), b);
            }
            _mm256_storeu_ps(product, a), _mm256_storeu_ps(product + 8, b);
            for (size_t l = 0; l < 16 && c + l < (size_t)k; l++) {
                float distance = square[c + l] - 2 * product[l];
                if (distance < least[i]) second[i] = least[i], least[i] = distance, label[i] = (int32_t)(c + l);
                else if (distance < second[i]) second[i] = distance;
            }
        }
    }
}

static void nearest(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label)
{
    float least, second;
    for (int32_t i = 0; i < n; i++) nearest_two(x + (size_t)i * x_stride, 1, x_stride, centroids, square, k, width, label + i, &least, &second);
}

const struct kv_kernels kv_avx2_kernels = {
    .isa = "avx2",
    .quantise = quantise,
    .matmul = matmul,
    .dot = dot,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .swiglu = swiglu,
    .add = add,
    .exp = exponential,
    .to_rows = to_rows,
    .from_rows = from_rows,
    .attend_block = kv_avx2_attend_block,
    .attend_picks = kv_avx2_attend_picks,
    .fold = fold,
    .finish = kv_scalar_finish,
    .extrema = extrema,
    .page_bounds = page_bounds,
    .nearest = nearest,
    .nearest_two = nearest_two,
    .column_dots = kv_avx2_column_dots,
    .outrank = kv_avx2_outrank,
    .row_dots = kv_avx2_row_dots,
    .row_sum = kv_avx2_row_sum,
};
