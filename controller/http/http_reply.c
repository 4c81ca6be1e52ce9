/* http_reply.c — replies: JSON, text, errors, streams and the embedded web console. */
#include "controller/embedded.h"
#include "controller/http/http.h"
#include "runtime/kvasir.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char csp[] = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
                          "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* Keeps an answer for its idempotency key; a server error is no answer to keep. */
static void keep(struct kv_http_request *r, int status, const char *text)
{
    if (!r->once) return;
    kv_once_finish(kv_http_get_once(r->server), r->once, status, status < 500 ? text : NULL);
    r->once = 0;
}

static void add_header(struct MHD_Response *resp, const char *name, const char *value)
{
    MHD_add_response_header(resp, name, value);
}

static enum kv_status queue(struct kv_http_request *r, int status, struct MHD_Response *resp, struct kv_error *err)
{
    const char *origin = kv_http_header(r, "Origin");
    if (!resp) return kv_fail(err, KV_OUT_OF_MEMORY, "reply", "no memory for the reply");
    add_header(resp, "X-Content-Type-Options", "nosniff");
    add_header(resp, "Referrer-Policy", "no-referrer");
    if (*r->traceparent) add_header(resp, "traceparent", r->traceparent);
    if (r->last) add_header(resp, "Connection", "close");
    if (origin && kv_http_auth_origin_allowed(kv_http_get_auth(r->server), origin)) {
        add_header(resp, "Access-Control-Allow-Origin", origin);
        add_header(resp, "Vary", "Origin");
    }
    r->status = status;
    kv_http_answering(r);
    enum MHD_Result queued = MHD_queue_response(r->connection, (unsigned)status, resp);
    MHD_destroy_response(resp);
    return queued == MHD_YES ? KV_OK : kv_fail(err, KV_INTERNAL, "reply", "the reply could not be queued");
}

enum kv_status kv_http_reply_text(struct kv_http_request *r, int status, const char *type, const char *data, size_t n, struct kv_error *err)
{
    struct MHD_Response *resp = MHD_create_response_from_buffer(n, (void *)data, MHD_RESPMEM_MUST_COPY);
    if (resp) {
        add_header(resp, "Content-Type", type);
        add_header(resp, "Cache-Control", "no-store");
    }
    return queue(r, status, resp, err);
}

enum kv_status kv_http_reply_file(struct kv_http_request *r, int status, const char *type, int fd, uint64_t n, struct kv_error *err)
{
    struct MHD_Response *resp = MHD_create_response_from_fd64(n, fd);
    if (!resp) close(fd);
    else {
        add_header(resp, "Content-Type", type);
        add_header(resp, "Cache-Control", "no-store");
    }
    return queue(r, status, resp, err);
}

enum kv_status kv_http_reply_json(struct kv_http_request *r, int status, json_t *body, struct kv_error *err)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) return kv_fail(err, KV_OUT_OF_MEMORY, "reply", "no memory for the reply");
    keep(r, status, text);
    struct MHD_Response *resp = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!resp) free(text);
    else {
        add_header(resp, "Content-Type", "application/json");
        add_header(resp, "Cache-Control", "no-store");
    }
    return queue(r, status, resp, err);
}

/* A message may be cut inside a character or quote bytes that are no text; JSON takes neither. */
static json_t *lenient_string(const char *s)
{
    json_t *v = json_string(s);
    if (v) return v;
    char *copy = strdup(s);
    for (char *p = copy; p && *p; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    v = json_string(copy ? copy : "");
    free(copy);
    return v;
}

json_t *kv_http_error_json(const struct kv_error *e)
{
    const char *type = kv_status_http(e->status) < 500 ? "invalid_request_error" : "server_error"; /* OpenAI's two words */
    json_t *inner = json_pack("{s:s, s:o, s:s}", "code", kv_status_name(e->status), "message", lenient_string(e->message), "type", type);
    json_object_set_new(inner, "param", *e->where ? lenient_string(e->where) : json_null());
    if (*e->hint) json_object_set_new(inner, "hint", lenient_string(e->hint));
    return json_pack("{s:o}", "error", inner);
}

void kv_http_reply_error(struct kv_http_request *r, const struct kv_error *e)
{
    json_t *body = kv_http_error_json(e);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) return;
    keep(r, kv_status_http(e->status), text);
    struct MHD_Response *resp = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!resp) {
        free(text);
        return;
    }
    add_header(resp, "Content-Type", "application/json");
    add_header(resp, "Cache-Control", "no-store");
    if (e->status == KV_UNAUTHENTICATED) add_header(resp, "WWW-Authenticate", "Bearer");
    if (kv_status_http(e->status) == 503) add_header(resp, "Retry-After", "1");
    if (e->status == KV_METHOD_NOT_ALLOWED) add_header(resp, "Allow", e->where);
    queue(r, kv_status_http(e->status), resp, NULL);
}

/* ---------------------------------------------------------------- streams */

struct stream {
    struct kv_http_stream s;
    const struct kv_http_request *request;
};

static ssize_t stream_read(void *cls, uint64_t pos, char *buf, size_t cap)
{
    struct stream *st = cls;
    (void)pos;
    for (;;) {
        ssize_t n = st->s.read(st->s.ctx, buf, cap);
        if (n > 0) return n;
        if (n < 0) return MHD_CONTENT_READER_END_OF_STREAM;
        /* Never hand "nothing yet" to the server's loop: it would spin. */
        if (kv_http_stopping(st->request->server) || kv_http_client_gone(st->request)) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
}

static void stream_free(void *cls)
{
    struct stream *st = cls;
    if (st->s.release) st->s.release(st->s.ctx);
    free(st);
}

enum kv_status kv_http_reply_stream(struct kv_http_request *r, const char *type, const struct kv_http_stream *s, struct kv_error *err)
{
    bool body = strcmp(r->method, "HEAD"); /* libmicrohttpd ends the chunks of a HEAD's answer, and the next answer would begin with that end */
    struct stream *st = body ? malloc(sizeof *st) : NULL;
    struct MHD_Response *resp = body ? NULL : MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (st) {
        *st = (struct stream){*s, r};
        resp = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, stream_read, st, stream_free);
    }
    if ((!resp || !body) && s->release) s->release(s->ctx);
    if (!resp) {
        free(st);
        return kv_fail(err, KV_OUT_OF_MEMORY, "reply", "no memory for the stream");
    }
    add_header(resp, "Content-Type", type);
    add_header(resp, "Cache-Control", "no-cache, no-transform");
    add_header(resp, "X-Accel-Buffering", "no");
    return queue(r, 200, resp, err);
}

/* ---------------------------------------------------------------- web console */

static const struct kv_embedded *find_asset(const char *name, const char *suffix)
{
    char full[256];
    int n = snprintf(full, sizeof full, "web/%s%s", name, suffix);
    if (n < 0 || (size_t)n >= sizeof full) return NULL;
    for (const struct kv_embedded *e = kv_embedded_table; e->name; e++)
        if (!strcmp(e->name, full)) return e;
    return NULL;
}

static const char *media_type(const char *name)
{
    static const char *const rows[][2] = {{".html", "text/html; charset=utf-8"}, {".js", "text/javascript; charset=utf-8"}, {".css", "text/css; charset=utf-8"},
                                          {".svg", "image/svg+xml"}, {".png", "image/png"}, {".ico", "image/x-icon"}, {".json", "application/json"},
                                          {".woff2", "font/woff2"}, {".webmanifest", "application/manifest+json"}};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(dot, rows[i][0])) return rows[i][1];
    return "application/octet-stream";
}

enum kv_status kv_http_reply_asset(struct kv_http_request *r, struct kv_error *err)
{
    const char *name = strcmp(r->path, "/") ? r->path + 1 : "index.html", *accept = kv_http_header(r, "Accept-Encoding");
    const struct kv_embedded *plain = find_asset(name, ""), *packed = accept && strstr(accept, "gzip") ? find_asset(name, ".gz") : NULL;
    const struct kv_embedded *e = packed ? packed : plain;
    if (!e) return kv_fail(err, KV_NOT_FOUND, "path", "nothing is served at %.120s", r->path);
    uint8_t digest[32];
    char etag[36] = "\"";
    kv_sha256(e->data, e->size, digest);
    kv_hex(digest, 16, etag + 1);
    strcat(etag, "\"");
    const char *known = kv_http_header(r, "If-None-Match");
    bool same = known && strstr(known, etag);
    struct MHD_Response *resp = MHD_create_response_from_buffer(same ? 0 : e->size, (void *)e->data, MHD_RESPMEM_PERSISTENT);
    if (resp) {
        add_header(resp, "Content-Type", media_type(name));
        add_header(resp, "ETag", etag);
        add_header(resp, "Cache-Control", "no-cache");
        add_header(resp, "Vary", "Accept-Encoding");
        add_header(resp, "Content-Security-Policy", csp);
        add_header(resp, "X-Frame-Options", "DENY");
        add_header(resp, "Cross-Origin-Opener-Policy", "same-origin");
        if (packed) add_header(resp, "Content-Encoding", "gzip");
    }
    return queue(r, same ? 304 : 200, resp, err);
}
