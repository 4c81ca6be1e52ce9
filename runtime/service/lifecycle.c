/* lifecycle.c — the transition table. */
#include "runtime/service/lifecycle.h"

#include <string.h>

#define IN(name) (1u << KV_SESSION_##name)

static const uint32_t next_states[KV_SESSION_STATE_COUNT] = {
    [KV_SESSION_RUNNING] = IN(QUIESCING),
    [KV_SESSION_QUIESCING] = IN(SAVING) | IN(PAUSED_GPU) | IN(SWAPPING_OUT) | IN(TOKEN_ONLY),
    [KV_SESSION_SAVING] = IN(PAUSED_HOST) | IN(TOKEN_ONLY),
    [KV_SESSION_SWAPPING_OUT] = IN(PAUSED_HOST) | IN(TOKEN_ONLY),
    [KV_SESSION_PAUSED_HOST] = IN(RESTORING) | IN(SWAPPING_IN) | IN(TOKEN_ONLY),
    [KV_SESSION_PAUSED_GPU] = IN(RESUME_READY) | IN(SWAPPING_OUT) | IN(TOKEN_ONLY),
    [KV_SESSION_RESTORING] = IN(RESUME_READY) | IN(TOKEN_ONLY),
    [KV_SESSION_SWAPPING_IN] = IN(RESUME_READY) | IN(TOKEN_ONLY),
    [KV_SESSION_TOKEN_ONLY] = IN(RECOMPUTING),
    [KV_SESSION_RECOMPUTING] = IN(RESUME_READY),
    [KV_SESSION_RESUME_READY] = IN(PREFILL_NEW_TURN) | IN(PREFILL_EXTERNAL_RESULT),
    [KV_SESSION_PREFILL_NEW_TURN] = IN(RUNNING),
    [KV_SESSION_PREFILL_EXTERNAL_RESULT] = IN(RUNNING),
};

static const char *const names[KV_SESSION_STATE_COUNT] = {
#define KV_SESSION_STATE(name) #name,
    KV_SESSION_STATES(KV_SESSION_STATE)
#undef KV_SESSION_STATE
};

const char *kv_session_state_name(enum kv_session_state s)
{
    return (unsigned)s < KV_SESSION_STATE_COUNT ? names[s] : "?";
}

int kv_lifecycle_state_find(const char *name)
{
    for (int i = 0; i < KV_SESSION_STATE_COUNT; i++)
        if (!strcmp(names[i], name)) return i;
    return -1;
}

bool kv_lifecycle_may_move(enum kv_session_state from, enum kv_session_state to)
{
    return (unsigned)from < KV_SESSION_STATE_COUNT && (unsigned)to < KV_SESSION_STATE_COUNT && (next_states[from] >> to & 1);
}

enum kv_status kv_lifecycle_move(enum kv_session_state *state, enum kv_session_state to)
{
    if (!kv_lifecycle_may_move(*state, to)) return KV_ILLEGAL_TRANSITION;
    *state = to;
    return KV_OK;
}
