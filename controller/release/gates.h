/* gates.h — what a candidate must prove at a stage: metrics, their evidence so far, and a verdict for each.
 *
 * Only PASS advances. FAIL returns to the exact baseline. INCONCLUSIVE and NO_DATA hold. The list of metrics is metrics.def.
 * One owner at a time (control.c calls under its mutex). */
#ifndef KV_GATES_H
#define KV_GATES_H

#include "controller/release/cohort.h"
#include "controller/release/stage.h"
#include "runtime/kvasir.h"

enum kv_verdict { KV_NO_DATA, KV_INCONCLUSIVE, KV_PASS, KV_FAILED, KV_VERDICTS };
const char *kv_verdict_name(enum kv_verdict v); /* "NO_DATA", "INCONCLUSIVE", "PASS", "FAIL" */

/* How a metric's evidence becomes a verdict. */
enum kv_metric_logic {
    KV_LOGIC_ZERO,  /* a count that must stay zero over at least min_n observed units */
    KV_LOGIC_MEAN,  /* a bounded mean with a confidence sequence (metric_confidence.h): PASS when all of it lies under the threshold */
    KV_LOGIC_DRILL, /* a drill of drills.def that passed for this candidate, no longer ago than the threshold */
    KV_LOGIC_RATIO  /* p99 of two arms in switchback windows (metric_switchback.h) */
};

struct kv_metric {
    const char *name, *unit, *comparison; /* "omitted_mass", "share", "<=" */
    enum kv_metric_logic logic;
    const char *stages;      /* letters S C R F where it is judged */
    const char *contracts;   /* letters e a: whose candidates must have it; upper-case E A: declared on request only */
    double threshold, lowest, highest; /* default and range */
    uint64_t min_n;          /* default; counted in what `per` says */
    const char *per;         /* "unit", "token", "step", "prompt" */
    const char *help;
};
size_t kv_metric_count(void);
const struct kv_metric *kv_metric_at(size_t i);
/* UNKNOWN_METRIC with the nearest name as hint. */
enum kv_status kv_metric_find(const char *name, const struct kv_metric **out, struct kv_error *err);

#define KV_MAX_GATES 16
struct kv_gate_spec {
    char metric[32];
    double threshold;
    uint64_t min_n;
};
/* Checks names and ranges and adds the gates every candidate of this contract must have. specs: KV_MAX_GATES long.
 * threshold NAN or min_n 0: the metric's default. */
enum kv_status kv_gates_complete(enum kv_contract exactness, struct kv_gate_spec *specs, int32_t *n, struct kv_error *err);

struct kv_gate_result {
    char metric[32];
    enum kv_verdict verdict;
    bool judged;                 /* false: this metric is not judged at this stage */
    double value, lower, upper;  /* NAN where there is none */
    double threshold;
    uint64_t n, min_n;
    const char *comparison, *unit;
    char detail[120];
};

struct kv_gates;
enum kv_status kv_gates_create(const struct kv_gate_spec *specs, int32_t n, uint64_t seed, struct kv_gates **out);
/* Without evidence, but with the counters and the order of windows that g has now. */
enum kv_status kv_gates_like(const struct kv_gates *g, const struct kv_gate_spec *specs, int32_t n, struct kv_gates **out);
void kv_gates_destroy(struct kv_gates *g);
/* Forget all evidence: at every change of stage or fraction. stats: the engine's counters now. */
void kv_gates_reset(struct kv_gates *g, const struct kv_engine_stats *stats);
/* One measurement. arm: of the request it belongs to; UNIT samples of a shadowed candidate come with KV_ARM_CANDIDATE. */
void kv_gates_sample(struct kv_gates *g, const struct kv_sample *s, enum kv_arm arm);
void kv_gates_counters(struct kv_gates *g, const struct kv_engine_stats *stats);
/* A held-out prompt's score under both arms, in [0, 1]; feeds quality_drop. */
void kv_gates_quality(struct kv_gates *g, double baseline, double candidate);
/* The last result of a drill, by its place in drills.def; kept through resets. */
void kv_gates_drill(struct kv_gates *g, size_t drill, int64_t at_us, uint64_t checks, uint64_t violations);
void kv_gates_now(struct kv_gates *g, int64_t realtime_us); /* what the age of drills is counted to */
/* out: KV_MAX_GATES long, one result per spec in the order of the specs. */
int32_t kv_gates_evaluate(const struct kv_gates *g, enum kv_stage stage, struct kv_gate_result *out);
/* FAILED if any judged gate failed, PASS if all judged gates passed, else the first that holds. *which (may be NULL): the index
 * of the gate that decided, -1 when all passed. Nothing judged is NO_DATA. */
enum kv_verdict kv_gates_decide(const struct kv_gate_result *r, int32_t n, int32_t *which);

#endif
