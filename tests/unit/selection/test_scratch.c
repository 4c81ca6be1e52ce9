/* test_scratch.c — a thread's memory: its own, aligned, kept until more is asked for. */
#include "runtime/selection/scratch.h"

#include <check.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void *of_another(void *mine)
{
    char *p = kv_scratch(1000);
    ck_assert(p && p != mine);
    memset(p, 2, 1000);
    return NULL;
}

START_TEST(every_thread_has_its_own)
{
    static const size_t sizes[] = {1, 1000, 500, 300000, 5000000, 7};
    char *last = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *p = kv_scratch(sizes[i]);
        ck_assert(p && (uintptr_t)p % 64 == 0);
        ck_assert(i != 2 || p == last); /* no more than before: the same */
        memset(p, 1, sizes[i]);
        last = p;
    }
    pthread_t t;
    ck_assert_int_eq(pthread_create(&t, NULL, of_another, last), 0);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    ck_assert_int_eq(last[0], 1);
    ck_assert_ptr_null(kv_scratch(SIZE_MAX - 3));
    char *index = kv_index_memory(5000001);
    ck_assert(index && (uintptr_t)index % 64 == 0);
    memset(index, 1, 5000001);
    free(index);
}
END_TEST

Suite *suite_scratch(void);
Suite *suite_scratch(void)
{
    Suite *s = suite_create("scratch");
    TCase *c = tcase_create("scratch");
    tcase_add_test(c, every_thread_has_its_own);
    suite_add_tcase(s, c);
    return s;
}
