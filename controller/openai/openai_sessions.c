/* openai_sessions.c — a flat table searched in order: a thousand rows, looked at twice a request. */
#include "controller/openai/openai_sessions.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv_sessions {
    pthread_mutex_t lock;
    int32_t n;
    struct kv_session_view row[KV_SESSIONS_KEPT];
};

struct kv_sessions *kv_sessions_create(void)
{
    struct kv_sessions *s = calloc(1, sizeof *s);
    if (s) pthread_mutex_init(&s->lock, NULL);
    return s;
}

void kv_sessions_free(struct kv_sessions *s)
{
    if (!s) return;
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void kv_sessions_note(struct kv_sessions *s, const char *tenant, const char *session, enum kv_arm arm, uint64_t requests, uint64_t tokens, int64_t now_us)
{
    if (!session || !*session) return;
    pthread_mutex_lock(&s->lock);
    struct kv_session_view *v = NULL, *oldest = &s->row[0];
    for (int32_t i = 0; i < s->n && !v; i++) {
        if (!strcmp(s->row[i].session, session) && !strcmp(s->row[i].tenant, tenant)) v = &s->row[i];
        if (s->row[i].last_us < oldest->last_us) oldest = &s->row[i];
    }
    if (!v) {
        v = s->n < KV_SESSIONS_KEPT ? &s->row[s->n++] : oldest;
        memset(v, 0, sizeof *v);
        snprintf(v->session, sizeof v->session, "%s", session);
        snprintf(v->tenant, sizeof v->tenant, "%s", tenant);
    }
    v->arm = arm;
    v->requests += requests;
    v->tokens += tokens;
    v->last_us = now_us;
    pthread_mutex_unlock(&s->lock);
}

static int newer(const void *a, const void *b)
{
    int64_t x = ((const struct kv_session_view *)a)->last_us, y = ((const struct kv_session_view *)b)->last_us;
    return (y > x) - (y < x);
}

int32_t kv_sessions_list(struct kv_sessions *s, struct kv_session_view *out)
{
    pthread_mutex_lock(&s->lock);
    int32_t n = s->n;
    memcpy(out, s->row, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&s->lock);
    qsort(out, (size_t)n, sizeof *out, newer);
    return n;
}
