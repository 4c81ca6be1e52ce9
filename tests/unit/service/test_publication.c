/* test_publication.c — after a rollback was answered no approximate token leaves: the decode side and the rolling side race with
 * yields injected at every step of the protocol. */
#include "runtime/service/publication.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>

Suite *suite_publication(void);

enum { ROUNDS = 4000 };

struct race {
    struct kv_publication p;
    _Atomic uint64_t approximate, baseline; /* tokens that left */
    _Atomic bool stop;
    bool skip_reload; /* the mutant: publishes without looking at the word again */
    unsigned seed;
};

static void yield_sometimes(unsigned *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    if ((*seed >> 16) % 3 == 0) sched_yield();
}

static void *decode(void *arg)
{
    struct race *r = arg;
    unsigned seed = r->seed;
    while (!atomic_load(&r->stop)) {
        uint64_t word = kv_publication_word(&r->p);
        bool approximate = !(word & KV_LATCH);
        yield_sometimes(&seed);
        kv_publication_begin(&r->p);
        yield_sometimes(&seed);
        bool unchanged = r->skip_reload || kv_publication_unchanged(&r->p, word);
        yield_sometimes(&seed);
        if (approximate && unchanged) atomic_fetch_add(&r->approximate, 1);
        if (!approximate) atomic_fetch_add(&r->baseline, 1);
        yield_sometimes(&seed);
        kv_publication_end(&r->p);
    }
    return NULL;
}

/* Rounds in which an approximate token left after the rollback had been answered. */
static int race(bool mutant)
{
    struct race r = {.skip_reload = mutant, .seed = 7};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, decode, &r), 0);
    int late = 0;
    unsigned seed = 99;
    for (uint64_t epoch = 1; epoch <= ROUNDS && !(mutant && late); epoch++) {
        uint64_t served = atomic_load(&r.approximate);
        for (int i = 0; i < 100 && atomic_load(&r.approximate) == served; i++) sched_yield();
        kv_publication_fence(&r.p);
        uint64_t fenced = atomic_load(&r.approximate), after = atomic_load(&r.baseline);
        for (int i = 0; i < 20 && atomic_load(&r.baseline) < after + 2; i++) yield_sometimes(&seed);
        late += atomic_load(&r.approximate) != fenced;
        ck_assert(kv_publication_rearm(&r.p, epoch));
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    return late;
}

START_TEST(nothing_leaves_after_the_fence)
{
    ck_assert_int_eq(race(false), 0);
}
END_TEST

START_TEST(the_race_is_real)
{
    ck_assert_int_gt(race(true), 0);
}
END_TEST

START_TEST(a_promotion_loses_against_a_rollback)
{
    struct kv_publication p = {0};
    ck_assert(kv_publication_advance(&p, 0, 1));
    ck_assert(!kv_publication_advance(&p, 0, 2)); /* based on an epoch that is gone */
    ck_assert_uint_eq(kv_publication_fence(&p), 1);
    ck_assert(!kv_publication_advance(&p, 1, 2));
    ck_assert(!kv_publication_advance(&p, 1 | KV_LATCH, 2)); /* nobody advances from a latched word, knowing or not */
    ck_assert_uint_eq(kv_publication_word(&p), 1 | KV_LATCH);
    ck_assert(kv_publication_rearm(&p, 3));
    ck_assert(!kv_publication_rearm(&p, 4)); /* it is not latched */
    ck_assert_uint_eq(kv_publication_word(&p), 3);
}
END_TEST

START_TEST(a_second_rollback_says_it_was_latched)
{
    struct kv_publication p = {0};
    ck_assert(!(kv_publication_fence(&p) & KV_LATCH));
    ck_assert(kv_publication_fence(&p) & KV_LATCH);
}
END_TEST

Suite *suite_publication(void)
{
    Suite *s = suite_create("publication");
    TCase *t = tcase_create("publication");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, nothing_leaves_after_the_fence);
    tcase_add_test(t, the_race_is_real);
    tcase_add_test(t, a_promotion_loses_against_a_rollback);
    tcase_add_test(t, a_second_rollback_says_it_was_latched);
    suite_add_tcase(s, t);
    return s;
}
