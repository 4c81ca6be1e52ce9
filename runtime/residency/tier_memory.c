/* tier_memory.c — the device and host tiers: an arena, and for each slab whose it is and what its bytes hash to. */
#include "kernels/digest.h"
#include "runtime/residency/cache.h"
#include "runtime/residency/tier.h"

#include <stdlib.h>
#include <string.h>

struct slab_record {
    uint64_t generation; /* of the allocation that holds it; 0: free */
    uint64_t bytes, checksum;
    struct kv_chunk_identity chunk;
};

struct memory {
    struct kv_arena *arena;
    uint8_t *first; /* slabs are numbered from here */
    size_t slab_bytes;
    uint64_t n_slabs, next_generation;
    struct slab_record *record;
};

static struct slab_record *held(struct memory *m, struct kv_block b)
{
    if (b.place >= m->n_slabs || b.allocation.n == 0 || m->record[b.place].generation != b.allocation.n) return NULL;
    return &m->record[b.place];
}

static uint8_t *slab_at(struct memory *m, struct kv_block b)
{
    return m->first + b.place * m->slab_bytes;
}

static enum kv_status memory_reserve(void *ctx, uint64_t bytes, const struct kv_chunk_identity *id, struct kv_block *out)
{
    struct memory *m = ctx;
    (void)id;
    if (bytes > m->slab_bytes) return KV_BAD_ARGUMENT;
    /* What the last owner left stays unreadable: a slab answers reads only after a whole write, and then of that write's bytes. */
    uint8_t *slab = kv_arena_take_raw(m->arena);
    if (!slab) return KV_CAPACITY;
    out->place = (uint64_t)(slab - m->first) / m->slab_bytes;
    out->allocation.n = ++m->next_generation;
    m->record[out->place] = (struct slab_record){.generation = out->allocation.n};
    return KV_OK;
}

static void memory_release(void *ctx, struct kv_block b)
{
    struct memory *m = ctx;
    struct slab_record *r = held(m, b);
    if (!r) return;
    r->generation = 0;
    kv_arena_give(m->arena, slab_at(m, b));
}

static bool memory_current(void *ctx, struct kv_block b)
{
    return held(ctx, b) != NULL;
}

static enum kv_status memory_write(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint64_t *hash)
{
    struct memory *m = ctx;
    struct slab_record *r = held(m, b);
    *hash = 0;
    if (!r) return KV_RECYCLED_DESTINATION;
    if (bytes > m->slab_bytes) return KV_BAD_ARGUMENT;
    r->checksum = *hash = kv_copy_xxh3(slab_at(m, b), payload, bytes);
    memset(slab_at(m, b) + bytes, 0, m->slab_bytes - bytes);
    r->bytes = bytes;
    r->chunk = *id;
    return KV_OK;
}

static enum kv_status memory_view(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, uint64_t bytes, const void **payload, uint64_t *hash)
{
    struct memory *m = ctx;
    struct slab_record *r = held(m, b);
    if (!r) return KV_STALE_REPLICA_GENERATION;
    if (r->bytes && memcmp(&r->chunk, id, sizeof *id) && kv_identity_compare(&kv_chunk_type, &r->chunk, id, NULL) != KV_OK) return KV_IDENTITY_MISMATCH;
    if (bytes != r->bytes) return KV_SHORT_COPY;
    *payload = slab_at(m, b);
    *hash = r->checksum;
    return KV_OK;
}

static enum kv_status memory_read(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, void *dst, uint64_t bytes)
{
    const void *payload;
    uint64_t hash;
    enum kv_status s = memory_view(ctx, b, id, bytes, &payload, &hash);
    if (s != KV_OK) return s;
    if (kv_copy_xxh3(dst, payload, bytes) == hash) return KV_OK;
    memset(dst, 0, bytes);
    return KV_CHECKSUM_MISMATCH;
}

static uint64_t memory_used(void *ctx)
{
    return kv_arena_used_bytes(((struct memory *)ctx)->arena);
}

static uint64_t memory_capacity(void *ctx)
{
    return kv_arena_capacity_bytes(((struct memory *)ctx)->arena);
}

bool kv_tier_direct(const struct kv_tier *from, const struct kv_tier *to)
{
    return !strcmp(from->capability.address_space, "host") || !strcmp(to->capability.address_space, "host");
}

enum kv_status kv_tier_memory_create(const char *name, const char *address_space, bool emulated, size_t slab_bytes, uint64_t capacity_bytes, struct kv_tier *out)
{
    struct memory *m = calloc(1, sizeof *m);
    if (!m) return KV_OUT_OF_MEMORY;
    memset(out, 0, sizeof *out);
    enum kv_status s = kv_arena_create(slab_bytes, capacity_bytes, &m->arena);
    if (s == KV_OK) {
        m->slab_bytes = slab_bytes;
        m->n_slabs = capacity_bytes / slab_bytes;
        m->record = calloc(m->n_slabs + 1, sizeof *m->record);
        s = m->record ? KV_OK : KV_OUT_OF_MEMORY;
    }
    if (s != KV_OK) {
        kv_arena_destroy(m->arena);
        free(m);
        return s;
    }
    void *first = kv_arena_take(m->arena); /* the first slab taken is the lowest */
    m->first = first;
    if (first) kv_arena_give(m->arena, first);
    *out = (struct kv_tier){.capability = {.name = name, .address_space = address_space, .kernel_readable = true, .dma_source = true, .dma_destination = true,
                                           .codecs = "identity", .layouts = "slab-64", .partial_attention = true, .persistence = "process", .trust = "process",
                                           .alignment_bytes = 4096, .checksum = "xxh3-64", .emulated = emulated},
                            .ctx = m, .reserve = memory_reserve, .release = memory_release, .current = memory_current, .write = memory_write, .read = memory_read,
                            .used_bytes = memory_used, .capacity_bytes = memory_capacity, .view = memory_view};
    return KV_OK;
}

void kv_tier_memory_destroy(struct kv_tier *t)
{
    struct memory *m = t->ctx;
    if (!m) return;
    kv_arena_destroy(m->arena);
    free(m->record);
    free(m);
    t->ctx = NULL;
}
