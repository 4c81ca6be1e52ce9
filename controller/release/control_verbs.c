/* control_verbs.c — what operators ask of rollouts: creating one, and each verb that is not a rollback. */
#include "controller/release/control_internal.h"

#include "runtime/selection/selector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- creating */

static void forget_oldest(struct kv_control *c)
{
    int32_t i = 0;
    while (i < c->n_rollouts && c->rollout[i]->r.live) i++;
    free(c->rollout[i]);
    memmove(&c->rollout[i], &c->rollout[i + 1], sizeof *c->rollout * (size_t)(c->n_rollouts - i - 1));
    c->n_rollouts--;
}

/* A candidate at FULL makes room for the next one: the engine holds one candidate at a time. */
static enum kv_status retire_full(struct kv_control *c, uint64_t successor, struct kv_error *err)
{
    char detail[64], id[24];
    struct kv_rollout *after = malloc(sizeof *after);
    if (!after) return kv_fail(err, KV_OUT_OF_MEMORY, "control", "memory could not be had");
    pthread_mutex_lock(&c->state);
    struct entry *e = c->live;
    if (e) *after = e->r;
    pthread_mutex_unlock(&c->state);
    enum kv_status st = KV_OK;
    if (e) {
        after->live = false;
        after->ended_us = kv_control_realtime(c);
        after->version++;
        kv_rollout_id_format(successor, id);
        snprintf(detail, sizeof detail, "retired at FULL: %s follows", id);
        st = kv_store_put_rollout(c->store, after, "control", detail, NULL, err);
    }
    if (e && st == KV_OK) {
        pthread_mutex_lock(&c->state);
        if (c->live == e) {
            e->r = *after;
            c->live = NULL;
            c->installed.candidate = 0;
            c->uninstall_due = true;
        }
        pthread_mutex_unlock(&c->state);
        kv_control_note(c, KV_EVENT_ROLLOUT, after->id, "%s", detail);
    }
    free(after);
    return st;
}

static enum kv_status may_create(struct kv_control *c, struct kv_error *err)
{
    struct kv_store_health h;
    kv_store_health(c->store, &h);
    pthread_mutex_lock(&c->state);
    bool frozen = c->frozen, busy = c->port.word(c->port.ctx).latched || c->n_unrecorded, live = c->live && c->live->r.stage != KV_STAGE_FULL;
    char id[24];
    kv_rollout_id_format(c->live ? c->live->r.id : 0, id);
    pthread_mutex_unlock(&c->state);
    if (frozen) return kv_fail(err, KV_FROZEN, "release", "releases are frozen; only rollback is possible");
    if (!h.ok) return kv_fail(err, KV_STORE_UNAVAILABLE, "store", "receipts cannot be written, so no rollout can start");
    if (busy) {
        kv_fail(err, KV_CONFLICT, "release", "the last rollback is still recomputing sequences");
        kv_hint(err, "try again in a moment");
        return KV_CONFLICT;
    }
    if (live) {
        kv_fail(err, KV_CONFLICT, "rollout", "%s is live; one candidate is staged at a time", id);
        kv_hint(err, "let it reach FULL, or abort it");
        return KV_CONFLICT;
    }
    return KV_OK;
}

static enum kv_status start(struct kv_control *c, const struct kv_manifest *m, const char *actor, const char *detail, uint64_t *id, struct kv_error *err)
{
    struct kv_gates *gates = NULL;
    struct entry *e = calloc(1, sizeof *e);
    enum kv_status st = e ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "control", "memory could not be had");
    pthread_mutex_lock(&c->state);
    uint64_t next = c->next_rollout;
    pthread_mutex_unlock(&c->state);
    uint64_t seed = 0;
    for (int i = 0; i < 8; i++) seed = seed << 8 | m->digest[i];
    if (st == KV_OK && kv_gates_create(m->gates, m->n_gates, seed ^ next, &gates) != KV_OK) st = kv_fail(err, KV_OUT_OF_MEMORY, "gates", "memory could not be had");
    if (st == KV_OK) st = retire_full(c, next, err);
    if (st == KV_OK) {
        e->r = (struct kv_rollout){.id = next, .manifest = *m, .stage = KV_STAGE_OFF, .step = -1, .live = true, .version = 1, .epoch = 0};
        snprintf(e->r.author, sizeof e->r.author, "%s", actor);
        e->r.created_us = e->r.stage_since_us = kv_control_realtime(c);
        st = kv_store_put_rollout(c->store, &e->r, actor, detail, NULL, err);
    }
    if (st != KV_OK) {
        free(e);
        kv_gates_destroy(gates);
        return st;
    }
    kv_control_at(c, KV_AT_CREATED);
    pthread_mutex_lock(&c->evidence);
    kv_gates_destroy(c->gates);
    c->gates = gates;
    pthread_mutex_unlock(&c->evidence);
    pthread_mutex_lock(&c->state);
    if (c->n_rollouts == MAX_ROLLOUTS) forget_oldest(c);
    c->rollout[c->n_rollouts++] = e;
    c->live = e;
    c->next_rollout = next + 1;
    uint64_t epoch = c->epoch + 1;
    pthread_mutex_unlock(&c->state);
    if (c->uninstall_due && kv_control_install(c, epoch, NULL) == KV_OK) c->uninstall_due = false;
    kv_control_keep_samples(c, next);
    kv_control_recall_drills(c, m->digest);
    kv_control_begin_step(c);
    kv_control_set_gate(c);
    kv_control_note(c, KV_EVENT_ROLLOUT, next, "created by %s", actor);
    *id = next;
    return KV_OK;
}

/* What is loaded and set here: a retry may meet another model or another factor than its first run. */
static void bind(const struct kv_control *c, struct kv_manifest *m)
{
    const struct kv_selector_method *method = kv_selector_find(m->pipeline->selector);
    memcpy(m->model_artifact, c->config.model_artifact, 32);
    memcpy(m->numerics_id, c->config.numerics_id, 32);
    m->index_share = method ? c->port.index_share : -1;
    m->byte_cost = method ? method->byte_cost * (c->config.break_even > 0 ? c->config.break_even : 1) : 0;
}

enum kv_status kv_control_create_rollout(struct kv_control *c, const struct kv_rollout_request *q, const char *actor, uint64_t *id, struct kv_error *err)
{
    struct kv_manifest m;
    memset(&m, 0, sizeof m);
    if (!q->name || strlen(q->name) >= sizeof m.name) return kv_fail(err, KV_BAD_ARGUMENT, "name", "a rollout's name has 1 to 63 bytes");
    snprintf(m.name, sizeof m.name, "%s", q->name);
    m.pipeline = q->pipeline ? kv_pipeline_find(q->pipeline) : NULL;
    if (!m.pipeline) {
        kv_fail(err, KV_UNKNOWN_PIPELINE, "pipeline", "no pipeline is named '%.40s'", q->pipeline ? q->pipeline : "");
        kv_hint(err, "kvasir pipelines lists them");
        return KV_UNKNOWN_PIPELINE;
    }
    m.params = q->params;
    m.contract = q->contract;
    m.cohort = q->cohort;
    memcpy(m.steps, q->steps, sizeof m.steps);
    m.n_steps = q->n_steps;
    memcpy(m.gates, q->gates, sizeof m.gates);
    m.n_gates = q->n_gates;
    bind(c, &m);
    enum kv_status st = kv_manifest_seal(&m, err);
    if (st != KV_OK) return st;
    kv_control_begin(c);
    st = may_create(c, err);
    if (st == KV_OK) st = start(c, &m, actor, "created", id, err);
    kv_control_end(c);
    return st;
}

/* ---------------------------------------------------------------- verbs */

/* pause, resume, skip: the rollout's record changes, its stage does not. */
static enum kv_status change_record(struct kv_control *c, uint64_t rollout, enum kv_verb v, const char *reason, const char *actor, struct kv_error *err)
{
    struct kv_rollout *after = malloc(sizeof *after);
    if (!after) return kv_fail(err, KV_OUT_OF_MEMORY, "control", "memory could not be had");
    pthread_mutex_lock(&c->state);
    *after = kv_control_entry(c, rollout)->r;
    pthread_mutex_unlock(&c->state);
    uint64_t version = after->version++;
    if (v == KV_VERB_skip) after->waited = true;
    else if (v == KV_VERB_approve) snprintf(after->approver, sizeof after->approver, "%s", actor);
    else after->paused = v == KV_VERB_pause;
    char detail[96];
    snprintf(detail, sizeof detail, "%s%s%.60s", kv_verb_name(v), reason && *reason ? ": " : "", reason ? reason : "");
    enum kv_status st = kv_store_put_rollout(c->store, after, actor, detail, NULL, err);
    pthread_mutex_lock(&c->state);
    struct entry *e = kv_control_entry(c, rollout);
    if (st == KV_OK && e->r.version == version) e->r = *after;
    else if (st == KV_OK) st = kv_fail(err, KV_SUPERSEDED, "release", "a rollback came first");
    pthread_mutex_unlock(&c->state);
    if (st == KV_OK) kv_control_note(c, KV_EVENT_ROLLOUT, rollout, "%s by %s", kv_verb_name(v), actor);
    free(after);
    return st;
}

/* Whether what the caller saw is too old to act on. The release policy moves rollouts while people look at them: a pause or an approval then still means
 * what it meant, an advance or a ramp does not. What only stops is never too old. */
static bool outdated(const struct entry *e, enum kv_verb v, uint64_t version)
{
    if (version > e->r.version) return true;
    switch (v) {
    case KV_VERB_pause:
    case KV_VERB_abort:
    case KV_VERB_freeze:
        return false;
    case KV_VERB_approve:
    case KV_VERB_resume:
    case KV_VERB_unfreeze:
        return version < e->by_hand;
    default:
        return version != e->r.version;
    }
}

static enum kv_status check_verb(struct kv_control *c, uint64_t rollout, enum kv_verb v, uint64_t version, const char *reason, const char *actor, struct kv_error *err)
{
    pthread_mutex_lock(&c->state);
    struct entry *e = kv_control_entry(c, rollout);
    enum kv_status st;
    struct kv_release_facts f;
    if (!e) st = kv_fail(err, KV_NOT_FOUND, "rollout", "there is no such rollout");
    else if (v == KV_VERB_breakglass && !(reason && *reason)) st = kv_fail(err, KV_BAD_ARGUMENT, "reason", "breaking the glass needs a reason");
    else if (version && outdated(e, v, version)) {
        st = kv_fail(err, KV_VERSION_CONFLICT, "If-Match", "the rollout is at version %llu now", (unsigned long long)e->r.version);
        kv_hint(err, "look at it again, then repeat");
    } else {
        kv_control_facts(c, e, &f);
        st = kv_release_may(&e->r, v, &f, err);
        if (st == KV_OK && v == KV_VERB_approve && f.two_users && !strcmp(e->r.author, actor)) {
            st = kv_fail(err, KV_FORBIDDEN, "approve", "%s made this rollout and cannot approve it", actor);
            kv_hint(err, "another user with the right 'approver' has to");
        }
    }
    pthread_mutex_unlock(&c->state);
    return st;
}

static enum kv_status move_verb(struct kv_control *c, uint64_t rollout, enum kv_verb v, double fraction, const char *reason, const char *actor, struct kv_error *err)
{
    enum kv_stage to;
    int32_t step;
    char detail[160];
    pthread_mutex_lock(&c->state);
    struct entry *e = kv_control_entry(c, rollout);
    if (v == KV_VERB_ramp) to = e->r.stage, step = e->r.step;
    else kv_release_next(&e->r, &to, &step, &fraction);
    bool same = fraction == e->r.fraction, off = e->r.stage == KV_STAGE_OFF;
    struct kv_release_facts f;
    kv_control_facts(c, e, &f);
    enum kv_status st = v == KV_VERB_ramp && fraction > e->r.fraction ? kv_release_gates_pass(&f, err) : KV_OK;
    pthread_mutex_unlock(&c->state);
    if (v == KV_VERB_ramp && (!(fraction > 0 && fraction < 1) || same)) {
        kv_fail(err, KV_BAD_ARGUMENT, "fraction", "the ramp's fraction must lie between 0 and 1 and differ from the present one");
        kv_hint(err, "advance leads to FULL, rollback to the baseline");
        return KV_BAD_ARGUMENT;
    }
    if (st != KV_OK) {
        kv_hint(err, "a larger share waits for the gates like any other step; a smaller one does not");
        return st;
    }
    snprintf(detail, sizeof detail, "%s%s%.120s", v == KV_VERB_ramp ? "ramp set by hand" : v == KV_VERB_breakglass ? "break-glass" : off ? "started" : "every gate passed", reason && *reason ? ": " : "", reason ? reason : "");
    return kv_control_advance(c, to, step, fraction, v == KV_VERB_breakglass, detail, actor, err);
}

static enum kv_status retry(struct kv_control *c, uint64_t rollout, const char *actor, uint64_t *created, struct kv_error *err)
{
    char detail[64], id[24];
    pthread_mutex_lock(&c->state);
    struct kv_manifest m = kv_control_entry(c, rollout)->r.manifest;
    pthread_mutex_unlock(&c->state);
    bind(c, &m);
    enum kv_status st = kv_manifest_seal(&m, err);
    if (st == KV_OK) st = may_create(c, err);
    kv_rollout_id_format(rollout, id);
    snprintf(detail, sizeof detail, "created as a retry of %s", id);
    uint64_t next = 0;
    if (st == KV_OK) st = start(c, &m, actor, detail, &next, err);
    if (created) *created = next;
    return st;
}

static void moved_by_hand(struct kv_control *c, uint64_t rollout)
{
    pthread_mutex_lock(&c->state);
    struct entry *e = kv_control_entry(c, rollout);
    if (e) e->by_hand = e->r.version;
    pthread_mutex_unlock(&c->state);
}

/* A rollback with a condition: it takes effect, like one, without waiting for what is being recorded. */
static enum kv_status abort_rollout(struct kv_control *c, uint64_t rollout, uint64_t version, const char *reason, const char *actor, struct kv_error *err)
{
    struct kv_rollback_answer a;
    enum kv_status st = check_verb(c, rollout, KV_VERB_abort, version, reason, actor, err);
    return st == KV_OK ? kv_control_rollback(c, rollout, reason && *reason ? reason : "aborted", actor, &a, err) : st;
}

/* Without work, which may be held across a disk that hangs: that is when somebody freezes. */
static enum kv_status freeze(struct kv_control *c, uint64_t rollout, enum kv_verb v, uint64_t version, const char *reason, const char *actor, struct kv_error *err)
{
    enum kv_status st = check_verb(c, rollout, v, version, reason, actor, err);
    if (st == KV_OK) st = kv_control_freeze(c, v == KV_VERB_freeze, reason, actor, err);
    if (st == KV_OK) moved_by_hand(c, rollout);
    return st;
}

enum kv_status kv_control_verb(struct kv_control *c, uint64_t rollout, enum kv_verb v, uint64_t version, double fraction, const char *reason,
                               const char *actor, uint64_t *created, struct kv_error *err)
{
    if (v == KV_VERB_abort) return abort_rollout(c, rollout, version, reason, actor, err);
    if (v == KV_VERB_freeze || v == KV_VERB_unfreeze) return freeze(c, rollout, v, version, reason, actor, err);
    kv_control_begin(c);
    enum kv_status st = check_verb(c, rollout, v, version, reason, actor, err);
    if (st == KV_OK) switch (v) {
        case KV_VERB_pause:
        case KV_VERB_resume:
        case KV_VERB_skip:
        case KV_VERB_approve:
            st = change_record(c, rollout, v, reason, actor, err);
            break;
        case KV_VERB_advance:
        case KV_VERB_breakglass:
        case KV_VERB_ramp:
            st = move_verb(c, rollout, v, fraction, reason, actor, err);
            break;
        case KV_VERB_retry:
            st = retry(c, rollout, actor, created, err);
            break;
        default:
            st = kv_fail(err, KV_UNSUPPORTED, kv_verb_name(v), "%s is no change of a rollout", kv_verb_name(v));
        }
    if (st == KV_OK) moved_by_hand(c, rollout);
    kv_control_end(c);
    return st;
}
