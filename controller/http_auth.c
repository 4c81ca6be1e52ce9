/* http_auth.c — tokens are compared by their SHA-256, every one of them each time, so that time tells nothing. */
#include "controller/http_auth.h"

#include "runtime/kvasir.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct token {
    uint8_t sha256[32];
    struct kv_identity who;
};

struct kv_http_auth {
    pthread_rwlock_t lock; /* guards what SIGHUP may change */
    struct token *tokens;
    size_t n_tokens;
    json_t *hosts, *origins;
    char host[256];
    bool local, tls;
};

static const struct { const char *name; enum kv_right right; unsigned implied; } right_rows[] = {
    {"viewer", KV_RIGHT_VIEWER, KV_RIGHT_VIEWER},
    {"operator", KV_RIGHT_OPERATOR, KV_RIGHT_VIEWER | KV_RIGHT_OPERATOR},
    {"approver", KV_RIGHT_APPROVER, KV_RIGHT_VIEWER | KV_RIGHT_APPROVER},
    {"admin", KV_RIGHT_ADMIN, KV_RIGHT_VIEWER | KV_RIGHT_OPERATOR | KV_RIGHT_APPROVER | KV_RIGHT_ADMIN | KV_RIGHT_INFER},
    {"infer", KV_RIGHT_INFER, KV_RIGHT_INFER},
};
enum { N_RIGHTS = sizeof right_rows / sizeof *right_rows };

enum kv_right kv_right_from_name(const char *name)
{
    for (size_t i = 0; i < N_RIGHTS; i++)
        if (!strcmp(right_rows[i].name, name)) return right_rows[i].right;
    return KV_RIGHT_NONE;
}

const char *kv_right_name(enum kv_right r)
{
    for (size_t i = 0; i < N_RIGHTS; i++)
        if (right_rows[i].right == r) return right_rows[i].name;
    return "none";
}

static int hex_digit(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static bool loopback_name(const char *host)
{
    return !strcasecmp(host, "localhost") || !strcmp(host, "127.0.0.1") || !strcmp(host, "::1") || !strcmp(host, "[::1]");
}

enum kv_status kv_http_auth_reload(struct kv_http_auth *a, const struct kv_config *c, struct kv_error *err)
{
    size_t n = json_array_size(c->auth_tokens), i, k;
    struct token *tokens = calloc(n ? n : 1, sizeof *tokens);
    if (!tokens) return kv_fail(err, KV_OUT_OF_MEMORY, "auth.tokens", "no memory for %zu tokens", n);
    json_t *t, *right;
    json_array_foreach(c->auth_tokens, i, t) {
        struct token *to = &tokens[i];
        const char *hex = json_string_value(json_object_get(t, "sha256")), *tenant = json_string_value(json_object_get(t, "tenant"));
        for (size_t b = 0; b < 32; b++) to->sha256[b] = (uint8_t)(hex_digit(hex[2 * b]) << 4 | hex_digit(hex[2 * b + 1]));
        snprintf(to->who.name, sizeof to->who.name, "%s", json_string_value(json_object_get(t, "name")));
        snprintf(to->who.tenant, sizeof to->who.tenant, "%s", tenant ? tenant : to->who.name);
        json_array_foreach(json_object_get(t, "rights"), k, right) {
            for (size_t r = 0; r < N_RIGHTS; r++)
                if (!strcmp(right_rows[r].name, json_string_value(right))) to->who.rights |= right_rows[r].implied;
        }
    }
    pthread_rwlock_wrlock(&a->lock);
    free(a->tokens);
    json_decref(a->hosts);
    json_decref(a->origins);
    a->tokens = tokens;
    a->n_tokens = n;
    a->hosts = json_incref(c->allowed_hosts);
    a->origins = json_incref(c->allowed_origins);
    pthread_rwlock_unlock(&a->lock);
    return KV_OK;
}

enum kv_status kv_http_auth_create(const struct kv_config *c, const char *host, bool tls, struct kv_http_auth **out, struct kv_error *err)
{
    bool local = !strcmp(c->auth_mode, "local");
    if (local && !loopback_name(host)) {
        enum kv_status st = kv_fail(err, KV_BAD_ARGUMENT, "auth.mode", "auth.mode=local serves loopback only, and listen is %s", host);
        kv_hint(err, "set auth.mode=token and auth.tokens, or listen on 127.0.0.1");
        return st;
    }
    struct kv_http_auth *a = calloc(1, sizeof *a);
    if (!a) return kv_fail(err, KV_OUT_OF_MEMORY, "http", "no memory for the server");
    pthread_rwlock_init(&a->lock, NULL);
    a->local = local;
    a->tls = tls;
    snprintf(a->host, sizeof a->host, "%s", host);
    enum kv_status st = kv_http_auth_reload(a, c, err);
    if (st) {
        kv_http_auth_free(a);
        a = NULL;
    }
    *out = a;
    return st;
}

void kv_http_auth_free(struct kv_http_auth *a)
{
    if (!a) return;
    free(a->tokens);
    json_decref(a->hosts);
    json_decref(a->origins);
    pthread_rwlock_destroy(&a->lock);
    free(a);
}

static bool listed(json_t *list, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        if (!strcasecmp(json_string_value(v), name)) return true;
    }
    return false;
}

/* The name in a Host header, without its port. */
static void host_name(const char *header, char *out, size_t cap)
{
    const char *end = *header == '[' ? strchr(header, ']') : NULL;
    size_t n = end ? (size_t)(end - header) + 1 : strcspn(header, ":");
    snprintf(out, cap, "%.*s", (int)(n < cap ? n : cap - 1), header);
}

static bool host_allowed(const struct kv_http_auth *a, const char *header)
{
    char name[256];
    if (!header) return false;
    host_name(header, name, sizeof name);
    return loopback_name(name) || !strcasecmp(name, a->host) || listed(a->hosts, name);
}

bool kv_http_auth_origin_allowed(struct kv_http_auth *a, const char *origin)
{
    pthread_rwlock_rdlock(&a->lock);
    bool ok = listed(a->origins, origin);
    pthread_rwlock_unlock(&a->lock);
    return ok;
}

/* A browser names the page's origin on every write; other programs send none. */
static bool origin_allowed(const struct kv_http_auth *a, const struct kv_http_claims *cl)
{
    char own[300];
    if (!cl->origin) return !cl->fetch_site || !strcmp(cl->fetch_site, "same-origin") || !strcmp(cl->fetch_site, "none");
    snprintf(own, sizeof own, "%s://%s", a->tls ? "https" : "http", cl->host ? cl->host : "");
    return !strcasecmp(own, cl->origin) || listed(a->origins, cl->origin);
}

static void find_token(const struct kv_http_auth *a, const char *secret, struct kv_identity *who)
{
    uint8_t digest[32];
    kv_sha256(secret, strlen(secret), digest);
    for (size_t i = 0; i < a->n_tokens; i++) {
        unsigned differ = 0;
        for (size_t b = 0; b < sizeof digest; b++) differ |= digest[b] ^ a->tokens[i].sha256[b];
        if (!differ) *who = a->tokens[i].who;
    }
}

enum kv_status kv_http_auth_check(struct kv_http_auth *a, const struct kv_http_claims *cl, struct kv_identity *who, struct kv_error *err)
{
    enum kv_status st = KV_OK;
    memset(who, 0, sizeof *who);
    pthread_rwlock_rdlock(&a->lock);
    /* Without tokens a foreign page could reach loopback by rebinding its name; with them it lacks the token. */
    if (a->local && !host_allowed(a, cl->host)) {
        st = kv_fail(err, KV_FORBIDDEN, "Host", "this server does not answer to the name '%.80s'", cl->host ? cl->host : "");
        kv_hint(err, "use 127.0.0.1 or localhost, or add the name to http.allowed_hosts");
    } else if (cl->writes && !origin_allowed(a, cl)) {
        st = kv_fail(err, KV_FORBIDDEN, "Origin", "a page of another origin (%.80s) may not write here", cl->origin ? cl->origin : "unnamed");
        kv_hint(err, "add the origin to http.allowed_origins if it is yours");
    } else {
        if (cl->authorization && !strncasecmp(cl->authorization, "Bearer ", 7)) find_token(a, cl->authorization + 7, who);
        if (!who->rights && a->local)
            *who = (struct kv_identity){.rights = KV_RIGHT_VIEWER | KV_RIGHT_OPERATOR | KV_RIGHT_INFER, .name = "local", .tenant = "local"};
    }
    pthread_rwlock_unlock(&a->lock);
    return st;
}
