/* test_remote.c — the remote tier against a store in memory that lies, stalls and dies: rows come back with the same bits or are computed. */
#include "tests/unit/service/remote_runs.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Suite *suite_remote(void);

/* ---------------------------------------------------------------- objects */

static struct kv_chunk_identity identity(const char *tenant, int32_t position)
{
    struct kv_chunk_identity id = {.layer = -1, .position_first = position, .position_count = 64, .head_count = 3};
    strcpy(id.tenant, tenant);
    strcpy(id.support, "exact");
    return id;
}

static const _Atomic bool never;
static struct kv_remote *open_remote(uint8_t key_byte, int32_t pause_ms)
{
    uint8_t key[32] = {key_byte};
    struct kv_remote *r;
    ck_assert_int_eq(kv_remote_create(&remote_io, key, pause_ms, &r), KV_OK);
    return r;
}

START_TEST(only_what_was_sealed_under_that_identity_comes_back)
{
    enum { N = 10000 };
    static uint8_t payload[N], got[N], zero[N];
    for (int i = 0; i < N; i++) payload[i] = (uint8_t)(i * 7);
    struct kv_remote *r = open_remote(1, 1000), *other = open_remote(2, 1000);
    struct kv_chunk_identity a = identity("acme", 0), b = identity("acme", 64), c = identity("globex", 0);
    ck_assert_int_eq(kv_remote_put(r, &a, payload, N, &never), KV_OK);
    ck_assert_int_eq(kv_remote_put(r, &b, payload, N, &never), KV_OK);
    ck_assert_int_eq(store.n, 2);
    ck_assert_int_eq(kv_remote_get(r, &a, got, N, &never), KV_OK);
    ck_assert_mem_eq(got, payload, N);
    ck_assert_int_eq(kv_remote_get(r, &c, got, N, &never), KV_NOT_FOUND);     /* another tenant's name */
    ck_assert_int_eq(kv_remote_get(other, &a, got, N, &never), KV_NOT_FOUND); /* another key's */
    ck_assert_ptr_null(memmem(store.object[0].bytes, store.object[0].n, payload, 32));
    ck_assert_ptr_null(memmem(store.object[0].bytes, store.object[0].n, "acme", 4));
    /* A server that hands out one object for another. */
    char name[KV_REMOTE_NAME_CHARS + 1];
    strcpy(name, store.object[0].name);
    strcpy(store.object[0].name, store.object[1].name);
    strcpy(store.object[1].name, name);
    memset(got, 1, N);
    ck_assert_int_eq(kv_remote_get(r, &a, got, N, &never), KV_CHECKSUM_MISMATCH);
    ck_assert_mem_eq(got, zero, N);
    ck_assert_int_eq(store.n, 1); /* and it is erased there */
    ck_assert_int_eq(kv_remote_get(r, &a, got, N, &never), KV_NOT_FOUND);
    ck_assert_int_eq(kv_remote_erase(r, &a, &never), KV_OK);
    ck_assert_int_eq(kv_remote_put(r, &a, payload, N, &never), KV_OK);
    /* Every byte counts. */
    for (size_t at = 0; at < N; at += at < 64 ? 1 : 997) {
        ck_assert_int_eq(kv_remote_put(r, &a, payload, N, &never), KV_OK);
        store.object[remote_find(store.object[store.n - 1].name)].bytes[at] ^= 1;
        ck_assert_msg(kv_remote_get(r, &a, got, N, &never) == KV_CHECKSUM_MISMATCH, "byte %zu", at);
    }
    ck_assert_int_eq(kv_remote_put(r, &a, payload, N, &never), KV_OK);
    ck_assert_int_eq(kv_remote_get(r, &a, got, N - 1, &never), KV_CHECKSUM_MISMATCH); /* of another length */
    kv_remote_destroy(r);
    kv_remote_destroy(other);
}
END_TEST

enum { HOUR_S = 3600 };

START_TEST(the_breaker_opens_waits_and_tries_once)
{
    uint8_t got[64];
    struct kv_remote_stats s;
    struct kv_remote *r = open_remote(1, HOUR_S * 1000);
    struct kv_chunk_identity a = identity("acme", 0);
    store.fails = KV_REMOTE_TIMEOUT;
    for (int i = 0; i < KV_REMOTE_STRIKES; i++) ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_REMOTE_TIMEOUT);
    int calls = store.calls;
    ck_assert(!kv_remote_asks(r));
    ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_REMOTE_UNAVAILABLE);
    ck_assert_int_eq(store.calls, calls); /* it was not asked */
    steady_clock_ahead_s += HOUR_S;
    ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_REMOTE_TIMEOUT); /* one call tries, and fails */
    ck_assert(!kv_remote_asks(r));
    store.fails = KV_OK;
    steady_clock_ahead_s += HOUR_S;
    ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_NOT_FOUND);
    kv_remote_stats(r, &s);
    ck_assert_int_eq(s.breaker, KV_BREAKER_CLOSED);
    ck_assert_uint_eq(s.failures, KV_REMOTE_STRIKES + 1);
    ck_assert_uint_eq(s.skipped, 1);
    steady_clock_ahead_s = 0;
    kv_remote_destroy(r);
}
END_TEST

/* What it has is asked for and erased still. */
START_TEST(a_full_store_is_sent_nothing_for_a_while)
{
    static const enum kv_status full[] = {KV_NO_SPACE, KV_BODY_TOO_LARGE};
    uint8_t payload[64] = {7}, got[64];
    struct kv_remote_stats s;
    struct kv_chunk_identity a = identity("acme", 0), b = identity("acme", 64);
    for (int i = 0; i < 2; i++) {
        struct kv_remote *r = open_remote(1, HOUR_S * 1000);
        ck_assert_int_eq(kv_remote_put(r, &a, payload, 64, &never), KV_OK);
        ck_assert(kv_remote_takes(r));
        store.put_fails = full[i];
        ck_assert_int_eq(kv_remote_put(r, &b, payload, 64, &never), full[i]);
        ck_assert(kv_remote_asks(r) && !kv_remote_takes(r));
        kv_remote_stats(r, &s);
        ck_assert_str_eq(kv_breaker_name(s.breaker), "full");
        int calls = store.calls;
        ck_assert_int_eq(kv_remote_put(r, &b, payload, 64, &never), KV_NO_SPACE);
        ck_assert_int_eq(store.calls, calls); /* it was not asked */
        ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_OK);
        ck_assert_mem_eq(got, payload, 64);
        ck_assert_int_eq(kv_remote_erase(r, &a, &never), KV_OK);
        ck_assert(!kv_remote_takes(r));
        steady_clock_ahead_s += HOUR_S;
        ck_assert_int_eq(kv_remote_put(r, &b, payload, 64, &never), full[i]); /* one tries, and fails */
        ck_assert(!kv_remote_takes(r));
        steady_clock_ahead_s += HOUR_S;
        store.put_fails = KV_OK;
        ck_assert_int_eq(kv_remote_put(r, &b, payload, 64, &never), KV_OK);
        ck_assert_int_eq(kv_remote_erase(r, &b, &never), KV_OK);
        kv_remote_stats(r, &s);
        ck_assert_int_eq(s.breaker, KV_BREAKER_CLOSED);
        ck_assert_uint_eq(s.skipped, 1);
        steady_clock_ahead_s = 0;
        kv_remote_destroy(r);
    }
}
END_TEST

/* ---------------------------------------------------------------- an engine */

START_TEST(rows_that_only_the_store_has_give_the_same_bits)
{
    struct run *r = calloc(3, sizeof *r);
    remote_plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    remote_crowd_out(e, &r[2]);
    remote_settle(e);
    ck_assert_int_ge(store.n, HISTORY / 64);
    remote_turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    ck_assert_uint_eq(remote_tier(e).hits, HISTORY / 64);
    kv_engine_destroy(e);
    /* Two blocks from the disk and the others from the store. */
    remote_clear_folder();
    e = remote_engine(256 << 20, 64 << 20);
    store.fails = KV_NOT_FOUND; /* so that no rate of fetching is known, by which the next one could be left out */
    remote_turn(&r[1], 4, 64 * 2, "s");
    run_all(e, &r[1]);
    ck_assert_int_eq(remote_held(e, "s"), 2);
    store.fails = KV_OK;
    remote_turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    ck_assert_uint_eq(remote_tier(e).hits, HISTORY / 64 - 2);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(a_store_that_holds_back_holds_nobody_else)
{
    struct run *r = calloc(4, sizeof *r);
    remote_plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    remote_crowd_out(e, &r[2]);
    remote_settle(e);
    store.holds = true;
    remote_turn(&r[1], 4, HISTORY + MORE, "s");
    run_begin(e, &r[1]);
    while (store.held == 0) usleep(200);
    remote_turn(&r[2], 9, HISTORY, NULL); /* served meanwhile */
    run_all(e, &r[2]);
    remote_turn(&r[3], 10, HISTORY, "t");
    run_begin(e, &r[3]);
    kv_stream_cancel(r[1].stream); /* given up in the middle of a fetch */
    run_end(&r[1]);
    store.holds = false;
    run_end(&r[3]);
    remote_turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    kv_engine_destroy(e);
    /* The engine ends under a fetch; a new one, which knows no rate of fetching by which it could be left out. */
    e = remote_engine(4 << 20, 64 << 20);
    store.holds = true;
    remote_turn(&r[2], 11, HISTORY, "u");
    int before = store.held;
    run_begin(e, &r[2]);
    while (store.held == before) usleep(200);
    kv_engine_destroy(e);
    run_end(&r[2]);
    store.holds = false;
    free(r);
}
END_TEST

/* Who stands behind a slow fetch gives up when its own time is over, not when its turn has come. */
START_TEST(waiting_for_another_fetch_counts)
{
    struct run *r = calloc(3, sizeof *r);
    remote_plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    remote_crowd_out(e, &r[2]);
    remote_settle(e);
    store.holds = true;
    store.held = 0;
    remote_turn(&r[2], 10, HISTORY, "t");
    run_begin(e, &r[2]);
    while (store.held == 0) usleep(200);
    remote_turn(&r[1], 4, HISTORY + MORE, "s");
    run_begin(e, &r[1]);
    while (remote_tier(e).transfers_in_flight == 0) usleep(200);
    steady_clock_ahead_s += 2 * TIMEOUT_S;
    store.holds = false;
    run_end(&r[1]);
    run_end(&r[2]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 0);
    ck_assert_uint_eq(remote_tier(e).hits, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(failures_and_full_memory_cost_rows_only)
{
    struct run *r = calloc(3, sizeof *r);
    remote_plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    remote_crowd_out(e, &r[2]);
    remote_settle(e);
    store.fails = KV_REMOTE_UNAVAILABLE;
    remote_turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 0);
    ck_assert_uint_ge(remote_tier(e).failures, 1);
    kv_engine_destroy(e);
    store.fails = KV_OK;
    /* Memory for two blocks on their way: two come. */
    remote_clear_folder();
    struct kv_model_info m = *kv_model_info(demo_model());
    uint64_t block = (uint64_t)m.n_layers * kv_slab_bytes(KV_ROW_TYPE, m.n_kv_heads, m.d_head);
    e = remote_engine(256 << 20, 2 * block);
    remote_turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 2 * 64);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(dropping_erases_there_or_says_that_it_could_not)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    struct kv_session_info info;
    remote_crowd_out(e, r);
    remote_settle(e);
    int before = store.n;
    store.fails = KV_REMOTE_UNAVAILABLE;
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s", &info, NULL), KV_REMOTE_UNAVAILABLE);
    ck_assert_int_eq(store.n, before);
    store.fails = KV_FORBIDDEN; /* to the engine, not to who asked it */
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s", &info, NULL), KV_REMOTE_UNAVAILABLE);
    store.fails = KV_OK;
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s", &info, NULL), KV_OK);
    ck_assert_int_eq(store.n, before - HISTORY / 64);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s", &info, NULL), KV_NOT_FOUND);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

static void *drop_s(void *e)
{
    struct kv_session_info info;
    return (void *)(intptr_t)kv_engine_session(e, KV_SESSION_DROP, "alpha", "s", &info, NULL);
}

/* Who drops a session while somebody else does is told no sooner, and nothing better. */
START_TEST(dropping_twice_at_once_waits_for_the_store)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    pthread_t other;
    void *first;
    remote_crowd_out(e, r);
    remote_settle(e);
    int before = store.n;
    store.fails = KV_REMOTE_UNAVAILABLE;
    store.slow = true;
    store.held = 0;
    ck_assert_int_eq(pthread_create(&other, NULL, drop_s, e), 0);
    while (store.held == 0) usleep(200);
    ck_assert_int_eq((intptr_t)drop_s(e), KV_REMOTE_UNAVAILABLE);
    pthread_join(other, &first);
    ck_assert_int_eq((intptr_t)first, KV_REMOTE_UNAVAILABLE);
    store.slow = false;
    store.fails = KV_OK;
    ck_assert_int_eq((intptr_t)drop_s(e), KV_OK);
    ck_assert_int_eq(store.n, before - HISTORY / 64);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* A store that answers, but slowly: the drop ends by itself, and the next one goes on where it ended. */
START_TEST(a_drop_is_bounded_as_a_whole)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    remote_crowd_out(e, r);
    remote_settle(e);
    int before = store.n;
    store.erase_s = 2 * TIMEOUT_S;
    ck_assert_int_eq((intptr_t)drop_s(e), KV_REMOTE_TIMEOUT);
    ck_assert_int_eq(store.erases, 3); /* the fourth would begin after six times the limit of one */
    ck_assert_int_eq(store.n, before - 3);
    store.erase_s = 0;
    ck_assert_int_eq((intptr_t)drop_s(e), KV_OK);
    ck_assert_int_eq(store.n, before - HISTORY / 64);
    kv_engine_destroy(e);
    free(r);
    steady_clock_ahead_s = 0;
}
END_TEST

/* Of a dropped session nothing is sent any more, and its erasure waits for nobody else's blocks. */
START_TEST(dropping_goes_before_what_waits_to_be_sent)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    pthread_t other;
    void *dropped;
    store.holds_puts = true;
    remote_crowd_out(e, r);
    while (store.puts == 0) usleep(200);
    uint64_t waiting = remote_tier(e).transfers_in_flight;
    ck_assert_uint_ge(waiting, HISTORY / 64 - 1); /* one is being sent */
    ck_assert_int_eq(pthread_create(&other, NULL, drop_s, e), 0);
    while (remote_tier(e).transfers_in_flight == waiting) usleep(200);
    store.holds_puts = false;
    pthread_join(other, &dropped);
    ck_assert_int_eq((intptr_t)dropped, KV_OK);
    ck_assert_int_eq(store.puts_at_erase, 1);
    remote_settle(e);
    remote_turn(r, 4, HISTORY, "s");
    run_all(e, r);
    ck_assert_int_eq(r->stats.n_reused, 0);
    ck_assert_uint_eq(remote_tier(e).hits, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* The last block goes, the one before it stays: dropping again erases both there. */
START_TEST(what_a_failing_disk_keeps_is_dropped_again)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = remote_engine(4 << 20, 64 << 20);
    struct kv_session_info info;
    remote_crowd_out(e, r);
    remote_settle(e);
    remote_turn(r, 4, HISTORY, "s"); /* here as well as there */
    run_all(e, r);
    ck_assert_int_eq(remote_held(e, "s"), HISTORY / 64);
    remote_settle(e);
    int before = store.n;
    good_syncs = kv_model_info(demo_model())->n_layers + 2;
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s", &info, NULL), KV_IO_ERROR);
    good_syncs = -1;
    ck_assert_int_lt(remote_held(e, "s"), HISTORY / 64);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s", &info, NULL), KV_OK);
    ck_assert_int_eq(store.n, before - HISTORY / 64);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

Suite *suite_remote(void)
{
    Suite *s = suite_create("remote");
    TCase *t = tcase_create("remote");
    tcase_add_checked_fixture(t, remote_setup, remote_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, only_what_was_sealed_under_that_identity_comes_back);
    tcase_add_test(t, the_breaker_opens_waits_and_tries_once);
    tcase_add_test(t, a_full_store_is_sent_nothing_for_a_while);
    tcase_add_test(t, rows_that_only_the_store_has_give_the_same_bits);
    tcase_add_test(t, a_store_that_holds_back_holds_nobody_else);
    tcase_add_test(t, waiting_for_another_fetch_counts);
    tcase_add_test(t, failures_and_full_memory_cost_rows_only);
    tcase_add_test(t, dropping_erases_there_or_says_that_it_could_not);
    tcase_add_test(t, dropping_twice_at_once_waits_for_the_store);
    tcase_add_test(t, a_drop_is_bounded_as_a_whole);
    tcase_add_test(t, dropping_goes_before_what_waits_to_be_sent);
    tcase_add_test(t, what_a_failing_disk_keeps_is_dropped_again);
    suite_add_tcase(s, t);
    return s;
}
