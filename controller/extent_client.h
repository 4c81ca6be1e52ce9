/* extent_client.h — the remote tier's objects over HTTP: PUT, GET, HEAD and DELETE of URL/v1/extents/NAME, with libcurl. Certificates are verified,
 * neither redirects nor proxies of the environment followed. Any thread; every call keeps its time limit, and ends at once when it is told to. */
#ifndef KV_EXTENT_CLIENT_H
#define KV_EXTENT_CLIENT_H

#include "runtime/residency/remote.h"

struct kv_extent_client_config {
    const char *url;        /* http or https, without a trailing path */
    const char *token_file; /* its first line is the bearer token; empty: none */
    const char *ca_file;    /* PEM; empty: the system's authorities */
    int32_t timeout_ms;     /* of one object */
};

#define KV_EXTENT_WHY_CHARS 400

struct kv_extent_client;
/* BAD_ARGUMENT for a URL that is none or a ca_file without certificates, FILE_UNREADABLE. Nothing is asked yet. */
enum kv_status kv_extent_client_create(const struct kv_extent_client_config *c, struct kv_extent_client **out, struct kv_error *err);
void kv_extent_client_destroy(struct kv_extent_client *c);
const struct kv_remote_io *kv_extent_client_io(const struct kv_extent_client *c);
/* Why the last call failed, or the last put for want of room, as a sentence with what to do; empty: it did not. A change of it is logged once. */
void kv_extent_client_why(struct kv_extent_client *c, char out[KV_EXTENT_WHY_CHARS]);

#endif
