/* demo_client.h — one HTTP client of the demo: a libcurl handle that keeps its connection. One thread at a time. */
#ifndef KV_DEMO_CLIENT_H
#define KV_DEMO_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct kv_demo_client;
/* token "": none. */
struct kv_demo_client *kv_demo_client_create(const char *base_url, const char *token, bool insecure);
void kv_demo_client_free(struct kv_demo_client *c);
/* Calls method on path with body (may be NULL) and If-Match (0: none). *status is the HTTP status, 0 when there was no answer. *answer (may be
 * NULL) is the JSON that came, or NULL; the caller owns it. */
void kv_demo_call(struct kv_demo_client *c, const char *method, const char *path, const json_t *body, uint64_t version, long *status, json_t **answer);
/* The same for a streamed completion: true when it came whole, to its [DONE]. */
bool kv_demo_stream(struct kv_demo_client *c, const char *path, const json_t *body, long *status);
/* Ends a call in progress from another thread's flag. */
void kv_demo_client_watch(struct kv_demo_client *c, const _Atomic bool *stop);

#endif
