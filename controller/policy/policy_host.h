/* policy_host.h — Lua policies: loaded into a sandbox, asked for decisions, checked by C.
 *
 * A policy is one text file that returns one table (api = 1, name, and one decision function). It is a pure function of its
 * arguments: no I/O, no clock, no randomness, no state kept between calls that C relies on. A call may use at most
 * KV_POLICY_INSTRUCTIONS, KV_POLICY_DEADLINE_US of wall and thread CPU time and KV_POLICY_LIVE_BYTES; one that exceeds a limit, raises an error or
 * proposes what is not legal is a fault: the caller gets the safe answer and a reason, and a killed policy stays dead.
 * A struct kv_script (one loaded policy) belongs to one thread at a time. */
#ifndef KV_POLICY_HOST_H
#define KV_POLICY_HOST_H

#include "controller/release/gates.h"
#include "controller/release/release.h"
#include "runtime/kvasir.h"

#define KV_POLICY_SOURCE_BYTES (64 * 1024)
#define KV_POLICY_LIVE_BYTES (1024 * 1024)
#define KV_POLICY_TOTAL_BYTES (16 * 1024 * 1024) /* allocated in one call, freed or not */
#define KV_POLICY_INSTRUCTIONS 200000
#define KV_POLICY_DEADLINE_US 2000

enum kv_policy_kind { KV_POLICY_ADMISSION, KV_POLICY_FALLBACK, KV_POLICY_RELEASE, KV_POLICY_KINDS };
const char *kv_policy_kind_name(enum kv_policy_kind k); /* "admission" */
bool kv_policy_kind_from_name(const char *name, enum kv_policy_kind *out);

struct kv_script;
/* Parses, runs the chunk once and finds the decision function. kind KV_POLICY_KINDS: whichever the table has. */
enum kv_status kv_policy_load(enum kv_policy_kind kind, const char *source, size_t n, struct kv_script **out, struct kv_error *err);
void kv_policy_free(struct kv_script *p);
enum kv_policy_kind kv_policy_kind(const struct kv_script *p);
const char *kv_policy_name(const struct kv_script *p);
const char *kv_policy_version(const struct kv_script *p); /* hex SHA-256 of the source */
/* Stopped for good by a limit; preempted: only because others had the processor, so that the same source may be loaded again. */
bool kv_policy_dead(const struct kv_script *p, bool *preempted);
const char *kv_policy_source(const struct kv_script *p, size_t *n);

/* --- admission(r, credits) -> { action = "ADMIT_TRANSFER" | "FALLBACK", cause = "DEADLINE" | "CREDIT_PRESSURE", priority, placement, reason } */
enum kv_admission { KV_ADMIT_TRANSFER, KV_ADMIT_FALLBACK_DEADLINE, KV_ADMIT_FALLBACK_CREDIT, KV_ADMISSIONS };
struct kv_admission_request {
    const char *tenant, *class;
    const char *placement;                 /* the candidate's, a name that lasts; NULL: no candidate is to serve it */
    enum kv_contract contract;
    int32_t prompt_tokens, max_tokens;
    double slack_ms, estimate_ms;          /* estimate: queue + setup + bytes / measured bandwidth; slack < 0: no deadline */
    uint64_t backend_bytes, staging_bytes; /* backend: after legal coalescing */
};
struct kv_admission_credits {
    uint64_t pinned_free, staging_free, link_free; /* bytes */
    uint32_t queue_free;                           /* slots */
};
struct kv_admission_answer {
    enum kv_admission action;
    int32_t priority;   /* 0 … 100, higher first */
    char placement[32]; /* of a transfer; empty: the candidate's own. "resident" where that is another: the baseline serves it */
    char reason[96];
};
/* The answer without a policy: the source's admit_transfer (0x08L). */
void kv_admission_baseline(const struct kv_admission_request *r, const struct kv_admission_credits *c, struct kv_admission_answer *out);
/* Always fills out with a legal answer; a status other than OK is the policy's fault, with the baseline's answer in out. */
enum kv_status kv_policy_admission(struct kv_script *p, const struct kv_admission_request *r, const struct kv_admission_credits *c,
                                   struct kv_admission_answer *out, struct kv_error *err);

#define KV_DEFAULT_MAX_OMITTED_MASS 0.05 /* where no rollout says another limit */
/* --- fallback(state, gate): evaluated over all cells at activation. An illegal or missing action fails the whole policy. */
enum kv_status kv_policy_fallback_table(struct kv_script *p, double max_omitted_mass, struct kv_fallback_table *out, struct kv_error *err);
void kv_fallback_table_baseline(struct kv_fallback_table *out);

/* --- release(stage, gates, history) */
enum kv_release_action { KV_RELEASE_HOLD, KV_RELEASE_ADVANCE, KV_RELEASE_ROLLBACK, KV_RELEASE_ACTIONS };
const char *kv_release_action_name(enum kv_release_action a);
struct kv_release_question {
    const struct kv_rollout *rollout;
    const struct kv_gate_result *gates;
    int32_t n_gates;
    double seconds_in_step;
    bool wait_over;   /* min_seconds and min_samples of the step are met, or skipped */
};
struct kv_release_answer {
    enum kv_release_action action;
    char reason[160];
};
/* A fault or an illegal proposal (ADVANCE without every judged gate passing) is HOLD and a status other than OK. */
enum kv_status kv_policy_release(struct kv_script *p, const struct kv_release_question *q, struct kv_release_answer *out, struct kv_error *err);

/* Asks the policy a spread of questions, so that errors show before it is activated: any fault, and for a fallback policy any illegal cell
 * at the default limit. */
enum kv_status kv_policy_check(struct kv_script *p, struct kv_error *err);
/* Runs a policy's test file: one table of functions, each given the policy's table; prints nothing. *passed and *failed count them, the
 * first failure is in err. */
enum kv_status kv_policy_test(struct kv_script *p, const char *source, size_t n, int32_t *passed, int32_t *failed, struct kv_error *err);

#endif
