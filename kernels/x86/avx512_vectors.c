/* avx512_vectors.c — the elementwise operations, folding and bounds, and the AVX-512 table. */
#include "kernels/scalar/scalar.h"
#include "kernels/x86/avx512.h"
#include "kernels/x86/x86.h"

static void quantise(struct kv_act *a)
{
    size_t blocks = ((size_t)a->cols + 31) / 32;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512 magic = _mm512_set1_ps(KV_EXP_MAGIC);
    for (int32_t t = 0; t < a->n; t++)
        for (size_t b = 0; b < blocks; b++) {
            const float *x = a->f32 + (size_t)t * (size_t)a->cols + 32 * b;
            int32_t n = a->cols - 32 * (int32_t)b;
            size_t at = (size_t)t * blocks + b;
            __m512 lo = _mm512_maskz_loadu_ps(kv_first(n), x), hi = _mm512_maskz_loadu_ps(kv_first(n - 16), x + 16);
            __m512i m = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(lo), magnitude),
                                         _mm512_and_si512(_mm512_castps_si512(hi), magnitude));
            uint32_t top = _mm512_reduce_max_epu32(m);
            bool counts = top >= KV_TINY_BITS && top < KV_INF_BITS;
            float amax = kv_float(top);
            __m512 inverse = _mm512_set1_ps(counts ? 127.0f / amax : 0);
            a->d[at] = counts ? amax / 127.0f : top < KV_TINY_BITS ? 0 : kv_float(KV_NAN_BITS);
            __m512i zero = _mm512_castps_si512(magic);
            __m512i ql = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(lo, inverse), magic)), zero);
            __m512i qh = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(hi, inverse), magic)), zero);
            if (!counts) ql = qh = _mm512_setzero_si512();
            _mm_storeu_si128((__m128i *)(a->q + 32 * at), _mm512_cvtepi32_epi8(ql));
            _mm_storeu_si128((__m128i *)(a->q + 32 * at + 16), _mm512_cvtepi32_epi8(qh));
            a->sum[at] = _mm512_reduce_add_epi32(_mm512_add_epi32(ql, qh));
        }
}

static void matmul(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    if (kv_type_is_quantised(w->type)) kv_avx512_quantised(w, x, row0, row1, y, y_stride);
    else kv_avx512_float(w, x, row0, row1, y, y_stride);
}

static float dot(const float *a, const float *b, int32_t n)
{
    __m512 acc = _mm512_setzero_ps();
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) acc = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), acc);
    if (i < n) {
        __mmask16 m = kv_first(n - i);
        acc = _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(m, a + i), _mm512_maskz_loadu_ps(m, b + i), acc, m);
    }
    return kv_canon(kv_tree16(acc));
}

static void rmsnorm(const float *x, const float *weight, int32_t n, float eps, float *y)
{
    float root = kv_sqrt(dot(x, x, n) / (float)n + eps);
    __m512 inverse = _mm512_set1_ps(1.0f / root);
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 m = kv_first(n - i);
        __m512 v = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), inverse), _mm512_maskz_loadu_ps(m, weight + i));
        _mm512_mask_storeu_ps(y + i, m, kv_canon16(v));
    }
}

static void rope_normal(float *x, int32_t d_rot, const float *cos_sin)
{
    const __mmask16 odd = 0xaaaa;
    for (int32_t i = 0; i < d_rot; i += 16) {
        __mmask16 m = kv_first(d_rot - i);
        __m512 v = _mm512_maskz_loadu_ps(m, x + i), cs = _mm512_maskz_loadu_ps(m, cos_sin + i);
        __m512 c = _mm512_moveldup_ps(cs), s = _mm512_movehdup_ps(cs), swapped = _mm512_permute_ps(v, 0xb1);
        __m512 second = _mm512_mul_ps(_mm512_mask_blend_ps(odd, swapped, v), _mm512_mask_blend_ps(odd, s, c));
        __m512 out = _mm512_fmaddsub_ps(_mm512_mask_blend_ps(odd, v, swapped), cs, second);
        _mm512_mask_storeu_ps(x + i, m, kv_canon16(out));
    }
}

static void rope_neox(float *x, int32_t half, const float *cos_sin)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for (int32_t i = 0; i < half; i += 16) {
        __mmask16 m = kv_first(half - i);
        __m512 lo = _mm512_maskz_loadu_ps(kv_first(2 * (half - i)), cos_sin + 2 * i);
        __m512 hi = _mm512_maskz_loadu_ps(kv_first(2 * (half - i) - 16), cos_sin + 2 * i + 16);
        __m512 c = _mm512_permutex2var_ps(lo, even, hi), s = _mm512_permutex2var_ps(lo, _mm512_add_epi32(even, _mm512_set1_epi32(1)), hi);
        __m512 a = _mm512_maskz_loadu_ps(m, x + i), b = _mm512_maskz_loadu_ps(m, x + half + i);
        _mm512_mask_storeu_ps(x + i, m, kv_canon16(_mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s))));
        _mm512_mask_storeu_ps(x + half + i, m, kv_canon16(_mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c))));
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
    const __m512 one = _mm512_set1_ps(1.0f);
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 m = kv_first(n - i);
        __m512 g = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);
        __m512 minus = _mm512_xor_ps(g, _mm512_set1_ps(-0.0f));
        _mm512_mask_storeu_ps(out + i, m, kv_canon16(_mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(one, kv_exp16(minus))), u)));
    }
}

static void add(const float *a, const float *b, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 m = kv_first(n - i);
        _mm512_mask_storeu_ps(out + i, m, kv_canon16(_mm512_add_ps(_mm512_maskz_loadu_ps(m, a + i), _mm512_maskz_loadu_ps(m, b + i))));
    }
}

static void exponential(const float *x, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 m = kv_first(n - i);
        _mm512_mask_storeu_ps(out + i, m, kv_canon16(kv_exp16(_mm512_maskz_loadu_ps(m, x + i))));
    }
}

static void to_rows(enum kv_type row_type, const float *x, int32_t n, void *out)
{
    if (row_type == KV_F32) {
        memcpy(out, x, (size_t)n * 4);
        return;
    }
    const __m512i one = _mm512_set1_epi32(1), bias = _mm512_set1_epi32(0x7fff);
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 m = kv_first(n - i);
        __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        __m256i h;
        if (row_type == KV_F16) h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        else {
            __m512i u = _mm512_castps_si512(v), tie = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
            h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(bias, tie)), 16));
        }
        h = _mm256_mask_mov_epi16(h, nan, _mm256_set1_epi16(row_type == KV_F16 ? 0x7e00 : 0x7fc0));
        _mm256_mask_storeu_epi16((uint16_t *)out + i, m, h);
    }
}

static void from_rows(enum kv_type row_type, const void *x, int32_t n, float *out)
{
    if (row_type == KV_F32) {
        memcpy(out, x, (size_t)n * 4);
        return;
    }
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 m = kv_first(n - i);
        _mm512_mask_storeu_ps(out + i, m, row_type == KV_F16 ? kv_load16_first(KV_F16, m, x, (size_t)i) : kv_load16_first(KV_BF16, m, x, (size_t)i));
    }
}

/* One query row in registers: a masked store, or a load wider than the store before it, would hold up the next fold. d_head a multiple of 16. */
static void fold_row(int32_t d_head, struct kv_states into, struct kv_states other)
{
    float m1 = *into.m, m2 = *other.m, m = m1 > m2 ? m1 : m2;
    if (m == -kv_float(KV_INF_BITS) || *into.l == 0 || *other.l == 0) {
        kv_scalar_fold(1, d_head, into, other);
        return;
    }
    __m512 e = kv_exp16(_mm512_zextps128_ps512(_mm_setr_ps(m1 - m, m2 - m, 0, 0)));
    __m512 e1 = _mm512_broadcastss_ps(_mm512_castps512_ps128(e)), e2 = _mm512_broadcastss_ps(_mm_movehdup_ps(_mm512_castps512_ps128(e)));
    *into.m = m;
    *into.l = kv_canon(kv_fma(*other.l, _mm512_cvtss_f32(e2), *into.l * _mm512_cvtss_f32(e1)));
    for (int32_t c = 0; c < d_head; c += 16)
        _mm512_storeu_ps(into.u + c, kv_canon16(_mm512_fmadd_ps(_mm512_loadu_ps(other.u + c), e2, _mm512_mul_ps(_mm512_loadu_ps(into.u + c), e1))));
}

/* m and l of eight query rows at once, both sides' exponentials in one vector, then u row by row. Rows where an identity may be are left to the definition. */
static void fold(int32_t n_q, int32_t d_head, struct kv_states into, struct kv_states other)
{
    if (n_q == 1 && d_head % 16 == 0) {
        fold_row(d_head, into, other);
        return;
    }
    const __m512 none = _mm512_set1_ps(-kv_float(KV_INF_BITS)), zero = _mm512_setzero_ps();
    for (int32_t i0 = 0; i0 < n_q; i0 += 8) {
        __mmask16 here = kv_first(n_q - i0) & 0xff;
        __m512 m1 = _mm512_maskz_loadu_ps(here, into.m + i0), m2 = _mm512_maskz_loadu_ps(here, other.m + i0);
        __m512 l1 = _mm512_maskz_loadu_ps(here, into.l + i0), l2 = _mm512_maskz_loadu_ps(here, other.l + i0);
        __m512 m = _mm512_mask_mov_ps(m2, _mm512_cmp_ps_mask(m1, m2, _CMP_GT_OQ), m1);
        __mmask16 special = _mm512_cmp_ps_mask(m, none, _CMP_EQ_OQ) | _mm512_cmp_ps_mask(l1, zero, _CMP_EQ_OQ) | _mm512_cmp_ps_mask(l2, zero, _CMP_EQ_OQ);
        __m512 e1 = kv_exp16(_mm512_sub_ps(_mm512_shuffle_f32x4(m1, m2, 0x44), _mm512_shuffle_f32x4(m, m, 0x44))), e2 = _mm512_shuffle_f32x4(e1, e1, 0xee);
        float scale[16], *left = scale, *right = scale + 8;
        _mm512_storeu_ps(scale, e1);
        _mm512_mask_storeu_ps(into.m + i0, here & (__mmask16)~special, m);
        _mm512_mask_storeu_ps(into.l + i0, here & (__mmask16)~special, kv_canon16(_mm512_fmadd_ps(l2, e2, _mm512_mul_ps(l1, e1))));
        for (int32_t i = i0; i < n_q && i < i0 + 8; i++) {
            float *u1 = into.u + (size_t)i * (size_t)d_head, *u2 = other.u + (size_t)i * (size_t)d_head;
            if (special >> (i - i0) & 1) {
                kv_scalar_fold(1, d_head, (struct kv_states){into.m + i, into.l + i, u1}, (struct kv_states){other.m + i, other.l + i, u2});
                continue;
            }
            __m512 v1 = _mm512_set1_ps(left[i - i0]), v2 = _mm512_set1_ps(right[i - i0]);
            for (int32_t c = 0; c < d_head; c += 16) {
                __mmask16 k = kv_first(d_head - c);
                __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, u1 + c), v1);
                _mm512_mask_storeu_ps(u1 + c, k, kv_canon16(_mm512_fmadd_ps(_mm512_maskz_loadu_ps(k, u2 + c), v2, scaled)));
            }
        }
    }
}

static void finish(int32_t n_q, int32_t d_head, struct kv_states s, float *out, size_t out_stride)
{
    for (int32_t i = 0; i < n_q; i++) {
        __m512 l = _mm512_set1_ps(s.l[i]);
        for (int32_t c = 0; c < d_head; c += 16) {
            __mmask16 m = kv_first(d_head - c), some = s.l[i] == 0 ? 0 : m;
            __m512 u = _mm512_maskz_loadu_ps(m, s.u + (size_t)i * (size_t)d_head + c);
            _mm512_mask_storeu_ps(out + (size_t)i * out_stride + c, m, _mm512_maskz_mov_ps(some, kv_canon16(_mm512_div_ps(u, l))));
        }
    }
}

KV_INLINE void extrema_of(const enum kv_type type, const void *k, int32_t row0, int32_t row1, int32_t d, float *lo, float *hi)
{
    for (int32_t c = 0; c < d; c += 16) {
        __mmask16 m = kv_first(d - c);
        __m512 l = _mm512_maskz_loadu_ps(m, lo + c), h = _mm512_maskz_loadu_ps(m, hi + c);
        for (int32_t r = row0; r < row1; r++) {
            __m512 x = kv_load16_first(type, m, k, (size_t)r * (size_t)d + (size_t)c);
            l = _mm512_min_ps(x, l);
            h = _mm512_max_ps(x, h);
        }
        _mm512_mask_storeu_ps(lo + c, m, l);
        _mm512_mask_storeu_ps(hi + c, m, h);
    }
}

static void extrema(enum kv_type row_type, const void *k, int32_t row0, int32_t row1, int32_t d, float *lo, float *hi)
{
    if (row_type == KV_F32) extrema_of(KV_F32, k, row0, row1, d, lo, hi);
    else if (row_type == KV_F16) extrema_of(KV_F16, k, row0, row1, d, lo, hi);
    else extrema_of(KV_BF16, k, row0, row1, d, lo, hi);
}

const struct kv_kernels kv_avx512_kernels = {
    .isa = "avx512",
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
    .attend_block = kv_avx512_attend_block,
    .attend_picks = kv_avx512_attend_picks,
    .fold = fold,
    .finish = finish,
    .extrema = extrema,
    .page_bounds = kv_avx512_page_bounds,
    .nearest = kv_avx512_nearest,
    .nearest_two = kv_avx512_nearest_two,
    .column_dots = kv_avx512_column_dots,
    .outrank = kv_avx512_outrank,
    .row_dots = kv_avx512_row_dots,
    .row_sum = kv_avx512_row_sum,
};
