/* progress.c — see progress.h. */
#include "controller/progress.h"

#include "controller/http/events.h"

#include <stdio.h>
#include <string.h>

struct kv_job *kv_job_begin(struct kv_progress *p, enum kv_job_kind kind, const char *what, const char *unit)
{
    struct kv_job *t = NULL;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < KV_JOBS && !t; i++)
        if (!p->job[i].id) t = &p->job[i];
    if (t) {
        *t = (struct kv_job){.of = p, .id = ++p->last, .kind = kind, .unit = unit, .since_us = kv_monotonic_us()};
        snprintf(t->what, sizeof t->what, "%s", what);
    }
    pthread_mutex_unlock(&p->lock);
    return t;
}

void kv_job_at(struct kv_job *t, uint64_t done, uint64_t total)
{
    if (!t) return;
    pthread_mutex_lock(&t->of->lock);
    t->done = done;
    t->total = total;
    pthread_mutex_unlock(&t->of->lock);
}

void kv_job_end(struct kv_job *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->of->lock);
    t->id = 0;
    pthread_mutex_unlock(&t->of->lock);
}

/* ---------------------------------------------------------------- told */

static json_t *job_json(const char *id, const char *kind, const char *what, uint64_t done, uint64_t total, const char *unit, int64_t since_us)
{
    int64_t for_us = kv_monotonic_us() - since_us;
    return json_pack("{s:s, s:s, s:o, s:I, s:o, s:s, s:o, s:f}", "id", id, "kind", kind, "what", kv_text_json(what, strlen(what)), "done", (json_int_t)done, "total",
                     total ? json_integer((json_int_t)total) : json_null(), "unit", unit, "since", kv_time_json(kv_realtime_us() - for_us), "seconds", (double)for_us / 1e6);
}

static void add_engine(json_t *list, const struct kv_engine *engine)
{
    static const char *const kinds[] = {[KV_WORK_PREFILL] = "prefill", [KV_WORK_RESTORE] = "restore", [KV_WORK_RECOMPUTE] = "recompute"};
    struct kv_work w[32];
    int32_t n = kv_engine_work(engine, w, 32);
    for (int32_t i = 0; i < n; i++) {
        char id[24], what[160];
        snprintf(id, sizeof id, "q_%012llu", (unsigned long long)w[i].request);
        snprintf(what, sizeof what, "%s%s%s", w[i].tenant, w[i].tenant[0] && w[i].session[0] ? " " : "", w[i].session);
        json_array_append_new(list, job_json(id, kinds[w[i].kind], what, (uint64_t)w[i].done, (uint64_t)w[i].total, "tokens", w[i].since_us));
    }
}

json_t *kv_progress_json(struct kv_progress *p, const struct kv_engine *engine)
{
    static const char *const kinds[KV_JOB_KINDS] = {"load", "replay", "backup"};
    json_t *list = json_array();
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < KV_JOBS; i++) {
        const struct kv_job *t = &p->job[i];
        char id[24];
        snprintf(id, sizeof id, "t_%06llu", (unsigned long long)t->id);
        if (t->id) json_array_append_new(list, job_json(id, kinds[t->kind], t->what, t->done, t->total, t->unit, t->since_us));
    }
    pthread_mutex_unlock(&p->lock);
    if (engine) add_engine(list, engine);
    return json_pack("{s:o}", "tasks", list);
}

void kv_progress_loading(struct kv_progress *p, char *out, size_t cap)
{
    *out = 0;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < KV_JOBS; i++) {
        const struct kv_job *t = &p->job[i];
        if (t->id && t->kind == KV_JOB_LOAD) snprintf(out, cap, ": %s, %.0f %%", t->what, t->total ? 100 * (double)t->done / (double)t->total : 0);
    }
    pthread_mutex_unlock(&p->lock);
}
