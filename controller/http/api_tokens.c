/* api_tokens.c — access tokens over HTTP, for administrators: listed, made, revoked. A secret is told once. */
#include "controller/http/api.h"

#include <stdlib.h>
#include <string.h>

enum kv_status kv_api_issue_tokens(struct kv_app *app, struct kv_error *err)
{
    int32_t n = KV_MAX_TOKENS;
    size_t m = 0;
    struct kv_stored_token *t = calloc(KV_MAX_TOKENS, sizeof *t);
    struct kv_issued_token *out = calloc(KV_MAX_TOKENS, sizeof *out);
    enum kv_status st = t && out ? kv_store_tokens(app->store, kv_realtime_us(), t, &n, err) : kv_fail(err, KV_OUT_OF_MEMORY, "tokens", "no memory for the tokens");
    for (int32_t i = 0; !st && i < n; i++) {
        if (t[i].revoked_us) continue;
        struct kv_issued_token *o = &out[m++];
        memcpy(o->sha256, t[i].sha256, 32);
        memcpy(o->name, t[i].name, sizeof o->name);
        memcpy(o->tenant, *t[i].tenant ? t[i].tenant : t[i].name, sizeof o->tenant);
        o->rights = kv_rights_parse(t[i].rights);
        o->expires_us = t[i].expires_us;
    }
    if (!st) st = kv_http_auth_issue(kv_http_get_auth(app->http), out, m, err);
    free(t);
    free(out);
    return st;
}

static json_t *token_json(const struct kv_stored_token *t)
{
    int64_t now = kv_realtime_us();
    const char *state = t->revoked_us ? "revoked" : t->expires_us && t->expires_us <= now ? "expired" : "in force";
    return json_pack("{s:o, s:o, s:s, s:s, s:o, s:o, s:o, s:o}", "name", kv_text_json(t->name, strlen(t->name)), "tenant", kv_text_json(t->tenant, strlen(t->tenant)), "rights", t->rights,
                     "state", state, "created_at", kv_time_json(t->created_us), "expires_at", t->expires_us ? kv_time_json(t->expires_us) : json_null(), "revoked_at",
                     t->revoked_us ? kv_time_json(t->revoked_us) : json_null(), "creator", kv_text_json(t->creator, strlen(t->creator)));
}

KV_HANDLER(kv_api_tokens)
{
    int32_t n = KV_MAX_TOKENS;
    struct kv_stored_token *t = calloc(KV_MAX_TOKENS, sizeof *t);
    enum kv_status st = t ? kv_store_tokens(((struct kv_app *)r->app)->store, kv_realtime_us(), t, &n, err) : kv_fail(err, KV_OUT_OF_MEMORY, "tokens", "no memory for the tokens");
    json_t *list = json_array();
    for (int32_t i = 0; !st && i < n; i++) json_array_append_new(list, token_json(&t[i]));
    free(t);
    if (st) json_decref(list);
    return st ? st : kv_http_reply_json(r, 200, json_pack("{s:o}", "tokens", list), err);
}

KV_HANDLER(kv_api_token_create)
{
    struct kv_app *app = r->app;
    const char *name = json_string_value(json_object_get(r->json, "name")), *rights = json_string_value(json_object_get(r->json, "rights"));
    const char *tenant = json_string_value(json_object_get(r->json, "tenant"));
    json_t *days = json_object_get(r->json, "days");
    struct kv_stored_token t = {.created_us = kv_realtime_us()};
    char secret[64];
    if (!name || !*name || strlen(name) >= sizeof t.name) return kv_fail(err, KV_BAD_ARGUMENT, "name", "a token has a name of 1 to 63 bytes");
    if (!rights || strlen(rights) >= sizeof t.rights || !kv_rights_parse(rights)) return kv_fail(err, KV_BAD_ARGUMENT, "rights", "rights are of viewer, operator, approver, admin, infer, extents, separated by blanks");
    if (tenant && strlen(tenant) >= sizeof t.tenant) return kv_fail(err, KV_BAD_ARGUMENT, "tenant", "a tenant's name has at most 63 bytes");
    if (days && !(json_is_number(days) && json_number_value(days) > 0 && json_number_value(days) <= 36500)) return kv_fail(err, KV_BAD_ARGUMENT, "days", "days lie between 0 and 36500; leave them out for a token that does not expire");
    snprintf(t.name, sizeof t.name, "%s", name);
    snprintf(t.rights, sizeof t.rights, "%s", rights);
    snprintf(t.tenant, sizeof t.tenant, "%s", tenant ? tenant : name);
    snprintf(t.creator, sizeof t.creator, "operator:%.50s", r->who.name);
    if (days) t.expires_us = t.created_us + (int64_t)(json_number_value(days) * 86400e6);
    enum kv_status st = kv_token_make(&t, secret, err);
    if (!st) st = kv_store_put_token(app->store, &t, err);
    if (!st) st = kv_api_issue_tokens(app, err);
    if (st) return st;
    json_t *o = token_json(&t);
    json_object_set_new(o, "token", json_string(secret));
    return kv_http_reply_json(r, 201, o, err);
}

KV_HANDLER(kv_api_token_revoke)
{
    struct kv_app *app = r->app;
    char who[80];
    snprintf(who, sizeof who, "operator:%.60s", r->who.name);
    enum kv_status st = kv_store_revoke_token(app->store, r->part[0], who, kv_realtime_us(), err);
    if (!st) st = kv_api_issue_tokens(app, err);
    return st ? st : kv_http_reply_json(r, 200, json_pack("{s:s, s:s}", "name", r->part[0], "state", "revoked"), err);
}
