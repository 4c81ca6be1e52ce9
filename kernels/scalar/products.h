/* products.h — defining matrix products. */
#ifndef KV_SCALAR_PRODUCTS_H
#define KV_SCALAR_PRODUCTS_H

#include "kernels/kernels.h"

void kv_scalar_quantise(struct kv_act *a);
float kv_scalar_float_dot(enum kv_type t, const void *row, const float *x, int32_t n);
float kv_scalar_dot(const float *a, const float *b, int32_t n);
void kv_scalar_matmul(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride);

#endif
