/* http.c — one server over libmicrohttpd: binding, connection bounds, request bodies, routing.
 *
 * A thread serves one connection, so that handlers and streams may wait. What bounds it: the number of connections, the
 * head's and the body's size, idle time, and the time in which a request must have arrived. */
#include "controller/http/http.h"
#include "controller/http/http_connections.h"
#include "controller/http/trace_context.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* What a request's head may have, and what libmicrohttpd keeps of it: it answers what is larger than the second by itself, with a page of HTML. */
enum { HEAD_BYTES = 32 << 10, POOL_BYTES = 3 * HEAD_BYTES };

struct kv_http {
    struct MHD_Daemon *daemon;
    struct kv_http_auth *auth;
    struct kv_once *once;
    const struct kv_http_route *routes;
    void *app;
    enum kv_status (*ready)(void *app, struct kv_error *err);
    void (*answering)(void *app, const struct kv_http_request *r);
    void (*log)(void *app, const struct kv_http_request *r);
    size_t max_body, max_object;
    int64_t idle_us, upload_us;
    char address[300];
    int listener;
    _Atomic bool stopping;
    struct kv_connections *connections;
    char *certificate, *key;
};

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

struct kv_http_auth *kv_http_get_auth(struct kv_http *h)
{
    return h->auth;
}

struct kv_once *kv_http_get_once(struct kv_http *h)
{
    return h->once;
}

const char *kv_http_address(const struct kv_http *h)
{
    return h->address;
}

int kv_http_connections(const struct kv_http *h)
{
    return kv_connections_count(h->connections);
}

bool kv_http_stopping(const struct kv_http *h)
{
    return h->stopping;
}

void kv_http_answering(const struct kv_http_request *r)
{
    if (r->server->answering) r->server->answering(r->app, r);
}

const char *kv_http_header(const struct kv_http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

bool kv_http_client_gone(const struct kv_http_request *r)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd p = {.fd = info ? info->connect_fd : -1, .events = POLLRDHUP};
    return p.fd < 0 || (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)));
}

/* ---------------------------------------------------------------- connections */

static struct kv_connection *connection_of(struct MHD_Connection *mc)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void on_connection(void *cls, struct MHD_Connection *mc, void **socket_context, enum MHD_ConnectionNotificationCode what)
{
    struct kv_http *h = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        int fd = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        *socket_context = kv_connections_open(h->connections, fd, MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr, h->upload_us);
    } else kv_connections_close(h->connections, *socket_context);
}

/* ---------------------------------------------------------------- routing */

/* Fills parts; false when the path does not have the pattern's shape. */
static bool match(const char *pattern, const char *path, struct kv_http_request *r)
{
    int part = 0;
    while (*pattern) {
        if (*pattern == '{') {
            size_t n = strcspn(path, "/");
            if (!n || n >= sizeof r->part[0] || part == KV_HTTP_PARTS) return false;
            memcpy(r->part[part], path, n);
            r->part[part++][n] = 0;
            path += n;
            pattern = strchr(pattern, '}') + 1;
        } else if (*pattern++ != *path++) return false;
    }
    return !*path;
}

static bool is_api(const char *path)
{
    return !strncmp(path, "/api/", 5) || !strncmp(path, "/v1/", 4);
}

static enum kv_status find_route(struct kv_http *h, struct kv_http_request *r, struct kv_error *err)
{
    const char *method = strcmp(r->method, "HEAD") ? r->method : "GET";
    char allow[96] = "";
    for (const struct kv_http_route *t = h->routes; t->method; t++) {
        if (!match(t->path, r->path, r)) continue;
        if (!strcmp(t->method, method)) return r->route = t, KV_OK;
        if (strlen(allow) + strlen(t->method) + 3 < sizeof allow) sprintf(allow + strlen(allow), "%s%s", *allow ? ", " : "", t->method);
    }
    if (*allow) {
        enum kv_status st = kv_fail(err, KV_METHOD_NOT_ALLOWED, allow, "%.16s is not a method of %.120s", r->method, r->path);
        kv_hint(err, "use %s", allow);
        return st;
    }
    static const struct kv_http_route asset = {"GET", "", KV_RIGHT_NONE, KV_ROUTE_OPEN | KV_ROUTE_EARLY, kv_http_reply_asset, NULL};
    if (!strcmp(method, "GET") && !is_api(r->path)) return r->route = &asset, KV_OK;
    enum kv_status st = kv_fail(err, KV_NOT_FOUND, "path", "no route is named %.120s", r->path);
    kv_hint(err, "GET /api/v1/openapi.json describes the routes");
    return st;
}

static enum kv_status check_right(struct kv_http_request *r, struct kv_error *err)
{
    if (r->route->flags & KV_ROUTE_OPEN || (r->who.rights & r->route->right)) return KV_OK;
    if (!r->who.rights) {
        enum kv_status st = kv_fail(err, KV_UNAUTHENTICATED, "Authorization", "no valid token was given");
        kv_hint(err, "send Authorization: Bearer TOKEN");
        return st;
    }
    const char *right = kv_right_name((enum kv_right)r->route->right);
    kv_fail(err, KV_FORBIDDEN, "Authorization", "token '%s' lacks the right '%s'", r->who.name, right);
    kv_hint(err, "use a token that has it; kvasir token create NAME --right %s makes one (with --state DIR beside the stopped server)", right);
    return KV_FORBIDDEN;
}

static size_t most(const struct kv_http *h, const struct kv_http_request *r)
{
    return r->route && r->route->flags & KV_ROUTE_OBJECT ? h->max_object : h->max_body;
}

static enum kv_status body_too_large(const struct kv_http *h, const struct kv_http_request *r, struct kv_error *err)
{
    kv_fail(err, KV_BODY_TOO_LARGE, "body", "the body exceeds %zu bytes", most(h, r));
    kv_hint(err, "send less, or raise %s", r->route->flags & KV_ROUTE_OBJECT ? "extents.object_bytes" : "http.max_body_bytes");
    return KV_BODY_TOO_LARGE;
}

/* By somebody who may: let through however often the caller asked before, and whatever its body is. */
static bool is_rollback(const struct kv_http_request *r)
{
    static const char rollouts[] = "/api/v1/rollouts/";
    const char *verb = strrchr(r->path, '/');
    return r->who.rights & KV_RIGHT_OPERATOR && !strncmp(r->path, rollouts, sizeof rollouts - 1) && !strcmp(verb, "/rollback");
}

static enum kv_status check_rate(struct kv_http *h, const struct kv_http_request *r, bool claimed, struct kv_error *err)
{
    char address[64];
    if (is_rollback(r)) return KV_OK;
    kv_http_address_of(r, address, sizeof address);
    return kv_http_auth_rate(h->auth, &r->who, address, claimed, err);
}

struct framing {
    unsigned hosts, lengths, codings;
    bool spaced;
    size_t bytes;
};

static enum MHD_Result count_framing(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct framing *f = cls;
    (void)kind;
    f->bytes += strlen(key) + (value ? strlen(value) : 0) + 4; /* ": " and the end of the line */
    f->hosts += !strcasecmp(key, "Host");
    f->lengths += !strcasecmp(key, "Content-Length");
    f->codings += !strcasecmp(key, "Transfer-Encoding");
    f->spaced |= strpbrk(key, " \t") != NULL;
    return MHD_YES;
}

/* What a proxy in front may read otherwise (RFC 9112, 3.2, 5.1 and 6.3): one request could be taken for two, or for another host's. */
static enum kv_status check_framing(const struct kv_http_request *r, struct kv_error *err)
{
    struct framing f = {.bytes = strlen(r->path)};
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, count_framing, &f);
    if (f.bytes > HEAD_BYTES) {
        kv_fail(err, KV_HEAD_TOO_LARGE, "head", "the path and the headers have %zu bytes; the limit is %d", f.bytes, HEAD_BYTES);
        kv_hint(err, "send what is long in the body");
        return KV_HEAD_TOO_LARGE;
    }
    if (f.spaced) return kv_fail(err, KV_BAD_ARGUMENT, "header", "a header's name holds a space: 'Content-Length : 5' can be read in two ways");
    if (f.hosts <= 1 && f.lengths + f.codings <= 1) return KV_OK;
    kv_fail(err, KV_BAD_ARGUMENT, f.hosts > 1 ? "Host" : "Content-Length", "%u Host, %u Content-Length and %u Transfer-Encoding headers can be read in two ways", f.hosts, f.lengths, f.codings);
    kv_hint(err, "send one Host, and either one Content-Length or one Transfer-Encoding");
    return KV_BAD_ARGUMENT;
}

/* What can be judged before the body: name, route, right, declared length. */
static enum kv_status check_head(struct kv_http *h, struct kv_http_request *r, struct kv_error *err)
{
    const char *length = kv_http_header(r, "Content-Length");
    struct kv_http_claims claims = {kv_http_header(r, "Authorization"), kv_http_header(r, "Host"), kv_http_header(r, "Origin"),
                                    kv_http_header(r, "Sec-Fetch-Site"), strcmp(r->method, "GET") && strcmp(r->method, "HEAD")};
    enum kv_status st = kv_connections_admit(connection_of(r->connection), err);
    r->last = st != KV_OK;
    if (!st) st = check_framing(r, err);
    if (!st) st = kv_http_auth_check(h->auth, &claims, &r->who, err);
    if (!st) {
        enum kv_status found = find_route(h, r, err); /* asking for what is not there counts as well */
        if (found || !(r->route->flags & KV_ROUTE_OPEN)) st = check_rate(h, r, claims.authorization != NULL, err);
        if (!st) st = found;
    }
    if (!st) st = check_right(r, err);
    if (!st && length && strtoull(length, NULL, 10) > most(h, r)) st = body_too_large(h, r, err);
    return st;
}

static enum kv_status parse_body(struct kv_http_request *r, struct kv_error *err)
{
    json_error_t je;
    if (!r->body_bytes) return (r->json = json_object()) ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "body", "no memory");
    r->json = json_loadb(r->body, r->body_bytes, JSON_REJECT_DUPLICATES, &je);
    if (!r->json && json_error_code(&je) == json_error_null_character)
        return kv_fail(err, KV_BAD_JSON, "body", "line %d, column %d: a text holds the character \\u0000, which is not taken here", je.line, je.column);
    if (!r->json) return kv_fail(err, KV_BAD_JSON, "body", "line %d, column %d: %.200s", je.line, je.column, je.text);
    if (!json_is_object(r->json)) return kv_fail(err, KV_BAD_JSON, "body", "the body is JSON but not an object");
    return KV_OK;
}

/* A write that was answered under this key before is answered the same, and its handler is not called. */
static enum kv_status handle(struct kv_http *h, struct kv_http_request *r, struct kv_error *err)
{
    /* A rollback acts each time: it is the same however often it is sent, and no key may stand in its way. */
    const char *key = r->route->flags & KV_ROUTE_ONCE && !is_rollback(r) ? kv_http_header(r, "Idempotency-Key") : NULL;
    char *body = NULL, route[300];
    int status = 0;
    r->handled = true;
    if (!key) return r->route->handle(r, err);
    snprintf(route, sizeof route, "%s %.280s", r->method, r->path);
    enum kv_status st = kv_once_begin(h->once, r->who.name, key, route, r->body, r->body_bytes, &r->once, &status, &body, err);
    if (st || body) {
        if (!st) st = kv_http_reply_text(r, status, "application/json", body, strlen(body), err);
        free(body);
        return st;
    }
    st = r->route->handle(r, err);
    if (st && !r->status) kv_http_reply_error(r, err);
    if (r->once) kv_once_finish(h->once, r->once, 0, NULL); /* it ended without an answer to keep */
    return st;
}

/* ---------------------------------------------------------------- libmicrohttpd's callbacks */

static enum MHD_Result preflight(struct kv_http *h, struct kv_http_request *r)
{
    const char *origin = kv_http_header(r, "Origin");
    struct MHD_Response *resp = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!resp) return MHD_NO;
    if (origin && kv_http_auth_origin_allowed(h->auth, origin)) {
        MHD_add_response_header(resp, "Access-Control-Allow-Origin", origin);
        MHD_add_response_header(resp, "Access-Control-Allow-Methods", "GET, POST, DELETE");
        MHD_add_response_header(resp, "Access-Control-Allow-Headers", "Authorization, Content-Type, If-Match, Idempotency-Key, Last-Event-ID, traceparent");
        MHD_add_response_header(resp, "Vary", "Origin");
    }
    r->status = 204;
    enum MHD_Result ok = MHD_queue_response(r->connection, 204, resp);
    MHD_destroy_response(resp);
    return ok;
}

static enum MHD_Result begin(struct kv_http *h, struct MHD_Connection *mc, const char *url, const char *method, void **con_cls)
{
    struct kv_error err = {0};
    struct kv_http_request *r = calloc(1, sizeof *r);
    if (!r) return MHD_NO;
    *con_cls = r;
    *r = (struct kv_http_request){.server = h, .connection = mc, .app = h->app, .method = method, .path = url, .started_us = now_us()};
    kv_connections_wait(h->connections, connection_of(mc), h->upload_us);
    if (kv_traceparent_parse(kv_http_header(r, "traceparent"), (uint8_t[24]){0})) snprintf(r->traceparent, sizeof r->traceparent, "%.55s", kv_http_header(r, "traceparent"));
    if (!strcmp(method, "OPTIONS")) return preflight(h, r);
    if (check_head(h, r, &err)) kv_http_reply_error(r, &err);
    return MHD_YES;
}

static enum MHD_Result take_body(struct kv_http *h, struct kv_http_request *r, const char *data, size_t *n)
{
    size_t now = r->body_bytes + *n;
    if (now > 2 * most(h, r)) return MHD_NO; /* a chunked body without an end */
    if (now <= most(h, r)) {
        char *more = realloc(r->body, now);
        if (!more) return MHD_NO;
        memcpy(more + r->body_bytes, data, *n);
        r->body = more;
    }
    r->body_bytes = now;
    *n = 0;
    return MHD_YES;
}

/* %00 is left as another control character: a path or a value would end there for us, and go on for a proxy in front. */
static size_t unescape(void *cls, struct MHD_Connection *mc, char *text)
{
    (void)cls, (void)mc;
    for (char *zero = text; (zero = strstr(zero, "%00")); zero += 3) zero[2] = '1';
    return MHD_http_unescape(text);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mc, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *upload_size, void **con_cls)
{
    struct kv_http *h = cls;
    struct kv_http_request *r = *con_cls;
    struct kv_error err = {0};
    (void)version;
    if (!r) return begin(h, mc, url, method, con_cls);
    if (*upload_size) return take_body(h, r, upload, upload_size);
    if (r->status) return MHD_YES;
    r->method = method;
    r->path = url;
    kv_connections_wait(h->connections, connection_of(mc), 0);
    enum kv_status st = KV_OK;
    if (r->body_bytes > most(h, r)) st = body_too_large(h, r, &err);
    if (!st && !(r->route->flags & KV_ROUTE_EARLY)) st = h->ready(h->app, &err);
    if (!st && !(r->route->flags & KV_ROUTE_QUERY) && !strncmp(r->path, "/api/", 5) && !is_rollback(r)) st = kv_http_query_known(r, NULL, 0, &err);
    if (!st && r->route->flags & KV_ROUTE_JSON) st = parse_body(r, &err);
    if (st == KV_BAD_JSON && is_rollback(r)) {
        json_decref(r->json);
        r->body_unread = true;
        st = (r->json = json_object()) ? KV_OK : KV_OUT_OF_MEMORY;
    }
    if (!st) st = handle(h, r, &err);
    if (st && !r->status) kv_http_reply_error(r, &err);
    return r->status ? MHD_YES : MHD_NO;
}

static void on_completed(void *cls, struct MHD_Connection *mc, void **con_cls, enum MHD_RequestTerminationCode why)
{
    struct kv_http *h = cls;
    struct kv_http_request *r = *con_cls;
    (void)why;
    kv_connections_wait(h->connections, connection_of(mc), h->idle_us + h->upload_us);
    if (!r) return;
    if (h->log) h->log(h->app, r);
    json_decref(r->json);
    free(r->body);
    free(r);
    *con_cls = NULL;
}

/* ---------------------------------------------------------------- start and stop */

static enum kv_status split_address(const char *listen_at, char *host, size_t host_cap, char *port, size_t port_cap, struct kv_error *err)
{
    const char *colon = strrchr(listen_at, ':');
    if (!colon || colon == listen_at || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1) || atoi(colon + 1) > 65535)
        return kv_fail(err, KV_BAD_ARGUMENT, "listen", "listen wants HOST:PORT, not '%.80s'", listen_at);
    size_t n = (size_t)(colon - listen_at);
    if (*listen_at == '[' && listen_at[n - 1] == ']') listen_at++, n -= 2;
    snprintf(host, host_cap, "%.*s", (int)(n < host_cap ? n : host_cap - 1), listen_at);
    snprintf(port, port_cap, "%s", colon + 1);
    return KV_OK;
}

static enum kv_status bind_listener(struct kv_http *h, const char *host, const char *port, struct kv_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    int gai = getaddrinfo(host, port, &hints, &found), one = 1;
    if (gai) return kv_fail(err, KV_BAD_ARGUMENT, "listen", "the address %s is not known: %s", host, gai_strerror(gai));
    h->listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = h->listener >= 0 && !setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) &&
              !bind(h->listener, found->ai_addr, found->ai_addrlen) && !listen(h->listener, 128);
    enum kv_status st = KV_OK;
    if (!ok && errno == EADDRINUSE) {
        st = kv_fail(err, KV_ADDRESS_IN_USE, "listen", "another program already listens on %s:%s", host, port);
        kv_hint(err, "stop it, or choose another with --listen HOST:PORT (port 0 takes a free one)");
    } else if (!ok) st = kv_fail(err, KV_IO_ERROR, "listen", "cannot listen on %s:%s: %s", host, port, strerror(errno));
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char bound[16];
    if (!st && !getsockname(h->listener, (struct sockaddr *)&at, &len) && !getnameinfo((struct sockaddr *)&at, len, NULL, 0, bound, sizeof bound, NI_NUMERICSERV))
        snprintf(h->address, sizeof h->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, bound);
    freeaddrinfo(found);
    return st;
}

static enum kv_status read_pem(const char *path, char **out, struct kv_error *err)
{
    enum { LARGEST = 1 << 20 };
    FILE *f = fopen(path, "rb");
    char *text = f ? calloc(1, LARGEST + 1) : NULL;
    size_t n = text ? fread(text, 1, LARGEST, f) : 0;
    if (f) fclose(f);
    *out = text;
    return n ? KV_OK : kv_fail(err, KV_FILE_UNREADABLE, path, "the PEM file %s cannot be read or is empty", path);
}

static enum kv_status start_daemon(struct kv_http *h, const struct kv_config *c, struct kv_error *err)
{
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC | (h->certificate ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, h->certificate}, {MHD_OPTION_HTTPS_MEM_KEY, 0, h->key}, {MHD_OPTION_END, 0, NULL}};
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, h->listener,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->max_connections + KV_HTTP_REFUSED,
                                 MHD_OPTION_PER_IP_CONNECTION_LIMIT, c->max_per_client ? (unsigned)c->max_per_client + KV_HTTP_REFUSED : 0,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)c->idle_timeout_s,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES, MHD_OPTION_THREAD_STACK_SIZE, (size_t)1 << 20,
                                 MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
                                 MHD_OPTION_ARRAY, h->certificate ? tls : tls + 2, MHD_OPTION_END);
    if (h->daemon) return KV_OK;
    return kv_fail(err, KV_IO_ERROR, "http", "the HTTP server could not be started%s", h->certificate ? "; check http.tls.certificate and http.tls.key" : "");
}

enum kv_status kv_http_create(const struct kv_http_options *o, struct kv_http **out, struct kv_error *err)
{
    const struct kv_config *c = o->config;
    char host[256], port[8];
    *out = NULL;
    enum kv_status st = split_address(c->listen, host, sizeof host, port, sizeof port, err);
    if (st) return st;
    struct kv_http *h = calloc(1, sizeof *h);
    if (!h) return kv_fail(err, KV_OUT_OF_MEMORY, "http", "no memory for the server");
    h->listener = -1;
    h->routes = o->routes;
    h->app = o->app;
    h->ready = o->ready;
    h->answering = o->answering;
    h->log = o->log;
    h->max_body = c->max_body;
    h->max_object = c->extents_object;
    h->idle_us = c->idle_timeout_s * 1000000;
    h->upload_us = c->upload_timeout_s * 1000000;
    st = kv_http_auth_create(c, host, *c->tls_key, &h->auth, err);
    if (!st && *c->tls_key) st = read_pem(c->tls_certificate, &h->certificate, err);
    if (!st && *c->tls_key) st = read_pem(c->tls_key, &h->key, err);
    if (!st && !(h->once = kv_once_create())) st = kv_fail(err, KV_OUT_OF_MEMORY, "http", "no memory for the server");
    if (!st) st = bind_listener(h, host, port, err);
    if (!st && !(h->connections = kv_connections_create((int)c->max_connections, (int)c->max_per_client))) st = kv_fail(err, KV_OUT_OF_MEMORY, "http", "no memory or no thread for the server");
    if (!st) st = start_daemon(h, c, err);
    if (st) kv_http_destroy(h);
    else *out = h;
    return st;
}

void kv_http_stop(struct kv_http *h)
{
    if (!h) return;
    h->stopping = true;
    if (h->daemon) MHD_stop_daemon(h->daemon); /* closes the listener */
    else if (h->listener >= 0) close(h->listener);
    h->daemon = NULL;
    h->listener = -1;
}

void kv_http_destroy(struct kv_http *h)
{
    if (!h) return;
    kv_http_stop(h);
    kv_http_auth_free(h->auth);
    kv_once_free(h->once);
    kv_connections_free(h->connections);
    free(h->certificate);
    free(h->key);
    free(h);
}
