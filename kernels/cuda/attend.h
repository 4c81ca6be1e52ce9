/* attend.h — the state of one attention block as a CUDA thread computes it, in phases between barriers. One thread block
 * serves one query row; the order of every sum is the canonical one, so the bits are the scalar definition's.
 * Plain C beside CUDA C++: a test runs the phases on the host, thread by thread. */
#ifndef KV_CUDA_ATTEND_H
#define KV_CUDA_ATTEND_H

#include "kernels/kernels.h"
#include "kernels/scalar/real.h"

#define KV_ATTEND_THREADS KV_BLOCK_ROWS /* thread r owns row r, then channels r, r + 64, … */

struct kv_attend_row { /* one query row's inputs */
    const float *q;
    const void *k, *v; /* [64][d] */
    int32_t d;
    enum kv_type row_type;
    float scale;
    uint64_t rows; /* those it sees */
};

struct kv_attend_shared {
    float p[KV_BLOCK_ROWS];
    float m;
};

KV_REAL float kv_attend_value(enum kv_type t, const void *rows, size_t i)
{
    if (t == KV_F32) return ((const float *)rows)[i];
    uint16_t h = ((const uint16_t *)rows)[i];
    return t == KV_F16 ? kv_from_f16(h) : kv_from_bf16(h);
}

KV_REAL void kv_attend_score(const struct kv_attend_row *a, int r, struct kv_attend_shared *s)
{
    float lane[KV_LANES] = {0};
    if (!(a->rows >> r & 1)) return;
    for (int32_t c = 0; c < a->d; c++)
        lane[c % KV_LANES] = kv_fma(kv_attend_value(a->row_type, a->k, (size_t)r * (size_t)a->d + (size_t)c), a->q[c], lane[c % KV_LANES]);
    s->p[r] = kv_canon(kv_tree(lane)) * a->scale;
}

KV_REAL void kv_attend_max(const struct kv_attend_row *a, int r, struct kv_attend_shared *s)
{
    float m = -kv_float(KV_INF_BITS);
    if (r) return;
    for (int i = 0; i < KV_BLOCK_ROWS; i++)
        if (a->rows >> i & 1) m = s->p[i] > m ? s->p[i] : m;
    s->m = m + 0.0f;
}

KV_REAL void kv_attend_weight(const struct kv_attend_row *a, int r, struct kv_attend_shared *s)
{
    if (a->rows >> r & 1) s->p[r] = kv_expf(s->p[r] - s->m);
}

KV_REAL void kv_attend_finish(const struct kv_attend_row *a, int r, const struct kv_attend_shared *s, float *m, float *l, float *u)
{
    if (!r) {
        float lane[KV_LANES] = {0};
        for (int i = 0; i < KV_BLOCK_ROWS; i++)
            if (a->rows >> i & 1) lane[i % KV_LANES] += s->p[i];
        *m = s->m;
        *l = kv_canon(kv_tree(lane));
    }
    for (int32_t c = r; c < a->d; c += KV_ATTEND_THREADS) {
        float sum = 0;
        for (int i = 0; i < KV_BLOCK_ROWS; i++)
            if (a->rows >> i & 1) sum = kv_fma(s->p[i], kv_attend_value(a->row_type, a->v, (size_t)i * (size_t)a->d + (size_t)c), sum);
        u[c] = kv_canon(sum);
    }
}

#endif
