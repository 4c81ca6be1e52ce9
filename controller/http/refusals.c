/* refusals.c — one table of addresses and answers, and one minute that they share. */
#include "controller/http/refusals.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MINUTE_US = 60000000 };

struct kind {
    char address[64];
    int status;
    uint64_t rows, more;
};

struct kv_refusals {
    pthread_mutex_t lock;
    int64_t began_us; /* of the minute; 0: none runs */
    int rows, n;
    struct kind kind[KV_REFUSALS_KINDS];
};

struct kv_refusals *kv_refusals_create(void)
{
    struct kv_refusals *f = calloc(1, sizeof *f);
    if (f) pthread_mutex_init(&f->lock, NULL);
    return f;
}

void kv_refusals_free(struct kv_refusals *f)
{
    if (!f) return;
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static struct kind *kind_of(struct kv_refusals *f, const char *address, int status)
{
    for (int i = 0; i < f->n; i++)
        if (f->kind[i].status == status && !strncmp(f->kind[i].address, address, sizeof f->kind[i].address - 1)) return &f->kind[i];
    if (f->n == KV_REFUSALS_KINDS) return &f->kind[f->n - 1];
    struct kind *k = &f->kind[f->n++];
    *k = (struct kind){.status = status};
    snprintf(k->address, sizeof k->address, "%s", address);
    if (f->n == KV_REFUSALS_KINDS) *k = (struct kind){.address = "other addresses"};
    return k;
}

bool kv_refusals_own_row(struct kv_refusals *f, const char *address, int status, int64_t now_us)
{
    pthread_mutex_lock(&f->lock);
    if (!f->began_us) f->began_us = now_us;
    struct kind *k = kind_of(f, address, status);
    bool own = k->rows < KV_REFUSALS_EACH && f->rows < KV_REFUSALS_ROWS;
    if (own) k->rows++, f->rows++;
    else k->more++;
    pthread_mutex_unlock(&f->lock);
    return own;
}

void kv_refusals_tell(struct kv_refusals *f, int64_t now_us, kv_refusals_post post, void *ctx)
{
    pthread_mutex_lock(&f->lock);
    bool over = f->began_us && (!now_us || now_us - f->began_us >= MINUTE_US), all = over;
    for (int i = 0; over && i < f->n; i++) {
        struct kind *k = &f->kind[i];
        if (k->more && post(ctx, k->address, k->status, k->more)) k->more = 0;
        all &= !k->more;
    }
    if (all) f->n = f->rows = 0, f->began_us = 0;
    pthread_mutex_unlock(&f->lock);
}
