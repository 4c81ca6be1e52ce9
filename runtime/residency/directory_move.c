/* directory_move.c — promotions, demotions, their completions, and eviction. */
#include "runtime/residency/directory_state.h"

#include <stdlib.h>
#include <string.h>

/* The one mover answers; a refused transition here is a bug of this file. */
static void move(struct transaction *x, enum kv_residency_state to)
{
    if (kv_residency_move(&x->state, to) != KV_OK) abort();
}

static enum kv_residency_state valid_in(enum kv_tier_id t)
{
    return t == KV_TIER_DEVICE ? KV_AT_GPU_VISIBLE : t == KV_TIER_HOST ? KV_AT_HOST_VALID : KV_AT_SECONDARY_VALID;
}

static void free_transaction(struct kv_directory *d, struct transaction *x)
{
    d->chunk[x->chunk].writing = KV_NONE;
    x->used = false;
}

/* Reserves a destination without exposing it. */
static enum kv_status begin(struct kv_directory *d, uint32_t c, enum kv_tier_id from, enum kv_tier_id to, bool demotion, uint32_t *out)
{
    struct kv_tier *source = d->config.tier[from], *destination = d->config.tier[to];
    uint32_t i = 0;
    if (!kv_tier_direct(source, destination)) return KV_UNSUPPORTED;
    while (i < d->config.max_transactions && d->transaction[i].used) i++;
    if (i == d->config.max_transactions) return KV_QUEUE_FULL;
    struct chunk *k = &d->chunk[c];
    struct kv_block b;
    enum kv_status s = destination->reserve(destination->ctx, k->bytes, &k->identity, &b);
    if (s != KV_OK) return s;
    struct transaction *x = &d->transaction[i];
    *x = (struct transaction){.used = true, .demotion = demotion, .state = valid_in(from), .chunk = c, .from = from, .to = to};
    x->transfer = (struct kv_transfer){.transaction = i, .generation = {++d->next_transfer}, .identity = k->identity, .cache = k->cache, .from = source, .to = destination,
                                       .source = k->replica[from].block, .destination = b, .bytes = k->bytes, .staging = d->staging + i * (d->config.max_payload_bytes + 1)};
    move(x, demotion ? KV_AT_DEMOTE_RESERVED : KV_AT_PROMOTE_RESERVED);
    move(x, demotion ? KV_AT_COPY_OUT : KV_AT_COPY_IN); /* the copy may start as soon as the caller has the transfer */
    /* The copy reads the source: it is held like any reader holds it. */
    k->replica[from].leases++;
    d->stats.leases++;
    k->writing = i;
    *out = i;
    return KV_OK;
}

static enum kv_status add_waiter(struct kv_directory *d, uint32_t x, void *destination, struct kv_waiter *out)
{
    uint32_t i = 0;
    while (i < d->max_waiters && d->waiter[i].used) i++;
    if (i == d->max_waiters) return KV_QUEUE_FULL;
    d->waiter[i] = (struct waiter){.used = true, .transaction = x, .generation = d->transaction[x].transfer.generation, .destination = destination};
    d->transaction[x].n_waiters++;
    *out = (struct kv_waiter){x, i, d->waiter[i].generation};
    return KV_OK;
}

enum kv_status kv_promote_begin(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id to, void *destination, struct kv_waiter *waiter,
                                bool *join, struct kv_transfer *transfer)
{
    *join = false;
    if ((unsigned)to >= KV_TIERS || !d->config.tier[to]) return KV_BAD_ARGUMENT;
    uint32_t c = kv_directory_find(d, id), x;
    if (c == KV_NONE) return KV_NOT_FOUND;
    struct chunk *k = &d->chunk[c];
    if (kv_replica_counts(d, &k->replica[to])) return KV_CONFLICT;
    if (k->writing != KV_NONE) {
        struct transaction *running = &d->transaction[k->writing];
        /* Same chunk means same identity, every field; codec, generation and authority must be the ones the running copy was begun with. */
        bool same = !running->demotion && running->to == to && !running->cancelled && running->transfer.cache.n == k->cache.n && kv_replica_counts(d, &k->replica[running->from]);
        if (!same) return KV_CONFLICT;
        enum kv_status s = add_waiter(d, k->writing, destination, waiter);
        if (s != KV_OK) return s;
        *join = true;
        *transfer = running->transfer;
        d->stats.promotions_joined++;
        d->stats.coalesced_bytes += k->bytes;
        return KV_OK;
    }
    if (k->replica[to].present) return KV_STALE_AUTHORITY_EPOCH; /* it is there, of an earlier epoch: reauthorise it */
    int from = -1;
    for (int t = (int)to + 1; t < KV_TIERS && from < 0; t++)
        if (kv_replica_counts(d, &k->replica[t])) from = t;
    if (from < 0) return KV_NOT_FOUND;
    enum kv_status s = begin(d, c, (enum kv_tier_id)from, to, false, &x);
    if (s != KV_OK) return s;
    d->stats.promotions_begun++;
    s = add_waiter(d, x, destination, waiter);
    if (s != KV_OK) abort(); /* there are more waiters than transactions, and this one is new */
    *transfer = d->transaction[x].transfer;
    return KV_OK;
}

static struct waiter *waiter_of(struct kv_directory *d, const struct kv_waiter *w)
{
    if (w->slot >= d->max_waiters || !d->waiter[w->slot].used || d->waiter[w->slot].generation.n != w->generation.n) return NULL;
    return &d->waiter[w->slot];
}

enum kv_status kv_waiter_cancel(struct kv_directory *d, struct kv_waiter *w)
{
    struct waiter *v = waiter_of(d, w);
    if (!v) return KV_NOT_FOUND;
    if (!v->done) {
        struct transaction *x = &d->transaction[v->transaction];
        if (--x->n_waiters == 0) x->cancelled = true;
    }
    v->used = false;
    w->generation.n = 0;
    return KV_OK;
}

enum kv_status kv_waiter_result(struct kv_directory *d, struct kv_waiter *w)
{
    struct waiter *v = waiter_of(d, w);
    if (!v) return KV_NOT_FOUND;
    if (!v->done) return KV_CONFLICT;
    v->used = false;
    w->generation.n = 0;
    return v->status;
}

enum kv_status kv_demote_begin(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id from, enum kv_tier_id to, struct kv_transfer *transfer)
{
    if ((unsigned)from >= KV_TIERS || (unsigned)to >= KV_TIERS || from >= to || !d->config.tier[from] || !d->config.tier[to]) return KV_BAD_ARGUMENT;
    uint32_t c = kv_directory_find(d, id), x;
    if (c == KV_NONE || !kv_replica_counts(d, &d->chunk[c].replica[from])) return KV_NOT_FOUND;
    if (d->chunk[c].writing != KV_NONE || d->chunk[c].replica[to].present) return KV_CONFLICT;
    enum kv_status s = begin(d, c, from, to, true, &x);
    if (s != KV_OK) return s;
    d->stats.demotions_begun++;
    *transfer = d->transaction[x].transfer;
    return KV_OK;
}

/* ---------------------------------------------------------------- completion */

/* In the order a reader of contract §3 expects: cache generation, allocation generation, owner, length, and last the copy's own verdict. */
static enum kv_status verdict(const struct kv_directory *d, const struct transaction *x, const struct kv_transfer_done *done)
{
    const struct chunk *k = &d->chunk[x->chunk];
    if (x->cancelled) return KV_TRANSFER_CANCELLED;
    if (k->cache.n != x->transfer.cache.n) return KV_STALE_CACHE_GENERATION;
    if (!x->transfer.to->current(x->transfer.to->ctx, x->transfer.destination)) return KV_RECYCLED_DESTINATION;
    if (!k->replica[x->from].present || k->replica[x->from].block.allocation.n != x->transfer.source.allocation.n) return KV_STALE_REPLICA_GENERATION;
    if (k->replica[x->from].authority.n != d->authority.n) return KV_STALE_AUTHORITY_EPOCH;
    if (kv_identity_compare(&kv_chunk_type, &k->identity, &done->transfer.identity, NULL) != KV_OK) return KV_IDENTITY_MISMATCH;
    if (done->status != KV_OK) return done->status;
    return done->bytes == x->transfer.bytes ? KV_OK : KV_SHORT_COPY;
}

/* The waiters that are left get their answer, and their bytes where they named a place of their own. */
static void answer_waiters(struct kv_directory *d, uint32_t index, const struct transaction *x, enum kv_status s)
{
    for (uint32_t i = 0; i < d->max_waiters; i++) {
        struct waiter *v = &d->waiter[i];
        if (!v->used || v->done || v->transaction != index || v->generation.n != x->transfer.generation.n) continue;
        v->done = true;
        v->status = s;
        if (s == KV_OK && v->destination)
            v->status = x->transfer.to->read(x->transfer.to->ctx, x->transfer.destination, &x->transfer.identity, v->destination, x->transfer.bytes);
    }
}

void kv_transaction_source_free(struct kv_directory *d, uint32_t index)
{
    struct transaction *x = &d->transaction[index];
    kv_replica_drop(d, x->chunk, x->from);
    move(x, KV_AT_GPU_RELEASED);
    free_transaction(d, x);
}

static enum kv_status finish_promotion(struct kv_directory *d, uint32_t index, enum kv_status s)
{
    struct transaction *x = &d->transaction[index];
    if (s == KV_OK) {
        move(x, KV_AT_GPU_STAGED);
        kv_replica_add(d, x->chunk, x->to, x->transfer.destination);
        move(x, valid_in(x->to));
        d->stats.promotions_done++;
    } else {
        x->transfer.to->release(x->transfer.to->ctx, x->transfer.destination);
        move(x, valid_in(x->from));
        d->stats.promotions_failed++;
    }
    answer_waiters(d, index, x, s);
    free_transaction(d, x);
    return s;
}

static enum kv_status finish_demotion(struct kv_directory *d, uint32_t index, enum kv_status s)
{
    struct transaction *x = &d->transaction[index];
    if (s != KV_OK) {
        x->transfer.to->release(x->transfer.to->ctx, x->transfer.destination);
        move(x, KV_AT_DEMOTION_FAILED); /* the source is kept */
        d->stats.demotions_failed++;
        free_transaction(d, x);
        return KV_DEMOTION_FAILED;
    }
    kv_replica_add(d, x->chunk, x->to, x->transfer.destination);
    move(x, valid_in(x->to));
    x->copied = true;
    d->stats.demotions_done++;
    struct replica *source = &d->chunk[x->chunk].replica[x->from];
    if (kv_replicas_counting(d, &d->chunk[x->chunk]) - 1 < d->config.required) { /* R_min > 1: both stay */
        free_transaction(d, x);
    } else if (source->leases) {
        source->retiring = true;
    } else {
        kv_transaction_source_free(d, index);
    }
    return KV_OK;
}

enum kv_status kv_transfer_complete(struct kv_directory *d, const struct kv_transfer_done *done)
{
    uint32_t i = done->transfer.transaction;
    struct transaction *x = i < d->config.max_transactions ? &d->transaction[i] : NULL;
    /* A completion of a transaction that is over, or of the one before: whatever it wrote is nobody's. */
    if (!x || !x->used || x->copied || x->transfer.generation.n != done->transfer.generation.n || x->transfer.destination.place != done->transfer.destination.place ||
        x->transfer.destination.allocation.n != done->transfer.destination.allocation.n) {
        d->stats.refused_completions++;
        return KV_RECYCLED_DESTINATION;
    }
    enum kv_status s = verdict(d, x, done);
    struct replica *source = &d->chunk[x->chunk].replica[x->from];
    source->leases--;
    d->stats.leases--;
    return x->demotion ? finish_demotion(d, i, s) : finish_promotion(d, i, s);
}

/* ---------------------------------------------------------------- eviction */

static bool evictable(const struct kv_directory *d, uint32_t c, enum kv_tier_id t)
{
    const struct chunk *k = &d->chunk[c];
    if (!k->replica[t].present || k->replica[t].retiring || k->replica[t].leases || k->writing != KV_NONE) return false;
    /* A replica of an earlier epoch can only be dropped, and only when enough others count. */
    return kv_replica_counts(d, &k->replica[t]) || kv_replicas_counting(d, k) >= d->config.required;
}

/* V = p (T_recompute − T_promote) − C_capacity. Where a slower tier holds the chunk too, losing it here costs a promotion from there and no recompute.
 * C_write was paid when it came. p: uses per lookup since it came, over as many lookups as the tier has replicas; at first it is taken for wanted. */
static double value_of(const struct kv_directory *d, const struct chunk *k, enum kv_tier_id t)
{
    const struct replica *r = &k->replica[t];
    double horizon = (double)d->stats.replicas[t], p = ((double)r->uses + 1) * horizon / ((double)(d->stats.lookups[t] - r->since) + horizon);
    double otherwise_us = k->recompute_us > 0 ? k->recompute_us : d->typical_recompute_us;
    if (p > 1) p = 1;
    for (int n = (int)t + 1; n < KV_TIERS; n++)
        if (kv_replica_counts(d, &k->replica[n]) && d->config.promote_us[n] < otherwise_us) otherwise_us = d->config.promote_us[n];
    return p * (otherwise_us - d->config.promote_us[t]) - d->config.capacity_us_per_mib[t] * (double)k->bytes / 1048576.0;
}

static uint32_t victim(const struct kv_directory *d, enum kv_tier_id t)
{
    uint32_t best = KV_NONE;
    double least = 0;
    for (uint32_t c = d->oldest[t]; c != KV_NONE; c = d->links[t][c].newer) {
        if (!evictable(d, c, t) || (d->spared && d->spared(d->spared_ctx, &d->chunk[c].identity))) continue;
        if (d->config.victim == KV_VICTIM_FIFO || d->config.victim == KV_VICTIM_LRU) return c;
        double score = d->config.victim == KV_VICTIM_LFU ? (double)d->chunk[c].replica[t].rank : value_of(d, &d->chunk[c], t);
        if (best == KV_NONE || score < least) best = c, least = score;
    }
    return best;
}

void kv_directory_spare(struct kv_directory *d, bool (*spared)(const void *ctx, const struct kv_chunk_identity *id), const void *ctx)
{
    d->spared = spared;
    d->spared_ctx = ctx;
}

enum kv_status kv_directory_victim(const struct kv_directory *d, enum kv_tier_id tier, struct kv_chunk_identity *out)
{
    uint32_t c = (unsigned)tier < KV_TIERS && d->config.tier[tier] ? victim(d, tier) : KV_NONE;
    if (c == KV_NONE) return KV_NOT_FOUND;
    *out = d->chunk[c].identity;
    return KV_OK;
}

enum kv_status kv_evict_one(struct kv_directory *d, enum kv_tier_id tier, bool *pending, struct kv_transfer *transfer)
{
    *pending = false;
    if ((unsigned)tier >= KV_TIERS || !d->config.tier[tier]) return KV_BAD_ARGUMENT;
    uint32_t c = victim(d, tier);
    if (c == KV_NONE) return KV_CAPACITY;
    struct chunk *k = &d->chunk[c];
    d->age[tier] = k->replica[tier].rank;
    int32_t others = kv_replicas_counting(d, k) - kv_replica_counts(d, &k->replica[tier]);
    if (others >= d->config.required) {
        kv_replica_drop(d, c, tier);
        d->stats.evictions[tier]++;
        return KV_OK;
    }
    for (int to = (int)tier + 1; to < KV_TIERS; to++) {
        if (!d->config.tier[to] || k->replica[to].present) continue;
        enum kv_status s = kv_demote_begin(d, &k->identity, tier, (enum kv_tier_id)to, transfer);
        if (s == KV_CAPACITY || s == KV_NO_SPACE || s == KV_UNSUPPORTED) continue;
        if (s != KV_OK) return s;
        *pending = true;
        d->stats.evictions[tier]++;
        return KV_OK;
    }
    return KV_LAST_REPLICA;
}

enum kv_status kv_evict_now(struct kv_directory *d, enum kv_tier_id tier)
{
    struct kv_transfer t;
    struct kv_transfer_done done;
    bool pending;
    enum kv_status s = kv_evict_one(d, tier, &pending, &t);
    if (s != KV_OK || !pending) return s;
    kv_transfer_copy(&t, &done);
    return kv_transfer_complete(d, &done);
}
