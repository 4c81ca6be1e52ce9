/* projections.c — see projections.h. */
#include "runtime/selection/projections.h"

#include "runtime/selection/draw.h"

#include <pthread.h>
#include <stdlib.h>

struct projections {
    struct projections *next;
    uint64_t seed, users;
    size_t n;
    _Alignas(64) float value[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct projections *all;

static struct projections *make(uint64_t seed, size_t n)
{
    struct projections *p = n <= (SIZE_MAX - sizeof *p - 63) / sizeof *p->value ? aligned_alloc(64, (sizeof *p + n * sizeof *p->value + 63) / 64 * 64) : NULL;
    if (!p) return NULL;
    *p = (struct projections){.next = all, .seed = seed, .n = n};
    for (size_t i = 0; i < n; i++) p->value[i] = (float)kv_draw_normal(seed, i);
    return all = p;
}

const float *kv_projections_take(uint64_t seed, size_t n)
{
    pthread_mutex_lock(&lock);
    struct projections *p = all;
    while (p && (p->seed != seed || p->n != n)) p = p->next;
    if (!p) p = make(seed, n);
    if (p) p->users++;
    pthread_mutex_unlock(&lock);
    return p ? p->value : NULL;
}

void kv_projections_give(const float *values)
{
    struct projections *gone = NULL;
    if (!values) return;
    pthread_mutex_lock(&lock);
    for (struct projections **at = &all; *at; at = &(*at)->next) {
        if ((*at)->value != values) continue;
        if (--(*at)->users == 0) gone = *at, *at = gone->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    free(gone);
}
