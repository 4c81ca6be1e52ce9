/* lifecycle.h — the states of a session between and within its turns (contract §5, names verbatim), and which may follow which.
 *
 *   completed turn  RUNNING ─ QUIESCING ─ SAVING ─ PAUSED_HOST ─ RESTORING ─ RESUME_READY ─ PREFILL_NEW_TURN ─ RUNNING
 *   preserve        RUNNING ─ QUIESCING ─ PAUSED_GPU ─ RESUME_READY ─ PREFILL_EXTERNAL_RESULT ─ RUNNING
 *   swap            … QUIESCING ─ SWAPPING_OUT ─ PAUSED_HOST ─ SWAPPING_IN ─ RESUME_READY …
 *   discard         … QUIESCING ─ TOKEN_ONLY ─ RECOMPUTING ─ RESUME_READY …
 *
 * What cannot be saved, kept or read goes to TOKEN_ONLY and is recomputed. kv_lifecycle_move is the only code that assigns a state. Pure. */
#ifndef KV_LIFECYCLE_H
#define KV_LIFECYCLE_H

#include "runtime/kvasir.h"

/* ILLEGAL_TRANSITION, and *state untouched, when the table has no such row. */
enum kv_status kv_lifecycle_move(enum kv_session_state *state, enum kv_session_state to);
bool kv_lifecycle_may_move(enum kv_session_state from, enum kv_session_state to);
/* −1: no state of that name. */
int kv_lifecycle_state_find(const char *name);

#endif
