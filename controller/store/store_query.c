/* store_query.c — reading: receipts by filter, what a receipt rests on, and what a restart needs. */
#include "controller/store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

const char kv_store_columns[] = "id, at_us, kind, reason, request, rollout, epoch, contract, published, layer, kv_head, q_head, position, bytes, rows, "
                                "rows_total, tokens, value, digest, tenant, session, detail, hash";

void kv_store_copy_text(sqlite3_stmt *q, int i, char *out, size_t cap)
{
    const char *t = (const char *)sqlite3_column_text(q, i);
    snprintf(out, cap, "%s", t ? t : "");
}

static double number(sqlite3_stmt *q, int i)
{
    return sqlite3_column_type(q, i) == SQLITE_NULL ? NAN : sqlite3_column_double(q, i);
}

static void copy_blob(sqlite3_stmt *q, int i, uint8_t out[32])
{
    memset(out, 0, 32);
    if (sqlite3_column_bytes(q, i) == 32) memcpy(out, sqlite3_column_blob(q, i), 32);
}

void kv_store_read_row(sqlite3_stmt *q, struct kv_receipt_row *row)
{
    struct kv_receipt *r = &row->r;
    char name[48];
    memset(row, 0, sizeof *row);
    row->id = (uint64_t)sqlite3_column_int64(q, 0);
    r->at_us = sqlite3_column_int64(q, 1);
    kv_store_copy_text(q, 2, name, sizeof name);
    r->kind = (enum kv_receipt_kind)kv_row_kind_from_name(name);
    kv_store_copy_text(q, 3, name, sizeof name);
    r->reason = kv_status_from_name(name);
    r->request = (uint64_t)sqlite3_column_int64(q, 4);
    r->candidate = (uint64_t)sqlite3_column_int64(q, 5);
    r->epoch = (uint64_t)sqlite3_column_int64(q, 6);
    r->contract = (enum kv_contract)sqlite3_column_int(q, 7);
    r->published = (enum kv_contract)sqlite3_column_int(q, 8);
    r->layer = sqlite3_column_int(q, 9);
    r->kv_head = sqlite3_column_int(q, 10);
    r->q_head = sqlite3_column_int(q, 11);
    r->position = sqlite3_column_int64(q, 12);
    r->bytes = (uint64_t)sqlite3_column_int64(q, 13);
    r->rows = (uint64_t)sqlite3_column_int64(q, 14);
    r->rows_total = (uint64_t)sqlite3_column_int64(q, 15);
    r->tokens = (uint64_t)sqlite3_column_int64(q, 16);
    r->value = number(q, 17);
    copy_blob(q, 18, r->digest);
    kv_store_copy_text(q, 19, r->tenant, sizeof r->tenant);
    kv_store_copy_text(q, 20, r->session, sizeof r->session);
    kv_store_copy_text(q, 21, r->detail, sizeof r->detail);
    copy_blob(q, 22, row->hash);
}

enum kv_status kv_store_query(struct kv_store *s, const char *sql, sqlite3_stmt **q, struct kv_error *err)
{
    return sqlite3_prepare_v2(s->read_db, sql, -1, q, NULL) == SQLITE_OK ? KV_OK : kv_store_sql_error(s->read_db, "query", err);
}

enum kv_status kv_store_finish(struct kv_store *s, sqlite3_stmt *q, int rc, struct kv_error *err)
{
    enum kv_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? KV_OK : kv_store_sql_error(s->read_db, "query", err);
    sqlite3_finalize(q);
    return st;
}

/* ---------------------------------------------------------------- receipts */

static void filter_sql(const struct kv_receipt_filter *f, char *sql, size_t cap)
{
    size_t n = (size_t)snprintf(sql, cap, "SELECT %s FROM %s WHERE 1", kv_store_columns, f->only_failures ? "failures" : "receipts");
    const struct {
        bool on;
        const char *clause;
    } clauses[] = {
        {f->kind, " AND kind = :kind"},       {f->reason, " AND reason = :reason"},    {f->tenant, " AND tenant = :tenant"},
        {f->session, " AND session = :session"}, {f->request, " AND request = :request AND request <> 0"}, {f->rollout, " AND rollout = :rollout"},
        {f->epoch, " AND epoch = :epoch"},    {f->after, " AND id > :after"},          {f->before, " AND id < :before"},
        {f->digest, " AND lower(hex(substr(digest, 1, (length(:digest) + 1) / 2))) LIKE :digest || '%'"}, {f->trace, " AND kind = 'REQUEST' AND digest <> x'0000000000000000000000000000000000000000000000000000000000000000' AND digest BETWEEN :trace AND :trace_end"},
        {f->since_us, " AND at_us >= :since"}, {f->until_us, " AND at_us < :until"},
    };
    for (size_t i = 0; i < sizeof clauses / sizeof *clauses; i++)
        if (clauses[i].on) n += (size_t)snprintf(sql + n, cap - n, "%s", clauses[i].clause);
    snprintf(sql + n, cap - n, " ORDER BY id %s LIMIT :limit", f->oldest_first ? "ASC" : "DESC");
}

static void bind_named(sqlite3_stmt *q, const char *name, const char *text, uint64_t number_or_zero)
{
    int i = sqlite3_bind_parameter_index(q, name);
    if (!i) return;
    if (text) sqlite3_bind_text(q, i, text, -1, SQLITE_STATIC);
    else sqlite3_bind_int64(q, i, (sqlite3_int64)number_or_zero);
}

static void bind_trace(sqlite3_stmt *q, const char *trace)
{
    uint8_t low[32] = {0}, high[32];
    memset(high, 0xff, sizeof high);
    for (int i = 0; i < 16; i++) {
        unsigned v = 0;
        if (sscanf(trace + 2 * i, "%2x", &v) == 1) low[i] = high[i] = (uint8_t)v;
    }
    sqlite3_bind_blob(q, sqlite3_bind_parameter_index(q, ":trace"), low, sizeof low, SQLITE_TRANSIENT);
    sqlite3_bind_blob(q, sqlite3_bind_parameter_index(q, ":trace_end"), high, sizeof high, SQLITE_TRANSIENT);
}

enum kv_status kv_store_find(struct kv_store *s, const struct kv_receipt_filter *f, struct kv_receipt_row *rows, int32_t *n, uint64_t *next, struct kv_error *err)
{
    *n = 0;
    if (next) *next = 0;
    if (f->limit < 1 || f->limit > 1000) return kv_fail(err, KV_BAD_ARGUMENT, "limit", "limit must lie between 1 and 1000");
    if (f->kind && kv_row_kind_from_name(f->kind) == KV_ROW_KINDS) return kv_fail(err, KV_BAD_ARGUMENT, "kind", "no kind of receipt is named '%.40s'", f->kind);
    if (f->reason && kv_status_from_name(f->reason) == KV_STATUS_COUNT) return kv_fail(err, KV_BAD_ARGUMENT, "reason", "no reason code is named '%.40s'", f->reason);
    if (f->digest && (strlen(f->digest) < 6 || strlen(f->digest) > 64 || f->digest[strspn(f->digest, "0123456789abcdef")])) return kv_fail(err, KV_BAD_ARGUMENT, "digest", "a digest is given by 6 to 64 hexadecimal digits");
    if (f->trace && (strlen(f->trace) != 32 || f->trace[strspn(f->trace, "0123456789abcdef")])) return kv_fail(err, KV_BAD_ARGUMENT, "trace", "a trace is given by 32 hexadecimal digits, in small letters");
    char sql[1280];
    filter_sql(f, sql, sizeof sql);
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, sql, &q, err);
    if (st == KV_OK) {
        bind_named(q, ":kind", f->kind ? kv_row_kind_name(kv_row_kind_from_name(f->kind)) : NULL, 0); /* in any case */
        bind_named(q, ":reason", f->reason, 0);
        bind_named(q, ":tenant", f->tenant, 0);
        bind_named(q, ":session", f->session, 0);
        bind_named(q, ":request", NULL, f->request);
        bind_named(q, ":rollout", NULL, f->rollout);
        bind_named(q, ":epoch", NULL, f->epoch);
        bind_named(q, ":after", NULL, f->after);
        bind_named(q, ":before", NULL, f->before);
        bind_named(q, ":digest", f->digest, 0);
        if (f->trace) bind_trace(q, f->trace);
        bind_named(q, ":since", NULL, (uint64_t)f->since_us);
        bind_named(q, ":until", NULL, (uint64_t)f->until_us);
        bind_named(q, ":limit", NULL, (uint64_t)f->limit);
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW && *n < f->limit) kv_store_read_row(q, &rows[(*n)++]);
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    if (st == KV_OK && next && *n == f->limit) *next = rows[*n - 1].id;
    return st;
}

enum kv_status kv_store_get(struct kv_store *s, uint64_t id, struct kv_receipt_row *row, struct kv_error *err)
{
    int32_t n;
    struct kv_receipt_filter f = {.after = id - 1, .before = id + 1, .oldest_first = true, .limit = 1};
    if (id == 0) return kv_fail(err, KV_NOT_FOUND, "receipt", "receipts count from 1");
    enum kv_status st = kv_store_find(s, &f, row, &n, NULL, err);
    if (st == KV_OK && n == 0) return kv_fail(err, KV_NOT_FOUND, "receipt", "there is no receipt %llu", (unsigned long long)id);
    return st;
}

/* ---------------------------------------------------------------- what a receipt rests on */

struct rests {
    struct kv_rests_on *out;
    int32_t n;
};

static struct kv_rests_on *add(struct rests *r, const char *kind)
{
    if (r->n == KV_MAX_RESTS_ON) return NULL;
    struct kv_rests_on *o = &r->out[r->n++];
    memset(o, 0, sizeof *o);
    snprintf(o->kind, sizeof o->kind, "%s", kind);
    return o;
}

/* Each row of the statement is (id, title). Parameters: ?1 rollout, ?2 epoch, ?3 this receipt, ?4 request. */
static enum kv_status add_rows(struct kv_store *s, struct rests *r, const char *kind, const char *sql, const struct kv_receipt_row *row, struct kv_error *err)
{
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, sql, &q, err);
    if (st != KV_OK) return st;
    const uint64_t v[] = {row->r.candidate, row->r.epoch, row->id, row->r.request};
    for (int i = 0; i < sqlite3_bind_parameter_count(q) && i < 4; i++) sqlite3_bind_int64(q, i + 1, (sqlite3_int64)v[i]);
    int rc;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        struct kv_rests_on *o = add(r, kind);
        if (!o) break;
        kv_store_copy_text(q, 0, o->id, sizeof o->id);
        kv_store_copy_text(q, 1, o->title, sizeof o->title);
    }
    return kv_store_finish(s, q, rc, err);
}

enum kv_status kv_store_rests_on(struct kv_store *s, const struct kv_receipt_row *row, struct kv_rests_on *out, int32_t *n, struct kv_error *err)
{
    static const struct {
        const char *kind, *sql;
    } parts[] = {
        {"manifest", "SELECT lower(hex(m.digest)), 'manifest of ' || r.name FROM rollouts r JOIN manifests m ON m.digest = r.manifest WHERE r.id = ?1"},
        {"transition", "SELECT receipt, from_stage || ' to ' || to_stage || ', epoch ' || epoch FROM transitions WHERE rollout = ?1 AND epoch <= ?2 AND receipt <> ?3 "
                       "ORDER BY epoch DESC LIMIT 1"},
        {"gate", "SELECT receipt, metric || ': ' || verdict || ' at ' || stage || ', n = ' || n FROM gate_evaluations WHERE judged AND receipt = "
                 "(SELECT max(receipt) FROM gate_evaluations WHERE rollout = ?1 AND receipt <= ?3 AND ?2 >= 0) LIMIT 8"},
        {"policy", "SELECT receipt, kind || ' policy ' || substr(version, 1, 12) FROM policy_activations a WHERE ?1 <> 0 AND ?2 >= 0 AND receipt = "
                   "(SELECT max(receipt) FROM policy_activations b WHERE b.kind = a.kind AND b.receipt < ?3)"},
        {"receipt", "SELECT id, kind || ' ' || reason FROM receipts WHERE request = ?4 AND ?4 <> 0 AND request <> 0 AND epoch = ?2 AND id < ?3 AND ?1 >= 0 ORDER BY id DESC LIMIT 3"},
    };
    struct rests r = {out, 0};
    enum kv_status st = KV_OK;
    pthread_mutex_lock(&s->read_mutex);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && st == KV_OK; i++)
        if (row->r.candidate || !strcmp(parts[i].kind, "receipt")) st = add_rows(s, &r, parts[i].kind, parts[i].sql, row, err);
    pthread_mutex_unlock(&s->read_mutex);
    *n = r.n;
    return st;
}

/* ---------------------------------------------------------------- rollouts */

static void read_transition(sqlite3_stmt *q, struct kv_transition *t)
{
    char name[48];
    memset(t, 0, sizeof *t);
    t->receipt = (uint64_t)sqlite3_column_int64(q, 0);
    t->at_us = sqlite3_column_int64(q, 1);
    kv_store_copy_text(q, 2, name, sizeof name);
    kv_stage_from_name(name, &t->from);
    kv_store_copy_text(q, 3, name, sizeof name);
    kv_stage_from_name(name, &t->to);
    t->fraction = sqlite3_column_double(q, 4);
    t->epoch = (uint64_t)sqlite3_column_int64(q, 5);
    kv_store_copy_text(q, 6, name, sizeof name);
    t->reason = kv_status_from_name(name);
    kv_store_copy_text(q, 7, t->detail, sizeof t->detail);
    kv_store_copy_text(q, 8, t->actor, sizeof t->actor);
}

/* The last cap transitions, oldest first. Caller holds read_mutex. */
static enum kv_status read_transitions(struct kv_store *s, uint64_t rollout, struct kv_transition *out, int32_t cap, int32_t *n, struct kv_error *err)
{
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT * FROM (SELECT receipt, at_us, from_stage, to_stage, fraction, epoch, reason, detail, actor FROM transitions "
                                 "WHERE rollout = ? ORDER BY receipt DESC LIMIT ?) ORDER BY receipt", &q, err);
    *n = 0;
    if (st != KV_OK) return st;
    sqlite3_bind_int64(q, 1, (sqlite3_int64)rollout);
    sqlite3_bind_int(q, 2, cap);
    int rc;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW && *n < cap) read_transition(q, &out[(*n)++]);
    return kv_store_finish(s, q, rc, err);
}

enum kv_status kv_store_transitions(struct kv_store *s, uint64_t rollout, struct kv_transition *out, int32_t cap, int32_t *n, struct kv_error *err)
{
    pthread_mutex_lock(&s->read_mutex);
    enum kv_status st = read_transitions(s, rollout, out, cap, n, err);
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}

/* The row, its manifest and transitions. STORE_CORRUPT when they contradict each other; r is filled in all the same. */
static enum kv_status read_rollout(struct kv_store *s, sqlite3_stmt *q, struct kv_rollout *r, struct kv_error *err)
{
    char name[48];
    memset(r, 0, sizeof *r);
    enum kv_status st = kv_manifest_parse(sqlite3_column_blob(q, 12), (size_t)sqlite3_column_bytes(q, 12), &r->manifest, err);
    if (!r->manifest.pipeline) r->manifest.pipeline = kv_pipeline_at(0);
    kv_store_copy_text(q, 1, r->manifest.name, sizeof r->manifest.name);
    r->id = (uint64_t)sqlite3_column_int64(q, 0);
    kv_store_copy_text(q, 2, name, sizeof name);
    if (!kv_stage_from_name(name, &r->stage)) st = kv_fail(err, KV_STORE_CORRUPT, name, "rollout %llu has an unknown stage", (unsigned long long)r->id);
    r->step = sqlite3_column_int(q, 3);
    r->fraction = sqlite3_column_double(q, 4);
    r->paused = sqlite3_column_int(q, 5);
    r->live = sqlite3_column_int(q, 6);
    r->waited = sqlite3_column_int(q, 7);
    r->version = (uint64_t)sqlite3_column_int64(q, 8);
    r->epoch = (uint64_t)sqlite3_column_int64(q, 9);
    r->created_us = sqlite3_column_int64(q, 10);
    r->stage_since_us = sqlite3_column_int64(q, 11);
    r->ended_us = sqlite3_column_int64(q, 13);
    kv_store_copy_text(q, 14, r->author, sizeof r->author);
    kv_store_copy_text(q, 15, r->approver, sizeof r->approver);
    struct kv_error ignored;
    enum kv_status ts = read_transitions(s, r->id, r->transitions, KV_MAX_TRANSITIONS, &r->n_transitions, st == KV_OK ? err : &ignored);
    if (st != KV_OK || ts != KV_OK) return st != KV_OK ? st : ts;
    const struct kv_transition *last = r->n_transitions ? &r->transitions[r->n_transitions - 1] : NULL;
    bool same = last ? last->to == r->stage && last->epoch == r->epoch && last->fraction == r->fraction : r->stage == KV_STAGE_OFF && r->step == -1;
    bool step = r->stage == KV_STAGE_OFF || r->stage == KV_STAGE_EXACT_BASELINE || (r->step >= 0 && r->step < r->manifest.n_steps && r->manifest.steps[r->step].stage == r->stage);
    if (same && step) return KV_OK;
    return kv_fail(err, KV_STORE_CORRUPT, r->manifest.name, "rollout %llu stands at %s and its transitions say otherwise", (unsigned long long)r->id, name);
}

enum kv_status kv_store_load_rollouts(struct kv_store *s, struct kv_rollout **out, int32_t *n, struct kv_error *err)
{
    enum { CAP = 256 };
    *n = 0;
    *out = calloc(CAP, sizeof **out);
    if (!*out) return kv_fail(err, KV_OUT_OF_MEMORY, "rollouts", "memory could not be had");
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status bad = KV_OK;
    enum kv_status st = kv_store_query(s, "SELECT * FROM (SELECT r.id, r.name, r.stage, r.step, r.fraction, r.paused, r.live, r.waited, r.version, r.epoch, r.created_us, r.stage_since_us, "
                                 "m.bytes, r.ended_us, r.author, r.approver FROM rollouts r JOIN manifests m ON m.digest = r.manifest ORDER BY r.id DESC LIMIT 256) ORDER BY id", &q, err);
    if (st == KV_OK) {
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW && *n < CAP) {
            struct kv_error why;
            struct kv_rollout *r = &(*out)[(*n)++];
            /* An ended rollout that cannot be read whole is history; a live one decides what runs. */
            if (read_rollout(s, q, r, &why) != KV_OK && r->live && bad == KV_OK) {
                bad = KV_STORE_CORRUPT;
                if (err) *err = why;
                if (err) err->status = bad;
            }
        }
        struct kv_error late;
        st = kv_store_finish(s, q, rc, bad == KV_OK ? err : &late);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st == KV_OK ? bad : st;
}

enum kv_status kv_store_load_gates(struct kv_store *s, uint64_t rollout, struct kv_gate_result *out, int32_t *n, struct kv_error *err)
{
    *n = 0;
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT metric, verdict, judged, value, lower, upper, threshold, n, min_n, detail FROM gate_evaluations WHERE rollout = ?1 AND receipt = "
                                 "(SELECT max(receipt) FROM gate_evaluations WHERE rollout = ?1) ORDER BY id LIMIT 16", &q, err);
    if (st == KV_OK) {
        sqlite3_bind_int64(q, 1, (sqlite3_int64)rollout);
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW && *n < KV_MAX_GATES) {
            struct kv_gate_result *g = &out[(*n)++];
            const struct kv_metric *m;
            char verdict[24];
            memset(g, 0, sizeof *g);
            kv_store_copy_text(q, 0, g->metric, sizeof g->metric);
            kv_store_copy_text(q, 1, verdict, sizeof verdict);
            for (int v = 0; v < KV_VERDICTS; v++)
                if (!strcmp(verdict, kv_verdict_name((enum kv_verdict)v))) g->verdict = (enum kv_verdict)v;
            g->judged = sqlite3_column_int(q, 2);
            g->value = number(q, 3);
            g->lower = number(q, 4);
            g->upper = number(q, 5);
            g->threshold = sqlite3_column_double(q, 6);
            g->n = (uint64_t)sqlite3_column_int64(q, 7);
            g->min_n = (uint64_t)sqlite3_column_int64(q, 8);
            kv_store_copy_text(q, 9, g->detail, sizeof g->detail);
            bool known = kv_metric_find(g->metric, &m, NULL) == KV_OK;
            g->comparison = known ? m->comparison : "<=";
            g->unit = known ? m->unit : "";
        }
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}

enum kv_status kv_store_load_policy(struct kv_store *s, enum kv_policy_kind kind, char **source, size_t *n, int64_t *activated_us, struct kv_error *err)
{
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT p.source, a.at_us FROM policy_activations a JOIN policies p ON p.kind = a.kind AND p.version = a.version "
                                 "WHERE a.kind = ? ORDER BY a.receipt DESC LIMIT 1", &q, err);
    if (st == KV_OK) {
        sqlite3_bind_text(q, 1, kv_policy_kind_name(kind), -1, SQLITE_STATIC);
        int rc = sqlite3_step(q);
        *n = rc == SQLITE_ROW ? (size_t)sqlite3_column_bytes(q, 0) : 0;
        *source = rc == SQLITE_ROW ? malloc(*n + 1) : NULL;
        if (*source) {
            memcpy(*source, sqlite3_column_text(q, 0), *n);
            (*source)[*n] = 0;
            *activated_us = sqlite3_column_int64(q, 1);
        }
        st = kv_store_finish(s, q, rc, err);
        if (st == KV_OK && !*source) st = rc == SQLITE_ROW ? kv_fail(err, KV_OUT_OF_MEMORY, "policy", "memory could not be had")
                                                           : kv_fail(err, KV_NOT_FOUND, kv_policy_kind_name(kind), "no %s policy was ever activated", kv_policy_kind_name(kind));
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}

enum kv_status kv_store_last_request(struct kv_store *s, uint64_t *request, struct kv_error *err)
{
    const uint64_t million = 1000000, under_way = 100000; /* more than can wait, run and lie in the queues of receipts when a process dies */
    *request = 0;
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT coalesce(max(request), 0) FROM receipts WHERE request <> 0", &q, err);
    if (st == KV_OK) {
        int rc = sqlite3_step(q);
        if (rc == SQLITE_ROW) *request = (uint64_t)sqlite3_column_int64(q, 0);
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    if (*request) *request = ((*request + under_way) / million + 1) * million;
    return st;
}

enum kv_status kv_store_last_ids(struct kv_store *s, uint64_t *rollout, uint64_t *epoch, struct kv_error *err)
{
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT (SELECT coalesce(max(id), 0) FROM rollouts), (SELECT max(coalesce((SELECT max(epoch) FROM transitions), 0), "
                                 "coalesce((SELECT max(epoch) FROM (SELECT epoch FROM receipts ORDER BY id DESC LIMIT 1000)), 0)))", &q, err);
    if (st == KV_OK) {
        int rc = sqlite3_step(q);
        if (rc == SQLITE_ROW) {
            *rollout = (uint64_t)sqlite3_column_int64(q, 0);
            *epoch = (uint64_t)sqlite3_column_int64(q, 1);
        }
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}

enum kv_status kv_store_load_setting(struct kv_store *s, const char *name, int64_t *value, struct kv_error *err)
{
    *value = 0;
    pthread_mutex_lock(&s->read_mutex);
    sqlite3_stmt *q = NULL;
    enum kv_status st = kv_store_query(s, "SELECT value FROM settings WHERE name = ?", &q, err);
    if (st == KV_OK) {
        sqlite3_bind_text(q, 1, name, -1, SQLITE_STATIC);
        int rc = sqlite3_step(q);
        if (rc == SQLITE_ROW) *value = sqlite3_column_int64(q, 0);
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}

/* ---------------------------------------------------------------- verification */

enum kv_status kv_store_verify(struct kv_store *s, struct kv_verify_result *out, struct kv_error *err)
{
    enum kv_status st = kv_store_flush(s, err); /* heads and rows of one moment */
    struct heads h;
    if (st == KV_OK) st = kv_heads_open(&h, s->dir, s->config.key_file, false, err);
    if (st != KV_OK) return st;
    st = kv_heads_verify(s->read_db, &s->read_mutex, &h, out, err);
    kv_heads_close(&h);
    return st;
}

enum kv_status kv_store_verify_offline(const char *dir, const char *key_file, struct kv_verify_result *out, struct kv_error *err)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/lock", dir);
    int lock = open(path, O_RDONLY | O_CLOEXEC);
    if (lock < 0) {
        kv_fail(err, KV_FILE_UNREADABLE, dir, "this is no state directory: %s", strerror(errno));
        kv_hint(err, "name the directory that kvasird was started with");
        return KV_FILE_UNREADABLE;
    }
    if (flock(lock, LOCK_SH | LOCK_NB)) {
        close(lock);
        kv_fail(err, KV_STORE_LOCKED, dir, "a kvasird holds this state directory");
        kv_hint(err, "ask it instead: kvasir receipts verify --url URL");
        return KV_STORE_LOCKED;
    }
    struct heads h;
    sqlite3 *db = NULL;
    enum kv_status st = kv_heads_open(&h, dir, key_file, false, err);
    snprintf(path, sizeof path, "%s/kvasir.db", dir);
    if (st == KV_OK && sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) st = kv_store_sql_error(db, path, err);
    if (st == KV_OK) {
        sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        st = kv_heads_verify(db, NULL, &h, out, err);
    }
    sqlite3_close(db);
    kv_heads_close(&h);
    close(lock);
    return st;
}
