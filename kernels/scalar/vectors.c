/* vectors.c — the definition of the elementwise operations, and the scalar table. */
#include "kernels/scalar/products.h"
#include "kernels/scalar/real.h"
#include "kernels/scalar/scalar.h"

static void scalar_rmsnorm(const float *x, const float *weight, int32_t n, float eps, float *y)
{
    float root = kv_sqrt(kv_scalar_dot(x, x, n) / (float)n + eps), inverse = 1.0f / root;
    for (int32_t i = 0; i < n; i++) y[i] = kv_canon(x[i] * inverse * weight[i]);
}

static void scalar_rope(float *x, int32_t heads, int32_t d_head, int32_t d_rot, const float *cos_sin,
                        enum kv_rope_layout layout)
{
    int32_t half = d_rot / 2;
    for (int32_t h = 0; h < heads; h++, x += d_head)
        for (int32_t i = 0; i < half; i++) {
            float *a = layout == KV_ROPE_NEOX ? x + i : x + 2 * i, *b = layout == KV_ROPE_NEOX ? a + half : a + 1;
            float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a0 = *a, b0 = *b;
            *a = kv_canon(kv_fma(a0, c, -(b0 * s)));
            *b = kv_canon(kv_fma(a0, s, b0 * c));
        }
}

static void scalar_swiglu(const float *gate, const float *up, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++) out[i] = kv_canon(gate[i] / (1.0f + kv_expf(-gate[i])) * up[i]);
}

static void scalar_add(const float *a, const float *b, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++) out[i] = kv_canon(a[i] + b[i]);
}

static void scalar_exp(const float *x, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++) out[i] = kv_canon(kv_expf(x[i]));
}

static void scalar_to_rows(enum kv_type row_type, const float *x, int32_t n, void *out)
{
    uint16_t *h = out;
    if (row_type == KV_F32) memcpy(out, x, (size_t)n * 4);
    else
        for (int32_t i = 0; i < n; i++) h[i] = row_type == KV_F16 ? kv_to_f16(x[i]) : kv_to_bf16(x[i]);
}

static void scalar_from_rows(enum kv_type row_type, const void *x, int32_t n, float *out)
{
    kv_dequantise_row(row_type, x, n, out);
}

static void scalar_extrema(enum kv_type row_type, const void *k, int32_t row0, int32_t row1, int32_t d, float *lo, float *hi)
{
    size_t width = row_type == KV_F32 ? 4 : 2;
    for (int32_t r = row0; r < row1; r++)
        for (int32_t c = 0; c < d; c++) {
            float x;
            kv_dequantise_row(row_type, (const uint8_t *)k + ((size_t)r * (size_t)d + (size_t)c) * width, 1, &x);
            lo[c] = x < lo[c] ? x : lo[c]; /* a NaN is passed over; of equal zeros the first stays */
            hi[c] = x > hi[c] ? x : hi[c];
        }
}

void kv_scalar_page_bounds(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *columns, int32_t n_blocks, int32_t d, float *out,
                           size_t out_stride)
{
    size_t column = KV_BLOCK_ROWS * kv_type_row_bytes(row_type, 1);
    for (int32_t b = 0; b < n_blocks; b++)
        for (int32_t i = 0; i < n_q; i++) {
            float *sum = out + (size_t)i * out_stride + (size_t)b * KV_BLOCK_ROWS, extremum[KV_BLOCK_ROWS];
            for (int32_t p = 0; p < KV_BLOCK_ROWS; p++) sum[p] = 0;
            for (int32_t c = 0; c < d; c++) {
                float x = q[(size_t)i * q_stride + (size_t)c];
                size_t at = 2 * ((size_t)b * (size_t)d + (size_t)c) + !(kv_bits(x) >> 31);
                kv_dequantise_row(row_type, (const uint8_t *)columns + at * column, KV_BLOCK_ROWS, extremum);
                for (int32_t p = 0; p < KV_BLOCK_ROWS; p++) sum[p] = kv_fma(x, extremum[p], sum[p]);
            }
            for (int32_t p = 0; p < KV_BLOCK_ROWS; p++) sum[p] = kv_canon(sum[p]);
        }
}

static void scalar_nearest_two(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label,
                               float *least, float *second)
{
    size_t stride = ((size_t)k + 15) / 16 * 16;
    for (int32_t i = 0; i < n; i++, x += x_stride) {
        label[i] = 0;
        least[i] = second[i] = kv_float(KV_INF_BITS);
        for (int32_t c = 0; c < k; c++) {
            float product = 0;
            for (int32_t j = 0; j < width; j++) product = kv_fma(x[j], centroids[(size_t)j * stride + (size_t)c], product);
            float distance = square[c] - 2 * product;
            if (distance < least[i]) second[i] = least[i], least[i] = distance, label[i] = c;
            else if (distance < second[i]) second[i] = distance;
        }
    }
}

static void scalar_nearest(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label)
{
    float least, second;
    for (int32_t i = 0; i < n; i++) scalar_nearest_two(x + (size_t)i * x_stride, 1, x_stride, centroids, square, k, width, label + i, &least, &second);
}

const struct kv_kernels kv_scalar_kernels = {
    .isa = "scalar",
    .quantise = kv_scalar_quantise,
    .matmul = kv_scalar_matmul,
    .dot = kv_scalar_dot,
    .rmsnorm = scalar_rmsnorm,
    .rope = scalar_rope,
    .swiglu = scalar_swiglu,
    .add = scalar_add,
    .exp = scalar_exp,
    .to_rows = scalar_to_rows,
    .from_rows = scalar_from_rows,
    .attend_block = kv_scalar_attend_block,
    .attend_picks = kv_scalar_attend_picks,
    .fold = kv_scalar_fold,
    .finish = kv_scalar_finish,
    .extrema = scalar_extrema,
    .page_bounds = kv_scalar_page_bounds,
    .nearest = scalar_nearest,
    .nearest_two = scalar_nearest_two,
    .column_dots = kv_scalar_column_dots,
    .outrank = kv_scalar_outrank,
    .row_dots = kv_scalar_row_dots,
    .row_sum = kv_scalar_row_sum,
};
