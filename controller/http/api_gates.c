/* api_gates.c — evidence over HTTP: samples as JSON lines, gate sets tried without effect, drills. */
#include "controller/http/api.h"
#include "controller/release/samples.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- samples */

struct lines { /* a download in work */
    struct kv_sample_record *r;
    size_t n, at;
    char metric[32];
    char line[512];
    size_t bytes, sent;
};

/* The value a record has for a metric; false: it says nothing about it. */
static bool value_of(const struct kv_sample_record *r, const char *metric, double *out)
{
    const struct {
        const char *metric;
        int kind;
        double value;
    } values[] = {{"exact_mismatches", KV_SAMPLE_UNIT, !r->exact_equal}, {"omitted_mass", KV_SAMPLE_UNIT, r->a},    {"output_error", KV_SAMPLE_UNIT, r->b},
                  {"bound_violations", KV_SAMPLE_UNIT, !r->bound_holds}, {"tpot_p99_ratio", KV_SAMPLE_TOKEN, r->a}, {"exposed_stall_us", KV_SAMPLE_STALL, r->a},
                  {"quality_drop", KV_SAMPLE_QUALITY, r->a - r->b}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (!strcmp(values[i].metric, metric)) return *out = values[i].value, r->kind == values[i].kind;
    return false;
}

static bool has_samples(const char *metric)
{
    double ignored;
    for (int kind = 0; kind <= KV_SAMPLE_QUALITY; kind++)
        if (value_of(&(struct kv_sample_record){.kind = (uint8_t)kind}, metric, &ignored)) return true;
    return false;
}

static json_t *sample_json(const struct kv_sample_record *r, const char *metric)
{
    static const char *const kinds[] = {[KV_SAMPLE_UNIT] = "unit", [KV_SAMPLE_TOKEN] = "token", [KV_SAMPLE_STALL] = "stall", [KV_SAMPLE_QUALITY] = "prompt"};
    char request[24];
    double value;
    kv_request_id_format(r->request, request);
    json_t *o = json_pack("{s:o, s:s, s:I, s:s, s:s}", "at", kv_time_json(r->at_us), "stage", kv_stage_name((enum kv_stage)r->stage), "epoch", (json_int_t)r->epoch,
                          "arm", kv_arm_name((enum kv_arm)r->arm), "kind", r->kind <= KV_SAMPLE_QUALITY && kinds[r->kind] ? kinds[r->kind] : "unknown");
    if (r->request) json_object_set_new(o, "request", json_string(request));
    if (r->layer >= 0) json_object_set_new(o, "layer", json_integer(r->layer));
    if (r->kv_head >= 0) json_object_set_new(o, "kv_head", json_integer(r->kv_head));
    if (r->kind == KV_SAMPLE_UNIT || r->kind == KV_SAMPLE_TOKEN) json_object_set_new(o, "position", json_integer(r->position));
    json_t *more = NULL;
    if (*metric) more = value_of(r, metric, &value) ? json_pack("{s:s, s:o}", "metric", metric, "value", kv_real_json(value)) : NULL;
    else if (r->kind == KV_SAMPLE_QUALITY) more = json_pack("{s:o, s:o}", "baseline", kv_real_json(r->a), "candidate", kv_real_json(r->b));
    else if (r->kind != KV_SAMPLE_UNIT) more = json_pack("{s:o}", "us", kv_real_json(r->a));
    else more = json_pack("{s:o, s:o, s:b, s:b, s:i, s:i}", "omitted_mass", kv_real_json(r->a), "output_error", kv_real_json(r->b), "exact_equal", (int)r->exact_equal,
                          "bound_holds", (int)r->bound_holds, "rows", (int)r->rows, "rows_total", (int)r->rows_total);
    json_object_update(o, more);
    json_decref(more);
    return o;
}

static bool next_line(struct lines *l)
{
    double ignored;
    while (l->at < l->n && *l->metric && !value_of(&l->r[l->at], l->metric, &ignored)) l->at++;
    if (l->at == l->n) return false;
    json_t *o = sample_json(&l->r[l->at++], l->metric);
    size_t n = o ? json_dumpb(o, l->line, sizeof l->line - 1, JSON_COMPACT | JSON_REAL_PRECISION(9)) : 0;
    json_decref(o);
    if (!n || n >= sizeof l->line) return false;
    l->line[n] = '\n';
    l->bytes = n + 1;
    l->sent = 0;
    return true;
}

static ssize_t read_lines(void *ctx, char *buf, size_t cap)
{
    struct lines *l = ctx;
    size_t n = 0;
    while (n < cap && (l->sent < l->bytes || next_line(l))) {
        size_t part = l->bytes - l->sent < cap - n ? l->bytes - l->sent : cap - n;
        memcpy(buf + n, l->line + l->sent, part);
        l->sent += part;
        n += part;
    }
    return n ? (ssize_t)n : -1;
}

static void release_lines(void *ctx)
{
    struct lines *l = ctx;
    free(l->r);
    free(l);
}

KV_HANDLER(kv_api_rollout_samples)
{
    static const char *const keys[] = {"metric", "limit"};
    const char *metric = kv_http_query(r, "metric");
    const struct kv_metric *m;
    uint64_t id, written;
    int64_t limit;
    if (!kv_rollout_id_parse(r->part[0], &id)) return kv_fail(err, KV_NOT_FOUND, "rollout", "no rollout is named '%s'; ids look like r_000003", r->part[0]);
    enum kv_status st = kv_http_query_known(r, keys, 2, err);
    if (st == KV_OK) st = kv_http_query_int(r, "limit", KV_SAMPLES_KEPT, 1, KV_SAMPLES_KEPT, &limit, err);
    if (st == KV_OK && metric && *metric) st = kv_metric_find(metric, &m, err);
    if (st != KV_OK) return st;
    if (metric && *metric && !has_samples(metric)) return kv_fail(err, KV_BAD_ARGUMENT, "metric", "%s is counted, not sampled", metric);
    struct lines *l = calloc(1, sizeof *l);
    if (!l) return kv_fail(err, KV_OUT_OF_MEMORY, "samples", "no memory for the samples");
    snprintf(l->metric, sizeof l->metric, "%s", metric ? metric : "");
    st = kv_control_samples(((struct kv_app *)r->app)->control, id, &l->r, &l->n, &written, err);
    if (st != KV_OK) return free(l), st;
    size_t take = l->n;
    double ignored;
    for (l->at = take; l->at && limit; l->at--) limit -= !*l->metric || value_of(&l->r[l->at - 1], l->metric, &ignored); /* the newest */
    return kv_http_reply_stream(r, "application/x-ndjson", &(struct kv_http_stream){read_lines, release_lines, l}, err);
}

/* ---------------------------------------------------------------- tried without effect */

KV_HANDLER(kv_api_gates_dry_run)
{
    struct kv_gate_spec specs[KV_MAX_GATES] = {0};
    int32_t n = 0;
    uint64_t id = 0;
    const char *name, *rollout = json_string_value(json_object_get(r->json, "rollout"));
    json_t *v, *gates = json_object_get(r->json, "gates");
    json_object_foreach(r->json, name, v)
        if (strcmp(name, "rollout") && strcmp(name, "gates")) return kv_fail(err, KV_UNKNOWN_KEY, name, "a dry run has no field '%.60s'; it has rollout and gates", name);
    if (!json_is_array(gates)) return kv_fail(err, KV_BAD_ARGUMENT, "gates", "gates is a list of {\"metric\", \"threshold\", \"min_n\"}");
    if (json_object_get(r->json, "rollout") && (!rollout || !kv_rollout_id_parse(rollout, &id))) return kv_fail(err, KV_NOT_FOUND, "rollout", "rollout ids look like r_000003");
    enum kv_status st = kv_api_gates_parse(gates, specs, &n, err);
    struct kv_dry_run *d = st == KV_OK ? malloc(sizeof *d) : NULL;
    if (st == KV_OK && !d) st = kv_fail(err, KV_OUT_OF_MEMORY, "gates", "no memory for the answer");
    if (st == KV_OK) st = kv_control_dry_run(((struct kv_app *)r->app)->control, id, specs, n, d, err);
    json_t *o = NULL;
    if (st == KV_OK) {
        char text[24];
        kv_rollout_id_format(d->rollout, text);
        o = json_pack("{s:s, s:s, s:s, s:o, s:I, s:b, s:o}", "rollout", text, "stage", kv_stage_name(d->stage), "verdict", kv_verdict_name(d->verdict), "decided_by",
                      d->which >= 0 ? json_string(d->gates[d->which].metric) : json_null(), "samples", (json_int_t)d->samples, "complete", (int)d->complete, "gates",
                      kv_api_gates_json(d->gates, d->n_gates));
    }
    free(d);
    return st ? st : kv_http_reply_json(r, 200, o, err);
}

/* ---------------------------------------------------------------- drills */

static json_t *drill_json(const struct kv_drill_result *d)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:o}", "name", kv_drill_name(d->drill), "title", kv_drill_title(d->drill), "state",
                          !d->at_us ? "NEVER_RUN" : kv_drill_passed(d) ? "PASSED" : "FAILED", "at", d->at_us ? kv_time_json(d->at_us) : json_null());
    json_t *more = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "checks", (json_int_t)d->checks, "violations", (json_int_t)d->violations, "seconds", kv_real_json(d->seconds),
                             "detail", kv_text_json(d->detail, strlen(d->detail)), "actor", kv_text_json(d->actor, strlen(d->actor)),
                             "receipt", d->receipt ? json_integer((json_int_t)d->receipt) : json_null());
    json_object_update(o, more);
    json_decref(more);
    return o;
}

static enum kv_status rollout_named(const char *text, uint64_t *id, struct kv_error *err)
{
    *id = 0;
    return !text || !*text || kv_rollout_id_parse(text, id) ? KV_OK : kv_fail(err, KV_NOT_FOUND, "rollout", "no rollout is named '%.40s'; ids look like r_000003", text);
}

KV_HANDLER(kv_api_drills)
{
    static const char *const keys[] = {"rollout"};
    struct kv_drill_result d[KV_DRILLS];
    uint64_t id;
    char text[24];
    enum kv_status st = kv_http_query_known(r, keys, 1, err);
    if (st == KV_OK) st = rollout_named(kv_http_query(r, "rollout"), &id, err);
    if (st == KV_OK) st = kv_control_drills(((struct kv_app *)r->app)->control, &id, d, err);
    if (st != KV_OK) return st;
    json_t *list = json_array();
    for (int i = 0; i < KV_DRILLS; i++) json_array_append_new(list, drill_json(&d[i]));
    kv_rollout_id_format(id, text);
    return kv_http_reply_json(r, 200, json_pack("{s:s, s:o}", "rollout", text, "drills", list), err);
}

KV_HANDLER(kv_api_drill_run)
{
    json_t *rollout = json_object_get(r->json, "rollout");
    struct kv_drill_result d;
    enum kv_drill k;
    uint64_t id = 0;
    char who[80];
    snprintf(who, sizeof who, "operator:%s", r->who.name);
    if (rollout && !json_is_string(rollout)) return kv_fail(err, KV_BAD_ARGUMENT, "rollout", "rollout is a text such as r_000003");
    enum kv_status st = kv_drill_find(r->part[0], &k, err);
    if (st == KV_OK) st = rollout_named(json_string_value(rollout), &id, err);
    if (st == KV_OK) st = kv_control_drill(((struct kv_app *)r->app)->control, id, k, who, &d, err);
    return st ? st : kv_http_reply_json(r, 200, drill_json(&d), err);
}
