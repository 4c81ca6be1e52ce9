/* store_pauses.h — pauses and their results in the store: every change is one transaction with its receipt, durable when the call returns.
 *
 *   put ─ PAUSED ─ [ result: reserve ─ ready ─ commit ─ applied, or retry ] ─ resume, or expire ─ RESUMED, until its continuation has ended
 *
 * Epochs of a session are one sequence: pauses have the odd ones, the resume of pause E has E + 1. Any thread. */
#ifndef KV_STORE_PAUSES_H
#define KV_STORE_PAUSES_H

#include "controller/store/store.h"
#include "runtime/service/interruption.h"

struct kv_stored_pause {
    char tenant[64], session[64];
    uint64_t epoch;
    bool resumed, expired;     /* expired: nobody came in time; counts as resumed */
    char *manifest;            /* owned, like the two lists of tokens */
    int32_t *tokens, n_tokens, *result_tokens, n_result_tokens;
    int64_t paused_us;         /* CLOCK_REALTIME */
    struct kv_result_key result;
    enum kv_result_state result_state;
};
void kv_stored_pause_free(struct kv_stored_pause *p);

/* p->epoch is given out. ALREADY_PAUSED, with p->epoch of that pause, when the session is paused. */
enum kv_status kv_store_put_pause(struct kv_store *s, struct kv_stored_pause *p, struct kv_error *err);
/* The session's last pause. NOT_FOUND; free. */
enum kv_status kv_store_last_pause(struct kv_store *s, const char *tenant, const char *session, struct kv_stored_pause *out, struct kv_error *err);
/* Compare-and-set: RESERVED binds `key` unless another result is bound (COMPETING_RESULT); RESULT_APPEND_COMMITTED takes the tokens. The answer says what is
 * left to do; a state that may not follow is ILLEGAL_TRANSITION. */
enum kv_status kv_store_move_result(struct kv_store *s, const char *tenant, const char *session, const struct kv_result_key *key, enum kv_result_state to,
                                    const int32_t *tokens, int32_t n_tokens, enum kv_result_answer *answer, struct kv_error *err);
/* NOT_PAUSED, PAUSE_EXPIRED, STALE_PAUSE_EPOCH, RESULT_MISSING. */
enum kv_status kv_store_resume(struct kv_store *s, const char *tenant, const char *session, uint64_t epoch, struct kv_error *err);
/* Undoes a resume whose continuation could not be submitted. */
enum kv_status kv_store_unresume(struct kv_store *s, const char *tenant, const char *session, uint64_t epoch, struct kv_error *err);
/* Empties the tokens of a resumed pause, for good (of a result its length stays): its continuation has ended, so nothing asks for them again. */
enum kv_status kv_store_forget_resumed(struct kv_store *s, const char *tenant, const char *session, uint64_t epoch, struct kv_error *err);
/* At a start, before anybody resumes: what was resumed and whose continuation did not live to its end is paused again, each with its receipt; *n: how many. */
enum kv_status kv_store_reopen_resumed(struct kv_store *s, int32_t *n, struct kv_error *err);
/* The session's last pause, if its continuation has not ended, is given up and its tokens emptied, with a receipt. *was: there was one. */
enum kv_status kv_store_drop_pause(struct kv_store *s, const char *tenant, const char *session, bool *was, struct kv_error *err);

/* Gives up the open pauses from before `before_us` and empties their tokens, each with its receipt, some at a time; *n: how many. */
enum kv_status kv_store_expire_pauses(struct kv_store *s, int64_t before_us, int32_t *n, struct kv_error *err);

struct kv_pause_row { /* of a list */
    char tenant[64], session[64], call_id[64];
    uint64_t epoch;
    int32_t n_tokens;
    int64_t paused_us;
    enum kv_result_state result_state;
};
/* Oldest first. *n: in cap, out count; *total: there are. */
enum kv_status kv_store_open_pauses(struct kv_store *s, struct kv_pause_row *out, int32_t *n, int32_t *total, struct kv_error *err);

#endif
