/* control_policy.c — the three active policies: loading, activation, and what they are asked. */
#include "controller/release/control_internal.h"
#include "controller/embedded.h"
#include "runtime/residency/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct kv_embedded *kv_control_shipped(enum kv_policy_kind kind)
{
    char name[64];
    snprintf(name, sizeof name, "policies/%s.lua", kv_policy_kind_name(kind));
    for (const struct kv_embedded *e = kv_embedded_table; e->name; e++)
        if (!strcmp(e->name, name)) return e;
    return NULL;
}

double kv_control_mass_limit_of(const struct kv_manifest *m)
{
    double limit = KV_DEFAULT_MAX_OMITTED_MASS;
    for (int32_t i = 0; m && i < m->n_gates; i++)
        if (!strcmp(m->gates[i].metric, "omitted_mass")) limit = m->gates[i].threshold;
    return limit;
}

double kv_control_mass_limit(struct kv_control *c)
{
    pthread_mutex_lock(&c->state);
    double limit = kv_control_mass_limit_of(c->live ? &c->live->r.manifest : NULL);
    pthread_mutex_unlock(&c->state);
    return limit;
}

/* Also at the limit that serves now: a table that is legal at the default only would give way to the baseline's at once. */
static enum kv_status check_here(struct kv_control *c, struct kv_script *p, struct kv_error *err)
{
    struct kv_fallback_table t;
    double limit = kv_control_mass_limit(c);
    enum kv_status st = kv_policy_check(p, err);
    if (st != KV_OK || kv_policy_kind(p) != KV_POLICY_FALLBACK || limit == KV_DEFAULT_MAX_OMITTED_MASS) return st;
    st = kv_policy_fallback_table(p, limit, &t, err);
    if (st != KV_OK) kv_hint(err, "so it is at an omitted mass of %g, the live rollout's limit; at the default of %g it is not", limit, KV_DEFAULT_MAX_OMITTED_MASS);
    return st;
}

enum kv_status kv_control_load_checked(struct kv_control *c, enum kv_policy_kind kind, const char *source, size_t n, struct kv_script **out, struct kv_error *err)
{
    enum kv_status st = kv_policy_load(kind, source, n, out, err);
    if (st != KV_OK) return st;
    st = check_here(c, *out, err);
    if (st == KV_OK) return KV_OK;
    kv_policy_free(*out);
    *out = NULL;
    return st;
}

void kv_control_put_in_place(struct kv_control *c, struct kv_script *p, int64_t activated_us)
{
    enum kv_policy_kind k = kv_policy_kind(p);
    pthread_mutex_lock(&c->admission);
    struct kv_script *old = c->script[k];
    c->script[k] = p;
    pthread_mutex_unlock(&c->admission);
    kv_policy_free(old);
    pthread_mutex_lock(&c->state);
    struct kv_policy_view *v = &c->policy[k];
    v->kind = k;
    snprintf(v->name, sizeof v->name, "%s", kv_policy_name(p));
    snprintf(v->version, sizeof v->version, "%s", kv_policy_version(p));
    v->activated_us = activated_us;
    v->faults = 0;
    c->blamed[k] = 0;
    pthread_mutex_unlock(&c->state);
}

static enum kv_status load_kind(struct kv_control *c, enum kv_policy_kind k, struct kv_error *err)
{
    char *stored = NULL;
    size_t n = 0;
    int64_t activated = 0;
    struct kv_script *p = NULL;
    enum kv_status st = kv_store_load_policy(c->store, k, &stored, &n, &activated, err);
    if (st != KV_OK && st != KV_NOT_FOUND) return st;
    const struct kv_embedded *ours = kv_control_shipped(k);
    st = stored ? kv_control_load_checked(c, k, stored, n, &p, err) : KV_NOT_FOUND;
    if (stored && st != KV_OK) kv_control_note(c, KV_EVENT_LOG, 0, "the stored %s policy is refused (%s); the shipped one is used", kv_policy_kind_name(k), err ? err->message : "");
    if (st != KV_OK) st = ours ? kv_control_load_checked(c, k, ours->data, ours->size, &p, err) : kv_fail(err, KV_NOT_FOUND, kv_policy_kind_name(k), "no %s policy is built in", kv_policy_kind_name(k));
    size_t m = 0;
    const char *text = p ? kv_policy_source(p, &m) : "";
    bool same = stored && n == m && !memcmp(stored, text, n);
    if (st == KV_OK && !same) {
        activated = kv_control_realtime(c);
        st = kv_store_put_policy(c->store, p, "start", activated, err);
    }
    free(stored);
    if (st == KV_OK) kv_control_put_in_place(c, p, activated);
    else kv_policy_free(p);
    return st;
}

enum kv_status kv_control_load_policies(struct kv_control *c, struct kv_error *err)
{
    enum kv_status st = KV_OK;
    for (int k = 0; k < KV_POLICY_KINDS && st == KV_OK; k++) st = load_kind(c, (enum kv_policy_kind)k, err);
    return st;
}

/* Whoever may use the script calls this. A call that was killed while others had the processor is nobody's fault. */
static void blame(struct kv_control *c, enum kv_policy_kind k)
{
    bool preempted;
    kv_policy_dead(c->script[k], &preempted);
    pthread_mutex_lock(&c->state);
    c->policy[k].faults++;
    if (!preempted) c->blamed[k]++;
    pthread_mutex_unlock(&c->state);
}

static void count_fault(struct kv_control *c, enum kv_policy_kind k)
{
    blame(c, k);
    kv_control_note(c, KV_EVENT_POLICY, 0, "%s policy fault", kv_policy_kind_name(k));
}

void kv_control_set_gate(struct kv_control *c)
{
    double limit = kv_control_mass_limit(c);
    struct kv_error err;
    enum kv_status st = kv_policy_fallback_table(c->script[KV_POLICY_FALLBACK], limit, &c->fallback, &err);
    if (st != KV_OK) { /* it passed at activation with another limit; the baseline's table is in place now */
        struct kv_decision d = {.at_us = kv_control_realtime(c), .kind = KV_POLICY_FALLBACK, .status = st, .action = "baseline table"};
        snprintf(d.version, sizeof d.version, "%s", kv_policy_version(c->script[KV_POLICY_FALLBACK]));
        snprintf(d.reason, sizeof d.reason, "%.150s", err.message);
        kv_store_put_decision(c->store, &d, NULL);
        count_fault(c, KV_POLICY_FALLBACK);
    }
    c->port.set_fallback(c->port.ctx, &c->fallback, limit);
}

void kv_control_policies(struct kv_control *c, struct kv_policy_view out[KV_POLICY_KINDS])
{
    pthread_mutex_lock(&c->state);
    memcpy(out, c->policy, sizeof c->policy);
    pthread_mutex_unlock(&c->state);
}

enum kv_status kv_control_policy_source(struct kv_control *c, enum kv_policy_kind kind, char **source, size_t *n)
{
    pthread_mutex_lock(&c->admission);
    const char *text = kv_policy_source(c->script[kind], n);
    *source = malloc(*n + 1);
    if (*source) memcpy(*source, text, *n + 1);
    pthread_mutex_unlock(&c->admission);
    return *source ? KV_OK : KV_OUT_OF_MEMORY;
}

void kv_control_admission(struct kv_control *c, const struct kv_admission_request *r, const struct kv_admission_credits *k, struct kv_admission_answer *out)
{
    struct kv_error err;
    pthread_mutex_lock(&c->state);
    uint64_t candidate = c->installed.candidate;
    pthread_mutex_unlock(&c->state);
    struct kv_fault_marks faults = kv_faults_match(c->config.faults, r->tenant, NULL, candidate);
    bool injected = kv_fault_strikes(&faults, KV_FAULT_policy_fault);
    pthread_mutex_lock(&c->admission);
    enum kv_status st = injected ? kv_fail(&err, KV_POLICY_FAULT, "policy", "a fault was injected") : kv_policy_admission(c->script[KV_POLICY_ADMISSION], r, k, out, &err);
    if (injected) kv_admission_baseline(r, k, out);
    struct kv_kept_admission *kept = &c->kept[c->n_kept++ % KV_REPLAY_ADMISSIONS];
    *kept = (struct kv_kept_admission){.r = *r, .credits = *k, .was = out->action};
    snprintf(kept->tenant, sizeof kept->tenant, "%s", r->tenant ? r->tenant : "");
    snprintf(kept->class, sizeof kept->class, "%s", r->class ? r->class : "");
    if (st != KV_OK && !injected) blame(c, KV_POLICY_ADMISSION);
    pthread_mutex_unlock(&c->admission);
    if (st == KV_OK) return;
    struct kv_receipt x;
    kv_receipt_init(&x, KV_ROW_POLICY_FAULT, kv_control_realtime(c));
    x.reason = st;
    x.contract = x.published = r->contract;
    snprintf(x.tenant, sizeof x.tenant, "%s", r->tenant ? r->tenant : "");
    snprintf(x.detail, sizeof x.detail, "admission policy: %.76s", err.message);
    kv_store_post(c->store, &x);
}

/* ---------------------------------------------------------------- release decisions */

/* A decision is recorded when it differs from the last one of this step, and always when it moves something. */
static void record_decision(struct kv_control *c, const struct kv_release_question *q, const struct kv_release_answer *a, enum kv_status st, const struct kv_error *err)
{
    const struct kv_rollout *r = q->rollout;
    struct kv_decision d = {.at_us = kv_control_realtime(c), .rollout = r->id, .epoch = r->epoch, .kind = KV_POLICY_RELEASE, .status = st};
    snprintf(d.version, sizeof d.version, "%s", kv_policy_version(c->script[KV_POLICY_RELEASE]));
    snprintf(d.action, sizeof d.action, "%s", kv_release_action_name(a->action));
    snprintf(d.reason, sizeof d.reason, "%.150s", st == KV_OK ? a->reason : err->message);
    char key[64];
    snprintf(key, sizeof key, "%.20s %.30s", d.action, kv_status_name(st));
    bool again = !strcmp(key, c->last_decision);
    if (st != KV_OK) (again ? blame : count_fault)(c, KV_POLICY_RELEASE); /* told once, counted every time */
    if (again) return;
    char *input = kv_replay_question(q);
    d.input = input;
    if (kv_store_put_decision(c->store, &d, NULL) == KV_OK) snprintf(c->last_decision, sizeof c->last_decision, "%s", key);
    free(input);
}

static void act(struct kv_control *c, const struct kv_rollout *r, const struct kv_release_answer *a)
{
    char actor[64];
    struct kv_error err;
    snprintf(actor, sizeof actor, "policy:%.50s", kv_policy_name(c->script[KV_POLICY_RELEASE]));
    if (a->action == KV_RELEASE_ROLLBACK) {
        kv_control_fall_back(c, r->id, KV_POLICY_ROLLBACK, a->reason[0] ? a->reason : "the release policy rolled back", actor, NULL);
        kv_control_record_pending(c);
        return;
    }
    enum kv_stage to;
    int32_t step;
    double fraction;
    if (a->action != KV_RELEASE_ADVANCE || !kv_release_next(r, &to, &step, &fraction)) return;
    enum kv_status st = kv_control_advance(c, to, step, fraction, false, a->reason[0] ? a->reason : "every gate passed", actor, &err);
    if (st != KV_OK) kv_control_note(c, KV_EVENT_LOG, r->id, "advance refused: %s", err.message);
}

void kv_control_ask_release(struct kv_control *c)
{
    struct kv_rollout *r = malloc(sizeof *r);
    struct kv_gate_result g[KV_MAX_GATES];
    struct kv_release_facts f;
    struct kv_error ignored;
    enum kv_stage to;
    int32_t n = 0, step;
    double fraction;
    pthread_mutex_lock(&c->state);
    struct entry *e = c->live;
    bool ask = e && r;
    if (ask) {
        *r = e->r;
        n = e->n_gates;
        memcpy(g, e->gates, sizeof *g * (size_t)n);
        kv_control_facts(c, e, &f);
    }
    pthread_mutex_unlock(&c->state);
    if (ask && !r->paused && !f.frozen && !f.latched && f.store_ok && kv_release_next(r, &to, &step, &fraction)) {
        f.gates = g;
        double seconds = (double)(f.now_us - r->stage_since_us) / 1e6;
        const struct kv_step *s = r->step >= 0 ? &r->manifest.steps[r->step] : NULL;
        struct kv_release_question q = {.rollout = r, .gates = g, .n_gates = n, .seconds_in_step = seconds};
        q.wait_over = !s || ((r->waited || seconds >= s->min_seconds) && f.samples >= s->min_samples);
        struct kv_release_answer a;
        struct kv_error err = {0};
        enum kv_status st = kv_policy_release(c->script[KV_POLICY_RELEASE], &q, &a, &err);
        record_decision(c, &q, &a, st, &err);
        /* The verb's own rules have the last word, the policy's ADVANCE is only a proposal. */
        if (st == KV_OK && (a.action != KV_RELEASE_ADVANCE || kv_release_may(r, KV_VERB_advance, &f, &ignored) == KV_OK)) act(c, r, &a);
    }
    free(r);
}
