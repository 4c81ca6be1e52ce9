/* products.c — the definition of matrix products: quantised activations, exact integer block dots, 16-lane float dots. */
#include "kernels/scalar/pack.h"
#include "kernels/scalar/products.h"
#include "kernels/scalar/real.h"

/* One block of 32 or fewer values. A block with an Inf or NaN gets the scale NaN, so that every product that reads it is NaN. */
static void quantise_block(const float *x, int n, int8_t *q, float *d, int32_t *sum)
{
    uint32_t top = 0;
    for (int i = 0; i < n; i++) {
        uint32_t a = kv_bits(x[i]) & 0x7fffffffu;
        if (a > top) top = a;
    }
    memset(q, 0, 32);
    *sum = 0;
    *d = top >= KV_INF_BITS ? kv_float(KV_NAN_BITS) : 0;
    if (top >= KV_INF_BITS || top < KV_TINY_BITS) return;
    float amax = kv_float(top), inverse = 127.0f / amax;
    *d = amax / 127.0f;
    for (int i = 0; i < n; i++) {
        float rounded = x[i] * inverse + KV_EXP_MAGIC; /* |x·inverse| ≤ 127: the low bits are the integer */
        q[i] = (int8_t)(int32_t)(kv_bits(rounded) - kv_bits(KV_EXP_MAGIC));
        *sum += q[i];
    }
}

void kv_scalar_quantise(struct kv_act *a)
{
    int32_t blocks = (a->cols + 31) / 32;
    for (int32_t t = 0; t < a->n; t++)
        for (int32_t b = 0; b < blocks; b++) {
            size_t at = (size_t)t * (size_t)blocks + (size_t)b;
            int32_t n = a->cols - 32 * b < 32 ? a->cols - 32 * b : 32;
            quantise_block(a->f32 + (size_t)t * (size_t)a->cols + 32 * b, n, a->q + 32 * at, a->d + at, a->sum + at);
        }
}

static float scale_at(const struct kv_pack_form *f, const uint8_t *p, int row)
{
    if (f->half) {
        uint16_t h;
        memcpy(&h, p + 2 * row, 2);
        return kv_from_f16(h);
    }
    float x;
    memcpy(&x, p + 4 * row, 4);
    return x;
}

static int code_at(const struct kv_pack_form *f, const uint8_t *unit, int row, int i)
{
    int packed = f->nibble ? i % 16 : i, code = unit[packed / 4 * 64 + row * 4 + packed % 4];
    if (f->nibble) code = i < 16 ? code & 15 : code >> 4;
    return f->table ? kv_iq4_codes[code] : code;
}

static float quantised_dot(const struct kv_pack_form *f, const uint8_t *group, int row, int32_t cols, const int8_t *q, const float *d)
{
    float acc = 0;
    for (int32_t u = 0; u < cols / f->unit; u++) {
        struct kv_unit w = kv_unit_at(f, group, u);
        const int8_t *x = q + u * f->unit;
        float dx = d[u * f->unit / 32];
        int32_t dot = 0, sum = 0;
        for (int i = 0; i < f->unit; i++) {
            dot += (code_at(f, w.codes, row, i) - f->offset) * x[i];
            sum += x[i];
        }
        acc = kv_fma((float)dot, scale_at(f, w.scales, row) * dx, acc);
        if (f->minimum) acc = kv_fma((float)sum, scale_at(f, w.minima, row) * dx, acc);
    }
    return kv_canon(acc);
}

static float float_at(enum kv_type t, const void *row, int32_t i)
{
    if (t == KV_F32) return ((const float *)row)[i];
    uint16_t h = ((const uint16_t *)row)[i];
    return t == KV_F16 ? kv_from_f16(h) : kv_from_bf16(h);
}

float kv_scalar_float_dot(enum kv_type t, const void *row, const float *x, int32_t n)
{
    float lane[KV_LANES] = {0};
    for (int32_t i = 0; i < n; i++) lane[i % KV_LANES] = kv_fma(float_at(t, row, i), x[i], lane[i % KV_LANES]);
    return kv_canon(kv_tree(lane));
}

float kv_scalar_dot(const float *a, const float *b, int32_t n)
{
    return kv_scalar_float_dot(KV_F32, a, b, n);
}

void kv_scalar_matmul(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    const struct kv_pack_form *f = kv_pack_form(w->type);
    size_t cols = (size_t)w->cols, blocks = (cols + 31) / 32, row_bytes = kv_type_row_bytes(w->type, w->cols);
    for (int32_t r = row0; r < row1; r++)
        for (int32_t t = 0; t < x->n; t++) {
            float *out = y + (size_t)t * y_stride + r;
            if (f)
                *out = quantised_dot(f, kv_group_at(f, w, r / KV_GROUP_ROWS), r % KV_GROUP_ROWS, w->cols,
                                     x->q + (size_t)t * blocks * 32, x->d + (size_t)t * blocks);
            else
                *out = kv_scalar_float_dot(w->type, (const uint8_t *)w->data + (size_t)r * row_bytes,
                                           x->f32 + (size_t)t * cols, w->cols);
        }
}
