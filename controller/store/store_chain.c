/* store_chain.c — signed heads of the receipt chain, and its verification.
 *
 * receipts.heads is append-only: records of 128 bytes, each an HMAC-SHA-256 over the row id, the chain's hash there, the time and the
 * previous record's HMAC. A chain alone does not see that its end was cut or that all of it was rewritten; the signed heads do. */
#include "controller/store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct head_record {
    char magic[8];
    uint64_t id;
    int64_t at_us;
    uint8_t hash[32], mac[32];
    uint8_t reserved[40];
};
_Static_assert(sizeof(struct head_record) == 128, "records are found by their index");
static const char magic[8] = "KVHEAD01";

static bool sign(const uint8_t key[32], const uint8_t previous[32], const struct head_record *r, uint8_t out[32])
{
    uint8_t text[8 + 8 + 8 + 32 + 32];
    memcpy(text, r, 56);
    memcpy(text + 56, previous, 32);
    return gnutls_hmac_fast(GNUTLS_MAC_SHA256, key, 32, text, sizeof text, out) == 0;
}

static enum kv_status read_key(const char *path, bool create, uint8_t key[32], struct kv_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && create) {
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 && (getrandom(key, 32, 0) != 32 || pwrite(fd, key, 32, 0) != 32 || fsync(fd))) {
            close(fd);
            unlink(path);
            return kv_fail(err, errno == ENOSPC ? KV_NO_SPACE : KV_IO_ERROR, path, "the receipt key cannot be written: %s", strerror(errno));
        }
    }
    if (fd < 0) {
        kv_fail(err, KV_FILE_UNREADABLE, path, "the receipt key cannot be opened: %s", strerror(errno));
        kv_hint(err, "restore the key file; without it the signed heads cannot be checked");
        return KV_FILE_UNREADABLE;
    }
    ssize_t n = pread(fd, key, 32, 0);
    close(fd);
    return n == 32 ? KV_OK : kv_fail(err, KV_STORE_CORRUPT, path, "the receipt key is not 32 bytes long");
}

enum kv_status kv_heads_open(struct heads *h, const char *dir, const char *key_file, bool create, struct kv_error *err)
{
    char path[1024];
    memset(h, 0, sizeof *h);
    h->fd = -1;
    snprintf(path, sizeof path, "%s/receipts.heads", dir);
    struct stat st;
    bool fresh = stat(path, &st) != 0 || st.st_size == 0;
    char own_key[1024];
    snprintf(own_key, sizeof own_key, "%s/receipts.key", dir);
    enum kv_status s = read_key(key_file ? key_file : own_key, create && fresh && !key_file, h->key, err);
    if (s != KV_OK) return s;
    h->fd = open(path, create ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0600);
    if (h->fd < 0) return kv_fail(err, KV_FILE_UNREADABLE, path, "the signed heads cannot be opened: %s", strerror(errno));
    if (fstat(h->fd, &st)) return kv_fail(err, KV_IO_ERROR, path, "the signed heads cannot be read: %s", strerror(errno));
    h->records = (uint64_t)st.st_size / sizeof(struct head_record); /* a torn last record is written over */
    struct head_record r;
    if (h->records && pread(h->fd, &r, sizeof r, (off_t)((h->records - 1) * sizeof r)) == (ssize_t)sizeof r) {
        memcpy(h->mac, r.mac, 32);
        h->id = r.id;
    }
    return KV_OK;
}

void kv_heads_close(struct heads *h)
{
    if (h->fd >= 0) close(h->fd);
    h->fd = -1;
    gnutls_memset(h->key, 0, sizeof h->key);
}

enum kv_status kv_heads_append(struct heads *h, const struct chain *c, int64_t at_us)
{
    struct head_record r;
    memset(&r, 0, sizeof r);
    memcpy(r.magic, magic, sizeof magic);
    r.id = c->id;
    r.at_us = at_us;
    memcpy(r.hash, c->hash, 32);
    if (!sign(h->key, h->mac, &r, r.mac)) return KV_INTERNAL;
    if (pwrite(h->fd, &r, sizeof r, (off_t)(h->records * sizeof r)) != (ssize_t)sizeof r || fdatasync(h->fd)) return KV_IO_ERROR;
    h->records++;
    h->id = r.id;
    memcpy(h->mac, r.mac, 32);
    return KV_OK;
}

bool kv_heads_at_or_before(const struct heads *h, uint64_t id, struct chain *out)
{
    struct head_record r;
    uint64_t low = 0, high = h->records; /* records below low cover no row after id */
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (pread(h->fd, &r, sizeof r, (off_t)(mid * sizeof r)) != (ssize_t)sizeof r) return false;
        if (r.id <= id) low = mid + 1;
        else high = mid;
    }
    if (low == 0 || pread(h->fd, &r, sizeof r, (off_t)((low - 1) * sizeof r)) != (ssize_t)sizeof r || r.id == 0) return false;
    out->id = r.id;
    memcpy(out->hash, r.hash, 32);
    return true;
}

static enum kv_status distrust(struct kv_error *err, uint64_t id, const char *what)
{
    char where[64];
    snprintf(where, sizeof where, "receipt %llu", (unsigned long long)id);
    kv_fail(err, KV_STORE_CORRUPT, where, "%s", what);
    kv_hint(err, "kvasir receipts verify shows the first row that does not verify; keep the state directory for examination");
    return KV_STORE_CORRUPT;
}

/* The last row recomputed from the one before it, and the last signed head against the row it names. */
enum kv_status kv_heads_check_tail(sqlite3 *db, struct heads *h, struct chain *chain, struct kv_error *err)
{
    memset(chain, 0, sizeof *chain);
    uint8_t zero[32] = {0}, previous[32] = {0}, hash[32], mac[32], before[32] = {0};
    struct kv_receipt_row last, row;
    int rows = 0;
    char sql[512];
    snprintf(sql, sizeof sql, "SELECT %s FROM receipts ORDER BY id DESC LIMIT 2", kv_store_columns);
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK) return kv_store_sql_error(db, "receipts", err);
    while (rows < 2 && sqlite3_step(q) == SQLITE_ROW) {
        kv_store_read_row(q, &row);
        if (rows == 0) last = row;
        else memcpy(previous, row.hash, 32);
        rows++;
    }
    sqlite3_finalize(q);
    if (rows) {
        chain->id = last.id;
        memcpy(chain->hash, last.hash, 32);
        kv_receipt_hash(rows == 2 ? previous : zero, last.id, &last.r, hash);
        if (memcmp(hash, last.hash, 32)) return distrust(err, last.id, "the last receipt does not match its hash");
    }
    if (!h->records) return rows ? distrust(err, 1, "receipts exist and no head was ever signed for them") : KV_OK;
    struct head_record r, p;
    if (pread(h->fd, &r, sizeof r, (off_t)((h->records - 1) * sizeof r)) != (ssize_t)sizeof r) return distrust(err, 0, "the signed heads cannot be read");
    if (h->records > 1) {
        if (pread(h->fd, &p, sizeof p, (off_t)((h->records - 2) * sizeof p)) != (ssize_t)sizeof p) return distrust(err, 0, "the signed heads cannot be read");
        memcpy(before, p.mac, 32);
    }
    if (memcmp(r.magic, magic, sizeof magic) || !sign(h->key, before, &r, mac) || memcmp(mac, r.mac, 32)) return distrust(err, r.id, "the last signed head does not verify");
    if (r.id > chain->id) return distrust(err, chain->id + 1, "receipts that a signed head covers are missing");
    if (r.id == 0) return KV_OK;
    if (sqlite3_prepare_v2(db, "SELECT hash FROM receipts WHERE id = ?", -1, &q, NULL) != SQLITE_OK) return kv_store_sql_error(db, "receipts", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)r.id);
    bool same = sqlite3_step(q) == SQLITE_ROW && sqlite3_column_bytes(q, 0) == 32 && !memcmp(sqlite3_column_blob(q, 0), r.hash, 32);
    sqlite3_finalize(q);
    return same ? KV_OK : distrust(err, r.id, "a receipt differs from its signed head");
}

static void failed_at(struct kv_verify_result *out, uint64_t id, const char *what)
{
    out->verified = false;
    out->at = id;
    out->reason = KV_STORE_CORRUPT;
    snprintf(out->detail, sizeof out->detail, "%s", what);
}

struct walk { /* a position in the chain and the next signed head */
    struct chain chain;
    uint64_t sealed, seal_receipt; /* where it began, and the receipt that has to say so */
    uint64_t record, records;
    struct head_record head;
    uint8_t mac[32];
    bool seal_signed;
    uint8_t seal_hash[32];
};

/* Why a row does not match: the one that belongs here stands elsewhere, or this one was changed. */
static void name_mismatch(sqlite3 *db, const struct walk *w, const struct kv_receipt_row *row, struct kv_verify_result *out)
{
    char sql[512], detail[120];
    sqlite3_stmt *q = NULL;
    failed_at(out, row->id, "edited: a receipt does not match its hash");
    snprintf(sql, sizeof sql, "SELECT %s FROM receipts WHERE id > ? ORDER BY id LIMIT 1000", kv_store_columns);
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK) return;
    sqlite3_bind_int64(q, 1, (sqlite3_int64)row->id);
    while (sqlite3_step(q) == SQLITE_ROW) {
        struct kv_receipt_row other;
        uint8_t hash[32];
        kv_store_read_row(q, &other);
        kv_receipt_hash(w->chain.hash, row->id, &other.r, hash);
        if (memcmp(hash, other.hash, 32)) continue;
        snprintf(detail, sizeof detail, "reordered: the receipt that belongs here stands at %llu", (unsigned long long)other.id);
        failed_at(out, row->id, detail);
        break;
    }
    sqlite3_finalize(q);
}

/* Loads and checks heads until one names a later row than the chain has reached. */
static bool heads_up_to(const struct heads *h, struct walk *w, struct kv_verify_result *out)
{
    while (w->record < w->records) {
        uint8_t mac[32];
        if (pread(h->fd, &w->head, sizeof w->head, (off_t)(w->record * sizeof w->head)) != (ssize_t)sizeof w->head ||
            memcmp(w->head.magic, magic, sizeof magic) || !sign(h->key, w->mac, &w->head, mac) || memcmp(mac, w->head.mac, 32))
            return failed_at(out, w->chain.id + 1, "a signed head does not verify"), false;
        if (w->head.id > w->chain.id) return true;
        bool before = w->head.id < w->sealed; /* its row is gone with all before the seal */
        if (w->head.id < w->chain.id && !before) return failed_at(out, w->head.id, "signed heads are out of order"), false;
        if (!before && memcmp(w->head.hash, w->chain.hash, 32)) return failed_at(out, w->chain.id, "rewritten: the chain differs from a signed head"), false;
        if (w->head.id == w->sealed) w->seal_signed = true;
        memcpy(w->mac, mac, 32);
        out->signed_rows = w->head.id;
        w->record++;
    }
    return true;
}

/* Up to 4096 rows under the read lock, so that a long verification holds up neither queries nor checkpoints. */
static enum kv_status verify_some(sqlite3 *db, const struct heads *h, struct walk *w, struct kv_verify_result *out, bool *more, struct kv_error *err)
{
    char sql[512];
    snprintf(sql, sizeof sql, "SELECT %s FROM receipts WHERE id > ? ORDER BY id LIMIT 4096", kv_store_columns);
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK) return kv_store_sql_error(db, "receipts", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)w->chain.id);
    int rc, n = 0;
    while (out->verified && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        struct kv_receipt_row row;
        kv_store_read_row(q, &row);
        n++;
        uint8_t hash[32];
        kv_receipt_hash(w->chain.hash, row.id, &row.r, hash);
        bool seal = row.id == w->seal_receipt && w->sealed;
        if (row.id != w->chain.id + 1) failed_at(out, w->chain.id + 1, "removed: a receipt is missing");
        else if (memcmp(hash, row.hash, 32)) name_mismatch(db, w, &row, out);
        else if (seal && memcmp(row.r.digest, w->seal_hash, 32)) failed_at(out, row.id, "removed: the seal is not the one its receipt records");
        else {
            w->chain.id = row.id;
            memcpy(w->chain.hash, hash, 32);
            out->rows++;
            heads_up_to(h, w, out);
        }
    }
    enum kv_status s = out->verified && rc != SQLITE_DONE ? kv_store_sql_error(db, "receipts", err) : KV_OK;
    sqlite3_finalize(q);
    *more = s == KV_OK && out->verified && n == 4096;
    return s;
}

enum kv_status kv_heads_verify(sqlite3 *db, pthread_mutex_t *read_mutex, const struct heads *h, struct kv_verify_result *out, struct kv_error *err)
{
    memset(out, 0, sizeof *out);
    out->verified = true;
    struct walk w = {.records = h->records};
    w.chain.id = w.sealed = out->sealed = kv_store_sealed(db, w.seal_hash, &w.seal_receipt);
    memcpy(w.chain.hash, w.seal_hash, 32);
    heads_up_to(h, &w, out);
    enum kv_status s = KV_OK;
    for (bool more = out->verified; more && s == KV_OK;) {
        if (read_mutex) pthread_mutex_lock(read_mutex);
        s = verify_some(db, h, &w, out, &more, err);
        if (read_mutex) pthread_mutex_unlock(read_mutex);
    }
    if (s == KV_OK && out->verified && w.record < w.records) failed_at(out, w.chain.id + 1, "tail removed: receipts that a signed head covers are missing");
    if (s == KV_OK && out->verified && w.sealed && (!w.seal_signed || w.chain.id < w.seal_receipt)) failed_at(out, w.sealed, "removed: no signed head covers the seal, or its receipt is missing");
    if (s == KV_OK && out->verified) s = kv_store_verify_roots(db, w.sealed, out, err);
    if (s == KV_OK && out->verified && !h->records && out->rows) failed_at(out, 1, "no head was ever signed");
    memcpy(out->head, w.chain.hash, 32);
    return s;
}
