/* gates.c — evidence per gate and the verdict it supports. */
#include "controller/release/gates.h"

#include "controller/release/metric_confidence.h"
#include "controller/release/metric_switchback.h"
#include "runtime/nearest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum metric_id {
#define KV_METRIC(name, unit, comparison, logic, stages, contracts, threshold, lowest, highest, min_n, per, help) M_##name,
#include "controller/metrics.def"
#undef KV_METRIC
    FIRST_DRILL,
    BEFORE_DRILLS = FIRST_DRILL - 1,
#define KV_DRILL(name, title) M_drill_##name,
#include "controller/drills.def"
#undef KV_DRILL
    N_METRICS
};
enum { N_DRILLS = N_METRICS - FIRST_DRILL };
static const struct kv_metric metrics[N_METRICS] = {
#define KV_METRIC(name, unit, comparison, logic, stages, contracts, threshold, lowest, highest, min_n, per, help)                                                \
    {#name, unit, comparison, KV_LOGIC_##logic, stages, contracts, threshold, lowest, highest, min_n, per, help},
#include "controller/metrics.def"
#undef KV_METRIC
#define KV_DRILL(name, title) {"drill_" #name, "s", "<=", KV_LOGIC_DRILL, "SCRF", "EA", 86400, 60, 2592000, 1, "check", "age of the last passed drill; " title},
#include "controller/drills.def"
#undef KV_DRILL
};

struct gate {
    enum metric_id metric;
    struct kv_gate_spec spec;
    uint64_t count, n; /* ZERO: events, and units observed */
    uint64_t whole;    /* units that left no row out: they say nothing about what leaving out does */
    struct kv_confidence mean;
    struct kv_switchback ratio;
};
struct kv_gates {
    uint64_t seed;
    struct kv_engine_stats base, now;
    int64_t realtime_us;
    struct {
        int64_t at_us; /* 0: it never ran */
        uint64_t checks, violations;
    } drill[N_DRILLS];
    int32_t n;
    struct gate gate[KV_MAX_GATES];
};

const char *kv_verdict_name(enum kv_verdict v)
{
    static const char *const names[KV_VERDICTS] = {"NO_DATA", "INCONCLUSIVE", "PASS", "FAIL"};
    return (unsigned)v < KV_VERDICTS ? names[v] : "NO_DATA";
}

size_t kv_metric_count(void)
{
    return N_METRICS;
}

const struct kv_metric *kv_metric_at(size_t i)
{
    return i < N_METRICS ? &metrics[i] : NULL;
}

enum kv_status kv_metric_find(const char *name, const struct kv_metric **out, struct kv_error *err)
{
    const struct kv_metric *nearest = &metrics[0];
    for (int i = 0; i < N_METRICS; i++) {
        if (!strcmp(metrics[i].name, name)) return *out = &metrics[i], KV_OK;
        if (kv_name_distance(name, metrics[i].name) < kv_name_distance(name, nearest->name)) nearest = &metrics[i];
    }
    kv_fail(err, KV_UNKNOWN_METRIC, "metric", "no metric is named '%.40s'", name);
    kv_hint(err, "did you mean %s?", nearest->name);
    return KV_UNKNOWN_METRIC;
}

static enum kv_status check_spec(struct kv_gate_spec *s, enum kv_contract exactness, struct kv_error *err)
{
    const struct kv_metric *m;
    enum kv_status st = kv_metric_find(s->metric, &m, err);
    if (st != KV_OK) return st;
    if (!strpbrk(m->contracts, exactness == KV_EXACT ? "eE" : "aA"))
        return kv_fail(err, KV_BAD_ARGUMENT, s->metric, "gate %s has no meaning for this contract", s->metric);
    if (s->threshold != s->threshold) s->threshold = m->threshold;
    if (s->min_n == 0) s->min_n = m->min_n;
    if (s->threshold < m->lowest || s->threshold > m->highest) {
        if (m->lowest == m->highest) kv_fail(err, KV_BAD_ARGUMENT, s->metric, "the threshold of %s must be %g", s->metric, m->lowest);
        else kv_fail(err, KV_BAD_ARGUMENT, s->metric, "the threshold of %s must lie between %g and %g", s->metric, m->lowest, m->highest);
        if (m->lowest == m->highest) kv_hint(err, "%s: none is tolerated, whatever the rollout", m->help);
        else kv_hint(err, "%s", m->help);
        return KV_BAD_ARGUMENT;
    }
    return KV_OK;
}

enum kv_status kv_gates_complete(enum kv_contract exactness, struct kv_gate_spec *specs, int32_t *n, struct kv_error *err)
{
    if (*n < 0 || *n > KV_MAX_GATES) return kv_fail(err, KV_BAD_ARGUMENT, "gates", "a rollout has at most %d gates", KV_MAX_GATES);
    for (int32_t i = 0; i < *n; i++) {
        enum kv_status st = check_spec(&specs[i], exactness, err);
        if (st != KV_OK) return st;
        for (int32_t j = 0; j < i; j++)
            if (!strcmp(specs[i].metric, specs[j].metric)) return kv_fail(err, KV_BAD_ARGUMENT, specs[i].metric, "gate %s is named twice", specs[i].metric);
    }
    for (int k = 0; k < N_METRICS; k++) {
        if (!strchr(metrics[k].contracts, exactness == KV_EXACT ? 'e' : 'a')) continue;
        int32_t i = 0;
        while (i < *n && strcmp(specs[i].metric, metrics[k].name)) i++;
        if (i < *n) continue;
        if (*n == KV_MAX_GATES) return kv_fail(err, KV_BAD_ARGUMENT, "gates", "with the gates every candidate has there are more than %d", KV_MAX_GATES);
        struct kv_gate_spec *s = &specs[(*n)++];
        memset(s, 0, sizeof *s);
        snprintf(s->metric, sizeof s->metric, "%s", metrics[k].name);
        s->threshold = metrics[k].threshold;
        s->min_n = metrics[k].min_n;
    }
    return KV_OK;
}

static void clear_gate(struct kv_gates *g, struct gate *q)
{
    q->count = q->n = q->whole = 0;
    const struct kv_metric *m = &metrics[q->metric];
    double low = q->metric == M_quality_drop ? -1 : 0, high = q->metric == M_exposed_stall_us ? 8 * q->spec.threshold : 1;
    if (m->logic == KV_LOGIC_MEAN) kv_confidence_init(&q->mean, low, high, q->spec.threshold);
    q->mean.fixed = q->metric == M_quality_drop;
    if (m->logic == KV_LOGIC_RATIO) kv_switchback_init(&q->ratio, g->seed, q->spec.threshold);
}

enum kv_status kv_gates_create(const struct kv_gate_spec *specs, int32_t n, uint64_t seed, struct kv_gates **out)
{
    struct kv_gates *g = calloc(1, sizeof *g);
    if (!g) return KV_OUT_OF_MEMORY;
    g->seed = seed;
    g->n = n;
    for (int32_t i = 0; i < n; i++) {
        const struct kv_metric *m;
        if (i >= KV_MAX_GATES || kv_metric_find(specs[i].metric, &m, NULL) != KV_OK) {
            free(g);
            return KV_UNKNOWN_METRIC;
        }
        g->gate[i].metric = (enum metric_id)(m - metrics);
        g->gate[i].spec = specs[i];
        clear_gate(g, &g->gate[i]);
    }
    *out = g;
    return KV_OK;
}

enum kv_status kv_gates_like(const struct kv_gates *g, const struct kv_gate_spec *specs, int32_t n, struct kv_gates **out)
{
    enum kv_status st = kv_gates_create(specs, n, g->seed, out);
    if (st != KV_OK) return st;
    (*out)->base = g->base;
    (*out)->now = g->now;
    (*out)->realtime_us = g->realtime_us;
    memcpy((*out)->drill, g->drill, sizeof g->drill);
    return KV_OK;
}

void kv_gates_destroy(struct kv_gates *g)
{
    free(g);
}

void kv_gates_reset(struct kv_gates *g, const struct kv_engine_stats *stats)
{
    g->base = g->now = *stats;
    g->seed = g->seed * UINT64_C(6364136223846793005) + 1442695040888963407u; /* another order of windows */
    for (int32_t i = 0; i < g->n; i++) clear_gate(g, &g->gate[i]);
}

/* A short context fits into the budget, or is attended whole below the break-even. */
static bool is_whole(enum metric_id m, const struct kv_sample *s)
{
    return (m == M_omitted_mass || m == M_output_error || m == M_bound_violations) && s->rows_total > 0 && s->rows_selected >= s->rows_total && s->omitted_mass == 0;
}

static void unit_sample(struct gate *q, const struct kv_sample *s)
{
    if (is_whole(q->metric, s)) {
        q->whole++;
        q->count += q->metric == M_bound_violations && !s->bound_holds;
        return;
    }
    switch (q->metric) {
    case M_exact_mismatches:
        q->count += !s->exact_equal;
        break;
    case M_bound_violations:
        q->count += !s->bound_holds;
        break;
    case M_omitted_mass:
        kv_confidence_add(&q->mean, s->omitted_mass);
        return;
    case M_output_error:
        kv_confidence_add(&q->mean, s->output_error_relative);
        return;
    case M_allocation_failures:
    case M_illegal_fallbacks:
    case M_tenant_failures:
        break;
    default:
        return;
    }
    q->n++;
}

static bool counts_units(enum metric_id m)
{
    return m == M_allocation_failures || m == M_illegal_fallbacks || m == M_tenant_failures;
}

void kv_gates_sample(struct kv_gates *g, const struct kv_sample *s, enum kv_arm arm)
{
    for (int32_t i = 0; i < g->n; i++) {
        struct gate *q = &g->gate[i];
        switch (s->kind) {
        case KV_SAMPLE_UNIT:
            if (arm == KV_ARM_CANDIDATE) unit_sample(q, s);
            break;
        case KV_SAMPLE_TOKEN:
            if (q->metric == M_tpot_p99_ratio) kv_switchback_add(&q->ratio, arm, s->token_us);
            if (arm == KV_ARM_CANDIDATE && counts_units(q->metric)) q->n++;
            break;
        case KV_SAMPLE_STALL:
            if (arm == KV_ARM_CANDIDATE && q->metric == M_exposed_stall_us) kv_confidence_add(&q->mean, s->token_us);
            break;
        default:
            break;
        }
    }
}

void kv_gates_counters(struct kv_gates *g, const struct kv_engine_stats *stats)
{
    g->now = *stats;
}

void kv_gates_quality(struct kv_gates *g, double baseline, double candidate)
{
    for (int32_t i = 0; i < g->n; i++)
        if (g->gate[i].metric == M_quality_drop) kv_confidence_add(&g->gate[i].mean, baseline - candidate);
}

void kv_gates_drill(struct kv_gates *g, size_t drill, int64_t at_us, uint64_t checks, uint64_t violations)
{
    if (drill >= N_DRILLS) return;
    g->drill[drill].at_us = at_us;
    g->drill[drill].checks = checks;
    g->drill[drill].violations = violations;
}

void kv_gates_now(struct kv_gates *g, int64_t realtime_us)
{
    g->realtime_us = realtime_us;
}

/* Events the engine counts itself; sampled units may miss some, so the larger of both counts. */
static uint64_t engine_count(const struct kv_gates *g, enum metric_id m)
{
    switch (m) {
    case M_exact_mismatches:
        return g->now.exact_mismatches - g->base.exact_mismatches;
    case M_allocation_failures:
        return g->now.allocation_failures - g->base.allocation_failures;
    case M_illegal_fallbacks:
        return g->now.illegal_fallbacks - g->base.illegal_fallbacks;
    case M_tenant_failures:
        return g->now.tenant_failures - g->base.tenant_failures;
    default:
        return 0;
    }
}

/* After what else the gate says. */
static void tell_whole(const struct gate *q, struct kv_gate_result *r)
{
    size_t n = strlen(r->detail);
    if (q->whole) snprintf(r->detail + n, sizeof r->detail - n, "; %llu more left no row out and do not count", (unsigned long long)q->whole);
}

static void judge_zero(const struct kv_gates *g, const struct gate *q, struct kv_gate_result *r)
{
    uint64_t counted = engine_count(g, q->metric), events = counted > q->count ? counted : q->count;
    r->n = q->n;
    r->value = r->lower = (double)events;
    if (events > q->spec.threshold) {
        r->verdict = KV_FAILED;
        snprintf(r->detail, sizeof r->detail, "%llu counted, %g allowed", (unsigned long long)events, q->spec.threshold);
    } else if (q->n == 0) {
        r->verdict = KV_NO_DATA;
        snprintf(r->detail, sizeof r->detail, "nothing of the candidate was observed");
        tell_whole(q, r);
    } else if (q->n < q->spec.min_n) {
        r->verdict = KV_INCONCLUSIVE;
        snprintf(r->detail, sizeof r->detail, "%llu of %llu %ss observed", (unsigned long long)q->n, (unsigned long long)q->spec.min_n, metrics[q->metric].per);
        tell_whole(q, r);
    } else {
        r->verdict = KV_PASS;
        snprintf(r->detail, sizeof r->detail, "none in %llu observed: rate under %.2g at 95 %%", (unsigned long long)q->n, 3.0 / (double)q->n);
    }
}

static void judge_mean(const struct gate *q, struct kv_gate_result *r)
{
    const struct kv_confidence *c = &q->mean;
    r->n = c->n;
    if (c->n == 0) {
        snprintf(r->detail, sizeof r->detail, "no %s was measured", metrics[q->metric].per);
        tell_whole(q, r);
        return;
    }
    r->value = kv_confidence_mean(c);
    kv_confidence_interval(c, &r->lower, &r->upper);
    bool enough = c->n >= q->spec.min_n;
    if (kv_confidence_alarm(c)) {
        r->verdict = KV_FAILED;
        snprintf(r->detail, sizeof r->detail, "the mean lies over the threshold");
    } else if (enough && kv_confidence_under(c)) {
        r->verdict = KV_PASS;
        snprintf(r->detail, sizeof r->detail, "upper confidence bound under the threshold");
    } else {
        r->verdict = KV_INCONCLUSIVE;
        if (enough) snprintf(r->detail, sizeof r->detail, "the threshold lies inside the confidence interval");
        else snprintf(r->detail, sizeof r->detail, "%llu of %llu %ss measured", (unsigned long long)c->n, (unsigned long long)q->spec.min_n, metrics[q->metric].per);
        tell_whole(q, r);
    }
}

static void judge_ratio(const struct gate *q, struct kv_gate_result *r)
{
    const struct kv_switchback *s = &q->ratio;
    r->n = s->n[0] < s->n[1] ? s->n[0] : s->n[1];
    if (r->n == 0) {
        snprintf(r->detail, sizeof r->detail, "no token of the %s arm was measured", s->n[1] ? "control" : "candidate");
        return;
    }
    r->value = kv_switchback_p99(s, KV_ARM_CANDIDATE) / kv_switchback_p99(s, KV_ARM_CONTROL);
    bool enough = r->n >= q->spec.min_n;
    r->verdict = enough && kv_switchback_alarm(s) ? KV_FAILED : enough && kv_switchback_under(s) ? KV_PASS : KV_INCONCLUSIVE;
    if (!enough) snprintf(r->detail, sizeof r->detail, "%llu of %llu tokens in the smaller arm", (unsigned long long)r->n, (unsigned long long)q->spec.min_n);
    else snprintf(r->detail, sizeof r->detail, "candidate slower than %g times control in %llu of %llu window pairs; p99 at least %.3g times", s->threshold,
                  (unsigned long long)s->over, (unsigned long long)s->pairs, kv_switchback_p99_lower(s));
}

static void judge_drill(const struct kv_gates *g, const struct gate *q, struct kv_gate_result *r)
{
    size_t i = (size_t)q->metric - FIRST_DRILL;
    if (!g->drill[i].at_us) {
        snprintf(r->detail, sizeof r->detail, "not run for this candidate yet: kvasir rollout drill %s", metrics[q->metric].name + strlen("drill_"));
        return;
    }
    r->n = g->drill[i].checks;
    r->value = r->lower = r->upper = fmax(0, (double)(g->realtime_us - g->drill[i].at_us) / 1e6);
    bool failed = g->drill[i].violations > 0, fresh = r->value <= q->spec.threshold && r->n >= q->spec.min_n;
    r->verdict = failed ? KV_FAILED : fresh ? KV_PASS : KV_INCONCLUSIVE;
    if (failed) snprintf(r->detail, sizeof r->detail, "%llu of %llu checks did not hold", (unsigned long long)g->drill[i].violations, (unsigned long long)r->n);
    else snprintf(r->detail, sizeof r->detail, "passed %llu checks %.0f s ago%s", (unsigned long long)r->n, r->value, fresh ? "" : "; run it again");
}

int32_t kv_gates_evaluate(const struct kv_gates *g, enum kv_stage stage, struct kv_gate_result *out)
{
    static const char letters[KV_STAGES] = {'O', 'S', 'C', 'R', 'F', 'B'};
    for (int32_t i = 0; i < g->n; i++) {
        const struct gate *q = &g->gate[i];
        const struct kv_metric *m = &metrics[q->metric];
        struct kv_gate_result *r = &out[i];
        memset(r, 0, sizeof *r);
        snprintf(r->metric, sizeof r->metric, "%s", m->name);
        r->judged = (unsigned)stage < KV_STAGES && strchr(m->stages, letters[stage]) != NULL;
        r->value = r->lower = r->upper = NAN;
        r->threshold = q->spec.threshold;
        r->min_n = q->spec.min_n;
        r->comparison = m->comparison;
        r->unit = m->unit;
        if (!r->judged) snprintf(r->detail, sizeof r->detail, "not judged at this stage");
        else if (m->logic == KV_LOGIC_ZERO) judge_zero(g, q, r);
        else if (m->logic == KV_LOGIC_MEAN) judge_mean(q, r);
        else if (m->logic == KV_LOGIC_DRILL) judge_drill(g, q, r);
        else judge_ratio(q, r);
    }
    return g->n;
}

enum kv_verdict kv_gates_decide(const struct kv_gate_result *r, int32_t n, int32_t *which)
{
    int32_t holds = -1, judged = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!r[i].judged) continue;
        judged++;
        if (r[i].verdict == KV_FAILED) {
            if (which) *which = i;
            return KV_FAILED;
        }
        if (r[i].verdict != KV_PASS && holds < 0) holds = i;
    }
    if (which) *which = holds;
    if (holds >= 0) return r[holds].verdict;
    return judged ? KV_PASS : KV_NO_DATA;
}
