/* test_remote_ahead.c — histories that only the remote tier has come while their requests wait, and nobody else waits for them. */
#include "tests/unit/service/remote_runs.h"

#include <check.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

Suite *suite_remote_ahead(void);

enum { LONG = 1200 };

/* The store alone has session s; an engine that serves one request at a time and knows nothing but its key. */
static struct kv_engine *one_at_a_time(struct run *r)
{
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    remote_crowd_out(e, r);
    remote_settle(e);
    kv_engine_destroy(e);
    remote_clear_folder();
    struct kv_engine_config c = remote_config(64 << 20, 64 << 20);
    c.max_sequences = 1;
    c.prefix_reuse = true;
    c.prefetch_bytes = 64 << 20;
    store.gets = 0;
    return make_engine(&c);
}

static void take_time(struct run *r, int32_t position)
{
    (void)r, (void)position;
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* It is served until it is cancelled: what others wait for comes sooner than so many tokens. */
static void serve_somebody(struct kv_engine *e, struct run *r)
{
    remote_turn(r, 30, 40, NULL);
    r->request.max_tokens = LONG;
    r->at = take_time;
    run_begin(e, r);
    run_read(r, 1);
}

static struct kv_turn_stats turns_of(struct kv_engine *e)
{
    struct kv_engine_stats s;
    kv_engine_stats(e, &s);
    return s.turns;
}

START_TEST(a_history_comes_from_the_store_while_its_request_waits)
{
    struct run *r = calloc(3, sizeof *r);
    remote_plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = one_at_a_time(&r[2]);
    serve_somebody(e, &r[2]);
    remote_turn(&r[1], 4, HISTORY + MORE, "s");
    run_begin(e, &r[1]);
    while (turns_of(e).prefetches == 0) usleep(200);
    ck_assert_int_eq(r[1].n, 0);
    kv_stream_cancel(r[2].stream);
    run_end(&r[2]);
    ck_assert_int_eq(r[2].stats.finish, KV_FINISH_CANCELLED); /* it came while the other one was served */
    run_end(&r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    ck_assert_uint_eq(remote_tier(e).hits, HISTORY / 64);
    ck_assert_int_eq(store.gets, HISTORY / 64); /* not asked again in its turn */
    ck_assert_uint_eq(turns_of(e).prefetched_bytes, turns_of(e).restored_bytes);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* A store that holds back, while somebody is served who does not wait for it; then it fails, and is not asked once more. Or whoever waits gives up. */
START_TEST(nobody_waits_for_what_is_fetched_ahead)
{
    struct run *r = calloc(4, sizeof *r);
    remote_plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = one_at_a_time(&r[2]);
    for (int gives_up = 0; gives_up < 2; gives_up++) {
        store.holds = true;
        store.held = store.gets = 0;
        serve_somebody(e, &r[2]);
        remote_turn(&r[1], 4, HISTORY + MORE, "s");
        run_begin(e, &r[1]);
        while (store.held == 0) usleep(200);
        run_read(&r[2], r[2].n + 20);
        ck_assert_int_eq(store.held, 1); /* it holds back still */
        if (gives_up) kv_stream_cancel(r[1].stream);
        else store.fails = KV_REMOTE_UNAVAILABLE;
        if (!gives_up) store.holds = false;
        kv_stream_cancel(r[2].stream);
        run_end(&r[2]);
        run_end(&r[1]);
        ck_assert_int_eq(store.gets, 1);
        ck_assert_int_eq(r[1].stats.finish, gives_up ? KV_FINISH_CANCELLED : KV_FINISH_LENGTH);
        ck_assert_int_eq(r[1].stats.n_reused, 0);
        if (!gives_up) same_runs(&r[0], &r[1]);
        store.fails = KV_OK;
        if (gives_up) break;
        kv_engine_destroy(e);
        e = one_at_a_time(&r[3]);
    }
    kv_engine_destroy(e); /* under the fetch that was given up */
    free(r);
}
END_TEST

Suite *suite_remote_ahead(void)
{
    Suite *s = suite_create("remote_ahead");
    TCase *t = tcase_create("remote_ahead");
    tcase_add_checked_fixture(t, remote_setup, remote_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_history_comes_from_the_store_while_its_request_waits);
    tcase_add_test(t, nobody_waits_for_what_is_fetched_ahead);
    suite_add_tcase(s, t);
    return s;
}
