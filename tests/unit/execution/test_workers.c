/* test_workers.c — every item once, whatever the number of threads; regions follow each other without leaking into the next. */
#include "runtime/execution/workers.h"

#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>

Suite *suite_workers(void);

enum { ITEMS = 1000 };

struct count {
    _Atomic int32_t runs[ITEMS];
    _Atomic int32_t wrong_worker;
    int32_t n_workers;
};

static void tick(void *ctx, int32_t worker, int32_t item)
{
    struct count *c = ctx;
    atomic_fetch_add(&c->runs[item], 1);
    if (worker < 0 || worker >= c->n_workers) atomic_fetch_add(&c->wrong_worker, 1);
}

START_TEST(every_item_runs_once)
{
    static const int32_t threads[] = {1, 2, 3, 7};
    struct kv_workers *w;
    ck_assert_int_eq(kv_workers_create(threads[_i], &w), KV_OK);
    ck_assert_int_eq(kv_workers_count(w), threads[_i]);
    static struct count c;
    for (int32_t n = 0; n <= ITEMS; n += n < 10 ? 1 : 99) {
        c = (struct count){.n_workers = threads[_i]};
        kv_workers_run(w, tick, &c, n);
        for (int32_t i = 0; i < ITEMS; i++) ck_assert_int_eq(atomic_load(&c.runs[i]), i < n);
        ck_assert_int_eq(atomic_load(&c.wrong_worker), 0);
    }
    kv_workers_destroy(w);
}
END_TEST

/* Plain memory written in one region and read in the next: the join orders them (ThreadSanitizer watches). */
struct chain {
    int32_t value[64];
    int32_t step;
};

static void check_chain(void *ctx, int32_t worker, int32_t item)
{
    (void)worker;
    struct chain *c = ctx;
    if (c->value[63 - item] != c->step * (c->step + 1) / 2) abort();
}

static void only_own(void *ctx, int32_t worker, int32_t item)
{
    (void)worker;
    struct chain *c = ctx;
    c->value[item] += c->step;
}

START_TEST(regions_are_ordered)
{
    struct kv_workers *w;
    ck_assert_int_eq(kv_workers_create(3, &w), KV_OK);
    static struct chain c;
    c = (struct chain){0};
    for (c.step = 1; c.step <= 2000; c.step++) {
        kv_workers_run(w, only_own, &c, 64);
        kv_workers_run(w, check_chain, &c, 64);
    }
    kv_workers_destroy(w);
}
END_TEST

START_TEST(a_wrong_count_is_refused)
{
    struct kv_workers *w;
    ck_assert_int_eq(kv_workers_create(-1, &w), KV_BAD_ARGUMENT);
    ck_assert_ptr_null(w);
    ck_assert_int_eq(kv_workers_create(100000, &w), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_workers_create(0, &w), KV_OK);
    ck_assert_int_ge(kv_workers_count(w), 1);
    kv_workers_destroy(w);
}
END_TEST

Suite *suite_workers(void)
{
    Suite *s = suite_create("workers");
    TCase *t = tcase_create("workers");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, every_item_runs_once, 0, 4);
    tcase_add_test(t, regions_are_ordered);
    tcase_add_test(t, a_wrong_count_is_refused);
    suite_add_tcase(s, t);
    return s;
}
