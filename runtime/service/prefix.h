/* prefix.h — sealed blocks that other sequences may read: which slabs hold the rows of a chunk, found by its digest (contract §2).
 *
 * A block is found only by the same tokens before it under the same model, numerics, positions, representation, tenant namespace and
 * lineage: all of these are in the key. Its slabs are shared with the sequences that read them (kv_arena_share) and are never written
 * again. The index holds one share of each, so that it alone keeps a block no sequence reads; these are given up, least recently used
 * first and the end of a chain before its beginning, when a sequence needs the room. Nothing allocates after create. Decode thread. */
#ifndef KV_PREFIX_H
#define KV_PREFIX_H

#include "runtime/identity/identity.h"
#include "runtime/residency/cache.h"

struct kv_prefix_index;
enum kv_status kv_prefix_create(int32_t n_layers, int32_t max_blocks, struct kv_prefix_index **out);
void kv_prefix_destroy(struct kv_prefix_index *x, struct kv_arena *a);

/* What is equal for all blocks of an engine: model, numerics, ABI, positions, representation, exact lineage. */
struct kv_model;
void kv_prefix_base(const struct kv_model *m, struct kv_chunk_identity *out);
/* Key of block `block` whose tokens end the prefix given; one chunk of all layers, under layer 0's identity. */
struct kv_chunk_digest kv_prefix_key(const struct kv_chunk_identity *base, const struct kv_prefix_digest *prefix, int32_t block);

/* [n_layers] slabs of the block, or NULL. */
uint8_t *const *kv_prefix_find(const struct kv_prefix_index *x, const struct kv_chunk_digest *key);
/* Marks it as used now. Touch the end of a chain first. */
void kv_prefix_touch(struct kv_prefix_index *x, const struct kv_chunk_digest *key);
/* Shares the slabs [n_layers] at `stride` pointers; a key that is there already changes nothing. parent: key of the block before, or NULL. */
void kv_prefix_put(struct kv_prefix_index *x, struct kv_arena *a, const struct kv_chunk_digest *key, const struct kv_chunk_digest *parent,
                   uint8_t *const *slab, size_t stride);
/* Gives up one block that no sequence reads; false when there is none. */
bool kv_prefix_evict(struct kv_prefix_index *x, struct kv_arena *a);
void kv_prefix_clear(struct kv_prefix_index *x, struct kv_arena *a); /* gives up all; sequences that read some go on */
int32_t kv_prefix_blocks(const struct kv_prefix_index *x);

#endif
