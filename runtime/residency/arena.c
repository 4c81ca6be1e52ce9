/* arena.c — equal slabs out of one lazily committed mapping, zeroed before they change owners. */
#include "kernels/cuda/device.h"
#include "runtime/residency/cache.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct kv_arena {
    uint8_t *base;
    size_t slab_bytes;
    uint64_t capacity_bytes;
    uint32_t n_slabs;
    _Atomic uint32_t n_fresh; /* slabs [n_fresh, n_slabs) were never handed out and are zero */
    uint32_t *given;           /* stack of slabs that came back */
    uint32_t n_given;
    uint32_t *holders;         /* [n_slabs] callers that hold it */
    uint64_t used_bytes, taken_bytes, given_bytes;
    bool huge, pinned; /* huge: the system gives huge pages to those who ask */
    struct {           /* the thread that has pages made before they are written */
        pthread_t thread;
        sem_t wake;             /* no lock: who takes a slab must not wait for a thread that gets no core */
        uint32_t slabs;         /* ahead of n_fresh, at most */
        _Atomic uint32_t ready; /* slabs [0, ready) have pages */
        _Atomic bool sleeps, stop;
        bool runs;
    } ahead;
};

enum { SMALL_PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* On a border of huge pages, so that no slab lies on small ones for want of it. */
static uint8_t *map(size_t bytes)
{
    size_t extra = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *at = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || !extra) return at;
    size_t before = (HUGE_PAGE - (uintptr_t)at % HUGE_PAGE) % HUGE_PAGE;
    if (before) munmap(at, before);
    if (extra - before) munmap(at + before + bytes, extra - before);
    return at + before;
}

static bool huge_pages_on(void)
{
    char text[64] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (!f) return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    return n && !strstr(text, "[never]");
}

enum kv_status kv_arena_create(size_t slab_bytes, uint64_t capacity_bytes, struct kv_arena **out)
{
    *out = NULL;
    if (slab_bytes == 0 || slab_bytes % 4096 != 0) return KV_BAD_ARGUMENT;
    uint64_t n = capacity_bytes / slab_bytes;
    if (n > UINT32_MAX / sizeof(uint32_t)) return KV_BAD_ARGUMENT;
    struct kv_arena *a = calloc(1, sizeof *a);
    if (!a) return KV_OUT_OF_MEMORY;
    a->slab_bytes = slab_bytes;
    a->capacity_bytes = capacity_bytes;
    a->n_slabs = (uint32_t)n;
    a->base = MAP_FAILED;
    a->given = malloc((n + 1) * sizeof *a->given);
    a->holders = calloc(n + 1, sizeof *a->holders);
    if (a->given && a->holders && n) a->base = map(n * slab_bytes);
    if (!a->given || !a->holders || (n && a->base == MAP_FAILED)) {
        kv_arena_destroy(a);
        return KV_OUT_OF_MEMORY;
    }
    /* Advice only: without huge pages everything still works. */
    a->huge = n && madvise(a->base, n * slab_bytes, MADV_HUGEPAGE) == 0 && huge_pages_on();
    *out = a;
    return KV_OK;
}

void kv_arena_destroy(struct kv_arena *a)
{
    if (!a) return;
    if (a->ahead.runs) {
        atomic_store(&a->ahead.stop, true);
        sem_post(&a->ahead.wake);
        pthread_join(a->ahead.thread, NULL);
        sem_destroy(&a->ahead.wake);
    }
    if (a->pinned) kv_cuda_host_unregister(a->base);
    if (a->base != MAP_FAILED) munmap(a->base, (size_t)a->n_slabs * a->slab_bytes);
    free(a->given);
    free(a->holders);
    free(a);
}

/* ---------------------------------------------------------------- pages before they are written */

/* As far ahead as was taken so far, up to the limit: who needs little gets little. */
static uint32_t wanted(struct kv_arena *a)
{
    uint32_t fresh = atomic_load(&a->n_fresh), ahead = fresh < a->ahead.slabs ? fresh : a->ahead.slabs;
    return ahead < a->n_slabs - fresh ? fresh + ahead : a->n_slabs;
}

/* Adding nothing has the page made and changes no byte, whoever writes there at the same time. */
__attribute__((no_sanitize("thread"))) static void touch(uint8_t *slab, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += SMALL_PAGE) (void)__atomic_fetch_or(slab + i, 0, __ATOMIC_RELAXED);
}

static void *go_ahead(void *arg)
{
    struct kv_arena *a = arg;
    /* In time nobody else wants: a page that is late is made by who writes to it. */
    (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &(struct sched_param){0});
    while (!atomic_load(&a->ahead.stop)) {
        uint32_t i = atomic_load(&a->ahead.ready);
        atomic_store(&a->ahead.sleeps, true); /* before the look, so that what is taken after it rings */
        if (i >= wanted(a)) {
            (void)sem_wait(&a->ahead.wake); /* one ring too many is one look more */
            continue;
        }
        atomic_store(&a->ahead.sleeps, false);
        touch(a->base + i * a->slab_bytes, a->slab_bytes);
        atomic_store(&a->ahead.ready, i + 1);
    }
    return NULL;
}

void kv_arena_go_ahead(struct kv_arena *a, uint64_t bytes)
{
    sigset_t all, before;
    uint64_t slabs = bytes / a->slab_bytes;
    a->ahead.slabs = slabs < a->n_slabs ? (uint32_t)slabs : a->n_slabs;
    if (sem_init(&a->ahead.wake, 0, 0)) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    a->ahead.runs = pthread_create(&a->ahead.thread, NULL, go_ahead, a) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!a->ahead.runs) sem_destroy(&a->ahead.wake);
}

bool kv_arena_ready(const struct kv_arena *a, const void *slab)
{
    return !a->ahead.runs || (size_t)((const uint8_t *)slab - a->base) / a->slab_bytes < atomic_load(&a->ahead.ready);
}

static void ring(struct kv_arena *a)
{
    if (atomic_load(&a->ahead.ready) < wanted(a) && atomic_exchange(&a->ahead.sleeps, false)) sem_post(&a->ahead.wake);
}

/* ---------------------------------------------------------------- slabs */

static uint8_t *take(struct kv_arena *a, bool zero)
{
    uint32_t i;
    if (a->n_given) {
        i = a->given[--a->n_given];
        if (zero) memset(a->base + i * a->slab_bytes, 0, a->slab_bytes);
    } else if ((i = atomic_load(&a->n_fresh)) < a->n_slabs) {
        atomic_store(&a->n_fresh, i + 1);
        if (a->ahead.runs) ring(a);
    } else {
        return NULL;
    }
    a->holders[i] = 1;
    a->used_bytes += a->slab_bytes;
    a->taken_bytes += a->slab_bytes;
    return a->base + i * a->slab_bytes;
}

void *kv_arena_take(struct kv_arena *a)
{
    return take(a, true);
}

void *kv_arena_take_raw(struct kv_arena *a)
{
    return take(a, false);
}

/* A slab that is not held, or of another arena, would end up with two owners: a bug worth stopping for. */
static size_t held(const struct kv_arena *a, const uint8_t *slab)
{
    size_t offset = (size_t)(slab - a->base), i = offset / a->slab_bytes;
    if (slab < a->base || i >= a->n_slabs || offset % a->slab_bytes || !a->holders[i]) abort();
    return i;
}

void kv_arena_give(struct kv_arena *a, void *slab)
{
    if (!slab) return;
    size_t i = held(a, slab);
    if (--a->holders[i]) return;
    a->given[a->n_given++] = (uint32_t)i;
    a->used_bytes -= a->slab_bytes;
    a->given_bytes += a->slab_bytes;
}

void kv_arena_share(struct kv_arena *a, void *slab)
{
    a->holders[held(a, slab)]++;
}

bool kv_arena_shared(const struct kv_arena *a, const void *slab)
{
    return a->holders[held(a, slab)] > 1;
}

uint64_t kv_arena_used_bytes(const struct kv_arena *a)
{
    return a->used_bytes;
}

void kv_arena_small_pages(struct kv_arena *a)
{
    if (a->n_slabs) (void)madvise(a->base, (size_t)a->n_slabs * a->slab_bytes, MADV_NOHUGEPAGE);
    a->huge = false;
}

void kv_arena_pin(struct kv_arena *a)
{
    if (a->n_slabs && !a->pinned && kv_cuda_device_count() > 0) a->pinned = kv_cuda_host_register(a->base, (size_t)a->n_slabs * a->slab_bytes) == 0;
}

void kv_arena_stats(const struct kv_arena *a, struct kv_arena_stats *out)
{
    *out = (struct kv_arena_stats){.capacity_bytes = a->capacity_bytes, .used_bytes = a->used_bytes, .pinned_bytes = a->pinned ? (uint64_t)a->n_slabs * a->slab_bytes : 0,
                                   .taken_bytes = a->taken_bytes, .given_bytes = a->given_bytes, .huge_pages = a->huge};
}

uint64_t kv_arena_capacity_bytes(const struct kv_arena *a)
{
    return a->capacity_bytes;
}
