/* release.h — a rollout: its immutable manifest and the one state machine that moves it.
 *
 *            advance          advance           advance          advance
 *    OFF ───────────▶ SHADOW ───────▶ CANARY ──────────▶ RAMP ──────────▶ FULL
 *     │                 │             │   ▲ step          │  ▲ step, ramp   │
 *     │                 │             └───┘               └──┘              │
 *     └────────┬────────┴─────────────┬───────────────────┴─────────────────┘
 *              ▼ failed gate, rollback, abort, distrusted state
 *        EXACT_BASELINE      (nothing leaves it: a retry is a new rollout, at OFF)
 *
 * Pure data and functions: no clock, no locks, no I/O. control.h owns the rollouts and calls these under its mutex. */
#ifndef KV_RELEASE_H
#define KV_RELEASE_H

#include "controller/release/cohort.h"
#include "controller/release/gates.h"
#include "controller/release/stage.h"
#include "runtime/kvasir.h"

/* Operator verbs, from verbs.def. */
enum kv_verb {
#define KV_VERB(name, group, method, route, right, danger, stages, key, help) KV_VERB_##name,
#include "controller/verbs.def"
#undef KV_VERB
    KV_VERBS
};
const char *kv_verb_name(enum kv_verb v);
const char *kv_verb_stages(enum kv_verb v);
bool kv_verb_from_name(const char *name, enum kv_verb *out);

#define KV_MAX_STEPS 16
struct kv_step {
    enum kv_stage stage;     /* SHADOW … FULL */
    double fraction;         /* of eligible sessions: 0 in SHADOW, 1 in FULL */
    int32_t min_seconds;     /* waiting time before the next step; `skip` ends it */
    uint64_t min_samples;    /* measurements of any kind before the next step */
};

/* Immutable once sealed: the digest covers every field, typed and length-prefixed, in this order. */
struct kv_manifest {
    char name[64];
    const struct kv_pipeline *pipeline; /* its ten contract fields are in the digest */
    struct kv_params params;
    double byte_cost;                   /* as a candidate's, resolved when it was made: a replay selects from the same row on; 0: no selector, or made before it was kept */
    double index_share;                 /* likewise; -1: no selector, or made before it was kept: the engine's */
    enum kv_contract contract;          /* the pipeline's exactness */
    uint8_t model_artifact[32], adapter_set[32], numerics_id[32];
    struct kv_cohort cohort;
    struct kv_step steps[KV_MAX_STEPS];
    int32_t n_steps;
    struct kv_gate_spec gates[KV_MAX_GATES];
    int32_t n_gates;
    uint8_t digest[32];
};
/* Fills what is missing with defaults (steps, gates), checks everything and sets the digest. */
enum kv_status kv_manifest_seal(struct kv_manifest *m, struct kv_error *err);
/* The canonical bytes the digest is taken over. *n is set to the size needed, also when it exceeds cap (then CAPACITY). */
enum kv_status kv_manifest_bytes(const struct kv_manifest *m, uint8_t *out, size_t cap, size_t *n);
/* The manifest such bytes came from. UNKNOWN_PIPELINE or STORE_CORRUPT when this program cannot give the same digest again. */
enum kv_status kv_manifest_parse(const uint8_t *bytes, size_t n, struct kv_manifest *out, struct kv_error *err);

struct kv_transition {
    int64_t at_us;           /* CLOCK_REALTIME */
    enum kv_stage from, to;
    double fraction;
    uint64_t epoch;
    enum kv_status reason;
    char detail[160], actor[64]; /* "operator:NAME", "policy:release", "gate:NAME", "recovery" */
    uint64_t receipt;        /* 0 until it is recorded */
};

#define KV_MAX_TRANSITIONS 64 /* kept in memory; the store has all */
struct kv_rollout {
    uint64_t id;             /* also the candidate's id in the engine */
    struct kv_manifest manifest;
    enum kv_stage stage;
    int32_t step;            /* index into steps; -1 at OFF */
    double fraction;
    bool paused, live;       /* live: it is the one the engine has or may get */
    bool waited;             /* skip: this step's waiting time was ended early */
    uint64_t version;        /* grows with every change; If-Match */
    uint64_t epoch;          /* of the last transition */
    char author[64], approver[64]; /* "operator:NAME"; approver empty: nobody yet */
    int64_t created_us, stage_since_us, ended_us; /* CLOCK_REALTIME; ended_us 0 while live */
    struct kv_transition transitions[KV_MAX_TRANSITIONS];
    int32_t n_transitions;
};

void kv_rollout_id_format(uint64_t id, char out[24]); /* "r_000003" */
bool kv_rollout_id_parse(const char *text, uint64_t *out);

/* Where the next advance leads. False: nowhere (FULL, EXACT_BASELINE). */
bool kv_release_next(const struct kv_rollout *r, enum kv_stage *to, int32_t *step, double *fraction);
/* The only function that changes stage, step or fraction. t: to, fraction, epoch, reason, detail, actor and at_us are given, from is filled
 * in. ILLEGAL_TRANSITION changes nothing. */
enum kv_status kv_release_move(struct kv_rollout *r, struct kv_transition *t, int32_t step, struct kv_error *err);

struct kv_release_facts { /* what a verb's legality depends on besides the rollout itself */
    bool frozen, store_ok, latched, other_live;
    bool two_users;          /* then traffic needs somebody's approval who is not the author */
    int64_t now_us;
    uint64_t samples;        /* in this step */
    const char *undrilled;   /* a drill that must have passed before FULL and has not; NULL: none */
    const struct kv_gate_result *gates;
    int32_t n_gates;
};
/* OK, or the reason with a sentence why not. */
enum kv_status kv_release_may(const struct kv_rollout *r, enum kv_verb v, const struct kv_release_facts *f, struct kv_error *err);
/* OK when every judged gate passes: what any step forward needs, a larger share set by hand too. */
enum kv_status kv_release_gates_pass(const struct kv_release_facts *f, struct kv_error *err);

#endif
