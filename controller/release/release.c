/* release.c — the stage machine: one transition table, one function that moves, and which verbs are legal when. */
#include "controller/release/release.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    char letter;
} stages[KV_STAGES] = {{"OFF", 'O'}, {"SHADOW", 'S'}, {"CANARY", 'C'}, {"RAMP", 'R'}, {"FULL", 'F'}, {"EXACT_BASELINE", 'B'}};

/* Row: from; column: to. CANARY and RAMP lead to themselves with another fraction. */
static const bool legal[KV_STAGES][KV_STAGES] = {
    /*                          OFF SHADOW CANARY RAMP FULL EXACT_BASELINE */
    [KV_STAGE_OFF] =            {0, 1, 0, 0, 0, 1},
    [KV_STAGE_SHADOW] =         {0, 0, 1, 0, 0, 1},
    [KV_STAGE_CANARY] =         {0, 0, 1, 1, 0, 1},
    [KV_STAGE_RAMP] =           {0, 0, 0, 1, 1, 1},
    [KV_STAGE_FULL] =           {0, 0, 0, 0, 0, 1},
    [KV_STAGE_EXACT_BASELINE] = {0, 0, 0, 0, 0, 0},
};

static const struct {
    const char *name, *stages;
} verbs[KV_VERBS] = {
#define KV_VERB(name, group, method, route, right, danger, stages, key, help) {#name, stages},
#include "controller/verbs.def"
#undef KV_VERB
};

const char *kv_stage_name(enum kv_stage s)
{
    return (unsigned)s < KV_STAGES ? stages[s].name : "UNKNOWN";
}

char kv_stage_letter(enum kv_stage s)
{
    return (unsigned)s < KV_STAGES ? stages[s].letter : '?';
}

bool kv_stage_from_name(const char *name, enum kv_stage *out)
{
    for (int i = 0; i < KV_STAGES; i++)
        if (!strcmp(stages[i].name, name)) return *out = (enum kv_stage)i, true;
    return false;
}

const char *kv_verb_name(enum kv_verb v)
{
    return (unsigned)v < KV_VERBS ? verbs[v].name : "unknown";
}

const char *kv_verb_stages(enum kv_verb v)
{
    return (unsigned)v < KV_VERBS ? verbs[v].stages : "";
}

bool kv_verb_from_name(const char *name, enum kv_verb *out)
{
    for (int i = 0; i < KV_VERBS; i++)
        if (!strcmp(verbs[i].name, name)) return *out = (enum kv_verb)i, true;
    return false;
}

void kv_rollout_id_format(uint64_t id, char out[24])
{
    snprintf(out, 24, "r_%06llu", (unsigned long long)id);
}

bool kv_rollout_id_parse(const char *text, uint64_t *out)
{
    if (strncmp(text, "r_", 2) || text[2] < '0' || text[2] > '9') return false;
    char *end;
    unsigned long long v = strtoull(text + 2, &end, 10);
    if (*end || v == 0 || end - text > 20) return false;
    *out = v;
    return true;
}

bool kv_release_next(const struct kv_rollout *r, enum kv_stage *to, int32_t *step, double *fraction)
{
    if (r->stage >= KV_STAGE_FULL || r->step + 1 >= r->manifest.n_steps) return false;
    int32_t i = r->step + 1;
    /* A ramp set by hand may already be past the next step of RAMP; that step would shrink it. */
    while (i + 1 < r->manifest.n_steps && r->stage == KV_STAGE_RAMP && r->manifest.steps[i].stage == KV_STAGE_RAMP &&
           r->manifest.steps[i].fraction <= r->fraction)
        i++;
    *to = r->manifest.steps[i].stage;
    *step = i;
    *fraction = r->manifest.steps[i].fraction;
    return true;
}

static bool consistent(const struct kv_rollout *r, const struct kv_transition *t, int32_t step)
{
    const struct kv_manifest *m = &r->manifest;
    if (t->to == KV_STAGE_EXACT_BASELINE) return t->fraction == 0;
    if (step < r->step || step >= m->n_steps || step < 0 || m->steps[step].stage != t->to) return false;
    if (t->to == r->stage && step == r->step) return t->to == KV_STAGE_RAMP && t->fraction > 0 && t->fraction < 1; /* ramp by hand */
    return t->fraction == m->steps[step].fraction;
}

enum kv_status kv_release_move(struct kv_rollout *r, struct kv_transition *t, int32_t step, struct kv_error *err)
{
    if ((unsigned)t->to >= KV_STAGES || !r->live || !legal[r->stage][t->to] || !consistent(r, t, step) || t->epoch <= r->epoch)
        return kv_fail(err, KV_ILLEGAL_TRANSITION, kv_stage_name(r->stage), "%s does not lead to %s here", kv_stage_name(r->stage),
                       kv_stage_name(t->to));
    t->from = r->stage;
    r->stage = t->to;
    r->fraction = t->fraction;
    r->step = t->to == KV_STAGE_EXACT_BASELINE ? r->step : step;
    r->epoch = t->epoch;
    r->stage_since_us = t->at_us;
    r->waited = false;
    r->version++;
    if (t->to == KV_STAGE_EXACT_BASELINE) {
        r->live = r->paused = false;
        r->ended_us = t->at_us;
    }
    if (r->n_transitions == KV_MAX_TRANSITIONS) {
        memmove(r->transitions, r->transitions + 1, sizeof r->transitions - sizeof *r->transitions);
        r->n_transitions--;
    }
    r->transitions[r->n_transitions++] = *t;
    return KV_OK;
}

enum kv_status kv_release_gates_pass(const struct kv_release_facts *f, struct kv_error *err)
{
    int32_t which = -1;
    enum kv_verdict v = kv_gates_decide(f->gates, f->n_gates, &which);
    if (v == KV_PASS) return KV_OK;
    const char *name = which >= 0 ? f->gates[which].metric : "gates";
    const char *why = which >= 0 ? f->gates[which].detail : "no gate was evaluated yet";
    return kv_fail(err, v == KV_FAILED ? KV_GATE_FAILED : KV_GATE_NO_DATA, name, "gate %s: %s, %s", name, kv_verdict_name(v), why);
}

static enum kv_status may_advance(const struct kv_rollout *r, const struct kv_release_facts *f, struct kv_error *err)
{
    enum kv_stage to;
    int32_t step;
    double fraction;
    if (!kv_release_next(r, &to, &step, &fraction)) return kv_fail(err, KV_ILLEGAL_TRANSITION, kv_stage_name(r->stage), "nothing follows %s", kv_stage_name(r->stage));
    if (r->paused) {
        kv_fail(err, KV_CONFLICT, "paused", "the rollout is paused");
        kv_hint(err, "resume it first");
        return KV_CONFLICT;
    }
    if (r->step >= 0) {
        const struct kv_step *s = &r->manifest.steps[r->step];
        double left = s->min_seconds - (double)(f->now_us - r->stage_since_us) / 1e6;
        if (!r->waited && left > 0) {
            kv_fail(err, KV_CONFLICT, "min_seconds", "%.0f s of this step's %d s are left", left, (int)s->min_seconds);
            kv_hint(err, "wait, or skip ends the waiting time");
            return KV_CONFLICT;
        }
        if (f->samples < s->min_samples)
            return kv_fail(err, KV_GATE_NO_DATA, "min_samples", "%llu of %llu samples of this step are in", (unsigned long long)f->samples,
                           (unsigned long long)s->min_samples);
    }
    if (r->stage == KV_STAGE_OFF) return KV_OK; /* nothing has run yet, so nothing can be judged */
    enum kv_status st = kv_release_gates_pass(f, err);
    if (st != KV_OK || to != KV_STAGE_FULL || !f->undrilled) return st;
    kv_fail(err, KV_GATE_NO_DATA, "drill", "FULL waits for drill %s, which has not passed for this candidate", f->undrilled);
    kv_hint(err, "kvasir rollout drill %s; release.drills_before_full=false asks for none", f->undrilled);
    return KV_GATE_NO_DATA;
}

/* Serving traffic needs a second pair of eyes where there is one. */
static enum kv_status approved(const struct kv_rollout *r, const struct kv_release_facts *f, struct kv_error *err)
{
    enum kv_stage to;
    int32_t step;
    double fraction;
    if (!f->two_users || *r->approver || !kv_release_next(r, &to, &step, &fraction) || to == KV_STAGE_SHADOW) return KV_OK;
    kv_fail(err, KV_CONFLICT, "approve", "%s was not approved yet, and it would serve traffic from here on", r->manifest.name);
    kv_hint(err, "somebody else than %s has to: kvasir rollout approve", *r->author ? r->author : "its author");
    return KV_CONFLICT;
}

static enum kv_status may_here(const struct kv_rollout *r, enum kv_verb v, const struct kv_release_facts *f, struct kv_error *err)
{
    switch (v) {
    case KV_VERB_advance: {
        enum kv_status st = may_advance(r, f, err);
        return st != KV_OK ? st : approved(r, f, err);
    }
    case KV_VERB_breakglass:
        return may_advance(r, f, err);
    case KV_VERB_approve:
        return *r->approver ? kv_fail(err, KV_CONFLICT, "approve", "%s approved it already", r->approver) : KV_OK;
    case KV_VERB_pause:
        return r->paused ? kv_fail(err, KV_CONFLICT, "paused", "the rollout is paused already") : KV_OK;
    case KV_VERB_resume:
        return r->paused ? KV_OK : kv_fail(err, KV_CONFLICT, "paused", "the rollout is not paused");
    case KV_VERB_ramp: {
        double left = r->manifest.steps[r->step].min_seconds - (double)(f->now_us - r->stage_since_us) / 1e6;
        if (r->paused) return kv_fail(err, KV_CONFLICT, "paused", "the rollout is paused");
        return r->waited || left <= 0 ? KV_OK
                                      : kv_fail(err, KV_CONFLICT, "min_seconds", "one change of fraction at a time: %.0f s of the last one's waiting time are left", left);
    }
    case KV_VERB_skip: {
        if (r->step < 0 || r->waited || (double)(f->now_us - r->stage_since_us) / 1e6 >= r->manifest.steps[r->step].min_seconds)
            return kv_fail(err, KV_CONFLICT, "min_seconds", "this step has no waiting time left to end");
        return KV_OK;
    }
    default:
        return KV_OK;
    }
}

enum kv_status kv_release_may(const struct kv_rollout *r, enum kv_verb v, const struct kv_release_facts *f, struct kv_error *err)
{
    const char *where = kv_verb_stages(v);
    bool reading = v == KV_VERB_list || v == KV_VERB_show || v == KV_VERB_history, away = v == KV_VERB_rollback || v == KV_VERB_abort;
    if (reading || v == KV_VERB_create) return KV_OK;
    if (strcmp(where, "*") && !strchr(where, kv_stage_letter(r->stage)))
        return kv_fail(err, KV_ILLEGAL_TRANSITION, kv_stage_name(r->stage), "%s is not possible at %s", kv_verb_name(v), kv_stage_name(r->stage));
    if (v == KV_VERB_rollback)
        return f->other_live && !r->live ? kv_fail(err, KV_CONFLICT, "rollout", "this rollout has ended and another one is live") : KV_OK;
    if (v == KV_VERB_freeze || v == KV_VERB_unfreeze)
        return f->frozen == (v == KV_VERB_freeze) ? kv_fail(err, KV_CONFLICT, "frozen", "releases are %s", f->frozen ? "frozen already" : "not frozen") : KV_OK;
    if (v == KV_VERB_retry) {
        if (f->latched) return kv_fail(err, KV_CONFLICT, "release", "the rollback is still recomputing sequences");
        if (f->frozen) return kv_fail(err, KV_FROZEN, "release", "releases are frozen; only rollback is possible");
        return f->other_live ? kv_fail(err, KV_CONFLICT, "rollout", "another rollout is live") : KV_OK;
    }
    if (!r->live) return kv_fail(err, KV_CONFLICT, "rollout", "this rollout has ended");
    if (away) return KV_OK;
    if (f->latched) return kv_fail(err, KV_SUPERSEDED, "release", "a rollback came first");
    if (f->frozen && v != KV_VERB_pause && v != KV_VERB_approve && v != KV_VERB_breakglass) return kv_fail(err, KV_FROZEN, "release", "releases are frozen; only rollback is possible");
    if (!f->store_ok) {
        kv_fail(err, KV_STORE_UNAVAILABLE, "store", "receipts cannot be written, so nothing but rollback is possible");
        kv_hint(err, "free disk space in the state directory");
        return KV_STORE_UNAVAILABLE;
    }
    return may_here(r, v, f, err);
}
