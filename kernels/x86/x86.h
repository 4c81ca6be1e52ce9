/* x86.h — the tables for x86-64 processors. */
#ifndef KV_X86_H
#define KV_X86_H

#include "kernels/kernels.h"

extern const struct kv_kernels kv_avx2_kernels;   /* AVX2, FMA, F16C */
extern const struct kv_kernels kv_avx512_kernels; /* AVX-512 F, BW, VL, DQ, VNNI */

#endif
