/* policy_life.h — the life of a policy version: its states, and the one table of moves between them.
 *
 *   DRAFT ──▶ CHECKED ──▶ REPLAYED ──▶ APPROVED ──▶ STAGED ──▶ ACTIVE ──▶ RETIRED
 *     │          │            │            │           ▲          │          │
 *     └──────────┴────────────┴────────────┴─▶ RETIRED └──────────┼──────────┘ revert
 *                                                                 └─▶ RETIRED  by its successor, or after repeated faults
 *
 * A version is the SHA-256 of its source, so a changed file is another version. Pure. */
#ifndef KV_POLICY_LIFE_H
#define KV_POLICY_LIFE_H

#include <stdbool.h>

enum kv_policy_state {
    KV_POLICY_DRAFT, KV_POLICY_CHECKED, KV_POLICY_REPLAYED, KV_POLICY_APPROVED, KV_POLICY_STAGED, KV_POLICY_ACTIVE, KV_POLICY_RETIRED, KV_POLICY_STATES
};
const char *kv_policy_state_name(enum kv_policy_state s); /* "DRAFT" */
bool kv_policy_state_from_name(const char *name, enum kv_policy_state *out);
bool kv_policy_may_move(enum kv_policy_state from, enum kv_policy_state to);

#endif
