/* control_drills.c — drills of a rollout's candidate: run apart, recorded, handed to its gates. */
#include "controller/release/control_internal.h"

#include <stdlib.h>
#include <string.h>

/* evidence. Of the live rollout's manifest. */
static void tell_gates(struct kv_control *c, const struct kv_drill_result *d)
{
    if (d->at_us) kv_gates_drill(c->gates, (size_t)d->drill, d->at_us, d->checks, d->violations);
    pthread_mutex_lock(&c->state);
    c->drilled[d->drill] = d->at_us && kv_drill_passed(d);
    pthread_mutex_unlock(&c->state);
}

const char *kv_control_undrilled(const struct kv_control *c)
{
    static const enum kv_drill needed[] = {KV_DRILL_rollback, KV_DRILL_crash_restart, KV_DRILL_idempotent_replay};
    for (size_t i = 0; c->config.drills_before_full && i < sizeof needed / sizeof *needed; i++)
        if (!c->drilled[needed[i]]) return kv_drill_name(needed[i]);
    return NULL;
}

void kv_control_set_drills_before_full(struct kv_control *c, bool needed)
{
    pthread_mutex_lock(&c->state);
    c->config.drills_before_full = needed;
    pthread_mutex_unlock(&c->state);
}

void kv_control_recall_drills(struct kv_control *c, const uint8_t manifest[32])
{
    struct kv_drill_result d[KV_DRILLS];
    pthread_mutex_lock(&c->state);
    memset(c->drilled, 0, sizeof c->drilled);
    pthread_mutex_unlock(&c->state);
    if (!c->gates || kv_store_load_drills(c->store, manifest, d, NULL) != KV_OK) return;
    pthread_mutex_lock(&c->evidence);
    for (int i = 0; i < KV_DRILLS; i++) tell_gates(c, &d[i]);
    pthread_mutex_unlock(&c->evidence);
}

/* The rollout meant by an id, 0 the live one or else the newest; a copy. */
static enum kv_status rollout_of(struct kv_control *c, uint64_t rollout, struct kv_rollout **out, struct kv_error *err)
{
    struct kv_rollout *r = malloc(sizeof *r);
    if (!r) return kv_fail(err, KV_OUT_OF_MEMORY, "drill", "memory could not be had");
    pthread_mutex_lock(&c->state);
    const struct entry *e = rollout ? kv_control_entry(c, rollout) : c->live ? c->live : c->n_rollouts ? c->rollout[c->n_rollouts - 1] : NULL;
    if (e) *r = e->r;
    pthread_mutex_unlock(&c->state);
    if (e) return *out = r, KV_OK;
    free(r);
    kv_fail(err, KV_NOT_FOUND, "rollout", rollout ? "there is no such rollout" : "there is no rollout yet");
    kv_hint(err, "a drill is of a candidate: kvasir rollout create");
    return KV_NOT_FOUND;
}

enum kv_status kv_control_drills(struct kv_control *c, uint64_t *rollout, struct kv_drill_result out[KV_DRILLS], struct kv_error *err)
{
    struct kv_rollout *r = NULL;
    enum kv_status st = rollout_of(c, *rollout, &r, err);
    if (st == KV_OK) st = kv_store_load_drills(c->store, r->manifest.digest, out, err);
    if (st == KV_OK) *rollout = r->id;
    free(r);
    return st;
}

static enum kv_status run(struct kv_control *c, const struct kv_rollout *r, enum kv_drill k, const char *actor, struct kv_drill_result *out, struct kv_error *err)
{
    char *fallback = NULL;
    size_t n;
    enum kv_status st = kv_control_policy_source(c, KV_POLICY_FALLBACK, &fallback, &n);
    if (st != KV_OK) return kv_fail(err, st, "drill", "memory could not be had");
    struct kv_drill_case its = {c->config.model_path, &r->manifest, fallback, kv_store_dir(c->store), kv_control_mass_limit_of(&r->manifest)};
    st = kv_drill_apart(c->config.check_program, k, &its, out, err);
    free(fallback);
    if (st != KV_OK) return st;
    snprintf(out->actor, sizeof out->actor, "%s", actor);
    st = kv_store_put_drill(c->store, r, out, err);
    if (st != KV_OK) return st;
    kv_control_begin(c);
    pthread_mutex_lock(&c->state);
    bool live = c->live && !memcmp(c->live->r.manifest.digest, r->manifest.digest, 32);
    pthread_mutex_unlock(&c->state);
    pthread_mutex_lock(&c->evidence);
    if (live && c->gates) tell_gates(c, out);
    pthread_mutex_unlock(&c->evidence);
    kv_control_note(c, KV_EVENT_ROLLOUT, r->id, "drill %s %s: %.100s", kv_drill_name(k), kv_drill_passed(out) ? "passed" : "failed", out->detail);
    kv_control_end(c);
    return KV_OK;
}

enum kv_status kv_control_drill(struct kv_control *c, uint64_t rollout, enum kv_drill k, const char *actor, struct kv_drill_result *out, struct kv_error *err)
{
    struct kv_rollout *r = NULL;
    if (!c->config.check_program || !c->config.model_path) return kv_fail(err, KV_UNSUPPORTED, "drill", "this program cannot start itself for a drill");
    enum kv_status st = rollout_of(c, rollout, &r, err);
    if (st != KV_OK) return st;
    pthread_mutex_lock(&c->state);
    bool busy = c->drilling;
    c->drilling = true;
    pthread_mutex_unlock(&c->state);
    if (busy) {
        free(r);
        kv_fail(err, KV_CONFLICT, "drill", "another drill runs; there is one at a time");
        kv_hint(err, "it is over within %d s", KV_DRILL_SECONDS);
        return KV_CONFLICT;
    }
    st = run(c, r, k, actor, out, err);
    pthread_mutex_lock(&c->state);
    c->drilling = false;
    pthread_mutex_unlock(&c->state);
    free(r);
    return st;
}
