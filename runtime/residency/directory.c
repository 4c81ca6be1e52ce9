/* directory.c — chunks, replicas, leases, and the checks. */
#include "runtime/residency/directory_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WAITERS_PER_TRANSACTION = 16 };

const char *kv_victim_name(enum kv_victim e)
{
    static const char *const names[] = {"fifo", "lru", "lfu", "value"};
    return (unsigned)e < KV_VICTIMS ? names[e] : "?";
}

/* In huge pages where allowed: a lookup is one page more than the table's. */
static struct chunk *map_chunks(size_t n)
{
    void *at = mmap(NULL, n * sizeof(struct chunk), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    (void)madvise(at, n * sizeof(struct chunk), MADV_HUGEPAGE);
    return at;
}

enum kv_status kv_directory_create(const struct kv_directory_config *c, struct kv_directory **out)
{
    *out = NULL;
    if (c->max_chunks < 1 || c->max_chunks > 1u << 24 || c->max_transactions < 1 || c->max_transactions > 4096 || (unsigned)c->victim >= KV_VICTIMS || c->required < 0)
        return KV_BAD_ARGUMENT;
    struct kv_directory *d = calloc(1, sizeof *d);
    if (!d) return KV_OUT_OF_MEMORY;
    d->config = *c;
    if (d->config.required == 0) d->config.required = 1;
    uint32_t size = 4;
    while (size < 2 * c->max_chunks) size *= 2;
    d->table_mask = size - 1;
    d->max_waiters = c->max_transactions * WAITERS_PER_TRANSACTION;
    d->chunk = map_chunks(c->max_chunks);
    d->free_chunk = malloc(c->max_chunks * sizeof *d->free_chunk);
    d->table = malloc(size * sizeof *d->table);
    d->transaction = calloc(c->max_transactions, sizeof *d->transaction);
    d->waiter = calloc(d->max_waiters, sizeof *d->waiter);
    bool linked = true;
    for (int t = 0; t < KV_TIERS; t++)
        if (c->tier[t]) linked &= (d->links[t] = malloc(c->max_chunks * sizeof *d->links[t])) != NULL;
    uint64_t staging = 0;
    bool fits = !__builtin_mul_overflow((uint64_t)c->max_transactions, c->max_payload_bytes + 1, &staging);
    d->staging = fits ? mmap(NULL, staging, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (!linked || !d->chunk || !d->free_chunk || !d->table || !d->transaction || !d->waiter || d->staging == MAP_FAILED) {
        kv_directory_destroy(d);
        return KV_OUT_OF_MEMORY;
    }
    memset(d->table, 0xff, size * sizeof *d->table);
    for (uint32_t i = 0; i < c->max_chunks; i++) d->free_chunk[i] = c->max_chunks - 1 - i;
    d->n_free = c->max_chunks;
    for (int t = 0; t < KV_TIERS; t++) d->newest[t] = d->oldest[t] = KV_NONE;
    d->authority.n = 1;
    *out = d;
    return KV_OK;
}

void kv_directory_destroy(struct kv_directory *d)
{
    if (!d) return;
    /* What a process owns goes back zeroed; what outlives it stays where it is. */
    for (uint32_t i = 0; d->chunk && i < d->config.max_chunks; i++)
        for (int t = 0; t < KV_TIERS; t++)
            if (d->chunk[i].used && d->chunk[i].replica[t].present && !d->config.tier[t]->erase)
                d->config.tier[t]->release(d->config.tier[t]->ctx, d->chunk[i].replica[t].block);
    for (uint32_t i = 0; d->transaction && i < d->config.max_transactions; i++)
        if (d->transaction[i].used && !d->transaction[i].copied) d->transaction[i].transfer.to->release(d->transaction[i].transfer.to->ctx, d->transaction[i].transfer.destination);
    if (d->staging && d->staging != MAP_FAILED) munmap(d->staging, d->config.max_transactions * (d->config.max_payload_bytes + 1));
    if (d->chunk) munmap(d->chunk, d->config.max_chunks * sizeof *d->chunk);
    free(d->free_chunk);
    free(d->table);
    for (int t = 0; t < KV_TIERS; t++) free(d->links[t]);
    free(d->transaction);
    free(d->waiter);
    free(d);
}

/* ---------------------------------------------------------------- table: open addressing, no tombstones */

/* Place of the chunk in the table; KV_NONE. Every field is compared: equal keys are no proof. */
static uint32_t table_find(const struct kv_directory *d, const struct kv_chunk_identity *id, uint64_t key)
{
    for (uint32_t s = (uint32_t)key & d->table_mask; d->table[s].chunk != KV_NONE; s = (s + 1) & d->table_mask) {
        if (d->table[s].mark != (uint32_t)(key >> 32)) continue;
        const struct chunk *c = &d->chunk[d->table[s].chunk];
        if (c->key != key) continue;
        /* Equal bytes are equal fields, and the usual case; unequal ones may still differ in what follows the end of a text. */
        if (!memcmp(&c->identity, id, sizeof *id) || kv_identity_compare(&kv_chunk_type, &c->identity, id, NULL) == KV_OK) return s;
    }
    return KV_NONE;
}

static void table_remove(struct kv_directory *d, uint32_t s)
{
    d->table[s].chunk = KV_NONE;
    for (uint32_t n = (s + 1) & d->table_mask; d->table[n].chunk != KV_NONE; n = (n + 1) & d->table_mask) {
        uint32_t home = (uint32_t)d->chunk[d->table[n].chunk].key & d->table_mask;
        if (((n - home) & d->table_mask) < ((n - s) & d->table_mask)) continue;
        d->table[s] = d->table[n];
        d->table[n].chunk = KV_NONE;
        s = n;
    }
}

uint32_t kv_directory_find(const struct kv_directory *d, const struct kv_chunk_identity *id)
{
    uint32_t s = table_find(d, id, kv_chunk_key(id));
    return s == KV_NONE ? KV_NONE : d->table[s].chunk;
}

static enum kv_status add_chunk(struct kv_directory *d, const struct kv_chunk_identity *id, uint64_t bytes, uint32_t *out)
{
    if (d->n_free == 0) return KV_CAPACITY;
    uint64_t key = kv_chunk_key(id);
    uint32_t c = d->free_chunk[--d->n_free], s = (uint32_t)key & d->table_mask;
    while (d->table[s].chunk != KV_NONE) s = (s + 1) & d->table_mask;
    d->table[s] = (struct place){c, (uint32_t)(key >> 32)};
    d->chunk[c] = (struct chunk){.used = true, .key = key, .identity = *id, .bytes = bytes, .writing = KV_NONE};
    d->stats.chunks++;
    *out = c;
    return KV_OK;
}

static void drop_chunk(struct kv_directory *d, uint32_t c)
{
    table_remove(d, table_find(d, &d->chunk[c].identity, d->chunk[c].key));
    d->chunk[c].used = false;
    d->free_chunk[d->n_free++] = c;
    d->stats.chunks--;
}

/* ---------------------------------------------------------------- replicas */

bool kv_replica_counts(const struct kv_directory *d, const struct replica *r)
{
    return r->present && !r->retiring && r->authority.n == d->authority.n;
}

int32_t kv_replicas_counting(const struct kv_directory *d, const struct chunk *c)
{
    int32_t n = 0;
    for (int t = 0; t < KV_TIERS; t++) n += kv_replica_counts(d, &c->replica[t]);
    return n;
}

static void unlink_replica(struct kv_directory *d, uint32_t c, enum kv_tier_id t)
{
    struct links *all = d->links[t], own = all[c];
    if (own.newer != KV_NONE) all[own.newer].older = own.older;
    else d->newest[t] = own.older;
    if (own.older != KV_NONE) all[own.older].newer = own.newer;
    else d->oldest[t] = own.newer;
}

static void link_newest(struct kv_directory *d, uint32_t c, enum kv_tier_id t)
{
    struct links *all = d->links[t];
    all[c] = (struct links){KV_NONE, d->newest[t]};
    if (all[c].older != KV_NONE) all[all[c].older].newer = c;
    else d->oldest[t] = c;
    d->newest[t] = c;
}

void kv_replica_add(struct kv_directory *d, uint32_t c, enum kv_tier_id t, struct kv_block b)
{
    d->chunk[c].replica[t] = (struct replica){.present = true, .block = b, .generation = {++d->next_replica}, .authority = d->authority, .since = d->stats.lookups[t],
                                              .rank = d->age[t]};
    link_newest(d, c, t);
    d->stats.replicas[t]++;
    d->stats.replicas_added[t]++;
    d->stats.replica_bytes[t] += d->chunk[c].bytes;
    d->stats.bytes_added[t] += d->chunk[c].bytes;
}

void kv_replica_drop(struct kv_directory *d, uint32_t c, enum kv_tier_id t)
{
    struct replica *r = &d->chunk[c].replica[t];
    unlink_replica(d, c, t);
    d->config.tier[t]->release(d->config.tier[t]->ctx, r->block);
    *r = (struct replica){0};
    d->stats.replicas[t]--;
    d->stats.replicas_dropped[t]++;
    d->stats.replica_bytes[t] -= d->chunk[c].bytes;
    d->stats.bytes_dropped[t] += d->chunk[c].bytes;
}

/* ---------------------------------------------------------------- publish, adopt, look up */

static enum kv_status write_group(struct kv_tier *t, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, const void *const *payload, uint64_t bytes)
{
    uint64_t hash;
    enum kv_status s = KV_OK;
    if (t->write_group && n > 1) return t->write_group(t->ctx, n, b, id, payload, bytes);
    for (int32_t i = 0; i < n && s == KV_OK; i++) s = t->write(t->ctx, b[i], &id[i], payload[i], bytes, &hash);
    return s;
}

static bool may_gain(const struct chunk *c, enum kv_tier_id tier, uint64_t bytes)
{
    return !c->replica[tier].present && c->writing == KV_NONE && c->bytes == bytes;
}

enum kv_status kv_directory_publish_group(struct kv_directory *d, int32_t n, const struct kv_chunk_identity *id, struct kv_cache_generation cache, enum kv_tier_id tier,
                                          const void *const *payload, uint64_t bytes, double recompute_us)
{
    if ((unsigned)tier >= KV_TIERS || !d->config.tier[tier] || n < 1 || n > KV_PUBLISH_MAX || bytes == 0 || bytes > d->config.max_payload_bytes) return KV_BAD_ARGUMENT;
    if (d->n_free < (uint32_t)n) return KV_CAPACITY;
    struct kv_tier *t = d->config.tier[tier];
    uint32_t c;
    struct kv_block *b = malloc((size_t)n * sizeof *b);
    int32_t reserved = 0, added = 0;
    enum kv_status s = b ? KV_OK : KV_OUT_OF_MEMORY;
    for (; reserved < n && s == KV_OK; reserved++) {
        if ((c = kv_directory_find(d, &id[reserved])) != KV_NONE && !may_gain(&d->chunk[c], tier, bytes)) s = KV_CONFLICT;
        else s = t->reserve(t->ctx, bytes, &id[reserved], &b[reserved]);
        if (s != KV_OK) break;
    }
    if (s == KV_OK) s = write_group(t, n, b, id, payload, bytes);
    for (; s == KV_OK && added < n; added++) {
        c = kv_directory_find(d, &id[added]); /* again: the group may name one chunk twice */
        if (c == KV_NONE) s = add_chunk(d, &id[added], bytes, &c);
        else if (!may_gain(&d->chunk[c], tier, bytes)) s = KV_CONFLICT;
        if (s != KV_OK) break;
        d->chunk[c].cache = cache;
        d->chunk[c].recompute_us = d->typical_recompute_us = recompute_us;
        kv_replica_add(d, c, tier, b[added]);
        d->stats.published++;
    }
    for (int32_t i = added; i < reserved; i++) t->release(t->ctx, b[i]);
    free(b);
    return s;
}

enum kv_status kv_directory_publish(struct kv_directory *d, const struct kv_chunk_identity *id, struct kv_cache_generation cache, enum kv_tier_id tier,
                                    const void *payload, uint64_t bytes, double recompute_us)
{
    return kv_directory_publish_group(d, 1, id, cache, tier, &payload, bytes, recompute_us);
}

enum kv_status kv_directory_adopt(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id tier, struct kv_block b, uint64_t bytes)
{
    if ((unsigned)tier >= KV_TIERS || !d->config.tier[tier] || bytes == 0 || bytes > d->config.max_payload_bytes) return KV_BAD_ARGUMENT;
    uint32_t c = kv_directory_find(d, id);
    if (c != KV_NONE && (d->chunk[c].replica[tier].present || d->chunk[c].bytes != bytes)) return KV_CONFLICT;
    enum kv_status s = c == KV_NONE ? add_chunk(d, id, bytes, &c) : KV_OK;
    if (s != KV_OK) return s;
    kv_replica_add(d, c, tier, b);
    d->stats.adopted++;
    return KV_OK;
}

enum kv_answer kv_directory_lookup(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id tier, struct kv_lease *lease)
{
    uint32_t c = kv_directory_find(d, id);
    d->stats.lookups[tier]++;
    if (c != KV_NONE && kv_replica_counts(d, &d->chunk[c].replica[tier])) {
        struct replica *r = &d->chunk[c].replica[tier];
        d->stats.hits[tier]++;
        r->rank = d->age[tier] + ++r->uses;
        if (d->config.victim == KV_VICTIM_LRU && d->newest[tier] != c) unlink_replica(d, c, tier), link_newest(d, c, tier);
        if (lease) {
            *lease = (struct kv_lease){c, tier, r->generation, {++d->next_lease}, r->block, d->chunk[c].bytes};
            r->leases++;
            d->stats.leases++;
        }
        return KV_ANSWER_READY;
    }
    uint32_t x = c == KV_NONE ? KV_NONE : d->chunk[c].writing;
    if (x != KV_NONE && !d->transaction[x].demotion && d->transaction[x].to == tier && !d->transaction[x].cancelled) {
        d->stats.waits[tier]++;
        return KV_ANSWER_WAIT;
    }
    d->stats.misses[tier]++;
    return KV_ANSWER_MISS;
}

enum kv_status kv_directory_release(struct kv_directory *d, struct kv_lease *lease)
{
    if (lease->lease.n == 0 || lease->chunk >= d->config.max_chunks) return KV_STALE_REPLICA_GENERATION;
    struct chunk *c = &d->chunk[lease->chunk];
    struct replica *r = &c->replica[lease->tier];
    lease->lease.n = 0;
    if (!c->used || !r->present || r->generation.n != lease->replica.n || r->leases == 0) return KV_STALE_REPLICA_GENERATION;
    r->leases--;
    d->stats.leases--;
    if (r->leases == 0 && r->retiring) kv_transaction_source_free(d, c->writing);
    return KV_OK;
}

int kv_directory_nearest(const struct kv_directory *d, const struct kv_chunk_identity *id)
{
    uint32_t c = kv_directory_find(d, id);
    for (int t = 0; c != KV_NONE && t < KV_TIERS; t++)
        if (kv_replica_counts(d, &d->chunk[c].replica[t])) return t;
    return -1;
}

int kv_directory_slowest(const struct kv_directory *d, const struct kv_chunk_identity *id)
{
    uint32_t c = kv_directory_find(d, id);
    for (int t = KV_TIERS - 1; c != KV_NONE && t >= 0; t--)
        if (kv_replica_counts(d, &d->chunk[c].replica[t])) return t;
    return -1;
}

void kv_directory_touch(struct kv_directory *d, const struct kv_chunk_identity *id)
{
    uint32_t c = d->config.victim == KV_VICTIM_LRU ? kv_directory_find(d, id) : KV_NONE;
    for (int t = 0; c != KV_NONE && t < KV_TIERS; t++)
        if (d->chunk[c].replica[t].present) unlink_replica(d, c, (enum kv_tier_id)t), link_newest(d, c, (enum kv_tier_id)t);
}

struct kv_tier *kv_directory_tier(const struct kv_directory *d, enum kv_tier_id tier)
{
    return (unsigned)tier < KV_TIERS ? d->config.tier[tier] : NULL;
}

/* ---------------------------------------------------------------- removal and authority */

static enum kv_status remove_chunk(struct kv_directory *d, uint32_t c)
{
    struct chunk *k = &d->chunk[c];
    if (k->writing != KV_NONE) return KV_CONFLICT;
    for (int t = 0; t < KV_TIERS; t++)
        if (k->replica[t].leases) return KV_CONFLICT;
    /* The durable copy goes first: were it last, a failure would leave bytes that nobody lists. */
    for (int t = KV_TIERS - 1; t >= 0; t--) {
        if (!k->replica[t].present) continue;
        struct kv_tier *tier = d->config.tier[t];
        enum kv_status s = tier->erase ? tier->erase(tier->ctx, k->replica[t].block) : KV_OK;
        if (s != KV_OK) return s;
        kv_replica_drop(d, c, (enum kv_tier_id)t); /* releasing an erased block is a no-op */
    }
    drop_chunk(d, c);
    d->stats.removed++;
    return KV_OK;
}

enum kv_status kv_directory_forget(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id tier)
{
    uint32_t c = kv_directory_find(d, id);
    if (c == KV_NONE || (unsigned)tier >= KV_TIERS || !d->chunk[c].replica[tier].present) return KV_NOT_FOUND;
    if (d->chunk[c].writing != KV_NONE || d->chunk[c].replica[tier].leases) return KV_CONFLICT;
    kv_replica_drop(d, c, tier);
    d->stats.evictions[tier]++;
    for (int t = 0; t < KV_TIERS; t++)
        if (d->chunk[c].replica[t].present) return KV_OK;
    drop_chunk(d, c);
    return KV_OK;
}

enum kv_status kv_directory_remove(struct kv_directory *d, const struct kv_chunk_identity *id)
{
    uint32_t c = kv_directory_find(d, id);
    return c == KV_NONE ? KV_NOT_FOUND : remove_chunk(d, c);
}

enum kv_status kv_directory_remove_tenant(struct kv_directory *d, const char *tenant, struct kv_ns_generation up_to, uint64_t *removed)
{
    enum kv_status first = KV_OK;
    *removed = 0;
    for (uint32_t c = 0; c < d->config.max_chunks; c++) {
        const struct kv_chunk_identity *id = &d->chunk[c].identity;
        if (!d->chunk[c].used || strncmp(id->tenant, tenant, KV_NAME_CHARS) || id->ns.n > up_to.n) continue;
        enum kv_status s = remove_chunk(d, c);
        if (s == KV_OK) ++*removed;
        else if (first == KV_OK) first = s;
    }
    return first;
}

void kv_directory_fence(struct kv_directory *d)
{
    d->authority.n++;
}

enum kv_status kv_directory_reauthorise(struct kv_directory *d, const struct kv_chunk_identity *id, enum kv_tier_id tier)
{
    uint32_t c = kv_directory_find(d, id);
    if (c == KV_NONE || (unsigned)tier >= KV_TIERS || !d->chunk[c].replica[tier].present) return KV_NOT_FOUND;
    struct kv_tier *t = d->config.tier[tier];
    uint8_t *buffer = malloc(d->chunk[c].bytes);
    if (!buffer) return KV_OUT_OF_MEMORY;
    enum kv_status s = t->read(t->ctx, d->chunk[c].replica[tier].block, id, buffer, d->chunk[c].bytes);
    memset(buffer, 0, d->chunk[c].bytes);
    free(buffer);
    if (s == KV_OK) d->chunk[c].replica[tier].authority = d->authority;
    return s;
}

enum kv_status kv_directory_set_cache_generation(struct kv_directory *d, const struct kv_chunk_identity *id, struct kv_cache_generation g)
{
    uint32_t c = kv_directory_find(d, id);
    if (c == KV_NONE) return KV_NOT_FOUND;
    d->chunk[c].cache = g;
    return KV_OK;
}

struct kv_authority_generation kv_directory_authority(const struct kv_directory *d)
{
    return d->authority;
}

/* ---------------------------------------------------------------- facts */

void kv_directory_stats(const struct kv_directory *d, struct kv_directory_stats *out)
{
    *out = d->stats;
    for (uint32_t i = 0; i < d->config.max_transactions; i++) out->transactions += d->transaction[i].used;
    for (uint32_t i = 0; i < d->max_waiters; i++) out->waiters += d->waiter[i].used;
}

#define HOLDS(condition, what) \
    if (!(condition)) return kv_fail(err, KV_INTERNAL, what, "%s does not hold at chunk %u", what, i)

enum kv_status kv_directory_check(const struct kv_directory *d, struct kv_error *err)
{
    uint64_t chunks = 0, leases = 0, replicas[KV_TIERS] = {0}, bytes[KV_TIERS] = {0};
    uint32_t i;
    for (i = 0; i < d->config.max_chunks; i++) {
        const struct chunk *c = &d->chunk[i];
        if (!c->used) continue;
        chunks++;
        uint32_t s = table_find(d, &c->identity, c->key);
        HOLDS(s != KV_NONE && d->table[s].chunk == i, "the table finds its chunk");
        int32_t present = 0;
        for (int t = 0; t < KV_TIERS; t++) {
            const struct replica *r = &c->replica[t];
            if (!r->present) continue;
            present++;
            replicas[t]++;
            bytes[t] += c->bytes;
            leases += r->leases;
            HOLDS(d->config.tier[t]->current(d->config.tier[t]->ctx, r->block), "a replica owns its block");
            HOLDS(!r->retiring || (r->leases && c->writing != KV_NONE), "a retiring replica waits for a lease");
        }
        HOLDS(present >= 1, "a chunk has a replica");
        /* After a fence, replicas of the last epoch still hold the bytes until they are verified again. */
        int32_t counting = kv_replicas_counting(d, c);
        bool fenced = false;
        for (int t = 0; t < KV_TIERS; t++) fenced |= c->replica[t].present && c->replica[t].authority.n != d->authority.n;
        HOLDS(counting >= d->config.required || fenced || d->config.required > 1, "R_min valid replicas");
        if (c->writing != KV_NONE) {
            const struct transaction *x = &d->transaction[c->writing];
            HOLDS(x->used && x->chunk == i, "a moving chunk has its transaction");
        }
    }
    HOLDS(chunks == d->stats.chunks && leases == d->stats.leases, "counts of chunks and leases");
    HOLDS(chunks + d->n_free == d->config.max_chunks, "free chunks");
    for (int t = 0; t < KV_TIERS; t++) {
        uint32_t n = 0;
        for (uint32_t c = d->newest[t]; c != KV_NONE && n <= d->config.max_chunks; c = d->links[t][c].older) n++;
        HOLDS(n == replicas[t], "the list of a tier");
        HOLDS(replicas[t] == d->stats.replicas[t] && bytes[t] == d->stats.replica_bytes[t], "counts of replicas");
        HOLDS(d->stats.replicas_added[t] - d->stats.replicas_dropped[t] == replicas[t], "replicas added and dropped");
        HOLDS(d->stats.bytes_added[t] - d->stats.bytes_dropped[t] == bytes[t], "bytes in, out and resident");
        HOLDS(d->stats.lookups[t] == d->stats.hits[t] + d->stats.waits[t] + d->stats.misses[t], "lookups");
    }
    uint64_t moving = 0, promoting = 0;
    for (uint32_t k = 0; k < d->config.max_transactions; k++) {
        const struct transaction *x = &d->transaction[k];
        if (!x->used) continue;
        i = x->chunk;
        HOLDS(d->chunk[i].used && d->chunk[i].writing == k, "a transaction has its chunk");
        HOLDS(x->copied || x->transfer.to->current(x->transfer.to->ctx, x->transfer.destination), "a transaction owns its destination");
        moving += x->demotion && !x->copied;
        promoting += !x->demotion;
    }
    i = 0;
    HOLDS(d->stats.promotions_begun == d->stats.promotions_done + d->stats.promotions_failed + promoting, "promotions");
    HOLDS(d->stats.demotions_begun == d->stats.demotions_done + d->stats.demotions_failed + moving, "demotions");
    return KV_OK;
}
