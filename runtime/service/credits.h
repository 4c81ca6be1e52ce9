/* credits.h — the one account of what transfers may use at once (contract §8, source 0x08H): pinned host memory, device staging, the link's
 * window and the slots of the read queue.
 *
 *   Σ B_u ≤ min(P_free, C_free)     backend bytes of a unit, charged once however many requests wait for it
 *   Σ S_r ≤ S_free                  destination staging, charged for every request
 *   |A|   ≤ Q_free                  a queue slot for every request
 *
 * Requests share a unit only when its digest is equal, and the digest covers every field that changes bytes or meaning: namespace, model, adapter,
 * layout, layer, positions, representation, codec, generation, source tier and authority (a chunk or replica digest does). A ticket is released
 * once: its slot's generation moves on, and a second release, or one from before a reset, is STALE_CREDIT and changes nothing. The last of a
 * unit's waiters to leave gives back the backend bytes. Nothing allocates after create. Any thread. */
#ifndef KV_CREDITS_H
#define KV_CREDITS_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stdint.h>

enum kv_credit { KV_CREDIT_PINNED, KV_CREDIT_STAGING, KV_CREDIT_LINK, KV_CREDIT_QUEUE, KV_CREDIT_KINDS };
const char *kv_credit_name(enum kv_credit c); /* "pinned" */

struct kv_credit_limits {
    uint64_t total[KV_CREDIT_KINDS]; /* bytes, bytes, bytes, slots */
    int32_t max_tickets;             /* held at once; waiters are bounded by the same number */
};

struct kv_credit_ask {
    uint64_t request;        /* engine's request id: who */
    const char *what;        /* "layerwise", "swap-out": for what; kept by reference, must be a literal */
    uint8_t unit[32];        /* identity of the backend unit; all zero: shared with nobody */
    uint64_t backend_bytes, staging_bytes;
    uint32_t queue_slots;
};
struct kv_credit_ticket {
    uint32_t slot;
    uint64_t generation; /* 0: holds nothing */
};

struct kv_credits;
enum kv_status kv_credits_create(const struct kv_credit_limits *l, struct kv_credits **out);
void kv_credits_destroy(struct kv_credits *c);

/* All or nothing. CREDIT_PRESSURE with *lacks; CAPACITY when it exceeds a total and so never fits; IDENTITY_MISMATCH when a unit in flight has the
 * digest and other bytes. *shared: the backend bytes were charged to somebody already. lacks and shared may be NULL. */
enum kv_status kv_credits_reserve(struct kv_credits *c, const struct kv_credit_ask *ask, int64_t now_us, struct kv_credit_ticket *out, enum kv_credit *lacks, bool *shared);
/* Gives everything of the ticket back, and empties it. */
enum kv_status kv_credits_release(struct kv_credits *c, struct kv_credit_ticket *t);
/* Changes whenever something was given back: before that, what did not fit does not fit now. */
uint64_t kv_credits_returns(struct kv_credits *c);
/* Every ticket becomes stale and every credit free: after the transfers' engine was reset. */
void kv_credits_reset(struct kv_credits *c);

/* Who waits for what; a later reserve of the request, or forget, ends it. A wait keeps its first time. */
void kv_credits_wait(struct kv_credits *c, uint64_t request, const char *what, enum kv_credit lacks, int64_t now_us);
void kv_credits_forget(struct kv_credits *c, uint64_t request);

struct kv_credit_holder {
    uint64_t request;
    const char *what;
    uint64_t backend_bytes, staging_bytes; /* backend: of the unit, also when it is shared */
    uint32_t queue_slots, unit_waiters;
    int64_t since_us; /* CLOCK_MONOTONIC */
    enum kv_credit lacks; /* of a waiter */
};
struct kv_credit_view {
    uint64_t total[KV_CREDIT_KINDS], used[KV_CREDIT_KINDS], peak[KV_CREDIT_KINDS];
    uint64_t reserved, released, refused, stale, coalesced_bytes, resets; /* counts since create, and bytes not charged twice */
    int32_t n_holders, n_waiters; /* in all; the arrays hold up to their caps */
};
/* holders and waiters, oldest slot first, may be NULL with cap 0. */
void kv_credits_view(struct kv_credits *c, struct kv_credit_view *out, struct kv_credit_holder *holders, int32_t holders_cap,
                     struct kv_credit_holder *waiters, int32_t waiters_cap);

/* ---------------------------------------------------------------- exact offload (source 0x03F) */

struct kv_offload_demand { /* of one request under exact offload */
    bool recoverable;      /* every legal row can be had again */
    uint64_t device_bytes, host_bytes, pinned_bytes; /* at peak */
    double h2d_bytes_per_s, d2h_bytes_per_s;
    uint32_t transfer_jobs;
};
/* All seven must hold; the reason of the first that does not: SUPPORT_NOT_RECOVERABLE, DEVICE_BUDGET, HOST_BUDGET, PINNED_BUDGET,
 * H2D_BUDGET, D2H_BUDGET, QUEUE_FULL. err says by how much and what would make it fit. Pure. */
enum kv_status kv_offload_admit(const struct kv_offload_demand *d, const struct kv_offload_demand *free, struct kv_error *err);
/* The account of an engine's transfers: moved-to-compute requests and swaps, both ways, hold tickets in it. */
struct kv_engine;
struct kv_credits *kv_engine_credits(struct kv_engine *e);

#endif
