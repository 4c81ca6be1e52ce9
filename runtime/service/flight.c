/* flight.c — see flight.h. */
#include "runtime/service/flight.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 16384, WORDS = sizeof(struct kv_flight) / sizeof(uint64_t), COPIES = 8 };
#define COPY_EVERY_US INT64_C(1000000) /* in the long run: a fault that strikes every step must not fill a disk */

_Static_assert(sizeof(struct kv_flight) == 64 && offsetof(struct kv_flight, order) == 0, "a record is a cache line and begins with its order");

struct slot {
    _Alignas(64) _Atomic uint64_t word[WORDS]; /* word 0: the order, 0 while the others are written */
};

struct kv_flight_recorder {
    _Atomic uint64_t next;
    struct slot *slot;            /* [RING] */
    struct kv_flight_copy *making; /* the decode thread's */
    pthread_mutex_t lock;
    struct kv_flight_copy *copy;  /* [COPIES] under the lock */
    int32_t first, n;
    int64_t spent_us, kept_us;    /* the decode thread's: copies so far are paid for up to then; the last one, */
    uint64_t kept;                /* and whose it was */
};

enum kv_status kv_flight_create(struct kv_flight_recorder **out)
{
    struct kv_flight_recorder *f = *out = calloc(1, sizeof *f);
    if (!f) return KV_OUT_OF_MEMORY;
    pthread_mutex_init(&f->lock, NULL);
    f->slot = aligned_alloc(64, RING * sizeof *f->slot);
    f->copy = calloc(COPIES, sizeof *f->copy);
    f->making = calloc(1, sizeof *f->making);
    if (f->slot) memset((void *)f->slot, 0, RING * sizeof *f->slot);
    return f->slot && f->copy && f->making ? KV_OK : KV_OUT_OF_MEMORY;
}

void kv_flight_destroy(struct kv_flight_recorder *f)
{
    if (!f) return;
    pthread_mutex_destroy(&f->lock);
    free(f->slot);
    free(f->copy);
    free(f->making);
    free(f);
}

void kv_flight_put(struct kv_flight_recorder *f, const struct kv_flight *r)
{
    uint64_t order = atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed) + 1, w[WORDS];
    struct slot *s = &f->slot[order % RING];
    memcpy(w, r, sizeof w);
    atomic_store_explicit(&s->word[0], 0, memory_order_relaxed);
    for (size_t i = 1; i < WORDS; i++) atomic_store_explicit(&s->word[i], w[i], memory_order_release); /* none before the 0 */
    atomic_store_explicit(&s->word[0], order, memory_order_release);
}

static bool read_one(const struct slot *s, uint64_t order, struct kv_flight *out)
{
    uint64_t w[WORDS];
    w[0] = atomic_load_explicit(&s->word[0], memory_order_acquire);
    for (size_t i = 1; i < WORDS; i++) w[i] = atomic_load_explicit(&s->word[i], memory_order_acquire); /* none after the second look */
    if (w[0] != order || atomic_load_explicit(&s->word[0], memory_order_relaxed) != order) return false;
    memcpy(out, w, sizeof w);
    return true;
}

int32_t kv_flight_read(const struct kv_flight_recorder *f, uint64_t request, struct kv_flight *out, int32_t cap)
{
    uint64_t last = atomic_load_explicit(&f->next, memory_order_relaxed), first = last > RING ? last - RING + 1 : 1;
    int32_t n = 0;
    for (uint64_t o = last; o >= first && n < cap; o--) n += read_one(&f->slot[o % RING], o, &out[n]) && (!request || out[n].request == request);
    for (int32_t i = 0; i < n / 2; i++) {
        struct kv_flight r = out[i];
        out[i] = out[n - 1 - i];
        out[n - 1 - i] = r;
    }
    return n;
}

bool kv_flight_keep(struct kv_flight_recorder *f, uint64_t request, int64_t now_us, uint8_t digest[32])
{
    int64_t free_since = now_us - COPIES * COPY_EVERY_US;
    if (f->spent_us > now_us - COPY_EVERY_US || (f->kept == request && f->kept_us > now_us - COPY_EVERY_US)) return false;
    struct kv_flight_copy *c = f->making;
    c->n = kv_flight_read(f, request, c->record, KV_FLIGHT_COPY);
    if (!c->n) return false;
    kv_sha256(c->record, (size_t)c->n * sizeof *c->record, c->digest);
    pthread_mutex_lock(&f->lock);
    bool room = f->n < COPIES;
    if (room) f->copy[(f->first + f->n++) % COPIES] = *c;
    pthread_mutex_unlock(&f->lock);
    if (!room) return false;
    f->spent_us = (f->spent_us > free_since ? f->spent_us : free_since) + COPY_EVERY_US;
    f->kept = request;
    f->kept_us = now_us;
    memcpy(digest, c->digest, 32);
    return true;
}

bool kv_flight_take(struct kv_flight_recorder *f, struct kv_flight_copy *out)
{
    pthread_mutex_lock(&f->lock);
    bool any = f->n > 0;
    if (any) {
        *out = f->copy[f->first];
        f->first = (f->first + 1) % COPIES;
        f->n--;
    }
    pthread_mutex_unlock(&f->lock);
    return any;
}
