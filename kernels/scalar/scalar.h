/* scalar.h — the defining operations that other tables fall back on for shapes their vectors do not fit. */
#ifndef KV_SCALAR_H
#define KV_SCALAR_H

#include "kernels/kernels.h"

extern const struct kv_kernels kv_scalar_kernels;

void kv_scalar_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out);
void kv_scalar_fold(int32_t n_q, int32_t d_head, struct kv_states into, struct kv_states other);
void kv_scalar_finish(int32_t n_q, int32_t d_head, struct kv_states s, float *out, size_t out_stride);

void kv_scalar_page_bounds(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *pages, int32_t n_pages, int32_t d, float *out,
                           size_t out_stride);

/* Rows of block b that query row i sees: bit p is row p of the block. */
uint64_t kv_visible_rows(const struct kv_attention *a, int32_t i, int32_t b);

#endif
