/* store_records.c — rollouts, transitions, gates, decisions and policies: each put is one transaction with its receipt. */
#include "controller/store/store_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kv_status kv_store_done(struct kv_store *s, sqlite3_stmt *q, struct kv_error *err)
{
    int rc = q ? sqlite3_step(q) : SQLITE_ERROR;
    enum kv_status st = rc == SQLITE_DONE ? KV_OK : kv_store_sql_error(s->db, "records", err);
    sqlite3_finalize(q);
    return st;
}

sqlite3_stmt *kv_store_prepare(struct kv_store *s, const char *sql)
{
    sqlite3_stmt *q = NULL;
    return sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) == SQLITE_OK ? q : NULL;
}

static void text(sqlite3_stmt *q, int i, const char *t)
{
    sqlite3_bind_text(q, i, t, -1, SQLITE_TRANSIENT);
}

/* ---------------------------------------------------------------- rollouts */

struct put_rollout {
    const struct kv_rollout *r;
    const char *actor, *detail;
    uint64_t *receipt;
};

static enum kv_status write_manifest(struct kv_store *s, const struct kv_rollout *r, struct kv_error *err)
{
    uint8_t bytes[16384];
    size_t n;
    sqlite3_stmt *q = kv_store_prepare(s, "SELECT 1 FROM manifests WHERE digest = ?");
    if (!q) return kv_store_sql_error(s->db, "manifests", err);
    sqlite3_bind_blob(q, 1, r->manifest.digest, 32, SQLITE_STATIC);
    bool there = sqlite3_step(q) == SQLITE_ROW;
    sqlite3_finalize(q);
    if (there) return KV_OK;
    enum kv_status st = kv_manifest_bytes(&r->manifest, bytes, sizeof bytes, &n);
    if (st != KV_OK) return kv_fail(err, st, "manifest", "the manifest is too long");
    q = kv_store_prepare(s, "INSERT INTO manifests VALUES (?,?,?)");
    if (!q) return kv_store_sql_error(s->db, "manifests", err);
    sqlite3_bind_blob(q, 1, r->manifest.digest, 32, SQLITE_STATIC);
    sqlite3_bind_blob(q, 2, bytes, (int)n, SQLITE_TRANSIENT);
    sqlite3_bind_int64(q, 3, r->created_us);
    return kv_store_done(s, q, err);
}

static enum kv_status write_rollout(struct kv_store *s, const struct kv_rollout *r, struct kv_error *err)
{
    enum kv_status st = write_manifest(s, r, err);
    if (st != KV_OK) return st;
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO rollouts VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO UPDATE SET "
                                 "stage=excluded.stage, step=excluded.step, fraction=excluded.fraction, paused=excluded.paused, live=excluded.live, "
                                 "waited=excluded.waited, version=excluded.version, epoch=excluded.epoch, stage_since_us=excluded.stage_since_us, "
                                 "ended_us=excluded.ended_us, approver=excluded.approver");
    if (!q) return kv_store_sql_error(s->db, "rollouts", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)r->id);
    text(q, 2, r->manifest.name);
    sqlite3_bind_blob(q, 3, r->manifest.digest, 32, SQLITE_STATIC);
    text(q, 4, kv_stage_name(r->stage));
    sqlite3_bind_int(q, 5, r->step);
    sqlite3_bind_double(q, 6, r->fraction);
    sqlite3_bind_int(q, 7, r->paused);
    sqlite3_bind_int(q, 8, r->live);
    sqlite3_bind_int(q, 9, r->waited);
    sqlite3_bind_int64(q, 10, (sqlite3_int64)r->version);
    sqlite3_bind_int64(q, 11, (sqlite3_int64)r->epoch);
    sqlite3_bind_int64(q, 12, r->created_us);
    sqlite3_bind_int64(q, 13, r->stage_since_us);
    sqlite3_bind_int64(q, 14, r->ended_us);
    text(q, 15, r->author);
    text(q, 16, r->approver);
    return kv_store_done(s, q, err);
}

static void rollout_receipt(struct kv_receipt *c, int kind, const struct kv_rollout *r, int64_t at_us)
{
    kv_receipt_init(c, kind, at_us);
    c->candidate = r->id;
    c->epoch = r->epoch;
    c->contract = c->published = r->manifest.contract;
    c->value = r->fraction;
    memcpy(c->digest, r->manifest.digest, 32);
}

static enum kv_status run_put_rollout(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct put_rollout *p = arg;
    struct kv_receipt c;
    rollout_receipt(&c, KV_ROW_ROLLOUT, p->r, kv_store_now_us(CLOCK_REALTIME));
    snprintf(c.detail, sizeof c.detail, "%s: %s", p->actor, p->detail);
    enum kv_status st = write_rollout(s, p->r, err);
    return st == KV_OK ? kv_store_append(s, &c, p->receipt, err) : st;
}

enum kv_status kv_store_put_rollout(struct kv_store *s, const struct kv_rollout *r, const char *actor, const char *detail, uint64_t *receipt, struct kv_error *err)
{
    return kv_store_run(s, run_put_rollout, &(struct put_rollout){r, actor, detail, receipt}, err);
}

struct put_transition {
    const struct kv_rollout *r;
    struct kv_transition *t;
    uint64_t receipt;
};

static enum kv_status run_put_transition(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct put_transition *p = arg;
    const struct kv_transition *t = p->t;
    struct kv_receipt c;
    rollout_receipt(&c, KV_ROW_TRANSITION, p->r, t->at_us);
    c.reason = t->reason;
    c.epoch = t->epoch;
    snprintf(c.detail, sizeof c.detail, "%s to %s by %.40s", kv_stage_name(t->from), kv_stage_name(t->to), t->actor);
    enum kv_status st = write_rollout(s, p->r, err);
    if (st == KV_OK) st = kv_store_append(s, &c, &p->receipt, err);
    sqlite3_stmt *q = st == KV_OK ? kv_store_prepare(s, "INSERT INTO transitions VALUES (?,?,?,?,?,?,?,?,?,?)") : NULL;
    if (st != KV_OK) return st;
    if (!q) return kv_store_sql_error(s->db, "transitions", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)p->receipt);
    sqlite3_bind_int64(q, 2, (sqlite3_int64)p->r->id);
    sqlite3_bind_int64(q, 3, t->at_us);
    text(q, 4, kv_stage_name(t->from));
    text(q, 5, kv_stage_name(t->to));
    sqlite3_bind_double(q, 6, t->fraction);
    sqlite3_bind_int64(q, 7, (sqlite3_int64)t->epoch);
    text(q, 8, kv_status_name(t->reason));
    text(q, 9, t->detail);
    text(q, 10, t->actor);
    return kv_store_done(s, q, err);
}

enum kv_status kv_store_put_transition(struct kv_store *s, const struct kv_rollout *after, struct kv_transition *t, struct kv_error *err)
{
    struct put_transition p = {after, t, 0};
    enum kv_status st = kv_store_run(s, run_put_transition, &p, err);
    if (st == KV_OK) t->receipt = p.receipt;
    return st;
}

/* ---------------------------------------------------------------- gates */

struct put_gates {
    const struct kv_rollout *r;
    const struct kv_gate_result *g;
    int32_t n;
    int64_t at_us;
};

static enum kv_status write_gate(struct kv_store *s, const struct put_gates *p, const struct kv_gate_result *g, uint64_t receipt, struct kv_error *err)
{
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO gate_evaluations VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    if (!q) return kv_store_sql_error(s->db, "gate_evaluations", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)receipt);
    sqlite3_bind_int64(q, 2, (sqlite3_int64)p->r->id);
    sqlite3_bind_int64(q, 3, p->at_us);
    text(q, 4, kv_stage_name(p->r->stage));
    sqlite3_bind_int64(q, 5, (sqlite3_int64)p->r->epoch);
    text(q, 6, g->metric);
    text(q, 7, kv_verdict_name(g->verdict));
    sqlite3_bind_int(q, 8, g->judged);
    sqlite3_bind_double(q, 9, g->value); /* SQLite stores what is no number as NULL */
    sqlite3_bind_double(q, 10, g->lower);
    sqlite3_bind_double(q, 11, g->upper);
    sqlite3_bind_double(q, 12, g->threshold);
    sqlite3_bind_int64(q, 13, (sqlite3_int64)g->n);
    sqlite3_bind_int64(q, 14, (sqlite3_int64)g->min_n);
    text(q, 15, g->detail);
    return kv_store_done(s, q, err);
}

/* One receipt for the evaluation as a whole: the gate that decided, and a digest over every gate's row. */
static enum kv_status run_put_gates(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct put_gates *p = arg;
    struct kv_receipt c;
    int32_t which = -1;
    enum kv_verdict v = kv_gates_decide(p->g, p->n, &which);
    rollout_receipt(&c, KV_ROW_GATE, p->r, p->at_us);
    c.reason = v == KV_FAILED ? KV_GATE_FAILED : KV_OK;
    c.value = which >= 0 ? p->g[which].value : NAN;
    snprintf(c.detail, sizeof c.detail, "%s at %s: %s%s%.40s", kv_verdict_name(v), kv_stage_name(p->r->stage), which >= 0 ? p->g[which].metric : "every gate",
             which >= 0 ? ", " : "", which >= 0 ? p->g[which].detail : "");
    char buf[KV_MAX_GATES * 128];
    size_t n = 0;
    for (int32_t i = 0; i < p->n; i++)
        n += (size_t)snprintf(buf + n, sizeof buf - n, "%s %s %.9g %.9g %llu\n", p->g[i].metric, kv_verdict_name(p->g[i].verdict), p->g[i].value, p->g[i].threshold,
                              (unsigned long long)p->g[i].n);
    kv_sha256(buf, n, c.digest);
    uint64_t receipt;
    enum kv_status st = kv_store_append(s, &c, &receipt, err);
    for (int32_t i = 0; i < p->n && st == KV_OK; i++) st = write_gate(s, p, &p->g[i], receipt, err);
    return st;
}

enum kv_status kv_store_put_gates(struct kv_store *s, const struct kv_rollout *r, const struct kv_gate_result *g, int32_t n, int64_t at_us, struct kv_error *err)
{
    return kv_store_run(s, run_put_gates, &(struct put_gates){r, g, n, at_us}, err);
}

/* ---------------------------------------------------------------- decisions, single receipts */

void kv_store_version_digest(const char *hex, uint8_t out[32])
{
    for (int i = 0; i < 32; i++) {
        unsigned v = 0;
        if (sscanf(hex + 2 * i, "%2x", &v) != 1) return;
        out[i] = (uint8_t)v;
    }
}

static enum kv_status run_put_decision(struct kv_store *s, void *arg, struct kv_error *err)
{
    const struct kv_decision *d = arg;
    struct kv_receipt c;
    kv_receipt_init(&c, d->status == KV_OK ? KV_ROW_DECISION : KV_ROW_POLICY_FAULT, d->at_us);
    c.candidate = d->rollout;
    c.epoch = d->epoch;
    c.reason = d->status;
    kv_store_version_digest(d->version, c.digest);
    snprintf(c.detail, sizeof c.detail, "%s policy: %.20s, %.50s", kv_policy_kind_name(d->kind), d->action, d->reason);
    uint64_t receipt;
    enum kv_status st = kv_store_append(s, &c, &receipt, err);
    if (st != KV_OK) return st;
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO decisions VALUES (?,?,?,?,?,?,?,?,?)");
    if (!q) return kv_store_sql_error(s->db, "decisions", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)receipt);
    sqlite3_bind_int64(q, 2, d->at_us);
    text(q, 3, kv_policy_kind_name(d->kind));
    sqlite3_bind_int64(q, 4, (sqlite3_int64)d->rollout);
    sqlite3_bind_int64(q, 5, (sqlite3_int64)d->epoch);
    text(q, 6, d->version);
    text(q, 7, d->action);
    text(q, 8, d->reason);
    text(q, 9, kv_status_name(d->status));
    st = kv_store_done(s, q, err);
    q = st == KV_OK && d->input ? kv_store_prepare(s, "INSERT INTO decision_inputs VALUES (?,?)") : NULL;
    if (st != KV_OK || !d->input) return st;
    if (!q) return kv_store_sql_error(s->db, "decision_inputs", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)receipt);
    text(q, 2, d->input);
    return kv_store_done(s, q, err);
}

enum kv_status kv_store_put_decision(struct kv_store *s, const struct kv_decision *d, struct kv_error *err)
{
    struct kv_decision copy = *d;
    return kv_store_run(s, run_put_decision, &copy, err);
}

struct put_receipt {
    const struct kv_receipt *r;
    uint64_t id;
};

static enum kv_status run_put_receipt(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct put_receipt *p = arg;
    return kv_store_append(s, p->r, &p->id, err);
}

enum kv_status kv_store_put_receipt(struct kv_store *s, const struct kv_receipt *r, uint64_t *id, struct kv_error *err)
{
    struct put_receipt p = {r, 0};
    enum kv_status st = kv_store_run(s, run_put_receipt, &p, err);
    if (st == KV_OK && id) *id = p.id;
    return st;
}

struct put_setting {
    const char *name;
    int64_t value;
    const struct kv_receipt *r;
};

static enum kv_status run_put_setting(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct put_setting *p = arg;
    uint64_t receipt;
    enum kv_status st = kv_store_append(s, p->r, &receipt, err);
    if (st != KV_OK) return st;
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO settings VALUES (?,?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value, receipt=excluded.receipt");
    if (!q) return kv_store_sql_error(s->db, "settings", err);
    text(q, 1, p->name);
    sqlite3_bind_int64(q, 2, p->value);
    sqlite3_bind_int64(q, 3, (sqlite3_int64)receipt);
    return kv_store_done(s, q, err);
}

enum kv_status kv_store_put_setting(struct kv_store *s, const char *name, int64_t value, const struct kv_receipt *r, struct kv_error *err)
{
    return kv_store_run(s, run_put_setting, &(struct put_setting){name, value, r}, err);
}
