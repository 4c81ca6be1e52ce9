/* test_store_disk.c — what waits until it is on the disk, and who may read it there. */
#include "tests/unit/controller/store_world.h"
#include "tests/unit/wall_clock.h"

#include <sched.h>
#include <stdatomic.h>

/* ---------------------------------------------------------------- what waits for the disk */

static sqlite3 *lock_database(void)
{
    char path[96];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/kvasir.db", dir);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 2000);
    ck_assert_int_eq(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

struct post {
    struct kv_store *s;
    _Atomic bool done;
    bool durable;
};

static void *post_one(void *arg)
{
    struct post *p = arg;
    struct kv_receipt r = receipt(1);
    p->durable = kv_store_post_settled(p->s, &r, 60000);
    atomic_store(&p->done, true);
    return NULL;
}

static uint64_t queued(struct kv_store *s)
{
    struct kv_store_health h;
    kv_store_health(s, &h);
    return h.queued;
}

START_TEST(a_settled_post_returns_when_its_row_is_on_disk)
{
    struct post p = {.s = open_store()};
    pthread_t t;
    sqlite3 *db = lock_database();
    pthread_create(&t, NULL, post_one, &p);
    while (!queued(p.s)) sched_yield();
    ck_assert(!atomic_load(&p.done));
    ck_assert_int_eq(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    pthread_join(t, NULL);
    ck_assert(p.durable);
    ck_assert_uint_eq(queued(p.s), 0);
    sqlite3_close(db);
    kv_store_close(p.s);
}
END_TEST

START_TEST(a_settled_post_does_not_wait_for_a_store_that_fails)
{
    struct post p = {.s = open_store()};
    sqlite3 *db = lock_database();
    post_one(&p); /* the writer gives the lock up after two seconds */
    ck_assert(!p.durable);
    ck_assert_uint_eq(queued(p.s), 1);
    ck_assert_int_eq(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(kv_store_flush(p.s, NULL), KV_OK);
    ck_assert_uint_eq(queued(p.s), 0); /* it was kept all the same */
    sqlite3_close(db);
    kv_store_close(p.s);
}
END_TEST

START_TEST(a_wall_clock_set_back_holds_no_head_up)
{
    struct kv_store *s = open_store();
    struct stat before, after;
    char path[96];
    snprintf(path, sizeof path, "%s/receipts.heads", dir);
    ck_assert_int_eq(stat(path, &before), 0);
    atomic_store(&wall_clock_ahead_s, 86400); /* a wait until then by the true wall clock would last a day */
    struct kv_receipt r = receipt(1);
    ck_assert(kv_store_post_settled(s, &r, 60000));
    do ck_assert_int_eq(stat(path, &after), 0);
    while (after.st_size == before.st_size && sched_yield() == 0);
    atomic_store(&wall_clock_ahead_s, 0);
    kv_store_close(s);
}
END_TEST

/* ---------------------------------------------------------------- who else may read */

static unsigned mode_of(const char *name)
{
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_assert_msg(stat(path, &st) == 0, "%s", name);
    return (unsigned)st.st_mode & 0777;
}

START_TEST(every_file_is_its_owners_alone)
{
    static const char *const files[] = {"lock", "kvasir.db", "kvasir.db-wal", "kvasir.db-shm", "receipts.heads", "receipts.key", "copy/kvasir.db", "copy/lock", "copy/receipts.key"};
    char copy[96], path[128];
    mode_t mask = umask(0);
    struct kv_store *s = open_store();
    snprintf(copy, sizeof copy, "%s/copy", dir);
    ck_assert_int_eq(kv_store_backup(s, copy, NULL, NULL, NULL), KV_OK);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) ck_assert_msg(mode_of(files[i]) == 0600, "%s has mode %o", files[i], mode_of(files[i]));
    ck_assert_uint_eq(mode_of("copy"), 0700);
    kv_store_close(s);
    for (size_t i = 1; i < 6; i += 4) { /* as an earlier version, or a copy, may have left them */
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        ck_assert_int_eq(chmod(path, 0644), 0);
    }
    s = open_store();
    umask(mask);
    for (size_t i = 0; i < 6; i++) ck_assert_msg(mode_of(files[i]) == 0600, "%s has mode %o", files[i], mode_of(files[i]));
    struct kv_receipt_row row;
    int32_t n;
    uint64_t next;
    ck_assert_int_eq(kv_store_flush(s, NULL), KV_OK);
    ck_assert_int_eq(kv_store_find(s, &(struct kv_receipt_filter){.kind = "STORE", .limit = 1}, &row, &n, &next, NULL), KV_OK);
    ck_assert_int_eq(n, 1);
    ck_assert_str_eq(row.r.detail, "closed to others: kvasir.db 0644, receipts.key 0644");
    kv_store_close(s);
}
END_TEST

Suite *suite_store_disk(void);
Suite *suite_store_disk(void)
{
    Suite *s = suite_create("store_disk");
    TCase *t = tcase_create("store_disk");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_settled_post_returns_when_its_row_is_on_disk);
    tcase_add_test(t, a_settled_post_does_not_wait_for_a_store_that_fails);
    tcase_add_test(t, a_wall_clock_set_back_holds_no_head_up);
    tcase_add_test(t, every_file_is_its_owners_alone);
    suite_add_tcase(s, t);
    return s;
}
