/* extent_client.c — see extent_client.h. */
#include "controller/extent_client.h"
#include "controller/http/events.h"

#include <curl/curl.h>
#include <errno.h>
#include <gnutls/x509.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDLE = 2, FACTS_BYTES = 1024 };

struct kv_extent_client {
    struct kv_remote_io io;
    char url[600], ca_file[512];
    struct curl_slist *headers;
    long timeout_ms;
    pthread_mutex_t lock;
    /* Under the lock. */
    CURL *idle[IDLE]; /* with their open connections */
    long failed;      /* how the last call did: an HTTP status, a negative CURLcode, or 0: well */
    char why[KV_EXTENT_WHY_CHARS];
};

/* ---------------------------------------------------------------- one call */

struct body { /* sent from `out`, or taken into `in` as far as it goes */
    const uint8_t *out;
    uint8_t *in;
    size_t n, cap;
    bool over; /* more came than may */
};

static size_t give(char *to, size_t size, size_t n, void *arg)
{
    struct body *b = arg;
    size_t now = size * n < b->cap - b->n ? size * n : b->cap - b->n;
    memcpy(to, b->out + b->n, now);
    b->n += now;
    return now;
}

static size_t take(char *data, size_t size, size_t n, void *arg)
{
    struct body *b = arg;
    size_t now = size * n;
    if (!b->in) return now;
    if (now > b->cap - b->n) return b->over = true, 0;
    memcpy(b->in + b->n, data, now);
    b->n += now;
    return now;
}

/* A connection that was closed meanwhile is opened again, and the body sent anew. */
static int back(void *arg, curl_off_t to, int origin)
{
    struct body *b = arg;
    if (origin != SEEK_SET || to < 0 || (size_t)to > b->cap) return CURL_SEEKFUNC_FAIL;
    b->n = (size_t)to;
    return CURL_SEEKFUNC_OK;
}

static int stopped(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return atomic_load((const _Atomic bool *)arg);
}

static CURL *take_handle(struct kv_extent_client *c)
{
    CURL *h = NULL;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < IDLE && !h; i++) h = c->idle[i], c->idle[i] = NULL;
    pthread_mutex_unlock(&c->lock);
    if (!h) return curl_easy_init();
    curl_easy_reset(h);
    return h;
}

static void give_handle(struct kv_extent_client *c, CURL *h)
{
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < IDLE && h; i++)
        if (!c->idle[i]) c->idle[i] = h, h = NULL;
    pthread_mutex_unlock(&c->lock);
    if (h) curl_easy_cleanup(h);
}

static enum kv_status of_curl(CURLcode rc, const struct body *b)
{
    switch (rc) {
    case CURLE_OK: return KV_OK;
    case CURLE_ABORTED_BY_CALLBACK: return KV_TRANSFER_CANCELLED;
    case CURLE_OPERATION_TIMEDOUT: return KV_REMOTE_TIMEOUT;
    case CURLE_PARTIAL_FILE: return KV_SHORT_COPY;
    case CURLE_WRITE_ERROR: return b->over ? KV_CHECKSUM_MISMATCH : KV_REMOTE_UNAVAILABLE;
    case CURLE_OUT_OF_MEMORY: return KV_OUT_OF_MEMORY;
    default: return KV_REMOTE_UNAVAILABLE;
    }
}

static enum kv_status of_http(long http)
{
    switch (http) {
    case 200: case 201: case 204: return KV_OK;
    case 401: return KV_UNAUTHENTICATED;
    case 403: return KV_FORBIDDEN;
    case 404: return KV_NOT_FOUND;
    case 413: return KV_BODY_TOO_LARGE;
    case 429: return KV_RATE_LIMITED;
    case 507: return KV_NO_SPACE;
    default: return KV_REMOTE_UNAVAILABLE;
    }
}

/* What to look at, by how a call failed: an HTTP status or a negative CURLcode. */
static const char *advice(const struct kv_extent_client *c, long how)
{
    bool https = !strncasecmp(c->url, "https", 5);
    switch (how) {
    case -CURLE_PEER_FAILED_VERIFICATION: case -CURLE_SSL_CACERT_BADFILE: case -CURLE_SSL_ISSUER_ERROR:
        return "its certificate has expired, is not for the host in tiers.remote.url, or no authority in tiers.remote.ca_file signed it";
    case -CURLE_SSL_CONNECT_ERROR: return "TLS could not be agreed on: does it serve https, by http.tls.certificate and http.tls.key?";
    case -CURLE_GOT_NOTHING: case -CURLE_RECV_ERROR: case -CURLE_SEND_ERROR: case -CURLE_WEIRD_SERVER_REPLY: case -CURLE_UNSUPPORTED_PROTOCOL:
        return https ? "the connection ended before an answer" : "the connection ended before an answer: does it serve https?";
    case -CURLE_COULDNT_RESOLVE_HOST: case -CURLE_COULDNT_CONNECT: return "is it running, and at tiers.remote.url?";
    case -CURLE_OPERATION_TIMEDOUT: return "it took longer than tiers.remote.timeout_ms";
    case 400: return "does it keep extents (extents.serve)?";
    case 401: case 403: return "it refuses the token in tiers.remote.token_file, whose right must be extents";
    case 413: return "a block is longer than its extents.object_bytes";
    case 507: return "it is full: raise its extents.capacity_bytes, or free disk space there";
    default: return "see its log";
    }
}

static bool has_no_room(long how)
{
    return how == 413 || how == 507;
}

/* What refused an object is said until one is taken. */
static void note(struct kv_extent_client *c, bool put, long how, const char *text)
{
    char said[KV_EXTENT_WHY_CHARS] = "";
    if (how > 0) snprintf(said, sizeof said, "it answers HTTP %ld: %s", how, advice(c, how));
    if (how < 0) snprintf(said, sizeof said, "%.120s: %s", text, advice(c, how));
    pthread_mutex_lock(&c->lock);
    bool fresh = how && how != c->failed;
    if (how || put || !has_no_room(c->failed)) {
        c->failed = how;
        memcpy(c->why, said, sizeof said);
    }
    pthread_mutex_unlock(&c->lock);
    if (fresh) kv_events_log(KV_LOG_WARN, "remote tier %.200s: %s", c->url, said);
}

void kv_extent_client_why(struct kv_extent_client *c, char out[KV_EXTENT_WHY_CHARS])
{
    pthread_mutex_lock(&c->lock);
    memcpy(out, c->why, sizeof c->why);
    pthread_mutex_unlock(&c->lock);
}

static enum kv_status call(struct kv_extent_client *c, const char *method, const char *name, struct body *b, const _Atomic bool *stop)
{
    char url[700], text[CURL_ERROR_SIZE] = "";
    CURL *h = take_handle(c);
    if (!h) return KV_OUT_OF_MEMORY;
    snprintf(url, sizeof url, "%s/v1/extents%s%s", c->url, *name ? "/" : "", name);
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, c->timeout_ms);
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, c->timeout_ms);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, b);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, stopped);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, stop);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(h, CURLOPT_PROXY, ""); /* rows and the token go to that host alone, whatever http_proxy says */
    if (*c->ca_file) {
        curl_easy_setopt(h, CURLOPT_CAINFO, c->ca_file);
        curl_easy_setopt(h, CURLOPT_CAPATH, NULL); /* those authorities alone, not the system's too */
    }
    if (b->in) curl_easy_setopt(h, CURLOPT_FAILONERROR, 1L); /* an error's text is no object */
    if (!strcmp(method, "HEAD")) curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
    if (!strcmp(method, "DELETE")) curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, method);
    if (!strcmp(method, "PUT")) {
        curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(h, CURLOPT_READFUNCTION, give);
        curl_easy_setopt(h, CURLOPT_READDATA, b);
        curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, back);
        curl_easy_setopt(h, CURLOPT_SEEKDATA, b);
        curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)b->cap);
    }
    CURLcode rc = curl_easy_perform(h);
    long http = 0;
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &http);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, NULL);
    give_handle(c, h);
    bool answered = rc == CURLE_OK || rc == CURLE_HTTP_RETURNED_ERROR || (http >= 400 && rc == CURLE_SEND_ERROR);
    enum kv_status s = answered ? of_http(http) : of_curl(rc, b);
    if (s != KV_TRANSFER_CANCELLED) note(c, b->out, s == KV_OK || s == KV_NOT_FOUND ? 0 : answered ? http : -(long)rc, rc == CURLE_OPERATION_TIMEDOUT || !*text ? curl_easy_strerror(rc) : text);
    return s;
}

static enum kv_status put(void *ctx, const char *name, const void *object, size_t n, const _Atomic bool *stop)
{
    struct body b = {.out = object, .cap = n};
    return call(ctx, "PUT", name, &b, stop);
}

static enum kv_status get(void *ctx, const char *name, void *object, size_t cap, size_t *n, const _Atomic bool *stop)
{
    struct body b = {.in = object, .cap = cap};
    enum kv_status s = call(ctx, "GET", name, &b, stop);
    *n = b.n;
    return s;
}

static enum kv_status has(void *ctx, const char *name, const _Atomic bool *stop)
{
    struct body b = {0};
    return call(ctx, "HEAD", name, &b, stop);
}

static enum kv_status erase(void *ctx, const char *name, const _Atomic bool *stop)
{
    struct body b = {0};
    return call(ctx, "DELETE", name, &b, stop);
}

static enum kv_status facts(void *ctx, struct kv_remote_facts *out, const _Atomic bool *stop)
{
    uint8_t text[FACTS_BYTES];
    struct body b = {.in = text, .cap = sizeof text};
    enum kv_status s = call(ctx, "GET", "", &b, stop);
    if (s != KV_OK) return s == KV_NOT_FOUND ? KV_REMOTE_UNAVAILABLE : s; /* somebody else's server */
    json_int_t objects, bytes, capacity;
    json_t *o = json_loadb((const char *)text, b.n, 0, NULL);
    bool good = o && !json_unpack(o, "{s:I, s:I, s:I}", "objects", &objects, "bytes", &bytes, "capacity_bytes", &capacity) && objects >= 0 && bytes >= 0 && capacity >= 0;
    json_decref(o);
    if (!good) return KV_REMOTE_UNAVAILABLE;
    *out = (struct kv_remote_facts){(uint64_t)objects, (uint64_t)bytes, (uint64_t)capacity};
    return KV_OK;
}

/* ---------------------------------------------------------------- life */

static enum kv_status read_token(struct kv_extent_client *c, const char *path, struct kv_error *err)
{
    char line[600] = "Authorization: Bearer ";
    size_t at = strlen(line);
    FILE *f = *path ? fopen(path, "rb") : NULL;
    if (!*path) return KV_OK;
    if (!f || !fgets(line + at, (int)(sizeof line - at), f)) {
        kv_fail(err, KV_FILE_UNREADABLE, "tiers.remote.token_file", "the token of the remote tier cannot be read from %.200s: %s", path, f ? "it is empty" : strerror(errno));
        kv_hint(err, "kvasir token create NAME --right extents on the server that keeps the extents makes one");
        if (f) fclose(f);
        return KV_FILE_UNREADABLE;
    }
    fclose(f);
    line[at + strcspn(line + at, "\r\n \t")] = 0;
    c->headers = curl_slist_append(NULL, line);
    explicit_bzero(line, sizeof line);
    return c->headers ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "tiers.remote", "no memory for the remote tier");
}

static enum kv_status check_authorities(const char *path, struct kv_error *err)
{
    gnutls_datum_t pem = {0};
    gnutls_x509_crt_t *list = NULL;
    unsigned n = 0;
    if (gnutls_load_file(path, &pem) < 0) {
        kv_fail(err, KV_FILE_UNREADABLE, "tiers.remote.ca_file", "the authorities of the remote tier cannot be read from %.200s", path);
        kv_hint(err, "it is a PEM file that this user may read; leave it empty for the system's authorities");
        return KV_FILE_UNREADABLE;
    }
    int e = gnutls_x509_crt_list_import2(&list, &n, &pem, GNUTLS_X509_FMT_PEM, 0);
    for (unsigned i = 0; e >= 0 && i < n; i++) gnutls_x509_crt_deinit(list[i]);
    gnutls_free(list);
    gnutls_free(pem.data);
    if (e >= 0) return KV_OK;
    kv_fail(err, KV_BAD_ARGUMENT, "tiers.remote.ca_file", "%.200s holds no certificate: %s", path, gnutls_strerror(e));
    kv_hint(err, "it is the PEM certificate of the authority that signed the server's, or the server's own");
    return KV_BAD_ARGUMENT;
}

static bool is_url(const char *url)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *query = NULL, *user = NULL;
    bool good = u && !curl_url_set(u, CURLUPART_URL, url, 0) && !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) && (!strcmp(scheme, "http") || !strcmp(scheme, "https")) &&
                curl_url_get(u, CURLUPART_QUERY, &query, 0) == CURLUE_NO_QUERY && curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_NO_USER;
    curl_free(scheme);
    curl_free(query);
    curl_free(user);
    curl_url_cleanup(u);
    return good;
}

enum kv_status kv_extent_client_create(const struct kv_extent_client_config *config, struct kv_extent_client **out, struct kv_error *err)
{
    struct kv_extent_client *c = *out = NULL;
    size_t n = strlen(config->url);
    if (n >= sizeof c->url || !is_url(config->url)) {
        kv_fail(err, KV_BAD_ARGUMENT, "tiers.remote.url", "tiers.remote.url wants http://HOST:PORT or https://HOST:PORT, not '%.120s'", config->url);
        kv_hint(err, "it is the address of a kvasird with extents.serve; the token goes into tiers.remote.token_file");
        return KV_BAD_ARGUMENT;
    }
    if (strlen(config->ca_file) >= sizeof c->ca_file) return kv_fail(err, KV_BAD_ARGUMENT, "tiers.remote.ca_file", "the path is too long");
    c = calloc(1, sizeof *c);
    if (!c) return kv_fail(err, KV_OUT_OF_MEMORY, "tiers.remote", "no memory for the remote tier");
    pthread_mutex_init(&c->lock, NULL);
    memcpy(c->url, config->url, n);
    while (n && c->url[n - 1] == '/') c->url[--n] = 0;
    snprintf(c->ca_file, sizeof c->ca_file, "%s", config->ca_file);
    c->timeout_ms = config->timeout_ms;
    c->io = (struct kv_remote_io){c, put, get, has, erase, facts};
    enum kv_status s = *config->ca_file ? check_authorities(config->ca_file, err) : KV_OK;
    if (s == KV_OK) s = read_token(c, config->token_file, err);
    if (s == KV_OK) *out = c;
    else kv_extent_client_destroy(c);
    return s;
}

void kv_extent_client_destroy(struct kv_extent_client *c)
{
    if (!c) return;
    for (int i = 0; i < IDLE; i++)
        if (c->idle[i]) curl_easy_cleanup(c->idle[i]);
    curl_slist_free_all(c->headers);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

const struct kv_remote_io *kv_extent_client_io(const struct kv_extent_client *c)
{
    return &c->io;
}
