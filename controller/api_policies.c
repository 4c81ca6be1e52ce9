/* api_policies.c — policies over HTTP: listed, read, checked, activated. */
#include "controller/api.h"

#include <stdlib.h>
#include <string.h>

static json_t *policy_json(const struct kv_policy_view *v)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:I}", "kind", kv_policy_kind_name(v->kind), "name", v->name, "version", v->version, "state", "ACTIVE", "activated_at",
                     kv_time_json(v->activated_us), "faults", (json_int_t)v->faults);
}

static enum kv_status kind_named(const char *name, enum kv_policy_kind *kind, struct kv_error *err)
{
    if (name && kv_policy_kind_from_name(name, kind)) return KV_OK;
    return kv_fail(err, KV_NOT_FOUND, "kind", "no policy kind is named '%.40s'; they are admission, fallback and release", name ? name : "");
}

static enum kv_status source_of(const struct kv_http_request *r, const char **source, size_t *n, struct kv_error *err)
{
    json_t *v = json_object_get(r->json, "source");
    *source = json_string_value(v);
    *n = json_string_length(v);
    if (!*source) return kv_fail(err, KV_BAD_ARGUMENT, "source", "source must be given, as the policy's text");
    if (*n > KV_POLICY_SOURCE_BYTES) return kv_fail(err, KV_BODY_TOO_LARGE, "source", "a policy has at most %d bytes", KV_POLICY_SOURCE_BYTES);
    return KV_OK;
}

KV_HANDLER(kv_api_policies)
{
    struct kv_policy_view v[KV_POLICY_KINDS];
    json_t *list = json_array();
    kv_control_policies(((struct kv_app *)r->app)->control, v);
    for (int i = 0; i < KV_POLICY_KINDS; i++) json_array_append_new(list, policy_json(&v[i]));
    return kv_http_reply_json(r, 200, json_pack("{s:o}", "policies", list), err);
}

static enum kv_status reply_policy(struct kv_http_request *r, enum kv_policy_kind kind, bool with_source, struct kv_error *err)
{
    struct kv_control *control = ((struct kv_app *)r->app)->control;
    struct kv_policy_view v[KV_POLICY_KINDS];
    char *source = NULL;
    size_t n = 0;
    kv_control_policies(control, v);
    enum kv_status st = with_source ? kv_control_policy_source(control, kind, &source, &n) : KV_OK;
    if (st) return kv_fail(err, st, "policy", "the source of the %s policy cannot be had", kv_policy_kind_name(kind));
    json_t *o = policy_json(&v[kind]);
    if (with_source) json_object_set_new(o, "source", kv_text_json(source, n));
    free(source);
    return kv_http_reply_json(r, 200, o, err);
}

KV_HANDLER(kv_api_policy)
{
    enum kv_policy_kind kind;
    enum kv_status st = kind_named(r->part[0], &kind, err);
    return st ? st : reply_policy(r, kind, true, err);
}

/* As activation would load it: a fallback policy's whole table is evaluated. */
static enum kv_status check(enum kv_policy_kind kind, const char *source, size_t n, json_t **out, struct kv_error *err)
{
    struct kv_script *p = NULL;
    struct kv_fallback_table table;
    enum kv_status st = kv_policy_load(kind, source, n, &p, err);
    if (!st && kind == KV_POLICY_FALLBACK) st = kv_policy_fallback_table(p, 0.05, &table, err);
    if (!st) *out = json_pack("{s:b, s:s, s:s}", "ok", 1, "name", kv_policy_name(p), "version", kv_policy_version(p));
    kv_policy_free(p);
    return st;
}

KV_HANDLER(kv_api_policy_check)
{
    enum kv_policy_kind kind;
    const char *source;
    size_t n;
    json_t *o = NULL;
    enum kv_status st = kind_named(json_string_value(json_object_get(r->json, "kind")), &kind, err);
    if (!st) st = source_of(r, &source, &n, err);
    if (!st) st = check(kind, source, n, &o, err);
    return st ? st : kv_http_reply_json(r, 200, o, err);
}

KV_HANDLER(kv_api_policy_activate)
{
    enum kv_policy_kind kind;
    const char *source;
    size_t n;
    char who[80];
    snprintf(who, sizeof who, "operator:%s", r->who.name);
    enum kv_status st = kind_named(r->part[0], &kind, err);
    if (!st) st = source_of(r, &source, &n, err);
    if (!st) st = kv_control_activate(((struct kv_app *)r->app)->control, kind, source, n, who, err);
    return st ? st : reply_policy(r, kind, false, err);
}
