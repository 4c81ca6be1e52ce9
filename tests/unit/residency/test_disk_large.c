/* test_disk_large.c — extents that move in pieces, alone and in groups: what comes back, and what is left when a piece fails or is the last thing that happened. */
#include "tests/unit/residency/disk_runs.h"

#include <check.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 12, PAGE = 4096 };

static size_t skew; /* of where payloads are read to, off a border of pages */

static struct kv_block place[MOST];
static struct kv_chunk_identity id[MOST];
static uint8_t *text[MOST], *back[MOST];
static enum kv_status each[MOST];

static enum kv_status open_large(const struct kv_disk_io *io)
{
    struct kv_error err = {0};
    struct kv_disk_config c = {.path = tier_folder, .capacity_bytes = 256 << 20, .segment_bytes = 32 << 20, .io = io, .found = on_found};
    found.n = 0;
    return kv_disk_open(&c, &disk, &err);
}

static void texts(int n, size_t bytes)
{
    for (int i = 0; i < n; i++) {
        id[i] = identity(i, "alpha");
        text[i] = malloc(bytes);
        back[i] = aligned_alloc(PAGE, (bytes + 2 * PAGE) / PAGE * PAGE);
        ck_assert(text[i] && back[i]);
        for (size_t k = 0; k < bytes; k++) text[i][k] = (uint8_t)((k * 2654435761u >> 9) + (size_t)i * 37);
    }
}

static void no_texts(int n)
{
    for (int i = 0; i < n; i++) free(text[i]), free(back[i]);
}

static enum kv_status write_all(int n, size_t bytes)
{
    const void *payloads[MOST] = {NULL};
    enum kv_status s = KV_OK;
    int reserved = 0;
    for (; reserved < n && s == KV_OK; reserved += s == KV_OK) {
        payloads[reserved] = text[reserved];
        s = disk.reserve(disk.ctx, bytes, &id[reserved], &place[reserved]);
    }
    if (s == KV_OK) s = disk.write_group(disk.ctx, n, place, id, payloads, bytes);
    for (int i = 0; i < reserved && s != KV_OK; i++) disk.release(disk.ctx, place[i]);
    return s;
}

static void read_all(int n, size_t bytes)
{
    void *dst[MOST] = {NULL};
    for (int i = 0; i < n; i++) memset(back[i], 0xEE, bytes + PAGE), dst[i] = back[i] + skew;
    disk.read_group(disk.ctx, n, place, id, dst, bytes, each);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(each[i], KV_OK);
        ck_assert_mem_eq(back[i] + skew, text[i], bytes);
        ck_assert_int_eq(back[i][skew + bytes], 0xEE);
    }
}

/* Of any length, more than is sealed in memory at a time, and once more after a restart. */
START_TEST(pieces_come_back_whole)
{
    static const struct { int n; size_t bytes; } groups[] = {{1, 256 << 10}, {1, (1 << 20) + 1}, {1, (4 << 20) - 16}, {1, 21 << 20}, {12, 256 << 10}, {3, (2 << 20) + 4080}, {5, 4 << 20}};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        texts(groups[g].n, groups[g].bytes);
        for (skew = 0; skew <= 8; skew += 8) { /* read where it is wanted, and beside */
            tier_folder_clear();
            ck_assert_int_eq(open_large(NULL), KV_OK);
            for (int times = 0; times < 2; times++) {
                ck_assert_int_eq(write_all(groups[g].n, groups[g].bytes), KV_OK);
                read_all(groups[g].n, groups[g].bytes);
            }
            kv_disk_close(&disk);
            ck_assert_int_eq(open_large(NULL), KV_OK);
            ck_assert_int_eq(found.n, 2 * groups[g].n);
            for (int i = 0; i < groups[g].n; i++) place[found.id[i].layer] = found.b[i];
            read_all(groups[g].n, groups[g].bytes);
            kv_disk_close(&disk);
        }
        no_texts(groups[g].n);
    }
    skew = 0;
}
END_TEST

static _Atomic int writes;
static int struck;
static enum strike { FAIL, SHORTEN, DIE } how;

static ssize_t struck_pwrite(int fd, const void *b, size_t n, off_t at)
{
    if (writes++ != struck) return kv_disk_io_system.pwrite(fd, b, n, at);
    if (how == FAIL) return errno = EIO, -1;
    ssize_t w = kv_disk_io_system.pwrite(fd, b, n / 2 + 1, at);
    if (how == DIE) _exit(9);
    return w;
}

enum { STRUCK_GROUP = 3, STRUCK_BYTES = 1400000 };

static void open_struck(int at, enum strike kind, struct kv_disk_io *io)
{
    tier_folder_clear();
    *io = kv_disk_io_system;
    io->pwrite = struck_pwrite;
    atomic_store(&writes, 0);
    struck = at;
    how = kind;
    ck_assert_int_eq(open_large(io), KV_OK);
}

/* Any piece fails: the group fails, and nothing of it is there. Any piece falls short: it is finished. n: extents of the group. */
static void strike(int n)
{
    struct kv_disk_io io;
    for (int at = 0;; at++) {
        open_struck(at, FAIL, &io);
        enum kv_status s = write_all(n, STRUCK_BYTES);
        bool done = writes <= at;
        struck = -1;
        ck_assert_int_eq(s, done ? KV_OK : KV_IO_ERROR);
        if (!done) ck_assert_int_eq(write_all(n, STRUCK_BYTES), KV_OK); /* it goes on working */
        read_all(n, STRUCK_BYTES);
        kv_disk_close(&disk);
        ck_assert_int_eq(open_large(NULL), KV_OK);
        ck_assert_int_eq(found.n, n);
        kv_disk_close(&disk);
        if (done) {
            ck_assert_int_gt(at, 2 * n); /* it was in pieces */
            return;
        }
        open_struck(at, SHORTEN, &io);
        ck_assert_int_eq(write_all(n, STRUCK_BYTES), KV_OK);
        read_all(n, STRUCK_BYTES);
        kv_disk_close(&disk);
    }
}

START_TEST(pieces_that_fail_leave_nothing)
{
    texts(STRUCK_GROUP, STRUCK_BYTES);
    strike(1);
    strike(STRUCK_GROUP);
    no_texts(STRUCK_GROUP);
}
END_TEST

/* kill -9 at any piece: what was acknowledged is whole, and what is shown can be read. */
START_TEST(death_at_every_piece)
{
    texts(STRUCK_GROUP, STRUCK_BYTES);
    for (int at = 0, n = 1; n <= STRUCK_GROUP; at++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            struct kv_disk_io io;
            open_struck(at, DIE, &io);
            enum kv_status s = write_all(n, STRUCK_BYTES);
            if (s == KV_OK) s = write_all(n, STRUCK_BYTES);
            _exit(s == KV_OK ? 0 : 5);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0));
        ck_assert_int_eq(open_large(NULL), KV_OK);
        for (int i = 0; i < found.n; i++) {
            void *dst = back[0];
            disk.read_group(disk.ctx, 1, &found.b[i], &found.id[i], &dst, STRUCK_BYTES, each);
            ck_assert_msg(each[0] == KV_OK, "dead at write %d: extent %d is visible and unreadable", at, i);
            ck_assert_mem_eq(back[0], text[found.id[i].layer], STRUCK_BYTES);
        }
        ck_assert_int_ge(found.n, WEXITSTATUS(status) == 0 ? 2 * n : at > 2 * n ? n : 0);
        kv_disk_close(&disk);
        if (WEXITSTATUS(status) == 0) at = -1, n += STRUCK_GROUP - 1;
    }
    no_texts(STRUCK_GROUP);
}
END_TEST

/* The queue: what it was given, and whether something was waited for before all was there. What the struck-th answer says is changed. */
static struct { int given, answers, struck; enum strike how; uint64_t bytes, window; bool waited_early; } queue;

static int watched_submit(aio_context_t c, struct iocb *r)
{
    queue.given++;
    if (r->aio_lio_opcode == IOCB_CMD_PWRITEV) queue.bytes += ((struct iovec *)(uintptr_t)r->aio_buf)->iov_len;
    return kv_disk_io_system.submit(c, r);
}

static int watched_collect(aio_context_t c, int least, int most, struct io_event *e)
{
    if (least && queue.bytes < queue.window) queue.waited_early = true;
    int n = kv_disk_io_system.collect(c, least, most, e);
    for (int i = 0; i < n; i++)
        if (queue.answers++ == queue.struck) e[i].res = queue.how == FAIL ? -EIO : e[i].res / 2 + 1;
    return n;
}

static void open_watched(int at, enum strike kind)
{
    static struct kv_disk_io io;
    io = kv_disk_io_system;
    io.submit = watched_submit, io.collect = watched_collect;
    tier_folder_clear();
    memset(&queue, 0, sizeof queue);
    queue.struck = at;
    queue.how = kind;
    ck_assert_int_eq(open_large(&io), KV_OK);
}

/* A device may answer nothing before it was given everything: no piece of a window waits for another one's answer. */
START_TEST(a_window_is_at_the_device_at_once)
{
    static const struct { int n; size_t bytes; } windows[] = {{8, 1 << 20}, {2, 4 << 20}, {12, 256 << 10}};
    for (int w = 0; w < 3; w++) {
        texts(windows[w].n, windows[w].bytes);
        open_watched(-1, FAIL);
        queue.window = (uint64_t)windows[w].n * windows[w].bytes;
        ck_assert_int_eq(write_all(windows[w].n, windows[w].bytes), KV_OK);
        ck_assert(!queue.waited_early);
        if (queue.given) ck_assert_uint_ge(queue.bytes, queue.window); /* none: the system has no such queue here */
        read_all(windows[w].n, windows[w].bytes);
        kv_disk_close(&disk);
        no_texts(windows[w].n);
    }
}
END_TEST

/* A written piece that failed fails its group, one that fell short is finished; what could not be read at once is read again, each extent for itself. */
START_TEST(answers_of_the_queue_are_heard)
{
    texts(STRUCK_GROUP, STRUCK_BYTES);
    for (int kind = FAIL; kind <= SHORTEN; kind++)
        for (int at = 0, done = 0; !done; at++) {
            open_watched(at, (enum strike)kind);
            enum kv_status s = write_all(STRUCK_GROUP, STRUCK_BYTES);
            bool in_write = queue.answers > at;
            ck_assert_int_eq(s, in_write && kind == FAIL ? KV_IO_ERROR : KV_OK);
            if (s != KV_OK) ck_assert_int_eq(write_all(STRUCK_GROUP, STRUCK_BYTES), KV_OK);
            read_all(STRUCK_GROUP, STRUCK_BYTES);
            done = queue.answers <= at;
            kv_disk_close(&disk);
        }
    no_texts(STRUCK_GROUP);
}
END_TEST

Suite *suite_disk_large(void);
Suite *suite_disk_large(void)
{
    Suite *s = suite_create("disk_large");
    TCase *t = tcase_create("disk_large");
    tcase_add_checked_fixture(t, disk_setup, disk_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, pieces_come_back_whole);
    tcase_add_test(t, a_window_is_at_the_device_at_once);
    tcase_add_test(t, answers_of_the_queue_are_heard);
    tcase_add_test(t, pieces_that_fail_leave_nothing);
    tcase_add_test(t, death_at_every_piece);
    suite_add_tcase(s, t);
    return s;
}
