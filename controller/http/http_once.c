/* http_once.c — a small ring of answered writes, found by the digest of who and key. */
#include "controller/http/http_once.h"

#include "runtime/kvasir.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct write {
    uint64_t ticket; /* 0: free */
    uint8_t name[32], what[32];
    int status; /* 0: under way */
    char *body;
};

struct kv_once {
    pthread_mutex_t lock;
    uint64_t next;
    struct write row[KV_ONCE_KEPT];
};

struct kv_once *kv_once_create(void)
{
    struct kv_once *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    pthread_mutex_init(&o->lock, NULL);
    o->next = 1;
    return o;
}

void kv_once_free(struct kv_once *o)
{
    if (!o) return;
    for (int i = 0; i < KV_ONCE_KEPT; i++) free(o->row[i].body);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* Digest of two parts; the first's length keeps them apart. */
static bool digest(const char *a, const char *b, size_t n, uint8_t out[32])
{
    size_t na = strlen(a), len = sizeof na + na + n;
    char *all = malloc(len);
    if (!all) return false;
    memcpy(all, &na, sizeof na);
    memcpy(all + sizeof na, a, na);
    if (n) memcpy(all + sizeof na + na, b, n);
    kv_sha256(all, len, out);
    free(all);
    return true;
}

static enum kv_status answer_again(const struct write *w, const uint8_t what[32], int *status, char **body, struct kv_error *err)
{
    if (memcmp(w->what, what, 32)) return kv_fail(err, KV_CONFLICT, "Idempotency-Key", "this key was used for another write");
    if (!w->status) return kv_fail(err, KV_CONFLICT, "Idempotency-Key", "the write with this key is still under way");
    *status = w->status;
    return (*body = strdup(w->body)) ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "Idempotency-Key", "no memory for the answer");
}

enum kv_status kv_once_begin(struct kv_once *o, const char *who, const char *key, const char *route, const char *request, size_t n,
                             uint64_t *ticket, int *status, char **body, struct kv_error *err)
{
    uint8_t name[32], what[32];
    struct write *place = NULL, *known = NULL;
    *body = NULL;
    if (!*key || strlen(key) > 255) return kv_fail(err, KV_BAD_ARGUMENT, "Idempotency-Key", "an idempotency key has 1 to 255 bytes");
    if (!digest(who, key, strlen(key), name) || !digest(route, request, n, what)) return kv_fail(err, KV_OUT_OF_MEMORY, "Idempotency-Key", "no memory for the key");
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < KV_ONCE_KEPT; i++) {
        struct write *w = &o->row[i];
        if (w->ticket && !memcmp(w->name, name, 32)) known = w;
        bool finished = !w->ticket || w->status;
        if (finished && (!place || w->ticket < place->ticket)) place = w;
    }
    enum kv_status st = known ? answer_again(known, what, status, body, err)
                      : place ? KV_OK : kv_fail(err, KV_QUEUE_FULL, "Idempotency-Key", "%d writes are under way", KV_ONCE_KEPT);
    if (!known && place) {
        free(place->body);
        *place = (struct write){.ticket = *ticket = o->next++};
        memcpy(place->name, name, 32);
        memcpy(place->what, what, 32);
    }
    pthread_mutex_unlock(&o->lock);
    return st;
}

void kv_once_finish(struct kv_once *o, uint64_t ticket, int status, const char *body)
{
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < KV_ONCE_KEPT; i++) {
        struct write *w = &o->row[i];
        if (w->ticket != ticket) continue;
        w->body = body ? strdup(body) : NULL;
        w->status = status;
        if (!w->body) w->ticket = 0;
    }
    pthread_mutex_unlock(&o->lock);
}
