/* test_turns_hung.c — a disk that does not answer: who asks it for nothing goes on, who asks it is told, and the process ends. */
#include "tests/unit/service/turn_runs.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

Suite *suite_turns_hung(void);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool hangs, entered;
static int timeouts;

static ssize_t hanging_pwrite(int fd, const void *buf, size_t n, off_t at)
{
    pthread_mutex_lock(&lock);
    while (hangs) {
        entered = true;
        pthread_cond_broadcast(&changed);
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return kv_disk_io_system.pwrite(fd, buf, n, at);
}

static void set_hangs(bool to)
{
    pthread_mutex_lock(&lock);
    hangs = to;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static bool note_timeout(void *ctx, const struct kv_receipt *r)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    timeouts += r->kind == KV_RECEIPT_FAILURE && r->reason == KV_IO_TIMEOUT;
    pthread_mutex_unlock(&lock);
    return true;
}

/* An engine whose disk holds the save of session "first" and does not answer. */
static struct kv_engine *hung_engine(void)
{
    static struct kv_disk_io io;
    io = kv_disk_io_system;
    io.pwrite = hanging_pwrite;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.disk_path = tier_folder;
    c.disk_bytes = 64 << 20;
    c.disk_io = &io;
    c.sink = (struct kv_receipt_sink){NULL, note_timeout};
    struct kv_engine *e = make_engine(&c);
    set_hangs(true);
    turn_say(e, 100, "alpha", "first");
    pthread_mutex_lock(&lock);
    while (!entered) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return e;
}

START_TEST(a_hung_disk_holds_up_nobody_who_does_not_need_it)
{
    struct kv_engine *e = hung_engine();
    struct kv_engine_stats s;
    struct kv_session_info info;
    struct kv_error err;
    turn_say(e, 7, "beta", NULL); /* asks what is there, is not told, and computes */
    turn_say(e, 8, "beta", NULL);
    turn_say(e, 9, "gamma", "other");
    kv_engine_stats(e, &s);
    ck_assert_uint_ge(s.tier[2].failures, 1);
    ck_assert_int_eq(s.tier[2].last_failure, KV_IO_TIMEOUT);
    pthread_mutex_lock(&lock);
    ck_assert_int_eq(timeouts, 1); /* the others do not even ask a disk that hangs */
    pthread_mutex_unlock(&lock);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "first", &info, &err), KV_IO_TIMEOUT);
    kv_engine_drain(e, 100);
    kv_engine_destroy(e); /* returns, although a thread hangs still */
}
END_TEST

/* What hung goes on: nothing of it is lost. */
START_TEST(a_disk_that_answers_again_is_asked_again)
{
    struct kv_engine *e = hung_engine();
    struct run *r = calloc(1, sizeof *r);
    turn_say(e, 7, "beta", NULL);
    set_hangs(false);
    turn_await_saved(e, "first");
    kv_engine_drain(e, 60000);
    kv_engine_destroy(e);
    e = turn_engine(64 << 20, NULL);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

Suite *suite_turns_hung(void)
{
    Suite *s = suite_create("turns_hung");
    TCase *c = tcase_create("hung");
    tcase_add_checked_fixture(c, turn_setup, turn_teardown);
    tcase_set_timeout(c, 40);
    tcase_add_test(c, a_hung_disk_holds_up_nobody_who_does_not_need_it);
    tcase_add_test(c, a_disk_that_answers_again_is_asked_again);
    suite_add_tcase(s, c);
    return s;
}
