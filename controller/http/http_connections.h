/* http_connections.h — open connections: how many from all and from one address, and by when their request must have arrived. Any thread. */
#ifndef KV_HTTP_CONNECTIONS_H
#define KV_HTTP_CONNECTIONS_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* Connections beyond a limit that are still taken, to be told why they are not served; the next are closed without a word. */
#define KV_HTTP_REFUSED 16

struct kv_connections;
struct kv_connection;

/* max: served at once; max_of_one: of them from one address, 0 for no such limit. Starts a thread that shuts late ones down. NULL: no memory or no thread. */
struct kv_connections *kv_connections_create(int max, int max_of_one);
void kv_connections_free(struct kv_connections *cs); /* when all are closed */
/* NULL without memory: then the connection is served without a deadline. */
struct kv_connection *kv_connections_open(struct kv_connections *cs, int fd, const struct sockaddr *peer, int64_t wait_us);
void kv_connections_close(struct kv_connections *cs, struct kv_connection *c);
/* Its request must arrive within wait_us from now; 0: no hurry, it is served. */
void kv_connections_wait(struct kv_connections *cs, struct kv_connection *c, int64_t wait_us);
/* QUEUE_FULL for one beyond a limit, however many others have closed since. */
enum kv_status kv_connections_admit(const struct kv_connection *c, struct kv_error *err);
int kv_connections_count(struct kv_connections *cs);

#endif
