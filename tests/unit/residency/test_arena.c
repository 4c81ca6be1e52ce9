/* test_arena.c — slabs and the slab table of a sequence. */
#include "runtime/residency/cache.h"

#include <check.h>
#include <sched.h>
#include <string.h>

START_TEST(cap_and_zeroing)
{
    struct kv_arena *a;
    ck_assert_int_eq(kv_arena_create(4096, 3 * 4096 + 100, &a), KV_OK);
    uint8_t *s[3];
    for (int i = 0; i < 3; i++) {
        s[i] = kv_arena_take(a);
        ck_assert_ptr_nonnull(s[i]);
        ck_assert_uint_eq((uintptr_t)s[i] % 4096, 0);
        memset(s[i], 0xA5, 4096);
    }
    ck_assert_ptr_null(kv_arena_take(a));
    ck_assert_uint_eq(kv_arena_used_bytes(a), 3 * 4096);
    kv_arena_give(a, s[1]);
    ck_assert_uint_eq(kv_arena_used_bytes(a), 2 * 4096);
    uint8_t *again = kv_arena_take(a);
    ck_assert_ptr_eq(again, s[1]);
    for (int i = 0; i < 4096; i++) ck_assert_uint_eq(again[i], 0); /* the next owner reads nothing of the last */
    kv_arena_destroy(a);
}
END_TEST

START_TEST(bad_sizes)
{
    struct kv_arena *a;
    ck_assert_int_eq(kv_arena_create(0, 4096, &a), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_arena_create(100, 4096, &a), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_arena_create(4096, 0, &a), KV_OK);
    ck_assert_ptr_null(kv_arena_take(a));
    kv_arena_destroy(a);
}
END_TEST

START_TEST(give_twice_stops)
{
    struct kv_arena *a;
    ck_assert_int_eq(kv_arena_create(4096, 8192, &a), KV_OK);
    void *s = kv_arena_take(a);
    kv_arena_give(a, s);
    kv_arena_give(a, s);
}
END_TEST

START_TEST(reserve_is_all_or_nothing)
{
    struct kv_arena *a;
    struct kv_cache c;
    size_t slab = kv_slab_bytes(KV_F16, 2, 4);
    ck_assert_uint_eq(slab, 4096);
    ck_assert_int_eq(kv_arena_create(slab, 5 * slab, &a), KV_OK); /* two layers: room for two blocks and a half */
    ck_assert_int_eq(kv_cache_init(&c, 2, 2, 4, KV_F16, 1000), KV_OK);
    ck_assert_int_eq(c.max_blocks, 16);
    ck_assert_int_eq(kv_cache_reserve(&c, a, 65), KV_OK);
    ck_assert_int_eq(c.n_blocks, 2);
    c.n_rows = 65;
    ck_assert_int_eq(kv_cache_reserve(&c, a, 63), KV_OK);
    ck_assert_int_eq(c.n_blocks, 2);
    ck_assert_int_eq(kv_cache_reserve(&c, a, 64), KV_CAPACITY);
    ck_assert_int_eq(c.n_blocks, 2);
    ck_assert_uint_eq(kv_arena_used_bytes(a), 4 * slab);
    c.n_sealed = 1;
    kv_cache_truncate(&c, a, 63);
    ck_assert_int_eq(c.n_rows, 63);
    ck_assert_int_eq(c.n_sealed, 0);
    ck_assert_int_eq(c.n_blocks, 1);
    ck_assert_int_eq(kv_cache_reserve(&c, a, 1), KV_OK);
    ck_assert_int_eq(c.n_blocks, 1);
    ck_assert_int_eq(kv_cache_reserve(&c, a, 5000), KV_CAPACITY); /* beyond max_rows */
    ck_assert_int_eq(kv_cache_reserve(&c, a, -1), KV_BAD_ARGUMENT);
    kv_cache_free(&c, a);
    ck_assert_uint_eq(kv_arena_used_bytes(a), 0);
    kv_arena_destroy(a);
}
END_TEST

/* Pages come ahead of what is taken, by no more than was taken or the limit, and no byte changes by it. */
START_TEST(pages_are_made_ahead)
{
    enum { SLAB = 1 << 16, SLABS = 64 };
    struct kv_arena *a;
    uint8_t *s[SLABS];
    ck_assert_int_eq(kv_arena_create(SLAB, SLABS * SLAB, &a), KV_OK);
    kv_arena_go_ahead(a, 4 * SLAB);
    for (int i = 0; i < 32; i++) memset(s[i] = kv_arena_take(a), i + 1, SLAB);
    while (!kv_arena_ready(a, s[31] + 4 * SLAB)) sched_yield();
    ck_assert(!kv_arena_ready(a, s[31] + 5 * SLAB));
    for (int i = 0; i < 32; i++) ck_assert(s[i][0] == i + 1 && s[i][SLAB - 1] == i + 1);
    for (int i = 32; i < SLABS; i++) ck_assert_ptr_nonnull(s[i] = kv_arena_take(a));
    while (!kv_arena_ready(a, s[SLABS - 1])) sched_yield();
    kv_arena_destroy(a);
}
END_TEST

/* Of another owner's rows nothing is left, but where all are overwritten before they count. */
START_TEST(recycled_slabs_are_zero_unless_raw)
{
    struct kv_arena *a;
    struct kv_cache c;
    ck_assert_int_eq(kv_arena_create(4096, 4096, &a), KV_OK);
    kv_arena_small_pages(a);
    ck_assert_int_eq(kv_cache_init(&c, 1, 2, 4, KV_F16, 64), KV_OK);
    ck_assert_int_eq(kv_cache_reserve(&c, a, 64), KV_OK);
    memset(c.slab[0], 7, 4096);
    kv_cache_truncate(&c, a, 0);
    ck_assert_int_eq(kv_cache_reserve_raw(&c, a, 64), KV_OK);
    ck_assert_int_eq(c.slab[0][4095], 7);
    kv_cache_truncate(&c, a, 0);
    ck_assert_int_eq(kv_cache_reserve(&c, a, 64), KV_OK);
    ck_assert_int_eq(c.slab[0][0] | c.slab[0][4095], 0);
    kv_cache_free(&c, a);
    kv_arena_destroy(a);
}
END_TEST

START_TEST(truncate_gives_back_reserved_blocks)
{
    struct kv_arena *a;
    struct kv_cache c;
    ck_assert_int_eq(kv_arena_create(4096, 1 << 20, &a), KV_OK);
    ck_assert_int_eq(kv_cache_init(&c, 3, 2, 4, KV_F16, 640), KV_OK);
    c.n_rows = 0;
    ck_assert_int_eq(kv_cache_reserve(&c, a, 200), KV_OK);
    ck_assert_int_eq(c.n_blocks, 4);
    kv_cache_truncate(&c, a, 0); /* a step that was discarded: rows were reserved and never committed */
    ck_assert_int_eq(c.n_blocks, 0);
    ck_assert_uint_eq(kv_arena_used_bytes(a), 0);
    kv_cache_free(&c, a);
    kv_arena_destroy(a);
}
END_TEST

START_TEST(shapes)
{
    ck_assert_uint_eq(kv_slab_bytes(KV_F16, 8, 128), 256 << 10);
    ck_assert_uint_eq(kv_row_bytes(KV_F32, 64), 256);
    ck_assert_uint_eq(kv_row_bytes(KV_Q8_0, 64), 0);
    struct kv_cache c;
    ck_assert_int_eq(kv_cache_init(&c, 1, 1, 64, KV_Q8_0, 64), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_cache_init(&c, 0, 1, 64, KV_F16, 64), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_cache_init(&c, 1, 2, 64, KV_F16, 64), KV_OK);
    uint8_t *slab = (uint8_t *)0x100000;
    ck_assert_uint_eq((uintptr_t)kv_slab_v(&c, slab, 1) - (uintptr_t)kv_slab_k(&c, slab, 0), 3 * 64 * 128);
    kv_cache_free(&c, NULL);
}
END_TEST

Suite *suite_arena(void);
Suite *suite_arena(void)
{
    Suite *s = suite_create("arena");
    TCase *t = tcase_create("arena");
    tcase_add_test(t, cap_and_zeroing);
    tcase_add_test(t, bad_sizes);
    tcase_add_test_raise_signal(t, give_twice_stops, 6);
    tcase_add_test(t, reserve_is_all_or_nothing);
    tcase_add_test(t, recycled_slabs_are_zero_unless_raw);
    tcase_add_test(t, pages_are_made_ahead);
    tcase_add_test(t, truncate_gives_back_reserved_blocks);
    tcase_add_test(t, shapes);
    suite_add_tcase(s, t);
    return s;
}
