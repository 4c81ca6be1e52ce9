/* snapshot.h — the sealed blocks of a sequence as chunks, and back into another cache: what reuse of a prefix, saving a turn and surviving a
 * restart are made of.
 *
 * One chunk a (layer, block), all K/V heads. Its identity is `base` with prefix, layer, heads and positions filled in, so a block is found only
 * by the same tokens before it, under the same model, numerics, positions, representation, tenant and lineage. The directory's owner thread. */
#ifndef KV_SNAPSHOT_H
#define KV_SNAPSHOT_H

#include "runtime/residency/cache.h"
#include "runtime/residency/directory.h"

struct kv_leaving { /* told of a block, by the identity of one of its layers, before all of them are let go of */
    void (*block)(void *ctx, struct kv_directory *d, const struct kv_chunk_identity *id);
    void *ctx;
};
struct kv_chain { /* the whole blocks of a token sequence, by the digests that name them */
    struct kv_chunk_identity base;
    int32_t n_layers, n_kv_heads, n_blocks;
    struct kv_prefix_digest *prefix; /* [n_blocks] up to the last token of each */
    const struct kv_fault_marks *faults; /* injected ones that reads of it meet; NULL: none */
    const struct kv_leaving *leaving;    /* of what makes room for it; NULL: nobody is told */
};
/* OUT_OF_MEMORY leaves a chain that may be freed. */
enum kv_status kv_chain_create(const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, int32_t n_layers, int32_t n_kv_heads, struct kv_chain *out);
void kv_chain_free(struct kv_chain *c);
struct kv_chunk_identity kv_chain_chunk(const struct kv_chain *c, int32_t layer, int32_t block);

/* Leading blocks that some tier holds in every layer. Nothing is read. */
int32_t kv_chain_held(const struct kv_directory *d, const struct kv_chain *c);
/* The layers of blocks [first, first + n) that neither `tier` nor a slower one holds, published there as one group, all or none. Room is made by the directory's policy: replicas with
 * another copy are dropped, the last ones move to a slower tier, and where there is none whole blocks of other chains are let go of. The status says why
 * the blocks are not there (CAPACITY, NO_SPACE, IO_ERROR, …; BAD_ARGUMENT for more than KV_PUBLISH_MAX chunks). */
enum kv_status kv_chain_save(struct kv_directory *d, const struct kv_chain *chain, int32_t first, int32_t n, const struct kv_cache *c, struct kv_cache_generation generation,
                             enum kv_tier_id tier, double recompute_us);
/* Makes room in a tier: one victim of the policy leaves it, or moves to a slower tier, or goes with all layers of its block. A chain never makes room for its own end. */
enum kv_status kv_chain_make_room(struct kv_directory *d, const struct kv_chain *chain, enum kv_tier_id tier);
/* Reads one slab into the cache, verified, from the nearest tier that has it whole; a replica that cannot be read is let go of. *from: that tier. */
enum kv_status kv_chain_read(struct kv_directory *d, const struct kv_chain *chain, int32_t layer, int32_t block, struct kv_cache *c, enum kv_tier_id *from);
/* One layer of blocks [first, end), side by side where their tier reads groups. *whole: `end`, or the first block that could not be read; the status says why. */
enum kv_status kv_chain_read_layer(struct kv_directory *d, const struct kv_chain *chain, int32_t layer, int32_t first, int32_t end, struct kv_cache *c, int32_t *whole);
/* As used now, the last block first: when room is short a chain goes from its end. */
void kv_chain_touch(struct kv_directory *d, const struct kv_chain *c);

/* Publishes blocks [0, n_sealed) of c; tokens: at least 64 n_sealed. *blocks: leading blocks held afterwards; what was saved until it stopped is whole. */
enum kv_status kv_snapshot_save(struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, const struct kv_cache *c,
                                struct kv_cache_generation generation, enum kv_tier_id tier, double recompute_us, int32_t *blocks);
int32_t kv_snapshot_probe(const struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, int32_t n_layers, int32_t n_kv_heads);
/* Fills c, which holds whole blocks only, with the blocks that follow them, as many as tokens, directory and arena allow. Every payload is verified.
 * *rows: c->n_rows afterwards. OK when it stopped for lack of tokens or chunks; else the reason, with the rows until then whole. */
enum kv_status kv_snapshot_restore(struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, struct kv_cache *c, struct kv_arena *a,
                                   int32_t *rows);

#endif
