/* prefix.c — a hash table of chains, and a list by last use. */
#include "runtime/service/prefix.h"

#include "runtime/model/transformer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

struct entry {
    struct kv_chunk_digest key;
    int32_t next;         /* in its bucket, or in the list of free entries */
    int32_t older, newer; /* by last use */
};

struct kv_prefix_index {
    int32_t n_layers, max, n, free;
    int32_t oldest, newest;
    int32_t *bucket;      /* [n_buckets] */
    uint32_t n_buckets;   /* a power of two */
    struct entry *entry;  /* [max] */
    uint8_t **slab;       /* [max][n_layers] */
};

enum kv_status kv_prefix_create(int32_t n_layers, int32_t max_blocks, struct kv_prefix_index **out)
{
    *out = NULL;
    struct kv_prefix_index *x = calloc(1, sizeof *x);
    if (!x) return KV_OUT_OF_MEMORY;
    *x = (struct kv_prefix_index){.n_layers = n_layers, .max = max_blocks, .free = NONE, .oldest = NONE, .newest = NONE, .n_buckets = 16};
    while (x->n_buckets < (uint32_t)max_blocks) x->n_buckets *= 2;
    x->bucket = malloc(x->n_buckets * sizeof *x->bucket);
    x->entry = calloc((size_t)max_blocks + 1, sizeof *x->entry);
    x->slab = calloc((size_t)max_blocks * (size_t)n_layers + 1, sizeof *x->slab);
    if (!x->bucket || !x->entry || !x->slab) {
        kv_prefix_destroy(x, NULL);
        return KV_OUT_OF_MEMORY;
    }
    for (uint32_t i = 0; i < x->n_buckets; i++) x->bucket[i] = NONE;
    for (int32_t i = max_blocks - 1; i >= 0; i--) {
        x->entry[i].next = x->free;
        x->free = i;
    }
    *out = x;
    return KV_OK;
}

/* ---------------------------------------------------------------- keys */

void kv_prefix_base(const struct kv_model *m, struct kv_chunk_identity *out)
{
    static const char abi[] = "kvasir.cache.row-major.64.v1";
    const struct kv_weights *w = kv_model_weights(m);
    struct { /* without padding: its bytes are hashed */
        uint8_t frequencies[32];
        float mscale;
        int32_t d_rot, layout, d_head;
    } positions = {{0}, w->rope_mscale, w->d_rot, (int32_t)w->rope_layout, w->d_head};
    kv_sha256(w->inv_freq, (size_t)(w->d_rot / 2) * sizeof *w->inv_freq, positions.frequencies);
    *out = (struct kv_chunk_identity){.head_count = w->n_kv_heads, .position_count = KV_BLOCK_ROWS};
    memcpy(out->model.b, kv_model_info(m)->artifact, sizeof out->model.b);
    kv_sha256(abi, sizeof abi, out->cache_abi.b);
    kv_numerics_id(out->numerics.b);
    kv_sha256(&positions, sizeof positions, out->position_contract.b);
    snprintf(out->representation, sizeof out->representation, "kv-%s-post-rope-v1", kv_type_name(KV_ROW_TYPE));
    snprintf(out->support, sizeof out->support, "exact");
}

struct kv_chunk_digest kv_prefix_key(const struct kv_chunk_identity *base, const struct kv_prefix_digest *prefix, int32_t block)
{
    struct kv_chunk_identity id = *base;
    id.prefix = *prefix;
    id.position_first = block * KV_BLOCK_ROWS;
    return kv_chunk_digest(&id);
}

static uint32_t bucket_of(const struct kv_prefix_index *x, const struct kv_chunk_digest *key)
{
    uint32_t h;
    memcpy(&h, key->b, sizeof h);
    return h & (x->n_buckets - 1);
}

static int32_t find(const struct kv_prefix_index *x, const struct kv_chunk_digest *key)
{
    int32_t i = x->bucket[bucket_of(x, key)];
    while (i != NONE && memcmp(&x->entry[i].key, key, sizeof *key)) i = x->entry[i].next;
    return i;
}

uint8_t *const *kv_prefix_find(const struct kv_prefix_index *x, const struct kv_chunk_digest *key)
{
    int32_t i = find(x, key);
    return i == NONE ? NULL : x->slab + (size_t)i * (size_t)x->n_layers;
}

/* ---------------------------------------------------------------- order of use */

static void unlink_use(struct kv_prefix_index *x, int32_t i)
{
    struct entry *e = &x->entry[i];
    *(e->older == NONE ? &x->oldest : &x->entry[e->older].newer) = e->newer;
    *(e->newer == NONE ? &x->newest : &x->entry[e->newer].older) = e->older;
}

/* Just older than `newer`; NONE: the newest. */
static void link_use(struct kv_prefix_index *x, int32_t i, int32_t newer)
{
    struct entry *e = &x->entry[i];
    e->newer = newer;
    e->older = newer == NONE ? x->newest : x->entry[newer].older;
    *(e->older == NONE ? &x->oldest : &x->entry[e->older].newer) = i;
    *(newer == NONE ? &x->newest : &x->entry[newer].older) = i;
}

void kv_prefix_touch(struct kv_prefix_index *x, const struct kv_chunk_digest *key)
{
    int32_t i = find(x, key);
    if (i == NONE) return;
    unlink_use(x, i);
    link_use(x, i, NONE);
}

/* ---------------------------------------------------------------- in and out */

static void drop(struct kv_prefix_index *x, struct kv_arena *a, int32_t i)
{
    int32_t *at = &x->bucket[bucket_of(x, &x->entry[i].key)];
    while (*at != i) at = &x->entry[*at].next;
    *at = x->entry[i].next;
    unlink_use(x, i);
    for (int32_t l = 0; l < x->n_layers; l++) kv_arena_give(a, x->slab[(size_t)i * (size_t)x->n_layers + (size_t)l]);
    x->entry[i].next = x->free;
    x->free = i;
    x->n--;
}

bool kv_prefix_evict(struct kv_prefix_index *x, struct kv_arena *a)
{
    for (int32_t i = x->oldest; i != NONE; i = x->entry[i].newer)
        if (!kv_arena_shared(a, x->slab[(size_t)i * (size_t)x->n_layers])) {
            drop(x, a, i);
            return true;
        }
    return false;
}

void kv_prefix_put(struct kv_prefix_index *x, struct kv_arena *a, const struct kv_chunk_digest *key, const struct kv_chunk_digest *parent,
                   uint8_t *const *slab, size_t stride)
{
    if (find(x, key) != NONE) return;
    if (x->free == NONE && !kv_prefix_evict(x, a)) return;
    int32_t i = x->free;
    x->free = x->entry[i].next;
    uint32_t b = bucket_of(x, key);
    x->entry[i].key = *key;
    x->entry[i].next = x->bucket[b];
    x->bucket[b] = i;
    link_use(x, i, parent ? find(x, parent) : NONE);
    for (int32_t l = 0; l < x->n_layers; l++) {
        uint8_t *s = slab[(size_t)l * stride];
        kv_arena_share(a, s);
        x->slab[(size_t)i * (size_t)x->n_layers + (size_t)l] = s;
    }
    x->n++;
}

void kv_prefix_clear(struct kv_prefix_index *x, struct kv_arena *a)
{
    while (x->oldest != NONE) drop(x, a, x->oldest);
}

int32_t kv_prefix_blocks(const struct kv_prefix_index *x)
{
    return x->n;
}

void kv_prefix_destroy(struct kv_prefix_index *x, struct kv_arena *a)
{
    if (!x) return;
    if (a) kv_prefix_clear(x, a);
    free(x->bucket);
    free(x->entry);
    free(x->slab);
    free(x);
}
