/* turns_remote.c — see turns_remote.h. */
#include "runtime/service/turns_remote.h"

#include "runtime/residency/mover.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { DROP_PATIENCE = 5 }; /* of remote_timeout_ms: no block is erased later than that after it was asked for */

struct upload { /* a block to keep */
    struct upload *next;
    struct kv_chunk_identity id;
    uint8_t *payload;
};
struct erasure { /* of a dropped session's blocks */
    struct erasure *next;
    struct kv_chunk_identity *ids;
    int32_t n_ids;
    struct command *command;
    double asked_us;
};

struct kv_turns_remote {
    struct kv_remote *store;
    size_t block_bytes;
    pthread_t uploader, fetcher;
    bool uploads, fetches; /* threads that were started */
    _Atomic bool stop;
    double us_per_byte; /* of fetches; turns and fetch thread, under the lock */
    /* Under the turns' lock. */
    pthread_cond_t wake;
    struct upload *up, **up_tail;
    struct erasure *erase, **erase_tail; /* these come first */
    struct kv_fetch *fetch;
    uint64_t up_bytes, fetched_bytes;
};

/* All layers of a block are one object: layer −1. No lookup of rows has that identity. */
static struct kv_chunk_identity object_of(struct kv_chunk_identity id)
{
    id.layer = -1;
    return id;
}

/* ---------------------------------------------------------------- to the store */

static bool has_room(struct kv_turns *t)
{
    struct kv_turns_remote *r = t->remote;
    bool room = kv_remote_takes(r->store);
    pthread_mutex_lock(&t->lock);
    room = room && r->up_bytes + r->block_bytes <= t->config.remote_bytes;
    pthread_mutex_unlock(&t->lock);
    if (!room) kv_remote_skipped(r->store, 1);
    return room;
}

/* Takes over the payload. */
static void keep(struct kv_turns *t, const struct kv_chunk_identity *id, uint8_t *payload)
{
    struct kv_turns_remote *r = t->remote;
    struct upload *u = calloc(1, sizeof *u);
    if (!u) {
        free(payload);
        return;
    }
    u->id = object_of(*id);
    u->payload = payload;
    pthread_mutex_lock(&t->lock);
    r->up_bytes += r->block_bytes;
    *r->up_tail = u;
    r->up_tail = &u->next;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&t->lock);
}

/* A block of rows is about to leave the disk for good. */
static void leaving(void *ctx, struct kv_directory *d, const struct kv_chunk_identity *any_layer)
{
    struct kv_turns *t = ctx;
    struct kv_chunk_identity id = *any_layer;
    size_t slab = t->config.slab_bytes;
    if (!has_room(t)) return;
    uint8_t *payload = malloc(t->remote->block_bytes);
    bool whole = payload != NULL;
    for (id.layer = 0; whole && id.layer < t->config.n_layers; id.layer++) {
        struct kv_lease lease;
        whole = kv_directory_lookup(d, &id, KV_TIER_DISK, &lease) == KV_ANSWER_READY;
        if (!whole) break;
        whole = lease.bytes == slab && t->disk.read(t->disk.ctx, lease.block, &id, payload + (size_t)id.layer * slab, slab) == KV_OK;
        (void)kv_directory_release(d, &lease);
    }
    if (whole) keep(t, &id, payload);
    else free(payload);
}

int32_t kv_turns_remote_overflow(struct kv_turns *t, const struct kv_turn *save, int32_t first, int32_t end)
{
    size_t slab = t->config.slab_bytes;
    int32_t b = first;
    for (; t->remote && b < end && has_room(t); b++) {
        uint8_t *payload = malloc(t->remote->block_bytes);
        if (!payload) break;
        for (int32_t l = 0; l < t->config.n_layers; l++) memcpy(payload + (size_t)l * slab, save->own.slab[(size_t)l * (size_t)save->own.max_blocks + (size_t)b], slab);
        struct kv_chunk_identity id = kv_chain_chunk(&save->chain, 0, b);
        keep(t, &id, payload);
    }
    return b - first;
}

/* Under the lock. */
static void sent(struct kv_turns_remote *r, struct upload *u)
{
    r->up_bytes -= r->block_bytes;
    free(u->payload);
    free(u);
}

/* Under the lock. Of blocks that are to be erased, those that still wait to be sent. */
static void send_none_of(struct kv_turns_remote *r, const struct kv_chunk_identity *ids, int32_t n)
{
    for (struct upload **at = &r->up, *u; (u = *at);) {
        int32_t i = 0;
        while (i < n && (memcmp(u->id.prefix.b, ids[i].prefix.b, sizeof ids[i].prefix.b) || strcmp(u->id.tenant, ids[i].tenant))) i++;
        if (i == n) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        if (r->up_tail == &u->next) r->up_tail = at;
        sent(r, u);
    }
}

enum kv_status kv_turns_remote_erase(struct kv_turns *t, struct kv_chunk_identity *ids, int32_t n, struct command *c)
{
    struct kv_turns_remote *r = t->remote;
    struct erasure *x = calloc(1, sizeof *x);
    if (!x) {
        free(ids);
        return KV_OUT_OF_MEMORY;
    }
    *x = (struct erasure){.ids = ids, .n_ids = n, .command = c, .asked_us = kv_now_us()};
    c->erasing = true;
    send_none_of(r, ids, n);
    *r->erase_tail = x;
    r->erase_tail = &x->next;
    pthread_cond_broadcast(&r->wake);
    return KV_OK;
}

static enum kv_status erase(struct kv_turns *t, const struct erasure *x)
{
    enum kv_status s = KV_OK;
    for (int32_t i = 0; i < x->n_ids && s == KV_OK; i++) {
        struct kv_chunk_identity id = object_of(x->ids[i]);
        bool late = kv_now_us() - x->asked_us > DROP_PATIENCE * 1e3 * t->config.remote_timeout_ms;
        s = late ? KV_REMOTE_TIMEOUT : kv_remote_erase(t->remote->store, &id, &t->remote->stop);
    }
    return s;
}

/* Under the lock. */
static void erased(struct kv_turns *t, struct erasure *x, enum kv_status s)
{
    x->command->erasing = false;
    x->command->erased = true;
    x->command->status = s;
    pthread_cond_broadcast(&t->work);
    free(x->ids);
    free(x);
}

static struct erasure *next_erasure(struct kv_turns_remote *r)
{
    struct erasure *x = r->erase;
    if (x && !(r->erase = x->next)) r->erase_tail = &r->erase;
    return x;
}

static struct upload *next_upload(struct kv_turns_remote *r)
{
    struct upload *u = r->up;
    if (u && !(r->up = u->next)) r->up_tail = &r->up;
    return u;
}

/* Under the lock, which is given up while the store is asked. */
static void send_next(struct kv_turns *t)
{
    struct kv_turns_remote *r = t->remote;
    struct erasure *x = next_erasure(r);
    struct upload *u = x ? NULL : next_upload(r);
    bool last = !r->up && !r->erase;
    pthread_mutex_unlock(&t->lock);
    enum kv_status s = x ? erase(t, x) : kv_remote_put(r->store, &u->id, u->payload, r->block_bytes, &r->stop);
    if (x) {
        pthread_mutex_lock(&t->lock);
        erased(t, x, s); /* who waits for it does not wait for facts */
        pthread_mutex_unlock(&t->lock);
    }
    if (last && s == KV_OK) (void)kv_remote_ask_facts(r->store, &r->stop);
    pthread_mutex_lock(&t->lock);
    if (u) sent(r, u);
    if (r->up || r->erase) return;
    pthread_mutex_unlock(&t->lock);
    t->config.event(t->config.event_ctx); /* what is told of the tier follows */
    pthread_mutex_lock(&t->lock);
}

static void *upload_main(void *arg)
{
    struct kv_turns *t = arg;
    struct kv_turns_remote *r = t->remote;
    (void)kv_remote_ask_facts(r->store, &r->stop);
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!r->up && !r->erase && !r->stop) pthread_cond_wait(&r->wake, &t->lock);
        if (r->stop) break;
        send_next(t);
    }
    for (struct upload *u; (u = next_upload(r));) sent(r, u);
    for (struct erasure *x; (x = next_erasure(r));) erased(t, x, KV_TRANSFER_CANCELLED);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---------------------------------------------------------------- from the store */

void kv_turns_fetch_free(struct kv_turns *t, struct kv_fetch *f)
{
    if (!f) return;
    pthread_mutex_lock(&t->lock);
    t->remote->fetched_bytes -= f->held_bytes;
    pthread_mutex_unlock(&t->lock);
    for (int32_t i = 0; f->block && i < f->n; i++) free(f->block[i]);
    free(f->block);
    kv_chain_free(&f->chain);
    free(f);
}

struct kv_fetch *kv_turns_fetch_plan(struct kv_turns *t, const struct kv_turn *j, int32_t held)
{
    struct kv_turns_remote *r = t->remote;
    int32_t first = held > j->first ? held : j->first, n = j->chain.n_blocks - first;
    if (!r || n <= 0 || !j->session[0] || j->look == KV_LOOK_DISK || j->dearer) return NULL;
    if (!kv_remote_asks(r->store)) return kv_remote_skipped(r->store, 1), NULL;
    pthread_mutex_lock(&t->lock);
    bool dearer = j->us_per_row > 0 && !j->faults.mask && (double)r->block_bytes * r->us_per_byte > KV_BLOCK_ROWS * j->us_per_row;
    if (dearer) r->us_per_byte *= 0.95; /* one slow fetch must not rule out fetching for ever */
    pthread_mutex_unlock(&t->lock);
    struct kv_fetch *f = dearer ? NULL : calloc(1, sizeof *f);
    if (!f) return NULL;
    *f = (struct kv_fetch){.chain = j->chain, .first = first, .end = j->chain.n_blocks, .block_bytes = r->block_bytes, .us_per_row = j->us_per_row, .ahead = j->ahead, .faults = j->faults};
    f->chain.prefix = malloc((size_t)j->chain.n_blocks * sizeof *f->chain.prefix);
    f->block = calloc((size_t)n, sizeof *f->block);
    if (f->chain.prefix && f->block) {
        memcpy(f->chain.prefix, j->chain.prefix, (size_t)j->chain.n_blocks * sizeof *f->chain.prefix);
        return f;
    }
    kv_turns_fetch_free(t, f);
    return NULL;
}

/* Those ahead of their turn come last. */
static void queue_fetch(struct kv_turns_remote *r, struct kv_fetch *f)
{
    struct kv_fetch **at = &r->fetch;
    while (*at && (f->ahead || !(*at)->ahead)) at = &(*at)->next;
    f->next = *at;
    *at = f;
}

void kv_turns_fetch_begin(struct kv_turns *t, struct kv_turn *j, struct kv_fetch *f)
{
    struct kv_turns_remote *r = t->remote;
    j->fetch = f;
    f->turn = j;
    f->asked_us = kv_now_us();
    queue_fetch(r, f);
    pthread_cond_broadcast(&r->wake);
    pthread_cond_broadcast(&t->answered); /* whoever gives the turn up meanwhile waits for this */
}

void kv_turns_hurry(struct kv_turns *t, struct kv_turn *j)
{
    pthread_mutex_lock(&t->lock);
    struct kv_fetch *f = j->fetch;
    if (f && !f->done && f->ahead) {
        struct kv_fetch **at = &t->remote->fetch;
        f->ahead = false;
        while (*at && *at != f) at = &(*at)->next;
        if (*at) {
            *at = f->next;
            f->asked_us = kv_now_us(); /* what it waited for others before is no fault of the store */
            queue_fetch(t->remote, f);
        }
    }
    pthread_mutex_unlock(&t->lock);
}

bool kv_turns_fetch_cancel(struct kv_turns *t, struct kv_turn *j)
{
    struct kv_fetch *f = j->fetch;
    (void)t;
    if (!f || f->done || f->turn != j) return false;
    f->turn = NULL;
    f->stop = true;
    j->fetch = NULL;
    return true;
}

static bool take_room(struct kv_turns *t, struct kv_fetch *f)
{
    struct kv_turns_remote *r = t->remote;
    pthread_mutex_lock(&t->lock);
    bool room = r->fetched_bytes + f->block_bytes <= (f->ahead ? t->config.remote_bytes / 2 : t->config.remote_bytes);
    if (room) r->fetched_bytes += f->block_bytes, f->held_bytes += f->block_bytes;
    pthread_mutex_unlock(&t->lock);
    return room;
}

static enum kv_status fetch_block(struct kv_turns *t, struct kv_fetch *f)
{
    struct kv_turns_remote *r = t->remote;
    struct kv_chunk_identity id = object_of(kv_chain_chunk(&f->chain, 0, f->first + f->n));
    if (f->stop) return KV_TRANSFER_CANCELLED;
    if (kv_fault_strikes(&f->faults, KV_FAULT_remote_timeout)) return KV_REMOTE_TIMEOUT;
    if (!take_room(t, f)) return KV_CREDIT_PRESSURE;
    uint8_t *block = malloc(f->block_bytes);
    enum kv_status s = block ? kv_remote_get(r->store, &id, block, f->block_bytes, &f->stop) : KV_OUT_OF_MEMORY;
    if (s == KV_OK) f->block[f->n++] = block;
    else free(block);
    return s;
}

/* What is ahead of its turn, to what is not. */
static bool gives_way(struct kv_turns *t, const struct kv_fetch *f)
{
    if (!f->ahead) return false;
    pthread_mutex_lock(&t->lock);
    bool way = t->remote->fetch && !t->remote->fetch->ahead;
    pthread_mutex_unlock(&t->lock);
    return way;
}

/* false: it gave way, and is to go on later. */
static bool fetch_blocks(struct kv_turns *t, struct kv_fetch *f)
{
    double began = kv_now_us(), computing = (f->end - f->first) * KV_BLOCK_ROWS * f->us_per_row, patience = t->config.remote_timeout_ms * 1e3;
    int32_t before = f->n;
    bool way = false;
    if (patience < computing) patience = computing;
    while (f->status == KV_OK && f->first + f->n < f->end && !(way = gives_way(t, f))) f->status = kv_now_us() - f->asked_us > patience ? KV_REMOTE_TIMEOUT : fetch_block(t, f);
    if (f->status == KV_NOT_FOUND) f->status = KV_OK;
    if (f->n == before) return !way;
    double each = (kv_now_us() - began) / ((double)(f->n - before) * (double)f->block_bytes);
    pthread_mutex_lock(&t->lock);
    double *mean = &t->remote->us_per_byte;
    *mean = *mean > 0 ? 0.7 * *mean + 0.3 * each : each;
    pthread_mutex_unlock(&t->lock);
    return !way;
}

static struct kv_fetch *next_fetch(struct kv_turns_remote *r)
{
    struct kv_fetch *f = r->fetch;
    if (f) r->fetch = f->next;
    return f;
}

static void *fetch_main(void *arg)
{
    struct kv_turns *t = arg;
    struct kv_turns_remote *r = t->remote;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!r->fetch && !r->stop) pthread_cond_wait(&r->wake, &t->lock);
        if (r->stop) break;
        struct kv_fetch *f = next_fetch(r);
        pthread_mutex_unlock(&t->lock);
        bool over = fetch_blocks(t, f);
        pthread_mutex_lock(&t->lock);
        if (!over) {
            queue_fetch(r, f);
            continue;
        }
        f->done = true;
        if (f->turn) {
            kv_turns_look_again(t, f->turn);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        kv_turns_fetch_free(t, f);
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    for (struct kv_fetch *f; (f = next_fetch(r));) kv_turns_fetch_free(t, f);
    return NULL;
}

void kv_turns_fetch_copy(const struct kv_turns *t, const struct kv_turn *j, int32_t layer)
{
    const struct kv_fetch *f = j->fetch;
    size_t slab = t->config.slab_bytes;
    for (int32_t i = f->first < j->first ? j->first - f->first : 0; i < f->n && f->first + i < j->end; i++)
        memcpy(j->cache->slab[(size_t)layer * (size_t)j->cache->max_blocks + (size_t)(f->first + i)], f->block[i] + (size_t)layer * slab, slab);
}

/* ---------------------------------------------------------------- facts and life */

void kv_turns_remote_stats(struct kv_turns *t, struct kv_tier_stats *out)
{
    struct kv_turns_remote *r = t->remote;
    struct kv_remote_stats s;
    kv_remote_stats(r->store, &s);
    *out = (struct kv_tier_stats){.name = "remote", .capacity_bytes = s.store.capacity_bytes, .used_bytes = s.store.bytes, .objects = s.store.objects, .hits = s.hits, .misses = s.misses,
                                  .bytes_in = s.bytes_out, .bytes_out = s.bytes_in, .failures = s.failures, .skipped = s.skipped, .refused = s.refused,
                                  .capability = &kv_remote_capability, .breaker = kv_breaker_name(s.breaker), .last_failure = s.last_failure, .last_failure_us = s.last_failure_us};
    pthread_mutex_lock(&t->lock);
    out->scratch_bytes = r->up_bytes + r->fetched_bytes;
    for (const struct upload *u = r->up; u; u = u->next) out->transfers_in_flight++;
    for (const struct erasure *x = r->erase; x; x = x->next) out->transfers_in_flight++;
    for (const struct kv_fetch *f = r->fetch; f; f = f->next) out->transfers_in_flight++;
    pthread_mutex_unlock(&t->lock);
}

enum kv_status kv_turns_remote_create(struct kv_turns *t, struct kv_error *err)
{
    struct kv_turns_remote *r = t->remote = calloc(1, sizeof *r);
    if (!r) return kv_fail(err, KV_OUT_OF_MEMORY, "tiers.remote", "no memory for the remote tier");
    r->block_bytes = (size_t)t->config.n_layers * t->config.slab_bytes;
    r->up_tail = &r->up;
    r->erase_tail = &r->erase;
    pthread_cond_init(&r->wake, NULL);
    t->leaving = (struct kv_leaving){leaving, t};
    enum kv_status s = kv_remote_create(t->config.remote, t->config.key, t->config.remote_pause_ms, &r->store);
    if (s != KV_OK) return kv_fail(err, s, "tiers.remote", "the remote tier could not be set up");
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r->uploads = pthread_create(&r->uploader, NULL, upload_main, t) == 0;
    r->fetches = pthread_create(&r->fetcher, NULL, fetch_main, t) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r->uploads && r->fetches ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "tiers.remote", "the remote tier's threads could not be started");
}

void kv_turns_remote_stop(struct kv_turns *t)
{
    struct kv_turns_remote *r = t->remote;
    if (!r) return;
    pthread_mutex_lock(&t->lock);
    r->stop = true;
    for (struct kv_fetch *f = r->fetch; f; f = f->next) f->stop = true;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&t->lock);
    if (r->uploads) pthread_join(r->uploader, NULL);
    if (r->fetches) pthread_join(r->fetcher, NULL);
    r->uploads = r->fetches = false;
}

void kv_turns_remote_destroy(struct kv_turns *t)
{
    if (!t->remote) return;
    kv_turns_remote_stop(t);
    kv_remote_destroy(t->remote->store);
    pthread_cond_destroy(&t->remote->wake);
    free(t->remote);
    t->remote = NULL;
}
