/* policy_replay.h — asking another version of a policy what was decided before, and listing every answer that would change.
 *
 * A release decision is kept with its question as JSON; admission questions are kept in memory, the last KV_REPLAY_ADMISSIONS of this process; a
 * fallback policy is its table, so that all of its cells are compared. A script belongs to one thread at a time; nothing here locks. */
#ifndef KV_POLICY_REPLAY_H
#define KV_POLICY_REPLAY_H

#include "controller/progress.h"
#include "controller/store/store.h"

#define KV_REPLAY_DECISIONS 2000  /* release decisions asked again at most, the newest */
#define KV_REPLAY_ADMISSIONS 4096
#define KV_REPLAY_LISTED 256      /* changes told one by one; all are counted */

struct kv_replay_change {
    uint64_t receipt;             /* of the recorded decision; 0: none */
    char where[192], was[48], now[48];
};
struct kv_replay {
    uint64_t asked, changed, faults; /* faults: of the new version, counted among changed */
    uint64_t unreadable;             /* recorded questions this program cannot read */
    struct kv_replay_change change[KV_REPLAY_LISTED];
    int32_t n_changes;
    struct kv_replay_change spare;   /* where one more than the listed ones is written */
    struct kv_job *job;              /* told how far it is; set by the caller, NULL: nobody */
};

/* The question as it is kept; free. NULL: no memory. */
char *kv_replay_question(const struct kv_release_question *q);
void kv_replay_release(struct kv_script *p, const struct kv_recorded_decision *d, int32_t n, struct kv_replay *out);

struct kv_kept_admission {
    char tenant[32], class[24];
    struct kv_admission_request r; /* its texts are the fields above, set by kv_replay_admission */
    struct kv_admission_credits credits;
    enum kv_admission was;
};
void kv_replay_admission(struct kv_script *p, struct kv_kept_admission *kept, int32_t n, struct kv_replay *out);

/* Cells of two tables that differ. */
void kv_replay_fallback(const struct kv_fallback_table *was, const struct kv_fallback_table *now, struct kv_replay *out);

#endif
