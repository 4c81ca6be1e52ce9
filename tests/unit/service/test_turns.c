/* test_turns.c — completed turns on disk: resumed by another engine with the same bits, or computed again; never damaged, never another's. */
#include "runtime/service/engine.h"
#include "tests/unit/service/engine_runs.h"

#include "runtime/residency/disk.h"
#include "runtime/service/lifecycle.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

Suite *suite_turns(void);

enum { HISTORY = 330, MORE = 30, STEPS = 8 };

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
    snprintf(folder, sizeof folder, "%s/kvasir-turns-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
    mkdir(folder, 0700);
    clear_folder();
}

static void teardown(void)
{
    clear_folder();
    rmdir(folder);
}

static struct kv_engine *engine_with(uint64_t disk_bytes, const struct kv_disk_io *io)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.prefix_reuse = false; /* what is found was read */
    c.disk_path = folder;
    c.disk_bytes = disk_bytes;
    c.disk_io = io;
    c.disk_key[5] = 9;
    return make_engine(&c);
}

/* Prompt: the first n tokens of a fixed text. */
static void turn_init(struct run *r, int32_t n, const char *tenant, const char *session)
{
    run_init(r, 4, n, STEPS);
    r->request.tenant = tenant;
    r->request.session = session;
    r->request.observe_prompt = false;
}

static void plain(struct run *r, int32_t n)
{
    struct kv_engine *e = make_engine(NULL);
    turn_init(r, n, "alpha", NULL);
    run_all(e, r);
    kv_engine_destroy(e);
}

static struct kv_turn_stats stats_of(struct kv_engine *e)
{
    struct kv_engine_stats s;
    kv_engine_stats(e, &s);
    ck_assert_str_eq(s.tier[2].name, "disk");
    ck_assert_uint_eq(s.tier[2].bytes_in, s.tier[2].bytes_out + s.tier[2].persistent_bytes);
    ck_assert_uint_le(s.tier[2].used_bytes, s.tier[2].capacity_bytes);
    for (int t = 0; t < 2; t++) {
        ck_assert_uint_ge(s.tier[t].bytes_in, s.tier[t].bytes_out);
        ck_assert_uint_le(s.tier[t].used_bytes, s.tier[t].capacity_bytes);
    }
    ck_assert_str_eq(s.tier[1].name, "host");
    ck_assert_uint_eq(s.tier[1].bytes_in, s.tier[1].bytes_out + s.tier[1].used_bytes);
    ck_assert_uint_eq(s.tier[1].used_bytes, s.tier[1].persistent_bytes + s.tier[1].staging_bytes);
    ck_assert_uint_eq(s.tier[1].pinned_bytes, 0); /* there is no device to pin for */
    ck_assert(!s.turns.restores || s.tier[2].scratch_bytes > 0);
    ck_assert(!s.tier[2].failures == !s.tier[2].last_failure_us && !s.tier[2].failures == (s.tier[2].last_failure == KV_OK));
    return s.turns;
}

/* The turn's save is over: a state, not a time, is waited for. */
static void await_saved(struct kv_engine *e, const char *session)
{
    struct kv_session_info info = {0};
    struct kv_error err;
    while (kv_engine_session(e, KV_SESSION_SHOW, "alpha", session, &info, &err) != KV_OK || info.state != KV_SESSION_PAUSED_HOST) continue;
}

static void first_turn(const char *tenant, const char *session, int32_t n)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = engine_with(256 << 20, NULL);
    turn_init(r, n, tenant, session);
    run_all(e, r);
    kv_engine_destroy(e); /* saves that were begun are finished */
    free(r);
}

START_TEST(another_engine_resumes_with_the_same_bits)
{
    struct run *r = calloc(2, sizeof *r);
    plain(&r[0], HISTORY + MORE);
    first_turn("alpha", "s", HISTORY);
    struct kv_engine *e = engine_with(256 << 20, NULL);
    turn_init(&r[1], HISTORY + MORE, "alpha", "s");
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    struct kv_session_info info[4];
    ck_assert_int_eq(kv_engine_sessions(e, info, 4), 1);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s", &info[0], NULL), KV_OK);
    ck_assert_uint_eq(info[0].restores, 1);
    ck_assert_int_eq(info[0].restored_tokens, HISTORY / 64 * 64);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* A request of the same words: another tenant's rows, another session's of the same tenant, a text that differs early. */
START_TEST(only_its_own_rows_are_found)
{
    struct run *r = calloc(3, sizeof *r);
    first_turn("alpha", "s", HISTORY);
    plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = engine_with(256 << 20, NULL);
    turn_init(&r[1], HISTORY + MORE, "beta", "s");
    run_all(e, &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 0);
    same_runs(&r[0], &r[1]);
    turn_init(&r[1], HISTORY + MORE, "alpha", "other");
    run_all(e, &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    same_runs(&r[0], &r[1]);
    turn_init(&r[2], HISTORY + MORE, "alpha", "s");
    r[2].prompt[130]++;
    run_all(e, &r[2]);
    ck_assert_int_eq(r[2].stats.n_reused, 128);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* One byte of every segment in turn, at a place that moves: what is hit is computed again. */
START_TEST(damaged_rows_are_computed_again)
{
    struct run *r = calloc(2, sizeof *r);
    plain(&r[0], HISTORY + MORE);
    uint64_t failures = 0;
    for (int round = 0; round < 8; round++) {
        clear_folder();
        first_turn("alpha", "s", HISTORY);
        char name[128];
        snprintf(name, sizeof name, "%s/segment-%016x", folder, 0);
        int fd = open(name, O_RDWR);
        struct stat st;
        ck_assert(fd >= 0 && fstat(fd, &st) == 0);
        off_t at = st.st_size * (2 * round + 1) / 16;
        uint8_t byte;
        if (round % 4 == 3) {
            ck_assert_int_eq(ftruncate(fd, at), 0);
        } else {
            ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
            byte ^= 1 << round % 8;
            ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
        struct kv_engine *e = engine_with(256 << 20, NULL);
        turn_init(&r[1], HISTORY + MORE, "alpha", "s");
        run_all(e, &r[1]);
        same_runs(&r[0], &r[1]);
        failures += stats_of(e).failures;
        kv_engine_destroy(e);
    }
    ck_assert_uint_gt(failures, 0);
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- a disk that fails */

static _Atomic int reads_left, writes_left;

static ssize_t failing_pread(int fd, void *buf, size_t n, off_t at)
{
    if (atomic_fetch_sub(&reads_left, 1) > 0) return pread(fd, buf, n, at);
    errno = EIO;
    return -1;
}

static ssize_t failing_pwrite(int fd, const void *buf, size_t n, off_t at)
{
    if (atomic_fetch_sub(&writes_left, 1) > 0) return pwrite(fd, buf, n, at);
    errno = ENOSPC;
    return -1;
}

START_TEST(a_failing_disk_costs_time_only)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_disk_io io = kv_disk_io_system;
    io.pread = failing_pread;
    io.pwrite = failing_pwrite;
    plain(&r[0], HISTORY + MORE);
    for (int round = 0; round < 6; round++) {
        clear_folder();
        atomic_store(&reads_left, 1 << 30);
        atomic_store(&writes_left, round % 2 ? 1 << 30 : round > 0);
        struct kv_engine *e = engine_with(256 << 20, &io);
        turn_init(&r[1], HISTORY, "alpha", "s");
        run_all(e, &r[1]);
        kv_engine_destroy(e);
        e = engine_with(256 << 20, &io);
        if (round % 2) atomic_store(&reads_left, 1 + 3 * round);
        turn_init(&r[1], HISTORY + MORE, "alpha", "s");
        run_all(e, &r[1]);
        same_runs(&r[0], &r[1]);
        ck_assert_int_lt(r[1].stats.n_reused, HISTORY / 64 * 64);
        kv_engine_destroy(e);
    }
    free(r);
}
END_TEST

static ssize_t slow_pread(int fd, void *buf, size_t n, off_t at)
{
    usleep(1000); /* a slow disk, so that compute has something to run under */
    return failing_pread(fd, buf, n, at);
}

/* On the decode thread, whose figure it is: compute slower than the disk on any machine, so that it begins with the first layer read. */
static void slow_rows(struct run *r, int32_t position)
{
    (void)position;
    ((struct kv_engine *)r->ctx)->us_per_row = 2000;
}

/* The new turn's prefill runs while later layers are still being read; the second time their read fails under it and the step is thrown away. */
START_TEST(prefill_runs_under_the_read)
{
    static struct run warm;
    struct run *r = calloc(2, sizeof *r);
    struct kv_disk_io io = kv_disk_io_system;
    io.pread = slow_pread;
    plain(&r[0], HISTORY + 180);
    first_turn("alpha", "s", HISTORY);
    for (int fails = 0; fails < 2; fails++) {
        atomic_store(&reads_left, 1 << 30);
        struct kv_engine *e = engine_with(256 << 20, &io);
        run_init(&warm, 7, 20, 1);
        warm.at = slow_rows;
        warm.ctx = e;
        run_all(e, &warm);
        /* A read a slab: the last layer's are left out. */
        int all = (HISTORY / 64) * kv_model_info(demo_model())->n_layers;
        if (fails) atomic_store(&reads_left, all - 3);
        turn_init(&r[1], HISTORY + 180, "alpha", "s");
        run_all(e, &r[1]);
        same_runs(&r[0], &r[1]);
        struct kv_turn_stats t = stats_of(e);
        ck_assert_uint_eq(t.overlapped, 1);
        ck_assert_uint_eq(t.failures, fails ? 1 : 0);
        ck_assert_int_eq(r[1].stats.n_reused < HISTORY / 64 * 64, fails);
        kv_engine_destroy(e);
    }
    free(r);
}
END_TEST

enum { WAITING = 4 };

static struct kv_engine *one_at_a_time(uint64_t prefetch_bytes, const struct kv_disk_io *io)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.max_sequences = 1;
    c.prefetch_bytes = prefetch_bytes;
    c.disk_path = folder;
    c.disk_bytes = 256 << 20;
    c.disk_io = io;
    c.disk_key[5] = 9;
    return make_engine(&c);
}

static void text(struct run *r, int i, int32_t n, int32_t steps)
{
    static const char *const sessions[WAITING] = {"w0", "w1", "w2", "w3"};
    run_init(r, 40 + (uint32_t)i, n, steps);
    r->request.tenant = "alpha";
    r->request.session = sessions[i];
    r->request.observe_prompt = false;
}

/* Requests that wait for their turn have their history in host memory when it comes, as far as the window goes. */
START_TEST(histories_come_ahead_of_their_turn)
{
    struct run *r = calloc(2 * WAITING, sizeof *r);
    struct kv_disk_io io = kv_disk_io_system;
    io.pread = failing_pread;
    for (int i = 0; i < WAITING; i++) {
        struct kv_engine *e = make_engine(NULL);
        text(&r[i], i, HISTORY + MORE, i ? STEPS : 100);
        r[i].request.session = NULL;
        run_all(e, &r[i]);
        kv_engine_destroy(e);
    }
    for (int window = 0; window < 2; window++) {
        clear_folder();
        atomic_store(&reads_left, 1 << 30);
        struct kv_engine *e = one_at_a_time(0, NULL);
        for (int i = 0; i < WAITING; i++) {
            text(&r[WAITING + i], i, HISTORY, 2);
            run_all(e, &r[WAITING + i]);
        }
        kv_engine_destroy(e);
        e = one_at_a_time(window ? 4096 : 64 << 20, &io);
        for (int i = 0; i < WAITING; i++) text(&r[WAITING + i], i, HISTORY + MORE, i ? STEPS : 100), run_begin(e, &r[WAITING + i]);
        for (int i = 0; i < WAITING; i++) run_end(&r[WAITING + i]), same_runs(&r[i], &r[WAITING + i]);
        for (int i = 0; i < WAITING; i++) ck_assert_int_eq(r[WAITING + i].stats.n_reused, HISTORY / 64 * 64);
        struct kv_turn_stats t = stats_of(e);
        ck_assert_uint_eq(t.restores, WAITING);
        ck_assert_uint_eq(t.prefetches, window ? 0 : WAITING - 1);
        if (!window) ck_assert_uint_eq(t.prefetched_bytes * WAITING, t.restored_bytes * (WAITING - 1));
        struct kv_session_info info;
        await_saved(e, "w3");
        ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "w3", &info, NULL), KV_OK);
        ck_assert_uint_eq(info.restores, 1);
        ck_assert_uint_eq(info.failures, 0);
        kv_engine_destroy(e);
    }
    free(r);
}
END_TEST

/* Cancelled, failed and abandoned while the history is on its way: nothing is left held, and the others' tokens are the same. */
START_TEST(what_is_read_ahead_may_go_wrong)
{
    struct run *r = calloc(2 * WAITING, sizeof *r);
    struct kv_disk_io io = kv_disk_io_system;
    io.pread = slow_pread;
    struct kv_engine *e = one_at_a_time(0, NULL);
    atomic_store(&reads_left, 1 << 30);
    for (int i = 0; i < WAITING; i++) text(&r[i], i, HISTORY, 2), run_all(e, &r[i]);
    kv_engine_destroy(e);
    for (int i = 0; i < WAITING; i++) {
        e = make_engine(NULL);
        text(&r[i], i, HISTORY + MORE, STEPS);
        r[i].request.session = NULL;
        run_all(e, &r[i]);
        kv_engine_destroy(e);
    }
    for (int round = 0; round < 3; round++) {
        e = one_at_a_time(64 << 20, &io);
        if (round == 1) atomic_store(&reads_left, 25);
        for (int i = 0; i < WAITING; i++) text(&r[WAITING + i], i, HISTORY + MORE, STEPS), run_begin(e, &r[WAITING + i]);
        if (round == 0) kv_stream_cancel(r[WAITING + 1].stream), kv_stream_cancel(r[WAITING + 2].stream);
        for (int i = 0; i < WAITING && round < 2; i++) {
            run_end(&r[WAITING + i]);
            if (r[WAITING + i].stats.finish == KV_FINISH_LENGTH) same_runs(&r[i], &r[WAITING + i]);
        }
        if (round < 2) ck_assert_int_eq(r[WAITING + 3].stats.finish, KV_FINISH_LENGTH);
        kv_engine_destroy(e); /* the third time, in the middle of it */
        for (int i = 0; i < WAITING && round == 2; i++) run_end(&r[WAITING + i]);
        atomic_store(&reads_left, 1 << 30);
    }
    free(r);
}
END_TEST

START_TEST(the_cap_holds_and_the_oldest_go)
{
    enum { CAP = 8 << 20 };
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = engine_with(CAP, NULL);
    char session[16];
    for (int i = 0; i < 24; i++) {
        run_init(r, 100 + (uint32_t)i, 400, 2);
        snprintf(session, sizeof session, "s%d", i);
        r->request.tenant = "alpha";
        r->request.session = session;
        r->request.observe_prompt = false;
        run_all(e, r);
        (void)stats_of(e);
    }
    struct kv_session_info first, last;
    await_saved(e, "s23");
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s23", &last, NULL), KV_OK);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s0", &first, NULL), KV_OK);
    ck_assert_int_eq(last.held_blocks, 6);
    ck_assert_int_eq(first.held_blocks, 0);
    kv_engine_destroy(e);
    DIR *d = opendir(folder);
    off_t all = 0;
    for (struct dirent *f; (f = readdir(d));) {
        char name[400];
        struct stat st;
        snprintf(name, sizeof name, "%s/%s", folder, f->d_name);
        if (stat(name, &st) == 0 && S_ISREG(st.st_mode)) all += st.st_blocks * 512;
    }
    closedir(d);
    ck_assert_int_le(all, CAP);
    free(r);
}
END_TEST

START_TEST(pinned_sessions_stay_and_dropped_ones_go)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = engine_with(8 << 20, NULL);
    struct kv_session_info info;
    struct kv_error err;
    char session[16];
    for (int i = 0; i < 16; i++) {
        run_init(r, 100 + (uint32_t)i, 400, 2);
        snprintf(session, sizeof session, "s%d", i);
        r->request.tenant = "alpha";
        r->request.session = session;
        r->request.observe_prompt = false;
        run_all(e, r);
        if (i) continue;
        await_saved(e, "s0");
        ck_assert_int_eq(kv_engine_session(e, KV_SESSION_PIN, "alpha", "s0", &info, NULL), KV_OK);
        ck_assert(info.pinned);
    }
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s0", &info, NULL), KV_OK);
    ck_assert_int_eq(info.held_blocks, 6);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s0", NULL, &err), KV_CONFLICT);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_UNPIN, "alpha", "s0", NULL, NULL), KV_OK);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s0", NULL, &err), KV_OK);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s0", NULL, &err), KV_NOT_FOUND);
    kv_engine_destroy(e);
    e = engine_with(8 << 20, NULL);
    run_init(r, 100, 420, 2);
    r->request.tenant = "alpha";
    r->request.session = "s0";
    r->request.observe_prompt = false;
    run_all(e, r);
    ck_assert_int_eq(r->stats.n_reused, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

static void say(struct kv_engine *e, uint32_t text, const char *tenant, const char *session)
{
    struct run *r = calloc(1, sizeof *r);
    run_init(r, text, 400, 2);
    r->request.tenant = tenant;
    r->request.session = session;
    r->request.observe_prompt = false;
    run_all(e, r);
    free(r);
}

/* Names, counts and pins are there again, pins hold, and what was dropped stays away. */
START_TEST(sessions_are_known_after_a_restart)
{
    struct kv_session_info info[4], before;
    struct kv_error err;
    struct kv_engine *e = engine_with(8 << 20, NULL);
    say(e, 100, "alpha", "kept");
    say(e, 101, "beta", "other");
    await_saved(e, "kept");
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_PIN, "alpha", "kept", &before, NULL), KV_OK);
    kv_engine_destroy(e);
    for (int round = 0; round < 2; round++) {
        e = engine_with(8 << 20, NULL);
        ck_assert_int_eq(kv_engine_sessions(e, info, 4), 2);
        const struct kv_session_info *kept = !strcmp(info[0].session, "kept") ? &info[0] : &info[1];
        ck_assert_str_eq(kept->tenant, "alpha");
        ck_assert(kept->pinned);
        ck_assert_int_eq(kept->state, KV_SESSION_PAUSED_HOST);
        ck_assert_int_eq(kept->tokens, before.tokens);
        ck_assert_int_eq(kept->blocks, 6);
        ck_assert_int_eq(kept->held_blocks, 6);
        ck_assert_uint_eq(kept->saves, 1);
        ck_assert_int_eq(kept->used_us, before.used_us);
        ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "kept", NULL, &err), KV_CONFLICT);
        kv_engine_destroy(e);
    }
    e = engine_with(8 << 20, NULL);
    for (uint32_t i = 0; i < 16; i++) say(e, 200 + i, "alpha", "noise"); /* more than fits beside the pinned one */
    kv_engine_destroy(e); /* finishes the saves */
    e = engine_with(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "kept", &info[0], NULL), KV_OK);
    ck_assert_int_eq(info[0].held_blocks, 6);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_UNPIN, "alpha", "kept", NULL, NULL), KV_OK);
    kv_engine_destroy(e);
    e = engine_with(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "beta", "other", NULL, &err), KV_NOT_FOUND); /* its blocks had to go */
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "kept", &info[0], NULL), KV_OK);
    ck_assert(!info[0].pinned);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "kept", NULL, &err), KV_OK);
    kv_engine_destroy(e);
    e = engine_with(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "kept", NULL, &err), KV_NOT_FOUND);
    kv_engine_destroy(e);
}
END_TEST

static int slow_sync(int fd)
{
    nanosleep(&(struct timespec){0, 200000000}, NULL); /* as a busy disk: the next save waits behind this one */
    return kv_disk_io_system.sync(fd);
}

/* What was dropped does not come back with a save that was on its way. */
START_TEST(a_session_dropped_before_it_was_saved_stays_away)
{
    struct kv_error err;
    struct kv_disk_io io = kv_disk_io_system;
    io.sync = slow_sync;
    struct kv_engine *e = engine_with(8 << 20, &io);
    say(e, 100, "alpha", "first");
    say(e, 101, "alpha", "gone");
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "gone", NULL, &err), KV_OK);
    kv_engine_destroy(e); /* finishes the saves */
    e = engine_with(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "first", NULL, &err), KV_OK);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "gone", NULL, &err), KV_NOT_FOUND);
    kv_engine_destroy(e);
}
END_TEST

static void no_event(void *ctx)
{
    (void)ctx;
}

/* Saves two blocks under a base when `save`; then says how many sessions are known and how many blocks a look finds. */
static void with_base(struct kv_turns_config *c, bool save, int32_t *sessions, int32_t *blocks)
{
    enum { TOKENS = 2 * KV_BLOCK_ROWS };
    struct kv_turns *t;
    struct kv_error err;
    struct kv_arena *a;
    struct kv_cache cache;
    int32_t tokens[TOKENS];
    struct kv_session_info info[4];
    for (int i = 0; i < TOKENS; i++) tokens[i] = i * 3;
    ck_assert_int_eq(kv_arena_create(c->slab_bytes, 64 * c->slab_bytes, &a), KV_OK);
    ck_assert_int_eq(kv_turns_create(c, &t, &err), KV_OK);
    if (save) {
        ck_assert_int_eq(kv_cache_init(&cache, 2, 2, 16, KV_F16, TOKENS), KV_OK);
        ck_assert_int_eq(kv_cache_reserve(&cache, a, TOKENS), KV_OK);
        cache.n_rows = TOKENS;
        cache.n_sealed = 2;
        ck_assert(kv_turns_save(t, "alpha", "s", tokens, &cache, 2, 1));
        struct kv_turn *j;
        while (!(j = kv_turns_saved(t))) continue;
        ck_assert_int_eq(j->status, KV_OK);
        kv_cache_free(&j->own, a);
        kv_turns_let_go(t, j);
    }
    struct kv_turn *j = kv_turns_look(t, "alpha", "", tokens, TOKENS, 0, 0, false, (struct kv_fault_marks){0});
    while (atomic_load(&j->phase) == KV_TURN_LOOKING) continue;
    *blocks = j->end;
    kv_turns_let_go(t, j);
    *sessions = kv_turns_sessions(t, info, 4);
    kv_turns_stop(t);
    kv_turns_destroy(t);
    kv_arena_destroy(a);
}

/* Segments of another model, adapter set, numerics, position contract or representation: neither blocks nor names are found, and both are there again
 * when their own model is. */
START_TEST(another_model_in_the_same_folder)
{
    int32_t sessions, blocks;
    struct kv_turns_config own = {.n_layers = 2, .n_kv_heads = 2, .slab_bytes = kv_slab_bytes(KV_F16, 2, 16), .path = folder, .capacity_bytes = 32 << 20, .victim = KV_VICTIM_LRU,
                                  .event = no_event};
    memset(own.base.model.b, 1, sizeof own.base.model.b);
    strcpy(own.base.representation, "kv-f16-post-rope-v1");
    strcpy(own.base.support, "exact");
    with_base(&own, true, &sessions, &blocks);
    ck_assert(sessions == 1 && blocks == 2);
    for (int field = 0; field < 6; field++) {
        struct kv_turns_config other = own;
        if (field == 0) other.base.model.b[31] ^= 1;
        if (field == 1) other.base.adapters.b[0] ^= 1;
        if (field == 2) other.base.numerics.b[7] ^= 1;
        if (field == 3) other.base.cache_abi.b[7] ^= 1;
        if (field == 4) other.base.position_contract.b[0] ^= 1;
        if (field == 5) strcpy(other.base.representation, "kv-f16-post-rope-v2");
        with_base(&other, false, &sessions, &blocks);
        ck_assert_msg(sessions == 0 && blocks == 0, "field %d: %d sessions, %d blocks", field, (int)sessions, (int)blocks);
    }
    with_base(&own, false, &sessions, &blocks);
    ck_assert(sessions == 1 && blocks == 2);
}
END_TEST

/* The disk fails while a pin is recorded: the answer says so and the session is as before. */
START_TEST(a_pin_that_cannot_be_kept_is_refused)
{
    struct kv_disk_io io = kv_disk_io_system;
    struct kv_session_info info;
    struct kv_error err;
    io.pwrite = failing_pwrite;
    atomic_store(&writes_left, 1 << 30);
    struct kv_engine *e = engine_with(256 << 20, &io);
    say(e, 100, "alpha", "s");
    await_saved(e, "s");
    atomic_store(&writes_left, 0);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_PIN, "alpha", "s", NULL, &err), KV_NO_SPACE);
    atomic_store(&writes_left, 1 << 30);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s", &info, NULL), KV_OK);
    ck_assert(!info.pinned);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_PIN, "alpha", "s", NULL, &err), KV_OK);
    kv_engine_destroy(e);
    e = engine_with(256 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s", &info, NULL), KV_OK);
    ck_assert(info.pinned);
    kv_engine_destroy(e);
}
END_TEST

/* Approximate rows are nobody's history: a turn saves what came before the first of them. */
START_TEST(tainted_rows_are_not_saved)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_engine *e = engine_with(256 << 20, NULL);
    install(e, "quest", "budget_rows", 64, false);
    turn_init(&r[0], HISTORY, "alpha", "s");
    r[0].request.max_tokens = 200;
    assign(e, &r[0], KV_APPROXIMATE);
    run_all(e, &r[0]);
    ck_assert_int_eq(r[0].stats.published, KV_APPROXIMATE);
    kv_engine_destroy(e);
    e = engine_with(256 << 20, NULL);
    turn_init(&r[1], HISTORY, "alpha", "s");
    memcpy(r[1].prompt + HISTORY, r[0].ids, 200 * sizeof *r[0].ids);
    r[1].request.n_prompt = r[1].n_prompt = HISTORY + 200;
    run_all(e, &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(states_follow_the_table)
{
    enum kv_session_state s = KV_SESSION_RUNNING;
    static const enum kv_session_state path[] = {KV_SESSION_QUIESCING, KV_SESSION_SAVING, KV_SESSION_PAUSED_HOST, KV_SESSION_RESTORING, KV_SESSION_RESUME_READY,
                                                 KV_SESSION_PREFILL_NEW_TURN, KV_SESSION_RUNNING};
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        for (int to = 0; to < KV_SESSION_STATE_COUNT; to++) {
            enum kv_session_state copy = s;
            enum kv_status r = kv_lifecycle_move(&copy, (enum kv_session_state)to);
            ck_assert_int_eq(copy, r == KV_OK ? (enum kv_session_state)to : s);
        }
        ck_assert_int_eq(kv_lifecycle_move(&s, path[i]), KV_OK);
    }
    ck_assert_int_eq(kv_lifecycle_move(&s, KV_SESSION_RESTORING), KV_ILLEGAL_TRANSITION);
    ck_assert_int_eq(kv_lifecycle_state_find("PAUSED_HOST"), KV_SESSION_PAUSED_HOST);
    ck_assert_int_eq(kv_lifecycle_state_find("paused"), -1);
}
END_TEST

Suite *suite_turns(void)
{
    Suite *s = suite_create("turns");
    TCase *t = tcase_create("turns");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, another_engine_resumes_with_the_same_bits);
    tcase_add_test(t, only_its_own_rows_are_found);
    tcase_add_test(t, damaged_rows_are_computed_again);
    tcase_add_test(t, a_failing_disk_costs_time_only);
    tcase_add_test(t, prefill_runs_under_the_read);
    tcase_add_test(t, histories_come_ahead_of_their_turn);
    tcase_add_test(t, what_is_read_ahead_may_go_wrong);
    tcase_add_test(t, the_cap_holds_and_the_oldest_go);
    tcase_add_test(t, pinned_sessions_stay_and_dropped_ones_go);
    tcase_add_test(t, sessions_are_known_after_a_restart);
    tcase_add_test(t, a_session_dropped_before_it_was_saved_stays_away);
    tcase_add_test(t, another_model_in_the_same_folder);
    tcase_add_test(t, a_pin_that_cannot_be_kept_is_refused);
    tcase_add_test(t, tainted_rows_are_not_saved);
    tcase_add_test(t, states_follow_the_table);
    suite_add_tcase(s, t);
    return s;
}
