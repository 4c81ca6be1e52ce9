/* stream.c — see stream.h and the stream functions of kvasir.h. */
#include "runtime/service/stream.h"

#include "runtime/execution/futex.h"

#include <stdlib.h>
#include <string.h>

struct kv_backlog *kv_backlog_create(void)
{
    struct kv_backlog *b = calloc(1, sizeof *b);
    if (b) atomic_store(&b->refs, 1);
    return b;
}

void kv_backlog_unref(struct kv_backlog *b)
{
    if (b && atomic_fetch_sub(&b->refs, 1) == 1) free(b);
}

struct kv_stream *kv_stream_create(int32_t cap, int32_t top_cap, struct kv_backlog *backlog)
{
    struct kv_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->cap = cap;
    s->top_cap = top_cap;
    s->log = calloc((size_t)cap + 1, sizeof *s->log);
    s->top = calloc((size_t)cap * (size_t)top_cap + 1, sizeof *s->top);
    if (!s->log || !s->top) {
        free(s->log);
        free(s->top);
        free(s);
        return NULL;
    }
    atomic_store(&s->refs, 2);
    s->backlog = backlog;
    atomic_fetch_add(&backlog->refs, 1);
    return s;
}

void kv_stream_unref(struct kv_stream *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1) return;
    /* Nobody will send what is left; both sides are gone, so the counts are final. */
    atomic_fetch_sub(&s->backlog->unsent, atomic_load(&s->n_published) - atomic_load(&s->n_read));
    kv_backlog_unref(s->backlog);
    free(s->log);
    free(s->top);
    free(s);
}

/* ---------------------------------------------------------------- decode thread */

void kv_stream_wake(struct kv_stream *s)
{
    atomic_fetch_add(&s->event, 1);
    if (atomic_load(&s->waiting)) kv_futex_wake(&s->event);
}

struct kv_log_entry *kv_stream_next(struct kv_stream *s, struct kv_log_top **top)
{
    int32_t n = atomic_load_explicit(&s->n_published, memory_order_relaxed);
    if (n >= s->cap) return NULL;
    *top = s->top + (size_t)n * (size_t)s->top_cap;
    return &s->log[n];
}

void kv_stream_publish(struct kv_stream *s)
{
    atomic_fetch_add(&s->backlog->unsent, 1);
    atomic_fetch_add(&s->n_published, 1);
}

void kv_stream_finish(struct kv_stream *s, const struct kv_request_stats *stats)
{
    s->stats = *stats;
    atomic_store(&s->finish, (int32_t)stats->finish);
    kv_stream_wake(s);
}

/* ---------------------------------------------------------------- reader */

/* Whether there is something to read or nothing more to come. */
static bool readable(struct kv_stream *s)
{
    return atomic_load(&s->n_published) > atomic_load_explicit(&s->n_read, memory_order_relaxed) || atomic_load(&s->finish) != KV_RUNNING;
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void await(struct kv_stream *s, int32_t timeout_ms)
{
    int64_t until = now_us() + (int64_t)timeout_ms * 1000;
    atomic_fetch_add(&s->waiting, 1);
    for (;;) {
        uint32_t seen = atomic_load(&s->event);
        int64_t left_us = until - now_us();
        if (readable(s) || left_us <= 0) break;
        kv_futex_wait(&s->event, seen, left_us);
    }
    atomic_fetch_sub(&s->waiting, 1);
}

enum kv_status kv_stream_read(struct kv_stream *s, struct kv_chunk *chunks, int32_t n, int32_t timeout_ms, int32_t *got,
                              enum kv_finish *finish)
{
    *got = 0;
    if (!readable(s) && timeout_ms > 0) await(s, timeout_ms);
    /* The finish is read first: tokens published before it are then visible, and none follows it. */
    enum kv_finish end = (enum kv_finish)atomic_load(&s->finish);
    int32_t published = atomic_load(&s->n_published), at = atomic_load_explicit(&s->n_read, memory_order_relaxed);
    for (; *got < n && at < published; at++, (*got)++) {
        const struct kv_log_entry *e = &s->log[at];
        struct kv_chunk *c = &chunks[*got];
        *c = (struct kv_chunk){.token = e->token, .logprob = e->logprob, .n_top = e->n_top, .epoch = e->epoch, .candidate = e->candidate,
                               .published = (enum kv_contract)e->published, .n_text = e->n_text};
        memcpy(c->text, e->text, sizeof c->text);
        const struct kv_log_top *top = s->top + (size_t)at * (size_t)s->top_cap;
        for (int32_t i = 0; i < e->n_top; i++) {
            c->top_id[i] = top[i].id;
            c->top_logprob[i] = top[i].logprob;
        }
    }
    atomic_store(&s->n_read, at);
    atomic_fetch_sub(&s->backlog->unsent, *got);
    *finish = at < published ? KV_RUNNING : end;
    return KV_OK;
}

void kv_stream_tail(struct kv_stream *s, char *out, size_t cap)
{
    if (cap == 0) return;
    bool ended = atomic_load(&s->finish) != KV_RUNNING;
    size_t n = ended ? strlen(s->tail) : 0;
    if (n >= cap) {
        n = cap - 1;
        while (n > 0 && ((unsigned char)s->tail[n] & 0xc0) == 0x80) n--; /* never half a character */
    }
    memcpy(out, s->tail, n);
    out[n] = 0;
}

void kv_stream_stats(struct kv_stream *s, struct kv_request_stats *out)
{
    if (atomic_load(&s->finish) != KV_RUNNING) {
        *out = s->stats;
        return;
    }
    *out = (struct kv_request_stats){.finish = KV_RUNNING, .id = s->id, .n_prompt = s->n_prompt, .n_published = atomic_load(&s->n_published)};
}

void kv_stream_cancel(struct kv_stream *s)
{
    atomic_store(&s->cancelled, true);
}

void kv_stream_close(struct kv_stream *s)
{
    if (!s) return;
    kv_stream_cancel(s);
    kv_stream_unref(s);
}
