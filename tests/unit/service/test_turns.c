/* test_turns.c — completed turns on disk: resumed by another engine with the same bits, or computed again; never damaged, never another's. */
#include "tests/unit/service/turn_runs.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

Suite *suite_turns(void);

START_TEST(another_engine_resumes_with_the_same_bits)
{
    struct run *r = calloc(2, sizeof *r);
    turn_plain(&r[0], HISTORY + MORE);
    turn_first("alpha", "s", HISTORY);
    struct kv_engine *e = turn_engine(256 << 20, NULL);
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

/* On the decode thread, whose figure it is: compute slower than the disk on any machine, so that it begins with the first layer read. */
static void slow_rows(struct run *r, int32_t position)
{
    (void)position;
    ((struct kv_engine *)r->ctx)->us_per_row = 1e6;
}

/* A request of the same words: another tenant's rows, another session's of the same tenant, a text that differs early. */
START_TEST(only_its_own_rows_are_found)
{
    struct run *r = calloc(3, sizeof *r);
    turn_first("alpha", "s", HISTORY);
    turn_plain(&r[0], HISTORY + MORE);
    struct kv_engine *e = turn_engine(256 << 20, NULL);
    turn_init(&r[1], HISTORY + MORE, "beta", "s");
    r[1].at = slow_rows;
    r[1].ctx = e;
    run_all(e, &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 0);
    same_runs(&r[0], &r[1]);
    turn_init(&r[1], HISTORY + MORE, "alpha", "other");
    r[1].at = slow_rows;
    r[1].ctx = e;
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
    turn_plain(&r[0], HISTORY + MORE);
    uint64_t failures = 0;
    for (int round = 0; round < 8; round++) {
        tier_folder_clear();
        turn_first("alpha", "s", HISTORY);
        char name[128];
        snprintf(name, sizeof name, "%s/segment-%016x", tier_folder, 0);
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
        struct kv_engine *e = turn_engine(256 << 20, NULL);
        turn_init(&r[1], HISTORY + MORE, "alpha", "s");
        run_all(e, &r[1]);
        same_runs(&r[0], &r[1]);
        failures += turn_stats(e).failures;
        kv_engine_destroy(e);
    }
    ck_assert_uint_gt(failures, 0);
    free(r);
}
END_TEST

/* Approximate rows are nobody's history: a turn saves what came before the first of them. */
START_TEST(tainted_rows_are_not_saved)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_engine *e = turn_engine(256 << 20, NULL);
    install(e, "quest", "budget_rows", 64, false);
    turn_init(&r[0], HISTORY, "alpha", "s");
    r[0].request.max_tokens = 200;
    assign(e, &r[0], KV_APPROXIMATE);
    run_all(e, &r[0]);
    ck_assert_int_eq(r[0].stats.published, KV_APPROXIMATE);
    kv_engine_destroy(e);
    e = turn_engine(256 << 20, NULL);
    turn_init(&r[1], HISTORY, "alpha", "s");
    memcpy(r[1].prompt + HISTORY, r[0].ids, 200 * sizeof *r[0].ids);
    r[1].request.n_prompt = r[1].n_prompt = HISTORY + 200;
    run_all(e, &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, HISTORY / 64 * 64);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- a disk that fails */

START_TEST(a_failing_disk_costs_time_only)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_disk_io io = kv_disk_io_system;
    io.pread = failing_pread;
    io.pwrite = failing_pwrite;
    turn_plain(&r[0], HISTORY + MORE);
    for (int round = 0; round < 6; round++) {
        tier_folder_clear();
        atomic_store(&reads_left, 1 << 30);
        atomic_store(&writes_left, round % 2 ? 1 << 30 : round > 0);
        struct kv_engine *e = turn_engine(256 << 20, &io);
        turn_init(&r[1], HISTORY, "alpha", "s");
        run_all(e, &r[1]);
        kv_engine_destroy(e);
        e = turn_engine(256 << 20, &io);
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

static _Atomic useconds_t read_us;

static ssize_t slow_pread(int fd, void *buf, size_t n, off_t at)
{
    usleep(atomic_load(&read_us)); /* a slow disk, so that compute has something to run under */
    return failing_pread(fd, buf, n, at);
}

/* A new turn over a disk so slow, with its last reads failing or not. */
static struct kv_turn_stats under_a_read(const struct run *plain, struct run *r, useconds_t us, bool fails)
{
    static struct run warm;
    struct kv_disk_io io = kv_disk_io_system;
    io.pread = slow_pread;
    atomic_store(&read_us, us);
    atomic_store(&reads_left, 1 << 30);
    struct kv_engine *e = turn_engine(256 << 20, &io);
    run_init(&warm, 7, 20, 1);
    warm.at = slow_rows;
    warm.ctx = e;
    run_all(e, &warm);
    /* A read a slab: the last layer's are left out. */
    int all = (HISTORY / 64) * kv_model_info(demo_model())->n_layers;
    if (fails) atomic_store(&reads_left, all - 3);
    turn_init(r, HISTORY + 180, "alpha", "s");
    run_all(e, r);
    same_runs(plain, r);
    struct kv_turn_stats t = turn_stats(e);
    ck_assert_uint_eq(t.failures, fails ? 1 : 0);
    ck_assert_int_eq(r->stats.n_reused < HISTORY / 64 * 64, fails);
    kv_engine_destroy(e);
    return t;
}

/* The new turn's prefill runs while later layers are still being read; the second time their read fails under it and the step is thrown away.
 * A disk is slow beside a decode thread that gets its turn: ever slower, until it does in time. */
START_TEST(prefill_runs_under_the_read)
{
    struct run *r = calloc(2, sizeof *r);
    turn_plain(&r[0], HISTORY + 180);
    for (int fails = 0; fails < 2; fails++) {
        struct kv_turn_stats t = {0};
        for (useconds_t us = 1000; !t.overlapped && us < 200000; us *= 3) {
            tier_folder_clear();
            turn_first("alpha", "s", HISTORY);
            t = under_a_read(&r[0], &r[1], us, fails);
        }
        ck_assert_uint_eq(t.overlapped, 1);
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
    c.disk_path = tier_folder;
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

/* The turn of those who wait comes when their histories are here, or the window has been given five seconds. */
static _Atomic bool all_ahead;
static void while_they_come(struct run *r, int32_t position)
{
    slow_rows(r, position);
    for (int i = 0; i < 25 && position >= HISTORY + MORE && !all_ahead; i++) usleep(2000);
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
        tier_folder_clear();
        atomic_store(&reads_left, 1 << 30);
        struct kv_engine *e = one_at_a_time(0, NULL);
        for (int i = 0; i < WAITING; i++) {
            text(&r[WAITING + i], i, HISTORY, 2);
            run_all(e, &r[WAITING + i]);
        }
        kv_engine_destroy(e);
        e = one_at_a_time(window ? 4096 : 64 << 20, &io);
        for (int i = 0; i < WAITING; i++) {
            text(&r[WAITING + i], i, HISTORY + MORE, i ? STEPS : 100);
            r[WAITING + i].at = i ? slow_rows : while_they_come; /* reading is the cheaper way, however busy the machine is */
            r[WAITING + i].ctx = e;
            all_ahead = window;
            run_begin(e, &r[WAITING + i]);
        }
        for (int i = 0; i < 500 && !all_ahead; i++) {
            struct kv_engine_stats now;
            kv_engine_stats(e, &now);
            all_ahead = now.turns.prefetches == WAITING - 1;
            usleep(10000);
        }
        for (int i = 0; i < WAITING; i++) run_end(&r[WAITING + i]), same_runs(&r[i], &r[WAITING + i]);
        for (int i = 0; i < WAITING; i++) ck_assert_int_eq(r[WAITING + i].stats.n_reused, HISTORY / 64 * 64);
        struct kv_turn_stats t = turn_stats(e);
        ck_assert_uint_eq(t.restores, WAITING);
        ck_assert_uint_eq(t.prefetches, window ? 0 : WAITING - 1);
        if (!window) ck_assert_uint_eq(t.prefetched_bytes * WAITING, t.restored_bytes * (WAITING - 1));
        struct kv_session_info info;
        turn_await_saved(e, "w3");
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

Suite *suite_turns(void)
{
    Suite *s = suite_create("turns");
    TCase *t = tcase_create("turns");
    tcase_add_checked_fixture(t, turn_setup, turn_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, another_engine_resumes_with_the_same_bits);
    tcase_add_test(t, only_its_own_rows_are_found);
    tcase_add_test(t, damaged_rows_are_computed_again);
    tcase_add_test(t, tainted_rows_are_not_saved);
    tcase_add_test(t, a_failing_disk_costs_time_only);
    tcase_add_test(t, prefill_runs_under_the_read);
    tcase_add_test(t, histories_come_ahead_of_their_turn);
    tcase_add_test(t, what_is_read_ahead_may_go_wrong);
    suite_add_tcase(s, t);
    return s;
}
