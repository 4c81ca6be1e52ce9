/* pauses_control.c — what other threads ask of paused requests. */
#include "runtime/service/pauses_internal.h"

#include <string.h>
#include <time.h>

enum { PAUSE_TIMEOUT_S = 20 };

enum kv_status kv_engine_pause(struct kv_engine *e, const char *tenant, const char *session, enum kv_pause_action action, struct kv_pause_view *out, struct kv_error *err)
{
    struct kv_pause_want w = {.tenant = tenant, .session = session, .action = action, .view = out};
    if ((unsigned)action >= KV_PAUSE_ACTIONS || !*session) return kv_fail(err, KV_BAD_ARGUMENT, "session", "a pause needs a session and one of the actions auto, preserve, swap and discard");
    struct timespec until = kv_engine_time_in((int64_t)PAUSE_TIMEOUT_S * 1000000);
    pthread_mutex_lock(&e->lock);
    w.next = e->pauses->wants;
    e->pauses->wants = &w;
    pthread_cond_broadcast(&e->wake);
    int rc = 0;
    while (!w.done && rc == 0) rc = pthread_cond_timedwait(&e->wake, &e->lock, &until);
    for (struct kv_pause_want **at = &e->pauses->wants; !w.done && *at; at = &(*at)->next)
        if (*at == &w) { /* the decode thread has not seen it: nothing happened */
            *at = w.next;
            w.done = true;
            w.status = KV_DEADLINE;
            break;
        }
    while (!w.done) pthread_cond_wait(&e->wake, &e->lock);
    pthread_mutex_unlock(&e->lock);
    if (w.status == KV_OK) return KV_OK;
    kv_fail(err, w.status, "session", "session '%s': %s", session, w.status == KV_NOT_FOUND ? "no request of it is running" : kv_status_meaning(w.status));
    if (w.status == KV_PAUSE_IN_PREFILL) kv_hint(err, "ask again after its first token");
    if (w.status == KV_ALREADY_PAUSED) kv_hint(err, "resume it first");
    return w.status;
}

enum kv_status kv_engine_paused(struct kv_engine *e, uint64_t request, struct kv_pause_view *out)
{
    pthread_mutex_lock(&e->lock);
    int32_t i = kv_paused_find(e->pauses, request);
    if (i >= 0) *out = e->pauses->list[i]->view;
    pthread_mutex_unlock(&e->lock);
    return i < 0 ? KV_NOT_FOUND : KV_OK;
}

enum kv_status kv_engine_paused_tokens(struct kv_engine *e, uint64_t request, int32_t *tokens, int32_t cap, int32_t *n)
{
    pthread_mutex_lock(&e->lock);
    int32_t i = kv_paused_find(e->pauses, request);
    *n = i < 0 ? 0 : e->pauses->list[i]->view.n_tokens;
    if (*n && *n <= cap) memcpy(tokens, e->pauses->list[i]->tokens, (size_t)*n * sizeof *tokens);
    pthread_mutex_unlock(&e->lock);
    return i < 0 ? KV_NOT_FOUND : *n > cap ? KV_CAPACITY : KV_OK;
}

int32_t kv_engine_paused_list(struct kv_engine *e, struct kv_pause_view *out, int32_t cap)
{
    pthread_mutex_lock(&e->lock);
    int32_t n = e->pauses->n;
    for (int32_t i = 0; i < n && i < cap; i++) out[i] = e->pauses->list[i]->view;
    pthread_mutex_unlock(&e->lock);
    return n;
}

enum kv_status kv_engine_forget_paused(struct kv_engine *e, uint64_t request)
{
    pthread_mutex_lock(&e->lock);
    int32_t i = kv_paused_find(e->pauses, request);
    if (i >= 0) e->pauses->list[i]->forget = true;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return i < 0 ? KV_NOT_FOUND : KV_OK;
}
