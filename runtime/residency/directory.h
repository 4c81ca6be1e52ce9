/* directory.h — which tier holds which chunk, who reads it, and every movement between (contract §3).
 *
 * One thread owns a directory (the engine's: runtime/service/turns). Movements are begun and completed here; the copy between is done by whoever
 * the owner hands the kv_transfer to (kv_transfer_copy), on any thread. Invariants, checked by kv_directory_check:
 *   every published chunk keeps at least R_min valid replicas at the current authority epoch, unless it was removed;
 *   a replica with leases is never released; no chunk has two writing transactions; counters reconcile with what is there. */
#ifndef KV_DIRECTORY_H
#define KV_DIRECTORY_H

#include "runtime/residency/transaction.h"

enum kv_victim { KV_VICTIM_FIFO, KV_VICTIM_LRU, KV_VICTIM_LFU, KV_VICTIM_VALUE, KV_VICTIMS };
const char *kv_victim_name(enum kv_victim e);

struct kv_directory_config {
    struct kv_tier *tier[KV_TIERS]; /* NULL: not there. DEVICE, HOST, DISK in order of nearness */
    uint32_t max_chunks, max_transactions;
    uint64_t max_payload_bytes; /* of one chunk: size of the staging buffers */
    int32_t required;           /* R_min; 0: 1 */
    enum kv_victim victim;
    /* Times in microseconds for the value policy: p (T_recompute − T_promote) − C. Constants per tier suffice. */
    double promote_us[KV_TIERS], capacity_us_per_mib[KV_TIERS];
};

struct kv_directory;
enum kv_status kv_directory_create(const struct kv_directory_config *c, struct kv_directory **out);
void kv_directory_destroy(struct kv_directory *d); /* tiers stay; memory blocks are released, disk extents kept */

/* ---------------------------------------------------------------- chunks */

/* A sealed chunk, its payload written into the tier and visible at once. A chunk that other tiers hold gains a replica; one that this tier holds
 * or that moves: CONFLICT, nothing changed. */
enum kv_status kv_directory_publish(struct kv_directory *d, const struct kv_chunk_identity *id, struct kv_cache_generation cache, enum kv_tier_id tier,
                                    const void *payload, uint64_t bytes, double recompute_us);
/* n chunks of one length at once: on a durable tier they share its syncs. All or none; n ≤ KV_PUBLISH_MAX. */
#define KV_PUBLISH_MAX 4096
enum kv_status kv_directory_publish_group(struct kv_directory *d, int32_t n, const struct kv_chunk_identity *id, struct kv_cache_generation cache, enum kv_tier_id tier,
                                          const void *const *payload, uint64_t bytes, double recompute_us);
/* A replica that outlived the last process, as the disk tier found it. CONFLICT when the chunk already has one in that tier. */
enum kv_status kv_directory_adopt(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id tier, struct kv_block b, uint64_t bytes);

enum kv_answer { KV_ANSWER_READY, KV_ANSWER_WAIT, KV_ANSWER_MISS };
struct kv_lease { /* holds a replica against release */
    uint32_t chunk;
    enum kv_tier_id tier;
    struct kv_replica_generation replica;
    struct kv_lease_generation lease;
    struct kv_block block;
    uint64_t bytes;
};
/* READY: the tier holds a visible replica and *lease (may be NULL) holds it. WAIT: a promotion to that tier is under way. MISS: neither; it may be in a
 * slower tier. Every field of the identity is compared. */
enum kv_answer kv_directory_lookup(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id tier, struct kv_lease *lease);
enum kv_status kv_directory_release(struct kv_directory *d, struct kv_lease *lease); /* STALE_REPLICA_GENERATION when it was given back before */
/* Nearest, and slowest, tier with a valid replica; −1: none. */
int kv_directory_nearest(const struct kv_directory *d, const struct kv_chunk_identity *id);
int kv_directory_slowest(const struct kv_directory *d, const struct kv_chunk_identity *id);
/* Counts as used now, for policies that look at the time of use; no lookup is counted. */
void kv_directory_touch(struct kv_directory *d, const struct kv_chunk_identity *id);
struct kv_tier *kv_directory_tier(const struct kv_directory *d, enum kv_tier_id tier); /* NULL: not there */

/* ---------------------------------------------------------------- movements */

struct kv_waiter {
    uint32_t transaction, slot;
    struct kv_transfer_generation generation;
};
/* Starts or joins a promotion to `to` (from the nearest slower tier). *join: the transfer runs already, nothing to copy; else *transfer is to be copied
 * and completed. Each waiter may name its own destination, filled at completion. READY tiers answer CONFLICT, unknown chunks NOT_FOUND, a full tier
 * CAPACITY (evict first), too many movements QUEUE_FULL, a hop that is not direct UNSUPPORTED (promote to the host first). */
enum kv_status kv_promote_begin(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id to, void *destination, struct kv_waiter *waiter,
                                bool *join, struct kv_transfer *transfer);
/* Drops one waiter; the shared read goes on for the others. When it was the last, the transaction is dead: its completion frees staging and answers
 * TRANSFER_CANCELLED. */
enum kv_status kv_waiter_cancel(struct kv_directory *d, struct kv_waiter *w);
/* CONFLICT while the movement runs; then OK, or the reason it failed, and the waiter is gone. */
enum kv_status kv_waiter_result(struct kv_directory *d, struct kv_waiter *w);

/* Copies a chunk to a slower tier; the source is released at completion once no lease holds it. */
enum kv_status kv_demote_begin(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id from, enum kv_tier_id to, struct kv_transfer *transfer);

/* Validates and publishes. Typed refusals, nothing published: RECYCLED_DESTINATION (another transfer has the transaction or the block), STALE_CACHE_GENERATION,
 * IDENTITY_MISMATCH, SHORT_COPY, CHECKSUM_MISMATCH, TRANSFER_CANCELLED, or the copy's own status; a failed demotion answers DEMOTION_FAILED. The destination is
 * given back exactly once. */
enum kv_status kv_transfer_complete(struct kv_directory *d, const struct kv_transfer_done *done);

/* ---------------------------------------------------------------- reclaiming */

/* One victim of the eviction policy leaves the tier: dropped when it has another valid replica; else handed back as a demotion to be carried out
 * first (*pending set). CAPACITY when every chunk is leased or moving, LAST_REPLICA when no slower tier can take the last one. */
enum kv_status kv_evict_one(struct kv_directory *d, enum kv_tier_id tier, bool *pending, struct kv_transfer *transfer);
/* The same with the demotion carried out on the calling thread. */
enum kv_status kv_evict_now(struct kv_directory *d, enum kv_tier_id tier);
/* Chunks that are no victims from here on, whatever the policy says; NULL: none. ctx must stay. */
void kv_directory_spare(struct kv_directory *d, bool (*spared)(const void *ctx, const struct kv_chunk_identity *id), const void *ctx);
/* The chunk the policy would let go of in this tier, leased or moving ones apart; NOT_FOUND when there is none. */
enum kv_status kv_directory_victim(const struct kv_directory *d, enum kv_tier_id tier, struct kv_chunk_identity *out);
/* Lets go of a replica, and of the chunk with the last one: what is cached may be recomputed. CONFLICT while leased or moving. Not a durable deletion. */
enum kv_status kv_directory_forget(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id tier);
/* Durable deletion: every replica, in reverse order of nearness; refused while leased or moving. OK is the receipt. */
enum kv_status kv_directory_remove(struct kv_directory *d, const struct kv_chunk_identity *id);
/* Every chunk of a tenant's namespace generation and the ones before it. *removed: how many are gone; the status is the first refusal, after which the
 * others are still removed. */
enum kv_status kv_directory_remove_tenant(struct kv_directory *d, const char *tenant, struct kv_ns_generation up_to, uint64_t *removed);
/* A new authority epoch: replicas of earlier ones no longer count until kv_directory_reauthorise has verified them. */
void kv_directory_fence(struct kv_directory *d);
enum kv_status kv_directory_reauthorise(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id tier);
/* The logical history behind a chunk changed: transfers that began before are refused. */
enum kv_status kv_directory_set_cache_generation(struct kv_directory *d, const struct kv_chunk_identity *id, struct kv_cache_generation g);

/* ---------------------------------------------------------------- facts */

struct kv_directory_stats {
    uint64_t chunks, transactions, waiters, leases;
    uint64_t published, adopted, removed;
    uint64_t hits[KV_TIERS], waits[KV_TIERS], misses[KV_TIERS], lookups[KV_TIERS];
    uint64_t replicas[KV_TIERS], replica_bytes[KV_TIERS], replicas_added[KV_TIERS], replicas_dropped[KV_TIERS], evictions[KV_TIERS];
    uint64_t bytes_added[KV_TIERS], bytes_dropped[KV_TIERS]; /* their difference is replica_bytes */
    uint64_t promotions_begun, promotions_joined, promotions_done, promotions_failed, demotions_begun, demotions_done, demotions_failed;
    uint64_t coalesced_bytes, refused_completions;
};
void kv_directory_stats(const struct kv_directory *d, struct kv_directory_stats *out);
/* INTERNAL, and what failed in err, when an invariant does not hold. */
enum kv_status kv_directory_check(const struct kv_directory *d, struct kv_error *err);
struct kv_authority_generation kv_directory_authority(const struct kv_directory *d);

#endif
