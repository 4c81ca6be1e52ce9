/* http_auth.h — who is asking: bearer tokens and their rights, Host and Origin checks. */
#ifndef KV_HTTP_AUTH_H
#define KV_HTTP_AUTH_H

#include "controller/config.h"

enum kv_right { KV_RIGHT_NONE = 0, KV_RIGHT_VIEWER = 1, KV_RIGHT_OPERATOR = 2, KV_RIGHT_APPROVER = 4, KV_RIGHT_ADMIN = 8, KV_RIGHT_INFER = 16, KV_RIGHT_EXTENTS = 32 };

struct kv_identity {
    unsigned rights; /* of enum kv_right */
    char name[64], tenant[64];
};

struct kv_http_auth; /* safe from any thread */

/* host: the address that is served, as written in `listen`. BAD_ARGUMENT when auth.mode=local would serve beyond loopback. */
enum kv_status kv_http_auth_create(const struct kv_config *c, const char *host, bool tls, struct kv_http_auth **out, struct kv_error *err);
void kv_http_auth_free(struct kv_http_auth *a);
/* Takes the reloadable settings of c. */
enum kv_status kv_http_auth_reload(struct kv_http_auth *a, const struct kv_config *c, struct kv_error *err);

/* Tokens kept in the store, beside those of the configuration. rights: names separated by blanks. Replaces those given before. */
struct kv_issued_token {
    uint8_t sha256[32];
    char name[64], tenant[64];
    unsigned rights;
    int64_t expires_us; /* CLOCK_REALTIME; 0: never */
};
enum kv_status kv_http_auth_issue(struct kv_http_auth *a, const struct kv_issued_token *t, size_t n, struct kv_error *err);
/* Right names separated by blanks to rights with what they imply; 0 when one is unknown. */
unsigned kv_rights_parse(const char *names);
/* RATE_LIMITED when this token, or without one this address, asked more often than http.requests_per_second allows, or failed to name a valid
 * token more than a hundred times within a minute. */
enum kv_status kv_http_auth_rate(struct kv_http_auth *a, const struct kv_identity *who, const char *address, bool claimed, struct kv_error *err);

/* authorization, host, origin, fetch_site: header values, NULL when absent. writes: the method changes something. */
struct kv_http_claims {
    const char *authorization, *host, *origin, *fetch_site;
    bool writes;
};
/* Fills who; FORBIDDEN for a foreign Host or Origin. A caller without a token gets rights 0 unless auth.mode=local. */
enum kv_status kv_http_auth_check(struct kv_http_auth *a, const struct kv_http_claims *claims, struct kv_identity *who, struct kv_error *err);
/* Whether a browser page of that origin may read answers (http.allowed_origins). */
bool kv_http_auth_origin_allowed(struct kv_http_auth *a, const char *origin);
/* Whether the tokens in force that may write bear two names or more, and one of them may approve: what one writes another can approve. */
bool kv_http_auth_two_users(struct kv_http_auth *a);
enum kv_right kv_right_from_name(const char *name);
const char *kv_right_name(enum kv_right r);

#endif
