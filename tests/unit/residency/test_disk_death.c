/* test_disk_death.c — the disk tier when any call fails, falls short, or is the last one: nothing half-written is ever shown. */
#include "tests/unit/residency/disk_runs.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- failing and dying at any call */

static _Atomic int calls; /* a spare segment is made on a thread of its own */
static int fail_at = -1, fail_errno, short_at = -1, die_at = -1;

static int reached(void)
{
    int n = calls++;
    if (n == die_at) _exit(9);
    if (n != fail_at) return 0;
    errno = fail_errno;
    return -1;
}
static int t_open(const char *p, int f, unsigned m) { return reached() ? -1 : kv_disk_io_system.open(p, f, m); }
static ssize_t t_pwrite(int fd, const void *b, size_t n, off_t at)
{
    if (calls == short_at || calls == die_at) { /* half of it arrives */
        ssize_t w = kv_disk_io_system.pwrite(fd, b, n / 2 + 1, at);
        return reached() ? -1 : w;
    }
    return reached() ? -1 : kv_disk_io_system.pwrite(fd, b, n, at);
}
static int t_sync(int fd) { return reached() ? -1 : kv_disk_io_system.sync(fd); }
static int t_allocate(int fd, off_t a, off_t n) { return reached() ? -1 : kv_disk_io_system.allocate(fd, a, n); }
static int t_punch(int fd, off_t a, off_t n) { return reached() ? -1 : kv_disk_io_system.punch(fd, a, n); }
static int t_truncate(int fd, off_t n) { return reached() ? -1 : kv_disk_io_system.truncate(fd, n); }
static int t_unlink(const char *p) { return reached() ? -1 : kv_disk_io_system.unlink(p); }
static struct kv_disk_io tested(void)
{
    struct kv_disk_io io = kv_disk_io_system;
    io.open = t_open, io.pwrite = t_pwrite, io.sync = t_sync, io.allocate = t_allocate, io.punch = t_punch, io.truncate = t_truncate, io.unlink = t_unlink;
    calls = 0;
    fail_at = short_at = die_at = -1;
    return io;
}

START_TEST(errors_are_typed_and_leave_nothing)
{
    static const struct { int error; enum kv_status status; } kinds[] = {{ENOSPC, KV_NO_SPACE}, {EIO, KV_IO_ERROR}};
    for (int k = 0; k < 2; k++)
        for (int at = 0;; at++) {
            struct kv_block b;
            struct kv_disk_io io = tested();
            tier_folder_clear();
            ck_assert_int_eq(open_disk(16 << 20, 0, &io), KV_OK);
            calls = 0;
            fail_at = at, fail_errno = kinds[k].error;
            enum kv_status s = put(1, &b);
            fail_at = -1;
            if (calls <= at) { /* every call was failed once */
                ck_assert_int_eq(s, KV_OK);
                kv_disk_close(&disk);
                break;
            }
            ck_assert_msg(s == kinds[k].status || s == KV_OK, "call %d: %s", at, kv_status_name(s)); /* OK: the folder's sync is advice */
            struct kv_disk_stats st;
            kv_disk_stats(&disk, &st);
            if (s != KV_OK) ck_assert_uint_eq(st.live_extents, 0);
            ck_assert_int_eq(put(2, &b), KV_OK); /* it goes on working */
            ck_assert_int_eq(get(2, b, "alpha"), KV_OK);
            kv_disk_close(&disk);
            ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
            ck_assert_int_eq(found.n, s == KV_OK ? 2 : 1);
            kv_disk_close(&disk);
        }
}
END_TEST

START_TEST(short_writes_are_finished)
{
    struct kv_block b;
    for (int at = 0; at < 8; at++) {
        struct kv_disk_io io = tested();
        tier_folder_clear();
        short_at = at;
        ck_assert_int_eq(open_disk(16 << 20, 0, &io), KV_OK);
        ck_assert_int_eq(put(1, &b), KV_OK);
        ck_assert_int_eq(get(1, b, "alpha"), KV_OK);
        kv_disk_close(&disk);
    }
}
END_TEST

/* A child puts, drops and erases until it dies at call n; every acknowledged extent must be there, everything found must read. */
static int workload(int report)
{
    struct kv_block b[12];
    for (int i = 0; i < 12; i++) {
        if (put(i, &b[i]) != KV_OK) return 1;
        char line[2] = {'+', (char)i};
        if (write(report, line, 2) != 2) return 1;
        if (i % 4 == 3) {
            line[0] = '?'; /* about to go: may be there or not */
            line[1] = (char)(i - 1);
            if (write(report, line, 2) != 2) return 1;
            if (disk.erase(disk.ctx, b[i - 1]) != KV_OK) return 1;
            line[0] = '-';
            if (write(report, line, 2) != 2) return 1;
        }
    }
    kv_disk_close(&disk);
    return 0;
}

START_TEST(death_at_every_call)
{
    for (int at = 0;; at++) {
        tier_folder_clear();
        int pipes[2], status;
        ck_assert_int_eq(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) {
            struct kv_disk_io io = tested();
            close(pipes[0]);
            die_at = at;
            if (open_disk(16 << 20, 0, &io) != KV_OK) _exit(3);
            _exit(workload(pipes[1]));
        }
        close(pipes[1]);
        char line[2], state[12] = {0};
        while (read(pipes[0], line, 2) == 2) state[(int)line[1]] = line[0];
        close(pipes[0]);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0));
        ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
        int seen[12] = {0};
        for (int i = 0; i < found.n; i++) {
            int n = found.id[i].layer;
            ck_assert_msg(get(n, found.b[i], "alpha") == KV_OK, "dead at call %d: extent %d is visible and unreadable", at, n);
            seen[n]++;
        }
        for (int i = 0; i < 12; i++) {
            ck_assert_msg(state[i] != '+' || seen[i] == 1, "dead at call %d: acknowledged extent %d is gone", at, i);
            ck_assert_msg(state[i] != '-' || seen[i] == 0, "dead at call %d: deleted extent %d came back", at, i);
            ck_assert_int_le(seen[i], 1);
        }
        struct kv_block b;
        ck_assert_int_eq(put(50, &b), KV_OK);
        ck_assert_int_eq(get(50, b, "alpha"), KV_OK);
        kv_disk_close(&disk);
        if (WEXITSTATUS(status) == 0) break;
    }
}
END_TEST

/* A machine that loses power keeps any of the pages that were written since the last sync: at every sync half of them are taken back, at random. */
static struct { int fd; off_t at; uint8_t old[4096]; } loose[4096];
static int n_loose, loss_round;
static pthread_mutex_t loose_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t loose_pwrite(int fd, const void *b, size_t n, off_t at)
{
    pthread_mutex_lock(&loose_lock);
    for (size_t done = 0; done < n && n_loose < 4096; done += 4096) {
        loose[n_loose].fd = fd;
        loose[n_loose].at = at + (off_t)done;
        memset(loose[n_loose].old, 0, 4096); /* every page is written once: before, it was a hole */
        n_loose++;
    }
    pthread_mutex_unlock(&loose_lock);
    return kv_disk_io_system.pwrite(fd, b, n, at);
}

static int loose_sync(int fd)
{
    pthread_mutex_lock(&loose_lock);
    if (calls++ == die_at) {
        unsigned seed = (unsigned)(die_at + 1000 * loss_round) * 2654435761u + 1;
        for (int i = 0; i < n_loose; i++)
            if ((seed = seed * 1103515245u + 12345u) >> 16 & 1)
                if (kv_disk_io_system.pwrite(loose[i].fd, loose[i].old, 4096, loose[i].at) != 4096) _exit(4);
        _exit(9);
    }
    int kept = 0;
    for (int i = 0; i < n_loose; i++)
        if (loose[i].fd != fd) loose[kept++] = loose[i]; /* of this file alone: a spare segment is synced on a thread of its own */
    n_loose = kept;
    pthread_mutex_unlock(&loose_lock);
    return kv_disk_io_system.sync(fd);
}

START_TEST(lost_pages_show_nothing)
{
    int dropped = 0, rounds = getenv("KVASIR_SOAK") ? 50 : 1;
    for (int at = 0; loss_round < rounds; at++) {
        tier_folder_clear();
        int status;
        pid_t child = fork();
        if (child == 0) {
            struct kv_disk_io io = kv_disk_io_system;
            io.pwrite = loose_pwrite, io.sync = loose_sync;
            calls = n_loose = 0;
            die_at = at;
            struct kv_block b[GROUP];
            if (open_disk(16 << 20, 0, &io) != KV_OK) _exit(3);
            for (int g = 0; g < 3; g++)
                if (put_group(g * GROUP, b) != KV_OK) _exit(5);
            _exit(0);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0));
        ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
        struct kv_disk_stats st;
        kv_disk_stats(&disk, &st);
        dropped += (int)st.dropped_at_open;
        for (int i = 0; i < found.n; i++) ck_assert_msg(get(found.id[i].layer, found.b[i], "alpha") == KV_OK, "sync %d: extent %d is visible and unreadable", at, found.id[i].layer);
        kv_disk_close(&disk);
        if (WEXITSTATUS(status) == 0) at = -1, loss_round++;
    }
    ck_assert_int_gt(dropped, 10);
}
END_TEST

/* ---------------------------------------------------------------- a segment ahead of need */

enum { EACH = 42, HALF = 21 }; /* payloads of a segment; the one that asks for the next */

static _Atomic int made_here, made_elsewhere, fail_elsewhere;
static pthread_t here;

static int watched_allocate(int fd, off_t at, off_t n)
{
    bool mine = pthread_equal(pthread_self(), here);
    atomic_fetch_add(mine ? &made_here : &made_elsewhere, 1);
    if (!mine && atomic_load(&fail_elsewhere)) return errno = ENOSPC, -1;
    return kv_disk_io_system.allocate(fd, at, n);
}

static int files(void)
{
    int n = 0;
    DIR *d = opendir(tier_folder);
    for (struct dirent *e; (e = readdir(d));) n += !strncmp(e->d_name, "segment-", 8);
    closedir(d);
    return n;
}

static void put_many(int first, int n)
{
    struct kv_block b;
    for (int i = first; i < first + n; i++) ck_assert_int_eq(put(i, &b), KV_OK);
}

/* Made elsewhere from the half of a segment on, counted under the cap, taken when it is needed, gone with the tier. */
START_TEST(the_next_segment_is_there_before_it_is_needed)
{
    struct kv_disk_io io = kv_disk_io_system;
    io.allocate = watched_allocate;
    for (int fails = 0; fails < 2; fails++) {
        tier_folder_clear();
        here = pthread_self();
        atomic_store(&made_here, 0), atomic_store(&made_elsewhere, 0), atomic_store(&fail_elsewhere, fails);
        ck_assert_int_eq(open_disk(3 * SEGMENT, 0, &io), KV_OK);
        put_many(0, HALF - 1);
        ck_assert_uint_eq(disk.used_bytes(disk.ctx), SEGMENT);
        put_many(HALF - 1, 2);
        ck_assert_uint_eq(disk.used_bytes(disk.ctx), 2 * SEGMENT);
        put_many(HALF + 1, EACH - HALF); /* into the next */
        ck_assert_int_eq(atomic_load(&made_elsewhere), 1);
        ck_assert_int_eq(atomic_load(&made_here), fails ? 2 : 1);
        ck_assert_uint_le(disk.used_bytes(disk.ctx), 2 * SEGMENT);
        put_many(EACH + 1, HALF);
        ck_assert_uint_gt(disk.used_bytes(disk.ctx), 2 * SEGMENT); /* a third, the last under the cap */
        ck_assert_uint_le(disk.used_bytes(disk.ctx), 3 * SEGMENT);
        kv_disk_close(&disk);
        ck_assert_int_eq(files(), 2);
    }
}
END_TEST

/* Near the cap nothing is lost to a spare: as many payloads fit as without. */
START_TEST(a_spare_takes_no_room_from_payloads)
{
    struct kv_block b;
    int n = 0;
    ck_assert_int_eq(open_disk(4 * SEGMENT, 0, NULL), KV_OK);
    while (put(n, &b) == KV_OK) n++;
    ck_assert_int_eq(n, 4 * EACH);
    ck_assert_uint_le(disk.used_bytes(disk.ctx), 4 * SEGMENT);
    ck_assert_uint_le(disk_facts().segments, 4);
}
END_TEST

/* Death at every call while a spare is asked for, made and taken: what was acknowledged is there, and nothing of the spare is left. */
START_TEST(death_around_a_spare)
{
    for (int at = 2 * HALF - 6;; at++) {
        if (at == 2 * HALF + 14) at = 2 * EACH - 4; /* between asking and taking nothing new happens */
        tier_folder_clear();
        int pipes[2], status, acknowledged = 0;
        char byte;
        ck_assert_int_eq(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) {
            struct kv_disk_io io = tested();
            struct kv_block b;
            die_at = at;
            if (open_disk(16 << 20, 0, &io) != KV_OK) _exit(3);
            for (int i = 0; i < EACH + 2; i++)
                if (put(i, &b) != KV_OK || write(pipes[1], "+", 1) != 1) _exit(5);
            kv_disk_close(&disk);
            _exit(0);
        }
        close(pipes[1]);
        while (read(pipes[0], &byte, 1) == 1) acknowledged++;
        close(pipes[0]);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0), "dead at call %d: %d", at, status);
        ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
        ck_assert_msg(found.n >= acknowledged && found.n <= acknowledged + 1, "dead at call %d: %d of %d are there", at, found.n, acknowledged);
        for (int i = 0; i < found.n; i++) ck_assert_int_eq(get(found.id[i].layer, found.b[i], "alpha"), KV_OK);
        ck_assert_msg(files() == 1 + (found.n > EACH), "dead at call %d: %d files for %d payloads", at, files(), found.n);
        ck_assert_uint_eq(disk.used_bytes(disk.ctx), (uint64_t)files() * 4096 + (uint64_t)found.n * 24576);
        kv_disk_close(&disk);
        if (WEXITSTATUS(status) == 0) break;
    }
}
END_TEST

Suite *suite_disk_death(void);
Suite *suite_disk_death(void)
{
    Suite *s = suite_create("disk_death");
    TCase *t = tcase_create("disk_death");
    tcase_add_checked_fixture(t, disk_setup, disk_teardown);
    tcase_set_timeout(t, getenv("KVASIR_SOAK") ? 1200 : 60);
    tcase_add_test(t, errors_are_typed_and_leave_nothing);
    tcase_add_test(t, short_writes_are_finished);
    tcase_add_test(t, death_at_every_call);
    tcase_add_test(t, lost_pages_show_nothing);
    tcase_add_test(t, the_next_segment_is_there_before_it_is_needed);
    tcase_add_test(t, a_spare_takes_no_room_from_payloads);
    tcase_add_test(t, death_around_a_spare);
    suite_add_tcase(s, t);
    return s;
}
