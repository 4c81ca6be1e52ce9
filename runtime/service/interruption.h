/* interruption.h — what to do with the rows of a request that waits for somebody outside (contract §5; source 0x04L–N): keep them where they are,
 * move them out, or compute them again; by waste, in byte-ms: capacity held, or others held up, times time.
 *
 *   preserve   T_INT C M
 *   swap       2 T_swap(C) (C + C_other) M as one synchronous round trip; chunked, what does not hide under the forward steps counts
 *   discard    T_fwd(C) C M / 2 + n T_fwd(C / n) C_other M, in n chunks
 *
 * T_INT is the time the pause has lasted so far: it is no forecast, so every decision is looked at again as the pause ages. Several pauses share one
 * budget of bytes to move: it goes to those of the greatest min(preserve, discard) first; who gets none keeps the lesser of the two.
 * Pure; any thread. */
#ifndef KV_INTERRUPTION_H
#define KV_INTERRUPTION_H

#include "runtime/kvasir.h"

struct kv_pause_costs { /* measured, of this machine and moment */
    double bytes_per_token, us_per_row; /* K/V bytes; time of one row of prefill */
    double swap_bytes_per_s;            /* one way; 0: nothing can be moved out */
    double swap_fixed_us;               /* of one chunk */
    double hidden_share;                /* of a chunked swap's time that other work covers, 0 … 1 */
    int32_t chunk_rows;                 /* of a recompute: S − B_running */
    int64_t other_tokens;               /* C_other */
};
struct kv_pause_waste {
    double preserve, swap, discard; /* byte-ms */
};
void kv_pause_waste_of(const struct kv_pause_costs *c, int64_t tokens, int64_t elapsed_us, struct kv_pause_waste *out);
/* The age at which preserving has wasted as much as computing again would: T_INT*, in microseconds. */
double kv_pause_crossing_us(const struct kv_pause_costs *c, int64_t tokens);

struct kv_pause_choice {
    int64_t tokens, elapsed_us;
    bool can_swap;              /* there is a place for them */
    struct kv_pause_waste waste; /* filled */
    enum kv_pause_action action; /* filled: PRESERVE, SWAP or DISCARD */
};
/* Decides n pauses together; budget_bytes may leave in this round. */
void kv_pause_decide(const struct kv_pause_costs *c, struct kv_pause_choice *p, int32_t n, uint64_t budget_bytes);

/* Tokens that may move in one iteration: ⌊(T_fg − fixed) BW / M⌋, and the iterations a context needs. */
int64_t kv_swap_tokens(double foreground_us, double bytes_per_s, double fixed_us, double bytes_per_token);
/* Rows of recompute in one iteration: max(0, S − B_running). */
int32_t kv_recompute_rows(int32_t saturation_rows, int32_t running_rows);

/* ---------------------------------------------------------------- results of external calls, once */

/*   UNSEEN ─ RESERVED ─ CACHE_READY_AND_VALIDATED ─ RESULT_APPEND_COMMITTED ─ APPLIED
 *              │  ↑           │
 *              └ RETRYABLE ───┘        failure before the commit */
#define KV_RESULT_STATES(X) X(UNSEEN) X(RESERVED) X(CACHE_READY_AND_VALIDATED) X(RESULT_APPEND_COMMITTED) X(APPLIED) X(RETRYABLE)
enum kv_result_state {
#define KV_RESULT_STATE(name) KV_RESULT_##name,
    KV_RESULT_STATES(KV_RESULT_STATE)
#undef KV_RESULT_STATE
    KV_RESULT_STATE_COUNT
};
const char *kv_result_state_name(enum kv_result_state s);
/* KV_RESULT_STATE_COUNT when there is no such name. */
enum kv_result_state kv_result_state_from_name(const char *name);
/* ILLEGAL_TRANSITION, and *state untouched, when the drawing has no such line. */
enum kv_status kv_result_move(enum kv_result_state *state, enum kv_result_state to);

struct kv_result_key { /* what the first reservation binds: by call id and pause epoch */
    char call_id[64], result_id[64];
    uint64_t pause_epoch;
    uint8_t digest[32];
};
enum kv_result_answer { KV_RESULT_GO_ON, KV_RESULT_FINALIZE, KV_RESULT_NOOP }; /* reserve and apply; commit is there, only say APPLIED; all is done */
/* bound: what is stored, in `state` (UNSEEN: nothing bound yet). NOT_FOUND for another call, STALE_PAUSE_EPOCH, COMPETING_RESULT. */
enum kv_status kv_result_offer(const struct kv_result_key *bound, enum kv_result_state state, const struct kv_result_key *offered, enum kv_result_answer *out, struct kv_error *err);

#endif
