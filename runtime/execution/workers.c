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

struct kv_workers {
    int32_t n, n_started, spins;
    pthread_t *thread; /* [n - 1] */
    /* The region in work: written by worker 0 before it raises `generation`, read by the others after they saw it. */
    kv_work_fn *fn;
    void *ctx;
    int32_t n_items;
    bool stop;
    _Alignas(64) _Atomic uint32_t generation;
    _Alignas(64) _Atomic uint32_t sleepers; /* workers that sleep, or are about to, on `generation` */
    _Alignas(64) _Atomic int32_t next;
    _Alignas(64) _Atomic uint32_t done;     /* workers that left the region */
    _Alignas(64) _Atomic uint32_t joining;  /* 1 while worker 0 sleeps, or is about to, on `done` */
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

static void claim(struct kv_workers *w, int32_t worker)
{
    for (int32_t i; (i = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed)) < w->n_items;) w->fn(w->ctx, worker, i);
}

static uint32_t await_region(struct kv_workers *w, uint32_t seen)
{
    uint32_t now;
    for (int32_t i = 0; i < w->spins; i++) {
        if ((now = atomic_load_explicit(&w->generation, memory_order_acquire)) != seen) return now;
        pause_briefly();
    }
    atomic_fetch_add(&w->sleepers, 1);
    while ((now = atomic_load(&w->generation)) == seen) kv_futex_wait(&w->generation, seen, -1);
    atomic_fetch_sub(&w->sleepers, 1);
    return now;
}

static void *work(void *arg)
{
    struct start s = *(struct start *)arg;
    free(arg);
    struct kv_workers *w = s.w;
    kv_numerics_enter();
    for (uint32_t seen = 0;;) {
        seen = await_region(w, seen);
        if (w->stop) return NULL;
        claim(w, s.index);
        atomic_fetch_add(&w->done, 1);
        if (atomic_load(&w->joining)) kv_futex_wake(&w->done);
    }
}

static void begin_region(struct kv_workers *w)
{
    atomic_store_explicit(&w->next, 0, memory_order_relaxed);
    atomic_store_explicit(&w->done, 0, memory_order_relaxed);
    atomic_fetch_add(&w->generation, 1);
    if (atomic_load(&w->sleepers)) kv_futex_wake(&w->generation);
}

static void join_region(struct kv_workers *w)
{
    uint32_t all = (uint32_t)w->n - 1, now;
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
    if (w->n == 1 || n_items <= 1) {
        for (int32_t i = 0; i < n_items; i++) fn(ctx, 0, i);
        return;
    }
    w->fn = fn;
    w->ctx = ctx;
    w->n_items = n_items;
    begin_region(w);
    claim(w, 0);
    join_region(w);
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
    w->stop = true;
    begin_region(w);
    for (int32_t i = 0; i < w->n_started; i++) pthread_join(w->thread[i], NULL);
    free(w->thread);
    free(w);
}
