/* store_policies.c — policy versions by content, every state they were in, and the decisions that can be asked again. */
#include "controller/store/store_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void text(sqlite3_stmt *q, int i, const char *t)
{
    sqlite3_bind_text(q, i, t, -1, SQLITE_TRANSIENT);
}

/* ---------------------------------------------------------------- writing; writer thread, inside a transaction */

static enum kv_status put_source(struct kv_store *s, const struct kv_script *p, int64_t at_us, bool *fresh, struct kv_error *err)
{
    size_t n;
    const char *source = kv_policy_source(p, &n);
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO policies VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING");
    if (!q) return kv_store_sql_error(s->db, "policies", err);
    text(q, 1, kv_policy_kind_name(kv_policy_kind(p)));
    text(q, 2, kv_policy_version(p));
    text(q, 3, kv_policy_name(p));
    sqlite3_bind_text(q, 4, source, (int)n, SQLITE_STATIC);
    sqlite3_bind_int64(q, 5, at_us);
    enum kv_status st = kv_store_done(s, q, err);
    *fresh = st == KV_OK && sqlite3_changes(s->db) > 0;
    return st;
}

static enum kv_status put_receipt(struct kv_store *s, const char *kind, const char *version, enum kv_policy_state to, const char *actor, int64_t at_us, uint64_t *receipt, struct kv_error *err)
{
    struct kv_receipt c;
    kv_receipt_init(&c, KV_ROW_POLICY, at_us);
    kv_store_version_digest(version, c.digest);
    snprintf(c.detail, sizeof c.detail, "%s policy %.12s %s by %.40s", kind, version, kv_policy_state_name(to), actor);
    return kv_store_append(s, &c, receipt, err);
}

static enum kv_status put_state(struct kv_store *s, uint64_t receipt, const char *kind, const char *version, enum kv_policy_state to, const char *actor, const char *detail, int64_t at_us,
                                struct kv_error *err)
{
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO policy_states (receipt, kind, version, state, at_us, actor, detail) VALUES (?,?,?,?,?,?,?)");
    if (!q) return kv_store_sql_error(s->db, "policy_states", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)receipt);
    text(q, 2, kind);
    text(q, 3, version);
    text(q, 4, kv_policy_state_name(to));
    sqlite3_bind_int64(q, 5, at_us);
    text(q, 6, actor);
    text(q, 7, detail);
    return kv_store_done(s, q, err);
}

struct put_policy {
    const struct kv_script *p;
    const char *actor;
    int64_t at_us;
};

static enum kv_status run_submit(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct put_policy *p = arg;
    const char *kind = kv_policy_kind_name(kv_policy_kind(p->p)), *version = kv_policy_version(p->p);
    bool fresh;
    uint64_t receipt;
    enum kv_status st = put_source(s, p->p, p->at_us, &fresh, err);
    if (st != KV_OK || !fresh) return st;
    st = put_receipt(s, kind, version, KV_POLICY_DRAFT, p->actor, p->at_us, &receipt, err);
    return st == KV_OK ? put_state(s, receipt, kind, version, KV_POLICY_DRAFT, p->actor, "submitted", p->at_us, err) : st;
}

enum kv_status kv_store_submit_policy(struct kv_store *s, const struct kv_script *p, const char *actor, int64_t at_us, struct kv_error *err)
{
    return kv_store_run(s, run_submit, &(struct put_policy){p, actor, at_us}, err);
}

static enum kv_status put_activation(struct kv_store *s, uint64_t receipt, const char *kind, const char *version, const char *actor, int64_t at_us, struct kv_error *err)
{
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO policy_activations VALUES (?,?,?,?,?)");
    if (!q) return kv_store_sql_error(s->db, "policy_activations", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)receipt);
    text(q, 2, kind);
    text(q, 3, version);
    sqlite3_bind_int64(q, 4, at_us);
    text(q, 5, actor);
    return kv_store_done(s, q, err);
}

/* The version that is ACTIVE, or an empty text. */
static enum kv_status active_version(struct kv_store *s, const char *kind, char out[65], struct kv_error *err)
{
    sqlite3_stmt *q = kv_store_prepare(s, "SELECT version FROM policy_activations WHERE kind = ? ORDER BY receipt DESC LIMIT 1");
    out[0] = 0;
    if (!q) return kv_store_sql_error(s->db, "policy_activations", err);
    text(q, 1, kind);
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) kv_store_copy_text(q, 0, out, 65);
    sqlite3_finalize(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? KV_OK : kv_store_sql_error(s->db, "policy_activations", err);
}

static enum kv_status run_put_policy(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct put_policy *p = arg;
    const char *kind = kv_policy_kind_name(kv_policy_kind(p->p)), *version = kv_policy_version(p->p);
    char before[65], detail[96];
    bool fresh;
    uint64_t receipt = 0;
    enum kv_status st = active_version(s, kind, before, err);
    if (st == KV_OK) st = put_source(s, p->p, p->at_us, &fresh, err);
    if (st == KV_OK) st = put_receipt(s, kind, version, KV_POLICY_ACTIVE, p->actor, p->at_us, &receipt, err);
    if (st == KV_OK) st = put_activation(s, receipt, kind, version, p->actor, p->at_us, err);
    snprintf(detail, sizeof detail, "%.12s follows", version);
    if (st == KV_OK && *before && strcmp(before, version)) st = put_state(s, receipt, kind, before, KV_POLICY_RETIRED, p->actor, detail, p->at_us, err);
    return st == KV_OK ? put_state(s, receipt, kind, version, KV_POLICY_ACTIVE, p->actor, "decides from now on", p->at_us, err) : st;
}

enum kv_status kv_store_put_policy(struct kv_store *s, const struct kv_script *p, const char *actor, int64_t at_us, struct kv_error *err)
{
    return kv_store_run(s, run_put_policy, &(struct put_policy){p, actor, at_us}, err);
}

struct move {
    const char *kind, *version, *actor, *detail;
    enum kv_policy_state to;
    int64_t at_us;
};

static enum kv_status run_move(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct move *m = arg;
    char name[24] = "";
    enum kv_policy_state from = KV_POLICY_STATES;
    sqlite3_stmt *q = kv_store_prepare(s, "SELECT state, EXISTS (SELECT 1 FROM policy_activations a WHERE a.kind = ?1 AND a.version = ?2) FROM policy_states "
                                          "WHERE kind = ?1 AND version = ?2 ORDER BY id DESC LIMIT 1");
    if (!q) return kv_store_sql_error(s->db, "policy_states", err);
    text(q, 1, m->kind);
    text(q, 2, m->version);
    bool there = sqlite3_step(q) == SQLITE_ROW;
    if (there) kv_store_copy_text(q, 0, name, sizeof name);
    bool was_active = there && sqlite3_column_int(q, 1);
    sqlite3_finalize(q);
    if (!kv_policy_state_from_name(name, &from)) return kv_fail(err, KV_NOT_FOUND, "version", "no %s policy has the version %.12s", m->kind, m->version);
    if (!kv_policy_may_move(from, m->to) || (from == KV_POLICY_RETIRED && !was_active)) {
        kv_fail(err, KV_CONFLICT, kv_policy_state_name(from), "%s policy %.12s is %s, which does not lead to %s", m->kind, m->version, kv_policy_state_name(from), kv_policy_state_name(m->to));
        kv_hint(err, "the way is submit, check, replay, approve, activate; revert goes back to a version that was active");
        return KV_CONFLICT;
    }
    uint64_t receipt;
    enum kv_status st = put_receipt(s, m->kind, m->version, m->to, m->actor, m->at_us, &receipt, err);
    return st == KV_OK ? put_state(s, receipt, m->kind, m->version, m->to, m->actor, m->detail, m->at_us, err) : st;
}

enum kv_status kv_store_move_policy(struct kv_store *s, enum kv_policy_kind kind, const char *version, enum kv_policy_state to, const char *actor, const char *detail,
                                    int64_t at_us, struct kv_error *err)
{
    return kv_store_run(s, run_move, &(struct move){kv_policy_kind_name(kind), version, actor, detail, to, at_us}, err);
}

/* ---------------------------------------------------------------- reading; any thread */

#define VERSION_COLUMNS                                                                                                                             \
    "p.kind, p.version, p.name, p.created_us, t.state, t.at_us, t.actor, t.detail, t.receipt, "                                                     \
    "coalesce((SELECT f.actor FROM policy_states f WHERE f.kind = p.kind AND f.version = p.version ORDER BY f.id LIMIT 1), ''), "                   \
    "EXISTS (SELECT 1 FROM policy_activations a WHERE a.kind = p.kind AND a.version = p.version), p.source "                                       \
    "FROM policies p JOIN policy_states t ON t.id = (SELECT max(l.id) FROM policy_states l WHERE l.kind = p.kind AND l.version = p.version) "

static void read_version(sqlite3_stmt *q, struct kv_policy_version *v)
{
    char name[24];
    memset(v, 0, sizeof *v);
    kv_store_copy_text(q, 0, name, sizeof name);
    if (!kv_policy_kind_from_name(name, &v->kind)) v->kind = KV_POLICY_KINDS;
    kv_store_copy_text(q, 1, v->version, sizeof v->version);
    kv_store_copy_text(q, 2, v->name, sizeof v->name);
    v->created_us = sqlite3_column_int64(q, 3);
    kv_store_copy_text(q, 4, name, sizeof name);
    if (!kv_policy_state_from_name(name, &v->state)) v->state = KV_POLICY_STATES;
    v->state_us = sqlite3_column_int64(q, 5);
    kv_store_copy_text(q, 6, v->actor, sizeof v->actor);
    kv_store_copy_text(q, 7, v->detail, sizeof v->detail);
    v->receipt = (uint64_t)sqlite3_column_int64(q, 8);
    kv_store_copy_text(q, 9, v->author, sizeof v->author);
    v->was_active = sqlite3_column_int(q, 10) != 0;
}

enum kv_status kv_store_policy_versions(struct kv_store *s, enum kv_policy_kind kind, struct kv_policy_version *out, int32_t *n, struct kv_error *err)
{
    int32_t cap = *n;
    *n = 0;
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT " VERSION_COLUMNS "WHERE p.kind = ? ORDER BY t.id DESC LIMIT ?", &q, err);
    if (st == KV_OK) {
        text(q, 1, kv_policy_kind_name(kind));
        sqlite3_bind_int(q, 2, cap);
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW && *n < cap) read_version(q, &out[(*n)++]);
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}

static bool hex_prefix(const char *v)
{
    size_t n = strspn(v, "0123456789abcdef");
    return n >= 6 && n <= 64 && !v[n];
}

enum kv_status kv_store_policy_version(struct kv_store *s, enum kv_policy_kind kind, const char *version, struct kv_policy_version *out, char **source, size_t *n, struct kv_error *err)
{
    if (!version || !hex_prefix(version)) return kv_fail(err, KV_BAD_ARGUMENT, "version", "a version is named by at least its first six hexadecimal digits");
    int32_t found = 0;
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT " VERSION_COLUMNS "WHERE p.kind = ?1 AND substr(p.version, 1, length(?2)) = ?2 LIMIT 2", &q, err);
    if (st == KV_OK) {
        text(q, 1, kv_policy_kind_name(kind));
        text(q, 2, version);
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
            if (found++) break;
            read_version(q, out);
            if (!source) continue;
            *n = (size_t)sqlite3_column_bytes(q, 11);
            *source = malloc(*n + 1);
            if (*source) memcpy(*source, sqlite3_column_text(q, 11), *n), (*source)[*n] = 0;
        }
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    if (st == KV_OK && found == 0) st = kv_fail(err, KV_NOT_FOUND, "version", "no %s policy has a version that begins with %.64s", kv_policy_kind_name(kind), version);
    else if (st == KV_OK && found > 1) st = kv_fail(err, KV_CONFLICT, "version", "more than one %s policy begins with %.64s; give more digits", kv_policy_kind_name(kind), version);
    else if (st == KV_OK && source && !*source) st = kv_fail(err, KV_OUT_OF_MEMORY, "policy", "memory could not be had");
    if (st != KV_OK && found && source) free(*source), *source = NULL;
    return st;
}

enum kv_status kv_store_recorded_decisions(struct kv_store *s, struct kv_recorded_decision *out, int32_t *n, struct kv_error *err)
{
    int32_t cap = *n;
    *n = 0;
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT d.receipt, d.rollout, d.at_us, d.action, d.reason, d.status, i.input FROM decisions d JOIN decision_inputs i ON i.receipt = d.receipt "
                                          "WHERE d.kind = 'release' ORDER BY d.receipt DESC LIMIT ?", &q, err);
    if (st == KV_OK) {
        sqlite3_bind_int(q, 1, cap);
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW && *n < cap) {
            struct kv_recorded_decision *d = &out[(*n)++];
            char name[48];
            memset(d, 0, sizeof *d);
            d->receipt = (uint64_t)sqlite3_column_int64(q, 0);
            d->rollout = (uint64_t)sqlite3_column_int64(q, 1);
            d->at_us = sqlite3_column_int64(q, 2);
            kv_store_copy_text(q, 3, d->action, sizeof d->action);
            kv_store_copy_text(q, 4, d->reason, sizeof d->reason);
            kv_store_copy_text(q, 5, name, sizeof name);
            d->status = kv_status_from_name(name);
            d->input = strdup((const char *)sqlite3_column_text(q, 6));
        }
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}
