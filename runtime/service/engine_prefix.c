/* engine_prefix.c — a sequence takes the rows of its prefix from the index, and gives it the blocks it sealed. */
#include "runtime/service/engine.h"

#include <string.h>

/* Key of the block after the prefix, once all its tokens are there. */
static bool next_key(struct kv_engine *e, struct kv_sequence *s)
{
    int32_t b = s->prefix_blocks, end = (b + 1) * KV_BLOCK_ROWS;
    if (s->next_block == b) return true;
    if (end > s->n_tokens) return false;
    struct kv_chunk_identity id = e->prefix_base;
    memcpy(id.tenant, s->tenant, sizeof id.tenant);
    s->next_prefix = kv_prefix_extend(b ? &s->prefix : NULL, s->tokens + (size_t)b * KV_BLOCK_ROWS, KV_BLOCK_ROWS);
    s->next_key = kv_prefix_key(&id, &s->next_prefix, b);
    s->next_block = b;
    return true;
}

static void advance(struct kv_sequence *s)
{
    s->prefix = s->next_prefix;
    s->prefix_key = s->next_key;
    s->prefix_blocks++;
}

int32_t kv_engine_prefix_limit(const struct kv_sequence *s)
{
    /* The last token's row yields the logits, and the last queries of the prompt are what some indexes are built from. */
    int32_t kept = s->selection && s->selection->prefill_q ? s->selection->n_prefill_q : 0;
    return kept && s->n_prompt - kept < s->n_tokens - 1 ? s->n_prompt - kept : s->n_tokens - 1;
}

void kv_engine_adopt_prefix(struct kv_engine *e, struct kv_sequence *s)
{
    int32_t limit = kv_engine_prefix_limit(s), before = s->prefix_blocks;
    if (!e->config.prefix_reuse || s->observe_prompt || s->recomputing) return;
    if (kv_fault_sites(s->cache.faults.mask) & 1u << KV_FAULT_DISK_READ) return; /* what memory holds would hide the fault */
    (void)next_key(e, s); /* also inside a block: others wait for it by this key */
    while (s->cache.n_rows == s->prefix_blocks * KV_BLOCK_ROWS && next_key(e, s) && s->cache.n_rows + KV_BLOCK_ROWS <= limit) {
        uint8_t *const *slabs = kv_prefix_find(e->prefix, &s->next_key);
        if (!slabs || kv_cache_adopt(&s->cache, e->arena, slabs) != KV_OK) break;
        advance(s);
        s->n_reused += KV_BLOCK_ROWS;
        e->stats.reused_tokens += KV_BLOCK_ROWS;
        e->prefix_hits++;
    }
    if (s->prefix_blocks > before) kv_prefix_touch(e->prefix, &s->prefix_key);
}

void kv_engine_offer_prefix(struct kv_engine *e, struct kv_sequence *s)
{
    if (!e->config.prefix_reuse || s->dropped) return;
    size_t blocks = (size_t)s->cache.max_blocks;
    for (int32_t end; (end = (s->prefix_blocks + 1) * KV_BLOCK_ROWS) <= s->cache.n_rows && end <= s->frontier && next_key(e, s);) {
        kv_prefix_put(e->prefix, e->arena, &s->next_key, s->prefix_blocks ? &s->prefix_key : NULL, s->cache.slab + s->prefix_blocks, blocks);
        advance(s);
        e->prefix_misses += end <= s->n_prompt;
    }
}

static enum kv_status reserve(struct kv_engine *e, struct kv_sequence *s, int32_t n, enum kv_status (*take)(struct kv_cache *c, struct kv_arena *a, int32_t n))
{
    enum kv_status status;
    while ((status = take(&s->cache, e->arena, n)) == KV_CAPACITY && kv_prefix_evict(e->prefix, e->arena)) continue;
    return status;
}

void kv_engine_forget_session(struct kv_engine *e, const char *tenant, const char *session, bool stays)
{
    struct kv_dropped d = {tenant, session, stays, NULL}, **at = &e->dropped;
    pthread_mutex_lock(&e->lock);
    d.next = e->dropped;
    e->dropped = &d;
    uint64_t mine = atomic_fetch_add(&e->forget_asked, 1) + 1;
    pthread_cond_broadcast(&e->wake);
    while (e->forgotten < mine && !atomic_load(&e->stopping)) pthread_cond_wait(&e->wake, &e->lock);
    while (*at && *at != &d) at = &(*at)->next;
    if (*at) *at = d.next; /* the engine stops */
    pthread_mutex_unlock(&e->lock);
}

static void mark(struct kv_sequence *s, const struct kv_dropped *d)
{
    for (; d; d = d->next)
        if (!strcmp(s->session, d->session) && !strcmp(s->tenant, d->tenant)) s->dropped = !d->stays;
}

void kv_engine_forget_now(struct kv_engine *e)
{
    uint64_t asked = atomic_load(&e->forget_asked);
    if (asked == e->forgotten) return;
    kv_prefix_clear(e->prefix, e->arena);
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->n_live; i++) mark(e->live[i], e->dropped);
    for (int32_t i = 0; i < e->queue_n; i++) mark(e->queue[(e->queue_head + i) % e->config.max_queue], e->dropped);
    e->dropped = NULL;
    e->forgotten = asked;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

enum kv_status kv_engine_reserve(struct kv_engine *e, struct kv_sequence *s, int32_t n)
{
    return reserve(e, s, n, kv_cache_reserve);
}

enum kv_status kv_engine_reserve_raw(struct kv_engine *e, struct kv_sequence *s, int32_t n)
{
    return reserve(e, s, n, kv_cache_reserve_raw);
}
