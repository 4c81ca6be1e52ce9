/* credits.c — see credits.h. */
#include "runtime/service/credits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

struct unit {
    uint8_t id[32];
    uint64_t bytes;
    int32_t waiters, chain; /* chain: of its bucket, or of the free units */
};

struct held { /* a ticket's slot */
    struct kv_credit_ask ask;
    int64_t since_us;
    uint64_t generation;
    int32_t unit, chain; /* unit NONE: shared with nobody */
    bool live;
};

struct waiter {
    uint64_t request;
    const char *what;
    enum kv_credit lacks;
    int64_t since_us;
};

struct kv_credits {
    pthread_mutex_t lock;
    struct kv_credit_view counts;
    struct held *held;
    struct unit *unit;
    struct waiter *waiter;
    int32_t *bucket, n_buckets, max, free_held, free_unit, n_waiters;
    uint64_t generation;
};

const char *kv_credit_name(enum kv_credit c)
{
    static const char *const names[KV_CREDIT_KINDS] = {"pinned", "staging", "link", "queue"};
    return (unsigned)c < KV_CREDIT_KINDS ? names[c] : "unknown";
}

static void clear(struct kv_credits *c)
{
    memset(c->counts.used, 0, sizeof c->counts.used);
    memset(c->bucket, 0xff, (size_t)c->n_buckets * sizeof *c->bucket);
    for (int32_t i = 0; i < c->max; i++) {
        c->held[i].live = false;
        c->held[i].chain = c->unit[i].chain = i + 1 < c->max ? i + 1 : NONE;
    }
    c->free_held = c->free_unit = 0;
    c->counts.n_holders = c->n_waiters = 0;
}

enum kv_status kv_credits_create(const struct kv_credit_limits *l, struct kv_credits **out)
{
    *out = NULL;
    if (l->max_tickets < 1 || l->max_tickets > 1 << 20) return KV_BAD_ARGUMENT;
    struct kv_credits *c = calloc(1, sizeof *c);
    if (!c) return KV_OUT_OF_MEMORY;
    pthread_mutex_init(&c->lock, NULL);
    c->max = l->max_tickets;
    for (c->n_buckets = 16; c->n_buckets < 2 * c->max;) c->n_buckets *= 2;
    c->held = calloc((size_t)c->max, sizeof *c->held);
    c->unit = calloc((size_t)c->max, sizeof *c->unit);
    c->waiter = calloc((size_t)c->max, sizeof *c->waiter);
    c->bucket = calloc((size_t)c->n_buckets, sizeof *c->bucket);
    if (!c->held || !c->unit || !c->waiter || !c->bucket) return kv_credits_destroy(c), KV_OUT_OF_MEMORY;
    memcpy(c->counts.total, l->total, sizeof c->counts.total);
    clear(c);
    *out = c;
    return KV_OK;
}

void kv_credits_destroy(struct kv_credits *c)
{
    if (!c) return;
    pthread_mutex_destroy(&c->lock);
    free(c->held);
    free(c->unit);
    free(c->waiter);
    free(c->bucket);
    free(c);
}

/* ---------------------------------------------------------------- units */

static int32_t *bucket_of(struct kv_credits *c, const uint8_t id[32])
{
    uint64_t h;
    memcpy(&h, id, sizeof h); /* a digest's first bytes are spread already */
    return &c->bucket[h & (uint64_t)(c->n_buckets - 1)];
}

static int32_t find_unit(struct kv_credits *c, const uint8_t id[32])
{
    int32_t u = *bucket_of(c, id);
    while (u != NONE && memcmp(c->unit[u].id, id, 32)) u = c->unit[u].chain;
    return u;
}

static bool unshared(const uint8_t id[32])
{
    static const uint8_t zero[32];
    return !memcmp(id, zero, 32);
}

static void leave_unit(struct kv_credits *c, int32_t u)
{
    struct unit *x = &c->unit[u];
    if (--x->waiters) return;
    c->counts.used[KV_CREDIT_PINNED] -= x->bytes;
    c->counts.used[KV_CREDIT_LINK] -= x->bytes;
    int32_t *at = bucket_of(c, x->id);
    while (*at != u) at = &c->unit[*at].chain;
    *at = x->chain;
    x->chain = c->free_unit;
    c->free_unit = u;
}

/* ---------------------------------------------------------------- waiters */

static void forget(struct kv_credits *c, uint64_t request)
{
    for (int32_t i = 0; i < c->n_waiters; i++)
        if (c->waiter[i].request == request) {
            memmove(&c->waiter[i], &c->waiter[i + 1], (size_t)(--c->n_waiters - i) * sizeof *c->waiter);
            return;
        }
}

void kv_credits_wait(struct kv_credits *c, uint64_t request, const char *what, enum kv_credit lacks, int64_t now_us)
{
    pthread_mutex_lock(&c->lock);
    struct waiter *w = NULL;
    for (int32_t i = 0; i < c->n_waiters && !w; i++)
        if (c->waiter[i].request == request) w = &c->waiter[i];
    if (w) w->lacks = lacks;
    else if (c->n_waiters < c->max) c->waiter[c->n_waiters++] = (struct waiter){request, what, lacks, now_us};
    pthread_mutex_unlock(&c->lock);
}

void kv_credits_forget(struct kv_credits *c, uint64_t request)
{
    pthread_mutex_lock(&c->lock);
    forget(c, request);
    pthread_mutex_unlock(&c->lock);
}

/* ---------------------------------------------------------------- reserve and release */

static enum kv_status room(const struct kv_credit_view *v, const uint64_t need[KV_CREDIT_KINDS], enum kv_credit *lacks)
{
    enum kv_status s = KV_OK;
    for (int k = 0; k < KV_CREDIT_KINDS; k++) {
        if (need[k] > v->total[k]) return *lacks = (enum kv_credit)k, KV_CAPACITY;
        if (s == KV_OK && need[k] > v->total[k] - v->used[k]) *lacks = (enum kv_credit)k, s = KV_CREDIT_PRESSURE;
    }
    return s;
}

enum kv_status kv_credits_reserve(struct kv_credits *c, const struct kv_credit_ask *ask, int64_t now_us, struct kv_credit_ticket *out, enum kv_credit *lacks, bool *shared)
{
    enum kv_credit missing = KV_CREDIT_QUEUE;
    *out = (struct kv_credit_ticket){0};
    bool own = unshared(ask->unit);
    pthread_mutex_lock(&c->lock);
    int32_t u = own ? NONE : find_unit(c, ask->unit);
    bool joins = u != NONE;
    uint64_t charged = joins ? 0 : ask->backend_bytes;
    const uint64_t need[KV_CREDIT_KINDS] = {charged, ask->staging_bytes, charged, ask->queue_slots};
    enum kv_status s = joins && c->unit[u].bytes != ask->backend_bytes ? KV_IDENTITY_MISMATCH : room(&c->counts, need, &missing);
    if (s == KV_OK && c->free_held == NONE) s = KV_CREDIT_PRESSURE;
    if (s == KV_OK) {
        if (joins) {
            c->counts.coalesced_bytes += ask->backend_bytes;
        } else if (!own) {
            u = c->free_unit;
            c->free_unit = c->unit[u].chain;
            int32_t *b = bucket_of(c, ask->unit);
            c->unit[u] = (struct unit){.bytes = ask->backend_bytes, .chain = *b};
            memcpy(c->unit[u].id, ask->unit, 32);
            *b = u;
        }
        if (u != NONE) c->unit[u].waiters++;
        int32_t i = c->free_held;
        c->free_held = c->held[i].chain;
        c->held[i] = (struct held){*ask, now_us, ++c->generation, u, NONE, true};
        for (int k = 0; k < KV_CREDIT_KINDS; k++) {
            c->counts.used[k] += need[k];
            if (c->counts.used[k] > c->counts.peak[k]) c->counts.peak[k] = c->counts.used[k];
        }
        c->counts.reserved++;
        c->counts.n_holders++;
        if (c->n_waiters) forget(c, ask->request);
        *out = (struct kv_credit_ticket){(uint32_t)i, c->generation};
    } else {
        c->counts.refused++;
    }
    pthread_mutex_unlock(&c->lock);
    if (lacks) *lacks = missing;
    if (shared) *shared = joins && s == KV_OK;
    return s;
}

enum kv_status kv_credits_release(struct kv_credits *c, struct kv_credit_ticket *t)
{
    pthread_mutex_lock(&c->lock);
    struct held *h = t->slot < (uint32_t)c->max ? &c->held[t->slot] : NULL;
    bool live = h && h->live && h->generation == t->generation;
    if (live) {
        h->live = false;
        c->counts.used[KV_CREDIT_STAGING] -= h->ask.staging_bytes;
        c->counts.used[KV_CREDIT_QUEUE] -= h->ask.queue_slots;
        if (h->unit != NONE) leave_unit(c, h->unit);
        else {
            c->counts.used[KV_CREDIT_PINNED] -= h->ask.backend_bytes;
            c->counts.used[KV_CREDIT_LINK] -= h->ask.backend_bytes;
        }
        h->chain = c->free_held;
        c->free_held = (int32_t)t->slot;
        c->counts.released++;
        c->counts.n_holders--;
    } else {
        c->counts.stale++;
    }
    pthread_mutex_unlock(&c->lock);
    *t = (struct kv_credit_ticket){0};
    return live ? KV_OK : KV_STALE_CREDIT;
}

uint64_t kv_credits_returns(struct kv_credits *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t n = c->counts.released + c->counts.resets;
    pthread_mutex_unlock(&c->lock);
    return n;
}

void kv_credits_reset(struct kv_credits *c)
{
    pthread_mutex_lock(&c->lock);
    clear(c);
    c->counts.resets++;
    pthread_mutex_unlock(&c->lock);
}

void kv_credits_view(struct kv_credits *c, struct kv_credit_view *out, struct kv_credit_holder *holders, int32_t holders_cap,
                     struct kv_credit_holder *waiters, int32_t waiters_cap)
{
    pthread_mutex_lock(&c->lock);
    *out = c->counts;
    out->n_waiters = c->n_waiters;
    for (int32_t i = 0, n = 0; i < c->max && n < holders_cap; i++) {
        const struct held *h = &c->held[i];
        if (h->live)
            holders[n++] = (struct kv_credit_holder){h->ask.request, h->ask.what, h->ask.backend_bytes, h->ask.staging_bytes, h->ask.queue_slots,
                                                     h->unit == NONE ? 1 : (uint32_t)c->unit[h->unit].waiters, h->since_us, KV_CREDIT_KINDS};
    }
    for (int32_t i = 0; i < c->n_waiters && i < waiters_cap; i++)
        waiters[i] = (struct kv_credit_holder){.request = c->waiter[i].request, .what = c->waiter[i].what, .since_us = c->waiter[i].since_us, .lacks = c->waiter[i].lacks};
    pthread_mutex_unlock(&c->lock);
}

/* ---------------------------------------------------------------- exact offload */

enum kv_status kv_offload_admit(const struct kv_offload_demand *d, const struct kv_offload_demand *free, struct kv_error *err)
{
    if (!d->recoverable) return kv_fail(err, KV_SUPPORT_NOT_RECOVERABLE, "recoverable", "some legal row has no replica and no tokens to recompute it from");
    const struct { double need, have; enum kv_status reason; const char *what, *unit; } part[] = {
        {(double)d->device_bytes, (double)free->device_bytes, KV_DEVICE_BUDGET, "the device peak", "bytes"},
        {(double)d->host_bytes, (double)free->host_bytes, KV_HOST_BUDGET, "the host peak", "bytes"},
        {(double)d->pinned_bytes, (double)free->pinned_bytes, KV_PINNED_BUDGET, "pinned memory", "bytes"},
        {d->h2d_bytes_per_s, free->h2d_bytes_per_s, KV_H2D_BUDGET, "the host-to-device rate", "bytes/s"},
        {d->d2h_bytes_per_s, free->d2h_bytes_per_s, KV_D2H_BUDGET, "the device-to-host rate", "bytes/s"},
        {d->transfer_jobs, free->transfer_jobs, KV_QUEUE_FULL, "transfer jobs", "slots"}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (part[i].need <= part[i].have) continue;
        kv_fail(err, part[i].reason, part[i].what, "%s needs %.0f %s and %.0f are free", part[i].what, part[i].need, part[i].unit, part[i].have);
        kv_hint(err, "%.0f %s more would make it legal", part[i].need - part[i].have, part[i].unit);
        return part[i].reason;
    }
    return KV_OK;
}
