/* api_tournament.c — tournaments over HTTP: shown, started, stopped. */
#include "controller/http/api.h"

#include "runtime/evaluate/budget.h"

#include <math.h>
#include <string.h>

static json_t *params_json(const struct kv_pipeline *p, const struct kv_params *params)
{
    json_t *o = json_object();
    for (int32_t i = 0; i < p->n_params; i++) {
        double v = params->value[i];
        const char *type = p->params[i].type;
        json_object_set_new(o, p->params[i].name, !strcmp(type, "int") ? json_integer((json_int_t)v) : !strcmp(type, "bool") ? json_boolean(v != 0) : kv_real_json(v));
    }
    return o;
}

static json_t *entry_json(const struct kv_tournament_entry *e)
{
    json_t *o = json_pack("{s:o, s:s, s:s, s:o, s:s, s:o, s:o, s:o}", "rank", e->rank ? json_integer(e->rank) : json_null(), "pipeline", e->pipeline->name, "verdict",
                          kv_tournament_verdict_name(e->verdict), "params", params_json(e->pipeline, &e->params), "budget", e->budget, "at",
                          kv_real_json(kv_params_get(e->pipeline, &e->params, e->budget)), "rows", kv_real_json(e->rows), "share",
                          kv_real_json(e->share));
    const struct { const char *name; double value; } numbers[] = {{"mass", e->mass}, {"mass_low", e->mass_low}, {"mass_high", e->mass_high},
                                                                   {"bytes", e->bytes}, {"bytes_low", e->bytes_low}, {"bytes_high", e->bytes_high}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) json_object_set_new(o, numbers[i].name, kv_real_json(numbers[i].value));
    return o;
}

json_t *kv_api_tournament_json(struct kv_app *app)
{
    struct kv_tournament_view v;
    if (!kv_engine_tournament(app->engine, &v)) return json_null();
    json_t *names = json_array(), *entries = json_array();
    for (int32_t i = 0; i < v.n; i++) {
        json_array_append_new(names, json_string(v.entry[i].pipeline->name));
        json_array_append_new(entries, entry_json(&v.entry[i]));
    }
    return json_pack("{s:s, s:o, s:f, s:f, s:I, s:I, s:I, s:o, s:o}", "state", v.running ? "RUNNING" : "DONE", "pipelines", names, "mass", v.mass, "fraction", v.fraction, "units",
                     (json_int_t)v.units, "limit", (json_int_t)v.limit, "dropped", (json_int_t)v.dropped, "dense_bytes", kv_real_json(v.dense_bytes), "entries", entries);
}

static enum kv_status reply(struct kv_http_request *r, int status, struct kv_error *err)
{
    return kv_http_reply_json(r, status, json_pack("{s:o}", "tournament", kv_api_tournament_json(r->app)), err);
}

KV_HANDLER(kv_api_tournament)
{
    return reply(r, 200, err);
}

/* "quest", or {"pipeline":"quest","params":{…}}. */
static enum kv_status take_entry(json_t *v, int32_t window_budget, const struct kv_pipeline **pipeline, struct kv_params *params, struct kv_error *err)
{
    json_t *o = json_is_object(v) ? v : NULL, *given = json_object_get(o, "params"), *value;
    const char *name = json_string_value(o ? json_object_get(o, "pipeline") : v), *key;
    if (!name) return kv_fail(err, KV_BAD_ARGUMENT, "pipelines", "an entry is a pipeline's name, or an object with pipeline and params");
    json_object_foreach(o, key, value)
        if (strcmp(key, "pipeline") && strcmp(key, "params")) return kv_fail(err, KV_UNKNOWN_KEY, key, "an entry has no field '%.60s'", key);
    const struct kv_pipeline *p = *pipeline = kv_pipeline_find(name);
    if (!p) {
        kv_fail(err, KV_UNKNOWN_PIPELINE, "pipelines", "no pipeline is named '%.60s'", name);
        kv_hint(err, "GET /api/v1/pipelines names them");
        return KV_UNKNOWN_PIPELINE;
    }
    kv_params_default(p, params);
    enum kv_status s = kv_budget_set(p, window_budget, params, err); /* sinks and windows that suit this context */
    if (given && !json_is_object(given)) return kv_fail(err, KV_BAD_ARGUMENT, "params", "params is an object of numbers");
    json_object_foreach(given, key, value) {
        if (!json_is_number(value) && !json_is_boolean(value)) return kv_fail(err, KV_BAD_ARGUMENT, key, "params.%.60s is not a number", key);
        if (s == KV_OK) s = kv_params_set(p, params, key, json_is_boolean(value) ? json_is_true(value) : json_number_value(value), err);
    }
    return s;
}

static enum kv_status take_number(json_t *v, const char *name, double *out, struct kv_error *err)
{
    if (!json_is_number(v)) return kv_fail(err, KV_BAD_ARGUMENT, name, "%.40s is a number", name);
    *out = json_number_value(v);
    return KV_OK;
}

KV_HANDLER(kv_api_tournament_start)
{
    enum { ROWS_OF_CONTEXT = 16 };
    struct kv_app *app = r->app;
    struct kv_tournament_config c = {.mass = 0.9, .fraction = 0.01};
    int32_t window = kv_model_info(app->model)->context_length / ROWS_OF_CONTEXT;
    double units = 2000;
    const char *name;
    json_t *v, *entry;
    size_t i;
    json_object_foreach(r->json, name, v) {
        enum kv_status s = !strcmp(name, "mass") ? take_number(v, name, &c.mass, err) : !strcmp(name, "fraction") ? take_number(v, name, &c.fraction, err)
                         : !strcmp(name, "units") ? take_number(v, name, &units, err) : !strcmp(name, "pipelines") ? KV_OK
                         : kv_fail(err, KV_UNKNOWN_KEY, name, "a tournament has no field '%.60s'", name);
        if (s != KV_OK) return s;
    }
    json_t *list = json_object_get(r->json, "pipelines");
    if (!json_is_array(list) || json_array_size(list) < 2 || json_array_size(list) > KV_TOURNAMENT_MAX)
        return kv_fail(err, KV_BAD_ARGUMENT, "pipelines", "pipelines is a list of 2 to %d entries", KV_TOURNAMENT_MAX);
    json_array_foreach(list, i, entry) {
        enum kv_status s = take_entry(entry, window < KV_BUDGET_LEAST ? KV_BUDGET_LEAST : window, &c.pipeline[i], &c.params[i], err);
        if (s != KV_OK) return s;
    }
    c.n = (int32_t)i;
    c.units = units >= 1 && units <= 1e9 ? (uint64_t)units : 0;
    enum kv_status s = kv_engine_tournament_start(app->engine, &c, err);
    return s ? s : reply(r, 201, err);
}

KV_HANDLER(kv_api_tournament_stop)
{
    enum kv_status s = kv_engine_tournament_stop(((struct kv_app *)r->app)->engine);
    return s ? kv_fail(err, s, "tournament", "there was no tournament since the server started") : reply(r, 200, err);
}
