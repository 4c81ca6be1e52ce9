/* tier.h — what a tier can do, as a record, and how payloads are reserved, written, read and released in it.
 *
 * Code asks the capability record, never the tier's name. reserve, release and erase are called by the directory's owner; write and read by
 * transfer threads, on blocks that are reserved and held. A block carries the allocation generation it was reserved with: the place may be
 * reused, the pair never is. */
#ifndef KV_TIER_H
#define KV_TIER_H

#include "runtime/identity/identity.h"

enum kv_tier_id { KV_TIER_DEVICE, KV_TIER_HOST, KV_TIER_DISK, KV_TIER_REMOTE, KV_TIERS };

struct kv_tier_capability {
    const char *name, *address_space; /* "device"; "host", "device", "file" */
    bool kernel_readable;             /* attention may read it in place */
    bool dma_source, dma_destination; /* may be an end of a direct hop to a kernel-readable tier */
    const char *codecs, *layouts;     /* comma-separated */
    bool partial_attention;
    const char *persistence;          /* "process", "machine", "store" */
    const char *trust;                /* "process", "authenticated" */
    uint32_t alignment_bytes;
    const char *checksum;             /* what a read verifies: "xxh3-64", "aes-256-gcm" */
    bool visible_on_write;            /* false: a write becomes visible only by publication */
    bool emulated;
};

struct kv_block {
    uint64_t place;
    struct kv_allocation_generation allocation;
};

struct kv_tier {
    struct kv_tier_capability capability;
    void *ctx;
    /* CAPACITY at the cap, NO_SPACE when the disk itself has none or its reserve would be touched. */
    enum kv_status (*reserve)(void *ctx, uint64_t bytes, const struct kv_chunk_identity *id, struct kv_block *out);
    void (*release)(void *ctx, struct kv_block b); /* the bytes are zeroed or unreadable before anybody else has the place */
    bool (*current)(void *ctx, struct kv_block b); /* the place still belongs to this allocation */
    /* *hash: XXH3-64 of what was stored where the tier keeps one, else 0. */
    enum kv_status (*write)(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint64_t *hash);
    /* n payloads of one length at the price of one durable write; all or none counts. NULL where a group gains nothing. */
    enum kv_status (*write_group)(void *ctx, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, const void *const *payload, uint64_t bytes);
    /* n payloads of one length side by side, each with its own verdict. NULL where a group gains nothing. */
    void (*read_group)(void *ctx, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, void *const *dst, uint64_t bytes, enum kv_status *each);
    /* Verifies length, identity and checksum; nothing is in dst unless OK. */
    enum kv_status (*read)(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, void *dst, uint64_t bytes);
    /* Durable deletion, apart from eviction; OK is the receipt. NULL where nothing outlives the process: release is deletion there. */
    enum kv_status (*erase)(void *ctx, struct kv_block b);
    uint64_t (*used_bytes)(void *ctx);
    uint64_t (*capacity_bytes)(void *ctx);
    /* Payload in place and the hash it was stored with, identity and length checked; NULL where payloads must be read. */
    enum kv_status (*view)(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, uint64_t bytes, const void **payload, uint64_t *hash);
};

/* Equal slabs of memory under a cap, each with its allocation generation and checksum. */
enum kv_status kv_tier_memory_create(const char *name, const char *address_space, bool emulated, size_t slab_bytes, uint64_t capacity_bytes, struct kv_tier *out);
void kv_tier_memory_destroy(struct kv_tier *t);
/* A hop is direct when one end is host memory; all others go through it, hop by hop. */
bool kv_tier_direct(const struct kv_tier *from, const struct kv_tier *to);

#endif
