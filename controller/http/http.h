/* http.h — the HTTP server: connections and their limits, routes, replies and streams.
 * One thread a connection; a handler may block, and asks kv_http_client_gone while it does. */
#ifndef KV_HTTP_H
#define KV_HTTP_H

#include "controller/http/http_auth.h"
#include "controller/http/http_once.h"

#include <jansson.h>
#include <stddef.h>
#include <sys/types.h>

struct kv_http;
struct MHD_Connection;

#define KV_HTTP_PARTS 2
struct kv_http_request {
    struct kv_http *server;
    struct MHD_Connection *connection;
    void *app;
    const char *method, *path;
    const struct kv_http_route *route;
    char part[KV_HTTP_PARTS][96]; /* what stood at the route's {…}, in order */
    struct kv_identity who;
    char *body;
    size_t body_bytes;
    json_t *json; /* the body's object on routes that take one; an empty object when the body is empty */
    bool body_unread; /* of a rollback: it was no JSON object, and json is empty */
    bool handled; /* it reached its route; false: turned away at the door, by anybody who asks */
    int status;   /* of the reply, for the access log; 0 before it */
    int64_t started_us;
    bool last;     /* the connection ends with the reply */
    uint64_t once; /* ticket of an Idempotency-Key; 0: none */
    char traceparent[64]; /* as it came and is echoed; empty: none that is valid */
};

/* Either replies and returns OK, or fills err and returns its status, which becomes the error reply. */
typedef enum kv_status (*kv_http_handler)(struct kv_http_request *r, struct kv_error *err);

enum {
    KV_ROUTE_JSON = 1,  /* parse the body */
    KV_ROUTE_OPEN = 2,  /* needs no right */
    KV_ROUTE_EARLY = 4, /* served before `ready` says so */
    KV_ROUTE_ONCE = 8,  /* honours Idempotency-Key */
    KV_ROUTE_QUERY = 32, /* its handler looks at the query; every other one under /api/ takes none */
    KV_ROUTE_OBJECT = 16 /* its body may be as long as an object of extents */
};
struct kv_http_route {
    const char *method, *path; /* "/api/v1/rollouts/{id}/{verb}" */
    unsigned right;            /* of enum kv_right */
    unsigned flags;
    kv_http_handler handle;
    const char *summary; /* for the description of the API */
};

struct kv_http_options {
    const struct kv_config *config; /* read during create only */
    const struct kv_http_route *routes; /* ends with a NULL method; outlives the server */
    void *app;
    enum kv_status (*ready)(void *app, struct kv_error *err); /* asked before every handler that is not early */
    void (*answering)(void *app, const struct kv_http_request *r); /* before each answer leaves: its status is known, and it waits for this */
    void (*log)(void *app, const struct kv_http_request *r); /* after each request; status 0: it ended without an answer. Either may be NULL */
};

/* Binds and serves. ADDRESS_IN_USE, BAD_ARGUMENT. */
enum kv_status kv_http_create(const struct kv_http_options *o, struct kv_http **out, struct kv_error *err);
/* Ends every connection and waits for their threads; who may do what (kv_http_get_auth) can still be asked until destroy. */
void kv_http_stop(struct kv_http *h);
void kv_http_destroy(struct kv_http *h); /* stops first when that was not done */
struct kv_once *kv_http_get_once(struct kv_http *h);
struct kv_http_auth *kv_http_get_auth(struct kv_http *h);
const char *kv_http_address(const struct kv_http *h); /* "127.0.0.1:7070", with the port that was bound */
int kv_http_connections(const struct kv_http *h);
bool kv_http_stopping(const struct kv_http *h);
void kv_http_answering(const struct kv_http_request *r); /* for http_reply.c */

/* --- inside handlers */
const char *kv_http_header(const struct kv_http_request *r, const char *name);
const char *kv_http_query(const struct kv_http_request *r, const char *name);
/* BAD_ARGUMENT outside [min, max]; def when absent. */
enum kv_status kv_http_query_int(const struct kv_http_request *r, const char *name, int64_t def, int64_t min, int64_t max, int64_t *out, struct kv_error *err);
/* UNKNOWN_KEY, with the nearest name, when the query has a key that is none of the n names: a misspelt filter would choose everything. */
enum kv_status kv_http_query_known(const struct kv_http_request *r, const char *const *names, size_t n, struct kv_error *err);
void kv_http_address_of(const struct kv_http_request *r, char *out, size_t cap); /* the caller's, in digits */
bool kv_http_client_gone(const struct kv_http_request *r);

enum kv_status kv_http_reply_json(struct kv_http_request *r, int status, json_t *body, struct kv_error *err); /* takes body's reference; NULL is OUT_OF_MEMORY */
enum kv_status kv_http_reply_text(struct kv_http_request *r, int status, const char *type, const char *data, size_t n, struct kv_error *err); /* copies */
enum kv_status kv_http_reply_file(struct kv_http_request *r, int status, const char *type, int fd, uint64_t n, struct kv_error *err); /* takes fd over */
void kv_http_reply_error(struct kv_http_request *r, const struct kv_error *e);
json_t *kv_http_error_json(const struct kv_error *e);

/* A body made as it is sent. read waits at most ~200 ms and returns bytes written to buf, 0 for nothing yet, -1 at the end;
 * release frees ctx, also when the client went away. Once called, ctx is the server's. */
struct kv_http_stream {
    ssize_t (*read)(void *ctx, char *buf, size_t cap);
    void (*release)(void *ctx);
    void *ctx;
};
enum kv_status kv_http_reply_stream(struct kv_http_request *r, const char *type, const struct kv_http_stream *s, struct kv_error *err);

/* GET of a web asset or "/"; NOT_FOUND. */
enum kv_status kv_http_reply_asset(struct kv_http_request *r, struct kv_error *err);

#endif
