/* http_once.h — Idempotency-Key: a write that is sent again is answered again and not done again. Any thread. */
#ifndef KV_HTTP_ONCE_H
#define KV_HTTP_ONCE_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_ONCE_KEPT 256 /* the oldest finished one gives way */
struct kv_once;
struct kv_once *kv_once_create(void);
void kv_once_free(struct kv_once *o);

/* who and key name the write, what (route and body) is compared. OK with *body NULL: do it, then kv_once_finish with *ticket. OK with *body set: it was
 * done before, with *status; free(*body). CONFLICT: the key was used for something else, or is being worked on. */
enum kv_status kv_once_begin(struct kv_once *o, const char *who, const char *key, const char *route, const char *request, size_t n,
                             uint64_t *ticket, int *status, char **body, struct kv_error *err);
/* body NULL: it was not answered, and may be tried again. */
void kv_once_finish(struct kv_once *o, uint64_t ticket, int status, const char *body);

#endif
