/* snapshot.c — block by block, layer by layer. */
#include "runtime/residency/snapshot.h"

#include <stdlib.h>
#include <string.h>

/* Identity of (layer, block), with prefix the digest up to the block's last token. */
static struct kv_chunk_identity chunk_of(const struct kv_chunk_identity *base, const struct kv_prefix_digest *prefix, int32_t layer, int32_t n_kv_heads, int32_t block)
{
    struct kv_chunk_identity id = *base;
    id.prefix = *prefix;
    id.layer = layer;
    id.head_first = 0;
    id.head_count = n_kv_heads;
    id.position_first = block * KV_BLOCK_ROWS;
    id.position_count = KV_BLOCK_ROWS;
    return id;
}

static struct kv_prefix_digest extend(const struct kv_prefix_digest *previous, const int32_t *tokens, int32_t block)
{
    return kv_prefix_extend(block ? previous : NULL, tokens + (size_t)block * KV_BLOCK_ROWS, KV_BLOCK_ROWS);
}

static bool held_in_every_layer(const struct kv_directory *d, const struct kv_chunk_identity *base, const struct kv_prefix_digest *prefix, int32_t n_layers, int32_t n_kv_heads, int32_t block)
{
    for (int32_t l = 0; l < n_layers; l++) {
        struct kv_chunk_identity id = chunk_of(base, prefix, l, n_kv_heads, block);
        if (kv_directory_nearest(d, &id) < 0) return false;
    }
    return true;
}

/* The layers of a block that are missing, published together; room is made as long as there is any to make. */
static enum kv_status save_block(struct kv_directory *d, const struct kv_chunk_identity *base, const struct kv_prefix_digest *prefix, const struct kv_cache *c, int32_t block,
                                 struct kv_cache_generation generation, enum kv_tier_id tier, double recompute_us, struct kv_chunk_identity *id, const void **payload)
{
    int32_t n = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        id[n] = chunk_of(base, prefix, l, c->n_kv_heads, block);
        payload[n] = c->slab[(size_t)l * (size_t)c->max_blocks + (size_t)block];
        n += kv_directory_nearest(d, &id[n]) < 0;
    }
    if (n == 0) return KV_OK;
    enum kv_status s;
    while ((s = kv_directory_publish_group(d, n, id, generation, tier, payload, c->slab_bytes, recompute_us)) == KV_CAPACITY) {
        enum kv_status room = kv_evict_now(d, tier);
        if (room != KV_OK) return room;
    }
    return s;
}

enum kv_status kv_snapshot_save(struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, const struct kv_cache *c,
                                struct kv_cache_generation generation, enum kv_tier_id tier, double recompute_us, int32_t *blocks)
{
    struct kv_prefix_digest prefix;
    struct kv_chunk_identity *id = malloc((size_t)c->n_layers * sizeof *id);
    const void **payload = malloc((size_t)c->n_layers * sizeof *payload);
    enum kv_status s = id && payload ? KV_OK : KV_OUT_OF_MEMORY;
    *blocks = 0;
    for (int32_t b = 0; b < c->n_sealed && s == KV_OK; b++) {
        prefix = extend(&prefix, tokens, b);
        s = save_block(d, base, &prefix, c, b, generation, tier, recompute_us, id, payload);
        if (s == KV_OK) *blocks = b + 1;
    }
    free(id);
    free(payload);
    return s;
}

int32_t kv_snapshot_probe(const struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, int32_t n_layers, int32_t n_kv_heads)
{
    struct kv_prefix_digest prefix;
    int32_t b = 0;
    for (; b < n_tokens / KV_BLOCK_ROWS; b++) {
        prefix = extend(&prefix, tokens, b);
        if (!held_in_every_layer(d, base, &prefix, n_layers, n_kv_heads, b)) break;
    }
    return b;
}

static enum kv_status read_block(struct kv_directory *d, const struct kv_chunk_identity *base, const struct kv_prefix_digest *prefix, struct kv_cache *c, int32_t block)
{
    for (int32_t l = 0; l < c->n_layers; l++) {
        struct kv_chunk_identity id = chunk_of(base, prefix, l, c->n_kv_heads, block);
        struct kv_lease lease;
        int tier = kv_directory_nearest(d, &id);
        if (tier < 0 || kv_directory_lookup(d, &id, (enum kv_tier_id)tier, &lease) != KV_ANSWER_READY) return KV_NOT_FOUND;
        struct kv_tier *t = kv_directory_tier(d, (enum kv_tier_id)tier);
        uint8_t *slab = c->slab[(size_t)l * (size_t)c->max_blocks + (size_t)block];
        enum kv_status s = lease.bytes == c->slab_bytes ? t->read(t->ctx, lease.block, &id, slab, c->slab_bytes) : KV_SHORT_COPY;
        (void)kv_directory_release(d, &lease);
        if (s != KV_OK) return s;
    }
    return KV_OK;
}

enum kv_status kv_snapshot_restore(struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, struct kv_cache *c, struct kv_arena *a,
                                   int32_t *rows)
{
    struct kv_prefix_digest prefix;
    enum kv_status s = KV_OK;
    *rows = c->n_rows;
    if (c->n_rows % KV_BLOCK_ROWS) return KV_BAD_ARGUMENT;
    for (int32_t b = 0; b < n_tokens / KV_BLOCK_ROWS; b++) {
        prefix = extend(&prefix, tokens, b);
        if (b < c->n_rows / KV_BLOCK_ROWS) continue;
        if (!held_in_every_layer(d, base, &prefix, c->n_layers, c->n_kv_heads, b)) break;
        if ((s = kv_cache_reserve(c, a, KV_BLOCK_ROWS)) == KV_OK) s = read_block(d, base, &prefix, c, b);
        if (s != KV_OK) break;
        c->n_rows += KV_BLOCK_ROWS;
    }
    kv_cache_truncate(c, a, c->n_rows); /* a block that could not be read whole goes back */
    c->n_sealed = c->n_rows / KV_BLOCK_ROWS;
    *rows = c->n_rows;
    return s;
}
