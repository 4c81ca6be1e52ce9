/* control_resume.c — what a start makes of the state directory: resume, or the exact baseline with a receipt. */
#include "controller/release/control_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum kv_status note_start(struct kv_control *c, enum kv_status reason, const struct kv_rollout *r, const char *detail, struct kv_error *err)
{
    struct kv_receipt x;
    kv_receipt_init(&x, KV_ROW_STORE, kv_control_realtime(c));
    x.reason = reason;
    x.candidate = r ? r->id : 0;
    x.epoch = c->epoch;
    snprintf(x.detail, sizeof x.detail, "%s", detail);
    kv_control_note(c, KV_EVENT_LOG, x.candidate, "%s", detail);
    return kv_store_put_receipt(c->store, &x, NULL, err);
}

/* Why the live rollout must not go on, or OK. */
static enum kv_status must_leave(struct kv_control *c, const struct kv_rollout *r, enum kv_status loaded, const struct kv_error *why, const struct kv_intent_record *intent,
                                 char *detail, size_t cap, const char **actor)
{
    struct kv_error distrust;
    *actor = "recovery";
    if (intent->sequence && intent->rollout == r->id) {
        snprintf(detail, cap, "acknowledged before the restart: %.120s", intent->detail);
        *actor = intent->actor;
        return intent->reason;
    }
    if (!kv_store_trusted(c->store, &distrust)) return snprintf(detail, cap, "%.40s: %.110s", distrust.where, distrust.message), KV_STORE_CORRUPT;
    if (loaded != KV_OK) return snprintf(detail, cap, "%.150s", why->message), KV_STORE_CORRUPT;
    if (memcmp(r->manifest.model_artifact, c->config.model_artifact, 32)) return snprintf(detail, cap, "another model file is loaded than the manifest names"), KV_IDENTITY_MISMATCH;
    if (memcmp(r->manifest.numerics_id, c->config.numerics_id, 32)) return snprintf(detail, cap, "this machine's numerics differ from the manifest's"), KV_IDENTITY_MISMATCH;
    return KV_OK;
}

static enum kv_status leave(struct kv_control *c, struct kv_rollout *r, enum kv_status reason, const char *detail, const char *actor, struct kv_error *err)
{
    struct kv_transition t = {.to = KV_STAGE_EXACT_BASELINE, .reason = reason, .at_us = kv_control_realtime(c), .epoch = ++c->epoch};
    snprintf(t.detail, sizeof t.detail, "%s", detail);
    snprintf(t.actor, sizeof t.actor, "%s", actor);
    if (kv_release_move(r, &t, r->step, NULL) != KV_OK) {
        /* A stored stage that nothing leads away from: the row is closed as it stands. */
        r->live = r->paused = false;
        r->ended_us = t.at_us;
        return kv_store_put_rollout(c->store, r, actor, detail, NULL, err);
    }
    enum kv_status st = kv_store_put_transition(c->store, r, &t, err);
    if (st == KV_OK) r->transitions[r->n_transitions - 1].receipt = t.receipt;
    return st;
}

/* The evidence so far is gone with the process: the step's clock and its gates start again. */
static enum kv_status carry_on(struct kv_control *c, struct entry *e, struct kv_error *err)
{
    uint64_t seed = 0;
    for (int i = 0; i < 8; i++) seed = seed << 8 | e->r.manifest.digest[i];
    if (kv_gates_create(e->r.manifest.gates, e->r.manifest.n_gates, seed ^ e->r.id ^ c->epoch, &c->gates) != KV_OK)
        return kv_fail(err, KV_OUT_OF_MEMORY, "gates", "memory could not be had");
    c->live = e;
    kv_control_keep_samples(c, e->r.id);
    kv_control_recall_drills(c, e->r.manifest.digest);
    kv_control_set_gate(c);
    kv_control_begin_step(c);
    struct kv_error why;
    enum kv_status st = kv_control_install(c, c->epoch + 1, &why);
    char detail[96], id[24];
    kv_rollout_id_format(e->r.id, id);
    if (st == KV_OK) {
        snprintf(detail, sizeof detail, "resumed %s at %s", id, kv_stage_name(e->r.stage));
        return note_start(c, KV_OK, &e->r, detail, err);
    }
    c->live = NULL;
    return leave(c, &e->r, st, why.message, "recovery", err);
}

static enum kv_status settle(struct kv_control *c, struct entry *e, enum kv_status loaded, const struct kv_error *why, const struct kv_intent_record *intent, struct kv_error *err)
{
    char detail[160];
    const char *actor;
    enum kv_status reason = must_leave(c, &e->r, loaded, why, intent, detail, sizeof detail, &actor);
    if (reason == KV_OK) return carry_on(c, e, err);
    enum kv_status st = leave(c, &e->r, reason, detail, actor, err);
    char line[96];
    snprintf(line, sizeof line, "started on the exact baseline: %.60s", detail);
    return st == KV_OK ? note_start(c, reason, &e->r, line, err) : st;
}

enum kv_status kv_control_resume(struct kv_control *c, const struct kv_intent_record *intent, struct kv_error *err)
{
    struct kv_rollout *all = NULL;
    struct kv_error why = {0}, distrust;
    int32_t n = 0;
    uint64_t last = 0;
    enum kv_status loaded = kv_store_load_rollouts(c->store, &all, &n, &why);
    enum kv_status st = loaded == KV_OK || loaded == KV_STORE_CORRUPT ? kv_store_last_ids(c->store, &last, &c->epoch, err) : loaded;
    if (loaded != KV_OK && st == loaded && err) *err = why;
    int64_t frozen = 0;
    if (st == KV_OK) st = kv_store_load_setting(c->store, "frozen", &frozen, err);
    c->frozen = frozen != 0;
    uint64_t word = c->port.word(c->port.ctx).epoch;
    if (c->epoch < intent->epoch) c->epoch = intent->epoch;
    if (c->epoch < word) c->epoch = word;
    if (intent->rollout > last) last = intent->rollout;
    c->next_rollout = last + 1;
    struct entry *live = NULL;
    for (int32_t i = 0; i < n && st == KV_OK; i++) {
        struct entry *e = calloc(1, sizeof *e);
        if (!e) st = kv_fail(err, KV_OUT_OF_MEMORY, "control", "memory could not be had");
        if (!e) break;
        e->r = all[i];
        e->by_hand = e->r.version; /* by whom is not known any more */
        kv_store_load_gates(c->store, e->r.id, e->gates, &e->n_gates, NULL);
        c->rollout[c->n_rollouts++] = e;
        if (e->r.live) live = e;
    }
    free(all);
    if (st != KV_OK) return st;
    if (live) st = settle(c, live, loaded, &why, intent, err);
    else st = kv_store_trusted(c->store, &distrust) ? note_start(c, KV_OK, NULL, "started; no rollout is live", err) : note_start(c, KV_STORE_CORRUPT, NULL, distrust.message, err);
    if (st != KV_OK || c->live) return st;
    c->uninstall_due = false;
    st = kv_control_install(c, c->epoch + 1, err);
    kv_control_set_gate(c);
    return st;
}
