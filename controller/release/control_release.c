/* control_release.c — moving the live rollout: forward after a commit, back before anything else. */
#include "controller/release/control_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry *kv_control_entry(struct kv_control *c, uint64_t rollout)
{
    for (int32_t i = c->n_rollouts - 1; i >= 0; i--)
        if (c->rollout[i]->r.id == rollout) return c->rollout[i];
    return NULL;
}

void kv_control_facts(struct kv_control *c, const struct entry *e, struct kv_release_facts *f)
{
    memset(f, 0, sizeof *f);
    f->frozen = c->frozen;
    f->store_ok = c->shown.store.ok;
    f->two_users = kv_control_two_users(c);
    f->latched = c->port.word(c->port.ctx).latched || c->n_unrecorded > 0;
    f->other_live = c->live && c->live != e && c->live->r.stage != KV_STAGE_FULL;
    /* Waiting is measured on the monotonic clock, so that a clock jump neither ends nor prolongs it. */
    f->now_us = e->r.stage_since_us + kv_control_monotonic(c) - c->step_started_us;
    f->samples = c->samples;
    f->undrilled = kv_control_undrilled(c);
    f->gates = e->gates;
    f->n_gates = e->n_gates;
}

/* work, evidence and state. */
static void begin_step(struct kv_control *c)
{
    struct kv_engine_stats stats;
    c->port.stats(c->port.ctx, &stats);
    memset(c->recorded, 0, sizeof c->recorded);
    c->last_decision[0] = 0;
    c->step_started_us = kv_control_monotonic(c);
    c->samples = 0;
    if (!c->gates) return;
    kv_gates_reset(c->gates, &stats);
    if (c->live) c->live->n_gates = kv_gates_evaluate(c->gates, c->live->r.stage, c->live->gates);
}

void kv_control_begin_step(struct kv_control *c)
{
    pthread_mutex_lock(&c->evidence);
    pthread_mutex_lock(&c->state);
    begin_step(c);
    pthread_mutex_unlock(&c->state);
    pthread_mutex_unlock(&c->evidence);
}

/* What was approved is what is served: a manifest made before costs were kept was made where bytes were alike, whatever a method declares today. */
static struct kv_candidate candidate_of(const struct kv_rollout *r)
{
    const struct kv_manifest *m = &r->manifest;
    return (struct kv_candidate){r->id, m->pipeline, m->params, m->byte_cost > 0 ? m->byte_cost : 1, m->index_share >= 0, m->index_share};
}

enum kv_status kv_control_install(struct kv_control *c, uint64_t epoch, struct kv_error *err)
{
    struct kv_release_word w = c->port.word(c->port.ctx);
    if (w.latched) return kv_fail(err, KV_SUPERSEDED, "release", "a rollback came first");
    struct kv_candidate candidate;
    pthread_mutex_lock(&c->state);
    const struct kv_rollout *r = c->live ? &c->live->r : NULL;
    bool shadow = r && r->stage == KV_STAGE_SHADOW, some = r && r->stage != KV_STAGE_OFF;
    if (some) candidate = candidate_of(r);
    pthread_mutex_unlock(&c->state);
    enum kv_status st = c->port.install(c->port.ctx, some ? &candidate : NULL, shadow, w.epoch, epoch, err);
    if (st != KV_OK) return st;
    pthread_mutex_lock(&c->state);
    if (c->epoch < epoch) c->epoch = epoch;
    c->installed.candidate = some ? candidate.id : 0;
    c->installed.epoch = epoch;
    pthread_mutex_unlock(&c->state);
    return KV_OK;
}

/* ---------------------------------------------------------------- forward */

static void superseded(struct kv_control *c, const struct kv_rollout *r, const struct kv_transition *t)
{
    struct kv_receipt x;
    kv_receipt_init(&x, KV_ROW_SUPERSEDED, kv_control_realtime(c));
    x.candidate = r->id;
    x.epoch = t->epoch;
    x.reason = KV_SUPERSEDED;
    x.contract = x.published = r->manifest.contract;
    snprintf(x.detail, sizeof x.detail, "%s to %s was committed, then overtaken by a rollback", kv_stage_name(t->from), kv_stage_name(t->to));
    kv_store_post(c->store, &x);
}

/* Commit, then act. Between the two a rollback may come: the engine's compare-and-set refuses, and memory is left as the rollback made it. */
enum kv_status kv_control_advance(struct kv_control *c, enum kv_stage to, int32_t step, double fraction, bool glass, const char *detail, const char *actor, struct kv_error *err)
{
    struct kv_transition t = {.to = to, .fraction = fraction, .reason = KV_OK, .at_us = kv_control_realtime(c)};
    snprintf(t.detail, sizeof t.detail, "%s", detail);
    snprintf(t.actor, sizeof t.actor, "%s", actor);
    struct kv_rollout *after = malloc(sizeof *after);
    if (!after) return kv_fail(err, KV_OUT_OF_MEMORY, "control", "memory could not be had");
    kv_control_at(c, KV_AT_ADVANCE_BEGIN);
    uint64_t expected = c->port.word(c->port.ctx).epoch;
    pthread_mutex_lock(&c->state);
    struct entry *e = c->live;
    enum kv_status st = e ? KV_OK : kv_fail(err, KV_SUPERSEDED, "release", "a rollback came first");
    if (st == KV_OK && c->frozen && !glass) st = kv_fail(err, KV_FROZEN, "release", "releases were frozen first");
    if (st == KV_OK) {
        *after = e->r;
        t.epoch = ++c->epoch;
        st = kv_release_move(after, &t, step, err);
    }
    pthread_mutex_unlock(&c->state);
    if (st == KV_OK) st = kv_store_put_transition(c->store, after, &t, err);
    if (st != KV_OK) {
        free(after);
        return st;
    }
    after->transitions[after->n_transitions - 1].receipt = t.receipt;
    kv_control_at(c, KV_AT_ADVANCE_COMMITTED);
    struct kv_candidate candidate = candidate_of(after);
    st = c->port.install(c->port.ctx, &candidate, to == KV_STAGE_SHADOW, expected, t.epoch, err);
    kv_control_at(c, KV_AT_ADVANCE_INSTALLED);
    /* Stage and evidence change together: what the stage before has left, counters too, must not be judged under the new one. */
    pthread_mutex_lock(&c->evidence);
    pthread_mutex_lock(&c->state);
    if (st == KV_OK && c->live == e) {
        e->r = *after;
        c->installed.candidate = after->id;
        c->installed.epoch = t.epoch;
        begin_step(c);
    } else if (st == KV_OK) {
        st = kv_fail(err, KV_SUPERSEDED, "release", "a rollback came first");
    }
    pthread_mutex_unlock(&c->state);
    pthread_mutex_unlock(&c->evidence);
    if (st == KV_OK) {
        kv_control_note(c, KV_EVENT_ROLLOUT, after->id, "%s to %s by %s", kv_stage_name(t.from), kv_stage_name(t.to), actor);
    } else {
        superseded(c, after, &t);
        /* Refused by the engine for a reason of its own (not a latch): the candidate cannot run there. */
        if (st != KV_SUPERSEDED) kv_control_fall_back(c, after->id, st, err ? err->message : "the engine refused the candidate", "engine", NULL);
    }
    free(after);
    return st;
}

/* ---------------------------------------------------------------- back */

const enum kv_status kv_rollback_cause[KV_ROLLBACK_CAUSES] = {KV_OPERATOR_ROLLBACK, KV_GATE_FAILED, KV_EXACT_MISMATCH, KV_POLICY_ROLLBACK, KV_STORE_UNAVAILABLE, KV_OK};

static void count(struct kv_control *c, enum kv_status reason)
{
    int i = 0;
    while (i < KV_ROLLBACK_CAUSES - 1 && kv_rollback_cause[i] != reason) i++;
    c->rollbacks[i]++;
}

static void acknowledge(struct kv_control *c, const struct kv_rollback *fenced, int64_t began_us, enum kv_status durable, struct kv_rollback_answer *out)
{
    memset(out, 0, sizeof *out);
    out->fenced = true;
    out->fence_us = fenced->fence_us;
    out->durable = durable == KV_OK;
    out->durable_us = kv_control_monotonic(c) - began_us;
    out->already = fenced->already;
    out->recomputing = c->port.recomputing(c->port.ctx);
    out->resumed = out->recomputing == 0;
    out->unsent_tokens = fenced->unsent_tokens;
    out->epoch = fenced->epoch;
}

/* Unless another rollout than the one meant is live: it may have followed the one that was judged a moment ago. The state is held from that look to the
 * latch, which takes microseconds and no disk. */
static bool fence(struct kv_control *c, uint64_t rollout, struct kv_rollback *fenced)
{
    pthread_mutex_lock(&c->state);
    bool meant = !rollout || !c->live || c->live->r.id == rollout;
    if (meant) c->port.rollback(c->port.ctx, fenced);
    pthread_mutex_unlock(&c->state);
    return meant;
}

bool kv_control_fall_back(struct kv_control *c, uint64_t rollout, enum kv_status reason, const char *detail, const char *actor, struct kv_rollback_answer *out)
{
    int64_t began = kv_control_monotonic(c);
    struct kv_rollback fenced;
    memset(&fenced, 0, sizeof fenced);
    kv_control_at(c, KV_AT_ROLLBACK_BEGIN);
    if (!fence(c, rollout, &fenced)) return false;
    kv_control_at(c, KV_AT_ROLLBACK_FENCED);
    struct kv_intent_record i = {.epoch = fenced.epoch, .at_us = kv_control_realtime(c), .reason = reason};
    snprintf(i.actor, sizeof i.actor, "%s", actor);
    snprintf(i.detail, sizeof i.detail, "%s", detail);
    pthread_mutex_lock(&c->state);
    /* One that left but is not written down yet stays the newest word: "none" would let a restart serve it again. */
    i.rollout = c->live ? c->live->r.id : c->n_unrecorded ? c->unrecorded[c->n_unrecorded - 1].rollout : 0;
    pthread_mutex_unlock(&c->state);
    enum kv_status durable = kv_intent_write(c->intent, &i);
    kv_control_at(c, KV_AT_ROLLBACK_DURABLE);
    pthread_mutex_lock(&c->state);
    struct entry *e = c->live;
    struct kv_transition t = {.to = KV_STAGE_EXACT_BASELINE, .reason = reason, .at_us = i.at_us};
    memcpy(t.actor, i.actor, sizeof t.actor);
    memcpy(t.detail, i.detail, sizeof t.detail);
    if (e && e->r.id == i.rollout) {
        t.epoch = ++c->epoch;
        count(c, reason);
        if (kv_release_move(&e->r, &t, e->r.step, NULL) == KV_OK && c->n_unrecorded < (int32_t)(sizeof c->unrecorded / sizeof *c->unrecorded))
            c->unrecorded[c->n_unrecorded++] = (struct unrecorded){e->r.id, t};
        c->live = NULL;
        c->installed.candidate = 0;
    }
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->state);
    kv_control_at(c, KV_AT_ROLLBACK_MOVED);
    struct kv_rollback_answer answer;
    acknowledge(c, &fenced, began, durable, out ? out : &answer);
    return true;
}

void kv_control_record_pending(struct kv_control *c)
{
    struct kv_rollout *r = malloc(sizeof *r);
    for (bool more = r != NULL; more;) {
        pthread_mutex_lock(&c->state);
        struct unrecorded u = c->unrecorded[0];
        struct entry *e = c->n_unrecorded ? kv_control_entry(c, u.rollout) : NULL;
        if (e) *r = e->r;
        pthread_mutex_unlock(&c->state);
        more = e && kv_store_put_transition(c->store, r, &u.t, NULL) == KV_OK;
        if (!more) break;
        kv_control_at(c, KV_AT_ROLLBACK_RECORDED);
        pthread_mutex_lock(&c->state);
        e->r.transitions[e->r.n_transitions - 1].receipt = u.t.receipt;
        c->n_unrecorded--;
        memmove(c->unrecorded, c->unrecorded + 1, sizeof *c->unrecorded * (size_t)c->n_unrecorded);
        pthread_mutex_unlock(&c->state);
        kv_control_note(c, KV_EVENT_ROLLOUT, u.rollout, "%s to EXACT_BASELINE by %s: %s", kv_stage_name(u.t.from), u.t.actor, u.t.detail);
    }
    free(r);
}

static enum kv_status another_is_live(struct kv_control *c, struct kv_error *err)
{
    char other[24];
    pthread_mutex_lock(&c->state);
    kv_rollout_id_format(c->live ? c->live->r.id : 0, other);
    pthread_mutex_unlock(&c->state);
    kv_fail(err, KV_CONFLICT, "rollout", "this rollout has ended; %s is live", other);
    kv_hint(err, "roll back %s to return all traffic to the exact baseline", other);
    return KV_CONFLICT;
}

enum kv_status kv_control_rollback(struct kv_control *c, uint64_t rollout, const char *reason, const char *actor, struct kv_rollback_answer *out, struct kv_error *err)
{
    pthread_mutex_lock(&c->state);
    uint64_t live = c->live ? c->live->r.id : 0;
    bool known = !rollout || kv_control_entry(c, rollout) != NULL;
    pthread_mutex_unlock(&c->state);
    memset(out, 0, sizeof *out);
    if (!known) return kv_fail(err, KV_NOT_FOUND, "rollout", "there is no such rollout");
    if (!kv_control_fall_back(c, rollout, KV_OPERATOR_ROLLBACK, reason && *reason ? reason : "rolled back", actor, out)) return another_is_live(c, err);
    if (c->config.on_event && live) c->config.on_event(c->config.event_ctx, KV_EVENT_ROLLOUT, live, "rolled back");
    if (out->durable) return KV_OK;
    kv_fail(err, KV_STORE_UNAVAILABLE, "rollback.intent", "traffic is on the exact baseline, and the record that would keep it there after a crash could not be written");
    kv_hint(err, "check the disk of the state directory before restarting");
    return KV_STORE_UNAVAILABLE;
}
