/* notify.h — telling others: a webhook (signed, retried) and a program, for moves of a rollout, failed gates, policy switches and faults.
 *
 * One thread of its own and a bounded queue: what does not fit is dropped, counted and logged, and nothing that serves ever waits. */
#ifndef KV_NOTIFY_H
#define KV_NOTIFY_H

#include "controller/store/receipts.h"

#include <jansson.h>

struct kv_notify;
struct kv_notify_config {
    const char *webhook;     /* http or https URL; empty: none */
    const char *secret_file; /* its content keys X-Kvasir-Signature; empty: not signed */
    const char *program;     /* gets the JSON on standard input; empty: none */
    int32_t retry_ms;        /* before the second try, doubled each time; 0: 1000 */
};
/* OK with *out NULL when nothing is configured. */
enum kv_status kv_notify_create(const struct kv_notify_config *c, struct kv_notify **out, struct kv_error *err);
/* Whether this receipt is one others are told of. */
bool kv_notify_wants(const struct kv_receipt_row *row);
/* Takes body's reference. Any thread; never blocks. */
void kv_notify_post(struct kv_notify *n, uint64_t id, json_t *body);
/* Gives what is queued up to two seconds. */
void kv_notify_free(struct kv_notify *n);

#endif
