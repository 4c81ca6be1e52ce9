/* control_life.c — the lives of policy versions: submitted, checked apart, replayed, approved, switched to and back, demoted after repeated faults. */
#include "controller/release/control_internal.h"
#include "controller/embedded.h"
#include "controller/policy/policy_process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS_MOST = 3 }; /* of its own doing, before the previous version takes over */
static const char by_faults[] = "control:faults"; /* who retires a version that keeps failing */

struct text { /* a version with its source */
    struct kv_policy_version v;
    char *source;
    size_t n;
};

static enum kv_status find(struct kv_control *c, enum kv_policy_kind kind, const char *version, struct text *t, struct kv_error *err)
{
    memset(t, 0, sizeof *t);
    return kv_store_policy_version(c->store, kind, version, &t->v, &t->source, &t->n, err);
}

static void told(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *what, const char *actor)
{
    kv_control_note(c, KV_EVENT_POLICY, 0, "%s policy %.12s %s by %s", kv_policy_kind_name(kind), version, what, actor);
}

enum kv_status kv_control_policy_submit(struct kv_control *c, enum kv_policy_kind kind, const char *source, size_t n, const char *actor, struct kv_policy_version *out, struct kv_error *err)
{
    struct kv_script *p = NULL;
    enum kv_status st = kv_policy_load(kind, source, n, &p, err);
    kv_control_begin(c);
    if (st == KV_OK) st = kv_store_submit_policy(c->store, p, actor, kv_control_realtime(c), err);
    if (st == KV_OK) st = kv_store_policy_version(c->store, kind, kv_policy_version(p), out, NULL, NULL, err);
    if (st == KV_OK) told(c, kind, out->version, "submitted", actor);
    kv_control_end(c);
    kv_policy_free(p);
    return st;
}

static enum kv_status move(struct kv_control *c, enum kv_policy_kind kind, const char *version, enum kv_policy_state to, const char *actor, const char *detail, struct kv_error *err)
{
    kv_control_begin(c);
    enum kv_status st = kv_store_move_policy(c->store, kind, version, to, actor, detail, kv_control_realtime(c), err);
    if (st == KV_OK) told(c, kind, version, kv_policy_state_name(to), actor);
    kv_control_end(c);
    return st;
}

enum kv_status kv_control_policy_check(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *actor, struct kv_error *err)
{
    struct text t;
    struct kv_script *p = NULL;
    enum kv_status st = find(c, kind, version, &t, err);
    if (st != KV_OK) return st;
    if (c->config.check_program) st = kv_policy_check_apart(c->config.check_program, kind, t.source, t.n, err);
    if (st == KV_OK && (!c->config.check_program || kind == KV_POLICY_FALLBACK)) st = kv_control_load_checked(c, kind, t.source, t.n, &p, err);
    if (st == KV_OK && (t.v.state == KV_POLICY_DRAFT || t.v.state == KV_POLICY_CHECKED))
        st = move(c, kind, t.v.version, KV_POLICY_CHECKED, actor, c->config.check_program ? "checked in a process of its own" : "checked", err);
    kv_policy_free(p);
    free(t.source);
    return st;
}

/* ---------------------------------------------------------------- replay */

static enum kv_status replay_release(struct kv_control *c, struct kv_script *p, struct kv_replay *out, struct kv_error *err)
{
    int32_t n = KV_REPLAY_DECISIONS;
    struct kv_recorded_decision *d = calloc((size_t)n, sizeof *d);
    if (!d) return kv_fail(err, KV_OUT_OF_MEMORY, "replay", "memory could not be had");
    enum kv_status st = kv_store_recorded_decisions(c->store, d, &n, err);
    if (st == KV_OK) kv_replay_release(p, d, n, out);
    for (int32_t i = 0; i < n; i++) free(d[i].input);
    free(d);
    return st;
}

static enum kv_status replay_admission(struct kv_control *c, struct kv_script *p, struct kv_replay *out, struct kv_error *err)
{
    struct kv_kept_admission *kept = calloc(KV_REPLAY_ADMISSIONS, sizeof *kept);
    if (!kept) return kv_fail(err, KV_OUT_OF_MEMORY, "replay", "memory could not be had");
    pthread_mutex_lock(&c->admission);
    int32_t n = c->n_kept < KV_REPLAY_ADMISSIONS ? (int32_t)c->n_kept : KV_REPLAY_ADMISSIONS;
    memcpy(kept, c->kept, sizeof *kept * (size_t)n);
    pthread_mutex_unlock(&c->admission);
    kv_replay_admission(p, kept, n, out);
    free(kept);
    return KV_OK;
}

static enum kv_status replay_fallback(struct kv_control *c, struct kv_script *p, struct kv_replay *out, struct kv_error *err)
{
    struct kv_fallback_table now;
    kv_control_begin(c);
    struct kv_fallback_table was = c->fallback;
    double limit = kv_control_mass_limit(c);
    kv_control_end(c);
    enum kv_status st = kv_policy_fallback_table(p, limit, &now, err);
    if (st == KV_OK) kv_replay_fallback(&was, &now, out);
    return st;
}

enum kv_status kv_control_policy_replay(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *actor, struct kv_replay *out, struct kv_error *err)
{
    struct text t;
    struct kv_script *p = NULL;
    enum kv_status st = find(c, kind, version, &t, err);
    if (st == KV_OK) st = kv_policy_load(kind, t.source, t.n, &p, err);
    if (st == KV_OK) st = kind == KV_POLICY_RELEASE ? replay_release(c, p, out, err) : kind == KV_POLICY_ADMISSION ? replay_admission(c, p, out, err) : replay_fallback(c, p, out, err);
    char detail[120];
    snprintf(detail, sizeof detail, "%llu of %llu answers would change, %llu faults", (unsigned long long)out->changed, (unsigned long long)out->asked, (unsigned long long)out->faults);
    if (st == KV_OK && (t.v.state == KV_POLICY_CHECKED || t.v.state == KV_POLICY_REPLAYED)) st = move(c, kind, t.v.version, KV_POLICY_REPLAYED, actor, detail, err);
    kv_policy_free(p);
    free(t.source);
    return st;
}

/* ---------------------------------------------------------------- approval, switching */

bool kv_control_two_users(const struct kv_control *c)
{
    return c->config.two_users && c->config.two_users(c->config.users_ctx);
}

enum kv_status kv_control_policy_approve(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *reason, const char *actor, struct kv_error *err)
{
    struct text t;
    char detail[160];
    bool two = kv_control_two_users(c);
    enum kv_status st = find(c, kind, version, &t, err);
    if (st == KV_OK && two && !strcmp(t.v.author, actor)) {
        st = kv_fail(err, KV_FORBIDDEN, "approve", "%s wrote this version and cannot approve it", actor);
        kv_hint(err, "another user with the right 'approver' has to");
    }
    snprintf(detail, sizeof detail, "%s%s%.100s", two ? "approved" : "approved; nobody else may write here", reason && *reason ? ": " : "", reason ? reason : "");
    if (st == KV_OK) st = move(c, kind, t.v.version, KV_POLICY_APPROVED, actor, detail, err);
    free(t.source);
    return st;
}

/* The newest version that was active before, is not the present one and was not retired for its faults. */
static enum kv_status previous(struct kv_control *c, enum kv_policy_kind kind, char out[65], struct kv_error *err)
{
    int32_t n = 256;
    struct kv_policy_version *v = calloc((size_t)n, sizeof *v);
    if (!v) return kv_fail(err, KV_OUT_OF_MEMORY, "policy", "memory could not be had");
    enum kv_status st = kv_store_policy_versions(c->store, kind, v, &n, err);
    out[0] = 0;
    for (int32_t i = 0; st == KV_OK && i < n && !*out; i++)
        if (v[i].was_active && v[i].state == KV_POLICY_RETIRED && strcmp(v[i].actor, by_faults)) snprintf(out, 65, "%s", v[i].version);
    free(v);
    if (st == KV_OK && !*out) st = kv_fail(err, KV_NOT_FOUND, kv_policy_kind_name(kind), "no %s policy was active before this one", kv_policy_kind_name(kind));
    return st;
}

/* work. */
static enum kv_status put_active(struct kv_control *c, struct kv_script *p, const char *actor, struct kv_error *err)
{
    enum kv_policy_kind kind = kv_policy_kind(p);
    int64_t now = kv_control_realtime(c);
    enum kv_status st = kv_store_put_policy(c->store, p, actor, now, err);
    if (st != KV_OK) return kv_policy_free(p), st;
    told(c, kind, kv_policy_version(p), "ACTIVE", actor);
    kv_control_put_in_place(c, p, now);
    if (kind == KV_POLICY_FALLBACK) kv_control_set_gate(c);
    return KV_OK;
}

static enum kv_status same_base(struct kv_control *c, enum kv_policy_kind kind, const char *replaces, struct kv_error *err)
{
    const char *now = kv_policy_version(c->script[kind]);
    if (!replaces || (strlen(replaces) >= 6 && !strncmp(now, replaces, strlen(replaces)))) return KV_OK;
    kv_fail(err, KV_VERSION_CONFLICT, "If-Match", "the active %s policy is %.12s now", kv_policy_kind_name(kind), now);
    kv_hint(err, "look at it again, then repeat");
    return KV_VERSION_CONFLICT;
}

enum kv_status kv_control_policy_switch(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *replaces, bool revert, const char *actor, struct kv_error *err)
{
    struct text t = {0};
    struct kv_script *p = NULL;
    char before[65];
    kv_control_begin(c);
    enum kv_status st = same_base(c, kind, replaces, err);
    if (st == KV_OK && !version) {
        st = previous(c, kind, before, err);
        version = before;
    }
    if (st == KV_OK) st = find(c, kind, version, &t, err);
    if (st == KV_OK && t.v.state == KV_POLICY_ACTIVE) st = kv_fail(err, KV_CONFLICT, "version", "%.12s is active already", t.v.version);
    if (st == KV_OK && revert && !t.v.was_active) st = kv_fail(err, KV_CONFLICT, "version", "%.12s was never active; approve and activate it", t.v.version);
    if (st == KV_OK) st = kv_control_load_checked(c, kind, t.source, t.n, &p, err);
    if (st == KV_OK) st = kv_store_move_policy(c->store, kind, t.v.version, KV_POLICY_STAGED, actor, revert ? "to go back to" : "loaded", kv_control_realtime(c), err);
    if (st == KV_OK) {
        st = put_active(c, p, actor, err);
        p = NULL;
    }
    kv_control_end(c);
    kv_policy_free(p);
    free(t.source);
    return st;
}

/* ---------------------------------------------------------------- the whole way at once */

static enum kv_status walk(struct kv_control *c, enum kv_policy_kind kind, const char *source, size_t n, const char *actor, struct kv_error *err)
{
    struct kv_policy_version v;
    struct kv_replay *r = calloc(1, sizeof *r);
    enum kv_status st = r ? kv_control_policy_submit(c, kind, source, n, actor, &v, err) : kv_fail(err, KV_OUT_OF_MEMORY, "policy", "memory could not be had");
    if (st == KV_OK && v.state == KV_POLICY_ACTIVE) return free(r), KV_OK;
    if (st == KV_OK && v.state == KV_POLICY_DRAFT && (st = kv_control_policy_check(c, kind, v.version, actor, err)) == KV_OK) v.state = KV_POLICY_CHECKED;
    if (st == KV_OK && v.state == KV_POLICY_CHECKED && (st = kv_control_policy_replay(c, kind, v.version, actor, r, err)) == KV_OK) v.state = KV_POLICY_REPLAYED;
    bool alone = !kv_control_two_users(c); /* a file is nobody's second pair of eyes */
    if (st == KV_OK && v.state == KV_POLICY_REPLAYED && alone) st = kv_control_policy_approve(c, kind, v.version, "", actor, err);
    else if (st == KV_OK && v.state == KV_POLICY_REPLAYED) {
        st = kv_fail(err, KV_FORBIDDEN, "approve", "where two users exist, a policy is approved before it is activated");
        kv_hint(err, "kvasir policy approve %s %.12s, by somebody who may", kv_policy_kind_name(kind), v.version);
    }
    if (st == KV_OK) st = kv_control_policy_switch(c, kind, v.version, NULL, v.state == KV_POLICY_RETIRED, actor, err);
    free(r);
    return st;
}

enum kv_status kv_control_activate(struct kv_control *c, enum kv_policy_kind kind, const char *source, size_t n, const char *actor, struct kv_error *err)
{
    struct kv_error why = {0};
    enum kv_status st = walk(c, kind, source, n, actor, &why);
    if (st == KV_OK) return KV_OK;
    struct kv_receipt r;
    kv_receipt_init(&r, KV_ROW_POLICY, kv_control_realtime(c));
    r.reason = st;
    snprintf(r.detail, sizeof r.detail, "%s policy refused, from %.40s", kv_policy_kind_name(kind), actor);
    kv_store_post(c->store, &r);
    if (err) *err = why;
    return st;
}

enum kv_status kv_control_configured_policies(struct kv_control *c, struct kv_error *err)
{
    enum kv_status st = KV_OK;
    for (int k = 0; k < KV_POLICY_KINDS && st == KV_OK; k++) {
        const char *source = c->config.policy_source[k];
        if (source) st = kv_control_activate(c, (enum kv_policy_kind)k, source, strlen(source), "config", err);
        if (st == KV_FORBIDDEN) {
            kv_control_begin(c);
            kv_control_note(c, KV_EVENT_LOG, 0, "the configured %s policy waits for an approval and is not active: kvasir policy approve", kv_policy_kind_name((enum kv_policy_kind)k));
            kv_control_end(c);
            st = KV_OK;
        }
    }
    return st;
}

/* ---------------------------------------------------------------- repeated faults */

static struct kv_script *successor(struct kv_control *c, enum kv_policy_kind kind)
{
    char version[65];
    struct text t = {0};
    struct kv_script *p = NULL;
    if (previous(c, kind, version, NULL) == KV_OK && find(c, kind, version, &t, NULL) == KV_OK) kv_control_load_checked(c, kind, t.source, t.n, &p, NULL);
    free(t.source);
    const struct kv_embedded *ours = p ? NULL : kv_control_shipped(kind);
    if (ours) kv_control_load_checked(c, kind, ours->data, ours->size, &p, NULL);
    if (p && !strcmp(kv_policy_version(p), kv_policy_version(c->script[kind]))) kv_policy_free(p), p = NULL;
    return p;
}

/* A script that a limit stopped is dead; the same source is loaded afresh, its faults stay counted. */
static void revive(struct kv_control *c, enum kv_policy_kind kind)
{
    size_t n;
    struct kv_script *fresh = NULL;
    const char *source = kv_policy_source(c->script[kind], &n);
    if (kv_policy_load(kind, source, n, &fresh, NULL) != KV_OK) return;
    pthread_mutex_lock(&c->admission);
    struct kv_script *old = c->script[kind];
    c->script[kind] = fresh;
    pthread_mutex_unlock(&c->admission);
    kv_policy_free(old);
}

void kv_control_tend_policies(struct kv_control *c)
{
    for (int k = 0; k < KV_POLICY_KINDS; k++) {
        bool preempted;
        pthread_mutex_lock(&c->admission);
        bool dead = kv_policy_dead(c->script[k], &preempted);
        pthread_mutex_unlock(&c->admission);
        pthread_mutex_lock(&c->state);
        bool enough = c->blamed[k] >= FAULTS_MOST;
        pthread_mutex_unlock(&c->state);
        struct kv_script *p = enough ? successor(c, (enum kv_policy_kind)k) : NULL;
        struct kv_error err;
        if (p && put_active(c, p, by_faults, &err) != KV_OK) kv_control_note(c, KV_EVENT_LOG, 0, "a failing policy could not be replaced: %s", err.message);
        else if (!p && dead) revive(c, (enum kv_policy_kind)k);
    }
}
