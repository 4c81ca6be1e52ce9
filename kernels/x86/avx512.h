/* avx512.h — vectors of 16 canonical lanes: loads of stored rows, exp, and the fixed tree over one vector and over sixteen. */
#ifndef KV_AVX512_H
#define KV_AVX512_H

#include <immintrin.h>

#include "kernels/kernels.h"
#include "kernels/scalar/real.h"

#define KV_INLINE static inline __attribute__((always_inline))

void kv_avx512_quantised(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride);
void kv_avx512_float(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride);
void kv_avx512_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out);
void kv_avx512_page_bounds(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *columns, int32_t n_blocks, int32_t d, float *out,
                           size_t out_stride);
void kv_avx512_nearest(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label);
void kv_avx512_nearest_two(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label,
                           float *least, float *second);
void kv_avx512_column_dots(enum kv_type row_type, const void *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                           int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride);
int32_t kv_avx512_outrank(const float *x, int32_t n, float least, uint64_t *mask);
void kv_avx512_row_dots(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out);
void kv_avx512_row_sum(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out);
void kv_avx512_attend_picks(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out);
/* State of query row i alone over its rows of block b, which may be none. d_head a multiple of 16. */
void kv_avx512_attend_selected(const struct kv_attention *a, int32_t i, int32_t b, struct kv_states out);

KV_INLINE __mmask16 kv_first(int32_t n)
{
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

KV_INLINE __m512 kv_canon16(__m512 x)
{
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_castsi512_ps(_mm512_set1_epi32((int)KV_NAN_BITS)));
}

KV_INLINE size_t kv_width(enum kv_type t)
{
    return t == KV_F32 ? 4 : 2;
}

/* 16 values of a float row, converted. */
KV_INLINE __m512 kv_load16(enum kv_type t, const void *row, size_t i)
{
    if (t == KV_F32) return _mm512_loadu_ps((const float *)row + i);
    __m256i h = _mm256_loadu_si256((const __m256i *)((const uint16_t *)row + i));
    if (t == KV_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* The lanes of m alone are read; the others are 0. */
KV_INLINE __m512 kv_load16_first(enum kv_type t, __mmask16 m, const void *row, size_t i)
{
    if (t == KV_F32) return _mm512_maskz_loadu_ps(m, (const float *)row + i);
    __m256i h = _mm256_maskz_loadu_epi16(m, (const uint16_t *)row + i);
    if (t == KV_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* kv_expf on 16 lanes; scalef rounds once, as the two halves of 2^n do. */
KV_INLINE __m512 kv_exp16(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(KV_EXP_MAGIC), one = _mm512_set1_ps(1.0f);
    x = _mm512_max_ps(_mm512_set1_ps(KV_EXP_LOW), x);
    x = _mm512_min_ps(_mm512_set1_ps(KV_EXP_HIGH), x);
    __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(KV_EXP_LOG2E), magic), magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-KV_EXP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-KV_EXP_LN2_LO), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(KV_EXP_C6), r, _mm512_set1_ps(KV_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KV_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KV_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(KV_EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    return _mm512_scalef_ps(p, n);
}

KV_INLINE float kv_tree16(__m512 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* One level of sixteen trees at once: two vectors become one that holds half of each. Adding is commutative, so lanes may
 * meet in either order. */
KV_INLINE __m512 kv_halve8(__m512 a, __m512 b) /* [a: i with i + 8 | b: likewise] */
{
    return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
}

KV_INLINE __m512 kv_halve4(__m512 a, __m512 b) /* quarters of a, b, a, b */
{
    return _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b),
                         _mm512_permutex2var_ps(a, _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27), b));
}

/* Four vectors to the first two levels of their trees: quarters hold four partial sums of a, c, b, d. */
KV_INLINE __m512 kv_tree_head(__m512 a, __m512 b, __m512 c, __m512 d)
{
    return kv_halve4(kv_halve8(a, b), kv_halve8(c, d));
}

/* The last two levels: z[j] from kv_tree_head over vectors 4j … 4j+3; lane i of the result is the tree over vector i. */
KV_INLINE __m512 kv_tree_tail(__m512 z0, __m512 z1, __m512 z2, __m512 z3)
{
    __m512 p = _mm512_add_ps(_mm512_shuffle_ps(z0, z1, 0x44), _mm512_shuffle_ps(z0, z1, 0xee));
    __m512 q = _mm512_add_ps(_mm512_shuffle_ps(z2, z3, 0x44), _mm512_shuffle_ps(z2, z3, 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xdd));
    /* lane 4·quarter + j is vector 4j + (0, 2, 1, 3)[quarter] */
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15), s);
}

#endif
