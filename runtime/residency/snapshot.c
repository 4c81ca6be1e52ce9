/* snapshot.c — block by block, layer by layer. */
#include "runtime/residency/snapshot.h"

#include <stdlib.h>
#include <string.h>

enum kv_status kv_chain_create(const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, int32_t n_layers, int32_t n_kv_heads, struct kv_chain *out)
{
    *out = (struct kv_chain){.base = *base, .n_layers = n_layers, .n_kv_heads = n_kv_heads};
    int32_t n = n_tokens / KV_BLOCK_ROWS;
    out->prefix = malloc(((size_t)n + 1) * sizeof *out->prefix);
    if (!out->prefix) return KV_OUT_OF_MEMORY;
    out->n_blocks = n;
    for (int32_t b = 0; b < n; b++) out->prefix[b] = kv_prefix_extend(b ? &out->prefix[b - 1] : NULL, tokens + (size_t)b * KV_BLOCK_ROWS, KV_BLOCK_ROWS);
    return KV_OK;
}

void kv_chain_free(struct kv_chain *c)
{
    free(c->prefix);
    *c = (struct kv_chain){0};
}

struct kv_chunk_identity kv_chain_chunk(const struct kv_chain *c, int32_t layer, int32_t block)
{
    struct kv_chunk_identity id = c->base;
    id.prefix = c->prefix[block];
    id.layer = layer;
    id.head_first = 0;
    id.head_count = c->n_kv_heads;
    id.position_first = block * KV_BLOCK_ROWS;
    id.position_count = KV_BLOCK_ROWS;
    return id;
}

int32_t kv_chain_held(const struct kv_directory *d, const struct kv_chain *c)
{
    for (int32_t b = 0; b < c->n_blocks; b++)
        for (int32_t l = 0; l < c->n_layers; l++) {
            struct kv_chunk_identity id = kv_chain_chunk(c, l, b);
            if (kv_directory_nearest(d, &id) < 0) return b;
        }
    return c->n_blocks;
}

void kv_chain_touch(struct kv_directory *d, const struct kv_chain *c)
{
    for (int32_t b = c->n_blocks - 1; b >= 0; b--)
        for (int32_t l = 0; l < c->n_layers; l++) {
            struct kv_chunk_identity id = kv_chain_chunk(c, l, b);
            kv_directory_touch(d, &id);
        }
}

static bool of_chain(const void *ctx, const struct kv_chunk_identity *id)
{
    const struct kv_chain *c = ctx;
    int32_t block = id->position_first / KV_BLOCK_ROWS;
    return block < c->n_blocks && !memcmp(c->prefix[block].b, id->prefix.b, sizeof id->prefix.b) && !strncmp(c->base.tenant, id->tenant, KV_NAME_CHARS);
}

/* Lets go of every layer of the block the policy gives up: one layer less makes the others useless. */
static enum kv_status shed(struct kv_directory *d, const struct kv_chain *chain, enum kv_tier_id tier)
{
    struct kv_chunk_identity id;
    if (kv_directory_victim(d, tier, &id) != KV_OK) return KV_CAPACITY;
    if (chain->leaving) chain->leaving->block(chain->leaving->ctx, d, &id);
    int32_t gone = 0;
    for (id.layer = 0; id.layer < chain->n_layers; id.layer++) gone += kv_directory_forget(d, &id, tier) == KV_OK;
    return gone ? KV_OK : KV_CAPACITY;
}

enum kv_status kv_chain_make_room(struct kv_directory *d, const struct kv_chain *chain, enum kv_tier_id tier)
{
    enum kv_status s = kv_evict_now(d, tier);
    if (s != KV_LAST_REPLICA) return s;
    kv_directory_spare(d, of_chain, chain); /* a history is not lost to make room for its own end */
    s = shed(d, chain, tier);
    kv_directory_spare(d, NULL, NULL);
    return s;
}

enum kv_status kv_chain_save(struct kv_directory *d, const struct kv_chain *chain, int32_t first, int32_t n, const struct kv_cache *c,
                             struct kv_cache_generation generation, enum kv_tier_id tier, double recompute_us)
{
    int32_t missing = 0;
    size_t chunks = (size_t)n * (size_t)c->n_layers;
    if (n < 1 || chunks > KV_PUBLISH_MAX) return KV_BAD_ARGUMENT;
    struct kv_chunk_identity *id = malloc(chunks * sizeof *id);
    const void **payload = malloc(chunks * sizeof *payload);
    enum kv_status s = id && payload ? KV_OK : KV_OUT_OF_MEMORY;
    for (int32_t b = first; s == KV_OK && b < first + n; b++)
        for (int32_t l = 0; l < c->n_layers; l++) {
            id[missing] = kv_chain_chunk(chain, l, b);
            payload[missing] = c->slab[(size_t)l * (size_t)c->max_blocks + (size_t)b];
            missing += kv_directory_slowest(d, &id[missing]) < (int)tier;
        }
    if (s == KV_OK && missing)
        while ((s = kv_directory_publish_group(d, missing, id, generation, tier, payload, c->slab_bytes, recompute_us)) == KV_CAPACITY) {
            enum kv_status room = kv_chain_make_room(d, chain, tier);
            if (room != KV_OK) {
                s = room;
                break;
            }
        }
    free(id);
    free(payload);
    return s;
}

/* What may go wrong between a lookup that hit and its read. */
static void inject(struct kv_directory *d, const struct kv_chain *chain, struct kv_chunk_identity *asked, struct kv_lease *lease)
{
    if (!chain->faults || !chain->faults->mask) return;
    if (kv_fault_strikes(chain->faults, KV_FAULT_omitted_position)) asked->position_count--;
    if (kv_fault_strikes(chain->faults, KV_FAULT_corrupted_generation)) lease->block.allocation.n ^= UINT64_C(1) << 40;
    if (kv_fault_strikes(chain->faults, KV_FAULT_lease_loss)) {
        struct kv_lease lost = *lease;
        (void)kv_directory_release(d, &lost);
        (void)kv_directory_forget(d, asked, lease->tier);
    }
}

enum kv_status kv_chain_read(struct kv_directory *d, const struct kv_chain *chain, int32_t layer, int32_t block, struct kv_cache *c, enum kv_tier_id *from)
{
    struct kv_chunk_identity id = kv_chain_chunk(chain, layer, block);
    uint8_t *slab = c->slab[(size_t)layer * (size_t)c->max_blocks + (size_t)block];
    enum kv_status s = KV_NOT_FOUND;
    for (int tier; (tier = kv_directory_nearest(d, &id)) >= 0;) {
        struct kv_lease lease;
        *from = (enum kv_tier_id)tier;
        if (kv_directory_lookup(d, &id, *from, &lease) != KV_ANSWER_READY) return KV_NOT_FOUND;
        struct kv_tier *t = kv_directory_tier(d, *from);
        struct kv_chunk_identity asked = id;
        inject(d, chain, &asked, &lease);
        s = lease.bytes == c->slab_bytes ? t->read(t->ctx, lease.block, &asked, slab, c->slab_bytes) : KV_SHORT_COPY;
        (void)kv_directory_release(d, &lease);
        if (s == KV_OK || kv_directory_forget(d, &id, *from) != KV_OK) return s;
    }
    return s;
}

struct layer_group { /* of blocks that one tier reads together */
    struct kv_chunk_identity *id;
    struct kv_lease *lease;
    struct kv_block *block;
    void **dst;
    enum kv_status *status;
};

static bool group_create(struct layer_group *g, size_t n)
{
    *g = (struct layer_group){malloc(n * sizeof *g->id), malloc(n * sizeof *g->lease), malloc(n * sizeof *g->block), malloc(n * sizeof *g->dst), malloc(n * sizeof *g->status)};
    return g->id && g->lease && g->block && g->dst && g->status;
}

static void group_free(struct layer_group *g)
{
    free(g->id);
    free(g->lease);
    free(g->block);
    free(g->dst);
    free(g->status);
}

/* Leading blocks of [first, end) whose nearest replica lies in `tier`, leased; *t: that tier, NULL when the first is nowhere or its tier reads one by one. */
static int32_t lease_group(struct kv_directory *d, const struct kv_chain *chain, int32_t layer, int32_t first, int32_t end, struct kv_cache *c, struct layer_group *g, struct kv_tier **t)
{
    int tier = -1;
    int32_t n = 0;
    *t = NULL;
    for (; first + n < end; n++) {
        g->id[n] = kv_chain_chunk(chain, layer, first + n);
        int nearest = kv_directory_nearest(d, &g->id[n]);
        if (n == 0 && nearest >= 0) *t = kv_directory_tier(d, (enum kv_tier_id)(tier = nearest));
        if (nearest < 0 || nearest != tier || !(*t)->read_group || kv_directory_lookup(d, &g->id[n], (enum kv_tier_id)tier, &g->lease[n]) != KV_ANSWER_READY) break;
        g->block[n] = g->lease[n].block;
        g->dst[n] = c->slab[(size_t)layer * (size_t)c->max_blocks + (size_t)(first + n)];
    }
    if (n == 0) *t = NULL;
    return n;
}

enum kv_status kv_chain_read_layer(struct kv_directory *d, const struct kv_chain *chain, int32_t layer, int32_t first, int32_t end, struct kv_cache *c, int32_t *whole)
{
    struct layer_group g = {0};
    bool alone = (chain->faults && chain->faults->mask) || !group_create(&g, (size_t)(end - first) + 1);
    enum kv_status s = KV_OK;
    *whole = first;
    while (s == KV_OK && *whole < end) {
        struct kv_tier *t = NULL;
        enum kv_tier_id from;
        int32_t n = alone ? 0 : lease_group(d, chain, layer, *whole, end, c, &g, &t);
        if (t) t->read_group(t->ctx, n, g.block, g.id, g.dst, c->slab_bytes, g.status);
        for (int32_t i = 0; i < n; i++) (void)kv_directory_release(d, &g.lease[i]);
        int32_t good = 0;
        while (good < n && g.status[good] == KV_OK) good++;
        *whole += good;
        if (good == n && n > 0) continue;
        /* Alone, or the one that failed: what is damaged is let go of, and another tier may have it. */
        if (*whole < end && (s = kv_chain_read(d, chain, layer, *whole, c, &from)) == KV_OK) ++*whole;
    }
    group_free(&g);
    return s;
}

/* ---------------------------------------------------------------- whole caches */

enum kv_status kv_snapshot_save(struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, const struct kv_cache *c,
                                struct kv_cache_generation generation, enum kv_tier_id tier, double recompute_us, int32_t *blocks)
{
    struct kv_chain chain;
    enum kv_status s = kv_chain_create(base, tokens, c->n_sealed * KV_BLOCK_ROWS, c->n_layers, c->n_kv_heads, &chain);
    *blocks = 0;
    for (int32_t b = 0; b < c->n_sealed && s == KV_OK; b++) {
        s = kv_chain_save(d, &chain, b, 1, c, generation, tier, recompute_us);
        if (s == KV_OK) *blocks = b + 1;
    }
    kv_chain_free(&chain);
    return s;
}

int32_t kv_snapshot_probe(const struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, int32_t n_layers, int32_t n_kv_heads)
{
    struct kv_chain chain;
    int32_t held = kv_chain_create(base, tokens, n_tokens, n_layers, n_kv_heads, &chain) == KV_OK ? kv_chain_held(d, &chain) : 0;
    kv_chain_free(&chain);
    return held;
}

enum kv_status kv_snapshot_restore(struct kv_directory *d, const struct kv_chunk_identity *base, const int32_t *tokens, int32_t n_tokens, struct kv_cache *c, struct kv_arena *a,
                                   int32_t *rows)
{
    struct kv_chain chain;
    enum kv_tier_id from;
    *rows = c->n_rows;
    if (c->n_rows % KV_BLOCK_ROWS) return KV_BAD_ARGUMENT;
    enum kv_status s = kv_chain_create(base, tokens, n_tokens, c->n_layers, c->n_kv_heads, &chain);
    int32_t held = s == KV_OK ? kv_chain_held(d, &chain) : 0;
    for (int32_t b = c->n_rows / KV_BLOCK_ROWS; b < held && s == KV_OK; b++) {
        s = kv_cache_reserve(c, a, KV_BLOCK_ROWS);
        for (int32_t l = 0; l < c->n_layers && s == KV_OK; l++) s = kv_chain_read(d, &chain, l, b, c, &from);
        if (s == KV_OK) c->n_rows += KV_BLOCK_ROWS;
    }
    kv_cache_truncate(c, a, c->n_rows); /* a block that could not be read whole goes back */
    c->n_sealed = c->n_rows / KV_BLOCK_ROWS;
    *rows = c->n_rows;
    kv_chain_free(&chain);
    return s;
}
