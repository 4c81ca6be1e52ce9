/* policy_life.c — see policy_life.h. */
#include "controller/policy/policy_life.h"

#include <string.h>

static const char *const names[KV_POLICY_STATES] = {"DRAFT", "CHECKED", "REPLAYED", "APPROVED", "STAGED", "ACTIVE", "RETIRED"};

/* Row: from; column: to. Checking and replaying again is no change of state but may be repeated: other decisions were recorded since. */
static const bool legal[KV_POLICY_STATES][KV_POLICY_STATES] = {
    /*                      DRAFT CHECKED REPLAYED APPROVED STAGED ACTIVE RETIRED */
    [KV_POLICY_DRAFT] =    {0, 1, 0, 0, 0, 0, 1},
    [KV_POLICY_CHECKED] =  {0, 1, 1, 0, 0, 0, 1},
    [KV_POLICY_REPLAYED] = {0, 0, 1, 1, 0, 0, 1},
    [KV_POLICY_APPROVED] = {0, 0, 0, 0, 1, 0, 1},
    [KV_POLICY_STAGED] =   {0, 0, 0, 0, 1, 1, 1},
    [KV_POLICY_ACTIVE] =   {0, 0, 0, 0, 0, 0, 1},
    [KV_POLICY_RETIRED] =  {0, 0, 0, 0, 1, 0, 0},
};

const char *kv_policy_state_name(enum kv_policy_state s)
{
    return (unsigned)s < KV_POLICY_STATES ? names[s] : "UNKNOWN";
}

bool kv_policy_state_from_name(const char *name, enum kv_policy_state *out)
{
    for (int i = 0; i < KV_POLICY_STATES; i++)
        if (!strcmp(names[i], name)) return *out = (enum kv_policy_state)i, true;
    return false;
}

bool kv_policy_may_move(enum kv_policy_state from, enum kv_policy_state to)
{
    return (unsigned)from < KV_POLICY_STATES && (unsigned)to < KV_POLICY_STATES && legal[from][to];
}
