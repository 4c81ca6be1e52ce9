/* test_disk.c — the disk tier: what it refuses, what it holds across restarts, and that death at any write shows nothing half-written. */
#include "runtime/residency/disk.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 20000, SEGMENT = 1 << 20 };

static char folder[64];
static struct kv_tier disk;

/* What a reopen finds. */
static struct {
    int n;
    struct kv_chunk_identity id[256];
    struct kv_block b[256];
    uint64_t bytes[256];
} found;

static void on_found(void *ctx, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes)
{
    (void)ctx;
    ck_assert_int_lt(found.n, 256);
    found.id[found.n] = *id;
    found.b[found.n] = b;
    found.bytes[found.n++] = bytes;
}

static enum kv_status open_disk(uint64_t capacity, uint64_t reserve, const struct kv_disk_io *io)
{
    struct kv_error err = {0};
    struct kv_disk_config c = {.path = folder, .capacity_bytes = capacity, .reserve_bytes = reserve, .segment_bytes = SEGMENT, .io = io, .found = on_found};
    memset(c.key, 7, sizeof c.key);
    found.n = 0;
    return kv_disk_open(&c, &disk, &err);
}

static struct kv_chunk_identity identity(int n, const char *tenant)
{
    struct kv_chunk_identity id;
    memset(&id, 0, sizeof id);
    id.layer = n;
    snprintf(id.tenant, sizeof id.tenant, "%s", tenant);
    snprintf(id.support, sizeof id.support, "exact");
    return id;
}

static void payload(int n, uint8_t *out)
{
    for (int i = 0; i < BYTES; i++) out[i] = (uint8_t)(n * 131 + i * 7 + (i >> 8));
}

static enum kv_status put(int n, struct kv_block *b)
{
    static uint8_t buffer[BYTES];
    uint64_t hash;
    struct kv_chunk_identity id = identity(n, "alpha");
    payload(n, buffer);
    enum kv_status s = disk.reserve(disk.ctx, BYTES, &id, b);
    if (s != KV_OK) return s;
    s = disk.write(disk.ctx, *b, &id, buffer, BYTES, &hash);
    if (s != KV_OK) disk.release(disk.ctx, *b);
    return s;
}

static enum kv_status get(int n, struct kv_block b, const char *tenant)
{
    static uint8_t want[BYTES], have[BYTES], zero[BYTES], untouched[BYTES];
    struct kv_chunk_identity id = identity(n, tenant);
    memset(have, 0xEE, sizeof have);
    memset(untouched, 0xEE, sizeof untouched);
    enum kv_status s = disk.read(disk.ctx, b, &id, have, BYTES);
    payload(n, want);
    /* Nothing unverified is ever handed out: a refusal leaves zeros or what was there. */
    if (s == KV_OK) ck_assert_mem_eq(have, want, BYTES);
    else ck_assert(!memcmp(have, zero, BYTES) || !memcmp(have, untouched, BYTES));
    return s;
}

static void clear_folder(void)
{
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(name);
    }
    closedir(d);
}

static void setup(void)
{
    /* In memory where that is possible: these tests end processes, not machines, and sync at every step. */
    snprintf(folder, sizeof folder, "%s/kvasir-disk-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
    mkdir(folder, 0700);
    clear_folder();
}

static void teardown(void)
{
    kv_disk_close(&disk);
    clear_folder();
    rmdir(folder);
}

START_TEST(write_read_restart)
{
    struct kv_block b[5];
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(put(i, &b[i]), KV_OK);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(get(i, b[i], "alpha"), KV_OK);
    disk.release(disk.ctx, b[2]);
    ck_assert(!disk.current(disk.ctx, b[2]));
    ck_assert_int_eq(get(2, b[2], "alpha"), KV_STALE_REPLICA_GENERATION);
    kv_disk_close(&disk);
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(found.n, 4);
    for (int i = 0; i < found.n; i++) {
        ck_assert_uint_eq(found.bytes[i], BYTES);
        ck_assert_int_eq(get(found.id[i].layer, found.b[i], "alpha"), KV_OK);
    }
    struct kv_disk_stats st;
    kv_disk_stats(&disk, &st);
    ck_assert_uint_eq(st.live_extents, 4);
    for (int i = 0; i < found.n; i++) disk.release(disk.ctx, found.b[i]);
    kv_disk_stats(&disk, &st);
    ck_assert_uint_eq(st.segments, 0);
    ck_assert_uint_eq(st.used_bytes, 0);
}
END_TEST

START_TEST(identity_is_authenticated)
{
    struct kv_block b;
    static uint8_t out[BYTES];
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(put(1, &b), KV_OK);
    ck_assert_int_eq(get(1, b, "beta"), KV_IDENTITY_MISMATCH);
    struct kv_chunk_identity id = identity(1, "alpha");
    strcpy(id.support, "approximate:quest");
    ck_assert_int_eq(disk.read(disk.ctx, b, &id, out, BYTES), KV_IDENTITY_MISMATCH);
    id = identity(1, "alpha");
    ck_assert_int_eq(disk.read(disk.ctx, b, &id, out, BYTES - 1), KV_SHORT_COPY);
    ck_assert_int_eq(get(1, b, "alpha"), KV_OK);
}
END_TEST

static void flip(uint64_t at)
{
    char name[200];
    uint8_t byte;
    snprintf(name, sizeof name, "%s/segment-%016x", folder, 0);
    int fd = open(name, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

/* A flipped bit anywhere in an extent is refused; the next extent is untouched. */
START_TEST(bit_flips_fail_closed)
{
    static const uint64_t at[] = {4096 + 3, 4096 + 20, 4096 + 60, 4096 + 1065, 8192, 8192 + 9999, 8192 + BYTES + 3};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct kv_block a, b;
        clear_folder();
        ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
        ck_assert_int_eq(put(1, &a), KV_OK);
        ck_assert_int_eq(put(2, &b), KV_OK);
        flip(at[i]);
        ck_assert_int_eq(get(1, a, "alpha"), KV_CHECKSUM_MISMATCH);
        ck_assert_int_eq(get(2, b, "alpha"), KV_OK);
        kv_disk_close(&disk);
    }
}
END_TEST

/* An extent copied over another's place, header and all, does not pass for it. */
START_TEST(moved_extent_is_refused)
{
    struct kv_block a, b;
    static uint8_t page[28672];
    char name[200];
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(put(1, &a), KV_OK);
    ck_assert_int_eq(put(1, &b), KV_OK);
    snprintf(name, sizeof name, "%s/segment-%016x", folder, 0);
    int fd = open(name, O_RDWR);
    ck_assert_int_eq(pread(fd, page, 24576, 4096), 24576);
    ck_assert_int_eq(pwrite(fd, page, 24576, 4096 + 24576), 24576);
    close(fd);
    ck_assert_int_eq(get(1, b, "alpha"), KV_CHECKSUM_MISMATCH);
}
END_TEST

START_TEST(wrong_key_reads_nothing)
{
    struct kv_block b;
    struct kv_error err;
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(put(1, &b), KV_OK);
    ck_assert_int_eq(put(2, &b), KV_OK); /* and so the first is known to be whole */
    kv_disk_close(&disk);
    struct kv_disk_config c = {.path = folder, .capacity_bytes = 16 << 20, .segment_bytes = SEGMENT, .found = on_found};
    memset(c.key, 8, sizeof c.key);
    found.n = 0;
    ck_assert_int_eq(kv_disk_open(&c, &disk, &err), KV_OK);
    ck_assert_int_eq(found.n, 1);
    ck_assert_int_eq(get(1, found.b[0], "alpha"), KV_CHECKSUM_MISMATCH);
}
END_TEST

START_TEST(ciphertext_only)
{
    struct kv_block b;
    char name[200], block[512];
    struct kv_chunk_identity id = identity(1, "alpha");
    static uint8_t text[BYTES];
    uint64_t hash;
    memset(text, 'S', sizeof text);
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(disk.reserve(disk.ctx, BYTES, &id, &b), KV_OK);
    ck_assert_int_eq(disk.write(disk.ctx, b, &id, text, BYTES, &hash), KV_OK);
    snprintf(name, sizeof name, "%s/segment-%016x", folder, 0);
    FILE *f = fopen(name, "rb");
    while (fread(block, 1, sizeof block, f) == sizeof block) ck_assert_ptr_null(memmem(block, sizeof block, "SSSSSSSS", 8));
    fclose(f);
}
END_TEST

START_TEST(caps_and_reserve_hold)
{
    struct kv_block b[200];
    int n = 0;
    enum kv_status s;
    ck_assert_int_eq(open_disk(2 * SEGMENT, 0, NULL), KV_OK);
    while ((s = put(n, &b[n])) == KV_OK) n++;
    ck_assert_int_eq(s, KV_CAPACITY);
    ck_assert_int_gt(n, 60);
    ck_assert_uint_le(disk.used_bytes(disk.ctx), 2 * SEGMENT);
    kv_disk_close(&disk);
    ck_assert_int_eq(open_disk(SEGMENT, 0, NULL), KV_OK); /* a smaller cap after the restart: the oldest go */
    ck_assert_uint_le(disk.used_bytes(disk.ctx), SEGMENT);
    ck_assert_int_gt(found.n, 20);
    ck_assert_int_lt(found.n, n);
    ck_assert_int_eq(found.id[found.n - 1].layer, n - 1);
    kv_disk_close(&disk);
    ck_assert_int_eq(open_disk(64 << 20, UINT64_MAX / 2, NULL), KV_OK);
    ck_assert_int_eq(put(0, &b[0]), KV_NO_SPACE); /* the reserve would be touched */
}
END_TEST

enum { GROUP = 40 };

static enum kv_status put_group(int first, struct kv_block *b)
{
    static uint8_t text[GROUP][BYTES];
    static struct kv_chunk_identity id[GROUP];
    const void *payloads[GROUP];
    enum kv_status s = KV_OK;
    int n = 0;
    for (; n < GROUP && s == KV_OK; n++) {
        id[n] = identity(first + n, "alpha");
        payload(first + n, text[n]);
        payloads[n] = text[n];
        s = disk.reserve(disk.ctx, BYTES, &id[n], &b[n]);
        if (s != KV_OK) break;
    }
    if (s == KV_OK) s = disk.write_group(disk.ctx, GROUP, b, id, payloads, BYTES);
    for (int i = 0; i < n && s != KV_OK; i++) disk.release(disk.ctx, b[i]);
    return s;
}

/* Groups cross segments; each payload of a group read has its own verdict. */
START_TEST(groups_side_by_side)
{
    enum { GROUPS = 3 };
    struct kv_block b[GROUPS * GROUP];
    static uint8_t out[GROUP][BYTES], want[BYTES];
    static struct kv_chunk_identity id[GROUP];
    enum kv_status each[GROUP];
    void *dst[GROUP];
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    for (int g = 0; g < GROUPS; g++) ck_assert_int_eq(put_group(g * GROUP, b + g * GROUP), KV_OK);
    struct kv_disk_stats st;
    kv_disk_stats(&disk, &st);
    ck_assert_uint_gt(st.segments, 1);
    ck_assert_uint_lt(st.syncs, 4 * GROUPS + st.segments); /* not one an extent */
    for (int i = 0; i < GROUP; i++) id[i] = identity(GROUP + i + (i == 7), "alpha"), dst[i] = out[i];
    flip(4096 + 24576 * 10 + 9000); /* the tenth of the first group */
    for (int g = 0; g < 2; g++) {
        for (int i = 0; i < GROUP; i++) id[i].layer = g * GROUP + i + (i == 7);
        disk.read_group(disk.ctx, GROUP, b + g * GROUP, id, dst, BYTES, each);
        for (int i = 0; i < GROUP; i++) {
            enum kv_status expected = i == 7 ? KV_IDENTITY_MISMATCH : g == 0 && i == 10 ? KV_CHECKSUM_MISMATCH : KV_OK;
            ck_assert_int_eq(each[i], expected);
            payload(g * GROUP + i, want);
            if (expected == KV_OK) ck_assert_mem_eq(out[i], want, BYTES);
        }
    }
    kv_disk_close(&disk);
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(found.n, GROUPS * GROUP);
    struct kv_disk_config c = {.path = "/nowhere", .capacity_bytes = 16 << 20, .segment_bytes = SEGMENT, .threads = 17};
    struct kv_tier other;
    struct kv_error err;
    ck_assert_int_eq(kv_disk_open(&c, &other, &err), KV_BAD_ARGUMENT);
}
END_TEST

static void write_file(const char *name, const char *text, size_t n)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    ck_assert(f && fwrite(text, 1, n, f) == n);
    fclose(f);
}

/* Files, folders and pipes of others, also under names like ours: left as they are, and the tier works. */
START_TEST(what_is_not_ours_is_left_alone)
{
    static char letter[9000];
    char path[200];
    struct kv_block b;
    struct stat st;
    memset(letter, 'x', sizeof letter);
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(put(1, &b), KV_OK);
    kv_disk_close(&disk);
    write_file("notes.txt", letter, sizeof letter);
    write_file("segment-12", letter, 4);
    write_file("segment-00000000000000aa", letter, sizeof letter);
    write_file("segment-00000000000000ab", "", 0); /* ours: a start that died at once */
    snprintf(path, sizeof path, "%s/segment-00000000000000ac", folder);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/segment-00000000000000ad", folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/segment-00000000000000ae", folder);
    ck_assert_int_eq(symlink("/etc/passwd", path), 0);
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(found.n, 1);
    ck_assert_int_eq(get(1, found.b[0], "alpha"), KV_OK);
    ck_assert_int_eq(put(2, &b), KV_OK);
    kv_disk_close(&disk);
    static const char *const kept[] = {"notes.txt", "segment-12", "segment-00000000000000aa", "segment-00000000000000ac", "segment-00000000000000ad", "segment-00000000000000ae"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, kept[i]);
        ck_assert_msg(lstat(path, &st) == 0, "%s is gone", kept[i]);
        ck_assert(i != 2 || st.st_size == (off_t)sizeof letter);
    }
    snprintf(path, sizeof path, "%s/segment-00000000000000ab", folder);
    ck_assert_int_ne(lstat(path, &st), 0);
    snprintf(path, sizeof path, "%s/segment-00000000000000ac", folder);
    rmdir(path);
}
END_TEST

static int read_only_open(const char *p, int f, unsigned m)
{
    if (!(f & O_CREAT)) return kv_disk_io_system.open(p, f, m);
    errno = EROFS;
    return -1;
}

START_TEST(a_file_system_that_turned_read_only)
{
    struct kv_block b;
    struct kv_disk_io io = kv_disk_io_system;
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(put(1, &b), KV_OK);
    kv_disk_close(&disk);
    io.open = read_only_open;
    ck_assert_int_eq(open_disk(16 << 20, 0, &io), KV_OK);
    ck_assert_int_eq(put(2, &b), KV_IO_ERROR); /* a new segment is needed, and refused */
    ck_assert_int_eq(get(1, found.b[0], "alpha"), KV_OK);
}
END_TEST

START_TEST(one_process_per_folder)
{
    struct kv_tier other;
    struct kv_error err;
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    struct kv_disk_config c = {.path = folder, .capacity_bytes = 16 << 20, .segment_bytes = SEGMENT};
    ck_assert_int_eq(kv_disk_open(&c, &other, &err), KV_STORE_LOCKED);
}
END_TEST

START_TEST(erase_is_durable)
{
    struct kv_block b[2];
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(put(1, &b[0]), KV_OK);
    ck_assert_int_eq(put(2, &b[1]), KV_OK);
    ck_assert_int_eq(disk.erase(disk.ctx, b[0]), KV_OK);
    ck_assert_int_eq(disk.erase(disk.ctx, b[0]), KV_NOT_FOUND);
    kv_disk_close(&disk);
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(found.n, 1);
    ck_assert_int_eq(found.id[0].layer, 2);
}
END_TEST

/* ---------------------------------------------------------------- failing and dying at any call */

static int calls, fail_at = -1, fail_errno, short_at = -1, die_at = -1;

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
    calls = 0, fail_at = short_at = die_at = -1;
    return io;
}

START_TEST(errors_are_typed_and_leave_nothing)
{
    static const struct { int error; enum kv_status status; } kinds[] = {{ENOSPC, KV_NO_SPACE}, {EIO, KV_IO_ERROR}};
    for (int k = 0; k < 2; k++)
        for (int at = 0;; at++) {
            struct kv_block b;
            struct kv_disk_io io = tested();
            clear_folder();
            ck_assert_int_eq(open_disk(16 << 20, 0, &io), KV_OK);
            calls = 0, fail_at = at, fail_errno = kinds[k].error;
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
        clear_folder();
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
        clear_folder();
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
    if (calls++ == die_at) {
        unsigned seed = (unsigned)(die_at + 1000 * loss_round) * 2654435761u + 1;
        for (int i = 0; i < n_loose; i++)
            if ((seed = seed * 1103515245u + 12345u) >> 16 & 1)
                if (kv_disk_io_system.pwrite(loose[i].fd, loose[i].old, 4096, loose[i].at) != 4096) _exit(4);
        _exit(9);
    }
    n_loose = 0;
    return kv_disk_io_system.sync(fd);
}

START_TEST(lost_pages_show_nothing)
{
    int dropped = 0, rounds = getenv("KVASIR_SOAK") ? 50 : 1;
    for (int at = 0; loss_round < rounds; at++) {
        clear_folder();
        int status;
        pid_t child = fork();
        if (child == 0) {
            struct kv_disk_io io = kv_disk_io_system;
            io.pwrite = loose_pwrite, io.sync = loose_sync;
            calls = n_loose = 0, die_at = at;
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

Suite *suite_disk(void);
Suite *suite_disk(void)
{
    Suite *s = suite_create("disk");
    TCase *t = tcase_create("disk");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, getenv("KVASIR_SOAK") ? 1200 : 60);
    tcase_add_test(t, write_read_restart);
    tcase_add_test(t, identity_is_authenticated);
    tcase_add_test(t, bit_flips_fail_closed);
    tcase_add_test(t, moved_extent_is_refused);
    tcase_add_test(t, wrong_key_reads_nothing);
    tcase_add_test(t, ciphertext_only);
    tcase_add_test(t, caps_and_reserve_hold);
    tcase_add_test(t, what_is_not_ours_is_left_alone);
    tcase_add_test(t, a_file_system_that_turned_read_only);
    tcase_add_test(t, groups_side_by_side);
    tcase_add_test(t, lost_pages_show_nothing);
    tcase_add_test(t, one_process_per_folder);
    tcase_add_test(t, erase_is_durable);
    tcase_add_test(t, errors_are_typed_and_leave_nothing);
    tcase_add_test(t, short_writes_are_finished);
    tcase_add_test(t, death_at_every_call);
    suite_add_tcase(s, t);
    return s;
}
