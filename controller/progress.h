/* progress.h — what this daemon is at that takes a while, for operators: the model's load, replays, backups. What the engine is at
 * is added by kv_progress_json. Any thread; a mutex inside. */
#ifndef KV_PROGRESS_H
#define KV_PROGRESS_H

#include "runtime/kvasir.h"

#include <jansson.h>
#include <pthread.h>

enum kv_job_kind { KV_JOB_LOAD, KV_JOB_REPLAY, KV_JOB_BACKUP, KV_JOB_KINDS };
enum { KV_JOBS = 16 };

struct kv_progress;
struct kv_job {
    struct kv_progress *of;
    uint64_t id, done, total; /* id 0: free; total 0: not known yet */
    enum kv_job_kind kind;
    char what[96];
    const char *unit;
    int64_t since_us;         /* CLOCK_MONOTONIC */
};
struct kv_progress { /* zeroed is ready for use */
    pthread_mutex_t lock;
    struct kv_job job[KV_JOBS];
    uint64_t last;
};

/* NULL when all are taken: the work goes on unseen. The others take NULL. */
struct kv_job *kv_job_begin(struct kv_progress *p, enum kv_job_kind kind, const char *what, const char *unit);
void kv_job_at(struct kv_job *t, uint64_t done, uint64_t total);
void kv_job_end(struct kv_job *t);

/* {"tasks":[…]}, those of the engine too unless it is NULL; NULL: no memory. */
json_t *kv_progress_json(struct kv_progress *p, const struct kv_engine *engine);
/* ": kvasir-demo.gguf, 45 %" while a model loads, else "". */
void kv_progress_loading(struct kv_progress *p, char *out, size_t cap);

#endif
