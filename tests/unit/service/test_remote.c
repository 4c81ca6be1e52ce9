/* test_remote.c — the remote tier against a store in memory that lies, stalls and dies: rows come back with the same bits or are computed. */
#include "runtime/service/engine.h"
#include "tests/unit/service/engine_runs.h"

#include "runtime/residency/disk.h"
#include "runtime/residency/mover.h"
#include "runtime/residency/remote.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Suite *suite_remote(void);

enum { HISTORY = 330, MORE = 30, STEPS = 8, OBJECTS = 64 };

/* ---------------------------------------------------------------- the store */

static struct {
    pthread_mutex_t lock;
    struct { char name[KV_REMOTE_NAME_CHARS + 1]; uint8_t *bytes; size_t n; } object[OBJECTS];
    int n;
    _Atomic int fails;  /* an enum kv_status for every call */
    _Atomic bool holds; /* gets answer when they are stopped, or when this ends */
    _Atomic bool slow;  /* erasing takes 100 ms */
    _Atomic int held, calls;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int find(const char *name)
{
    int i = 0;
    while (i < store.n && strcmp(store.object[i].name, name)) i++;
    return i;
}

static enum kv_status store_put(void *ctx, const char *name, const void *object, size_t n, const _Atomic bool *stop)
{
    (void)ctx, (void)stop;
    store.calls++;
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    int i = find(name);
    bool room = i < OBJECTS;
    if (room) {
        if (i == store.n) store.n++;
        strcpy(store.object[i].name, name);
        free(store.object[i].bytes);
        store.object[i].bytes = malloc(n);
        memcpy(store.object[i].bytes, object, n);
        store.object[i].n = n;
    }
    pthread_mutex_unlock(&store.lock);
    return room ? KV_OK : KV_NO_SPACE;
}

static enum kv_status store_get(void *ctx, const char *name, void *object, size_t cap, size_t *n, const _Atomic bool *stop)
{
    (void)ctx;
    store.calls++;
    *n = 0;
    if (store.holds) {
        store.held++;
        while (store.holds && !*stop) usleep(200);
        if (*stop) return KV_TRANSFER_CANCELLED;
    }
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    int i = find(name);
    enum kv_status s = i == store.n ? KV_NOT_FOUND : store.object[i].n > cap ? KV_CHECKSUM_MISMATCH : KV_OK;
    if (s == KV_OK) memcpy(object, store.object[i].bytes, *n = store.object[i].n);
    pthread_mutex_unlock(&store.lock);
    return s;
}

static enum kv_status store_has(void *ctx, const char *name, const _Atomic bool *stop)
{
    (void)ctx, (void)stop;
    store.calls++;
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    bool there = find(name) < store.n;
    pthread_mutex_unlock(&store.lock);
    return there ? KV_OK : KV_NOT_FOUND;
}

static enum kv_status store_erase(void *ctx, const char *name, const _Atomic bool *stop)
{
    (void)ctx, (void)stop;
    store.calls++;
    if (store.slow) {
        store.held++;
        usleep(100000);
    }
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    int i = find(name);
    bool there = i < store.n;
    if (there) {
        free(store.object[i].bytes);
        store.object[i] = store.object[--store.n];
        store.object[store.n].bytes = NULL;
    }
    pthread_mutex_unlock(&store.lock);
    return there ? KV_OK : KV_NOT_FOUND;
}

static enum kv_status store_facts(void *ctx, struct kv_remote_facts *out, const _Atomic bool *stop)
{
    (void)ctx, (void)stop;
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    *out = (struct kv_remote_facts){.objects = (uint64_t)store.n, .capacity_bytes = 1};
    pthread_mutex_unlock(&store.lock);
    return KV_OK;
}
static const struct kv_remote_io io = {NULL, store_put, store_get, store_has, store_erase, store_facts};

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
    ck_assert_int_eq(kv_remote_create(&io, key, pause_ms, &r), KV_OK);
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
        store.object[find(store.object[store.n - 1].name)].bytes[at] ^= 1;
        ck_assert_msg(kv_remote_get(r, &a, got, N, &never) == KV_CHECKSUM_MISMATCH, "byte %zu", at);
    }
    ck_assert_int_eq(kv_remote_put(r, &a, payload, N, &never), KV_OK);
    ck_assert_int_eq(kv_remote_get(r, &a, got, N - 1, &never), KV_CHECKSUM_MISMATCH); /* of another length */
    kv_remote_destroy(r);
    kv_remote_destroy(other);
}
END_TEST

START_TEST(the_breaker_opens_waits_and_tries_once)
{
    uint8_t got[64];
    struct kv_remote_stats s;
    struct kv_remote *r = open_remote(1, 60), *cautious = open_remote(1, 3600000);
    struct kv_chunk_identity a = identity("acme", 0);
    store.fails = KV_REMOTE_TIMEOUT;
    for (int i = 0; i < KV_REMOTE_STRIKES; i++) ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_REMOTE_TIMEOUT);
    int calls = store.calls;
    ck_assert(!kv_remote_asks(r));
    ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_REMOTE_UNAVAILABLE);
    ck_assert_int_eq(store.calls, calls); /* it was not asked */
    while (!kv_remote_asks(r)) usleep(1000);
    ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_REMOTE_TIMEOUT); /* one call tries, and fails */
    ck_assert(!kv_remote_asks(r));
    store.fails = KV_OK;
    while (!kv_remote_asks(r)) usleep(1000);
    ck_assert_int_eq(kv_remote_get(r, &a, got, 64, &never), KV_NOT_FOUND);
    kv_remote_stats(r, &s);
    ck_assert_int_eq(s.breaker, KV_BREAKER_CLOSED);
    ck_assert_uint_eq(s.failures, KV_REMOTE_STRIKES + 1);
    ck_assert_uint_eq(s.skipped, 1);
    /* What says nothing of the store opens nothing. */
    store.fails = KV_BODY_TOO_LARGE;
    for (int i = 0; i < 2 * KV_REMOTE_STRIKES; i++) ck_assert_int_eq(kv_remote_put(cautious, &a, got, 64, &never), KV_BODY_TOO_LARGE);
    ck_assert(kv_remote_asks(cautious));
    store.fails = KV_OK;
    kv_remote_destroy(r);
    kv_remote_destroy(cautious);
}
END_TEST

/* ---------------------------------------------------------------- an engine */

static char folder[64];

static void clear_folder(void)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(name);
    }
    if (d) closedir(d);
}

static void setup(void)
{
    snprintf(folder, sizeof folder, "%s/kvasir-remote-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
    mkdir(folder, 0700);
    clear_folder();
}

static void teardown(void)
{
    clear_folder();
    rmdir(folder);
}

/* Syncs that succeed before those that fail; negative: none fails. */
static _Atomic int good_syncs = -1;
static int sync_some(int fd)
{
    if (good_syncs < 0 || good_syncs-- > 0) return fdatasync(fd);
    good_syncs = 0;
    errno = EIO;
    return -1;
}

static struct kv_engine *engine_patient(uint64_t disk_bytes, uint64_t remote_bytes, int32_t timeout_ms)
{
    static struct kv_disk_io disk_io;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    disk_io = kv_disk_io_system;
    disk_io.sync = sync_some;
    c.disk_io = &disk_io;
    c.remote_timeout_ms = timeout_ms;
    c.n_threads = 2;
    c.prefix_reuse = false; /* what is found was read */
    c.disk_path = folder;
    c.disk_bytes = disk_bytes;
    c.disk_key[5] = 9;
    c.remote = &io;
    c.remote_bytes = remote_bytes;
    c.remote_pause_ms = 3600000;
    return make_engine(&c);
}

static struct kv_engine *engine_on(uint64_t disk_bytes, uint64_t remote_bytes)
{
    return engine_patient(disk_bytes, remote_bytes, 2000);
}

static void turn(struct run *r, uint32_t seed, int32_t n, const char *session)
{
    run_init(r, seed, n, STEPS);
    r->request.tenant = "alpha";
    r->request.session = session;
    r->request.observe_prompt = false;
}

static struct kv_tier_stats tier_of(struct kv_engine *e)
{
    struct kv_engine_stats s;
    kv_engine_stats(e, &s);
    ck_assert_int_eq(s.n_tiers, 4);
    ck_assert_str_eq(s.tier[3].name, "remote");
    return s.tier[3];
}

static int32_t held(struct kv_engine *e, const char *session)
{
    struct kv_session_info info = {0};
    while (kv_engine_session(e, KV_SESSION_SHOW, "alpha", session, &info, NULL) != KV_OK || (info.state != KV_SESSION_PAUSED_HOST && info.state != KV_SESSION_TOKEN_ONLY)) continue;
    return info.held_blocks;
}

/* Session s is saved, and others crowd it out until only the store has it. */
static void crowd_out(struct kv_engine *e, struct run *r)
{
    static const char *const others[] = {"o0", "o1", "o2", "o3", "o4", "o5", "o6", "o7", "o8", "o9", "o10", "o11"};
    turn(r, 4, HISTORY, "s");
    run_all(e, r);
    for (uint32_t i = 0; held(e, "s") > 0; i++) {
        ck_assert_uint_lt(i, sizeof others / sizeof *others);
        turn(r, 100 + i, HISTORY, others[i]);
        run_all(e, r);
        (void)held(e, others[i]);
    }
    while (tier_of(e).scratch_bytes) usleep(200);
}

static void plain(struct run *r, int32_t n)
{
    struct kv_engine *e = make_engine(NULL);
    turn(r, 4, n, NULL);
    run_all(e, r);
    kv_engine_destroy(e);
}

START_TEST(rows_that_only_the_store_has_give_the_same_bits)
{
    struct run *r = calloc(3, sizeof *r);
    plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = engine_on(4 << 20, 64 << 20);
    crowd_out(e, &r[2]);
    ck_assert_int_ge(store.n, HISTORY / 64);
    turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    ck_assert_uint_eq(tier_of(e).hits, HISTORY / 64);
    kv_engine_destroy(e);
    /* Two blocks from the disk and the others from the store. */
    clear_folder();
    e = engine_on(256 << 20, 64 << 20);
    turn(&r[1], 4, 64 * 2, "s");
    run_all(e, &r[1]);
    ck_assert_int_eq(held(e, "s"), 2);
    turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    ck_assert_uint_eq(tier_of(e).hits, 1 + HISTORY / 64 - 2); /* the short turn found its first there */
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(a_store_that_holds_back_holds_nobody_else)
{
    struct run *r = calloc(4, sizeof *r);
    plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = engine_on(4 << 20, 64 << 20);
    crowd_out(e, &r[2]);
    store.holds = true;
    turn(&r[1], 4, HISTORY + MORE, "s");
    run_begin(e, &r[1]);
    while (store.held == 0) usleep(200);
    turn(&r[2], 9, HISTORY, NULL); /* served meanwhile */
    run_all(e, &r[2]);
    turn(&r[3], 10, HISTORY, "t");
    run_begin(e, &r[3]);
    kv_stream_cancel(r[1].stream); /* given up in the middle of a fetch */
    run_end(&r[1]);
    store.holds = false;
    run_end(&r[3]);
    turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    /* The engine ends under a fetch. */
    store.holds = true;
    turn(&r[2], 11, HISTORY, "u");
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
    enum { TIMEOUT_MS = 200 };
    struct run *r = calloc(3, sizeof *r);
    struct kv_engine_stats st;
    plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = engine_patient(4 << 20, 64 << 20, TIMEOUT_MS);
    crowd_out(e, &r[2]);
    store.holds = true;
    store.held = 0;
    turn(&r[2], 10, HISTORY, "t");
    run_begin(e, &r[2]);
    while (store.held == 0) usleep(200);
    turn(&r[1], 4, HISTORY + MORE, "s");
    run_begin(e, &r[1]);
    while (tier_of(e).transfers_in_flight == 0) usleep(200);
    kv_engine_stats(e, &st);
    double patience_us = 1e3 * TIMEOUT_MS + (HISTORY + MORE) * 1e6 / st.rates.prefill_tokens_per_s; /* at most */
    for (double until_us = kv_now_us() + 2 * patience_us; kv_now_us() < until_us;) usleep(1000);
    store.holds = false;
    run_end(&r[1]);
    run_end(&r[2]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 0);
    ck_assert_uint_eq(tier_of(e).hits, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(failures_and_full_memory_cost_rows_only)
{
    struct run *r = calloc(3, sizeof *r);
    plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = engine_on(4 << 20, 64 << 20);
    crowd_out(e, &r[2]);
    store.fails = KV_REMOTE_UNAVAILABLE;
    turn(&r[1], 4, HISTORY + MORE, "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 0);
    ck_assert_uint_ge(tier_of(e).failures, 1);
    kv_engine_destroy(e);
    store.fails = KV_OK;
    /* Memory for two blocks on their way: two come. */
    clear_folder();
    struct kv_model_info m = *kv_model_info(demo_model());
    uint64_t block = (uint64_t)m.n_layers * kv_slab_bytes(KV_ROW_TYPE, m.n_kv_heads, m.d_head);
    e = engine_on(256 << 20, 2 * block);
    turn(&r[1], 4, HISTORY + MORE, "s");
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
    struct kv_engine *e = engine_on(4 << 20, 64 << 20);
    struct kv_session_info info;
    crowd_out(e, r);
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
    struct kv_engine *e = engine_on(4 << 20, 64 << 20);
    pthread_t other;
    void *first;
    crowd_out(e, r);
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

/* The last block goes, the one before it stays: dropping again erases both there. */
START_TEST(what_a_failing_disk_keeps_is_dropped_again)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = engine_on(4 << 20, 64 << 20);
    struct kv_session_info info;
    crowd_out(e, r);
    turn(r, 4, HISTORY, "s"); /* here as well as there */
    run_all(e, r);
    ck_assert_int_eq(held(e, "s"), HISTORY / 64);
    while (tier_of(e).scratch_bytes) usleep(200);
    int before = store.n;
    good_syncs = kv_model_info(demo_model())->n_layers + 2;
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s", &info, NULL), KV_IO_ERROR);
    good_syncs = -1;
    ck_assert_int_lt(held(e, "s"), HISTORY / 64);
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
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, only_what_was_sealed_under_that_identity_comes_back);
    tcase_add_test(t, the_breaker_opens_waits_and_tries_once);
    tcase_add_test(t, rows_that_only_the_store_has_give_the_same_bits);
    tcase_add_test(t, a_store_that_holds_back_holds_nobody_else);
    tcase_add_test(t, waiting_for_another_fetch_counts);
    tcase_add_test(t, failures_and_full_memory_cost_rows_only);
    tcase_add_test(t, dropping_erases_there_or_says_that_it_could_not);
    tcase_add_test(t, dropping_twice_at_once_waits_for_the_store);
    tcase_add_test(t, what_a_failing_disk_keeps_is_dropped_again);
    suite_add_tcase(s, t);
    return s;
}
