/* status.h — reason codes and the error that carries one to the edge. */
#ifndef KV_STATUS_H
#define KV_STATUS_H

enum kv_status {
#define KV_STATUS(name, class, http, meaning) KV_##name,
#include "runtime/status.def"
#undef KV_STATUS
    KV_STATUS_COUNT
};

/* What, where and what to do. Owned by the caller; no allocation. */
struct kv_error {
    enum kv_status status;
    char where[96];    /* key, field, file or object the error is about; may be empty */
    char message[320]; /* one sentence */
    char hint[200];    /* what to do; may be empty */
};

const char *kv_status_name(enum kv_status s);    /* "SHORT_COPY" */
const char *kv_status_class(enum kv_status s);   /* "TRANSFER" */
const char *kv_status_meaning(enum kv_status s);
int kv_status_http(enum kv_status s);
/* KV_STATUS_COUNT when no such name exists. */
enum kv_status kv_status_from_name(const char *name);

/* Fills err (may be NULL) and returns s, so that callers can write `return kv_fail(…)`. */
enum kv_status kv_fail(struct kv_error *err, enum kv_status s, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void kv_hint(struct kv_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
