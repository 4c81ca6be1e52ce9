/* snapshot.h — the sealed blocks of a sequence as chunks, and back into another cache: what reuse of a prefix, saving a turn and surviving a
 * restart are made of.
 *
 * One chunk a (layer, block), all K/V heads. Its identity is `base` with prefix, layer, heads and positions filled in, so a block is found only
 * by the same tokens before it, under the same model, numerics, positions, representation, tenant and lineage. The directory's owner thread. */
#ifndef KV_SNAPSHOT_H
#define KV_SNAPSHOT_H

#include "runtime/residency/cache.h"
#include "runtime/residency/directory.h"

/* Publishes blocks [0, n_sealed) of c that the directory does not hold yet into `tier`, evicting to make room; the layers of a block are one
 * group. tokens: at least 64 n_sealed. *blocks: leading blocks held afterwards. The status says why it stopped early (CAPACITY, LAST_REPLICA,
 * NO_SPACE, …): what was saved until then stays and is whole. */
enum kv_status kv_snapshot_save(struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, const struct kv_cache *c,
                                struct kv_cache_generation generation, enum kv_tier_id tier, double recompute_us, int32_t *blocks);
/* Leading whole blocks of these tokens that some tier holds in every layer. Nothing is read. */
int32_t kv_snapshot_probe(const struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, int32_t n_layers, int32_t n_kv_heads);
/* Fills c, which holds whole blocks only, with the blocks that follow them, as many as tokens, directory and arena allow. Every payload is verified.
 * *rows: c->n_rows afterwards. OK when it stopped for lack of tokens or chunks; else the reason, with the rows until then whole. */
enum kv_status kv_snapshot_restore(struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, struct kv_cache *c, struct kv_arena *a,
                                   int32_t *rows);

#endif
