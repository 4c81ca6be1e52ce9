/* transaction.h — one movement of one chunk between tiers (contract §3, source 0x02A, 0x04A–C).
 *
 *   GPU_VISIBLE ─ DEMOTE_RESERVED ─ COPY_OUT ─┬─ HOST_VALID ──────┬─ GPU_RELEASED
 *   (HOST_VALID when it leaves the host)      └─ SECONDARY_VALID ─┘
 *                      └──────────┴─ DEMOTION_FAILED: the source is kept
 *
 *   HOST_VALID ─ PROMOTE_RESERVED ─ COPY_IN ─ GPU_STAGED ─ GPU_VISIBLE
 *   (SECONDARY_VALID when it leaves the disk; HOST_VALID in place of GPU_VISIBLE when it goes to the host)
 *                      └──────────┴─────────┴─ back to where it came from: nothing was published
 *
 * GPU_RELEASED says that the source replica is gone, whichever tier held it. kv_residency_move is the only code that assigns a state. */
#ifndef KV_TRANSACTION_H
#define KV_TRANSACTION_H

#include "runtime/residency/tier.h"

#define KV_RESIDENCY_STATES(X)                                                                                         \
    X(GPU_VISIBLE) X(DEMOTE_RESERVED) X(COPY_OUT) X(HOST_VALID) X(GPU_RELEASED) X(SECONDARY_VALID) X(DEMOTION_FAILED)  \
    X(PROMOTE_RESERVED) X(COPY_IN) X(GPU_STAGED)
enum kv_residency_state {
#define KV_RESIDENCY_STATE(name) KV_AT_##name,
    KV_RESIDENCY_STATES(KV_RESIDENCY_STATE)
#undef KV_RESIDENCY_STATE
    KV_RESIDENCY_STATE_COUNT
};
const char *kv_residency_state_name(enum kv_residency_state s);

/* ILLEGAL_TRANSITION, and *state untouched, when the table has no such row. */
enum kv_status kv_residency_move(enum kv_residency_state *state, enum kv_residency_state to);
bool kv_residency_may_move(enum kv_residency_state from, enum kv_residency_state to);

/* What a transfer thread needs and what its completion is compared with. Filled at reserve, immutable until completion. */
struct kv_transfer {
    uint32_t transaction;                    /* index in the directory */
    struct kv_transfer_generation generation; /* one per reservation, never reused */
    struct kv_chunk_identity identity;
    struct kv_cache_generation cache;
    struct kv_tier *from, *to;
    struct kv_block source, destination;
    uint64_t bytes;
    void *staging; /* bytes long: the hop goes through host memory */
};
struct kv_transfer_done {
    struct kv_transfer transfer;
    enum kv_status status; /* of the copy */
    uint64_t bytes;        /* that arrived */
};
/* Any transfer thread. Reads, verifies and writes; touches nothing but the two blocks and the staging buffer. */
void kv_transfer_copy(const struct kv_transfer *t, struct kv_transfer_done *out);

#endif
