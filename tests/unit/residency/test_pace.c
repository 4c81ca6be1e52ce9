/* test_pace.c — what a thread that moves rows may compute: nothing bounds it until it is told, a grant lets it go on, what is left of one lapses. */
#include "runtime/residency/pace.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>

Suite *suite_pace(void);

static struct kv_pace pace;
static _Atomic int passes;

/* Works until told: a pass costs a little, whatever the machine. */
static void *work(void *arg)
{
    int most = *(int *)arg;
    for (int i = 0; i < most; i++) {
        kv_pace_pass(&pace);
        atomic_fetch_add(&passes, 1);
    }
    return NULL;
}

static void start(pthread_t *t, int *most)
{
    atomic_store(&passes, 0);
    ck_assert_int_eq(pthread_create(t, NULL, work, most), 0);
}

START_TEST(without_a_grant_nothing_is_bounded)
{
    pthread_t t;
    int most = 1000;
    pace = (struct kv_pace){0};
    start(&t, &most);
    pthread_join(t, NULL);
    ck_assert_int_eq(atomic_load(&passes), most);
    ck_assert_int_eq(atomic_load(&pace.waited_ns), 0);
    kv_pace_pass(NULL);
}
END_TEST

/* Each grant is a nanosecond: one piece is done and overdraws it. Then there is no bound any more, or nobody grants. */
START_TEST(a_piece_waits_for_its_grant)
{
    pthread_t t;
    int most = 1 << 20;
    pace = (struct kv_pace){0};
    kv_pace_grant(&pace, 1);
    start(&t, &most);
    for (int i = 0; i < 20; i++) {
        while (!atomic_load(&pace.waiting) && atomic_load(&pace.bound)) sched_yield();
        kv_pace_grant(&pace, 1);
    }
    if (_i == 0) kv_pace_grant(&pace, -1);
    pthread_join(t, NULL);
    ck_assert_int_eq(atomic_load(&passes), most);
    ck_assert_int_eq(atomic_load(&pace.bound), 0);
    ck_assert_int_gt(atomic_load(&pace.waited_ns), 0);
}
END_TEST

START_TEST(what_is_left_lapses_and_what_is_owed_has_an_end)
{
    pace = (struct kv_pace){0};
    for (int i = 0; i < 5; i++) kv_pace_grant(&pace, 1000);
    ck_assert_int_eq(atomic_load(&pace.left_ns), 1000);
    atomic_store(&pace.left_ns, -1500);
    kv_pace_grant(&pace, 1000);
    ck_assert_int_eq(atomic_load(&pace.left_ns), -500);
    kv_pace_grant(&pace, 1000);
    ck_assert_int_eq(atomic_load(&pace.left_ns), 500);
    atomic_store(&pace.left_ns, -1000000000);
    for (int i = 0; i < 5; i++) kv_pace_grant(&pace, 1000);
    ck_assert_int_gt(atomic_load(&pace.left_ns), 0);
    kv_pace_grant(&pace, 0);
    ck_assert_int_eq(atomic_load(&pace.left_ns), 0);
    ck_assert_int_eq(atomic_load(&pace.bound), 1);
}
END_TEST

Suite *suite_pace(void)
{
    Suite *s = suite_create("pace");
    TCase *t = tcase_create("pace");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, without_a_grant_nothing_is_bounded);
    tcase_add_loop_test(t, a_piece_waits_for_its_grant, 0, 2);
    tcase_add_test(t, what_is_left_lapses_and_what_is_owed_has_an_end);
    suite_add_tcase(s, t);
    return s;
}
