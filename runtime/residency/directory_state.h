/* directory_state.h — a directory from the inside, for directory.c and directory_move.c only. */
#ifndef KV_DIRECTORY_STATE_H
#define KV_DIRECTORY_STATE_H

#include "runtime/residency/directory.h"

#define KV_NONE UINT32_MAX

struct replica {
    bool present, retiring; /* retiring: released as soon as its last lease is back; takes no new one */
    struct kv_block block;
    struct kv_replica_generation generation;
    struct kv_authority_generation authority;
    uint32_t leases;
    uint64_t uses, since, rank;    /* lookups answered here; lookups of the tier when it came; uses on top of the tier's age */
};

struct chunk { /* what every lookup reads lies together */
    bool used;
    uint32_t writing; /* transaction that moves it, or KV_NONE */
    uint64_t key;     /* kv_chunk_key of the identity */
    uint64_t bytes;
    struct kv_chunk_identity identity;
    struct replica replica[KV_TIERS];
    struct kv_cache_generation cache;
    double recompute_us;
};

struct links { /* list of a tier: by insertion (FIFO), by use (LRU). Apart from the chunks: moving one touches its neighbours */
    uint32_t newer, older;
};

struct place { /* of the table: the key's upper half tells most other chunks apart without a look at them */
    uint32_t chunk, mark;
};

struct transaction {
    bool used, demotion, cancelled, copied; /* copied: completed, waiting for leases on the source */
    enum kv_residency_state state;
    struct kv_transfer transfer;
    uint32_t chunk;
    enum kv_tier_id from, to;
    uint32_t n_waiters; /* live */
};

struct waiter {
    bool used, done;
    uint32_t transaction;
    struct kv_transfer_generation generation;
    void *destination;
    enum kv_status status;
};

struct kv_directory {
    struct kv_directory_config config;
    struct chunk *chunk;
    uint32_t *free_chunk, n_free, table_mask;
    struct place *table;
    struct transaction *transaction;
    struct waiter *waiter;
    uint32_t max_waiters;
    uint8_t *staging; /* [max_transactions][max_payload_bytes] */
    struct links *links[KV_TIERS]; /* [max_chunks]; NULL where there is no tier */
    uint32_t newest[KV_TIERS], oldest[KV_TIERS];
    struct kv_authority_generation authority;
    uint64_t next_replica, next_transfer, next_lease;
    double typical_recompute_us; /* of the chunk published last: what was found at the start is valued by it, since its cost was not kept */
    uint64_t age[KV_TIERS]; /* rank of the last victim: what was popular once does not stay for ever (LFU with dynamic ageing) */
    bool (*spared)(const void *ctx, const struct kv_chunk_identity *id);
    const void *spared_ctx;
    struct kv_directory_stats stats;
};

uint32_t kv_directory_find(const struct kv_directory *d, const struct kv_chunk_identity *id); /* KV_NONE */
/* A published replica of the current epoch that is to stay. */
bool kv_replica_counts(const struct kv_directory *d, const struct replica *r);
int32_t kv_replicas_counting(const struct kv_directory *d, const struct chunk *c);
void kv_replica_add(struct kv_directory *d, uint32_t chunk, enum kv_tier_id tier, struct kv_block b);
/* The block goes back to its tier. The caller has seen to leases and to R_min. */
void kv_replica_drop(struct kv_directory *d, uint32_t chunk, enum kv_tier_id tier);
/* Called when the last lease of a retiring replica came back. */
void kv_transaction_source_free(struct kv_directory *d, uint32_t transaction);

#endif
