/* test_kernels_oracle.c — the definition against double precision: equal bits of a wrong formula would still be wrong. */
#include <check.h>
#include <math.h>

#include "tests/unit/kernels/kernels_random.h"

static const enum kv_type all_types[] = {KV_F32, KV_F16, KV_BF16, KV_Q4_0, KV_Q4_1, KV_Q5_0, KV_Q5_1,
                                         KV_Q8_0, KV_Q4_K, KV_Q5_K, KV_Q6_K, KV_IQ4_NL};
#define N_TYPES ((int)(sizeof all_types / sizeof *all_types))

/* One block of each type written by hand: scale 0.5 (and minimum 0.25 where there is one), values known. */
START_TEST(blocks_decode_to_known_values)
{
    float out[256];
    uint8_t b[256] = {0};
    const uint16_t half = kv_to_f16(0.5f), quarter = kv_to_f16(0.25f);
    memcpy(b, &half, 2), b[2] = 0xf1; /* value 0 is code 1, value 16 code 15 */
    kv_dequantise_row(KV_Q4_0, b, 32, out), ck_assert(out[0] == -3.5f && out[16] == 3.5f && out[1] == -4);
    kv_dequantise_row(KV_IQ4_NL, b, 32, out), ck_assert(out[0] == -52 && out[16] == 56.5f && out[1] == -63.5f);
    b[3] = 0x80;
    kv_dequantise_row(KV_Q8_0, b, 32, out), ck_assert(out[0] == -7.5f && out[1] == -64 && out[2] == 0);
    memset(b, 0, sizeof b), memcpy(b, &half, 2), memcpy(b + 2, &quarter, 2), b[4] = 0xf1;
    kv_dequantise_row(KV_Q4_1, b, 32, out), ck_assert(out[0] == 0.75f && out[16] == 7.75f && out[1] == 0.25f);
    memset(b, 0, sizeof b), memcpy(b, &half, 2), b[2] = 1, b[4] = 1, b[6] = 0x21; /* fifth bits of values 0 and 16 */
    kv_dequantise_row(KV_Q5_0, b, 32, out), ck_assert(out[0] == 0.5f && out[16] == 1 && out[1] == -8);
    memset(b, 0, sizeof b), memcpy(b, &half, 2), memcpy(b + 2, &quarter, 2), b[4] = 1, b[8] = 0x21;
    kv_dequantise_row(KV_Q5_1, b, 32, out), ck_assert(out[0] == 8.75f && out[16] == 1.25f && out[1] == 0.25f);
    /* Q4_K: sub-block 0 has scale 3 and minimum 2, sub-block 5 scale 1 | 2 << 4 and minimum 4 | 1 << 4. */
    memset(b, 0, sizeof b), memcpy(b, &half, 2), memcpy(b + 2, &quarter, 2);
    b[4] = 3, b[8] = 2, b[4 + 1] = 2 << 6, b[4 + 5] = 1 << 6, b[4 + 9] = 0x41;
    b[16] = 0x05, b[16 + 64 + 7] = 0x90;
    kv_dequantise_row(KV_Q4_K, b, 256, out);
    ck_assert(out[0] == 0.5f * 3 * 5 - 0.5f && out[1] == -0.5f);
    ck_assert(out[5 * 32 + 7] == 0.5f * 33 * 9 - 0.25f * 20 && out[5 * 32] == -5);
    /* Q5_K: the same scales; high bits of value 0 of sub-blocks 0 and 5. */
    memset(b + 16, 0, 240), b[16] = 1 | 1 << 5, b[48] = 0x05;
    kv_dequantise_row(KV_Q5_K, b, 256, out);
    ck_assert(out[0] == 0.5f * 3 * 21 - 0.5f && out[5 * 32] == 0.5f * 33 * 16 - 5);
    /* Q6_K: value 0 (scale 2), value 96 + 20 (scale index 7, −3), value 128 + 33 (index 10, 1). */
    memset(b, 0, sizeof b), memcpy(b + 208, &half, 2);
    b[192] = 2, b[192 + 7] = (uint8_t)-3, b[192 + 10] = 1;
    b[0] = 0x07, b[128] = 2;              /* 7 + 32 */
    b[32 + 20] = 0x50, b[128 + 20] = 1 << 6; /* 5 + 16 */
    b[64 + 33] = 0x0a, b[160 + 1] = 3 << 2;  /* 10 + 48 */
    kv_dequantise_row(KV_Q6_K, b, 256, out);
    ck_assert(out[0] == 7.0f && out[116] == 0.5f * -3 * (21 - 32) && out[161] == 0.5f * (58 - 32));
}
END_TEST

/* Products against doubles over the dequantised row; activations in int8 cost half a step of 1/127 of their block's largest. */
START_TEST(products_are_right)
{
    enum { ROWS = 24, COLS = 512, N = 3 };
    struct rng r = {(uint64_t)_i, 0};
    enum kv_type type = all_types[_i];
    bool quantised = kv_type_is_quantised(type);
    size_t row_bytes = kv_type_row_bytes(type, COLS);
    uint8_t *file = quantised ? rng_quantised(&r, type, row_bytes * ROWS) : rng_rows(&r, type, ROWS * COLS);
    void *packed = aligned_alloc(64, kv_mat_packed_bytes(type, ROWS, COLS) + 64);
    float *x = rng_floats(&r, N * COLS), y[N * ROWS], w[COLS];
    struct kv_act a = act_make(kv_kernels(), x, N, COLS);
    struct kv_mat mat;
    kv_mat_pack(&mat, type, file, ROWS, COLS, packed);
    kv_kernels()->matmul(&mat, &a, 0, ROWS, y, ROWS);
    for (int t = 0; t < N; t++)
        for (int row = 0; row < ROWS; row++) {
            double want = 0, size = 0, slack = 0;
            kv_dequantise_row(type, file + (size_t)row * row_bytes, COLS, w);
            for (int c = 0; c < COLS; c++) {
                want += (double)w[c] * (double)x[t * COLS + c];
                size += fabs((double)w[c] * (double)x[t * COLS + c]);
                slack += fabs((double)w[c]) * (double)a.d[(t * COLS + c) / 32] * 0.5001;
            }
            ck_assert_double_le(fabs((double)y[t * ROWS + row] - want), 2e-6 * size + (quantised ? slack : 0));
        }
    act_free(&a);
    free(file), free(packed), free(x);
}
END_TEST

START_TEST(elementary_functions_are_right)
{
    double worst = 0;
    for (float x = -87.3f; x < 88.7f; x += 0.00037f) worst = fmax(worst, fabs((double)kv_expf(x) / exp((double)x) - 1));
    ck_assert_double_le(worst, 1.2e-7);
    ck_assert(kv_expf(0) == 1 && kv_expf(-__builtin_inff()) == 0 && kv_expf(-104.5f) == 0 && kv_expf(-103.0f) > 0);
    ck_assert(isinf(kv_expf(89.5f)) && isinf(kv_expf(__builtin_inff())) && isnan(kv_expf(__builtin_nanf(""))));
    for (double x = 1e-6; x < 1e9; x *= 1.37) ck_assert_double_le(fabs(kv_log(x) - log(x)), 4e-16 * fmax(1, fabs(log(x))));
    for (double e = -1; e < 1; e += 0.013) ck_assert_double_le(fabs(kv_pow(500000, e) / pow(500000, e) - 1), 5e-15);
    double inverse[] = {1, 0.3, 1e-4};
    float table[6];
    for (int64_t p = 0; p < 1000000; p += 977) {
        kv_rope_table(inverse, 6, p, 1, 1.5f, table);
        for (int i = 0; i < 3; i++) {
            ck_assert_double_le(fabs((double)table[2 * i] - 1.5 * cos((double)p * inverse[i])), 1e-7);
            ck_assert_double_le(fabs((double)table[2 * i + 1] - 1.5 * sin((double)p * inverse[i])), 1e-7);
        }
    }
}
END_TEST

START_TEST(fma_without_the_instruction_is_exact)
{
    struct rng r = {9, 0};
    for (int i = 0; i < 2000000; i++) {
        float a = kv_float(rng_u32(&r)), b = kv_float(rng_u32(&r)), c = kv_float(rng_u32(&r));
        if (i % 2) c = kv_float((kv_bits(-a * b) & 0xffff0000u) | (rng_u32(&r) & 0xffffu)); /* near cancellation */
        ck_assert_uint_eq(kv_bits(kv_canon(kv_fma(a, b, c))), kv_bits(kv_canon(fmaf(a, b, c))));
    }
}
END_TEST

START_TEST(elementwise_is_right)
{
    struct rng r = {3, 0};
    enum { N = 100 };
    float *x = rng_floats(&r, N), *y = rng_floats(&r, N), out[N];
    double sum = 0;
    for (int i = 0; i < N; i++) sum += (double)x[i] * (double)x[i];
    kv_kernels()->rmsnorm(x, y, N, 1e-5f, out);
    for (int i = 0; i < N; i++) {
        double want = (double)x[i] * (double)y[i] / sqrt(sum / N + 1e-5);
        ck_assert_double_le(fabs((double)out[i] - want), 1e-6 * fabs(want));
    }
    kv_kernels()->swiglu(x, y, N, out);
    for (int i = 0; i < N; i++) {
        double want = (double)x[i] / (1 + exp(-(double)x[i])) * (double)y[i];
        ck_assert_double_le(fabs((double)out[i] - want), 1e-6 * fabs(want));
    }
    for (int layout = 0; layout < 2; layout++) {
        float cs[16], v[20];
        for (int i = 0; i < 8; i++) cs[2 * i] = cosf((float)i), cs[2 * i + 1] = sinf((float)i);
        memcpy(v, x, sizeof v);
        kv_kernels()->rope(v, 1, 20, 16, cs, (enum kv_rope_layout)layout);
        for (int i = 0; i < 8; i++) {
            int a = layout == KV_ROPE_NEOX ? i : 2 * i, b = layout == KV_ROPE_NEOX ? i + 8 : a + 1;
            ck_assert_double_le(fabs(v[a] - (x[a] * cos(i) - x[b] * sin(i))), 2e-6);
            ck_assert_double_le(fabs(v[b] - (x[a] * sin(i) + x[b] * cos(i))), 2e-6);
        }
        ck_assert_mem_eq(v + 16, x + 16, 16);
    }
    free(x), free(y);
}
END_TEST

START_TEST(attention_is_right)
{
    enum { D = 64, BLOCKS = 5, Q = 3 };
    struct rng r = {4, 0};
    float *k[BLOCKS], *v[BLOCKS], *q = rng_floats(&r, Q * D), state[Q * (D + 2)], out[Q * D];
    const void *kp[BLOCKS], *vp[BLOCKS];
    const int32_t visible[Q] = {300, 301, 64};
    for (int b = 0; b < BLOCKS; b++) kp[b] = k[b] = rng_floats(&r, 64 * D), vp[b] = v[b] = rng_floats(&r, 64 * D);
    struct kv_attention a = {D, Q, q, D, KV_F32, 0.125f, BLOCKS, kp, vp, visible, 0};
    struct kv_states s = {state, state + Q, state + 2 * Q};
    float *scratch = malloc(4 * kv_attend_scratch_floats(Q, D, 3));
    kv_attend_subtree(kv_kernels(), &a, 3, 0, s, scratch);
    kv_kernels()->finish(Q, D, s, out, D);
    for (int i = 0; i < Q; i++) {
        double p[BLOCKS * 64], top = -1e300, l = 0, u[D] = {0}, most = 0;
        for (int row = 0; row < visible[i]; row++) {
            p[row] = 0;
            for (int c = 0; c < D; c++) p[row] += 0.125 * (double)q[i * D + c] * (double)k[row / 64][row % 64 * D + c];
            top = fmax(top, p[row]);
        }
        for (int row = 0; row < visible[i]; row++) {
            double w = exp(p[row] - top);
            l += w;
            for (int c = 0; c < D; c++) u[c] += w * (double)v[row / 64][row % 64 * D + c];
        }
        for (int c = 0; c < D; c++) most = fmax(most, fabs(u[c] / l));
        for (int c = 0; c < D; c++) ck_assert_double_le(fabs((double)out[i * D + c] - u[c] / l), 1e-5 * most);
    }
    for (int b = 0; b < BLOCKS; b++) free(k[b]), free(v[b]);
    free(q), free(scratch);
}
END_TEST

Suite *suite_kernels_oracle(void);
Suite *suite_kernels_oracle(void)
{
    Suite *s = suite_create("kernels_oracle");
    TCase *c = tcase_create("double precision");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, blocks_decode_to_known_values);
    tcase_add_loop_test(c, products_are_right, 0, N_TYPES);
    tcase_add_test(c, elementary_functions_are_right);
    tcase_add_test(c, fma_without_the_instruction_is_exact);
    tcase_add_test(c, elementwise_is_right);
    tcase_add_test(c, attention_is_right);
    suite_add_tcase(s, c);
    return s;
}
