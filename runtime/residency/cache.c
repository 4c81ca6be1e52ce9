/* cache.c — the slab table of one sequence. */
#include "runtime/residency/cache.h"

#include <stdlib.h>
#include <string.h>

enum { SLAB_ALIGN = 4096, MAX_LAYERS = 4096, MAX_HEADS = 4096, MAX_D_HEAD = 4096 };

size_t kv_row_bytes(enum kv_type row_type, int32_t d_head)
{
    switch (row_type) {
    case KV_F32: return (size_t)d_head * 4;
    case KV_F16:
    case KV_BF16: return (size_t)d_head * 2;
    default: return 0; /* K/V rows are stored as floats only */
    }
}

size_t kv_slab_bytes(enum kv_type row_type, int32_t n_kv_heads, int32_t d_head)
{
    size_t bytes = (size_t)n_kv_heads * 2 * KV_BLOCK_ROWS * kv_row_bytes(row_type, d_head);
    return (bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
}

static int32_t blocks_for(int32_t rows)
{
    return rows / KV_BLOCK_ROWS + (rows % KV_BLOCK_ROWS != 0);
}

enum kv_status kv_cache_init(struct kv_cache *c, int32_t n_layers, int32_t n_kv_heads, int32_t d_head, enum kv_type row_type, int32_t max_rows)
{
    memset(c, 0, sizeof *c);
    if (n_layers < 1 || n_layers > MAX_LAYERS || n_kv_heads < 1 || n_kv_heads > MAX_HEADS || d_head < 1 || d_head > MAX_D_HEAD ||
        max_rows < 1 || !kv_row_bytes(row_type, d_head))
        return KV_BAD_ARGUMENT;
    c->n_layers = n_layers;
    c->n_kv_heads = n_kv_heads;
    c->d_head = d_head;
    c->row_type = row_type;
    c->max_blocks = blocks_for(max_rows);
    c->slab_bytes = kv_slab_bytes(row_type, n_kv_heads, d_head);
    c->slab = calloc((size_t)n_layers * (size_t)c->max_blocks, sizeof *c->slab);
    c->read = calloc((size_t)c->max_blocks, sizeof *c->read);
    if (c->slab && c->read) return KV_OK;
    free(c->slab);
    free(c->read);
    memset(c, 0, sizeof *c);
    return KV_OUT_OF_MEMORY;
}

/* Gives back blocks [from, n_blocks) of every layer. */
static void drop_blocks(struct kv_cache *c, struct kv_arena *a, int32_t from)
{
    for (int32_t l = 0; l < c->n_layers; l++)
        for (int32_t b = from; b < c->n_blocks; b++) {
            uint8_t **slab = &c->slab[(size_t)l * (size_t)c->max_blocks + (size_t)b];
            kv_arena_give(a, *slab);
            *slab = NULL;
            c->read[b] = NULL;
        }
    if (c->n_blocks > from) c->n_blocks = from;
}

/* The open block as the cache's own: a copy in every layer, or nothing changed. */
static enum kv_status unshare(struct kv_cache *c, struct kv_arena *a)
{
    size_t block = (size_t)(c->n_rows / KV_BLOCK_ROWS), blocks = (size_t)c->max_blocks;
    for (size_t l = 0; l < (size_t)c->n_layers; l++) {
        uint8_t **slab = &c->slab[l * blocks + block];
        if (!kv_arena_shared(a, *slab)) continue;
        uint8_t *own = kv_arena_take_raw(a);
        if (!own) return KV_CAPACITY; /* layers before this one are copies already: the same rows */
        memcpy(own, *slab, c->slab_bytes);
        kv_arena_give(a, *slab);
        *slab = own;
    }
    return KV_OK;
}

static enum kv_status reserve(struct kv_cache *c, struct kv_arena *a, int32_t n, void *(*take)(struct kv_arena *a))
{
    if (n < 0 || c->n_rows > INT32_MAX - n) return KV_BAD_ARGUMENT;
    int32_t want = blocks_for(c->n_rows + n), had = c->n_blocks;
    if (want > c->max_blocks) return KV_CAPACITY;
    if (n > 0 && c->n_rows % KV_BLOCK_ROWS && unshare(c, a) != KV_OK) return KV_CAPACITY;
    for (; c->n_blocks < want; c->n_blocks++)
        for (int32_t l = 0; l < c->n_layers; l++) {
            uint8_t *slab = take(a);
            c->slab[(size_t)l * (size_t)c->max_blocks + (size_t)c->n_blocks] = slab;
            if (slab) continue;
            c->n_blocks++; /* the half-taken block goes back with the others; its missing slabs are NULL */
            drop_blocks(c, a, had);
            return KV_CAPACITY;
        }
    return KV_OK;
}

enum kv_status kv_cache_reserve(struct kv_cache *c, struct kv_arena *a, int32_t n)
{
    return reserve(c, a, n, kv_arena_take);
}

enum kv_status kv_cache_reserve_raw(struct kv_cache *c, struct kv_arena *a, int32_t n)
{
    return reserve(c, a, n, kv_arena_take_raw);
}

enum kv_status kv_cache_adopt(struct kv_cache *c, struct kv_arena *a, uint8_t *const *slabs)
{
    if (c->n_rows != c->n_blocks * KV_BLOCK_ROWS || c->n_blocks == c->max_blocks) return KV_BAD_ARGUMENT;
    for (int32_t l = 0; l < c->n_layers; l++) {
        kv_arena_share(a, slabs[l]);
        c->slab[(size_t)l * (size_t)c->max_blocks + (size_t)c->n_blocks] = slabs[l];
    }
    c->n_blocks++;
    c->n_rows += KV_BLOCK_ROWS;
    return KV_OK;
}

void kv_cache_truncate(struct kv_cache *c, struct kv_arena *a, int32_t n_rows)
{
    if (n_rows < 0) n_rows = 0;
    if (n_rows < c->n_rows) c->n_rows = n_rows;
    if (c->n_sealed > c->n_rows / KV_BLOCK_ROWS) c->n_sealed = c->n_rows / KV_BLOCK_ROWS;
    drop_blocks(c, a, blocks_for(c->n_rows));
}

void kv_cache_free(struct kv_cache *c, struct kv_arena *a)
{
    if (c->slab) drop_blocks(c, a, 0);
    free(c->slab);
    free(c->read);
    memset(c, 0, sizeof *c);
}
