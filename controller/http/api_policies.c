/* api_policies.c — policies over HTTP: listed, read, checked, activated. */
#include "controller/http/api.h"
#include "controller/policy/policy_replay.h"

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
    if (kind == KV_POLICY_FALLBACK) json_object_set_new(o, "max_omitted_mass", json_real(kv_control_mass_limit(control)));
    free(source);
    return kv_http_reply_json(r, 200, o, err);
}

KV_HANDLER(kv_api_policy)
{
    enum kv_policy_kind kind;
    enum kv_status st = kind_named(r->part[0], &kind, err);
    return st ? st : reply_policy(r, kind, true, err);
}

/* As activation would judge it. */
static enum kv_status check(struct kv_control *control, enum kv_policy_kind kind, const char *source, size_t n, json_t **out, struct kv_error *err)
{
    struct kv_script *p = NULL;
    enum kv_status st = kv_policy_load(kind, source, n, &p, err);
    struct kv_fallback_table t;
    if (!st) st = kv_policy_check(p, err);
    if (!st && kind == KV_POLICY_FALLBACK) st = kv_policy_fallback_table(p, kv_control_mass_limit(control), &t, err);
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
    if (!st) st = check(((struct kv_app *)r->app)->control, kind, source, n, &o, err);
    return st ? st : kv_http_reply_json(r, 200, o, err);
}

/* ---------------------------------------------------------------- versions and their lives */

static json_t *version_json(const struct kv_policy_version *v)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:s, s:o, s:o, s:b, s:I}", "kind", kv_policy_kind_name(v->kind), "version", v->version, "name", v->name, "state",
                     kv_policy_state_name(v->state), "at", kv_time_json(v->state_us), "author", v->author, "actor", v->actor, "detail", kv_text_json(v->detail, strlen(v->detail)),
                     "created_at", kv_time_json(v->created_us), "was_active", (int)v->was_active, "receipt", (json_int_t)v->receipt);
}

KV_HANDLER(kv_api_policy_versions)
{
    enum { MOST = 100 };
    enum kv_policy_kind kind;
    int32_t n = MOST;
    enum kv_status st = kind_named(r->part[0], &kind, err);
    if (st) return st;
    struct kv_policy_version *v = calloc(MOST, sizeof *v);
    st = v ? kv_store_policy_versions(((struct kv_app *)r->app)->store, kind, v, &n, err) : kv_fail(err, KV_OUT_OF_MEMORY, "policies", "no memory for the answer");
    json_t *list = json_array();
    for (int32_t i = 0; i < n && !st; i++) json_array_append_new(list, version_json(&v[i]));
    free(v);
    if (st) json_decref(list);
    return st ? st : kv_http_reply_json(r, 200, json_pack("{s:o}", "versions", list), err);
}

static enum kv_status reply_version(struct kv_http_request *r, enum kv_policy_kind kind, const char *version, bool with_source, int status, struct kv_error *err)
{
    struct kv_policy_version v;
    char *source = NULL;
    size_t n = 0;
    enum kv_status st = kv_store_policy_version(((struct kv_app *)r->app)->store, kind, version, &v, with_source ? &source : NULL, &n, err);
    if (st) return st;
    json_t *o = version_json(&v);
    if (with_source) json_object_set_new(o, "source", kv_text_json(source, n));
    free(source);
    return kv_http_reply_json(r, status, o, err);
}

KV_HANDLER(kv_api_policy_version)
{
    enum kv_policy_kind kind;
    enum kv_status st = kind_named(r->part[0], &kind, err);
    return st ? st : reply_version(r, kind, r->part[1], true, 200, err);
}

static enum kv_status run_replay(struct kv_app *app, enum kv_policy_kind kind, const char *version, const char *who, struct kv_replay *p, struct kv_error *err)
{
    char what[96];
    snprintf(what, sizeof what, "%s policy %.12s", kv_policy_kind_name(kind), version);
    p->job = kv_job_begin(&app->progress, KV_JOB_REPLAY, what, "decisions");
    enum kv_status st = kv_control_policy_replay(app->control, kind, version, who, p, err);
    kv_job_end(p->job);
    return st;
}

static enum kv_status reply_replay(struct kv_http_request *r, enum kv_policy_kind kind, const char *version, const char *who, struct kv_error *err)
{
    struct kv_app *app = r->app;
    struct kv_policy_version v;
    struct kv_replay *p = calloc(1, sizeof *p);
    enum kv_status st = p ? run_replay(app, kind, version, who, p, err) : kv_fail(err, KV_OUT_OF_MEMORY, "replay", "no memory for the answer");
    if (!st) st = kv_store_policy_version(app->store, kind, version, &v, NULL, NULL, err);
    json_t *list = json_array();
    for (int32_t i = 0; !st && i < p->n_changes; i++)
        json_array_append_new(list, json_pack("{s:o, s:s, s:s, s:o}", "receipt", p->change[i].receipt ? json_integer((json_int_t)p->change[i].receipt) : json_null(), "was", p->change[i].was,
                                              "now", p->change[i].now, "where", kv_text_json(p->change[i].where, strlen(p->change[i].where))));
    json_t *o = st ? NULL : json_pack("{s:o, s:I, s:I, s:I, s:I, s:O}", "version", version_json(&v), "asked", (json_int_t)p->asked, "changed", (json_int_t)p->changed, "faults", (json_int_t)p->faults,
                                      "unreadable", (json_int_t)p->unreadable, "changes", list);
    json_decref(list);
    free(p);
    return st ? st : kv_http_reply_json(r, 200, o, err);
}

static enum kv_status submit(struct kv_http_request *r, enum kv_policy_kind kind, const char *who, struct kv_error *err)
{
    const char *source;
    size_t n;
    struct kv_policy_version v;
    enum kv_status st = source_of(r, &source, &n, err);
    if (!st) st = kv_control_policy_submit(((struct kv_app *)r->app)->control, kind, source, n, who, &v, err);
    return st ? st : kv_http_reply_json(r, 201, version_json(&v), err);
}

static bool may_approve(const struct kv_http_request *r)
{
    bool two = kv_http_auth_two_users(kv_http_get_auth(r->server));
    return r->who.rights & (two ? KV_RIGHT_APPROVER : KV_RIGHT_APPROVER | KV_RIGHT_OPERATOR);
}

/* A source given to activate goes the whole way at once; where two users exist somebody has to approve it first. */
static enum kv_status activate_source(struct kv_http_request *r, enum kv_policy_kind kind, const char *replaces, const char *who, struct kv_error *err)
{
    struct kv_control *control = ((struct kv_app *)r->app)->control;
    const char *source;
    size_t n;
    struct kv_policy_version v;
    enum kv_status st = source_of(r, &source, &n, err);
    if (!st && kv_http_auth_two_users(kv_http_get_auth(r->server))) {
        st = kv_fail(err, KV_FORBIDDEN, "source", "where two users exist, a policy is approved before it is activated");
        kv_hint(err, "kvasir policy submit, check, replay; another user approves; then activate its version");
    }
    if (!st) st = kv_control_policy_submit(control, kind, source, n, who, &v, err);
    if (!st && v.state == KV_POLICY_DRAFT) {
        st = kv_control_policy_check(control, kind, v.version, who, err);
        if (!st) v.state = KV_POLICY_CHECKED;
    }
    struct kv_replay *p = !st && v.state == KV_POLICY_CHECKED ? calloc(1, sizeof *p) : NULL;
    if (p) {
        st = run_replay(r->app, kind, v.version, who, p, err);
        v.state = KV_POLICY_REPLAYED;
    }
    free(p);
    if (!st && v.state == KV_POLICY_REPLAYED) st = kv_control_policy_approve(control, kind, v.version, "", who, err);
    if (!st && v.state != KV_POLICY_ACTIVE) st = kv_control_policy_switch(control, kind, v.version, replaces, false, who, err);
    return st ? st : reply_policy(r, kind, false, err);
}

KV_HANDLER(kv_api_policy_verb)
{
    struct kv_control *control = ((struct kv_app *)r->app)->control;
    enum kv_policy_kind kind;
    const char *verb = r->part[1], *version = json_string_value(json_object_get(r->json, "version")), *reason = json_string_value(json_object_get(r->json, "reason"));
    const char *replaces = kv_http_header(r, "If-Match");
    char who[80], base[80] = "";
    snprintf(who, sizeof who, "operator:%s", r->who.name);
    if (replaces) snprintf(base, sizeof base, "%.*s", (int)strcspn(replaces + (*replaces == '"'), "\""), replaces + (*replaces == '"'));
    if (replaces) replaces = base;
    bool approve = !strcmp(verb, "approve"), switches = !strcmp(verb, "activate") || !strcmp(verb, "revert");
    enum kv_status st = kind_named(r->part[0], &kind, err);
    if (!st && (approve ? !may_approve(r) : !(r->who.rights & KV_RIGHT_OPERATOR)))
        st = kv_fail(err, KV_FORBIDDEN, "Authorization", "'%s' lacks the right '%s'", r->who.name, approve ? "approver" : "operator");
    if (!st && switches && !replaces) {
        st = kv_fail(err, KV_VERSION_CONFLICT, "If-Match", "this switch does not say which version it replaces");
        kv_hint(err, "send If-Match with the version that is active, or * for whichever it is");
    }
    if (st) return st;
    if (replaces && !strcmp(replaces, "*")) replaces = NULL;
    if (!strcmp(verb, "submit")) return submit(r, kind, who, err);
    if (!strcmp(verb, "activate") && !version) return activate_source(r, kind, replaces, who, err);
    if (!version && strcmp(verb, "revert")) return kv_fail(err, KV_BAD_ARGUMENT, "version", "%.20s needs the version it is about", verb);
    if (!strcmp(verb, "replay")) return reply_replay(r, kind, version, who, err);
    if (!strcmp(verb, "check")) st = kv_control_policy_check(control, kind, version, who, err);
    else if (approve) st = kv_control_policy_approve(control, kind, version, reason, who, err);
    else if (switches) st = kv_control_policy_switch(control, kind, version, replaces, *verb == 'r', who, err);
    else st = kv_fail(err, KV_NOT_FOUND, "verb", "no policy verb is named '%.40s'", verb);
    if (st) return st;
    return version ? reply_version(r, kind, version, false, 200, err) : reply_policy(r, kind, false, err);
}
