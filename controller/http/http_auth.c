/* http_auth.c — tokens are compared by their SHA-256, every one of them each time, so that time tells nothing. */
#include "controller/http/http_auth.h"

#include "controller/http/events.h"
#include "controller/store/store.h"
#include "runtime/kvasir.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct token {
    uint8_t sha256[32];
    struct kv_identity who;
};

enum { BUCKETS = 512, FAILURES_A_MINUTE = 100 };
struct bucket { /* of one caller; the one unused for longest gives way */
    char who[64];
    double left, failures;
    int64_t at_us;
};

struct kv_http_auth {
    pthread_mutex_t rate_lock;
    struct bucket bucket[BUCKETS];
    double per_second;
    struct kv_issued_token *issued;
    size_t n_issued;
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
    {"extents", KV_RIGHT_EXTENTS, KV_RIGHT_EXTENTS}, /* of other daemons: no person has it by being admin */
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
        if (right_rows[i].right & r) return right_rows[i].name; /* the least of several */
    return "none";
}

unsigned kv_rights_parse(const char *names)
{
    unsigned rights = 0;
    char word[16];
    for (int used; sscanf(names, " %15s%n", word, &used) == 1; names += used) {
        size_t r = 0;
        while (r < N_RIGHTS && strcmp(right_rows[r].name, word)) r++;
        if (r == N_RIGHTS) return 0;
        rights |= right_rows[r].implied;
    }
    return rights;
}

static bool in_force(const struct kv_issued_token *t, int64_t now_us)
{
    return !t->expires_us || t->expires_us > now_us;
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
    a->per_second = c->requests_per_second;
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
    pthread_mutex_init(&a->rate_lock, NULL);
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
    free(a->issued);
    json_decref(a->hosts);
    json_decref(a->origins);
    pthread_rwlock_destroy(&a->lock);
    pthread_mutex_destroy(&a->rate_lock);
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
    int64_t now = kv_realtime_us();
    for (size_t i = 0; i < a->n_issued; i++) {
        const struct kv_issued_token *t = &a->issued[i];
        unsigned differ = 0;
        for (size_t b = 0; b < sizeof digest; b++) differ |= digest[b] ^ t->sha256[b];
        if (differ || !in_force(t, now)) continue;
        memset(who, 0, sizeof *who);
        who->rights = t->rights;
        memcpy(who->name, t->name, sizeof who->name);
        memcpy(who->tenant, t->tenant, sizeof who->tenant);
    }
}

enum kv_status kv_http_auth_issue(struct kv_http_auth *a, const struct kv_issued_token *t, size_t n, struct kv_error *err)
{
    struct kv_issued_token *copy = calloc(n ? n : 1, sizeof *copy);
    if (!copy) return kv_fail(err, KV_OUT_OF_MEMORY, "tokens", "no memory for %zu tokens", n);
    if (n) memcpy(copy, t, n * sizeof *t);
    pthread_rwlock_wrlock(&a->lock);
    free(a->issued);
    a->issued = copy;
    a->n_issued = n;
    pthread_rwlock_unlock(&a->lock);
    return KV_OK;
}

struct users { /* who may write, by name: one person may hold several tokens */
    const char *first;
    bool two, approver;
};

static void meet(struct users *u, const char *name, unsigned rights)
{
    if (!(rights & (KV_RIGHT_OPERATOR | KV_RIGHT_APPROVER | KV_RIGHT_ADMIN))) return;
    if (!u->first) u->first = name;
    u->two |= strcmp(u->first, name) != 0;
    u->approver |= (rights & KV_RIGHT_APPROVER) != 0;
}

bool kv_http_auth_two_users(struct kv_http_auth *a)
{
    struct users u = {0};
    int64_t now = kv_realtime_us();
    pthread_rwlock_rdlock(&a->lock);
    for (size_t i = 0; i < a->n_tokens; i++) meet(&u, a->tokens[i].who.name, a->tokens[i].who.rights);
    for (size_t i = 0; i < a->n_issued; i++)
        if (in_force(&a->issued[i], now)) meet(&u, a->issued[i].name, a->issued[i].rights);
    if (a->local) meet(&u, "local", KV_RIGHT_OPERATOR); /* whoever sits at this machine */
    pthread_rwlock_unlock(&a->lock);
    return u.two && u.approver;
}

/* ---------------------------------------------------------------- how often */

static struct bucket *bucket_of(struct kv_http_auth *a, const char *who, int64_t now)
{
    struct bucket *oldest = &a->bucket[0];
    for (int i = 0; i < BUCKETS; i++) {
        struct bucket *b = &a->bucket[i];
        if (b->at_us && !strncmp(b->who, who, sizeof b->who - 1)) return b;
        if (b->at_us < oldest->at_us) oldest = b;
    }
    *oldest = (struct bucket){.at_us = now, .left = a->per_second};
    snprintf(oldest->who, sizeof oldest->who, "%s", who);
    return oldest;
}

enum kv_status kv_http_auth_rate(struct kv_http_auth *a, const struct kv_identity *who, const char *address, bool claimed, struct kv_error *err)
{
    int64_t now = kv_monotonic_us();
    bool failed = claimed && !who->rights;
    if (a->per_second <= 0 && !failed) return KV_OK;
    pthread_mutex_lock(&a->rate_lock);
    struct bucket *b = bucket_of(a, failed || !*who->name ? address : who->name, now);
    double seconds = (double)(now - b->at_us) / 1e6;
    b->at_us = now;
    b->left += seconds * a->per_second;
    if (b->left > a->per_second + 1) b->left = a->per_second + 1; /* a second's worth may come at once */
    b->failures = b->failures * (seconds < 60 ? 1 - seconds / 60 : 0) + failed;
    bool guessing = failed && b->failures > FAILURES_A_MINUTE, often = a->per_second > 0 && b->left < 1;
    if (!often) b->left -= 1;
    pthread_mutex_unlock(&a->rate_lock);
    if (!guessing && !often) return KV_OK;
    kv_fail(err, KV_RATE_LIMITED, guessing ? "Authorization" : "http.requests_per_second", guessing ? "too many invalid tokens from this address" : "more requests a second than this caller may make");
    kv_hint(err, guessing ? "wait a minute" : "slow down, or raise http.requests_per_second");
    return KV_RATE_LIMITED;
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
        const char *secret = cl->authorization && !strncasecmp(cl->authorization, "Bearer ", 7) ? cl->authorization + 7 : NULL;
        if (secret) find_token(a, secret, who);
        /* One that was made here and is not in force gives nothing; any other may be what a client that insists on a key was given for want of one. */
        bool ours = secret && !strncmp(secret, KV_TOKEN_PREFIX, sizeof KV_TOKEN_PREFIX - 1);
        if (!who->rights && a->local && !ours)
            *who = (struct kv_identity){.rights = KV_RIGHT_INFER | (secret ? 0 : KV_RIGHT_VIEWER | KV_RIGHT_OPERATOR), .name = "local", .tenant = "local"};
    }
    pthread_rwlock_unlock(&a->lock);
    return st;
}
