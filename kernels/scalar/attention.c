/* attention.c — the definition of attention states: one block, the fold of two, and the output. */
#include "kernels/scalar/products.h"
#include "kernels/scalar/real.h"
#include "kernels/scalar/scalar.h"

uint64_t kv_visible_rows(const struct kv_attention *a, int32_t i, int32_t b)
{
    int64_t n = (int64_t)a->visible[i] - (int64_t)b * KV_BLOCK_ROWS;
    uint64_t rows = n <= 0 ? 0 : n >= KV_BLOCK_ROWS ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
    return a->support ? rows & a->support[(size_t)i * (size_t)a->n_blocks + (size_t)b] : rows;
}

/* A row outside the mask is never read, let alone multiplied by 0: it may not have been written yet. */
static void attend_row(const struct kv_attention *a, int32_t i, uint64_t rows, const uint8_t *k, const uint8_t *v,
                       float *m_out, float *l_out, float *u)
{
    size_t d = (size_t)a->d_head, row_bytes = d * (a->row_type == KV_F32 ? 4u : 2u);
    float p[KV_BLOCK_ROWS], lane[KV_LANES] = {0}, m = -kv_float(KV_INF_BITS);
    for (int r = 0; r < KV_BLOCK_ROWS; r++) {
        if (!(rows >> r & 1)) continue;
        p[r] = kv_scalar_float_dot(a->row_type, k + (size_t)r * row_bytes, a->q + (size_t)i * a->q_stride, a->d_head) * a->scale;
        m = p[r] > m ? p[r] : m; /* the maximum of those that are numbers; a NaN shows in l and u */
    }
    m += 0.0f; /* one zero, not two */
    memset(u, 0, d * sizeof *u);
    for (int r = 0; r < KV_BLOCK_ROWS; r++) {
        if (!(rows >> r & 1)) continue;
        p[r] = kv_expf(p[r] - m);
        lane[r % KV_LANES] += p[r];
        for (size_t c = 0; c < d; c++) {
            float x;
            kv_dequantise_row(a->row_type, v + (size_t)r * row_bytes + c * (row_bytes / d), 1, &x);
            u[c] = kv_fma(p[r], x, u[c]);
        }
    }
    *m_out = m;
    *l_out = kv_canon(kv_tree(lane));
    for (size_t c = 0; c < d; c++) u[c] = kv_canon(u[c]);
}

void kv_scalar_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out)
{
    for (int32_t i = 0; i < a->n_q; i++) {
        uint64_t rows = a->k[b] ? kv_visible_rows(a, i, b) : 0;
        attend_row(a, i, rows, a->k[b], a->v[b], out.m + i, out.l + i, out.u + (size_t)i * (size_t)a->d_head);
    }
}

void kv_scalar_attend_picks(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out)
{
    (void)ahead;
    for (int32_t j = 0; j < n; j++) {
        const int32_t i = pick[j].query, b = pick[j].block;
        attend_row(a, i, kv_visible_rows(a, i, b), a->k[b], a->v[b], out[j].m, out[j].l, out[j].u);
    }
}

static int is_identity(float m, float l)
{
    return m == -kv_float(KV_INF_BITS) && l == 0;
}

void kv_scalar_fold(int32_t n_q, int32_t d_head, struct kv_states into, struct kv_states other)
{
    size_t d = (size_t)d_head;
    for (int32_t i = 0; i < n_q; i++, into.u += d, other.u += d) {
        float m1 = into.m[i], m2 = other.m[i];
        if (is_identity(m2, other.l[i])) continue;
        if (is_identity(m1, into.l[i])) {
            into.m[i] = m2, into.l[i] = other.l[i];
            memcpy(into.u, other.u, d * sizeof *into.u);
            continue;
        }
        float m = m1 > m2 ? m1 : m2, e1 = kv_expf(m1 - m), e2 = kv_expf(m2 - m);
        into.m[i] = m;
        into.l[i] = kv_canon(kv_fma(other.l[i], e2, into.l[i] * e1));
        for (size_t c = 0; c < d; c++) into.u[c] = kv_canon(kv_fma(other.u[c], e2, into.u[c] * e1));
    }
}

void kv_scalar_finish(int32_t n_q, int32_t d_head, struct kv_states s, float *out, size_t out_stride)
{
    for (int32_t i = 0; i < n_q; i++)
        for (size_t c = 0; c < (size_t)d_head; c++)
            out[(size_t)i * out_stride + c] = s.l[i] == 0 ? 0 : kv_canon(s.u[(size_t)i * (size_t)d_head + c] / s.l[i]);
}
