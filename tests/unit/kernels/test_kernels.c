/* test_kernels.c — products and elementwise operations: every fast table equals the scalar one byte for byte. */
#include <check.h>
#include <setjmp.h>

#include "tests/unit/kernels/kernels_random.h"

static const enum kv_type all_types[] = {KV_F32, KV_F16, KV_BF16, KV_Q4_0, KV_Q4_1, KV_Q5_0, KV_Q5_1,
                                         KV_Q8_0, KV_Q4_K, KV_Q5_K, KV_Q6_K, KV_IQ4_NL};
#define N_TYPES ((int)(sizeof all_types / sizeof *all_types))

static const struct kv_kernels *scalar(void)
{
    return kv_kernels_for("scalar");
}

static int differs(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n) != 0;
}

/* 1 if table k and the scalar one disagree on this random product. Rows outside [row0, row1) must stay untouched. */
static int product_differs(const struct kv_kernels *k, enum kv_type type, uint64_t seed, int special)
{
    struct rng r = {seed, special};
    int block = kv_type_block_values(type);
    int32_t rows = 1 + rng_below(&r, 50), n = 1 + rng_below(&r, 21);
    int32_t cols = block == 1 ? 1 + rng_below(&r, 150) : block == 32 ? 32 * (1 + rng_below(&r, 9)) : block * (1 + rng_below(&r, 2));
    if (block == 1 && rng_below(&r, 2)) cols *= 16;
    if (!rng_below(&r, 20)) n = 60 + rng_below(&r, 20);
    if (!rng_below(&r, 20) && block != 1) cols = 4096 + 256 * rng_below(&r, 3), rows = 17;
    int32_t row0 = rng_below(&r, (rows + 15) / 16) * 16, row1 = row0 + 1 + rng_below(&r, rows - row0);
    size_t row_bytes = kv_type_row_bytes(type, cols), stride = (size_t)rows + (size_t)rng_below(&r, 3);
    void *file = block == 1 ? rng_rows(&r, type, (size_t)rows * (size_t)cols) : rng_quantised(&r, type, row_bytes * (size_t)rows);
    void *packed = aligned_alloc(64, (kv_mat_packed_bytes(type, rows, cols) + 127) / 64 * 64);
    float *x = rng_floats(&r, (size_t)n * (size_t)cols), *want = rng_floats(&r, (size_t)n * stride);
    float *got = malloc((size_t)n * stride * 4);
    memcpy(got, want, (size_t)n * stride * 4);
    struct kv_act a = act_make(scalar(), x, n, cols);
    struct kv_mat w;
    kv_mat_pack(&w, type, file, rows, cols, packed);
    scalar()->matmul(&w, &a, row0, row1, want, stride);
    k->matmul(&w, &a, row0, row1, got, stride);
    int bad = differs(want, got, (size_t)n * stride * 4);
    act_free(&a);
    free(file), free(packed), free(x), free(want), free(got);
    return bad;
}

START_TEST(products_equal_scalar)
{
    const struct kv_kernels *table[2];
    for (int i = 0, n = fast_tables(table); i < n; i++)
        for (uint64_t seed = 0; seed < 60; seed++)
            ck_assert_msg(!product_differs(table[i], all_types[_i], seed, seed % 3 ? 0 : 40), "%s %s seed %d", table[i]->isa,
                          kv_type_name(all_types[_i]), (int)seed);
}
END_TEST

/* A float product whose lanes are the wrong ones: every sum is right to the last few bits and the order is not ours. */
static void reordered_matmul(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride)
{
    for (int32_t t = 0; t < x->n; t++)
        for (int32_t r = row0; r < row1; r++) {
            float lane[8] = {0};
            for (int32_t c = 0; c < w->cols; c++)
                lane[c % 8] = kv_fma(((const float *)w->data)[(size_t)r * (size_t)w->cols + (size_t)c],
                                     x->f32[(size_t)t * (size_t)w->cols + (size_t)c], lane[c % 8]);
            for (int step = 4; step; step /= 2)
                for (int i = 0; i < step; i++) lane[i] += lane[i + step];
            y[(size_t)t * y_stride + (size_t)r] = lane[0];
        }
}

START_TEST(a_reordered_chain_is_noticed)
{
    struct kv_kernels wrong = *scalar();
    wrong.matmul = reordered_matmul;
    int noticed = 0;
    for (uint64_t seed = 0; seed < 20; seed++) noticed += product_differs(&wrong, KV_F32, seed, 0);
    ck_assert_int_ge(noticed, 15);
}
END_TEST

/* Row blocks of any batch size give the bits of one row alone: no dependence on n or on the tile. */
START_TEST(products_do_not_depend_on_the_batch)
{
    struct rng r = {77, 0};
    const struct kv_kernels *k = kv_kernels();
    enum { ROWS = 33, COLS = 512, N = 19 };
    uint8_t *file = rng_quantised(&r, all_types[_i], kv_type_row_bytes(all_types[_i], COLS) * ROWS);
    if (!kv_type_is_quantised(all_types[_i])) free(file), file = rng_rows(&r, all_types[_i], ROWS * COLS);
    void *packed = aligned_alloc(64, kv_mat_packed_bytes(all_types[_i], ROWS, COLS) + 64);
    float *x = rng_floats(&r, N * COLS), whole[N * ROWS], one[ROWS];
    struct kv_mat w;
    kv_mat_pack(&w, all_types[_i], file, ROWS, COLS, packed);
    struct kv_act a = act_make(k, x, N, COLS);
    k->matmul(&w, &a, 0, ROWS, whole, ROWS);
    for (int t = 0; t < N; t++) {
        struct kv_act single = act_make(k, x + t * COLS, 1, COLS);
        k->matmul(&w, &single, 0, 16, one, ROWS);
        k->matmul(&w, &single, 16, ROWS, one, ROWS);
        ck_assert_mem_eq(one, whole + t * ROWS, sizeof one);
        act_free(&single);
    }
    act_free(&a);
    free(file), free(packed), free(x);
}
END_TEST

START_TEST(quantised_activations_equal_scalar)
{
    const struct kv_kernels *table[2];
    for (int i = 0, n = fast_tables(table); i < n; i++)
        for (uint64_t seed = 0; seed < 200; seed++) {
            struct rng r = {seed, seed % 2 ? 0 : 30};
            int32_t rows = 1 + rng_below(&r, 4), cols = 1 + rng_below(&r, 200);
            float *x = rng_floats(&r, (size_t)(rows * cols));
            if (!(seed % 5)) /* tiny and huge magnitudes */
                for (int32_t j = 0; j < rows * cols; j++) x[j] = kv_float((kv_bits(x[j]) & 0x807fffffu) | (uint32_t)(seed % 2 ? 27 : 254) << 23);
            struct kv_act a = act_make(scalar(), x, rows, cols), b = act_make(table[i], x, rows, cols);
            size_t blocks = (size_t)((cols + 31) / 32 * rows);
            ck_assert_mem_eq(a.q, b.q, blocks * 32);
            ck_assert_mem_eq(a.d, b.d, blocks * 4);
            ck_assert_mem_eq(a.sum, b.sum, blocks * 4);
            act_free(&a), act_free(&b), free(x);
        }
}
END_TEST

START_TEST(elementwise_equals_scalar)
{
    const struct kv_kernels *table[2], *s = scalar();
    float want[400], got[400];
    for (int i = 0, tables = fast_tables(table); i < tables; i++)
        for (uint64_t seed = 0; seed < 300; seed++) {
            const struct kv_kernels *k = table[i];
            struct rng r = {seed, seed % 2 ? 0 : 12};
            int n = 1 + rng_below(&r, 200);
            float *x = rng_floats(&r, 400), *y = rng_floats(&r, 400);
            for (int j = 0; j < 400; j += 3) x[j] *= 40; /* exp over its whole range */
#define SAME(what, count) ck_assert_msg(!differs(want, got, (size_t)(count) * 4), "%s %s seed %d", k->isa, what, (int)seed)
            s->exp(x, n, want), k->exp(x, n, got), SAME("exp", n);
            s->swiglu(x, y, n, want), k->swiglu(x, y, n, got), SAME("swiglu", n);
            s->add(x, y, n, want), k->add(x, y, n, got), SAME("add", n);
            s->rmsnorm(y, x, n, 1e-5f, want), k->rmsnorm(y, x, n, 1e-5f, got), SAME("rmsnorm", n);
            want[0] = s->dot(x, y, n), got[0] = k->dot(x, y, n), SAME("dot", 1);
            for (int layout = 0; layout < 2; layout++) {
                int d = 2 * (1 + rng_below(&r, 64)), rot = 2 * (1 + rng_below(&r, d / 2)), heads = 1 + rng_below(&r, 3);
                memcpy(want, x, sizeof want), memcpy(got, x, sizeof got);
                s->rope(want, heads, d, rot, y, (enum kv_rope_layout)layout);
                k->rope(got, heads, d, rot, y, (enum kv_rope_layout)layout);
                SAME("rope", 400);
            }
            for (int t = 0; t < 3; t++) {
                enum kv_type type = all_types[t];
                memset(want, 0, sizeof want), memset(got, 0, sizeof got);
                s->to_rows(type, x, n, want), k->to_rows(type, x, n, got), SAME("to_rows", 400);
                memcpy(y, x, 400 * 4);
                s->from_rows(type, y, n, want), k->from_rows(type, y, n, got), SAME("from_rows", n);
                int d = 1 + rng_below(&r, 200), row0 = rng_below(&r, 64), row1 = row0 + rng_below(&r, 65 - row0);
                void *block = rng_rows(&r, type, 64 * (size_t)d);
                memcpy(want, y, sizeof want), memcpy(got, y, sizeof got);
                s->extrema(type, block, row0, row1, d, want, want + 200), k->extrema(type, block, row0, row1, d, got, got + 200);
                SAME("extrema", 400);
                free(block);
            }
            enum { MOST_HEADS = 5, MOST_BLOCKS = 2, STRIDE = MOST_BLOCKS * 64 + 1 };
            int d = 1 + rng_below(&r, 130), blocks = rng_below(&r, MOST_BLOCKS + 1), heads = 1 + rng_below(&r, MOST_HEADS);
            enum kv_type type = all_types[rng_below(&r, 3)];
            float *q = rng_floats(&r, (size_t)(heads * (d + 3)));
            void *extrema = rng_rows(&r, type, 2 * (size_t)(d * 64 * MOST_BLOCKS));
            float bound[2][MOST_HEADS * STRIDE] = {{0}};
            if (seed % 2) q[0] = -0.0f, q[d - 1] = NAN;
            s->page_bounds(type, q, heads, (size_t)d + 3, extrema, blocks, d, bound[0], STRIDE);
            k->page_bounds(type, q, heads, (size_t)d + 3, extrema, blocks, d, bound[1], STRIDE);
            ck_assert_msg(!memcmp(bound[0], bound[1], sizeof bound[0]), "%s: page_bounds", k->isa);
            int width = 1 + rng_below(&r, 70), centroids = 1 + rng_below(&r, 150), points = rng_below(&r, 12);
            float *point = rng_floats(&r, (size_t)(12 * (width + 1))), *centre = rng_floats(&r, (size_t)(width * (centroids + 15) / 16 * 16 + 16 * width)), *square = rng_floats(&r, (size_t)centroids);
            for (int c = 0; c < centroids; c++) square[c] = rng_below(&r, 3) ? 0 : fabsf(square[c]); /* ties, too */
            int32_t label[2][12] = {{0}};
            s->nearest(point, points, (size_t)width + 1, centre, square, centroids, width, label[0]);
            k->nearest(point, points, (size_t)width + 1, centre, square, centroids, width, label[1]);
            ck_assert_msg(!memcmp(label[0], label[1], sizeof label[0]), "%s: nearest", k->isa);
            float two[2][24] = {{0}};
            s->nearest_two(point, points, (size_t)width + 1, centre, square, centroids, width, label[0], two[0], two[0] + 12);
            k->nearest_two(point, points, (size_t)width + 1, centre, square, centroids, width, label[1], two[1], two[1] + 12);
            ck_assert_msg(!memcmp(label[0], label[1], sizeof label[0]) && !memcmp(two[0], two[1], sizeof two[0]), "%s: nearest_two", k->isa);
            free(point), free(centre), free(square);
            free(q), free(extrema), free(x), free(y);
#undef SAME
        }
}
END_TEST

START_TEST(selftest_is_one_for_all)
{
    static uint8_t want[KV_SELFTEST_BYTES], got[KV_SELFTEST_BYTES];
    const struct kv_kernels *table[2];
    size_t n = kv_numerics_selftest(scalar(), want, sizeof want);
    ck_assert_uint_gt(n, 10000);
    ck_assert_uint_lt(n, sizeof want);
    for (int i = 0, tables = fast_tables(table); i < tables; i++) {
        ck_assert_uint_eq(kv_numerics_selftest(table[i], got, sizeof got), n);
        ck_assert_mem_eq(want, got, n);
    }
}
END_TEST

static jmp_buf asked;

static void reached(void)
{
    longjmp(asked, 1);
}

/* Each entry of the table in turn gives way to one that is noticed: what the self-test leaves out, no numerics_id tells apart. */
START_TEST(selftest_asks_every_operation)
{
    static uint8_t bytes[KV_SELFTEST_BYTES];
    void (*instead)(void) = reached;
    for (volatile size_t at = sizeof(char *); at < sizeof(struct kv_kernels); at += sizeof instead) {
        struct kv_kernels k = *scalar();
        memcpy((char *)&k + at, &instead, sizeof instead);
        if (setjmp(asked)) continue;
        kv_numerics_selftest(&k, bytes, sizeof bytes);
        ck_abort_msg("entry %zu of struct kv_kernels is in no part of the self-test", at / sizeof instead);
    }
}
END_TEST

/* Threads share a matrix: any cuts between groups of rows give the bytes of one call, and no part writes into another. */
START_TEST(packing_in_parts_gives_the_same_bytes)
{
    enum { COLS = 512, ROWS = 83 };
    enum kv_type type = all_types[_i];
    struct rng r = {(uint64_t)_i + 7, 0};
    size_t n = kv_mat_packed_bytes(type, ROWS, COLS), row_bytes = kv_type_row_bytes(type, COLS);
    void *file = kv_type_is_quantised(type) ? rng_quantised(&r, type, row_bytes * ROWS) : rng_rows(&r, type, (size_t)ROWS * COLS);
    uint8_t *whole = aligned_alloc(64, (n + 127) / 64 * 64), *parts = aligned_alloc(64, (n + 127) / 64 * 64), *one = malloc(n + 1);
    struct kv_mat a, b;
    kv_mat_pack(&a, type, file, ROWS, COLS, whole);
    for (int round = 0; round < 10; round++) {
        memset(parts, 0xa5, n);
        kv_mat_describe(&b, type, file, ROWS, COLS, parts);
        ck_assert(b.type == a.type && b.rows == a.rows && b.cols == a.cols && b.data_bytes == a.data_bytes);
        ck_assert(n ? b.data == parts && a.data == whole : b.data == file && a.data == file);
        for (int32_t row0 = 0, row1; row0 < ROWS; row0 = row1) {
            row1 = row0 + 16 * (1 + rng_below(&r, 4));
            memcpy(one, parts, n);
            kv_mat_pack_rows(type, file, ROWS, COLS, parts, row0, row1);
            if (n) ck_assert_mem_eq(one, parts, (size_t)row0 / 16 * (n / ((ROWS + 15) / 16))); /* what lies before stays */
        }
        ck_assert(!differs(whole, parts, n));
    }
    free(file), free(whole), free(parts), free(one);
}
END_TEST

/* What operators of other machines will compare: a change of this number is a change of the cache ABI. */
START_TEST(selftest_bytes_are_pinned)
{
    static uint8_t bytes[KV_SELFTEST_BYTES];
    size_t n = kv_numerics_selftest(kv_kernels(), bytes, sizeof bytes);
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ bytes[i]) * 0x100000001b3u;
    ck_assert_uint_eq(h, 0x89f4d38657689653u);
}
END_TEST

START_TEST(half_floats_convert_both_ways)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float x = kv_from_f16((uint16_t)h), b = kv_from_bf16((uint16_t)h);
        if (x == x) ck_assert_uint_eq(kv_to_f16(x), h);
        else ck_assert_uint_eq(kv_to_f16(x), 0x7e00);
        if (b == b) ck_assert_uint_eq(kv_to_bf16(b), h);
        else ck_assert_uint_eq(kv_to_bf16(b), 0x7fc0);
    }
    ck_assert_uint_eq(kv_to_f16(0x1.002p0f), 0x3c00);  /* ties go to even */
    ck_assert_uint_eq(kv_to_f16(0x1.006p0f), 0x3c02);
    ck_assert_uint_eq(kv_to_f16(65519.0f), 0x7bff);
    ck_assert_uint_eq(kv_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(kv_to_f16(-0x1p-25f), 0x8000);
    ck_assert_uint_eq(kv_to_f16(0x1.8p-25f), 0x0001);
}
END_TEST

START_TEST(tables_answer_to_their_names)
{
    ck_assert_str_eq(scalar()->isa, "scalar");
    ck_assert_ptr_null(kv_kernels_for("abacus"));
    ck_assert_ptr_nonnull(kv_kernels());
    ck_assert(kv_type_known(KV_Q4_K) && !kv_type_known(4));
}
END_TEST

Suite *suite_kernels(void);
Suite *suite_kernels(void)
{
    Suite *s = suite_create("kernels");
    TCase *c = tcase_create("equality");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, products_equal_scalar, 0, N_TYPES);
    tcase_add_loop_test(c, products_do_not_depend_on_the_batch, 0, N_TYPES);
    tcase_add_test(c, a_reordered_chain_is_noticed);
    tcase_add_test(c, quantised_activations_equal_scalar);
    tcase_add_test(c, elementwise_equals_scalar);
    tcase_add_test(c, selftest_is_one_for_all);
    tcase_add_test(c, selftest_bytes_are_pinned);
    tcase_add_test(c, selftest_asks_every_operation);
    tcase_add_loop_test(c, packing_in_parts_gives_the_same_bytes, 0, N_TYPES);
    tcase_add_test(c, half_floats_convert_both_ways);
    tcase_add_test(c, tables_answer_to_their_names);
    suite_add_tcase(s, c);
    return s;
}
