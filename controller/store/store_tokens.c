/* store_tokens.c — access tokens: made from random bytes, kept as their SHA-256, revoked by name. */
#include "controller/store/store_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static void text(sqlite3_stmt *q, int i, const char *t)
{
    sqlite3_bind_text(q, i, t, -1, SQLITE_TRANSIENT);
}

enum kv_status kv_token_make(struct kv_stored_token *t, char out[64], struct kv_error *err)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t random[43];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return kv_fail(err, KV_IO_ERROR, "token", "no random bytes could be had");
    size_t at = sizeof KV_TOKEN_PREFIX - 1;
    memcpy(out, KV_TOKEN_PREFIX, at);
    for (size_t i = 0; i < sizeof random; i++) out[at + i] = letters[random[i] & 63];
    out[at + sizeof random] = 0;
    kv_sha256(out, strlen(out), t->sha256);
    return KV_OK;
}

static enum kv_status receipt(struct kv_store *s, int64_t at_us, const char *name, const char *what, const char *actor, uint64_t *id, struct kv_error *err)
{
    struct kv_receipt r;
    kv_receipt_init(&r, KV_ROW_AUDIT, at_us);
    snprintf(r.tenant, sizeof r.tenant, "%s", actor);
    snprintf(r.detail, sizeof r.detail, "token %.40s %s by %.30s", name, what, actor);
    return kv_store_append(s, &r, id, err);
}

/* Every one of them is compared at each request, and those beyond the limit would be out of force without anybody saying so. */
static enum kv_status check_room(struct kv_store *s, int64_t now_us, struct kv_error *err)
{
    sqlite3_stmt *q = kv_store_prepare(s, "SELECT count(*) FROM tokens WHERE revoked_us = 0 AND (expires_us = 0 OR expires_us > ?)");
    if (!q) return kv_store_sql_error(s->db, "tokens", err);
    sqlite3_bind_int64(q, 1, now_us);
    int64_t n = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    enum kv_status st = kv_store_done(s, q, err);
    if (st || n < KV_MAX_TOKENS) return st;
    kv_fail(err, KV_CAPACITY, "tokens", "%d tokens are in force already", KV_MAX_TOKENS);
    kv_hint(err, "kvasir token list; revoke those that nobody uses");
    return KV_CAPACITY;
}

static enum kv_status run_put(struct kv_store *s, void *arg, struct kv_error *err)
{
    const struct kv_stored_token *t = arg;
    uint64_t id;
    enum kv_status st = check_room(s, t->created_us, err);
    if (st == KV_OK) st = receipt(s, t->created_us, t->name, "created", t->creator, &id, err);
    sqlite3_stmt *q = st == KV_OK ? kv_store_prepare(s, "INSERT INTO tokens (name, sha256, rights, tenant, created_us, expires_us, revoked_us, creator, receipt) VALUES (?,?,?,?,?,?,0,?,?)") : NULL;
    if (st != KV_OK) return st;
    if (!q) return kv_store_sql_error(s->db, "tokens", err);
    text(q, 1, t->name);
    sqlite3_bind_blob(q, 2, t->sha256, 32, SQLITE_STATIC);
    text(q, 3, t->rights);
    text(q, 4, t->tenant);
    sqlite3_bind_int64(q, 5, t->created_us);
    sqlite3_bind_int64(q, 6, t->expires_us);
    text(q, 7, t->creator);
    sqlite3_bind_int64(q, 8, (sqlite3_int64)id);
    st = kv_store_done(s, q, err);
    if (st == KV_CONFLICT) {
        kv_fail(err, KV_CONFLICT, "name", "a token named '%s' is in force", t->name);
        kv_hint(err, "revoke it first, or choose another name");
    }
    return st;
}

enum kv_status kv_store_put_token(struct kv_store *s, const struct kv_stored_token *t, struct kv_error *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@+:";
    struct kv_stored_token copy = *t;
    if (!*t->name || t->name[strspn(t->name, allowed)]) /* revoking names it in an address */
        return kv_fail(err, KV_BAD_ARGUMENT, "name", "a token's name is made of letters, digits and . _ - @ + :");
    return kv_store_run(s, run_put, &copy, err);
}

struct revoke {
    const char *name, *actor;
    int64_t at_us;
};

static enum kv_status run_revoke(struct kv_store *s, void *arg, struct kv_error *err)
{
    const struct revoke *r = arg;
    uint64_t id;
    enum kv_status st = receipt(s, r->at_us, r->name, "revoked", r->actor, &id, err);
    sqlite3_stmt *q = st == KV_OK ? kv_store_prepare(s, "UPDATE tokens SET revoked_us = ? WHERE name = ? AND revoked_us = 0") : NULL;
    if (st != KV_OK) return st;
    if (!q) return kv_store_sql_error(s->db, "tokens", err);
    sqlite3_bind_int64(q, 1, r->at_us);
    text(q, 2, r->name);
    st = kv_store_done(s, q, err);
    return st != KV_OK || sqlite3_changes(s->db) == 1 ? st : kv_fail(err, KV_NOT_FOUND, "name", "no token named '%.60s' is in force", r->name);
}

enum kv_status kv_store_revoke_token(struct kv_store *s, const char *name, const char *actor, int64_t at_us, struct kv_error *err)
{
    return kv_store_run(s, run_revoke, &(struct revoke){name, actor, at_us}, err);
}

enum kv_status kv_store_tokens(struct kv_store *s, int64_t now_us, struct kv_stored_token *out, int32_t *n, struct kv_error *err)
{
    int32_t cap = *n;
    *n = 0;
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT name, tenant, rights, creator, sha256, created_us, expires_us, revoked_us FROM tokens "
                                       "ORDER BY revoked_us <> 0 OR (expires_us <> 0 AND expires_us <= ?2), id DESC LIMIT ?1", &q, err);
    if (st == KV_OK) {
        sqlite3_bind_int(q, 1, cap);
        sqlite3_bind_int64(q, 2, now_us);
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW && *n < cap) {
            struct kv_stored_token *t = &out[(*n)++];
            memset(t, 0, sizeof *t);
            kv_store_copy_text(q, 0, t->name, sizeof t->name);
            kv_store_copy_text(q, 1, t->tenant, sizeof t->tenant);
            kv_store_copy_text(q, 2, t->rights, sizeof t->rights);
            kv_store_copy_text(q, 3, t->creator, sizeof t->creator);
            if (sqlite3_column_bytes(q, 4) == 32) memcpy(t->sha256, sqlite3_column_blob(q, 4), 32);
            t->created_us = sqlite3_column_int64(q, 5);
            t->expires_us = sqlite3_column_int64(q, 6);
            t->revoked_us = sqlite3_column_int64(q, 7);
        }
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}
