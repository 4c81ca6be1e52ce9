/* control_evidence.c — evidence beyond the ticks: held-out prompts, samples kept on disk, gates tried on them without effect. */
#include "controller/release/control_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- held-out prompts */

bool kv_control_quality_wanted(struct kv_control *c, struct kv_quality_task *out)
{
    bool latched = c->port.word(c->port.ctx).latched, open = false;
    pthread_mutex_lock(&c->state);
    const struct entry *e = c->live;
    if (e && !latched && e->r.stage != KV_STAGE_OFF && c->installed.candidate == e->r.id) {
        *out = (struct kv_quality_task){e->r.id, c->installed.epoch, e->r.manifest.contract};
        for (int32_t i = 0; i < e->n_gates; i++)
            if (!strcmp(e->gates[i].metric, "quality_drop") && (e->gates[i].verdict == KV_NO_DATA || e->gates[i].verdict == KV_INCONCLUSIVE)) open = true;
    }
    pthread_mutex_unlock(&c->state);
    return open;
}

void kv_control_quality(struct kv_control *c, const struct kv_quality_task *t, double baseline, double candidate)
{
    pthread_mutex_lock(&c->evidence);
    pthread_mutex_lock(&c->state);
    bool live = c->live && c->live->r.id == t->rollout && c->installed.epoch == t->epoch;
    enum kv_stage stage = live ? c->live->r.stage : KV_STAGE_OFF;
    uint64_t epoch = live ? c->live->r.epoch : 0;
    pthread_mutex_unlock(&c->state);
    if (live && c->gates) {
        kv_gates_quality(c->gates, baseline, candidate);
        struct kv_sample_record r = {.at_us = kv_control_realtime(c), .epoch = epoch, .a = baseline, .b = candidate, .layer = -1, .kv_head = -1,
                                     .kind = KV_SAMPLE_QUALITY, .arm = KV_ARM_CANDIDATE, .stage = (uint8_t)stage};
        kv_samples_add(c->samples_kept, &r);
    }
    pthread_mutex_unlock(&c->evidence);
}

/* ---------------------------------------------------------------- samples on disk */

void kv_control_keep_samples(struct kv_control *c, uint64_t rollout)
{
    struct kv_error err;
    struct kv_samples *before, *now = NULL;
    if (kv_samples_open(kv_store_dir(c->store), rollout, &now, &err) != KV_OK) kv_control_note(c, KV_EVENT_LOG, rollout, "samples are not kept: %.150s", err.message);
    pthread_mutex_lock(&c->evidence);
    before = c->samples_kept;
    c->samples_kept = now;
    pthread_mutex_unlock(&c->evidence);
    kv_samples_close(before);
    c->loss_told = false;
}

void kv_control_write_samples(struct kv_control *c)
{
    kv_samples_flush(c->samples_kept);
    if (!c->loss_told && kv_samples_lost(c->samples_kept)) {
        c->loss_told = true;
        kv_control_note(c, KV_EVENT_LOG, 0, "samples are being lost: the state folder cannot be written");
    }
}

void kv_control_keep_sample(struct kv_control *c, const struct kv_sample *s, enum kv_arm arm, enum kv_stage stage, uint64_t epoch)
{
    bool unit = s->kind == KV_SAMPLE_UNIT;
    if (arm == KV_ARM_OUTSIDE || !(unit || s->kind == KV_SAMPLE_TOKEN || s->kind == KV_SAMPLE_STALL)) return;
    struct kv_sample_record r = {.at_us = kv_control_realtime(c), .request = s->request, .epoch = epoch, .a = unit ? s->omitted_mass : s->token_us,
                                 .b = unit ? s->output_error_relative : 0, .position = (int32_t)s->position, .rows = s->rows_selected, .rows_total = s->rows_total,
                                 .layer = (int16_t)s->layer, .kv_head = (int16_t)s->kv_head, .kind = (uint8_t)s->kind, .arm = (uint8_t)arm, .stage = (uint8_t)stage,
                                 .exact_equal = s->exact_equal, .bound_holds = s->bound_holds, .shadow = s->shadow};
    kv_samples_add(c->samples_kept, &r);
}

enum kv_status kv_control_samples(struct kv_control *c, uint64_t rollout, struct kv_sample_record **out, size_t *n, uint64_t *written, struct kv_error *err)
{
    pthread_mutex_lock(&c->state);
    bool known = kv_control_entry(c, rollout) != NULL;
    pthread_mutex_unlock(&c->state);
    if (!known) return kv_fail(err, KV_NOT_FOUND, "rollout", "there is no such rollout");
    kv_control_begin(c); /* so that no record is read half written */
    kv_samples_flush(c->samples_kept);
    enum kv_status st = kv_samples_read(kv_store_dir(c->store), rollout, out, n, written, err);
    kv_control_end(c);
    return st;
}

/* ---------------------------------------------------------------- gates tried without effect */

static void replay(struct kv_gates *g, const struct kv_sample_record *r)
{
    if (r->kind == KV_SAMPLE_QUALITY) {
        kv_gates_quality(g, r->a, r->b);
        return;
    }
    struct kv_sample s = {.kind = (enum kv_sample_kind)r->kind, .request = r->request, .layer = r->layer, .kv_head = r->kv_head, .position = r->position,
                          .rows_selected = r->rows, .rows_total = r->rows_total, .exact_equal = r->exact_equal, .bound_holds = r->bound_holds, .shadow = r->shadow, .omitted_mass = r->a, .output_error_relative = r->b, .token_us = r->a};
    kv_gates_sample(g, &s, (enum kv_arm)r->arm);
}

enum kv_status kv_control_dry_run(struct kv_control *c, uint64_t rollout, struct kv_gate_spec *specs, int32_t n_specs, struct kv_dry_run *out, struct kv_error *err)
{
    struct kv_sample_record *r = NULL;
    struct kv_gates *g = NULL;
    size_t n = 0, first;
    uint64_t written = 0;
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&c->state);
    const struct entry *e = rollout ? kv_control_entry(c, rollout) : c->live ? c->live : c->n_rollouts ? c->rollout[c->n_rollouts - 1] : NULL;
    enum kv_contract contract = e ? e->r.manifest.contract : KV_EXACT;
    out->rollout = e ? e->r.id : 0;
    out->stage = e ? e->r.stage : KV_STAGE_OFF;
    pthread_mutex_unlock(&c->state);
    if (!e) return kv_fail(err, KV_NOT_FOUND, "rollout", "there is no such rollout");
    enum kv_status st = kv_gates_complete(contract, specs, &n_specs, err);
    if (st == KV_OK) st = kv_control_samples(c, out->rollout, &r, &n, &written, err);
    if (st != KV_OK) return st;
    kv_control_begin(c);
    pthread_mutex_lock(&c->state);
    bool live = c->live && c->live->r.id == out->rollout;
    pthread_mutex_unlock(&c->state);
    bool all = !live || !kv_samples_lost(c->samples_kept);
    /* What the live gates know besides samples — counters, the order of windows — the tried ones know too. */
    pthread_mutex_lock(&c->evidence);
    st = live && c->gates ? kv_gates_like(c->gates, specs, n_specs, &g) : kv_gates_create(specs, n_specs, out->rollout, &g);
    pthread_mutex_unlock(&c->evidence);
    kv_control_end(c);
    if (st != KV_OK) return free(r), kv_fail(err, KV_OUT_OF_MEMORY, "gates", "memory could not be had");
    for (first = n; first && r[first - 1].epoch == r[n - 1].epoch;) first--; /* the last step alone, as the gates themselves */
    out->samples = n - first;
    out->complete = all && (first > 0 || written <= n);
    if (n) out->stage = (enum kv_stage)r[n - 1].stage;
    for (size_t i = first; i < n; i++) replay(g, &r[i]);
    out->n_gates = kv_gates_evaluate(g, out->stage, out->gates);
    out->verdict = kv_gates_decide(out->gates, out->n_gates, &out->which);
    kv_gates_destroy(g);
    free(r);
    return KV_OK;
}
