/* control_view.c — assignment, measurements, and the snapshots readers copy. */
#include "controller/release/control_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- assignment */

void kv_control_assign(struct kv_control *c, const struct kv_cohort_key *k, struct kv_assignment *out)
{
    memset(out, 0, sizeof *out);
    bool latched = c->port.word(c->port.ctx).latched;
    pthread_mutex_lock(&c->state);
    const struct kv_rollout *r = c->live && !latched ? &c->live->r : NULL;
    out->epoch = c->installed.epoch;
    out->stage = latched ? KV_STAGE_EXACT_BASELINE : r ? r->stage : KV_STAGE_OFF;
    if (r && r->stage != KV_STAGE_OFF) out->arm = kv_cohort_arm(&r->manifest.cohort, r->manifest.digest, r->manifest.contract, r->fraction, k);
    bool served = out->arm == KV_ARM_CANDIDATE && c->installed.candidate == r->id;
    if (served) out->candidate = r->id;
    strncpy(out->pipeline, served ? r->manifest.pipeline->name : "resident", sizeof out->pipeline - 1);
    pthread_mutex_unlock(&c->state);
}

enum kv_status kv_control_assign_candidate(struct kv_control *c, const char *pipeline, enum kv_contract contract, struct kv_assignment *out, struct kv_error *err)
{
    bool latched = c->port.word(c->port.ctx).latched;
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&c->state);
    const struct kv_rollout *r = c->live && !latched && c->installed.candidate == c->live->r.id ? &c->live->r : NULL;
    bool named = r && !strcmp(r->manifest.pipeline->name, pipeline), serves = named && (r->stage == KV_STAGE_CANARY || r->stage == KV_STAGE_RAMP || r->stage == KV_STAGE_FULL);
    bool looser = serves && contract == KV_EXACT && r->manifest.contract != KV_EXACT;
    if (serves && !looser) {
        *out = (struct kv_assignment){.arm = KV_ARM_CANDIDATE, .candidate = r->id, .epoch = c->installed.epoch, .stage = r->stage};
        snprintf(out->pipeline, sizeof out->pipeline, "%s", pipeline);
    }
    pthread_mutex_unlock(&c->state);
    if (looser) {
        kv_fail(err, KV_BAD_ARGUMENT, "kvasir.contract", "%s is approximate here, and the request is exact", pipeline);
        kv_hint(err, "ask with the contract approximate");
        return KV_BAD_ARGUMENT;
    }
    if (serves) return KV_OK;
    kv_fail(err, KV_UNSUPPORTED, "kvasir.pipeline", named ? "%s serves nobody yet" : "%s is not what is rolled out", pipeline);
    kv_hint(err, "resident can be asked for, and the pipeline of a rollout at CANARY, RAMP or FULL");
    return KV_UNSUPPORTED;
}

enum kv_stage kv_control_stage_at(struct kv_control *c, uint64_t epoch)
{
    enum kv_stage stage = KV_STAGE_OFF;
    uint64_t latest = 0;
    pthread_mutex_lock(&c->state);
    for (int32_t i = c->n_rollouts - 1; i >= 0 && !latest; i--)
        for (int32_t k = 0; k < c->rollout[i]->r.n_transitions; k++) {
            const struct kv_transition *t = &c->rollout[i]->r.transitions[k];
            if (t->epoch <= epoch && t->epoch > latest) latest = t->epoch, stage = t->to;
        }
    pthread_mutex_unlock(&c->state);
    return stage;
}

void kv_control_started(struct kv_control *c, uint64_t request, enum kv_arm arm)
{
    pthread_mutex_lock(&c->state);
    c->arm[request % ARM_SLOTS].request = request;
    c->arm[request % ARM_SLOTS].arm = arm;
    pthread_mutex_unlock(&c->state);
}

/* ---------------------------------------------------------------- measurements */

/* Which arm a measurement speaks for: the candidate's own, or a request that could have met it. */
static enum kv_arm arm_of(const struct kv_control *c, const struct kv_sample *s, uint64_t live)
{
    if (live && s->candidate == live) return KV_ARM_CANDIDATE;
    if (s->candidate || c->arm[s->request % ARM_SLOTS].request != s->request) return KV_ARM_OUTSIDE;
    return c->arm[s->request % ARM_SLOTS].arm == KV_ARM_CONTROL ? KV_ARM_CONTROL : KV_ARM_OUTSIDE;
}

static void keep(struct live_metrics *m, const struct kv_sample *s)
{
    if (s->kind == KV_SAMPLE_TOKEN) m->token_us[m->tokens++ % TOKEN_RING] = s->token_us;
    if (s->kind == KV_SAMPLE_REQUEST && s->ttft_us > 0) m->ttft_us[m->ttfts++ % TTFT_RING] = s->ttft_us;
    if (s->kind == KV_SAMPLE_STALL) m->stall_us[m->stalls++ % TTFT_RING] = s->token_us;
}

void kv_control_measure(struct kv_control *c)
{
    struct kv_sample batch[256];
    struct kv_engine_stats stats;
    enum kv_arm arm[256];
    for (int rounds = 0; rounds < 64; rounds++) { /* bounded: a busy engine must not hold up the tick */
        size_t n = c->port.samples(c->port.ctx, batch, 256);
        pthread_mutex_lock(&c->state);
        uint64_t live = c->live ? c->live->r.id : 0, epoch = live ? c->live->r.epoch : 0, installed = c->installed.epoch;
        enum kv_stage stage = live ? c->live->r.stage : KV_STAGE_OFF;
        for (size_t i = 0; i < n; i++) {
            arm[i] = batch[i].epoch == installed ? arm_of(c, &batch[i], live) : KV_ARM_OUTSIDE; /* what the step before has left is no evidence of this one */
            if (arm[i] == KV_ARM_CANDIDATE && (batch[i].kind == KV_SAMPLE_UNIT || batch[i].kind == KV_SAMPLE_TOKEN)) c->samples++;
        }
        pthread_mutex_unlock(&c->state);
        for (size_t i = 0; i < n; i++) {
            keep(&c->metrics, &batch[i]);
            if (!c->gates || !live) continue;
            kv_gates_sample(c->gates, &batch[i], arm[i]);
            kv_control_keep_sample(c, &batch[i], arm[i], stage, epoch);
        }
        if (n < 256) break;
    }
    c->port.stats(c->port.ctx, &stats);
    if (c->gates) {
        kv_gates_counters(c->gates, &stats);
        kv_gates_now(c->gates, kv_control_realtime(c));
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nearest-rank quantiles of the last values of a ring; NAN without any. */
static void quantiles(const double *ring, uint64_t n, size_t cap, double *p50, double *p99)
{
    double sorted[TOKEN_RING];
    size_t have = n < cap ? (size_t)n : cap;
    *p50 = *p99 = NAN;
    if (!have) return;
    memcpy(sorted, ring, have * sizeof *ring);
    qsort(sorted, have, sizeof *sorted, ascending);
    *p50 = sorted[(have - 1) / 2];
    *p99 = sorted[(have * 99 + 99) / 100 - 1];
}

static double mean(const double *ring, uint64_t n, size_t cap)
{
    size_t have = n < cap ? (size_t)n : cap;
    double sum = 0;
    for (size_t i = 0; i < have; i++) sum += ring[i];
    return have ? sum / (double)have : NAN;
}

/* ---------------------------------------------------------------- snapshots */

static void show_release(struct kv_control *c, struct kv_status_view *v)
{
    const struct entry *e = c->live;
    v->frozen = c->frozen;
    v->stage = v->latched ? KV_STAGE_EXACT_BASELINE : e ? e->r.stage : KV_STAGE_OFF;
    if (!e) { /* after a rollback the baseline stays on show until another candidate starts */
        const struct kv_rollout *last = c->n_rollouts ? &c->rollout[c->n_rollouts - 1]->r : NULL;
        if (last && last->stage == KV_STAGE_EXACT_BASELINE) v->stage = KV_STAGE_EXACT_BASELINE;
        return;
    }
    v->fraction = e->r.fraction;
    v->rollout = e->r.id;
    memcpy(v->name, e->r.manifest.name, sizeof v->name);
    strncpy(v->pipeline, e->r.manifest.pipeline->name, sizeof v->pipeline - 1);
    v->contract = e->r.manifest.contract;
    for (int32_t i = 0; i < e->n_gates; i++) {
        const struct kv_gate_result *g = &e->gates[i];
        bool exact = e->r.manifest.contract == KV_EXACT;
        if (!strcmp(g->metric, exact ? "exact_mismatches" : "omitted_mass")) v->units = g->n;
        if (strcmp(g->metric, "omitted_mass")) continue;
        v->omitted_mass_mean = g->value;
        v->omitted_mass_upper = g->upper;
    }
}

/* Once a second: rates and quantiles, which need sorting, and a point of history. */
static void show_rates(struct kv_control *c, struct kv_status_view *v, int64_t now)
{
    struct live_metrics *m = &c->metrics;
    double ignored, seconds = (double)(now - m->second_us) / 1e6;
    v->tokens_per_s = (double)(v->engine.published_tokens - m->published) / seconds;
    m->published = v->engine.published_tokens;
    m->second_us = now;
    quantiles(m->token_us, m->tokens, TOKEN_RING, &v->tpot_p50_ms, &v->tpot_p99_ms);
    quantiles(m->ttft_us, m->ttfts, TTFT_RING, &v->ttft_p50_ms, &ignored);
    v->tpot_p50_ms /= 1e3;
    v->tpot_p99_ms /= 1e3;
    v->ttft_p50_ms /= 1e3;
    v->stall_ms = mean(m->stall_us, m->stalls, TTFT_RING) / 1e3;
    c->history[c->n_history++ % KV_HISTORY_POINTS] = (struct kv_history_point){
        .at_us = kv_control_realtime(c), .tokens_per_s = v->tokens_per_s, .tpot_p50_ms = v->tpot_p50_ms, .tpot_p99_ms = v->tpot_p99_ms,
        .omitted_mass = v->omitted_mass_mean, .stage = v->stage};
}

void kv_control_show(struct kv_control *c)
{
    pthread_mutex_lock(&c->evidence);
    struct kv_status_view v = c->shown;
    if (!c->n_history) v.tokens_per_s = 0, v.tpot_p50_ms = v.tpot_p99_ms = v.ttft_p50_ms = v.stall_ms = NAN;
    struct kv_release_word w = c->port.word(c->port.ctx);
    c->port.stats(c->port.ctx, &v.engine);
    kv_store_health(c->store, &v.store);
    v.epoch = w.epoch;
    v.latched = w.latched;
    v.rollout = v.units = 0;
    v.fraction = 0;
    v.name[0] = v.pipeline[0] = 0;
    v.contract = KV_EXACT;
    v.omitted_mass_mean = v.omitted_mass_upper = NAN;
    int64_t now = kv_control_monotonic(c);
    pthread_mutex_lock(&c->state);
    show_release(c, &v);
    if (now - c->metrics.second_us >= 1000000) show_rates(c, &v, now);
    c->shown = v;
    pthread_mutex_unlock(&c->state);
    pthread_mutex_unlock(&c->evidence);
}

void kv_control_status(struct kv_control *c, struct kv_status_view *out)
{
    struct kv_release_word w = c->port.word(c->port.ctx);
    pthread_mutex_lock(&c->state);
    *out = c->shown;
    memcpy(out->rollbacks, c->rollbacks, sizeof c->rollbacks);
    pthread_mutex_unlock(&c->state);
    if (w.latched) out->stage = KV_STAGE_EXACT_BASELINE; /* true at once, not at the next tick */
    out->latched = w.latched;
}

static void view(struct kv_control *c, const struct entry *e, struct kv_rollout_view *out)
{
    struct kv_release_facts f;
    memset(out->verbs, 0, sizeof out->verbs);
    out->r = e->r;
    memcpy(out->gates, e->gates, sizeof out->gates);
    out->n_gates = e->n_gates;
    out->n_verbs = 0;
    kv_control_facts(c, e, &f);
    for (int v = 0; v < KV_VERBS; v++) {
        if (v == KV_VERB_list || v == KV_VERB_show || v == KV_VERB_create || v == KV_VERB_history) continue;
        struct kv_verb_view *x = &out->verbs[out->n_verbs++];
        struct kv_error err = {0};
        x->verb = (enum kv_verb)v;
        x->enabled = kv_release_may(&e->r, x->verb, &f, &err) == KV_OK;
        if (!x->enabled) memcpy(x->why, err.message, sizeof x->why);
    }
}

void kv_control_rollouts(struct kv_control *c, struct kv_rollout_view *out, int32_t *n)
{
    int32_t cap = *n;
    pthread_mutex_lock(&c->state);
    *n = 0;
    for (int32_t i = c->n_rollouts - 1; i >= 0 && *n < cap; i--) view(c, c->rollout[i], &out[(*n)++]);
    pthread_mutex_unlock(&c->state);
}

enum kv_status kv_control_rollout(struct kv_control *c, uint64_t id, struct kv_rollout_view *out, struct kv_error *err)
{
    pthread_mutex_lock(&c->state);
    const struct entry *e = kv_control_entry(c, id);
    if (e) view(c, e, out);
    pthread_mutex_unlock(&c->state);
    return e ? KV_OK : kv_fail(err, KV_NOT_FOUND, "rollout", "there is no such rollout");
}

int32_t kv_control_history(struct kv_control *c, int32_t seconds, struct kv_history_point *out)
{
    pthread_mutex_lock(&c->state);
    uint64_t n = c->n_history < KV_HISTORY_POINTS ? c->n_history : KV_HISTORY_POINTS;
    if (seconds >= 0 && (uint64_t)seconds < n) n = (uint64_t)seconds;
    for (uint64_t i = 0; i < n; i++) out[i] = c->history[(c->n_history - n + i) % KV_HISTORY_POINTS];
    pthread_mutex_unlock(&c->state);
    return (int32_t)n;
}

/* ---------------------------------------------------------------- the real engine */

#define PORT(name, args, call)                                                                                         \
    static name args                                                                                                   \
    {                                                                                                                  \
        call;                                                                                                          \
    }
PORT(enum kv_status port_install, (void *e, const struct kv_candidate *k, bool shadow, uint64_t expected, uint64_t epoch, struct kv_error *err),
     return kv_engine_install(e, k, shadow, expected, epoch, err))
PORT(enum kv_status port_rearm, (void *e, uint64_t epoch, struct kv_error *err), return kv_engine_rearm(e, epoch, err))
PORT(struct kv_release_word port_word, (void *e), return kv_engine_release(e))
PORT(void port_rollback, (void *e, struct kv_rollback *out), kv_engine_rollback(e, out))
PORT(int32_t port_recomputing, (void *e), return kv_engine_recomputing(e))
PORT(void port_fallback, (void *e, const struct kv_fallback_table *t, double max), kv_engine_set_fallback(e, t, max))
PORT(size_t port_samples, (void *e, struct kv_sample *out, size_t cap), return kv_engine_samples(e, out, cap))
PORT(void port_stats, (void *e, struct kv_engine_stats *out), kv_engine_stats(e, out))
#undef PORT

struct kv_release_port kv_release_port_of(struct kv_engine *e)
{
    return (struct kv_release_port){e, port_install, port_rearm, port_word, port_rollback, port_recomputing, port_fallback, port_samples, port_stats, kv_engine_index_share(e)};
}
