/* store_pauses.c — see store_pauses.h. */
#include "controller/store/store_pauses.h"

#include "controller/store/store_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kv_stored_pause_free(struct kv_stored_pause *p)
{
    free(p->manifest);
    free(p->tokens);
    free(p->result_tokens);
    p->manifest = NULL;
    p->tokens = p->result_tokens = NULL;
}

static void bind_text(sqlite3_stmt *q, int i, const char *t)
{
    sqlite3_bind_text(q, i, t, -1, SQLITE_TRANSIENT);
}

static enum kv_status receipt(struct kv_store *s, enum kv_receipt_kind kind, const char *tenant, const char *session, uint64_t epoch, const char *what, uint64_t *id, struct kv_error *err)
{
    struct kv_receipt r;
    kv_receipt_init(&r, (int)kind, kv_store_now_us(CLOCK_REALTIME));
    snprintf(r.tenant, sizeof r.tenant, "%s", tenant);
    snprintf(r.session, sizeof r.session, "%s", session);
    snprintf(r.detail, sizeof r.detail, "epoch %llu: %s", (unsigned long long)epoch, what);
    return kv_store_append(s, &r, id, err);
}

/* ---------------------------------------------------------------- reading a row, on either connection */

static const char columns[] = "SELECT epoch, state, call_id, manifest, tokens, paused_us, result_state, result_id, result_digest, result_tokens, expired_us FROM pauses "
                              "WHERE tenant = ? AND session = ? ORDER BY epoch DESC LIMIT 1";

static bool copy_tokens(sqlite3_stmt *q, int i, int32_t **out, int32_t *n)
{
    int bytes = sqlite3_column_bytes(q, i);
    *n = bytes / (int)sizeof **out;
    *out = malloc((size_t)bytes + 1);
    if (*out && bytes) memcpy(*out, sqlite3_column_blob(q, i), (size_t)bytes);
    return *out != NULL;
}

static bool read_row(sqlite3_stmt *q, struct kv_stored_pause *p)
{
    p->epoch = (uint64_t)sqlite3_column_int64(q, 0);
    p->resumed = !strcmp((const char *)sqlite3_column_text(q, 1), "RESUMED");
    kv_store_copy_text(q, 2, p->result.call_id, sizeof p->result.call_id);
    p->manifest = strdup((const char *)sqlite3_column_text(q, 3));
    p->paused_us = sqlite3_column_int64(q, 5);
    p->result_state = kv_result_state_from_name((const char *)sqlite3_column_text(q, 6));
    kv_store_copy_text(q, 7, p->result.result_id, sizeof p->result.result_id);
    memcpy(p->result.digest, sqlite3_column_blob(q, 8), 32);
    p->result.pause_epoch = p->epoch;
    p->expired = sqlite3_column_int64(q, 10) > 0;
    return copy_tokens(q, 4, &p->tokens, &p->n_tokens) && copy_tokens(q, 9, &p->result_tokens, &p->n_result_tokens) && p->manifest;
}

/* Writer thread. */
static enum kv_status last(struct kv_store *s, const char *tenant, const char *session, struct kv_stored_pause *out, struct kv_error *err)
{
    *out = (struct kv_stored_pause){0};
    sqlite3_stmt *q = kv_store_prepare(s, columns);
    if (!q) return kv_store_sql_error(s->db, "pauses", err);
    bind_text(q, 1, tenant);
    bind_text(q, 2, session);
    int rc = sqlite3_step(q);
    bool whole = rc != SQLITE_ROW || read_row(q, out);
    sqlite3_finalize(q);
    if (!whole) return kv_fail(err, KV_OUT_OF_MEMORY, "session", "no memory for the pause");
    if (rc == SQLITE_ROW) return KV_OK;
    if (rc != SQLITE_DONE) return kv_store_sql_error(s->db, "pauses", err);
    kv_fail(err, KV_NOT_PAUSED, "session", "session '%s' was never paused", session);
    kv_hint(err, "POST /v1/sessions/%s/pause first", session);
    return KV_NOT_PAUSED;
}

enum kv_status kv_store_last_pause(struct kv_store *s, const char *tenant, const char *session, struct kv_stored_pause *out, struct kv_error *err)
{
    *out = (struct kv_stored_pause){0};
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    bool found = false, whole = true;
    enum kv_status st = kv_store_query(s, columns, &q, err);
    if (st == KV_OK) {
        bind_text(q, 1, tenant);
        bind_text(q, 2, session);
        int rc = sqlite3_step(q);
        found = rc == SQLITE_ROW;
        if (found) whole = read_row(q, out);
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    snprintf(out->tenant, sizeof out->tenant, "%s", tenant);
    snprintf(out->session, sizeof out->session, "%s", session);
    if (st == KV_OK && !whole) return kv_fail(err, KV_OUT_OF_MEMORY, "session", "no memory for the pause");
    if (st != KV_OK || found) return st;
    kv_fail(err, KV_NOT_FOUND, "session", "no session '%s' was ever paused", session);
    kv_hint(err, "POST /v1/sessions/%s/pause first, with the same token", session);
    return KV_NOT_FOUND;
}

/* ---------------------------------------------------------------- put */

static enum kv_status run_put(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct kv_stored_pause *p = arg, before;
    uint64_t id;
    enum kv_status st = last(s, p->tenant, p->session, &before, err);
    kv_stored_pause_free(&before);
    if (st != KV_OK && st != KV_NOT_PAUSED) return st;
    if (st == KV_OK && !before.resumed) {
        p->epoch = before.epoch;
        kv_fail(err, KV_ALREADY_PAUSED, "session", "session '%s' is paused at epoch %llu", p->session, (unsigned long long)p->epoch);
        kv_hint(err, "resume it with that epoch first");
        return KV_ALREADY_PAUSED;
    }
    p->epoch = st == KV_OK ? before.epoch + 2 : 1;
    char what[96];
    snprintf(what, sizeof what, "paused%s%.40s, %d tokens are durable", *p->result.call_id ? " for call " : "", p->result.call_id, (int)p->n_tokens);
    st = receipt(s, KV_RECEIPT_PAUSE, p->tenant, p->session, p->epoch, what, &id, err);
    if (st != KV_OK) return st;
    static const uint8_t none[32];
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO pauses VALUES (?,?,?,?,?,'PAUSED',?,?,?,'UNSEEN','',?,x'',0)");
    if (!q) return kv_store_sql_error(s->db, "pauses", err);
    bind_text(q, 1, p->tenant);
    bind_text(q, 2, p->session);
    sqlite3_bind_int64(q, 3, (sqlite3_int64)p->epoch);
    sqlite3_bind_int64(q, 4, (sqlite3_int64)id);
    bind_text(q, 5, p->result.call_id);
    bind_text(q, 6, p->manifest);
    sqlite3_bind_blob(q, 7, p->tokens, p->n_tokens * (int)sizeof *p->tokens, SQLITE_TRANSIENT);
    sqlite3_bind_int64(q, 8, p->paused_us);
    sqlite3_bind_blob(q, 9, none, 32, SQLITE_STATIC);
    return kv_store_done(s, q, err);
}

enum kv_status kv_store_put_pause(struct kv_store *s, struct kv_stored_pause *p, struct kv_error *err)
{
    return kv_store_run(s, run_put, p, err);
}

/* ---------------------------------------------------------------- results */

static enum kv_status expired(const struct kv_stored_pause *p, struct kv_error *err)
{
    kv_fail(err, KV_PAUSE_EXPIRED, "session", "the pause of epoch %llu was given up: its session was dropped, or it lasted longer than interruptions.max_pause_s; nothing was applied", (unsigned long long)p->epoch);
    kv_hint(err, "ask again in a new request");
    return KV_PAUSE_EXPIRED;
}

struct move {
    const char *tenant, *session;
    const struct kv_result_key *key;
    enum kv_result_state to;
    const int32_t *tokens;
    int32_t n_tokens;
    enum kv_result_answer *answer;
};

static enum kv_status write_move(struct kv_store *s, const struct move *m, enum kv_result_state to, const int32_t *tokens, int32_t n, struct kv_error *err)
{
    uint64_t id;
    char what[96];
    snprintf(what, sizeof what, "result %.40s %s", m->key->result_id, kv_result_state_name(to));
    enum kv_status st = receipt(s, KV_RECEIPT_RESUME, m->tenant, m->session, m->key->pause_epoch, what, &id, err);
    if (st != KV_OK) return st;
    sqlite3_stmt *q = kv_store_prepare(s, "UPDATE pauses SET result_state = ?, result_id = ?, result_digest = ?, result_tokens = ? WHERE tenant = ? AND session = ? AND epoch = ?");
    if (!q) return kv_store_sql_error(s->db, "pauses", err);
    bind_text(q, 1, kv_result_state_name(to));
    bind_text(q, 2, m->key->result_id);
    sqlite3_bind_blob(q, 3, m->key->digest, 32, SQLITE_TRANSIENT);
    sqlite3_bind_blob(q, 4, n ? (const void *)tokens : "", n * (int)sizeof *tokens, SQLITE_TRANSIENT);
    bind_text(q, 5, m->tenant);
    bind_text(q, 6, m->session);
    sqlite3_bind_int64(q, 7, (sqlite3_int64)m->key->pause_epoch);
    return kv_store_done(s, q, err);
}

static enum kv_status run_move(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct move *m = arg;
    struct kv_stored_pause p;
    enum kv_status st = last(s, m->tenant, m->session, &p, err);
    if (st == KV_OK && !*p.result.call_id) {
        st = kv_fail(err, KV_NOT_FOUND, "call_id", "the session waits for no result");
        kv_hint(err, "resume it; only a pause with a call_id takes a result");
    }
    if (st == KV_OK) st = kv_result_offer(&p.result, p.result_state, m->key, m->answer, err);
    bool done = st == KV_OK && (*m->answer == KV_RESULT_NOOP || (*m->answer == KV_RESULT_FINALIZE && m->to != KV_RESULT_APPLIED));
    /* The same result again, before its commit: whoever offers it carries on where it stands. */
    if (st == KV_OK && !done && m->to == KV_RESULT_RESERVED && (p.result_state == KV_RESULT_RESERVED || p.result_state == KV_RESULT_CACHE_READY_AND_VALIDATED)) done = true;
    if (st == KV_OK && !done && m->to == KV_RESULT_CACHE_READY_AND_VALIDATED && p.result_state == m->to) done = true;
    if (st == KV_OK && !done && p.expired) st = expired(&p, err);
    if (st == KV_OK && !done) {
        enum kv_result_state to = p.result_state;
        bool commits = m->to == KV_RESULT_RESULT_APPEND_COMMITTED;
        if (kv_result_move(&to, m->to) != KV_OK)
            st = kv_fail(err, KV_ILLEGAL_TRANSITION, "result_id", "a result that is %s cannot become %s", kv_result_state_name(p.result_state), kv_result_state_name(m->to));
        else st = write_move(s, m, to, commits ? m->tokens : p.result_tokens, commits ? m->n_tokens : p.n_result_tokens, err);
    }
    kv_stored_pause_free(&p);
    return st;
}

enum kv_status kv_store_move_result(struct kv_store *s, const char *tenant, const char *session, const struct kv_result_key *key, enum kv_result_state to,
                                    const int32_t *tokens, int32_t n_tokens, enum kv_result_answer *answer, struct kv_error *err)
{
    return kv_store_run(s, run_move, &(struct move){tenant, session, key, to, tokens, n_tokens, answer}, err);
}

/* ---------------------------------------------------------------- resume */

struct resume {
    const char *tenant, *session;
    uint64_t epoch;
    bool undo;
};

static enum kv_status run_resume(struct kv_store *s, void *arg, struct kv_error *err)
{
    const struct resume *x = arg;
    struct kv_stored_pause p;
    uint64_t id;
    enum kv_status st = last(s, x->tenant, x->session, &p, err);
    kv_stored_pause_free(&p);
    if (st != KV_OK) return st;
    if (p.expired) return expired(&p, err);
    if (p.resumed != x->undo) {
        kv_fail(err, KV_NOT_PAUSED, "session", "session '%s' was resumed at epoch %llu", x->session, (unsigned long long)p.epoch + 1);
        kv_hint(err, "whoever resumed it has its answer; go on in a new request");
        return KV_NOT_PAUSED;
    }
    if (p.epoch != x->epoch) {
        kv_fail(err, KV_STALE_PAUSE_EPOCH, "pause_epoch", "the session is paused at epoch %llu, not %llu", (unsigned long long)p.epoch, (unsigned long long)x->epoch);
        kv_hint(err, "send the pause_epoch of its last pause");
        return KV_STALE_PAUSE_EPOCH;
    }
    if (*p.result.call_id && p.result_state != KV_RESULT_APPLIED) {
        kv_fail(err, KV_RESULT_MISSING, "session", "call '%s' has no result yet", p.result.call_id);
        kv_hint(err, "POST /v1/sessions/%s/result first", x->session);
        return KV_RESULT_MISSING;
    }
    st = receipt(s, KV_RECEIPT_RESUME, x->tenant, x->session, p.epoch + 1, x->undo ? "the continuation could not start; paused again" : "resumed", &id, err);
    if (st != KV_OK) return st;
    sqlite3_stmt *q = kv_store_prepare(s, "UPDATE pauses SET state = ? WHERE tenant = ? AND session = ? AND epoch = ?");
    if (!q) return kv_store_sql_error(s->db, "pauses", err);
    bind_text(q, 1, x->undo ? "PAUSED" : "RESUMED");
    bind_text(q, 2, x->tenant);
    bind_text(q, 3, x->session);
    sqlite3_bind_int64(q, 4, (sqlite3_int64)p.epoch);
    return kv_store_done(s, q, err);
}

enum kv_status kv_store_resume(struct kv_store *s, const char *tenant, const char *session, uint64_t epoch, struct kv_error *err)
{
    return kv_store_run(s, run_resume, &(struct resume){tenant, session, epoch, false}, err);
}

enum kv_status kv_store_unresume(struct kv_store *s, const char *tenant, const char *session, uint64_t epoch, struct kv_error *err)
{
    return kv_store_run(s, run_resume, &(struct resume){tenant, session, epoch, true}, err);
}

static enum kv_status run_forget(struct kv_store *s, void *arg, struct kv_error *err)
{
    const struct resume *x = arg;
    sqlite3_stmt *q = kv_store_prepare(s, "UPDATE pauses SET tokens = x'', result_tokens = zeroblob(length(result_tokens)) WHERE tenant = ? AND session = ? AND epoch = ? AND state = 'RESUMED' AND length(tokens) > 0");
    if (!q) return kv_store_sql_error(s->db, "pauses", err);
    bind_text(q, 1, x->tenant);
    bind_text(q, 2, x->session);
    sqlite3_bind_int64(q, 3, (sqlite3_int64)x->epoch);
    return kv_store_done(s, q, err);
}

enum kv_status kv_store_forget_resumed(struct kv_store *s, const char *tenant, const char *session, uint64_t epoch, struct kv_error *err)
{
    return kv_store_run(s, run_forget, &(struct resume){tenant, session, epoch, false}, err);
}

#define UNFINISHED "state = 'RESUMED' AND expired_us = 0 AND length(tokens) > 0"
#define LAST_OF_ITS_SESSION "epoch = (SELECT max(epoch) FROM pauses q WHERE q.tenant = pauses.tenant AND q.session = pauses.session)"

static enum kv_status run_reopen(struct kv_store *s, void *arg, struct kv_error *err)
{
    int32_t *n = arg;
    enum kv_status st = KV_OK;
    uint64_t id;
    sqlite3_stmt *q = kv_store_prepare(s, "SELECT tenant, session, epoch FROM pauses WHERE " UNFINISHED " AND " LAST_OF_ITS_SESSION);
    if (!q) return kv_store_sql_error(s->db, "pauses", err);
    for (*n = 0; st == KV_OK && sqlite3_step(q) == SQLITE_ROW; (*n)++)
        st = receipt(s, KV_RECEIPT_RESUME, (const char *)sqlite3_column_text(q, 0), (const char *)sqlite3_column_text(q, 1), (uint64_t)sqlite3_column_int64(q, 2) + 1,
                     "the last process was not known to have ended the continuation; paused again", &id, err);
    sqlite3_finalize(q);
    static const char *const moves[] = {"UPDATE pauses SET state = 'PAUSED', paused_us = ?1 WHERE " UNFINISHED " AND " LAST_OF_ITS_SESSION,
                                        "UPDATE pauses SET tokens = x'', result_tokens = zeroblob(length(result_tokens)) WHERE state = 'RESUMED' AND length(tokens) > 0"};
    for (int i = 0; i < 2 && st == KV_OK; i++) {
        if (!(q = kv_store_prepare(s, moves[i]))) return kv_store_sql_error(s->db, "pauses", err);
        if (i == 0) sqlite3_bind_int64(q, 1, kv_store_now_us(CLOCK_REALTIME)); /* whoever comes for it has the whole time again */
        st = kv_store_done(s, q, err);
    }
    return st;
}

enum kv_status kv_store_reopen_resumed(struct kv_store *s, int32_t *n, struct kv_error *err)
{
    return kv_store_run(s, run_reopen, n, err);
}

/* ---------------------------------------------------------------- expiry and lists */

struct expiry {
    int64_t before_us;
    int32_t n;
};

static enum kv_status expire_one(struct kv_store *s, const char *tenant, const char *session, uint64_t epoch, const char *why, struct kv_error *err)
{
    struct kv_receipt r;
    uint64_t id;
    kv_receipt_init(&r, (int)KV_RECEIPT_PAUSE, kv_store_now_us(CLOCK_REALTIME));
    r.reason = KV_PAUSE_EXPIRED;
    snprintf(r.tenant, sizeof r.tenant, "%.63s", tenant);
    snprintf(r.session, sizeof r.session, "%.63s", session);
    snprintf(r.detail, sizeof r.detail, "epoch %llu: %s", (unsigned long long)epoch, why);
    enum kv_status st = kv_store_append(s, &r, &id, err);
    if (st != KV_OK) return st;
    sqlite3_stmt *q = kv_store_prepare(s, "UPDATE pauses SET state = 'RESUMED', expired_us = ?, tokens = x'', result_tokens = zeroblob(length(result_tokens)) WHERE tenant = ? AND session = ? AND epoch = ?");
    if (!q) return kv_store_sql_error(s->db, "pauses", err);
    sqlite3_bind_int64(q, 1, kv_store_now_us(CLOCK_REALTIME));
    bind_text(q, 2, tenant);
    bind_text(q, 3, session);
    sqlite3_bind_int64(q, 4, (sqlite3_int64)epoch);
    return kv_store_done(s, q, err);
}

static enum kv_status run_expire(struct kv_store *s, void *arg, struct kv_error *err)
{
    enum { AT_ONCE = 64 };
    struct expiry *x = arg;
    struct { char tenant[64], session[64]; uint64_t epoch; } late[AT_ONCE];
    sqlite3_stmt *q = kv_store_prepare(s, "SELECT tenant, session, epoch FROM pauses WHERE state = 'PAUSED' AND paused_us < ? LIMIT 64");
    if (!q) return kv_store_sql_error(s->db, "pauses", err);
    sqlite3_bind_int64(q, 1, x->before_us);
    int32_t n = 0;
    while (n < AT_ONCE && sqlite3_step(q) == SQLITE_ROW) {
        kv_store_copy_text(q, 0, late[n].tenant, sizeof late[n].tenant);
        kv_store_copy_text(q, 1, late[n].session, sizeof late[n].session);
        late[n++].epoch = (uint64_t)sqlite3_column_int64(q, 2);
    }
    sqlite3_finalize(q);
    enum kv_status st = KV_OK;
    for (int32_t i = 0; i < n && st == KV_OK; i++) st = expire_one(s, late[i].tenant, late[i].session, late[i].epoch, "nobody came for it in time", err);
    x->n = n;
    return st;
}

enum kv_status kv_store_expire_pauses(struct kv_store *s, int64_t before_us, int32_t *n, struct kv_error *err)
{
    struct expiry x = {.before_us = before_us};
    enum kv_status st = kv_store_run(s, run_expire, &x, err);
    *n = x.n;
    return st;
}

static enum kv_status run_drop(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct resume *x = arg;
    struct kv_stored_pause p;
    enum kv_status st = last(s, x->tenant, x->session, &p, err);
    kv_stored_pause_free(&p);
    if (st == KV_OK && (p.expired || (p.resumed && !p.n_tokens))) st = KV_NOT_PAUSED; /* it was answered to its end */
    if (st == KV_OK) st = expire_one(s, x->tenant, x->session, x->epoch = p.epoch, "dropped with its session", err);
    return st == KV_NOT_PAUSED ? KV_OK : st;
}

enum kv_status kv_store_drop_pause(struct kv_store *s, const char *tenant, const char *session, bool *was, struct kv_error *err)
{
    struct resume x = {.tenant = tenant, .session = session};
    enum kv_status st = kv_store_run(s, run_drop, &x, err);
    *was = x.epoch > 0;
    return st;
}

enum kv_status kv_store_open_pauses(struct kv_store *s, struct kv_pause_row *out, int32_t *n, int32_t *total, struct kv_error *err)
{
    int32_t cap = *n;
    *n = *total = 0;
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT tenant, session, call_id, epoch, length(tokens) / 4, paused_us, result_state, count(*) OVER () FROM pauses WHERE state = 'PAUSED' ORDER BY paused_us", &q, err);
    if (st == KV_OK) {
        int rc = SQLITE_DONE;
        while (*n < cap && (rc = sqlite3_step(q)) == SQLITE_ROW) {
            struct kv_pause_row *r = &out[(*n)++];
            kv_store_copy_text(q, 0, r->tenant, sizeof r->tenant);
            kv_store_copy_text(q, 1, r->session, sizeof r->session);
            kv_store_copy_text(q, 2, r->call_id, sizeof r->call_id);
            r->epoch = (uint64_t)sqlite3_column_int64(q, 3);
            r->n_tokens = sqlite3_column_int(q, 4);
            r->paused_us = sqlite3_column_int64(q, 5);
            r->result_state = kv_result_state_from_name((const char *)sqlite3_column_text(q, 6));
            *total = sqlite3_column_int(q, 7);
        }
        st = kv_store_finish(s, q, *n == cap ? SQLITE_DONE : rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}
