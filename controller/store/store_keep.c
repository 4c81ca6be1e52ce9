/* store_keep.c — what is kept and for how long: roots of requests, sealing old receipts, online backups. */
#include "controller/store/merkle.h"
#include "controller/store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEAL_AT_ONCE = 20000, ALWAYS_KEPT = 1000 };

/* ---------------------------------------------------------------- roots of requests */

/* Leaves: a request's receipts since its last REQUEST row; request ids begin again with every process. ?2: the row that ends it. */
static const char leaves_sql[] = "SELECT hash FROM receipts WHERE request = ?1 AND request <> 0 AND id <= ?2 AND id > coalesce((SELECT max(id) FROM receipts WHERE request = ?1 AND "
                                 "request <> 0 AND id < ?2 AND kind = 'REQUEST'), 0) ORDER BY id";

static int add_leaves(sqlite3_stmt *q, uint64_t request, uint64_t last, struct kv_merkle *m)
{
    int rc;
    memset(m, 0, sizeof *m);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)request);
    sqlite3_bind_int64(q, 2, (sqlite3_int64)last);
    while ((rc = sqlite3_step(q)) == SQLITE_ROW)
        if (sqlite3_column_bytes(q, 0) == 32) kv_merkle_add(m, sqlite3_column_blob(q, 0));
    return rc;
}

enum kv_status kv_store_put_root(struct kv_store *s, uint64_t request, uint64_t last, struct kv_error *err)
{
    struct kv_merkle m;
    uint8_t root[32];
    if (!s->leaves && sqlite3_prepare_v3(s->db, leaves_sql, -1, SQLITE_PREPARE_PERSISTENT, &s->leaves, NULL) != SQLITE_OK) return kv_store_sql_error(s->db, "request_roots", err);
    if (!s->root && sqlite3_prepare_v3(s->db, "INSERT INTO request_roots VALUES (?,?,?,?)", -1, SQLITE_PREPARE_PERSISTENT, &s->root, NULL) != SQLITE_OK)
        return kv_store_sql_error(s->db, "request_roots", err);
    int rc = add_leaves(s->leaves, request, last, &m);
    sqlite3_reset(s->leaves);
    if (rc != SQLITE_DONE) return kv_store_sql_error(s->db, "request_roots", err);
    kv_merkle_root(&m, root);
    sqlite3_bind_int64(s->root, 1, (sqlite3_int64)last);
    sqlite3_bind_int64(s->root, 2, (sqlite3_int64)request);
    sqlite3_bind_int64(s->root, 3, (sqlite3_int64)m.n);
    sqlite3_bind_blob(s->root, 4, root, 32, SQLITE_STATIC);
    rc = sqlite3_step(s->root);
    sqlite3_reset(s->root);
    return rc == SQLITE_DONE ? KV_OK : kv_store_sql_error(s->db, "request_roots", err);
}

/* Every stored root against its leaves. A request whose first receipts were sealed away can no longer be recomputed and is passed over. */
enum kv_status kv_store_verify_roots(sqlite3 *db, uint64_t sealed, struct kv_verify_result *out, struct kv_error *err)
{
    sqlite3_stmt *q = NULL, *leaves = NULL;
    uint8_t root[32];
    struct kv_merkle m;
    int rc = sqlite3_prepare_v2(db, "SELECT receipt, request, leaves, root FROM request_roots ORDER BY receipt", -1, &q, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_prepare_v2(db, leaves_sql, -1, &leaves, NULL);
    while (rc == SQLITE_OK && out->verified && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        uint64_t last = (uint64_t)sqlite3_column_int64(q, 0), n = (uint64_t)sqlite3_column_int64(q, 2);
        rc = add_leaves(leaves, (uint64_t)sqlite3_column_int64(q, 1), last, &m) == SQLITE_DONE ? SQLITE_OK : SQLITE_ERROR;
        sqlite3_reset(leaves);
        kv_merkle_root(&m, root);
        if (m.n < n && sealed) continue;
        out->roots++;
        if (m.n == n && sqlite3_column_bytes(q, 3) == 32 && !memcmp(root, sqlite3_column_blob(q, 3), 32)) continue;
        out->verified = false;
        out->at = last;
        out->reason = KV_STORE_CORRUPT;
        snprintf(out->detail, sizeof out->detail, "edited: the request's root does not follow from its receipts");
    }
    enum kv_status st = rc == SQLITE_DONE || rc == SQLITE_OK || rc == SQLITE_ROW ? KV_OK : kv_store_sql_error(db, "request_roots", err);
    sqlite3_finalize(q);
    sqlite3_finalize(leaves);
    return st;
}

enum kv_status kv_store_request_root(struct kv_store *s, const struct kv_receipt_row *row, struct kv_request_root *out, struct kv_error *err)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT receipt, leaves, root FROM request_roots WHERE request = ?1 AND receipt >= ?2 ORDER BY receipt LIMIT 1", &q, err);
    if (st == KV_OK) {
        sqlite3_bind_int64(q, 1, (sqlite3_int64)row->r.request);
        sqlite3_bind_int64(q, 2, (sqlite3_int64)row->id);
        int rc = row->r.request ? sqlite3_step(q) : SQLITE_DONE;
        if (rc == SQLITE_ROW && sqlite3_column_bytes(q, 2) == 32) {
            out->receipt = (uint64_t)sqlite3_column_int64(q, 0);
            out->leaves = (uint64_t)sqlite3_column_int64(q, 1);
            memcpy(out->root, sqlite3_column_blob(q, 2), 32);
        }
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}

/* ---------------------------------------------------------------- retention */

static uint64_t one_number(sqlite3 *db, const char *sql, uint64_t a, int64_t b)
{
    sqlite3_stmt *q = NULL;
    uint64_t v = 0;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK) return 0;
    if (sqlite3_bind_parameter_count(q) >= 1) sqlite3_bind_int64(q, 1, (sqlite3_int64)a);
    if (sqlite3_bind_parameter_count(q) >= 2) sqlite3_bind_int64(q, 2, b);
    if (sqlite3_step(q) == SQLITE_ROW) v = (uint64_t)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return v;
}

uint64_t kv_store_sealed(sqlite3 *db, uint8_t hash[32], uint64_t *receipt)
{
    sqlite3_stmt *q = NULL;
    uint64_t last = 0;
    memset(hash, 0, 32);
    *receipt = 0;
    if (sqlite3_prepare_v2(db, "SELECT last, hash, receipt FROM seals ORDER BY last DESC LIMIT 1", -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW && sqlite3_column_bytes(q, 1) == 32) {
        last = (uint64_t)sqlite3_column_int64(q, 0);
        memcpy(hash, sqlite3_column_blob(q, 1), 32);
        *receipt = (uint64_t)sqlite3_column_int64(q, 2);
    }
    sqlite3_finalize(q);
    return last;
}

struct retain {
    int64_t before_us, now_us;
    uint64_t removed;
};

/* Writer thread, a transaction of its own with foreign keys off: what rested on the removed receipts stays and names them by their ids. */
static enum kv_status run_retain(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct retain *r = arg;
    struct chain at;
    uint64_t first = one_number(s->db, "SELECT coalesce(min(id), 0) FROM receipts", 0, 0);
    uint64_t upto = one_number(s->db, "SELECT coalesce(max(id), 0) FROM receipts WHERE id <= ?1 AND at_us < ?2", first + SEAL_AT_ONCE, r->before_us);
    if (!first || s->committed.id <= ALWAYS_KEPT) return KV_OK;
    if (upto > s->committed.id - ALWAYS_KEPT) upto = s->committed.id - ALWAYS_KEPT;
    if (upto < first || !kv_heads_at_or_before(&s->heads, upto, &at) || at.id < first) return KV_OK; /* a seal stands where a head was signed */
    char sql[256];
    snprintf(sql, sizeof sql, "DROP TRIGGER receipts_no_delete; DELETE FROM receipts WHERE id <= %llu; DELETE FROM request_roots WHERE receipt <= %llu;", (unsigned long long)at.id, (unsigned long long)at.id);
    if (sqlite3_exec(s->db, sql, NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_exec(s->db, "CREATE TRIGGER receipts_no_delete BEFORE DELETE ON receipts BEGIN SELECT raise(ABORT, 'receipts are append-only'); END", NULL, NULL, NULL) != SQLITE_OK)
        return kv_store_sql_error(s->db, "retention", err);
    struct kv_receipt c;
    uint64_t receipt;
    kv_receipt_init(&c, KV_ROW_STORE, r->now_us);
    c.rows = at.id - first + 1;
    memcpy(c.digest, at.hash, 32);
    snprintf(c.detail, sizeof c.detail, "retention sealed and removed receipts %llu to %llu", (unsigned long long)first, (unsigned long long)at.id);
    enum kv_status st = kv_store_append(s, &c, &receipt, err);
    sqlite3_stmt *q = st == KV_OK ? kv_store_prepare(s, "INSERT INTO seals VALUES (?,?,?,?,?)") : NULL;
    if (st != KV_OK) return st;
    if (!q) return kv_store_sql_error(s->db, "seals", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)at.id);
    sqlite3_bind_blob(q, 2, at.hash, 32, SQLITE_STATIC);
    sqlite3_bind_int64(q, 3, r->now_us);
    sqlite3_bind_int64(q, 4, (sqlite3_int64)c.rows);
    sqlite3_bind_int64(q, 5, (sqlite3_int64)receipt);
    st = kv_store_done(s, q, err);
    if (st == KV_OK) r->removed = c.rows;
    return st;
}

enum kv_status kv_store_retain(struct kv_store *s, int64_t before_us, int64_t now_us, uint64_t *removed, struct kv_error *err)
{
    struct retain r = {before_us, now_us, 0};
    enum kv_status st = kv_store_run_alone(s, run_retain, &r, err);
    *removed = st == KV_OK ? r.removed : 0;
    return st;
}

/* ---------------------------------------------------------------- backup */

static enum kv_status copy_file(const char *from_dir, const char *to_dir, const char *name, bool needed, struct kv_error *err)
{
    char from[1100], to[1100], buf[65536];
    snprintf(from, sizeof from, "%s/%s", from_dir, name);
    snprintf(to, sizeof to, "%s/%s", to_dir, name);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0) return needed ? kv_fail(err, KV_FILE_UNREADABLE, from, "%s cannot be read: %s", name, strerror(errno)) : KV_OK;
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t n = out < 0 ? -1 : 0;
    while (out >= 0 && (n = read(in, buf, sizeof buf)) > 0)
        if (write(out, buf, (size_t)n) != n) break;
    bool bad = n != 0 || fsync(out);
    if (bad) kv_fail(err, errno == ENOSPC ? KV_NO_SPACE : KV_IO_ERROR, to, "the backup of %s cannot be written: %s", name, strerror(errno));
    close(in);
    if (out >= 0) close(out);
    return bad ? KV_IO_ERROR : KV_OK;
}

/* In pieces, so that whoever waits can be told how far it is; a piece takes milliseconds. */
static int copy_pages(sqlite3_backup *b, kv_told *told, void *ctx)
{
    enum { PAGES = 512 };
    int rc;
    while ((rc = sqlite3_backup_step(b, PAGES)) == SQLITE_OK) {
        int total = sqlite3_backup_pagecount(b);
        if (told) told(ctx, (uint64_t)(total - sqlite3_backup_remaining(b)), (uint64_t)total);
    }
    int total = sqlite3_backup_pagecount(b);
    if (told && rc == SQLITE_DONE) told(ctx, (uint64_t)total, (uint64_t)total);
    return rc;
}

enum kv_status kv_store_backup(struct kv_store *s, const char *to, kv_told *told, void *ctx, struct kv_error *err)
{
    char path[1100];
    enum kv_status st = kv_store_flush(s, err);
    if (st != KV_OK) return st;
    if (mkdir(to, 0700)) return kv_fail(err, errno == EEXIST ? KV_CONFLICT : KV_IO_ERROR, to, "the backup's folder cannot be made: %s", strerror(errno));
    /* The heads first: none may be newer than the rows that follow. */
    st = copy_file(s->dir, to, "receipts.heads", true, err);
    if (st == KV_OK) st = copy_file(s->dir, to, "rollback.intent", false, err);
    if (st == KV_OK && !s->config.key_file) st = copy_file(s->dir, to, "receipts.key", true, err);
    snprintf(path, sizeof path, "%s/kvasir.db", to);
    if (st == KV_OK) st = kv_store_make_file(path, err);
    if (st != KV_OK) return st;
    sqlite3 *copy = NULL;
    int rc = sqlite3_open(path, &copy);
    pthread_mutex_lock(&s->read_mutex); /* no checkpoint meanwhile */
    sqlite3_backup *b = rc == SQLITE_OK ? sqlite3_backup_init(copy, "main", s->read_db, "main") : NULL;
    if (b) {
        copy_pages(b, told, ctx);
        rc = sqlite3_backup_finish(b);
    }
    pthread_mutex_unlock(&s->read_mutex);
    if (!b || rc != SQLITE_OK) st = kv_fail(err, rc == SQLITE_FULL ? KV_NO_SPACE : KV_IO_ERROR, path, "the backup failed: %s", sqlite3_errstr(rc));
    sqlite3_close(copy);
    snprintf(path, sizeof path, "%s/lock", to); /* makes it a state directory: it verifies and starts as it is */
    return st == KV_OK ? kv_store_make_file(path, err) : st;
}
