/* simulate_pool.c — see simulate_pool.h. A hash of slots; the order of eviction is a list where it is one of time, a heap elsewhere. */
#include "runtime/service/simulate_pool.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

struct slot {
    uint64_t block, touched;
    double value;
    uint32_t touches;
    int32_t before, after; /* list: towards the least and the most recent; heap: before is the index */
    int32_t chain;
};

struct kv_pool {
    size_t capacity, n, n_heads; /* n_heads: a power of two */
    enum kv_eviction eviction;
    struct slot *slot;
    int32_t *head, *heap, free, first, last;
    double inflation;
    uint64_t clock;
};

static const char *const names[KV_EVICTIONS] = {"lru", "fifo", "lfu", "value"};

const char *kv_eviction_name(enum kv_eviction e)
{
    return (unsigned)e < KV_EVICTIONS ? names[e] : "unknown";
}

bool kv_eviction_from_name(const char *name, enum kv_eviction *out)
{
    for (int i = 0; i < KV_EVICTIONS; i++)
        if (!strcmp(name, names[i])) return *out = (enum kv_eviction)i, true;
    return false;
}

enum kv_status kv_pool_create(size_t capacity, size_t most, enum kv_eviction eviction, struct kv_pool **out)
{
    *out = NULL;
    if (!capacity || capacity > most) capacity = most ? most : 1;
    if (capacity > INT32_MAX / 2) return KV_BAD_ARGUMENT;
    struct kv_pool *p = calloc(1, sizeof *p);
    if (!p) return KV_OUT_OF_MEMORY;
    *p = (struct kv_pool){.capacity = capacity, .eviction = eviction, .first = NONE, .last = NONE, .n_heads = 16};
    while (p->n_heads < capacity * 2) p->n_heads *= 2;
    p->slot = calloc(capacity, sizeof *p->slot);
    p->head = malloc(p->n_heads * sizeof *p->head);
    p->heap = malloc(capacity * sizeof *p->heap);
    if (!p->slot || !p->head || !p->heap) return kv_pool_destroy(p), KV_OUT_OF_MEMORY;
    memset(p->head, 0xff, p->n_heads * sizeof *p->head);
    for (size_t i = 0; i < capacity; i++) p->slot[i].chain = i + 1 < capacity ? (int32_t)i + 1 : NONE;
    *out = p;
    return KV_OK;
}

void kv_pool_destroy(struct kv_pool *p)
{
    if (!p) return;
    free(p->slot);
    free(p->head);
    free(p->heap);
    free(p);
}

static size_t bucket(const struct kv_pool *p, uint64_t block)
{
    return (size_t)((block * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (p->n_heads - 1);
}

static int32_t find(const struct kv_pool *p, uint64_t block)
{
    int32_t i = p->head[bucket(p, block)];
    while (i != NONE && p->slot[i].block != block) i = p->slot[i].chain;
    return i;
}

bool kv_pool_has(const struct kv_pool *p, uint64_t block)
{
    return find(p, block) != NONE;
}

size_t kv_pool_count(const struct kv_pool *p)
{
    return p->n;
}

/* ---------------------------------------------------------------- order of eviction */

static bool heaped(const struct kv_pool *p)
{
    return p->eviction == KV_EVICT_LFU || p->eviction == KV_EVICT_VALUE;
}

static bool leaves_before(const struct kv_pool *p, int32_t a, int32_t b)
{
    const struct slot *x = &p->slot[a], *y = &p->slot[b];
    return x->value != y->value ? x->value < y->value : x->touched < y->touched;
}

static void put(struct kv_pool *p, size_t at, int32_t i)
{
    p->heap[at] = i;
    p->slot[i].before = (int32_t)at;
}

static void sift(struct kv_pool *p, size_t at)
{
    int32_t i = p->heap[at];
    for (; at && leaves_before(p, i, p->heap[(at - 1) / 2]); at = (at - 1) / 2) put(p, at, p->heap[(at - 1) / 2]);
    for (size_t child; (child = 2 * at + 1) < p->n; at = child) {
        if (child + 1 < p->n && leaves_before(p, p->heap[child + 1], p->heap[child])) child++;
        if (!leaves_before(p, p->heap[child], i)) break;
        put(p, at, p->heap[child]);
    }
    put(p, at, i);
}

static void unlink_slot(struct kv_pool *p, int32_t i)
{
    struct slot *s = &p->slot[i];
    if (s->before != NONE) p->slot[s->before].after = s->after;
    else p->first = s->after;
    if (s->after != NONE) p->slot[s->after].before = s->before;
    else p->last = s->before;
}

static void append(struct kv_pool *p, int32_t i)
{
    p->slot[i].before = p->last;
    p->slot[i].after = NONE;
    if (p->last != NONE) p->slot[p->last].after = i;
    else p->first = i;
    p->last = i;
}

static void drop(struct kv_pool *p, int32_t i)
{
    struct slot *s = &p->slot[i];
    int32_t *at = &p->head[bucket(p, s->block)];
    while (*at != i) at = &p->slot[*at].chain;
    *at = s->chain;
    if (heaped(p)) {
        size_t hole = (size_t)s->before;
        if (hole != --p->n) {
            put(p, hole, p->heap[p->n]);
            sift(p, hole);
        }
    } else {
        unlink_slot(p, i);
        p->n--;
    }
    s->chain = p->free;
    p->free = i;
}

bool kv_pool_remove(struct kv_pool *p, uint64_t block)
{
    int32_t i = find(p, block);
    if (i != NONE) drop(p, i);
    return i != NONE;
}

static void rate(struct kv_pool *p, struct slot *s, double saved)
{
    s->touches++;
    s->touched = ++p->clock;
    s->value = p->eviction == KV_EVICT_LFU ? (double)s->touches : p->inflation + (double)s->touches * saved;
}

void kv_pool_touch(struct kv_pool *p, uint64_t block, double saved, bool *hit, bool *evicted, uint64_t *gone)
{
    int32_t i = find(p, block);
    *hit = i != NONE;
    *evicted = false;
    if (*hit) {
        rate(p, &p->slot[i], saved);
        if (heaped(p)) sift(p, (size_t)p->slot[i].before);
        else if (p->eviction == KV_EVICT_LRU && p->last != i) unlink_slot(p, i), append(p, i);
        return;
    }
    if (p->n == p->capacity) {
        int32_t out = heaped(p) ? p->heap[0] : p->first;
        *evicted = true;
        *gone = p->slot[out].block;
        p->inflation = p->slot[out].value;
        drop(p, out);
    }
    i = p->free;
    struct slot *s = &p->slot[i];
    p->free = s->chain;
    size_t b = bucket(p, block);
    *s = (struct slot){.block = block, .chain = p->head[b]};
    p->head[b] = i;
    rate(p, s, saved);
    if (heaped(p)) {
        put(p, p->n++, i);
        sift(p, p->n - 1);
    } else {
        append(p, i);
        p->n++;
    }
}

/* ---------------------------------------------------------------- a trace through one pool */

enum kv_status kv_pool_run(const struct kv_sim_trace *t, size_t capacity, enum kv_eviction eviction, struct kv_pool_result *out)
{
    struct kv_pool *p;
    enum kv_status s = kv_pool_create(capacity, t->n_blocks, eviction, &p);
    if (s != KV_OK) return s;
    *out = (struct kv_pool_result){.requests = t->n_requests, .blocks = t->n_blocks};
    for (size_t r = 0; r < t->n_requests; r++) {
        const struct kv_sim_request *q = &t->request[r];
        bool whole = true, hit, evicted;
        uint64_t gone, hits = 0;
        for (uint32_t i = 0; i < q->n_blocks; i++) {
            kv_pool_touch(p, t->block[q->first_block + i], 1, &hit, &evicted, &gone);
            whole &= hit;
            hits += whole;
            out->evictions += evicted;
        }
        uint64_t tokens = hits * (uint64_t)t->block_tokens, input = (uint64_t)q->input_tokens;
        out->block_hits += hits;
        out->input_tokens += input;
        out->hit_tokens += tokens < input ? tokens : input;
    }
    kv_pool_destroy(p);
    return KV_OK;
}

enum kv_status kv_pool_size_for(const struct kv_sim_trace *t, double share, size_t *capacity, double *best)
{
    struct kv_pool_result r;
    enum kv_status s = kv_pool_run(t, 0, KV_EVICT_LRU, &r);
    if (s != KV_OK) return s;
    *best = r.blocks ? (double)r.block_hits / (double)r.blocks : 0;
    if (*best < share) return KV_NOT_FOUND;
    size_t low = 0, high = t->n_blocks; /* hits grow with the capacity under LRU; low does not reach the share, high does */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if ((s = kv_pool_run(t, middle, KV_EVICT_LRU, &r)) != KV_OK) return s;
        if ((double)r.block_hits >= share * (double)r.blocks) high = middle;
        else low = middle;
    }
    *capacity = high;
    return KV_OK;
}
