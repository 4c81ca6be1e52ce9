/* control_internal.h — what control*.c share; nobody else includes it.
 *
 * Two threads: one watches (measures, judges, falls back) and never waits for a disk before it has fenced; one records and moves forward.
 * Locks, in this order: work (recording or a verb; held across store commits), evidence (gates and metrics), state (short). Neither of the last two is
 * held across I/O. A rollback and a freeze take state alone. */
#ifndef KV_CONTROL_INTERNAL_H
#define KV_CONTROL_INTERNAL_H

#include "controller/release/control.h"
#include "controller/release/intent.h"
#include "controller/policy/policy_replay.h"
#include "controller/release/samples.h"

#include <pthread.h>

enum { MAX_ROLLOUTS = 256, ARM_SLOTS = 16384, MAX_HAPPENED = 32, TOKEN_RING = 4096, TTFT_RING = 512 };

struct entry {
    struct kv_rollout r;
    struct kv_gate_result gates[KV_MAX_GATES];
    int32_t n_gates;
    uint64_t by_hand; /* the version a person left behind last; later ones are the release policy's */
};

struct unrecorded { /* a move that was made before it could be written down */
    uint64_t rollout;
    struct kv_transition t;
};

struct happened {
    enum kv_control_event what;
    uint64_t rollout;
    char line[200];
};

struct live_metrics { /* evidence */
    double token_us[TOKEN_RING], ttft_us[TTFT_RING], stall_us[TTFT_RING];
    uint64_t tokens, ttfts, stalls;
    int64_t second_us;             /* monotonic; when the last history point was made */
    uint64_t published;            /* engine's count then */
};

struct kv_control {
    struct kv_release_port port;
    struct kv_store *store;
    struct kv_intent *intent;
    struct kv_control_config config;

    pthread_mutex_t work;
    struct kv_script *script[KV_POLICY_KINDS];
    struct kv_fallback_table fallback;
    struct kv_gate_result recorded[KV_MAX_GATES];
    int64_t recorded_us, decided_us;
    char last_decision[64];
    struct happened happened[MAX_HAPPENED];
    int32_t n_happened;
    bool uninstall_due;            /* a candidate may still be installed though none is live */
    bool loss_told;                /* of samples of this rollout */

    pthread_mutex_t evidence;
    struct kv_gates *gates;        /* of the live rollout */
    struct kv_samples *samples_kept; /* the same evidence on disk; NULL: it cannot be written. Replaced under work as well */
    struct live_metrics metrics;

    pthread_mutex_t admission;     /* the admission script has callers in many threads */
    struct kv_kept_admission *kept; /* admission: a ring of what it was asked */
    uint64_t n_kept;

    pthread_mutex_t state;
    struct entry *rollout[MAX_ROLLOUTS];
    int32_t n_rollouts;
    struct entry *live;            /* NULL: none */
    struct entry *failed;          /* as its gates were when they failed; to be recorded, then freed */
    int64_t step_started_us;       /* monotonic */
    uint64_t samples;              /* of the candidate in this step */
    uint64_t epoch, next_rollout;
    bool frozen, drilling;
    struct kv_receipt freeze;      /* of the newest one */
    uint64_t freezes, freezes_recorded;
    bool drilled[KV_DRILLS];       /* passed by the live rollout's manifest */
    struct unrecorded unrecorded[4];
    int32_t n_unrecorded;
    struct {                       /* what kv_control_assign reads */
        uint64_t candidate, epoch;
    } installed;
    struct kv_policy_view policy[KV_POLICY_KINDS];
    int32_t blamed[KV_POLICY_KINDS]; /* faults of the active version that are its own doing */
    struct {
        uint64_t request;
        enum kv_arm arm;
    } arm[ARM_SLOTS];
    struct kv_status_view shown;
    uint64_t rollbacks[KV_ROLLBACK_CAUSES];
    struct kv_history_point history[KV_HISTORY_POINTS];
    uint64_t n_history;

    pthread_t thread[2];
    int running;                   /* threads */
    bool stop;                     /* state */
    pthread_cond_t wake;
};

int64_t kv_control_monotonic(const struct kv_control *c);
int64_t kv_control_realtime(const struct kv_control *c);
/* work. Kept until the lock is given up, then told to config.on_event. */
void kv_control_note(struct kv_control *c, enum kv_control_event what, uint64_t rollout, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void kv_control_begin(struct kv_control *c); /* takes work */
void kv_control_end(struct kv_control *c);   /* gives it up and tells what happened */

static inline void kv_control_at(const struct kv_control *c, enum kv_control_step step)
{
    if (c->config.probe) c->config.probe(c->config.probe_ctx, step);
}

struct entry *kv_control_entry(struct kv_control *c, uint64_t rollout);           /* state */
void kv_control_facts(struct kv_control *c, const struct entry *e, struct kv_release_facts *f); /* state */
/* work. Commits the next step, then installs it. glass: also where releases were frozen meanwhile. */
enum kv_status kv_control_advance(struct kv_control *c, enum kv_stage to, int32_t step, double fraction, bool glass, const char *detail, const char *actor, struct kv_error *err);
/* No lock held, or work. Fences, writes the intent, moves the live rollout to EXACT_BASELINE; the tick records it. rollout: the one that is meant, at whatever
 * stage it is by now; false, and nothing is done, when another one is live. 0: whatever is live. */
bool kv_control_fall_back(struct kv_control *c, uint64_t rollout, enum kv_status reason, const char *detail, const char *actor, struct kv_rollback_answer *out);
/* work. Installs what the live rollout's stage asks for under a new epoch. */
enum kv_status kv_control_install(struct kv_control *c, uint64_t epoch, struct kv_error *err);
void kv_control_begin_step(struct kv_control *c); /* work: forget evidence, start the clock */
void kv_control_record_pending(struct kv_control *c);   /* work */
void kv_control_record_freeze(struct kv_control *c);    /* work */
enum kv_status kv_control_resume(struct kv_control *c, const struct kv_intent_record *intent, struct kv_error *err); /* at creation */

enum kv_status kv_control_load_policies(struct kv_control *c, struct kv_error *err);
/* Puts a loaded policy in its place. work, or nobody else knows c yet. */
void kv_control_put_in_place(struct kv_control *c, struct kv_script *p, int64_t activated_us);
/* Checked at the default limit and at the one that serves now. */
enum kv_status kv_control_load_checked(struct kv_control *c, enum kv_policy_kind kind, const char *source, size_t n, struct kv_script **out, struct kv_error *err);
const struct kv_embedded *kv_control_shipped(enum kv_policy_kind kind);
bool kv_control_two_users(const struct kv_control *c);
enum kv_status kv_control_configured_policies(struct kv_control *c, struct kv_error *err); /* at creation: lead what the configuration names through its life */
void kv_control_tend_policies(struct kv_control *c); /* work: a version that keeps failing gives way to the one before it */
void kv_control_ask_release(struct kv_control *c);  /* work */
double kv_control_mass_limit_of(const struct kv_manifest *m); /* NULL: the default */
void kv_control_set_gate(struct kv_control *c);     /* work: fallback table and threshold to the engine */

void kv_control_measure(struct kv_control *c);      /* evidence: drain samples into gates and metrics */
/* control_evidence.c; work. A rollout's samples go to its file; arm OUTSIDE is left out. */
void kv_control_keep_samples(struct kv_control *c, uint64_t rollout);
const char *kv_control_undrilled(const struct kv_control *c); /* state: a drill that the live rollout's FULL waits for, or NULL */
void kv_control_recall_drills(struct kv_control *c, const uint8_t manifest[32]); /* work: those of this manifest to its new gates */
void kv_control_write_samples(struct kv_control *c); /* work */
void kv_control_keep_sample(struct kv_control *c, const struct kv_sample *s, enum kv_arm arm, enum kv_stage stage, uint64_t epoch); /* evidence */
void kv_control_show(struct kv_control *c);         /* refresh the snapshot; work may be held */

#endif
