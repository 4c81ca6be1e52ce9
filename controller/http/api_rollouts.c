/* api_rollouts.c — rollouts over HTTP: read, created, moved by the verbs of verbs.def. */
#include "controller/http/api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LISTED = 64 };

static void actor(const struct kv_http_request *r, char out[80])
{
    snprintf(out, 80, "operator:%s", r->who.name);
}

static enum kv_status rollout_part(const struct kv_http_request *r, uint64_t *id, struct kv_error *err)
{
    if (kv_rollout_id_parse(r->part[0], id)) return KV_OK;
    return kv_fail(err, KV_NOT_FOUND, "rollout", "no rollout is named '%s'; ids look like r_000003", r->part[0]);
}

/* *out is NULL unless it is found; else the caller frees it. */
static enum kv_status find_rollout(struct kv_http_request *r, uint64_t id, struct kv_rollout_view **out, struct kv_error *err)
{
    *out = calloc(1, sizeof **out);
    enum kv_status st = *out ? kv_control_rollout(((struct kv_app *)r->app)->control, id, *out, err) : kv_fail(err, KV_OUT_OF_MEMORY, "rollout", "no memory for the answer");
    if (!st) return KV_OK;
    free(*out);
    *out = NULL;
    return st;
}

static enum kv_status reply_rollout(struct kv_http_request *r, uint64_t id, int status, struct kv_error *err)
{
    struct kv_rollout_view *v;
    enum kv_status st = find_rollout(r, id, &v, err);
    if (!st) st = kv_http_reply_json(r, status, kv_api_rollout_json(v), err);
    free(v);
    return st;
}

KV_HANDLER(kv_api_rollouts_list)
{
    struct kv_rollout_view *v = calloc(MOST_LISTED, sizeof *v);
    int32_t n = MOST_LISTED;
    if (!v) return kv_fail(err, KV_OUT_OF_MEMORY, "rollouts", "no memory for the answer");
    kv_control_rollouts(((struct kv_app *)r->app)->control, v, &n);
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(list, kv_api_rollout_json(&v[i]));
    free(v);
    return kv_http_reply_json(r, 200, json_pack("{s:o}", "rollouts", list), err);
}

KV_HANDLER(kv_api_rollouts_show)
{
    uint64_t id;
    enum kv_status st = rollout_part(r, &id, err);
    return st ? st : reply_rollout(r, id, 200, err);
}

KV_HANDLER(kv_api_rollouts_history)
{
    enum { MOST = 1000 };
    uint64_t id;
    int32_t n = 0;
    struct kv_transition *t = calloc(MOST, sizeof *t);
    enum kv_status st = t ? rollout_part(r, &id, err) : kv_fail(err, KV_OUT_OF_MEMORY, "rollout", "no memory for the answer");
    if (!st) st = kv_store_transitions(((struct kv_app *)r->app)->store, id, t, MOST, &n, err);
    struct kv_rollout_view *none = NULL;
    if (!st && !n) st = find_rollout(r, id, &none, err); /* none yet, or no such rollout */
    free(none);
    json_t *list = json_array();
    for (int32_t i = 0; i < n && i < MOST; i++) json_array_append_new(list, kv_api_transition_json(&t[i]));
    free(t);
    if (st) json_decref(list);
    return st ? st : kv_http_reply_json(r, 200, json_pack("{s:o}", "transitions", list), err);
}

/* ---------------------------------------------------------------- create */

static enum kv_status unknown_field(const char *name, const char *where, struct kv_error *err)
{
    return kv_fail(err, KV_UNKNOWN_KEY, name, "%s has no field '%.60s'", where, name);
}

static enum kv_status take_names(json_t *list, const char *where, char (*out)[64], int32_t *n, struct kv_error *err)
{
    size_t i;
    json_t *v;
    if (!json_is_array(list) || json_array_size(list) > KV_COHORT_NAMES) return kv_fail(err, KV_BAD_ARGUMENT, where, "%s is a list of at most %d names", where, KV_COHORT_NAMES);
    json_array_foreach(list, i, v) {
        if (!json_is_string(v) || json_string_length(v) > 63) return kv_fail(err, KV_BAD_ARGUMENT, where, "%s holds names of at most 63 bytes", where);
        snprintf(out[i], 64, "%s", json_string_value(v));
    }
    *n = (int32_t)i;
    return KV_OK;
}

static enum kv_status take_headers(json_t *list, struct kv_cohort *c, struct kv_error *err)
{
    size_t i;
    json_t *v;
    if (!json_is_array(list) || json_array_size(list) > KV_COHORT_NAMES) return kv_fail(err, KV_BAD_ARGUMENT, "cohort.headers", "cohort.headers is a list of at most %d texts name=value", KV_COHORT_NAMES);
    json_array_foreach(list, i, v) {
        enum kv_status st = kv_cohort_header(json_is_string(v) ? json_string_value(v) : "", c->headers[i], err);
        if (st) return st;
    }
    c->n_headers = (int32_t)i;
    return KV_OK;
}

static enum kv_status take_params(json_t *o, struct kv_rollout_request *q, struct kv_error *err)
{
    const struct kv_pipeline *p = kv_pipeline_find(q->pipeline);
    const char *name;
    json_t *v;
    if (!p) {
        kv_fail(err, KV_UNKNOWN_PIPELINE, "pipeline", "no pipeline is named '%.60s'", q->pipeline);
        kv_hint(err, "kvasir pipelines lists them");
        return KV_UNKNOWN_PIPELINE;
    }
    kv_params_default(p, &q->params);
    if (o && !json_is_object(o)) return kv_fail(err, KV_BAD_ARGUMENT, "params", "params is an object of numbers");
    json_object_foreach(o, name, v) {
        if (!json_is_number(v) && !json_is_boolean(v)) return kv_fail(err, KV_BAD_ARGUMENT, name, "params.%.60s is not a number", name);
        enum kv_status st = kv_params_set(p, &q->params, name, json_is_boolean(v) ? json_is_true(v) : json_number_value(v), err);
        if (st) return st;
    }
    return KV_OK;
}

static enum kv_status take_cohort(json_t *o, struct kv_rollout_request *q, struct kv_error *err)
{
    const char *name;
    json_t *v;
    if (o && !json_is_object(o)) return kv_fail(err, KV_BAD_ARGUMENT, "cohort", "cohort is an object of tenants, classes and headers");
    json_object_foreach(o, name, v) {
        enum kv_status st = !strcmp(name, "tenants") ? take_names(v, "cohort.tenants", q->cohort.tenants, &q->cohort.n_tenants, err)
                          : !strcmp(name, "headers") ? take_headers(v, &q->cohort, err)
                          : !strcmp(name, "classes") ? take_names(v, "cohort.classes", q->cohort.classes, &q->cohort.n_classes, err) : unknown_field(name, "cohort", err);
        if (st) return st;
    }
    return KV_OK;
}

static enum kv_status take_step(json_t *o, struct kv_step *s, struct kv_error *err)
{
    const char *name;
    json_t *v;
    if (!json_is_object(o)) return kv_fail(err, KV_BAD_ARGUMENT, "steps", "a step is an object with stage, fraction and min_seconds");
    const char *stage = json_string_value(json_object_get(o, "stage"));
    if (!stage || !kv_stage_from_name(stage, &s->stage)) return kv_fail(err, KV_BAD_ARGUMENT, "steps", "a step's stage is SHADOW, CANARY, RAMP or FULL, not '%.40s'", stage ? stage : "");
    s->fraction = s->stage == KV_STAGE_FULL ? 1 : 0;
    json_object_foreach(o, name, v) {
        json_int_t i = json_integer_value(v);
        if (!strcmp(name, "stage")) continue;
        if (!strcmp(name, "fraction") && json_is_number(v)) s->fraction = json_number_value(v);
        else if (!strcmp(name, "min_seconds") && json_is_integer(v) && i >= 0 && i <= 30 * 86400) s->min_seconds = (int32_t)i;
        else if (!strcmp(name, "min_samples") && json_is_integer(v) && i >= 0) s->min_samples = (uint64_t)i;
        else if (!strcmp(name, "fraction") || !strncmp(name, "min_s", 5)) return kv_fail(err, KV_BAD_ARGUMENT, name, "a step's %.40s is not a number in its range", name);
        else return unknown_field(name, "a step", err);
    }
    return KV_OK;
}

static enum kv_status take_gate(json_t *o, struct kv_gate_spec *g, struct kv_error *err)
{
    const char *name, *metric = json_string_value(json_object_get(o, "metric"));
    json_t *v;
    if (!metric || strlen(metric) >= sizeof g->metric) return kv_fail(err, KV_BAD_ARGUMENT, "gates", "a gate is an object that names its metric");
    snprintf(g->metric, sizeof g->metric, "%s", metric);
    g->threshold = NAN;
    json_object_foreach(o, name, v) {
        if (!strcmp(name, "metric")) continue;
        if (!strcmp(name, "threshold") && json_is_number(v)) g->threshold = json_number_value(v);
        else if (!strcmp(name, "min_n") && json_is_integer(v) && json_integer_value(v) > 0) g->min_n = (uint64_t)json_integer_value(v);
        else if (!strcmp(name, "threshold") || !strcmp(name, "min_n")) return kv_fail(err, KV_BAD_ARGUMENT, name, "a gate's %s is not a number in its range", name);
        else return unknown_field(name, "a gate", err);
    }
    return KV_OK;
}

enum kv_status kv_api_gates_parse(json_t *gates, struct kv_gate_spec *out, int32_t *n, struct kv_error *err)
{
    size_t i;
    json_t *v;
    if (gates && (!json_is_array(gates) || json_array_size(gates) > KV_MAX_GATES)) return kv_fail(err, KV_BAD_ARGUMENT, "gates", "gates is a list of at most %d", KV_MAX_GATES);
    json_array_foreach(gates, i, v) {
        enum kv_status st = take_gate(v, &out[(*n)++], err);
        if (st) return st;
    }
    return KV_OK;
}

static enum kv_status take_lists(json_t *o, struct kv_rollout_request *q, struct kv_error *err)
{
    json_t *steps = json_object_get(o, "steps"), *v;
    size_t i;
    if (steps && (!json_is_array(steps) || json_array_size(steps) > KV_MAX_STEPS)) return kv_fail(err, KV_BAD_ARGUMENT, "steps", "steps is a list of at most %d", KV_MAX_STEPS);
    json_array_foreach(steps, i, v) {
        enum kv_status st = take_step(v, &q->steps[q->n_steps++], err);
        if (st) return st;
    }
    return kv_api_gates_parse(json_object_get(o, "gates"), q->gates, &q->n_gates, err);
}

enum kv_status kv_api_rollout_parse(json_t *o, struct kv_rollout_request *q, struct kv_error *err)
{
    static const char *const fields[] = {"name", "pipeline", "params", "contract", "cohort", "steps", "gates"};
    const char *name, *contract = json_string_value(json_object_get(o, "contract"));
    json_t *v;
    json_object_foreach(o, name, v) {
        size_t i = 0;
        while (i < sizeof fields / sizeof *fields && strcmp(fields[i], name)) i++;
        if (i < sizeof fields / sizeof *fields) continue;
        const char *near = kv_config_nearest(name, fields, sizeof fields / sizeof *fields);
        unknown_field(name, "a rollout", err);
        if (near) kv_hint(err, "did you mean '%s'?", near);
        return KV_UNKNOWN_KEY;
    }
    q->name = json_string_value(json_object_get(o, "name"));
    q->pipeline = json_string_value(json_object_get(o, "pipeline"));
    if (!q->name || !*q->name || strlen(q->name) > 63) return kv_fail(err, KV_BAD_ARGUMENT, "name", "a rollout needs a name of 1 to 63 bytes");
    if (!q->pipeline) return kv_fail(err, KV_BAD_ARGUMENT, "pipeline", "a rollout needs a pipeline; GET /api/v1/pipelines lists them");
    enum kv_status st = take_params(json_object_get(o, "params"), q, err);
    if (!st && json_object_get(o, "contract") && (!contract || (strcmp(contract, "exact") && strcmp(contract, "approximate"))))
        st = kv_fail(err, KV_BAD_ARGUMENT, "contract", "contract is exact or approximate");
    if (st) return st;
    q->contract = !contract ? kv_pipeline_find(q->pipeline)->exactness : *contract == 'a' ? KV_APPROXIMATE : KV_EXACT;
    st = take_cohort(json_object_get(o, "cohort"), q, err);
    return st ? st : take_lists(o, q, err);
}

KV_HANDLER(kv_api_rollouts_create)
{
    struct kv_rollout_request *q = calloc(1, sizeof *q);
    char who[80];
    uint64_t id;
    actor(r, who);
    enum kv_status st = q ? kv_api_rollout_parse(r->json, q, err) : kv_fail(err, KV_OUT_OF_MEMORY, "rollout", "no memory for the rollout");
    const struct kv_pipeline *p = !st ? kv_pipeline_find(q->pipeline) : NULL;
    if (p && p->built) st = kv_engine_check(((struct kv_app *)r->app)->engine, p, &q->params, err); /* now, not when it is to serve */
    if (!st) st = kv_control_create_rollout(((struct kv_app *)r->app)->control, q, who, &id, err);
    free(q);
    return st ? st : reply_rollout(r, id, 201, err);
}

/* ---------------------------------------------------------------- verbs */

static enum kv_status version_of(const struct kv_http_request *r, uint64_t *version, struct kv_error *err)
{
    const char *text = kv_http_header(r, "If-Match");
    char *end;
    if (!text) {
        kv_fail(err, KV_VERSION_CONFLICT, "If-Match", "this write does not say which version it is based on");
        kv_hint(err, "send If-Match with the rollout's version");
        return KV_VERSION_CONFLICT;
    }
    if (*text == '"') text++;
    *version = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || (*end && *end != '"') || !*version) return kv_fail(err, KV_BAD_ARGUMENT, "If-Match", "If-Match holds the rollout's version, a number");
    return KV_OK;
}

static enum kv_status reply_rollback(struct kv_http_request *r, uint64_t id, const char *reason, const char *who, struct kv_error *err)
{
    struct kv_app *app = r->app;
    struct kv_rollback_answer a;
    enum kv_status st = kv_control_rollback(app->control, id, reason, who, &a, err);
    if (st) return st;
    struct kv_rollout_view *v = calloc(1, sizeof *v);
    json_t *rollout = v && !kv_control_rollout(app->control, id, v, err) ? kv_api_rollout_json(v) : json_null();
    free(v);
    json_t *answer = json_pack("{s:b, s:I, s:b, s:I, s:i, s:b, s:i, s:I, s:b}", "fenced", (int)a.fenced, "fence_us", (json_int_t)a.fence_us, "durable", (int)a.durable,
                               "durable_us", (json_int_t)a.durable_us, "recomputing", (int)a.recomputing, "resumed", (int)a.resumed, "unsent_tokens", (int)a.unsent_tokens,
                               "epoch", (json_int_t)a.epoch, "already", (int)a.already);
    return kv_http_reply_json(r, 200, json_pack("{s:o, s:o}", "rollback", answer, "rollout", rollout), err);
}

/* Rights beyond the operator's are asked for where somebody else could hold them. */
static enum kv_status verb_right(const struct kv_http_request *r, const char *verb, struct kv_error *err)
{
    bool approve = !strcmp(verb, "approve");
    unsigned right = approve ? KV_RIGHT_APPROVER : !strcmp(verb, "breakglass") ? KV_RIGHT_ADMIN : KV_RIGHT_OPERATOR;
    if (right != KV_RIGHT_OPERATOR && !kv_http_auth_two_users(kv_http_get_auth(r->server))) right |= KV_RIGHT_OPERATOR;
    if (r->who.rights & right) return KV_OK;
    return kv_fail(err, KV_FORBIDDEN, "Authorization", "'%s' lacks the right '%s' that %.20s needs", r->who.name, kv_right_name((enum kv_right)right), verb);
}

KV_HANDLER(kv_api_rollouts_verb)
{
    struct kv_app *app = r->app;
    const char *reason = json_string_value(json_object_get(r->json, "reason"));
    json_t *fraction = json_object_get(r->json, "fraction");
    enum kv_verb verb;
    uint64_t id, version = 0, created = 0;
    char who[80];
    actor(r, who);
    enum kv_status st = rollout_part(r, &id, err);
    if (!st) st = verb_right(r, r->part[1], err);
    if (!st && (!kv_verb_from_name(r->part[1], &verb) || verb == KV_VERB_list || verb == KV_VERB_show || verb == KV_VERB_create || verb == KV_VERB_history))
        st = kv_fail(err, KV_NOT_FOUND, "verb", "no verb is named '%s'", r->part[1]);
    if (st) return st;
    if (!reason) reason = "";
    if (verb == KV_VERB_rollback) return reply_rollback(r, id, r->body_unread ? "rolled back; the reason was no JSON and is lost" : reason, who, err);
    if (verb == KV_VERB_ramp && !json_is_number(fraction)) return kv_fail(err, KV_BAD_ARGUMENT, "fraction", "ramp needs a fraction between 0 and 1");
    st = version_of(r, &version, err);
    if (!st) st = kv_control_verb(app->control, id, verb, version, json_number_value(fraction), reason, who, &created, err);
    return st ? st : reply_rollout(r, created ? created : id, created ? 201 : 200, err);
}

KV_HANDLER(kv_api_freeze)
{
    json_t *frozen = json_object_get(r->json, "frozen");
    const char *reason = json_string_value(json_object_get(r->json, "reason"));
    char who[80];
    actor(r, who);
    if (!json_is_boolean(frozen)) return kv_fail(err, KV_BAD_ARGUMENT, "frozen", "frozen must be true or false");
    enum kv_status st = kv_control_freeze(((struct kv_app *)r->app)->control, json_is_true(frozen), reason, who, err);
    return st ? st : kv_http_reply_json(r, 200, json_pack("{s:b}", "frozen", (int)json_is_true(frozen)), err);
}
