/* test_cuda.c — the CUDA kernel's phases run on the host, thread by thread, against the scalar definition; the device itself where
 * there is one, and a clean "absent" where there is none. */
#include <check.h>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/device.h"
#include "kernels/scalar/scalar.h"
#include "tests/unit/kernels/kernels_random.h"

struct block {
    struct kv_attention a;
    const void *k, *v;
    int32_t visible[9];
    uint64_t support[9];
};

static void block_make(struct block *b, uint64_t seed)
{
    struct rng r = {seed, seed % 3 ? 0 : 2000};
    enum kv_type type = (const enum kv_type[]){KV_F16, KV_BF16, KV_F32}[seed % 3];
    int32_t d = 8 * (1 + rng_below(&r, 32)), n = 1 + rng_below(&r, 9);
    b->k = rng_rows(&r, type, 64 * (size_t)d), b->v = rng_rows(&r, type, 64 * (size_t)d);
    for (int i = 0; i < n; i++) b->visible[i] = rng_below(&r, 70), b->support[i] = (uint64_t)rng_u32(&r) << 32 | rng_u32(&r);
    b->a = (struct kv_attention){d, n, rng_floats(&r, (size_t)(n * (d + 1))), (size_t)d + 1, type, 0.2f, 1, &b->k, &b->v,
                                 b->visible, seed % 2 ? b->support : 0};
}

static void block_free(struct block *b)
{
    free((void *)(uintptr_t)b->k), free((void *)(uintptr_t)b->v), free((void *)(uintptr_t)b->a.q);
}

static struct kv_states states_in(float *f, const struct kv_attention *a)
{
    return (struct kv_states){f, f + a->n_q, f + 2 * a->n_q};
}

/* What the device does, one thread after the other between barriers. */
static void attend_on_host(const struct kv_attention *a, struct kv_states out)
{
    for (int32_t i = 0; i < a->n_q; i++) {
        struct kv_attend_row row = {a->q + (size_t)i * a->q_stride, a->k[0], a->v[0], a->d_head, a->row_type, a->scale, kv_visible_rows(a, i, 0)};
        struct kv_attend_shared s;
        for (int r = 0; r < KV_ATTEND_THREADS; r++) kv_attend_score(&row, r, &s);
        for (int r = 0; r < KV_ATTEND_THREADS; r++) kv_attend_max(&row, r, &s);
        for (int r = 0; r < KV_ATTEND_THREADS; r++) kv_attend_weight(&row, r, &s);
        for (int r = 0; r < KV_ATTEND_THREADS; r++)
            kv_attend_finish(&row, r, &s, out.m + i, out.l + i, out.u + (size_t)i * (size_t)a->d_head);
    }
}

START_TEST(phases_equal_scalar)
{
    for (uint64_t seed = 0; seed < 90; seed++) {
        struct block b;
        block_make(&b, seed);
        size_t n = (size_t)b.a.n_q * (size_t)(b.a.d_head + 2);
        float *want = malloc(n * 4), *got = malloc(n * 4);
        kv_scalar_attend_block(&b.a, 0, states_in(want, &b.a));
        attend_on_host(&b.a, states_in(got, &b.a));
        ck_assert_msg(!memcmp(want, got, n * 4), "seed %d", (int)seed);
        free(want), free(got);
        block_free(&b);
    }
}
END_TEST

START_TEST(devices_are_listed_or_absent)
{
    struct kv_cuda_device d;
    int n = kv_cuda_device_count();
    ck_assert_int_ge(n, 0);
    ck_assert(!kv_cuda_device_query(n, &d) && !kv_cuda_device_query(-1, &d));
    for (int i = 0; i < n; i++) {
        ck_assert(kv_cuda_device_query(i, &d));
        ck_assert(d.name[0] && d.memory_bytes >= d.free_bytes && d.multiprocessors > 0);
    }
}
END_TEST

#ifdef KV_CUDA
START_TEST(device_equals_scalar_or_says_why_not)
{
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct block b;
        block_make(&b, seed);
        size_t n = (size_t)b.a.n_q * (size_t)(b.a.d_head + 2);
        float *want = malloc(n * 4), *got = malloc(n * 4);
        kv_scalar_attend_block(&b.a, 0, states_in(want, &b.a));
        int error = kv_cuda_attend_block(&b.a, 0, states_in(got, &b.a));
        if (!kv_cuda_device_count()) {
            ck_assert_int_ne(error, 0);
            ck_assert_ptr_nonnull(kv_cuda_error_name(error));
        } else {
            ck_assert_msg(!error, "%s", kv_cuda_error_name(error));
            ck_assert_mem_eq(want, got, n * 4);
        }
        free(want), free(got);
        block_free(&b);
    }
}
END_TEST
#endif

Suite *suite_cuda(void);
Suite *suite_cuda(void)
{
    Suite *s = suite_create("cuda");
    TCase *c = tcase_create("device");
    tcase_add_test(c, phases_equal_scalar);
    tcase_add_test(c, devices_are_listed_or_absent);
#ifdef KV_CUDA
    tcase_add_test(c, device_equals_scalar_or_says_why_not);
#endif
    suite_add_tcase(s, c);
    return s;
}
