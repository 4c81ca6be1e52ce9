/* api.c — the route table, and the routes that belong to no other file: health, status, history, events, description. */
#include "controller/interruptions.h"
#include "controller/http/refusals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kv_status kv_api_ready(void *app, struct kv_error *err)
{
    struct kv_app *a = app;
    char loads[128];
    if (a->ready) return KV_OK;
    if (a->draining) return kv_fail(err, KV_DRAINING, "server", "the server is draining");
    kv_progress_loading(&a->progress, loads, sizeof loads);
    kv_fail(err, KV_DRAINING, "server", "the server is still starting%s%s", *loads ? " and loads its model" : "", loads);
    kv_hint(err, "GET /api/v1/progress says how far it is; /readyz says when it takes requests");
    return KV_DRAINING;
}

static KV_HANDLER(kv_api_progress)
{
    struct kv_app *a = r->app;
    return kv_http_reply_json(r, 200, kv_progress_json(&a->progress, a->ready ? a->engine : NULL), err);
}

static KV_HANDLER(kv_api_healthz)
{
    return kv_http_reply_text(r, 200, "text/plain", "ok\n", 3, err);
}

static KV_HANDLER(kv_api_readyz)
{
    struct kv_app *a = r->app;
    enum kv_status st = kv_api_ready(a, err);
    if (st) return st;
    return a->draining ? kv_fail(err, KV_DRAINING, "server", "the server is draining") : kv_http_reply_text(r, 200, "text/plain", "ready\n", 6, err);
}

static KV_HANDLER(kv_api_status)
{
    return kv_http_reply_json(r, 200, kv_api_status_json(r->app), err);
}

static KV_HANDLER(kv_api_pipelines)
{
    json_t *o = kv_api_pipelines_json(r->app);
    json_object_set_new(o, "tournament", kv_api_tournament_json(r->app));
    return kv_http_reply_json(r, 200, o, err);
}

static KV_HANDLER(kv_api_tiers)
{
    return kv_http_reply_json(r, 200, kv_api_tiers_json(r->app), err);
}

static KV_HANDLER(kv_api_openapi)
{
    return kv_http_reply_json(r, 200, kv_api_openapi_json(), err);
}

static KV_HANDLER(kv_api_history)
{
    static const char *const keys[] = {"seconds"};
    int64_t seconds;
    enum kv_status st = kv_http_query_known(r, keys, 1, err);
    if (!st) st = kv_http_query_int(r, "seconds", 300, 1, KV_HISTORY_POINTS, &seconds, err);
    struct kv_history_point *p = st ? NULL : calloc(KV_HISTORY_POINTS, sizeof *p);
    if (st) return st;
    if (!p) return kv_fail(err, KV_OUT_OF_MEMORY, "history", "no memory for the history");
    int32_t n = kv_control_history(((struct kv_app *)r->app)->control, (int32_t)seconds, p);
    json_t *t = json_array(), *rate = json_array(), *p50 = json_array(), *p99 = json_array(), *mass = json_array(), *stage = json_array();
    for (int32_t i = 0; i < n; i++) {
        json_array_append_new(t, json_real((double)(p[i].at_us / 1000) / 1000));
        json_array_append_new(rate, kv_real_json(p[i].tokens_per_s));
        json_array_append_new(p50, kv_real_json(p[i].tpot_p50_ms));
        json_array_append_new(p99, kv_real_json(p[i].tpot_p99_ms));
        json_array_append_new(mass, kv_real_json(p[i].omitted_mass));
        json_array_append_new(stage, json_string(kv_stage_name(p[i].stage)));
    }
    free(p);
    return kv_http_reply_json(r, 200, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "t", t, "tokens_per_s", rate, "tpot_p50_ms", p50, "tpot_p99_ms", p99, "omitted_mass", mass,
                                                "stage", stage), err);
}

static KV_HANDLER(kv_api_events)
{
    struct kv_app *app = r->app;
    const char *last = kv_http_header(r, "Last-Event-ID");
    struct kv_event_reader *reader = kv_events_open(app->events, last ? strtoull(last, NULL, 10) : 0);
    if (!reader) {
        kv_fail(err, KV_QUEUE_FULL, "events", "%d event streams are open already", (int)app->config->max_event_streams);
        kv_hint(err, "close one, or raise http.max_event_streams");
        return KV_QUEUE_FULL;
    }
    return kv_http_reply_stream(r, "text/event-stream", &(struct kv_http_stream){kv_events_read, kv_events_close, reader}, err);
}

/* ---------------------------------------------------------------- what feeds the events */

void kv_api_on_control(void *arg, enum kv_control_event what, uint64_t rollout, const char *line)
{
    struct kv_app *app = arg;
    if (what == KV_EVENT_LOG || (what == KV_EVENT_POLICY && line)) kv_events_log(KV_LOG_INFO, "%s", line ? line : "");
    if (what != KV_EVENT_ROLLOUT || !app->control) return;
    struct kv_rollout_view *v = calloc(1, sizeof *v);
    if (v && !kv_control_rollout(app->control, rollout, v, NULL)) kv_events_post(app->events, "rollout", kv_api_rollout_json(v));
    free(v);
}

void kv_api_on_row(void *arg, const struct kv_receipt_row *row)
{
    struct kv_app *app = arg;
    kv_events_post(app->events, "receipt", kv_api_receipt_json(row));
    if ((int)row->r.kind == KV_ROW_STORE) kv_events_log(KV_LOG_INFO, "the store: %s", row->r.detail);
    if (app->notify && kv_notify_wants(row)) kv_notify_post(app->notify, row->id, kv_api_receipt_json(row));
    if (row->r.reason != KV_OK && (int)row->r.kind == KV_RECEIPT_FAILURE) kv_events_post(app->events, "failure", kv_api_failure_json(row));
}

/* A write's row is on disk before its answer, unless receipts cannot be written: then it waits in their queue. What stops is done by now and waits for nobody long. */
void kv_api_audit(void *arg, const struct kv_http_request *r)
{
    enum { WAIT_MS = 5000, STOP_WAIT_MS = 500 };
    struct kv_app *app = arg;
    const char *verb = strrchr(r->path, '/');
    if (!strcmp(r->method, "GET") || !strcmp(r->method, "HEAD") || strncmp(r->path, "/api/", 5) || !app->ready) return;
    char from[72] = "", address[64];
    if (!r->handled) {
        kv_http_address_of(r, address, sizeof address);
        snprintf(from, sizeof from, " from %s", address);
        if (!kv_refusals_own_row(app->refusals, address, r->status, kv_monotonic_us())) return;
    }
    bool stops = !strcmp(verb, "/rollback") || !strcmp(verb, "/abort") || !strcmp(verb, "/freeze");
    struct kv_receipt audit;
    kv_receipt_init(&audit, KV_ROW_AUDIT, kv_realtime_us());
    snprintf(audit.tenant, sizeof audit.tenant, "%s", r->who.name);
    snprintf(audit.detail, sizeof audit.detail, "%.8s %.*s: %d%s", r->method, 80 - (int)strlen(from), r->path, r->status, from);
    if (!kv_store_post_settled(app->store, &audit, stops ? STOP_WAIT_MS : WAIT_MS))
        kv_events_log(KV_LOG_WARN, "%s %s was answered before its audit receipt was on disk", r->method, r->path);
}

static bool post_refused(void *arg, const char *address, int status, uint64_t more)
{
    struct kv_app *app = arg;
    struct kv_receipt r;
    char answer[24] = "";
    kv_receipt_init(&r, KV_ROW_AUDIT, kv_realtime_us());
    if (status) snprintf(answer, sizeof answer, ": %d", status);
    r.rows = more;
    snprintf(r.detail, sizeof r.detail, "and %llu more writes refused within a minute%s from %.39s", (unsigned long long)more, answer, address);
    return kv_store_post(app->store, &r);
}

void kv_api_audit_refused(struct kv_app *app, bool last)
{
    kv_refusals_tell(app->refusals, last ? 0 : kv_monotonic_us(), post_refused, app);
}

void kv_api_log(void *arg, const struct kv_http_request *r)
{
    char trace[33] = "";
    if (*r->traceparent) snprintf(trace, sizeof trace, "%.32s", r->traceparent + 3);
    kv_events_log_traced(KV_LOG_DEBUG, trace, "%s %s %d %s %lld us", r->method, r->path, r->status, r->who.name, (long long)(kv_monotonic_us() - r->started_us));
    if (!r->status) kv_api_audit(arg, r);
}

/* ---------------------------------------------------------------- the table */

#define VIEW KV_RIGHT_VIEWER
#define OPERATE KV_RIGHT_OPERATOR
const struct kv_http_route kv_api_routes[] = {
    {"GET", "/healthz", 0, KV_ROUTE_OPEN | KV_ROUTE_EARLY, kv_api_healthz, "200 while the process lives"},
    {"GET", "/readyz", 0, KV_ROUTE_OPEN | KV_ROUTE_EARLY, kv_api_readyz, "200 when it takes traffic"},
    {"GET", "/metrics", VIEW, 0, kv_metrics, "Prometheus text"},
    {"GET", "/v1/models", KV_RIGHT_INFER | VIEW, 0, kv_openai_models, "the model served"},
    {"GET", "/v1/models/{model}", KV_RIGHT_INFER | VIEW, 0, kv_openai_model, "one model"},
    {"POST", "/v1/completions", KV_RIGHT_INFER, KV_ROUTE_JSON, kv_openai_completions, "complete a prompt"},
    {"POST", "/v1/chat/completions", KV_RIGHT_INFER, KV_ROUTE_JSON, kv_openai_chat, "answer a conversation"},
    {"POST", "/v1/sessions/{id}/pause", KV_RIGHT_INFER, KV_ROUTE_JSON, kv_session_pause, "pause a session's running request"},
    {"POST", "/v1/sessions/{id}/result", KV_RIGHT_INFER, KV_ROUTE_JSON, kv_session_result, "give a paused session what it waits for, once"},
    {"POST", "/v1/sessions/{id}/resume", KV_RIGHT_INFER, KV_ROUTE_JSON, kv_session_resume, "the rest of a paused request's answer"},
    {"GET", "/v1/extents", KV_RIGHT_EXTENTS, 0, kv_api_extents, "how much is kept for the remote tiers of other daemons"},
    {"GET", "/v1/extents/{name}", KV_RIGHT_EXTENTS, 0, kv_api_extent_get, "one sealed block, by the 64 hexadecimal digits of its name"},
    {"PUT", "/v1/extents/{name}", KV_RIGHT_EXTENTS, KV_ROUTE_OBJECT, kv_api_extent_put, "keep a sealed block; durable when answered"},
    {"DELETE", "/v1/extents/{name}", KV_RIGHT_EXTENTS, 0, kv_api_extent_erase, "erase a sealed block; durable when answered"},
    {"POST", "/tokenize", KV_RIGHT_INFER, KV_ROUTE_JSON, kv_openai_tokenize, "text to token ids"},
    {"POST", "/detokenize", KV_RIGHT_INFER, KV_ROUTE_JSON, kv_openai_detokenize, "token ids to text"},
    {"GET", "/api/v1/status", VIEW, 0, kv_api_status, "what is going on now"},
    {"GET", "/api/v1/progress", VIEW, KV_ROUTE_EARLY, kv_api_progress, "what takes a while now and how far it is: load, prefill, restore, recompute, replay, backup"},
    {"GET", "/api/v1/events", VIEW, 0, kv_api_events, "server-sent events: status, rollout, receipt, failure, log"},
    {"GET", "/api/v1/metrics/history", VIEW, KV_ROUTE_QUERY, kv_api_history, "one point a second"},
    {"GET", "/api/v1/openapi.json", VIEW, 0, kv_api_openapi, "this description"},
    {"GET", "/api/v1/pipelines", VIEW, 0, kv_api_pipelines, "the published pipelines and their parameters"},
    {"GET", "/api/v1/tournament", VIEW, 0, kv_api_tournament, "pipelines ranked by bytes read at equal measured mass"},
    {"POST", "/api/v1/tournament", OPERATE, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_tournament_start, "start a tournament on sampled queries of baseline traffic"},
    {"DELETE", "/api/v1/tournament", OPERATE, KV_ROUTE_ONCE, kv_api_tournament_stop, "stop it; what it found stays"},
    {"GET", "/api/v1/tiers", VIEW, 0, kv_api_tiers, "tiers and per-layer times"},
    {"GET", "/api/v1/sessions", VIEW, 0, kv_api_sessions, "sessions seen lately, and what of their history is kept"},
    {"GET", "/api/v1/sessions/{id}", VIEW, KV_ROUTE_QUERY, kv_api_session, "one session, and how much of it is still there; ?tenant= where two tenants have one of that name"},
    {"POST", "/api/v1/sessions/{id}/{verb}", OPERATE, KV_ROUTE_QUERY | KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_sessions_verb, "pin, unpin or drop what is kept of a session"},
    {"GET", "/api/v1/credits", VIEW, 0, kv_api_credits, "what transfers may use at once: who holds what, who waits for what"},
    {"GET", "/api/v1/interruptions", VIEW, 0, kv_api_interruptions, "paused requests: state, bytes, waste, what they wait for"},
    {"GET", "/api/v1/failures", VIEW, KV_ROUTE_QUERY, kv_api_failures, "receipts of failures, newest first"},
    {"GET", "/api/v1/faults", VIEW, 0, kv_api_faults, "the faults of the failure lab: what each is to lead to, whether it is armed, how its last run ended"},
    {"POST", "/api/v1/faults/{name}", OPERATE, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_fault_arm, "arm a fault on a serving rollout's, a tenant's or a session's requests: {\"count\", \"scope\"}"},
    {"DELETE", "/api/v1/faults/{name}", OPERATE, 0, kv_api_fault_disarm, "disarm a fault"},
    {"POST", "/api/v1/faults/{name}/run", OPERATE, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_fault_run, "arm a fault on a request of the lab's own, and check everything that must hold afterwards"},
    {"GET", "/api/v1/audit", VIEW, KV_ROUTE_QUERY, kv_api_receipts, "receipts of operators' writes, newest first"},
    {"GET", "/api/v1/receipts", VIEW, KV_ROUTE_QUERY, kv_api_receipts, "receipts, newest first"},
    {"GET", "/api/v1/receipts/verify", VIEW, 0, kv_api_verify, "recompute the receipt chain"},
    {"GET", "/api/v1/receipts/{id}", VIEW, 0, kv_api_receipt, "one receipt and what it rests on"},
    {"GET", "/api/v1/receipts/{id}/flight", VIEW, 0, kv_api_receipt_flight, "the flight recording that a failure's or fallback's receipt names: what was selected for each head before it"},
    {"GET", "/api/v1/flight", VIEW, KV_ROUTE_QUERY, kv_api_flight, "what was selected for each head of the last steps; ?request= for one request's"},
    {"POST", "/api/v1/backups", OPERATE, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_backup, "a backup of the store into its folder, while it serves"},
    {"GET", "/api/v1/policies", VIEW, 0, kv_api_policies, "active policies"},
    {"POST", "/api/v1/policies/check", OPERATE, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_policy_check, "check a policy without activating it"},
    {"GET", "/api/v1/policies/{kind}", VIEW, 0, kv_api_policy, "one active policy with its source"},
    {"GET", "/api/v1/policies/{kind}/versions", VIEW, 0, kv_api_policy_versions, "every version of a kind and its state, the last moved first"},
    {"GET", "/api/v1/policies/{kind}/{version}", VIEW, 0, kv_api_policy_version, "one version with its source; six digits suffice"},
    {"POST", "/api/v1/policies/{kind}/{verb}", OPERATE | KV_RIGHT_APPROVER, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_policy_verb, "submit, check, replay, approve, activate or revert"},
    {"GET", "/api/v1/tokens", KV_RIGHT_ADMIN, 0, kv_api_tokens, "tokens without their secrets"},
    {"POST", "/api/v1/tokens", KV_RIGHT_ADMIN, KV_ROUTE_JSON, kv_api_token_create, "make a token; its secret is in this answer only"},
    {"POST", "/api/v1/tokens/{name}/revoke", KV_RIGHT_ADMIN, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_token_revoke, "take a token out of force at once"},
    {"GET", "/api/v1/rollouts", VIEW, 0, kv_api_rollouts_list, "rollouts, newest first"},
    {"POST", "/api/v1/rollouts", OPERATE, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_rollouts_create, "create a candidate; it starts at OFF"},
    {"POST", "/api/v1/freeze", OPERATE, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_freeze, "freeze releases, or let them go on"},
    {"GET", "/api/v1/rollouts/{id}", VIEW, 0, kv_api_rollouts_show, "one rollout with its gates and transitions"},
    {"GET", "/api/v1/rollouts/{id}/history", VIEW, 0, kv_api_rollouts_history, "every transition with its receipt"},
    {"GET", "/api/v1/rollouts/{id}/samples", VIEW, KV_ROUTE_QUERY, kv_api_rollout_samples, "what its gates were judged by, as JSON lines; ?metric= for one value each, ?limit= for the newest"},
    {"POST", "/api/v1/gates/dry-run", VIEW, KV_ROUTE_JSON, kv_api_gates_dry_run, "a gate set judged by a rollout's present samples, without effect"},
    {"GET", "/api/v1/drills", VIEW, KV_ROUTE_QUERY, kv_api_drills, "the last result of each drill of a rollout's candidate; ?rollout= for another than the live one"},
    {"POST", "/api/v1/drills/{name}", OPERATE, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_drill_run, "run a drill of the candidate in a process of its own; answers when it is over"},
    {"POST", "/api/v1/rollouts/{id}/{verb}", OPERATE | KV_RIGHT_APPROVER, KV_ROUTE_JSON | KV_ROUTE_ONCE, kv_api_rollouts_verb, "advance, pause, resume, ramp, skip, approve, freeze, unfreeze, breakglass, abort, rollback or retry"},
    {0},
};

/* ---------------------------------------------------------------- description */

static json_t *parameters_of(const char *path)
{
    json_t *list = json_array();
    for (const char *p = path; (p = strchr(p, '{')); p++) {
        const char *end = strchr(p, '}');
        json_array_append_new(list, json_pack("{s:s#, s:s, s:b, s:{s:s}}", "name", p + 1, (int)(end - p - 1), "in", "path", "required", 1, "schema", "type", "string"));
    }
    return list;
}

json_t *kv_api_openapi_json(void)
{
    json_t *paths = json_object();
    for (const struct kv_http_route *t = kv_api_routes; t->method; t++) {
        json_t *path = json_object_get(paths, t->path);
        char method[8] = "";
        if (!path) json_object_set_new(paths, t->path, path = json_object());
        for (size_t i = 0; t->method[i] && i < sizeof method - 1; i++) method[i] = (char)(t->method[i] | 0x20);
        json_t *op = json_pack("{s:s, s:o, s:{s:{s:s}, s:{s:s}}}", "summary", t->summary, "parameters", parameters_of(t->path), "responses", "200", "description", "done", "default",
                               "description", "an error: {\"error\":{\"code\",\"message\",\"param\",\"hint\"}}");
        if (t->flags & KV_ROUTE_JSON) json_object_set_new(op, "requestBody", json_pack("{s:{s:{s:{s:s}}}}", "content", "application/json", "schema", "type", "object"));
        json_object_set_new(op, "security", t->flags & KV_ROUTE_OPEN ? json_array() : json_pack("[{s:[]}]", "token"));
        json_object_set_new(path, method, op);
    }
    return json_pack("{s:s, s:{s:s, s:s}, s:{s:{s:{s:s, s:s}}}, s:o}", "openapi", "3.1.0", "info", "title", "Kvasir", "version", KVASIR_VERSION, "components", "securitySchemes", "token",
                     "type", "http", "scheme", "bearer", "paths", paths);
}
