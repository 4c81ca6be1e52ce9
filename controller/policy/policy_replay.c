/* policy_replay.c — see policy_replay.h. */
#include "controller/policy/policy_replay.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void clear(struct kv_replay *out)
{
    struct kv_job *job = out->job;
    memset(out, 0, sizeof *out);
    out->job = job;
}

static struct kv_replay_change *changed(struct kv_replay *out)
{
    out->changed++;
    struct kv_replay_change *c = out->n_changes < KV_REPLAY_LISTED ? &out->change[out->n_changes++] : &out->spare;
    memset(c, 0, sizeof *c);
    return c;
}

/* ---------------------------------------------------------------- release */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static double real(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void copy(const json_t *o, const char *name, char *out, size_t cap)
{
    const char *v = json_string_value(json_object_get(o, name));
    snprintf(out, cap, "%s", v ? v : "");
}

char *kv_replay_question(const struct kv_release_question *q)
{
    const struct kv_rollout *r = q->rollout;
    json_t *gates = json_array(), *moves = json_array();
    for (int32_t i = 0; i < q->n_gates; i++) {
        const struct kv_gate_result *g = &q->gates[i];
        json_array_append_new(gates, json_pack("{s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:I, s:I, s:s}", "metric", g->metric, "verdict", kv_verdict_name(g->verdict), "judged", (int)g->judged,
                                               "value", number(g->value), "lower", number(g->lower), "upper", number(g->upper), "threshold", number(g->threshold), "n", (json_int_t)g->n,
                                               "min_n", (json_int_t)g->min_n, "detail", g->detail));
    }
    for (int32_t i = 0; i < r->n_transitions; i++) {
        const struct kv_transition *t = &r->transitions[i];
        json_array_append_new(moves, json_pack("{s:s, s:s, s:I}", "from", kv_stage_name(t->from), "to", kv_stage_name(t->to), "ago_us", (json_int_t)(r->stage_since_us - t->at_us)));
    }
    json_t *o = json_pack("{s:s, s:i, s:i, s:f, s:b, s:f, s:s, s:s, s:o, s:o}", "stage", kv_stage_name(r->stage), "step", (int)r->step, "steps", (int)r->manifest.n_steps, "fraction",
                          r->fraction, "wait_over", (int)q->wait_over, "seconds", q->seconds_in_step, "contract", r->manifest.contract == KV_EXACT ? "exact" : "approximate", "pipeline",
                          r->manifest.pipeline->name, "gates", gates, "transitions", moves);
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    return text;
}

static bool read_gate(const json_t *o, struct kv_gate_result *g)
{
    char verdict[24];
    memset(g, 0, sizeof *g);
    copy(o, "metric", g->metric, sizeof g->metric);
    copy(o, "verdict", verdict, sizeof verdict);
    copy(o, "detail", g->detail, sizeof g->detail);
    int v = 0;
    while (v < KV_VERDICTS && strcmp(kv_verdict_name((enum kv_verdict)v), verdict)) v++;
    g->verdict = (enum kv_verdict)v;
    g->judged = json_is_true(json_object_get(o, "judged"));
    g->value = real(o, "value");
    g->lower = real(o, "lower");
    g->upper = real(o, "upper");
    g->threshold = real(o, "threshold");
    g->n = (uint64_t)json_integer_value(json_object_get(o, "n"));
    g->min_n = (uint64_t)json_integer_value(json_object_get(o, "min_n"));
    return v < KV_VERDICTS;
}

static bool read_rollout(const json_t *o, struct kv_rollout *r)
{
    char name[64];
    size_t i;
    json_t *v;
    memset(r, 0, sizeof *r);
    copy(o, "stage", name, sizeof name);
    if (!kv_stage_from_name(name, &r->stage)) return false;
    copy(o, "pipeline", name, sizeof name);
    r->manifest.pipeline = kv_pipeline_find(name);
    copy(o, "contract", name, sizeof name);
    r->manifest.contract = strcmp(name, "exact") ? KV_APPROXIMATE : KV_EXACT;
    r->step = (int32_t)json_integer_value(json_object_get(o, "step"));
    r->manifest.n_steps = (int32_t)json_integer_value(json_object_get(o, "steps"));
    r->fraction = real(o, "fraction");
    json_t *list = json_object_get(o, "transitions");
    json_array_foreach(list, i, v) {
        if (i == KV_MAX_TRANSITIONS) break;
        struct kv_transition *t = &r->transitions[r->n_transitions++];
        copy(v, "from", name, sizeof name);
        if (!kv_stage_from_name(name, &t->from)) return false;
        copy(v, "to", name, sizeof name);
        if (!kv_stage_from_name(name, &t->to)) return false;
        t->at_us = -json_integer_value(json_object_get(v, "ago_us"));
    }
    return r->manifest.pipeline != NULL;
}

static bool ask_again(struct kv_script *p, const struct kv_recorded_decision *d, struct kv_rollout *r, struct kv_replay *out)
{
    struct kv_gate_result g[KV_MAX_GATES];
    struct kv_release_answer a;
    struct kv_error err = {0};
    json_t *o = json_loads(d->input, 0, NULL), *list = json_object_get(o, "gates");
    bool ok = read_rollout(o, r) && json_array_size(list) <= KV_MAX_GATES;
    struct kv_release_question q = {.rollout = r, .gates = g, .seconds_in_step = real(o, "seconds"), .wait_over = json_is_true(json_object_get(o, "wait_over"))};
    for (size_t i = 0; ok && i < json_array_size(list); i++) ok = read_gate(json_array_get(list, i), &g[q.n_gates++]);
    json_decref(o);
    if (!ok) return false;
    enum kv_status st = kv_policy_release(p, &q, &a, &err);
    const char *now = st == KV_OK ? kv_release_action_name(a.action) : kv_status_name(st), *was = d->status == KV_OK ? d->action : kv_status_name(d->status);
    out->asked++;
    out->faults += st != KV_OK;
    if (!strcmp(now, was)) return true;
    struct kv_replay_change *c = changed(out);
    c->receipt = d->receipt;
    snprintf(c->was, sizeof c->was, "%s", was);
    snprintf(c->now, sizeof c->now, "%s", now);
    snprintf(c->where, sizeof c->where, "r_%06llu at %s %.4g %%: %.110s", (unsigned long long)d->rollout, kv_stage_name(r->stage), 100 * r->fraction, st == KV_OK ? a.reason : err.message);
    return true;
}

void kv_replay_release(struct kv_script *p, const struct kv_recorded_decision *d, int32_t n, struct kv_replay *out)
{
    struct kv_rollout *r = malloc(sizeof *r);
    clear(out);
    for (int32_t i = 0; i < n; i++) {
        if (!r || !d[i].input || !ask_again(p, &d[i], r, out)) out->unreadable++;
        kv_job_at(out->job, (uint64_t)i + 1, (uint64_t)n);
    }
    free(r);
}

/* ---------------------------------------------------------------- admission */

static const char *admission_name(enum kv_admission a)
{
    static const char *const names[KV_ADMISSIONS] = {"ADMIT_TRANSFER", "FALLBACK DEADLINE", "FALLBACK CREDIT_PRESSURE"};
    return (unsigned)a < KV_ADMISSIONS ? names[a] : "UNKNOWN";
}

void kv_replay_admission(struct kv_script *p, struct kv_kept_admission *kept, int32_t n, struct kv_replay *out)
{
    clear(out);
    for (int32_t i = 0; i < n; i++) {
        struct kv_kept_admission *k = &kept[i];
        kv_job_at(out->job, (uint64_t)i + 1, (uint64_t)n);
        struct kv_admission_answer a;
        struct kv_error err = {0};
        k->r.tenant = k->tenant;
        k->r.class = k->class;
        enum kv_status st = kv_policy_admission(p, &k->r, &k->credits, &a, &err);
        const char *now = st == KV_OK ? admission_name(a.action) : kv_status_name(st);
        out->asked++;
        out->faults += st != KV_OK;
        if (!strcmp(now, admission_name(k->was))) continue;
        struct kv_replay_change *c = changed(out);
        snprintf(c->was, sizeof c->was, "%s", admission_name(k->was));
        snprintf(c->now, sizeof c->now, "%s", now);
        snprintf(c->where, sizeof c->where, "%s, %d prompt tokens, slack %.4g ms, estimate %.4g ms, %llu bytes", k->tenant, (int)k->r.prompt_tokens, k->r.slack_ms, k->r.estimate_ms,
                 (unsigned long long)k->r.backend_bytes);
    }
}

/* ---------------------------------------------------------------- fallback */

void kv_replay_fallback(const struct kv_fallback_table *was, const struct kv_fallback_table *now, struct kv_replay *out)
{
    clear(out);
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        out->asked++;
        if (was->action[i] == now->action[i]) continue;
        struct kv_fallback_state s;
        struct kv_replay_change *c = changed(out);
        kv_fallback_state_of(i, &s);
        snprintf(c->was, sizeof c->was, "%s", kv_fallback_action_name((enum kv_fallback_action)was->action[i]));
        snprintf(c->now, sizeof c->now, "%s", kv_fallback_action_name((enum kv_fallback_action)now->action[i]));
        snprintf(c->where, sizeof c->where, "%s%s%s%s%s%s%s%s", s.post_widen ? "post_widen" : "initial", s.force_exact ? " force_exact" : "", s.uncertain ? " uncertain" : "",
                 s.can_widen ? " can_widen" : "", s.fetch_fits ? " fetch_fits" : "", s.recompute_fits ? " recompute_fits" : "", s.retryable ? " retryable" : "",
                 s.approximation_allowed ? " approximation_allowed" : "");
    }
}
