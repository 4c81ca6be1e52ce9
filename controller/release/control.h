/* control.h — the control thread: engine, release machine, gates, policies and store tied together.
 *
 * Two threads tick every tick_ms: one drains measurements, evaluates gates and falls back, and waits for no disk before it has fenced; the other
 * records, asks the release policy, commits and moves forward. Operators' verbs run in the caller's thread under the second one's mutex. Rollback,
 * abort and freeze are apart: they take effect before anything is written, and wait for no mutex that is held across a disk. Readers copy snapshots; nobody else sees the state. Everything here may be called from any thread but the decode thread. */
#ifndef KV_CONTROL_H
#define KV_CONTROL_H

#include "controller/store/store.h"

/* What the control thread needs of an engine; kv_release_port_of wraps the real one, tests supply their own. */
struct kv_release_port {
    void *ctx;
    enum kv_status (*install)(void *ctx, const struct kv_candidate *c, bool shadow, uint64_t expected_epoch, uint64_t epoch, struct kv_error *err);
    enum kv_status (*rearm)(void *ctx, uint64_t epoch, struct kv_error *err);
    struct kv_release_word (*word)(void *ctx);
    void (*rollback)(void *ctx, struct kv_rollback *out);
    int32_t (*recomputing)(void *ctx);
    void (*set_fallback)(void *ctx, const struct kv_fallback_table *t, double max_omitted_mass);
    size_t (*samples)(void *ctx, struct kv_sample *out, size_t cap);
    void (*stats)(void *ctx, struct kv_engine_stats *out);
    double index_share; /* the engine's, for new manifests */
};
struct kv_release_port kv_release_port_of(struct kv_engine *e);

enum kv_control_event { KV_EVENT_ROLLOUT, KV_EVENT_POLICY, KV_EVENT_LOG };

/* Numbered steps of the protocols, for tests that stop, yield or kill there. */
enum kv_control_step {
    KV_AT_ADVANCE_BEGIN = 1,   /* nothing is written */
    KV_AT_ADVANCE_COMMITTED,   /* durable, not yet acted upon */
    KV_AT_ADVANCE_INSTALLED,   /* the engine serves it, memory does not show it */
    KV_AT_ROLLBACK_BEGIN,      /* nothing has happened */
    KV_AT_ROLLBACK_FENCED,     /* no candidate token leaves any more */
    KV_AT_ROLLBACK_DURABLE,    /* the intent is on disk */
    KV_AT_ROLLBACK_MOVED,      /* memory shows the baseline; acknowledged from here on */
    KV_AT_ROLLBACK_RECORDED,   /* the database has the transition */
    KV_AT_REARMED,             /* every sequence is back; a new candidate may start */
    KV_AT_CREATED,             /* a new candidate is durable, not yet in memory */
    KV_CONTROL_STEPS
};

struct kv_control_config {
    uint8_t model_artifact[32], numerics_id[32];
    double break_even;             /* the engine's: times what a method declares, it is a new manifest's byte_cost; 0: 1 */
    int32_t tick_ms;               /* 0: 200 */
    bool drills_before_full;       /* FULL needs the drills rollback, crash_restart and idempotent_replay passed */
    int32_t store_patience_ms;     /* how long receipts may fail before EXACT_BASELINE; 0: 10000 */
    /* Led through a version's life at creation (read then only); NULL, or where it waits for an approval: the stored active version, else the shipped one. */
    const char *policy_source[KV_POLICY_KINDS];
    int64_t (*monotonic_us)(void *ctx), (*realtime_us)(void *ctx); /* NULL: the system's clocks */
    void *clock_ctx;
    const char *check_program;     /* answers --check-policy KIND and --drill NAME, in a process of its own; NULL: checked in this one, no drills */
    const char *model_path;        /* of the model file, for drills; outlives the control thread */
    /* Whether more than one person may write here: then nobody approves what is their own. NULL: no. */
    bool (*two_users)(void *ctx);
    void *users_ctx;
    struct kv_faults *faults;      /* NULL: none can be injected */
    void (*probe)(void *ctx, enum kv_control_step at); /* tests; NULL */
    void *probe_ctx;
    bool manual;                   /* no thread: the caller ticks (tests) */
    /* Called without locks held, from the thread that caused it. rollout 0: not about one. May be NULL. */
    void (*on_event)(void *ctx, enum kv_control_event what, uint64_t rollout, const char *line);
    void *event_ctx;
};

struct kv_control;
/* Reads the intent, then the database: resumes the stage it was in, or EXACT_BASELINE with a receipt when the state cannot be trusted or
 * a rollback was acknowledged. A policy that does not load is refused with its reason. */
enum kv_status kv_control_create(struct kv_release_port engine, struct kv_store *store, const struct kv_control_config *c,
                                 struct kv_control **out, struct kv_error *err);
void kv_control_destroy(struct kv_control *c); /* before the engine and the store */
void kv_control_set_drills_before_full(struct kv_control *c, bool needed); /* any thread */
void kv_control_tick(struct kv_control *c); /* both, once */

/* --- assignment: once per request, before kv_engine_submit. */
struct kv_assignment {
    enum kv_arm arm;
    uint64_t candidate, epoch;  /* for struct kv_request */
    enum kv_stage stage;
    char pipeline[32];          /* of the arm */
};
void kv_control_assign(struct kv_control *c, const struct kv_cohort_key *k, struct kv_assignment *out);
/* The live candidate for one request whose operator named its pipeline, whatever its cohort and share are. UNSUPPORTED where it serves nobody, BAD_ARGUMENT where
 * the request's contract is stricter than the candidate's. */
enum kv_status kv_control_assign_candidate(struct kv_control *c, const char *pipeline, enum kv_contract contract, struct kv_assignment *out, struct kv_error *err);
/* The stage that an epoch of the release word belongs to; what a transition has replaced too, as long as its rollout is known. */
enum kv_stage kv_control_stage_at(struct kv_control *c, uint64_t epoch);
/* After a successful submit, with the engine's request id (kv_stream_stats): latency gates need to know both arms. */
void kv_control_started(struct kv_control *c, uint64_t request, enum kv_arm arm);
/* The active admission policy's answer; a fault is receipted and answered by the baseline. */
void kv_control_admission(struct kv_control *c, const struct kv_admission_request *r, const struct kv_admission_credits *k, struct kv_admission_answer *out);

/* --- held-out prompts (quality.h). True while the live rollout's gate quality_drop is open: what to compute under. */
struct kv_quality_task {
    uint64_t rollout, epoch;    /* for struct kv_request; the epoch changes with every step */
    enum kv_contract contract;
};
bool kv_control_quality_wanted(struct kv_control *c, struct kv_quality_task *out);
/* Scores of one held-out prompt under both arms, in [0, 1]; forgotten when that step is over. */
void kv_control_quality(struct kv_control *c, const struct kv_quality_task *t, double baseline, double candidate);

/* --- evidence. Samples by samples.h, oldest first; free(*out). */
struct kv_sample_record;
enum kv_status kv_control_samples(struct kv_control *c, uint64_t rollout, struct kv_sample_record **out, size_t *n, uint64_t *written, struct kv_error *err);
struct kv_dry_run {
    uint64_t rollout;
    enum kv_stage stage;        /* the samples are from */
    size_t samples;
    bool complete;              /* false: older samples of this step gave way, or some could not be written */
    enum kv_verdict verdict;
    int32_t which, n_gates;     /* which: the gate that decided, -1 none */
    struct kv_gate_result gates[KV_MAX_GATES];
};
/* Judges a gate set by the samples of the rollout's last step; nothing moves. rollout 0: the live one, else the newest. specs: KV_MAX_GATES long, completed. */
enum kv_status kv_control_dry_run(struct kv_control *c, uint64_t rollout, struct kv_gate_spec *specs, int32_t n_specs, struct kv_dry_run *out, struct kv_error *err);

/* Runs a drill of the rollout's candidate (0: the live one, else the newest) and hands the result, with its receipt, to the gates. Blocks until it is
 * over: KV_DRILL_SECONDS at most. CONFLICT while another one runs. */
enum kv_status kv_control_drill(struct kv_control *c, uint64_t rollout, enum kv_drill k, const char *actor, struct kv_drill_result *out, struct kv_error *err);
/* The last result of each, in the order of drills.def; *rollout 0 becomes the one meant. */
enum kv_status kv_control_drills(struct kv_control *c, uint64_t *rollout, struct kv_drill_result out[KV_DRILLS], struct kv_error *err);

/* --- verbs. actor: "operator:NAME". version: the one the caller saw (0: not checked); VERSION_CONFLICT when the rollout moved on since
 * and the verb depends on where it stands; for approve, resume and unfreeze only when a person changed it since, for what stops never. */
struct kv_rollout_request {
    const char *name, *pipeline;
    struct kv_params params;       /* kv_params_default, then kv_params_set */
    enum kv_contract contract;
    struct kv_cohort cohort;
    struct kv_step steps[KV_MAX_STEPS];
    int32_t n_steps;               /* 0: the default steps */
    struct kv_gate_spec gates[KV_MAX_GATES];
    int32_t n_gates;               /* the contract's own gates are added */
};
enum kv_status kv_control_create_rollout(struct kv_control *c, const struct kv_rollout_request *r, const char *actor, uint64_t *id, struct kv_error *err);
/* advance, breakglass (reason), pause, resume, skip, approve, freeze, unfreeze, abort, ramp (fraction), retry (*created: the new rollout; may be NULL otherwise). Not rollback. */
enum kv_status kv_control_verb(struct kv_control *c, uint64_t rollout, enum kv_verb v, uint64_t version, double fraction, const char *reason,
                               const char *actor, uint64_t *created, struct kv_error *err);
struct kv_rollback_answer {
    bool fenced, durable, already, resumed;
    int64_t fence_us, durable_us;
    int32_t recomputing, unsent_tokens;
    uint64_t epoch;
};
/* rollout 0: whatever is live (signals). CONFLICT when another rollout is live than the one named: nothing is done then. */
enum kv_status kv_control_rollback(struct kv_control *c, uint64_t rollout, const char *reason, const char *actor, struct kv_rollback_answer *out, struct kv_error *err);
/* Freezing holds when it returns, whatever hangs: STORE_UNAVAILABLE says that it is not on disk yet. A move that is in the middle of its commit then still
 * arrives. Thawing waits for its receipt. */
enum kv_status kv_control_freeze(struct kv_control *c, bool frozen, const char *reason, const char *actor, struct kv_error *err);

/* --- policies */
struct kv_policy_view {
    enum kv_policy_kind kind;
    char name[64], version[65];
    int64_t activated_us;
    uint64_t faults;
};
/* The estimated omitted mass that a step may have: the live rollout's threshold, which fallback tables are compiled with. */
double kv_control_mass_limit(struct kv_control *c);
void kv_control_policies(struct kv_control *c, struct kv_policy_view out[KV_POLICY_KINDS]);
/* *source: malloc'd copy. */
enum kv_status kv_control_policy_source(struct kv_control *c, enum kv_policy_kind kind, char **source, size_t *n);
/* The whole way at once, from where the version stands: submitted, checked, replayed, approved, switched to. FORBIDDEN where two users exist and nobody
 * approved it; nothing to do when it is active. */
enum kv_status kv_control_activate(struct kv_control *c, enum kv_policy_kind kind, const char *source, size_t n, const char *actor, struct kv_error *err);

/* The life of a version (policy_life.h). version: hexadecimal, the first six digits or more. Each move is one receipt. */
enum kv_status kv_control_policy_submit(struct kv_control *c, enum kv_policy_kind kind, const char *source, size_t n, const char *actor, struct kv_policy_version *out, struct kv_error *err);
enum kv_status kv_control_policy_check(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *actor, struct kv_error *err);
struct kv_replay;
/* Asks it what was decided before; a version at CHECKED moves to REPLAYED, another one stays where it is. */
enum kv_status kv_control_policy_replay(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *actor, struct kv_replay *out, struct kv_error *err);
/* FORBIDDEN to its author when two users exist. */
enum kv_status kv_control_policy_approve(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *reason, const char *actor, struct kv_error *err);
/* APPROVED to STAGED to ACTIVE; or back to a version that was active. replaces: the version thought active (NULL: not checked); VERSION_CONFLICT.
 * version NULL: the one that was active before this one. */
enum kv_status kv_control_policy_switch(struct kv_control *c, enum kv_policy_kind kind, const char *version, const char *replaces, bool revert, const char *actor, struct kv_error *err);

/* --- snapshots */
struct kv_verb_view {
    enum kv_verb verb;
    bool enabled;
    char why[320];
};
struct kv_rollout_view {
    struct kv_rollout r;
    struct kv_gate_result gates[KV_MAX_GATES];
    int32_t n_gates;
    struct kv_verb_view verbs[KV_VERBS];
    int32_t n_verbs;
};
enum { KV_ROLLBACK_CAUSES = 6 };
/* Why live rollouts were sent back since the start; the last one, KV_OK, stands for any other. */
extern const enum kv_status kv_rollback_cause[KV_ROLLBACK_CAUSES];
struct kv_status_view {
    enum kv_stage stage;           /* EXACT_BASELINE when latched, OFF when nothing is live */
    double fraction;
    uint64_t epoch;
    bool latched, frozen;
    uint64_t rollout;              /* 0: none is live */
    char name[64], pipeline[32];
    enum kv_contract contract;
    double omitted_mass_mean, omitted_mass_upper; /* NAN: none */
    uint64_t units;
    double tokens_per_s, tpot_p50_ms, tpot_p99_ms, ttft_p50_ms, stall_ms; /* last ten seconds; NAN: none */
    uint64_t rollbacks[KV_ROLLBACK_CAUSES];
    struct kv_engine_stats engine;
    struct kv_store_health store;
};
void kv_control_status(struct kv_control *c, struct kv_status_view *out);
/* Newest first. *n: in cap, out count. */
void kv_control_rollouts(struct kv_control *c, struct kv_rollout_view *out, int32_t *n);
enum kv_status kv_control_rollout(struct kv_control *c, uint64_t id, struct kv_rollout_view *out, struct kv_error *err);

struct kv_history_point { /* one a second, the last 900 */
    int64_t at_us;            /* CLOCK_REALTIME */
    double tokens_per_s, tpot_p50_ms, tpot_p99_ms, omitted_mass;
    enum kv_stage stage;
};
#define KV_HISTORY_POINTS 900
int32_t kv_control_history(struct kv_control *c, int32_t seconds, struct kv_history_point *out); /* out: KV_HISTORY_POINTS long */

#endif
