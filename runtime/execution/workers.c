/* workers.c — fork and join around an atomic item counter; see workers.h. */
#include "runtime/execution/workers.h"

#include "kernels/kernels.h"
#include "runtime/execution/futex.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MAX_WORKERS = 256, SPINS = 2000 };

/* The ticket of a region: generation | items | next item, in one word, so that a claim succeeds only in the region it was read from.
 * A worker that is not running when a region begins misses it without holding anybody up. */
#define ITEM_BITS 24
#define ITEM_MASK ((UINT64_C(1) << ITEM_BITS) - 1)
static uint64_t ticket(uint64_t generation, uint64_t items) { return generation << 2 * ITEM_BITS | items << ITEM_BITS; }
static uint64_t next_of(uint64_t t) { return t & ITEM_MASK; }
static uint64_t items_of(uint64_t t) { return t >> ITEM_BITS & ITEM_MASK; }

struct kv_workers {
    int32_t n, n_started, spins;
    pthread_t *thread; /* [n - 1] */
    uint64_t generation;
    /* Written by worker 0 before it raises the ticket; stable until every claimed item is done. */
    kv_work_fn *fn;
    void *ctx;
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t done;     /* items of the region that are finished */
    _Alignas(64) _Atomic uint32_t bell;     /* what idle workers sleep on */
    _Atomic uint32_t sleepers;              /* workers that sleep, or are about to */
    _Atomic uint32_t joining;               /* 1 while worker 0 sleeps, or is about to, on `done` */
    _Atomic bool stop;
};

struct start {
    struct kv_workers *w;
    int32_t index;
};

static inline void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Runs items of the present region until none is left; false when there was none. */
static bool claim(struct kv_workers *w, int32_t worker)
{
    bool any = false;
    uint64_t t = atomic_load_explicit(&w->ticket, memory_order_acquire);
    while (next_of(t) < items_of(t)) {
        if (!atomic_compare_exchange_weak_explicit(&w->ticket, &t, t + 1, memory_order_acquire, memory_order_acquire)) continue;
        w->fn(w->ctx, worker, (int32_t)next_of(t));
        any = true;
        uint32_t done = atomic_fetch_add(&w->done, 1) + 1;
        if (done == items_of(t) && atomic_load(&w->joining)) kv_futex_wake(&w->done);
        t = atomic_load_explicit(&w->ticket, memory_order_acquire);
    }
    return any;
}

static bool something_to_do(struct kv_workers *w)
{
    uint64_t t = atomic_load(&w->ticket);
    return next_of(t) < items_of(t) || atomic_load(&w->stop);
}

static void await_region(struct kv_workers *w)
{
    for (int32_t i = 0; i < w->spins; i++) {
        if (something_to_do(w)) return;
        pause_briefly();
    }
    atomic_fetch_add(&w->sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&w->bell);
        if (something_to_do(w)) break;
        kv_futex_wait(&w->bell, seen, -1);
    }
    atomic_fetch_sub(&w->sleepers, 1);
}

static void *work(void *arg)
{
    struct start s = *(struct start *)arg;
    free(arg);
    kv_numerics_enter();
    while (!atomic_load(&s.w->stop))
        if (!claim(s.w, s.index)) await_region(s.w);
    return NULL;
}

static void ring(struct kv_workers *w)
{
    if (!atomic_load(&w->sleepers)) return;
    atomic_fetch_add(&w->bell, 1);
    kv_futex_wake(&w->bell);
}

static void join_region(struct kv_workers *w, uint32_t all)
{
    uint32_t now;
    for (int32_t i = 0; i < w->spins; i++) {
        if (atomic_load_explicit(&w->done, memory_order_acquire) == all) return;
        pause_briefly();
    }
    atomic_store(&w->joining, 1);
    while ((now = atomic_load(&w->done)) != all) kv_futex_wait(&w->done, now, -1);
    atomic_store(&w->joining, 0);
}

void kv_workers_run(struct kv_workers *w, kv_work_fn *fn, void *ctx, int32_t n_items)
{
    if (w->n == 1 || n_items <= 1 || (uint64_t)n_items > ITEM_MASK) {
        for (int32_t i = 0; i < n_items; i++) fn(ctx, 0, i);
        return;
    }
    w->fn = fn;
    w->ctx = ctx;
    atomic_store_explicit(&w->done, 0, memory_order_relaxed);
    atomic_store(&w->ticket, ticket(++w->generation, (uint64_t)n_items));
    ring(w);
    (void)claim(w, 0);
    join_region(w, (uint32_t)n_items);
}

int32_t kv_workers_count(const struct kv_workers *w)
{
    return w->n;
}

static int32_t usable_processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

enum kv_status kv_workers_create(int32_t n, struct kv_workers **out)
{
    *out = NULL;
    if (n < 0 || n > MAX_WORKERS) return KV_BAD_ARGUMENT;
    int32_t processors = usable_processors();
    struct kv_workers *w = aligned_alloc(64, sizeof *w);
    if (!w) return KV_OUT_OF_MEMORY;
    *w = (struct kv_workers){.n = n ? n : processors};
    /* With more threads than processors, spinning only keeps the others from running. */
    w->spins = w->n <= processors ? SPINS : 0;
    w->thread = calloc((size_t)w->n, sizeof *w->thread);
    if (!w->thread) return free(w), KV_OUT_OF_MEMORY;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a handler must never run on a thread that others wait for */
    for (int32_t i = 1; i < w->n; i++) {
        struct start *s = malloc(sizeof *s);
        if (s) *s = (struct start){w, i};
        if (!s || pthread_create(&w->thread[w->n_started], NULL, work, s)) {
            free(s);
            break;
        }
        w->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (w->n_started < w->n - 1) return kv_workers_destroy(w), KV_OUT_OF_MEMORY;
    *out = w;
    return KV_OK;
}

void kv_workers_destroy(struct kv_workers *w)
{
    if (!w) return;
    atomic_store(&w->stop, true);
    atomic_fetch_add(&w->bell, 1);
    kv_futex_wake(&w->bell);
    for (int32_t i = 0; i < w->n_started; i++) pthread_join(w->thread[i], NULL);
    free(w->thread);
    free(w);
}
