/* lanes.c — threads that sleep until a group comes and take its items from a counter. */
#include "runtime/residency/lanes.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { NICER = 12 }; /* to the system a fifteenth of a thread that computes */

struct kv_lanes {
    int32_t n_threads; /* beside the caller's */
    pthread_t thread[KV_LANES_MAX];
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    bool stop, taken;      /* taken: a group runs */
    uint64_t group;        /* counts groups, so that nobody joins one twice */
    int32_t inside;        /* threads at work in it */
    int32_t n;
    _Atomic int32_t next;
    void (*item)(void *ctx, int32_t i);
    void *ctx;
};

static void take_items(struct kv_lanes *l, int32_t n, void (*item)(void *ctx, int32_t i), void *ctx)
{
    for (int32_t i; (i = atomic_fetch_add(&l->next, 1)) < n;) item(ctx, i);
}

void kv_lanes_give_way(void)
{
    (void)!nice(NICER); /* of this thread alone, on Linux */
}

static void *lane_main(void *arg)
{
    struct kv_lanes *l = arg;
    uint64_t seen = 0;
    kv_lanes_give_way();
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->stop && (!l->taken || l->group == seen)) pthread_cond_wait(&l->work, &l->lock);
        if (l->stop) break;
        seen = l->group;
        l->inside++;
        pthread_mutex_unlock(&l->lock);
        take_items(l, l->n, l->item, l->ctx);
        pthread_mutex_lock(&l->lock);
        if (--l->inside == 0) pthread_cond_signal(&l->idle);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

enum kv_status kv_lanes_create(int32_t n, struct kv_lanes **out)
{
    *out = NULL;
    if (n < 1 || n > KV_LANES_MAX) return KV_BAD_ARGUMENT;
    struct kv_lanes *l = calloc(1, sizeof *l);
    if (!l) return KV_OUT_OF_MEMORY;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->idle, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (l->n_threads < n - 1 && pthread_create(&l->thread[l->n_threads], NULL, lane_main, l) == 0) l->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    *out = l;
    if (l->n_threads == n - 1) return KV_OK;
    kv_lanes_destroy(l);
    *out = NULL;
    return KV_OUT_OF_MEMORY;
}

void kv_lanes_destroy(struct kv_lanes *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int32_t i = 0; i < l->n_threads; i++) pthread_join(l->thread[i], NULL);
    pthread_cond_destroy(&l->idle);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void kv_lanes_run(struct kv_lanes *l, int32_t n, void (*item)(void *ctx, int32_t i), void *ctx)
{
    pthread_mutex_lock(&l->lock);
    bool alone = l->taken || n < 2 || l->n_threads == 0;
    if (!alone) {
        l->taken = true;
        l->group++;
        l->n = n;
        l->item = item;
        l->ctx = ctx;
        atomic_store(&l->next, 0);
        for (int32_t i = 1; i < n && i <= l->n_threads; i++) pthread_cond_signal(&l->work); /* as many as there is work for */
    }
    pthread_mutex_unlock(&l->lock);
    if (alone) {
        for (int32_t i = 0; i < n; i++) item(ctx, i);
        return;
    }
    take_items(l, n, item, ctx);
    pthread_mutex_lock(&l->lock);
    while (l->inside) pthread_cond_wait(&l->idle, &l->lock);
    l->taken = false; /* whoever wakes only now finds nothing to join */
    pthread_mutex_unlock(&l->lock);
}

int32_t kv_lanes_count(const struct kv_lanes *l)
{
    return l->n_threads + 1;
}
