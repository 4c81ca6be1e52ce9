/* api_faults.c — the failure lab over HTTP: faults listed, armed, disarmed, run. */
#include "controller/fault_lab.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STRIKES = 1000000 };

static json_t *scope_json(const struct kv_fault_scope *s)
{
    json_t *o = json_object();
    char id[24];
    if (s->candidate) {
        kv_rollout_id_format(s->candidate, id);
        json_object_set_new(o, "rollout", json_string(id));
    }
    if (*s->tenant) json_object_set_new(o, "tenant", kv_text_json(s->tenant, strlen(s->tenant)));
    if (*s->session) json_object_set_new(o, "session", kv_text_json(s->session, strlen(s->session)));
    return o;
}

static json_t *outcome_json(const struct kv_fault_outcome *o)
{
    json_t *checks = json_array();
    if (!o->at_us) return json_decref(checks), json_null();
    for (int32_t i = 0; i < o->n_checks; i++)
        json_array_append_new(checks, json_pack("{s:s, s:b, s:o}", "what", o->check[i].what, "pass", (int)o->check[i].pass, "detail", kv_text_json(o->check[i].detail, strlen(o->check[i].detail))));
    return json_pack("{s:o, s:b, s:o}", "at", kv_time_json(o->at_us), "pass", (int)o->pass, "checks", checks);
}

static json_t *fault_json(struct kv_app *app, enum kv_fault k)
{
    const struct kv_fault_info *i = kv_fault_info(k);
    struct kv_fault_view v = {0};
    struct kv_fault_outcome last = {0};
    if (app->fault_lab) kv_faults_view(kv_fault_lab_faults(app->fault_lab), k, &v), kv_fault_lab_last(app->fault_lab, k, &last);
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:I, s:o, s:o, s:o}", "name", i->name, "class", kv_fault_site_name(i->site), "expects", kv_status_name(i->reason), "action", i->action, "meaning",
                          i->meaning, "armed", (int)v.armed, "hits", (json_int_t)v.hits, "left", v.armed && v.left != KV_FAULT_EVERY ? json_integer(v.left) : json_null(), "scope",
                          v.armed ? scope_json(&v.scope) : json_null(), "last", outcome_json(&last));
    json_object_set_new(o, "outcome", json_string(!last.at_us ? "-" : last.pass ? "PASS" : "FAIL"));
    return o;
}

json_t *kv_api_armed_faults_json(struct kv_app *app)
{
    json_t *list = json_array();
    for (int k = 0; app->fault_lab && k < KV_FAULTS; k++) {
        struct kv_fault_view v;
        kv_faults_view(kv_fault_lab_faults(app->fault_lab), (enum kv_fault)k, &v);
        if (v.armed) json_array_append_new(list, json_pack("{s:s, s:o, s:I}", "name", kv_fault_info((enum kv_fault)k)->name, "scope", scope_json(&v.scope), "hits", (json_int_t)v.hits));
    }
    return list;
}

KV_HANDLER(kv_api_faults)
{
    struct kv_app *app = r->app;
    json_t *list = json_array();
    for (int k = 0; k < KV_FAULTS; k++) json_array_append_new(list, fault_json(app, (enum kv_fault)k));
    return kv_http_reply_json(r, 200, json_pack("{s:b, s:o}", "enabled", app->fault_lab != NULL, "faults", list), err);
}

static enum kv_status named(struct kv_http_request *r, enum kv_fault *k, struct kv_error *err)
{
    struct kv_app *app = r->app;
    *k = kv_fault_from_name(r->part[0]);
    if (*k == KV_FAULTS) {
        kv_fail(err, KV_NOT_FOUND, "fault", "no fault is named '%s'", r->part[0]);
        kv_hint(err, "GET /api/v1/faults lists them");
        return KV_NOT_FOUND;
    }
    if (app->fault_lab) return KV_OK;
    kv_fail(err, KV_UNSUPPORTED, "faults.enabled", "this kvasird injects no faults");
    kv_hint(err, "start it with faults.enabled=true; leave that off where nobody is to break anything");
    return KV_UNSUPPORTED;
}

static enum kv_status read_name(json_t *o, const char *field, char out[64], struct kv_error *err)
{
    json_t *v = json_object_get(o, field);
    size_t n = json_string_length(v);
    if (!v) return KV_OK;
    if (!json_is_string(v) || n == 0 || n > 63 || strlen(json_string_value(v)) != n) return kv_fail(err, KV_BAD_ARGUMENT, field, "%s must be a name of 1 to 63 bytes", field);
    memcpy(out, json_string_value(v), n + 1);
    return KV_OK;
}

/* Canary traffic, which is a live rollout's that serves; or a tenant that was named. Never anybody else. */
static enum kv_status read_rollout(struct kv_app *app, json_t *o, uint64_t *id, struct kv_error *err)
{
    json_t *v = json_object_get(o, "rollout");
    if (!v) return KV_OK;
    if (!json_is_string(v) || !kv_rollout_id_parse(json_string_value(v), id)) return kv_fail(err, KV_BAD_ARGUMENT, "rollout", "rollout ids look like r_000003");
    struct kv_status_view *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "rollout", "no memory for the answer");
    kv_control_status(app->control, s);
    bool serves = s->rollout == *id && s->fraction > 0 && !s->latched;
    free(s);
    if (serves) return KV_OK;
    kv_fail(err, KV_CONFLICT, "rollout", "%s serves nobody now", json_string_value(v));
    kv_hint(err, "name the live rollout once it is at CANARY, RAMP or FULL, or name a tenant");
    return KV_CONFLICT;
}

static enum kv_status read_scope(struct kv_app *app, enum kv_fault k, json_t *body, struct kv_fault_scope *s, uint32_t *count, struct kv_error *err)
{
    json_t *scope = json_object_get(body, "scope"), *n = json_object_get(body, "count"), *v;
    const char *name;
    json_object_foreach(body, name, v)
        if (strcmp(name, "scope") && strcmp(name, "count")) return kv_fail(err, KV_UNKNOWN_KEY, name, "no field of this request is named '%.60s'", name);
    json_object_foreach(scope, name, v)
        if (strcmp(name, "rollout") && strcmp(name, "tenant") && strcmp(name, "session")) return kv_fail(err, KV_UNKNOWN_KEY, name, "no field of a scope is named '%.60s'", name);
    if (scope && !json_is_object(scope)) return kv_fail(err, KV_BAD_ARGUMENT, "scope", "scope must be an object with rollout, or tenant and perhaps session");
    if (n && !(json_is_integer(n) && json_integer_value(n) >= 1 && json_integer_value(n) <= MOST_STRIKES))
        return kv_fail(err, KV_BAD_ARGUMENT, "count", "count is a whole number from 1 to %d", MOST_STRIKES);
    *count = n ? (uint32_t)json_integer_value(n) : 1;
    enum kv_status st = read_rollout(app, scope, &s->candidate, err);
    if (!st) st = read_name(scope, "tenant", s->tenant, err);
    if (!st) st = read_name(scope, "session", s->session, err);
    if (!st && *s->session && !*s->tenant) {
        st = kv_fail(err, KV_BAD_ARGUMENT, "tenant", "sessions belong to tenants: name the tenant of session '%s'", s->session);
        kv_hint(err, "kvasir sessions shows it");
    }
    if (!st && *s->session && kv_fault_info(k)->site == KV_FAULT_POLICY) st = kv_fail(err, KV_BAD_ARGUMENT, "session", "admission knows no sessions: name the tenant or the rollout alone");
    return st;
}

KV_HANDLER(kv_api_fault_arm)
{
    struct kv_app *app = r->app;
    enum kv_fault k;
    struct kv_fault_scope scope = {0};
    uint32_t count = 0;
    enum kv_status st = named(r, &k, err);
    if (!st) st = read_scope(app, k, r->json, &scope, &count, err);
    if (!st) st = kv_faults_arm(kv_fault_lab_faults(app->fault_lab), k, count, &scope, err);
    if (st) return st;
    kv_events_log(KV_LOG_WARN, "fault %s was armed by %s", kv_fault_info(k)->name, r->who.name);
    return kv_http_reply_json(r, 200, fault_json(app, k), err);
}

KV_HANDLER(kv_api_fault_disarm)
{
    struct kv_app *app = r->app;
    enum kv_fault k;
    enum kv_status st = named(r, &k, err);
    if (st) return st;
    bool was = kv_faults_disarm(kv_fault_lab_faults(app->fault_lab), k);
    json_t *o = fault_json(app, k);
    json_object_set_new(o, "was_armed", json_boolean(was));
    return kv_http_reply_json(r, 200, o, err);
}

KV_HANDLER(kv_api_fault_run)
{
    struct kv_app *app = r->app;
    enum kv_fault k;
    enum kv_status st = named(r, &k, err);
    struct kv_fault_outcome *o = st ? NULL : calloc(1, sizeof *o);
    if (!st && !o) st = kv_fail(err, KV_OUT_OF_MEMORY, "fault", "no memory for the run");
    if (!st) st = kv_fault_lab_run(app, k, o, err);
    free(o);
    return st ? st : kv_http_reply_json(r, 200, fault_json(app, k), err);
}
