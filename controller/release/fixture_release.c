/* fixture_release.c — each candidate's manifest is sealed, its evidence run through the gates and its decision through the stage machine:
 * the same functions that decide about live traffic. */
#include "controller/release/fixture_release.h"

#include "controller/release/release.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *fault, *reason, *action;
} failure_actions[] = {
#define KV_FAILURE_ACTION(fault, reason, action, meaning) {#fault, #reason, #action},
#include "controller/failure_actions.def"
#undef KV_FAILURE_ACTION
};
enum { N_FAILURE_ACTIONS = sizeof failure_actions / sizeof *failure_actions };

struct check {
    struct kv_fixture_reader read;
    struct kv_error *err;
    int c; /* which candidate */
    struct kv_rollout r;
    struct kv_gate_result gates[KV_MAX_GATES];
    int32_t n_gates;
};

#define NUMBER(k, name) kv_fixture_number(&(k)->read, "candidates.%d." name, (k)->c)
#define TEXT(k, name) kv_fixture_text(&(k)->read, "candidates.%d." name, (k)->c)
#define BOOL(k, name) kv_fixture_bool(&(k)->read, "candidates.%d." name, (k)->c)

static void read_digest(uint8_t out[32], const char *text)
{
    for (int i = 0; i < 32; i++) {
        unsigned v = 0;
        if (strlen(text) == 64 && sscanf(text + 2 * i, "%2x", &v) == 1) out[i] = (uint8_t)v;
    }
}

/* ---------------------------------------------------------------- the manifest */

static enum kv_status check_fields(struct check *k, const struct kv_pipeline *p)
{
    const struct {
        const char *name, *want;
    } fields[] = {{"support", p->support}, {"representation", p->representation}, {"tier", p->tier}, {"unit", p->unit}, {"index", p->index}, {"update_phase", p->update_phase},
                  {"compute_site", p->compute_site}, {"fallback", p->fallback}, {"workload", p->workload}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *got = kv_fixture_text(&k->read, "candidates.%d.manifest.%s", k->c, fields[i].name);
        if (k->read.status == KV_OK && strcmp(got, fields[i].want))
            return kv_fail(k->err, KV_IDENTITY_MISMATCH, fields[i].name, "the pipeline's %s is '%s'", fields[i].name, fields[i].want);
    }
    return k->read.status;
}

static enum kv_status read_params(struct check *k, struct kv_manifest *m)
{
    kv_params_default(m->pipeline, &m->params);
    int32_t n = kv_fixture_count(&k->read, KV_MAX_PARAMS, "candidates.%d.manifest.params", k->c);
    for (int32_t i = 0; i < n; i++) {
        const char *name = kv_fixture_text(&k->read, "candidates.%d.manifest.params.%d.name", k->c, i);
        double v = kv_fixture_number(&k->read, "candidates.%d.manifest.params.%d.value", k->c, i);
        enum kv_status st = k->read.status == KV_OK ? kv_params_set(m->pipeline, &m->params, name, v, k->err) : k->read.status;
        if (st != KV_OK) return st;
    }
    return KV_OK;
}

static enum kv_status read_steps_and_gates(struct check *k, struct kv_manifest *m)
{
    m->n_steps = kv_fixture_count(&k->read, KV_MAX_STEPS, "candidates.%d.manifest.steps", k->c);
    for (int32_t i = 0; i < m->n_steps; i++) {
        const char *stage = kv_fixture_text(&k->read, "candidates.%d.manifest.steps.%d.stage", k->c, i);
        if (k->read.status == KV_OK && !kv_stage_from_name(stage, &m->steps[i].stage)) return kv_fail(k->err, KV_BAD_ARGUMENT, "stage", "no stage is named '%.40s'", stage);
        m->steps[i].fraction = kv_fixture_number(&k->read, "candidates.%d.manifest.steps.%d.fraction", k->c, i);
        m->steps[i].min_seconds = (int32_t)kv_fixture_integer(&k->read, "candidates.%d.manifest.steps.%d.min_seconds", k->c, i);
    }
    m->n_gates = kv_fixture_count(&k->read, KV_MAX_GATES, "candidates.%d.manifest.gates", k->c);
    for (int32_t i = 0; i < m->n_gates; i++) {
        snprintf(m->gates[i].metric, sizeof m->gates[i].metric, "%s", kv_fixture_text(&k->read, "candidates.%d.manifest.gates.%d.metric", k->c, i));
        m->gates[i].threshold = kv_fixture_number(&k->read, "candidates.%d.manifest.gates.%d.threshold", k->c, i);
        m->gates[i].min_n = (uint64_t)kv_fixture_integer(&k->read, "candidates.%d.manifest.gates.%d.min_n", k->c, i);
    }
    return k->read.status;
}

static enum kv_status check_manifest(struct check *k)
{
    struct kv_manifest *m = &k->r.manifest;
    snprintf(m->name, sizeof m->name, "%s", TEXT(k, "manifest.name"));
    const char *pipeline = TEXT(k, "manifest.pipeline"), *exactness = TEXT(k, "manifest.exactness");
    if (k->read.status != KV_OK) return k->read.status;
    m->pipeline = kv_pipeline_find(pipeline);
    if (!m->pipeline) return kv_fail(k->err, KV_UNKNOWN_PIPELINE, "pipeline", "no pipeline is named '%.40s'", pipeline);
    if (!m->pipeline->built) return kv_fail(k->err, KV_NOT_BUILT, "pipeline", "pipeline %s is not built", pipeline);
    m->contract = strcmp(exactness, "exact") ? KV_APPROXIMATE : KV_EXACT;
    if (m->contract != m->pipeline->exactness) return kv_fail(k->err, KV_CONTRACT_FORBIDS, "exactness", "pipeline %s is not %s", pipeline, exactness);
    enum kv_status st = check_fields(k, m->pipeline);
    if (st == KV_OK) st = read_params(k, m);
    if (st == KV_OK) st = read_steps_and_gates(k, m);
    read_digest(m->model_artifact, TEXT(k, "manifest.model_artifact"));
    read_digest(m->adapter_set, TEXT(k, "manifest.adapter_set"));
    read_digest(m->numerics_id, TEXT(k, "manifest.numerics_id"));
    if (st == KV_OK) st = k->read.status;
    if (st == KV_OK) st = kv_manifest_seal(m, k->err);
    if (st != KV_OK) return st;
    uint8_t digest[32] = {0};
    read_digest(digest, TEXT(k, "manifest.digest"));
    if (k->read.status == KV_OK && memcmp(digest, m->digest, 32)) {
        char hex[65];
        kv_hex(m->digest, 32, hex);
        return kv_fail(k->err, KV_MANIFEST_MISMATCH, "digest", "the fields give %s", hex);
    }
    return k->read.status;
}

/* ---------------------------------------------------------------- the evidence */

static enum kv_status gather(struct check *k)
{
    struct kv_gates *g;
    struct kv_engine_stats stats = {0};
    int64_t units = (int64_t)NUMBER(k, "evidence.units"), prompts = (int64_t)NUMBER(k, "evidence.prompts"), tokens = (int64_t)NUMBER(k, "evidence.tokens");
    struct kv_sample unit = {.kind = KV_SAMPLE_UNIT, .omitted_mass = NUMBER(k, "evidence.omitted_mass"), .output_error_relative = NUMBER(k, "evidence.output_error"), .bound_holds = true};
    double baseline = NUMBER(k, "evidence.baseline_score"), candidate = NUMBER(k, "evidence.candidate_score");
    double control_us = NUMBER(k, "evidence.control_token_us"), token_us = NUMBER(k, "evidence.candidate_token_us"), stall_us = NUMBER(k, "evidence.stall_us");
    int64_t mismatches = (int64_t)NUMBER(k, "evidence.exact_mismatches");
    if (k->read.status != KV_OK) return k->read.status;
    if (units < 0 || prompts < 0 || tokens < 0 || units > 100000 || prompts > 100000 || tokens > 100000) return kv_fail(k->err, KV_BAD_ARGUMENT, "evidence", "counts lie between 0 and 100000");
    if (kv_gates_create(k->r.manifest.gates, k->r.manifest.n_gates, 1, &g) != KV_OK) return kv_fail(k->err, KV_OUT_OF_MEMORY, "gates", "memory could not be had");
    kv_gates_reset(g, &stats);
    for (int64_t i = 0; i < units; i++) {
        unit.exact_equal = i >= mismatches;
        kv_gates_sample(g, &unit, KV_ARM_CANDIDATE);
    }
    for (int64_t i = 0; i < prompts; i++) kv_gates_quality(g, baseline, candidate);
    for (int64_t i = 0; i < tokens; i++) {
        kv_gates_sample(g, &(struct kv_sample){.kind = KV_SAMPLE_TOKEN, .token_us = control_us}, KV_ARM_CONTROL);
        kv_gates_sample(g, &(struct kv_sample){.kind = KV_SAMPLE_TOKEN, .token_us = token_us}, KV_ARM_CANDIDATE);
        kv_gates_sample(g, &(struct kv_sample){.kind = KV_SAMPLE_STALL, .token_us = stall_us}, KV_ARM_CANDIDATE);
    }
    stats.illegal_fallbacks = (uint64_t)NUMBER(k, "evidence.illegal_fallbacks");
    stats.tenant_failures = (uint64_t)NUMBER(k, "evidence.tenant_failures");
    stats.allocation_failures = (uint64_t)NUMBER(k, "evidence.allocation_failures");
    kv_gates_counters(g, &stats);
    k->n_gates = kv_gates_evaluate(g, k->r.stage, k->gates);
    kv_gates_destroy(g);
    return k->read.status;
}

/* ---------------------------------------------------------------- the decision */

static enum kv_status gate_reason(const struct kv_gate_result *g)
{
    if (g->verdict != KV_FAILED) return KV_GATE_NO_DATA;
    if (!strcmp(g->metric, "exact_mismatches")) return KV_EXACT_MISMATCH;
    if (!strcmp(g->metric, "illegal_fallbacks")) return KV_ILLEGAL_FALLBACK;
    return strcmp(g->metric, "tenant_failures") ? KV_GATE_FAILED : KV_TENANT_MISMATCH;
}

/* The gates listed as failed are those that failed, no more and no fewer. */
static enum kv_status check_failed(struct check *k)
{
    int32_t n = kv_fixture_count(&k->read, KV_MAX_GATES, "candidates.%d.decision.failed", k->c), failed = 0;
    for (int32_t i = 0; i < k->n_gates; i++) {
        bool listed = false, is = k->gates[i].judged && k->gates[i].verdict == KV_FAILED;
        for (int32_t j = 0; j < n; j++) listed |= !strcmp(kv_fixture_text(&k->read, "candidates.%d.decision.failed.%d", k->c, j), k->gates[i].metric);
        failed += is;
        if (is != listed) return kv_fail(k->err, is ? gate_reason(&k->gates[i]) : KV_DECISION_MISMATCH, k->gates[i].metric, "gate %s: %s, %s", k->gates[i].metric, kv_verdict_name(k->gates[i].verdict), k->gates[i].detail);
    }
    return failed == n ? k->read.status : kv_fail(k->err, KV_DECISION_MISMATCH, "failed", "%d gates failed and %d are listed", (int)failed, (int)n);
}

static enum kv_status may_advance(struct check *k)
{
    struct kv_release_facts f = {.frozen = BOOL(k, "state.frozen"), .latched = BOOL(k, "state.latched"), .store_ok = BOOL(k, "state.store_ok"), .gates = k->gates, .n_gates = k->n_gates};
    f.now_us = k->r.stage_since_us + (int64_t)(NUMBER(k, "state.seconds_in_step") * 1e6);
    k->r.paused = BOOL(k, "state.paused");
    bool restart = BOOL(k, "evidence.crash_restart_test"), replay = BOOL(k, "evidence.idempotent_replay_test");
    if (k->read.status != KV_OK) return k->read.status;
    if (!restart || !replay) return kv_fail(k->err, KV_GATE_FAILED, restart ? "idempotent_replay_test" : "crash_restart_test", "a recovery test did not pass");
    int32_t which = -1;
    if (kv_gates_decide(k->gates, k->n_gates, &which) != KV_PASS && which >= 0)
        return kv_fail(k->err, gate_reason(&k->gates[which]), k->gates[which].metric, "gate %s: %s", k->gates[which].metric, k->gates[which].detail);
    return kv_release_may(&k->r, KV_VERB_advance, &f, k->err);
}

static enum kv_status check_decision(struct check *k)
{
    struct kv_transition t = {.fraction = NUMBER(k, "decision.fraction"), .epoch = (uint64_t)NUMBER(k, "decision.epoch")};
    const char *to = TEXT(k, "decision.to"), *reason = TEXT(k, "decision.reason");
    if (k->read.status != KV_OK) return k->read.status;
    if (!kv_stage_from_name(to, &t.to)) return kv_fail(k->err, KV_BAD_ARGUMENT, "to", "no stage is named '%.40s'", to);
    if (strcmp(TEXT(k, "decision.from"), kv_stage_name(k->r.stage))) return kv_fail(k->err, KV_DECISION_MISMATCH, "from", "the candidate stands at %s", kv_stage_name(k->r.stage));
    bool back = t.to == KV_STAGE_EXACT_BASELINE;
    enum kv_status st = check_failed(k);
    if (st == KV_OK && !back) st = may_advance(k);
    if (st != KV_OK) return st;
    if (back == (kv_gates_decide(k->gates, k->n_gates, NULL) != KV_FAILED)) return kv_fail(k->err, KV_DECISION_MISMATCH, "to", "the gates do not lead to %s", to);
    if (strcmp(reason, back ? "GATE_FAILED" : "OK")) return kv_fail(k->err, KV_DECISION_MISMATCH, "reason", "the decision's reason is not %s", reason);
    if (t.epoch <= k->r.epoch) return kv_fail(k->err, KV_SUPERSEDED, "epoch", "epoch %llu is not after %llu", (unsigned long long)t.epoch, (unsigned long long)k->r.epoch);
    return kv_release_move(&k->r, &t, back ? k->r.step : k->r.step + 1, k->err);
}

/* Requests of the cohort and the arm each was given. */
static enum kv_status check_served(struct check *k)
{
    int32_t n = kv_fixture_count(&k->read, 16, "candidates.%d.served", k->c);
    for (int32_t i = 0; i < n && k->read.status == KV_OK; i++) {
        const char *contract = kv_fixture_text(&k->read, "candidates.%d.served.%d.contract", k->c, i);
        struct kv_cohort_key key = {.tenant = kv_fixture_text(&k->read, "candidates.%d.served.%d.tenant", k->c, i), .session = kv_fixture_text(&k->read, "candidates.%d.served.%d.session", k->c, i)};
        const char *arm = kv_fixture_text(&k->read, "candidates.%d.served.%d.arm", k->c, i);
        key.contract = strcmp(contract, "exact") ? KV_APPROXIMATE : KV_EXACT;
        const struct kv_manifest *m = &k->r.manifest;
        if (k->read.status == KV_OK && strcmp(kv_arm_name(kv_cohort_arm(&m->cohort, m->digest, m->contract, k->r.fraction, &key)), arm))
            return kv_fail(k->err, key.contract == KV_EXACT && m->contract == KV_APPROXIMATE ? KV_CONTRACT_FORBIDS : KV_DECISION_MISMATCH, "arm", "this request does not belong to arm %s", arm);
    }
    return k->read.status;
}

static enum kv_status check_candidate(struct check *k)
{
    memset(&k->r, 0, sizeof k->r);
    k->r.live = true;
    enum kv_status st = check_manifest(k);
    if (st != KV_OK) return st;
    const char *stage = TEXT(k, "state.stage");
    k->r.epoch = (uint64_t)NUMBER(k, "state.epoch");
    if (k->read.status == KV_OK && !kv_stage_from_name(stage, &k->r.stage)) return kv_fail(k->err, KV_BAD_ARGUMENT, "stage", "no stage is named '%.40s'", stage);
    k->r.step = -1;
    for (int32_t i = 0; i < k->r.manifest.n_steps; i++)
        if (k->r.manifest.steps[i].stage == k->r.stage) k->r.step = i;
    if (k->r.step < 0) return kv_fail(k->err, KV_ILLEGAL_TRANSITION, "stage", "no step of the manifest is at %s", stage);
    k->r.fraction = k->r.manifest.steps[k->r.step].fraction;
    st = check_served(k);
    if (st == KV_OK) st = gather(k);
    return st == KV_OK ? check_decision(k) : st;
}

/* All ten fault classes, each once, with its reason and action. */
static enum kv_status check_failure_actions(struct check *k)
{
    bool seen[N_FAILURE_ACTIONS] = {0};
    int32_t n = kv_fixture_count(&k->read, 32, "failures");
    for (int32_t i = 0; i < n && k->read.status == KV_OK; i++) {
        const char *fault = kv_fixture_text(&k->read, "failures.%d.fault", i);
        int a = 0;
        while (a < N_FAILURE_ACTIONS && strcmp(failure_actions[a].fault, fault)) a++;
        if (a == N_FAILURE_ACTIONS) return kv_fail(k->err, KV_NOT_FOUND, "fault", "no fault class is named '%.40s'", fault);
        if (seen[a]) return kv_fail(k->err, KV_CONFLICT, "fault", "fault class %s is listed twice", fault);
        seen[a] = true;
        if (strcmp(failure_actions[a].reason, kv_fixture_text(&k->read, "failures.%d.reason", i)) || strcmp(failure_actions[a].action, kv_fixture_text(&k->read, "failures.%d.action", i)))
            return kv_fail(k->err, KV_DECISION_MISMATCH, fault, "%s is %s and leads to %s", fault, failure_actions[a].reason, failure_actions[a].action);
    }
    if (k->read.status == KV_OK && n != N_FAILURE_ACTIONS) return kv_fail(k->err, KV_NOT_FOUND, "failures", "%d of %d fault classes are listed", (int)n, N_FAILURE_ACTIONS);
    return k->read.status;
}

enum kv_status kv_fixture_release(const struct kv_fixture *f, struct kv_error *err)
{
    struct check *k = calloc(1, sizeof *k);
    if (!k) return kv_fail(err, KV_OUT_OF_MEMORY, "fixture", "memory could not be had");
    k->read = (struct kv_fixture_reader){.fixture = f, .err = err};
    k->err = err;
    enum kv_status st = KV_OK;
    int32_t n = kv_fixture_count(&k->read, 8, "candidates");
    for (k->c = 0; k->c < n && st == KV_OK; k->c++) st = check_candidate(k);
    if (st == KV_OK) st = check_failure_actions(k);
    if (k->read.status != KV_OK) st = k->read.status;
    free(k);
    return st;
}
