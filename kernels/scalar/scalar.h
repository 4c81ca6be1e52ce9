/* scalar.h — the defining operations that other tables fall back on for shapes their vectors do not fit. */
#ifndef KV_SCALAR_H
#define KV_SCALAR_H

#include "kernels/kernels.h"

extern const struct kv_kernels kv_scalar_kernels;

void kv_scalar_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out);
void kv_scalar_attend_picks(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out);
void kv_scalar_fold(int32_t n_q, int32_t d_head, struct kv_states into, struct kv_states other);
void kv_scalar_finish(int32_t n_q, int32_t d_head, struct kv_states s, float *out, size_t out_stride);

void kv_scalar_page_bounds(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *columns, int32_t n_blocks, int32_t d, float *out,
                           size_t out_stride);

void kv_scalar_column_dots(enum kv_type row_type, const void *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                           int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride);
int32_t kv_scalar_outrank(const float *x, int32_t n, float least, uint64_t *mask);
void kv_scalar_row_dots(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out);
void kv_scalar_row_sum(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out);

/* Rows of block b that query row i sees: bit p is row p of the block. */
uint64_t kv_visible_rows(const struct kv_attention *a, int32_t i, int32_t b);

#endif
