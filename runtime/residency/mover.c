/* mover.c — a ring of jobs, one thread, completions in order of submission. */
#include "runtime/residency/mover.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

struct job {
    struct kv_transfer_id id;
    int32_t n;
    size_t slab_bytes;
    const uint8_t **src; /* [max_slabs] */
    uint8_t **dst;       /* [max_slabs] */
    atomic_bool cancelled;
    struct kv_completion done;
};

/* Jobs live in a ring: [taken, finished) are complete and wait for next, [finished, submitted) wait for the thread. */
struct kv_mover {
    struct kv_link link;
    int32_t max_jobs, max_slabs;
    struct job *jobs;
    uint64_t submitted, finished, taken, copied_bytes; /* under lock */
    bool busy, stop;                     /* under lock: somebody is inside job `finished` */
    pthread_mutex_t lock;
    pthread_cond_t work, idle; /* work: a job, a cancel or stop came; idle: a job finished */
    pthread_t thread;
    bool started;
};

double kv_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

int64_t kv_wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static struct timespec to_timespec(double us)
{
    return (struct timespec){.tv_sec = (time_t)(us / 1e6), .tv_nsec = (long)((us - 1e6 * (double)(time_t)(us / 1e6)) * 1e3)};
}

/* Called without the lock. The link model holds the completion back until the wire would have delivered the last byte. */
static void run_job(struct kv_mover *m, struct job *j)
{
    j->done = (struct kv_completion){.id = j->id, .start_us = kv_now_us()};
    for (int32_t i = 0; i < j->n && !atomic_load(&j->cancelled); i++) {
        memcpy(j->dst[i], j->src[i], j->slab_bytes);
        j->done.bytes += j->slab_bytes;
    }
    if (j->n > 0 && (m->link.bytes_per_second > 0 || m->link.latency_us > 0)) {
        double wire_us = m->link.latency_us;
        if (m->link.bytes_per_second > 0) wire_us += (double)j->done.bytes / m->link.bytes_per_second * 1e6;
        struct timespec until = to_timespec(j->done.start_us + wire_us);
        pthread_mutex_lock(&m->lock);
        while (!atomic_load(&j->cancelled) && kv_now_us() < j->done.start_us + wire_us) pthread_cond_timedwait(&m->work, &m->lock, &until);
        pthread_mutex_unlock(&m->lock);
    }
    j->done.end_us = kv_now_us();
    j->done.status = atomic_load(&j->cancelled) ? KV_TRANSFER_CANCELLED : KV_OK;
}

/* With the lock held, which is given up during the copy. */
static void run_oldest(struct kv_mover *m)
{
    struct job *j = &m->jobs[m->finished % (uint64_t)m->max_jobs];
    m->busy = true;
    pthread_mutex_unlock(&m->lock);
    run_job(m, j);
    pthread_mutex_lock(&m->lock);
    m->busy = false;
    m->copied_bytes += j->done.bytes;
    m->finished++;
    pthread_cond_broadcast(&m->idle);
    pthread_cond_broadcast(&m->work);
}

static void *mover_main(void *arg)
{
    struct kv_mover *m = arg;
    prctl(PR_SET_NAME, "kv-transfer");
    prctl(PR_SET_TIMERSLACK, 1UL); /* the link model waits tens of microseconds */
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (m->busy || (!m->stop && m->finished == m->submitted)) pthread_cond_wait(&m->work, &m->lock);
        if (m->finished == m->submitted) break;
        run_oldest(m);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

enum kv_status kv_mover_create(const struct kv_link *link, int32_t max_jobs, int32_t max_slabs, struct kv_mover **out)
{
    *out = NULL;
    if (max_jobs < 1 || max_slabs < 1 || link->bytes_per_second < 0 || link->latency_us < 0) return KV_BAD_ARGUMENT;
    struct kv_mover *m = calloc(1, sizeof *m);
    if (!m) return KV_OUT_OF_MEMORY;
    m->link = *link;
    m->max_jobs = max_jobs;
    m->max_slabs = max_slabs;
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->work, &monotonic);
    pthread_cond_init(&m->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    bool ok = (m->jobs = calloc((size_t)max_jobs, sizeof *m->jobs)) != NULL;
    for (int32_t i = 0; ok && i < max_jobs; i++) {
        m->jobs[i].src = calloc((size_t)max_slabs, sizeof *m->jobs[i].src);
        m->jobs[i].dst = calloc((size_t)max_slabs, sizeof *m->jobs[i].dst);
        ok = m->jobs[i].src && m->jobs[i].dst;
    }
    m->started = ok && pthread_create(&m->thread, NULL, mover_main, m) == 0;
    if (!m->started) {
        kv_mover_destroy(m);
        return KV_OUT_OF_MEMORY;
    }
    *out = m;
    return KV_OK;
}

void kv_mover_destroy(struct kv_mover *m)
{
    if (!m) return;
    if (m->started) {
        pthread_mutex_lock(&m->lock);
        m->stop = true;
        for (uint64_t i = m->finished; i < m->submitted; i++) atomic_store(&m->jobs[i % (uint64_t)m->max_jobs].cancelled, true);
        pthread_cond_broadcast(&m->work);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    for (int32_t i = 0; m->jobs && i < m->max_jobs; i++) {
        free(m->jobs[i].src);
        free(m->jobs[i].dst);
    }
    free(m->jobs);
    pthread_cond_destroy(&m->idle);
    pthread_cond_destroy(&m->work);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

enum kv_status kv_mover_submit(struct kv_mover *m, struct kv_transfer_id id, int32_t n, size_t slab_bytes, const uint8_t *const *src, uint8_t *const *dst)
{
    if (n < 0 || n > m->max_slabs) return KV_BAD_ARGUMENT;
    pthread_mutex_lock(&m->lock);
    bool full = m->submitted - m->taken >= (uint64_t)m->max_jobs;
    if (!full) {
        struct job *j = &m->jobs[m->submitted % (uint64_t)m->max_jobs];
        j->id = id;
        j->n = n;
        j->slab_bytes = slab_bytes;
        memcpy(j->src, src, (size_t)n * sizeof *src);
        memcpy(j->dst, dst, (size_t)n * sizeof *dst);
        atomic_store(&j->cancelled, false);
        m->submitted++;
        pthread_cond_broadcast(&m->work);
    }
    pthread_mutex_unlock(&m->lock);
    return full ? KV_QUEUE_FULL : KV_OK;
}

bool kv_mover_next(struct kv_mover *m, bool wait, struct kv_completion *out)
{
    pthread_mutex_lock(&m->lock);
    while (wait && m->taken == m->finished && m->finished != m->submitted) {
        /* On busy cores the thread may not have been scheduled yet: the caller, who has nothing else to do, copies then. */
        if (m->busy) pthread_cond_wait(&m->idle, &m->lock);
        else run_oldest(m);
    }
    bool got = m->taken != m->finished;
    if (got) *out = m->jobs[m->taken++ % (uint64_t)m->max_jobs].done;
    pthread_mutex_unlock(&m->lock);
    return got;
}

void kv_mover_cancel(struct kv_mover *m, uint64_t transfer_generation)
{
    pthread_mutex_lock(&m->lock);
    for (uint64_t i = m->finished; i < m->submitted; i++) {
        struct job *j = &m->jobs[i % (uint64_t)m->max_jobs];
        if (j->id.transfer_generation != transfer_generation) continue;
        atomic_store(&j->cancelled, true);
        pthread_cond_broadcast(&m->work);
        while (m->busy && m->finished == i) pthread_cond_wait(&m->idle, &m->lock);
        break;
    }
    pthread_mutex_unlock(&m->lock);
}

int32_t kv_mover_in_flight(const struct kv_mover *m)
{
    struct kv_mover *w = (struct kv_mover *)m;
    pthread_mutex_lock(&w->lock);
    int32_t n = (int32_t)(w->submitted - w->taken);
    pthread_mutex_unlock(&w->lock);
    return n;
}

uint64_t kv_mover_copied_bytes(const struct kv_mover *m)
{
    struct kv_mover *w = (struct kv_mover *)m;
    pthread_mutex_lock(&w->lock);
    uint64_t n = w->copied_bytes;
    pthread_mutex_unlock(&w->lock);
    return n;
}
