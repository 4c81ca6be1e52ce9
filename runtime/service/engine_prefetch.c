/* engine_prefetch.c — histories of waiting requests come from disk and remote tier to host memory ahead of their turn (CachedAttention; contract §5).
 *
 * One history at a time, in order of the queue, into the index of prefixes: from there its request takes it like any prefix, and it stays evictable. The
 * window is bytes of histories counted from the head of the queue. While a read runs its room is set aside like a request's, so that no running
 * request ever lacks it. */
#include "runtime/service/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t block_bytes(const struct kv_engine *e)
{
    return (uint64_t)e->weights->n_layers * kv_slab_bytes(KV_ROW_TYPE, e->weights->n_kv_heads, e->weights->d_head);
}

static bool wanted(const struct kv_sequence *s)
{
    return !s->resume && !s->observe_prompt && !s->cache.faults.mask && kv_engine_prefix_limit(s) >= KV_BLOCK_ROWS;
}

static struct kv_chunk_digest key_of(const struct kv_engine *e, const struct kv_turn *t, int32_t block)
{
    struct kv_chunk_identity id = e->prefix_base;
    memcpy(id.tenant, t->tenant, sizeof id.tenant);
    return kv_prefix_key(&id, &t->chain.prefix[block], block);
}

/* The first waiting request whose history was not looked for, while those before it leave room in the window; *before: their bytes. Also says whether
 * the one in work still waits. */
static struct kv_sequence *next_waiting(struct kv_engine *e, uint64_t *before, bool *still)
{
    struct kv_sequence *next = NULL;
    *before = 0;
    *still = false;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->queue_n && *before < e->config.prefetch_bytes; i++) {
        struct kv_sequence *s = e->queue[(e->queue_head + i) % e->config.max_queue];
        if (e->ahead.turn && s->id == e->ahead.request) {
            *still = true;
            break;
        }
        if (!s->ahead && wanted(s)) {
            next = s;
            break;
        }
        *before += s->ahead_bytes;
    }
    pthread_mutex_unlock(&e->lock);
    return next;
}

/* NULL: admitted or gone. The decode thread alone takes requests out. */
static struct kv_sequence *waiting(struct kv_engine *e, uint64_t request)
{
    struct kv_sequence *found = NULL;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->queue_n && !found; i++) {
        struct kv_sequence *s = e->queue[(e->queue_head + i) % e->config.max_queue];
        if (s->id == request) found = s;
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

static void end(struct kv_engine *e, uint64_t kept_bytes)
{
    struct kv_ahead *a = &e->ahead;
    struct kv_sequence *s = waiting(e, a->request);
    if (s) s->ahead_bytes = kept_bytes;
    if (a->turn) kv_turns_let_go(e->turns, a->turn);
    kv_cache_free(&a->cache, e->arena);
    e->reserved_bytes -= a->bytes;
    *a = (struct kv_ahead){0};
}

/* The request whose history is in work: waiting, or with its turn come meanwhile. NULL: gone. */
static struct kv_sequence *owner(struct kv_engine *e)
{
    for (int32_t i = 0; i < e->n_live; i++)
        if (e->live[i]->id == e->ahead.request) return e->live[i];
    return waiting(e, e->ahead.request);
}

/* Blocks of the history that host memory has already, from its beginning. */
static int32_t in_memory(const struct kv_engine *e, const struct kv_sequence *s, int32_t blocks)
{
    struct kv_chunk_identity id = e->prefix_base;
    struct kv_prefix_digest prefix;
    int32_t b = 0;
    memcpy(id.tenant, s->tenant, sizeof id.tenant);
    for (; b < blocks; b++) {
        prefix = kv_prefix_extend(b ? &prefix : NULL, s->tokens + (size_t)b * KV_BLOCK_ROWS, KV_BLOCK_ROWS);
        struct kv_chunk_digest key = kv_prefix_key(&id, &prefix, b);
        if (!kv_prefix_find(e->prefix, &key)) break;
    }
    return b;
}

static void note_fetch(struct kv_engine *e, const struct kv_turn *t)
{
    struct kv_sequence *s = owner(e);
    if (!s) return;
    s->ahead_short = t->fetch_short;
    if (t->fetch_status != KV_OK) kv_report_failure(e, s, t->fetch_status, KV_NOT_FETCHED);
}

/* Blocks that host memory has already are shared; the rest, as far as the window goes, gets slabs. false: not now. */
static bool begin_read(struct kv_engine *e, uint64_t before)
{
    struct kv_ahead *a = &e->ahead;
    struct kv_turn *t = a->turn;
    uint64_t each = block_bytes(e), room = e->config.prefetch_bytes > before ? e->config.prefetch_bytes - before : 0;
    int32_t fits = room / each < (uint64_t)t->end ? (int32_t)(room / each) : t->end, had = t->first;
    if (kv_cache_init(&a->cache, e->weights->n_layers, e->weights->n_kv_heads, e->weights->d_head, KV_ROW_TYPE, t->end * KV_BLOCK_ROWS) != KV_OK) return false;
    for (t->first = 0; t->first < fits; t->first++) {
        struct kv_chunk_digest key = key_of(e, t, t->first);
        uint8_t *const *slabs = kv_prefix_find(e->prefix, &key);
        if (!slabs || kv_cache_adopt(&a->cache, e->arena, slabs) != KV_OK) break;
    }
    uint64_t bytes = (uint64_t)fits * each; /* the shared ones too: they cannot be evicted meanwhile */
    if (fits <= t->first || t->first < had || e->reserved_bytes + bytes > kv_arena_capacity_bytes(e->arena)) return false;
    enum kv_status s;
    while ((s = kv_cache_reserve(&a->cache, e->arena, (fits - t->first) * KV_BLOCK_ROWS)) == KV_CAPACITY && kv_prefix_evict(e->prefix, e->arena)) continue;
    if (s != KV_OK) return false;
    t->end = fits;
    a->bytes = bytes;
    e->reserved_bytes += bytes;
    kv_turns_read(e->turns, t, &a->cache);
    return true;
}

static void keep(struct kv_engine *e)
{
    struct kv_ahead *a = &e->ahead;
    const struct kv_turn *t = a->turn;
    struct kv_chunk_digest key, parent;
    for (int32_t b = 0; b < t->end; b++, parent = key) {
        key = key_of(e, t, b);
        if (b >= t->first) kv_prefix_put(e->prefix, e->arena, &key, b ? &parent : NULL, a->cache.slab + b, (size_t)a->cache.max_blocks);
    }
    for (int32_t b = t->end - 1; b >= 0; b--) {
        key = key_of(e, t, b);
        kv_prefix_touch(e->prefix, &key);
    }
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = t->first * KV_BLOCK_ROWS, .bytes = t->bytes, .rows = (uint64_t)(t->end - t->first) * KV_BLOCK_ROWS,
                           .value = t->took_us};
    snprintf(r.detail, sizeof r.detail, "read from %s ahead of its turn", kv_turn_source(t));
    kv_report_receipt(e, waiting(e, a->request), KV_RECEIPT_TRANSFER, t->status, r);
}

bool kv_engine_prefetches(const struct kv_engine *e, const struct kv_sequence *s)
{
    return e->ahead.turn && e->ahead.request == s->id;
}

void kv_engine_prefetch(struct kv_engine *e)
{
    struct kv_ahead *a = &e->ahead;
    if (!e->turns || !e->config.prefix_reuse || !e->config.prefetch_bytes) return;
    uint64_t before;
    bool still;
    struct kv_sequence *s = next_waiting(e, &before, &still);
    if (a->turn) {
        int phase = atomic_load(&a->turn->phase);
        if (phase == KV_TURN_LOOKING && !still && owner(e)) kv_turns_hurry(e->turns, a->turn);
        if ((phase == KV_TURN_LOOKING || phase == KV_TURN_READING) && kv_engine_turn_given_up(e, owner(e), a->turn)) a->turn = NULL, phase = KV_TURN_DONE;
        if (!a->turn) return end(e, 0);
        if (phase == KV_TURN_LOOKING || phase == KV_TURN_READING) return;
        if (phase == KV_TURN_FOUND) note_fetch(e, a->turn);
        bool fetched = !still && a->turn->fetch && owner(e); /* its turn came meanwhile: it waits, and need not fetch them again */
        if (phase == KV_TURN_FOUND && (still || fetched) && begin_read(e, fetched ? 0 : before)) return;
        bool kept = phase == KV_TURN_DONE && a->forgotten == e->forgotten;
        if (kept) keep(e);
        end(e, kept ? (uint64_t)a->turn->end * block_bytes(e) : 0);
        return;
    }
    if (!s) return;
    uint64_t each = block_bytes(e), room = (e->config.prefetch_bytes - before) / each;
    int32_t blocks = kv_engine_prefix_limit(s) / KV_BLOCK_ROWS, end = room < (uint64_t)blocks ? (int32_t)room : blocks, first = in_memory(e, s, end);
    s->ahead = true;
    if (first == end) return;
    s->ahead_bytes = (uint64_t)blocks * each;
    a->turn = kv_turns_look(e->turns, s->tenant, s->session, s->tokens, end * KV_BLOCK_ROWS, first, e->us_per_row, KV_LOOK_AHEAD, s->cache.faults);
    a->request = s->id;
    a->forgotten = e->forgotten;
}

void kv_engine_prefetch_stop(struct kv_engine *e)
{
    if (e->ahead.turn) end(e, 0);
}
