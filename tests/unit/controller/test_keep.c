/* test_keep.c — roots of requests, alterations named, retention that seals, backups made while the store is open. */
#include "controller/store/merkle.h"
#include "controller/store/store.h"

#include <check.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];

static void set_up(void)
{
    strcpy(dir, "/tmp/kvasir-keep-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}
static void tear_down(void)
{
    char command[192];
    snprintf(command, sizeof command, "rm -rf %s %s.copy", dir, dir);
    ck_assert_int_eq(system(command), 0);
}
static struct kv_store *open_at(const char *where)
{
    struct kv_store *s = NULL;
    struct kv_error err = {0};
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = where}, &s, &err) == KV_OK, "%s", err.message);
    return s;
}

/* `each` receipts of each request, the last one its REQUEST row. */
static void requests(struct kv_store *s, uint64_t from, uint64_t n, uint64_t each)
{
    struct kv_receipt_sink sink = kv_store_sink(s);
    for (uint64_t i = 0; i < n * each; i++) {
        struct kv_receipt r;
        kv_receipt_init(&r, i % each == each - 1 ? KV_RECEIPT_REQUEST : KV_RECEIPT_PUBLICATION, (int64_t)(1000 * (from + i / each)));
        r.request = from + i / each;
        r.digest[0] = (uint8_t)i;
        while (!sink.emit(sink.ctx, &r)) kv_store_flush(s, NULL);
    }
    ck_assert_int_eq(kv_store_flush(s, NULL), KV_OK);
}
static void sql(const char *text)
{
    char path[96], *why = NULL;
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/kvasir.db", dir);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, text, NULL, NULL, &why) == SQLITE_OK, "%s: %s", text, why);
    sqlite3_close(db);
}
static struct kv_verify_result verify(const char *where)
{
    struct kv_verify_result v;
    struct kv_error err = {0};
    ck_assert_msg(kv_store_verify_offline(where, NULL, &v, &err) == KV_OK, "%s", err.message);
    return v;
}

/* RFC 6962's own shape: with three leaves the third stands alone beside the joined pair. */
START_TEST(the_tree_is_rfc_6962s)
{
    struct kv_merkle m = {0};
    uint8_t leaf[3][32] = {{1}, {2}, {3}}, text[65], h[3][32], pair[32], want[32], root[32];
    for (int i = 0; i < 3; i++) {
        text[0] = 0;
        memcpy(text + 1, leaf[i], 32);
        kv_sha256(text, 33, h[i]);
        kv_merkle_add(&m, leaf[i]);
    }
    text[0] = 1;
    memcpy(text + 1, h[0], 32);
    memcpy(text + 33, h[1], 32);
    kv_sha256(text, 65, pair);
    memcpy(text + 1, pair, 32);
    memcpy(text + 33, h[2], 32);
    kv_sha256(text, 65, want);
    kv_merkle_root(&m, root);
    ck_assert_mem_eq(root, want, 32);
    for (int i = 0; i < 4; i++) kv_merkle_add(&m, leaf[i % 3]);
    kv_merkle_add(&m, leaf[0]);
    uint8_t eight[32];
    kv_merkle_root(&m, eight);
    ck_assert_mem_eq(eight, m.node[0], 32); /* a perfect tree is one subtree */
}
END_TEST

START_TEST(every_request_has_a_root)
{
    struct kv_store *s = open_at(dir);
    requests(s, 1, 10, 5);
    struct kv_receipt_row row;
    struct kv_request_root root;
    ck_assert_int_eq(kv_store_get(s, 7, &row, NULL), KV_OK); /* the second one's second */
    ck_assert_int_eq(kv_store_request_root(s, &row, &root, NULL), KV_OK);
    ck_assert_uint_eq(root.receipt, 10);
    ck_assert_uint_eq(root.leaves, 5);
    kv_store_close(s);
    s = open_at(dir);
    requests(s, 1, 2, 3); /* ids begin again with the process */
    ck_assert_int_eq(kv_store_get(s, 51, &row, NULL), KV_OK);
    ck_assert_int_eq(kv_store_request_root(s, &row, &root, NULL), KV_OK);
    ck_assert_uint_eq(root.leaves, 3);
    kv_store_close(s);
    struct kv_verify_result v = verify(dir);
    ck_assert(v.verified);
    ck_assert_uint_eq(v.roots, 12);
    sql("DROP TRIGGER request_roots_no_update; UPDATE request_roots SET root = zeroblob(32) WHERE receipt = 10");
    v = verify(dir);
    ck_assert(!v.verified);
    ck_assert_uint_eq(v.at, 10);
}
END_TEST

static const struct {
    const char *sql, *name;
    uint64_t at;
} alterations[] = {
    {"DROP TRIGGER receipts_no_update; UPDATE receipts SET tokens = 9 WHERE id = 12", "edited", 12},
    {"DROP TRIGGER receipts_no_delete; DELETE FROM receipts WHERE id = 12", "removed", 12},
    {"DROP TRIGGER receipts_no_delete; DELETE FROM receipts WHERE id > 40", "tail removed", 41},
    {"DROP TRIGGER receipts_no_update; UPDATE receipts SET id = -1 WHERE id = 12; UPDATE receipts SET id = 12 WHERE id = 13; UPDATE receipts SET id = 13 WHERE id = -1", "reordered", 12},
};

START_TEST(alterations_are_named)
{
    struct kv_store *s = open_at(dir);
    requests(s, 1, 10, 5);
    kv_store_close(s);
    sql(alterations[_i].sql);
    struct kv_verify_result v = verify(dir);
    ck_assert(!v.verified);
    ck_assert_msg(!strncmp(v.detail, alterations[_i].name, strlen(alterations[_i].name)), "%s", v.detail);
    ck_assert_uint_eq(v.at, alterations[_i].at);
}
END_TEST

/* Somebody without the key changes a row and every hash after it: the chain agrees with itself, the signed heads do not. */
START_TEST(a_rewritten_chain_is_named)
{
    struct kv_store *s = open_at(dir);
    requests(s, 1, 10, 5);
    struct kv_receipt_row rows[50];
    int32_t n;
    ck_assert_int_eq(kv_store_find(s, &(struct kv_receipt_filter){.limit = 50, .oldest_first = true}, rows, &n, NULL, NULL), KV_OK);
    kv_store_close(s);
    uint8_t hash[32];
    char text[400], hex[65];
    memcpy(hash, rows[10].hash, 32);
    sql("DROP TRIGGER receipts_no_update; UPDATE receipts SET tokens = 9 WHERE id = 12; DELETE FROM request_roots WHERE receipt > 10");
    rows[11].r.tokens = 9;
    for (int i = 11; i < 50; i++) {
        kv_receipt_hash(hash, rows[i].id, &rows[i].r, hash);
        kv_hex(hash, 32, hex);
        snprintf(text, sizeof text, "UPDATE receipts SET hash = x'%s' WHERE id = %d", hex, i + 1);
        sql(text);
    }
    struct kv_verify_result v = verify(dir);
    ck_assert(!v.verified);
    ck_assert_msg(!strncmp(v.detail, "rewritten", 9), "%s", v.detail);
}
END_TEST

START_TEST(retention_seals_and_says_so)
{
    struct kv_store *s = open_at(dir);
    uint64_t removed;
    struct kv_error err = {0};
    for (int i = 0; i < 30; i++) { /* each op signs a head */
        struct kv_receipt r;
        requests(s, (uint64_t)(1 + 20 * i), 20, 5);
        kv_receipt_init(&r, KV_ROW_AUDIT, 1000 * 20 * (i + 1));
        ck_assert_int_eq(kv_store_put_receipt(s, &r, NULL, NULL), KV_OK);
    }
    ck_assert_msg(kv_store_retain(s, 1000 * 300, 77, &removed, &err) == KV_OK, "%s", err.message);
    ck_assert_uint_ge(removed, 1200);
    ck_assert_uint_le(removed, 1515);
    struct kv_receipt_row row;
    ck_assert_int_eq(kv_store_get(s, 1, &row, NULL), KV_NOT_FOUND);
    ck_assert_int_eq(kv_store_get(s, removed + 1, &row, NULL), KV_OK);
    struct kv_verify_result v;
    ck_assert_int_eq(kv_store_verify(s, &v, NULL), KV_OK);
    ck_assert_msg(v.verified, "%llu: %s", (unsigned long long)v.at, v.detail);
    ck_assert_uint_eq(v.sealed, removed);
    struct kv_receipt_filter f = {.kind = "STORE", .limit = 1};
    int32_t n;
    ck_assert_int_eq(kv_store_find(s, &f, &row, &n, NULL, NULL), KV_OK);
    ck_assert_uint_eq(row.r.rows, removed);
    requests(s, 5000, 3, 5); /* it goes on, also over a restart */
    kv_store_close(s);
    s = open_at(dir);
    ck_assert(kv_store_trusted(s, NULL));
    ck_assert_int_eq(kv_store_retain(s, 0, 78, &removed, &err), KV_OK);
    ck_assert_uint_eq(removed, 0);
    kv_store_close(s);
    ck_assert(verify(dir).verified);
    sql("DROP TRIGGER receipts_no_delete; DELETE FROM receipts WHERE id <= (SELECT max(last) FROM seals) + 100"); /* more than was sealed */
    v = verify(dir);
    ck_assert_msg(!v.verified && !strncmp(v.detail, "removed", 7), "%s", v.detail);
}
END_TEST

static void told(void *ctx, uint64_t done, uint64_t total)
{
    uint64_t *last = ctx;
    ck_assert_uint_ge(done, *last);
    ck_assert_uint_le(done, total);
    *last = done;
}

START_TEST(a_backup_verifies_and_starts)
{
    char copy[80];
    struct kv_error err = {0};
    uint64_t pages = 0;
    snprintf(copy, sizeof copy, "%s.copy", dir);
    struct kv_store *s = open_at(dir);
    requests(s, 1, 100, 5);
    ck_assert_msg(kv_store_backup(s, copy, told, &pages, &err) == KV_OK, "%s", err.message);
    ck_assert_uint_gt(pages, 0);
    ck_assert_int_eq(kv_store_backup(s, copy, NULL, NULL, &err), KV_CONFLICT);
    requests(s, 101, 100, 5); /* it goes on meanwhile */
    kv_store_close(s);
    struct kv_verify_result v = verify(copy);
    ck_assert_msg(v.verified, "%s", v.detail);
    ck_assert_uint_eq(v.rows, 500);
    s = open_at(copy);
    ck_assert(kv_store_trusted(s, &err));
    requests(s, 900, 1, 5);
    kv_store_close(s);
    ck_assert(verify(copy).verified);
}
END_TEST

START_TEST(receipts_are_found_by_digest_and_time)
{
    struct kv_store *s = open_at(dir);
    struct kv_receipt_row rows[50];
    int32_t n;
    struct kv_error err = {0};
    requests(s, 1, 10, 5);
    ck_assert_int_eq(kv_store_find(s, &(struct kv_receipt_filter){.digest = "070000", .limit = 50}, rows, &n, NULL, &err), KV_OK);
    ck_assert_int_eq(n, 1);
    ck_assert_uint_eq(rows[0].id, 8);
    ck_assert_int_eq(kv_store_find(s, &(struct kv_receipt_filter){.digest = "%", .limit = 50}, rows, &n, NULL, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_store_find(s, &(struct kv_receipt_filter){.since_us = 3000, .until_us = 5000, .limit = 50}, rows, &n, NULL, &err), KV_OK);
    ck_assert_int_eq(n, 10);
    kv_store_close(s);
}
END_TEST

Suite *suite_keep(void);
Suite *suite_keep(void)
{
    Suite *s = suite_create("keep");
    TCase *t = tcase_create("keep");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_tree_is_rfc_6962s);
    tcase_add_test(t, every_request_has_a_root);
    tcase_add_loop_test(t, alterations_are_named, 0, sizeof alterations / sizeof *alterations);
    tcase_add_test(t, a_rewritten_chain_is_named);
    tcase_add_test(t, retention_seals_and_says_so);
    tcase_add_test(t, a_backup_verifies_and_starts);
    tcase_add_test(t, receipts_are_found_by_digest_and_time);
    suite_add_tcase(s, t);
    return s;
}
