/* test_disk.c — the disk tier: what it refuses, and what it holds across restarts. */
#include "tests/unit/residency/disk_runs.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    snprintf(name, sizeof name, "%s/segment-%016x", tier_folder, 0);
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
        tier_folder_clear();
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
    snprintf(name, sizeof name, "%s/segment-%016x", tier_folder, 0);
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
    struct kv_disk_config c = {.path = tier_folder, .capacity_bytes = 16 << 20, .segment_bytes = SEGMENT, .found = on_found};
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
    snprintf(name, sizeof name, "%s/segment-%016x", tier_folder, 0);
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
}
END_TEST

static void write_file(const char *name, const char *text, size_t n)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", tier_folder, name);
    FILE *f = fopen(path, "wb");
    ck_assert(f && fwrite(text, 1, n, f) == n);
    fclose(f);
}

/* Files, tier_folders and pipes of others, also under names like ours: left as they are, and the tier works. */
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
    snprintf(path, sizeof path, "%s/segment-00000000000000ac", tier_folder);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/segment-00000000000000ad", tier_folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/segment-00000000000000ae", tier_folder);
    ck_assert_int_eq(symlink("/etc/passwd", path), 0);
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    ck_assert_int_eq(found.n, 1);
    ck_assert_int_eq(get(1, found.b[0], "alpha"), KV_OK);
    ck_assert_int_eq(put(2, &b), KV_OK);
    kv_disk_close(&disk);
    static const char *const kept[] = {"notes.txt", "segment-12", "segment-00000000000000aa", "segment-00000000000000ac", "segment-00000000000000ad", "segment-00000000000000ae"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        snprintf(path, sizeof path, "%s/%s", tier_folder, kept[i]);
        ck_assert_msg(lstat(path, &st) == 0, "%s is gone", kept[i]);
        ck_assert(i != 2 || st.st_size == (off_t)sizeof letter);
    }
    snprintf(path, sizeof path, "%s/segment-00000000000000ab", tier_folder);
    ck_assert_int_ne(lstat(path, &st), 0);
    snprintf(path, sizeof path, "%s/segment-00000000000000ac", tier_folder);
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

static bool read_only;
static bool refused_write(void)
{
    if (read_only) errno = EROFS;
    return read_only;
}
static int ro_open(const char *p, int f, unsigned m) { return f & O_CREAT && refused_write() ? -1 : kv_disk_io_system.open(p, f, m); }
static ssize_t ro_pwrite(int fd, const void *b, size_t n, off_t at) { return refused_write() ? -1 : kv_disk_io_system.pwrite(fd, b, n, at); }
static int ro_allocate(int fd, off_t at, off_t n) { return refused_write() ? -1 : kv_disk_io_system.allocate(fd, at, n); }
static int ro_punch(int fd, off_t at, off_t n) { return refused_write() ? -1 : kv_disk_io_system.punch(fd, at, n); }
static int ro_truncate(int fd, off_t n) { return refused_write() ? -1 : kv_disk_io_system.truncate(fd, n); }
static int ro_unlink(const char *p) { return refused_write() ? -1 : kv_disk_io_system.unlink(p); }

/* Everything that writes is refused from one moment on, also what releases and ends: what is there stays readable, and the tier works again when it may. */
START_TEST(a_file_system_that_turns_read_only_while_it_runs)
{
    struct kv_block b[3];
    struct kv_disk_io io = kv_disk_io_system;
    io.open = ro_open, io.pwrite = ro_pwrite, io.allocate = ro_allocate, io.punch = ro_punch, io.truncate = ro_truncate, io.unlink = ro_unlink;
    ck_assert_int_eq(open_disk(16 << 20, 0, &io), KV_OK);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(put(i, &b[i]), KV_OK);
    read_only = true;
    ck_assert_int_eq(put(2, &b[2]), KV_IO_ERROR);
    ck_assert_int_eq(disk.erase(disk.ctx, b[0]), KV_IO_ERROR);
    ck_assert_int_eq(get(0, b[0], "alpha"), KV_OK);
    disk.release(disk.ctx, b[0]);
    ck_assert_int_eq(get(0, b[0], "alpha"), KV_STALE_REPLICA_GENERATION);
    ck_assert_int_eq(get(1, b[1], "alpha"), KV_OK);
    read_only = false;
    ck_assert_int_eq(put(3, &b[2]), KV_OK);
    ck_assert_int_eq(get(3, b[2], "alpha"), KV_OK);
    read_only = true;
    kv_disk_close(&disk);
    read_only = false;
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    for (int i = 0; i < found.n; i++) ck_assert_int_eq(get(found.id[i].layer, found.b[i], "alpha"), KV_OK);
    ck_assert_int_ge(found.n, 2);
}
END_TEST

/* The reason and the place are said. */
START_TEST(a_folder_that_cannot_be_used)
{
    static const char *const places[] = {"/proc/kvasir-tier", "/dev/null/tier"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct kv_error err = {0};
        struct kv_tier other;
        struct kv_disk_config c = {.path = places[i], .capacity_bytes = 16 << 20, .segment_bytes = SEGMENT};
        ck_assert_int_eq(kv_disk_open(&c, &other, &err), KV_IO_ERROR);
        ck_assert_int_eq(err.status, KV_IO_ERROR);
        ck_assert_msg(strstr(err.message, "disk tier") && strstr(err.where, places[i]), "%s: %s", err.where, err.message);
    }
}
END_TEST

START_TEST(one_process_per_folder)
{
    struct kv_tier other;
    struct kv_error err;
    ck_assert_int_eq(open_disk(16 << 20, 0, NULL), KV_OK);
    struct kv_disk_config c = {.path = tier_folder, .capacity_bytes = 16 << 20, .segment_bytes = SEGMENT};
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

Suite *suite_disk(void);
Suite *suite_disk(void)
{
    Suite *s = suite_create("disk");
    TCase *t = tcase_create("disk");
    tcase_add_checked_fixture(t, disk_setup, disk_teardown);
    tcase_set_timeout(t, getenv("KVASIR_SOAK") ? 1200 : 60);
    tcase_add_test(t, write_read_restart);
    tcase_add_test(t, identity_is_authenticated);
    tcase_add_test(t, bit_flips_fail_closed);
    tcase_add_test(t, moved_extent_is_refused);
    tcase_add_test(t, wrong_key_reads_nothing);
    tcase_add_test(t, ciphertext_only);
    tcase_add_test(t, caps_and_reserve_hold);
    tcase_add_test(t, groups_side_by_side);
    tcase_add_test(t, what_is_not_ours_is_left_alone);
    tcase_add_test(t, a_file_system_that_turned_read_only);
    tcase_add_test(t, a_file_system_that_turns_read_only_while_it_runs);
    tcase_add_test(t, a_folder_that_cannot_be_used);
    tcase_add_test(t, one_process_per_folder);
    tcase_add_test(t, erase_is_durable);
    suite_add_tcase(s, t);
    return s;
}
