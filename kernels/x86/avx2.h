/* avx2.h — the sixteen canonical lanes as two vectors of eight. */
#ifndef KV_AVX2_H
#define KV_AVX2_H

#include <immintrin.h>

#include "kernels/kernels.h"
#include "kernels/scalar/real.h"

#define KV_INLINE static inline __attribute__((always_inline))

void kv_avx2_quantised(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride);
void kv_avx2_float(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride);
void kv_avx2_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out);
void kv_avx2_attend_picks(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out);
void kv_avx2_column_dots(enum kv_type row_type, const void *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                         int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride);
int32_t kv_avx2_outrank(const float *x, int32_t n, float least, uint64_t *mask);
void kv_avx2_row_dots(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out);
void kv_avx2_row_sum(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out);

KV_INLINE size_t kv_width(enum kv_type t)
{
    return t == KV_F32 ? 4 : 2;
}

KV_INLINE __m256 kv_canon8(__m256 x)
{
    return _mm256_blendv_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)KV_NAN_BITS)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* 8 values of a float row, converted. */
KV_INLINE __m256 kv_load8(enum kv_type t, const void *row, size_t i)
{
    if (t == KV_F32) return _mm256_loadu_ps((const float *)row + i);
    __m128i h = _mm_loadu_si128((const __m128i *)((const uint16_t *)row + i));
    if (t == KV_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

KV_INLINE float kv_load1(enum kv_type t, const void *row, size_t i)
{
    if (t == KV_F32) return ((const float *)row)[i];
    uint16_t h = ((const uint16_t *)row)[i];
    return t == KV_F16 ? kv_from_f16(h) : kv_from_bf16(h);
}

KV_INLINE __m256 kv_exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(KV_EXP_MAGIC), one = _mm256_set1_ps(1.0f);
    x = _mm256_max_ps(_mm256_set1_ps(KV_EXP_LOW), x);
    x = _mm256_min_ps(_mm256_set1_ps(KV_EXP_HIGH), x);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(KV_EXP_LOG2E), magic), n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KV_EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KV_EXP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(KV_EXP_C6), r, _mm256_set1_ps(KV_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KV_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KV_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KV_EXP_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i e = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic)), half = _mm256_srai_epi32(e, 1);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), bias), 23)));
}

/* The fixed tree; its first level adds lanes 0–7 and 8–15. */
KV_INLINE float kv_tree8(__m256 low, __m256 high)
{
    __m256 a = _mm256_add_ps(low, high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Lane i all ones where bit i is set. */
KV_INLINE __m256 kv_mask8(uint32_t bits)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), bit), bit));
}

#endif
