/* workers.h — the kernel workers: N threads that run one parallel region at a time, the calling thread being worker 0.
 *
 * kv_workers_run is called by one thread only (the decode thread). Work items are claimed from an atomic counter by
 * whoever runs: a worker that the system has not scheduled is not waited for. Workers spin for some microseconds between regions and
 * then sleep on a futex. No locks and no allocation after create. */
#ifndef KV_WORKERS_H
#define KV_WORKERS_H

#include "runtime/status.h"

#include <stdint.h>

struct kv_workers;
typedef void kv_work_fn(void *ctx, int32_t worker, int32_t item);

/* n: threads in all, worker 0 included; 0: one per processor this process may use. */
enum kv_status kv_workers_create(int32_t n, struct kv_workers **out);
void kv_workers_destroy(struct kv_workers *w);
int32_t kv_workers_count(const struct kv_workers *w);
/* Runs fn for items 0 … n_items-1, each once, and returns when all are done. One item runs on the caller without waking anyone. */
void kv_workers_run(struct kv_workers *w, kv_work_fn *fn, void *ctx, int32_t n_items);

#endif
