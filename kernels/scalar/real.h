/* real.h — fp32 and fp16 as bits: the primitives every canonical operation is defined with. No libm, no contraction. */
#ifndef KV_SCALAR_REAL_H
#define KV_SCALAR_REAL_H

#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#ifdef __CUDACC__
#define KV_REAL static inline __host__ __device__
#else
#define KV_REAL static inline
#endif

#define KV_LANES 16 /* k-strided lanes of every float product */
#define KV_NAN_BITS 0x7fc00000u
#define KV_INF_BITS 0x7f800000u
/* 2^-100: below this largest magnitude a block of activations counts as zero, since 127 / amax must stay finite. */
#define KV_TINY_BITS 0x0d800000u

KV_REAL uint32_t kv_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

KV_REAL float kv_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

KV_REAL uint64_t kv_bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

KV_REAL double kv_double(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* One NaN for all: which operand's payload survives depends on instruction forms, so no result carries one. */
KV_REAL float kv_canon(float x)
{
    return x != x ? kv_float(KV_NAN_BITS) : x;
}

/* a·b + c rounded once. Without the instruction: the product is exact in double, the sum is rounded to odd, and
 * 53 bits leave enough below 24 for the last rounding to be the only one that counts. */
KV_REAL float kv_fma(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    double p = (double)a * (double)b, s = p + (double)c;
    uint64_t u = kv_bits64(s);
    if ((u & 0x7ff0000000000000u) != 0x7ff0000000000000u && !(u & 1)) {
        double back = s - p, rest = (p - (s - back)) + ((double)c - back);
        if (rest != 0) s = kv_double((rest > 0) == (s > 0) ? u + 1 : u - 1);
    }
    return (float)s;
#endif
}

/* Correctly rounded everywhere. On x86 the builtin alone may call libm for negative arguments. */
KV_REAL float kv_sqrt(float x)
{
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x);
#elif defined(__x86_64__)
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
    return __builtin_sqrtf(x);
#endif
}

KV_REAL float kv_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 1023u;
    if (e == 31) return kv_float(sign | KV_INF_BITS | (m ? 0x400000u : 0) | m << 13);
    if (e) return kv_float(sign | (e + 112) << 23 | m << 13);
    return kv_float(sign | kv_bits((float)m * 0x1p-24f));
}

/* Nearest, ties to even; NaN becomes 0x7e00. */
KV_REAL uint16_t kv_to_f16(float x)
{
    uint32_t u = kv_bits(x), a = u & 0x7fffffffu;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (a > KV_INF_BITS) return 0x7e00;
    if (a >= 0x477ff000u) return sign | 0x7c00u;                 /* 65520 and more */
    if (a < 0x38800000u) {                                       /* below 2^-14: units of 2^-24 */
        float r = kv_float(a) * 0x1p24f + 0x1.8p23f;
        return sign | (uint16_t)(kv_bits(r) & 0x7ffu);
    }
    a += 0xfffu + (a >> 13 & 1u);
    return sign | (uint16_t)((a >> 13) - (112u << 10));
}

KV_REAL float kv_from_bf16(uint16_t h)
{
    return kv_float((uint32_t)h << 16);
}

/* Nearest, ties to even; NaN becomes 0x7fc0. */
KV_REAL uint16_t kv_to_bf16(float x)
{
    uint32_t u = kv_bits(x);
    if ((u & 0x7fffffffu) > KV_INF_BITS) return 0x7fc0;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* exp: n = x·log2 e rounded by the magic number, r = x − n·ln 2 in two steps, degree 6 by Horner, scaled by 2^n in two
 * exact halves so that only the last product rounds. Outside [−105, 89] the ends already give 0 and inf. */
#define KV_EXP_LOW (-105.0f)
#define KV_EXP_HIGH 89.0f
#define KV_EXP_MAGIC 0x1.8p23f
#define KV_EXP_LOG2E 0x1.715476p0f
#define KV_EXP_LN2_HI 0x1.63p-1f
#define KV_EXP_LN2_LO (-0x1.bd0106p-13f)
#define KV_EXP_C6 0x1.6d10fep-10f
#define KV_EXP_C5 0x1.120b64p-7f
#define KV_EXP_C4 0x1.55551ap-5f
#define KV_EXP_C3 0x1.5554dep-3f
#define KV_EXP_C2 0.5f

KV_REAL float kv_expf(float x)
{
    x = KV_EXP_LOW > x ? KV_EXP_LOW : x; /* NaN passes */
    x = KV_EXP_HIGH < x ? KV_EXP_HIGH : x;
    float t = kv_fma(x, KV_EXP_LOG2E, KV_EXP_MAGIC), n = t - KV_EXP_MAGIC;
    float r = kv_fma(n, -KV_EXP_LN2_HI, x);
    r = kv_fma(n, -KV_EXP_LN2_LO, r);
    float p = kv_fma(KV_EXP_C6, r, KV_EXP_C5);
    p = kv_fma(p, r, KV_EXP_C4);
    p = kv_fma(p, r, KV_EXP_C3);
    p = kv_fma(p, r, KV_EXP_C2);
    p = kv_fma(p, r, 1.0f);
    p = kv_fma(p, r, 1.0f);
    int32_t e = (int32_t)(kv_bits(t) - kv_bits(KV_EXP_MAGIC)), half = e >> 1;
    return p * kv_float((uint32_t)(half + 127) << 23) * kv_float((uint32_t)(e - half + 127) << 23);
}

/* The fixed tree: lane i takes lane i + 8, then + 4, + 2, + 1. */
KV_REAL float kv_tree(float lane[KV_LANES])
{
    for (int step = KV_LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) lane[i] += lane[i + step];
    return lane[0];
}

#endif
