/* api.h — what the HTTP surface stands on, its route table, and JSON of the controller's views. */
#ifndef KV_API_H
#define KV_API_H

#include "controller/release/control.h"
#include "controller/http/events.h"
#include "controller/http/http.h"
#include "controller/notify.h"
#include "controller/openai/openai_sessions.h"
#include "controller/progress.h"

#include <stdatomic.h>

struct kv_app {
    const struct kv_config *config;
    struct kv_model *model;
    struct kv_engine *engine;
    struct kv_store *store;
    struct kv_control *control;
    struct kv_events *events;
    struct kv_notify *notify;   /* NULL: nobody is told */
    struct kv_sessions *sessions;
    struct kv_interruptions *interruptions;
    struct kv_refusals *refusals;
    struct kv_trace_record *trace; /* NULL: none is written */
    struct kv_fault_lab *fault_lab; /* NULL: faults.enabled is off */
    struct kv_extents *extents; /* NULL: extents.serve is off */
    struct kv_extent_client *remote; /* NULL: no remote tier */
    struct kv_quality *quality; /* NULL: quality.share is 0 */
    struct kv_http *http;
    struct kv_progress progress;
    int64_t started_us;         /* CLOCK_MONOTONIC */
    int max_inferring;          /* requests under /v1 at once, so that operators always find a connection */
    _Atomic int inferring;
    _Atomic int default_max_tokens;
    _Atomic bool ready, draining;
    bool demo;
};

extern const struct kv_http_route kv_api_routes[]; /* every route of kvasird; ends with a NULL method */
enum kv_status kv_api_ready(void *app, struct kv_error *err);
void kv_api_audit(void *app, const struct kv_http_request *r);
void kv_api_audit_refused(struct kv_app *app, bool last); /* twice a second, and once more before the store is closed */
void kv_api_log(void *app, const struct kv_http_request *r);
/* Feeds the event stream: from kv_control's on_event and the store's on_row. */
void kv_api_on_control(void *app, enum kv_control_event what, uint64_t rollout, const char *line);
void kv_api_on_row(void *app, const struct kv_receipt_row *row);
/* Hands the store's tokens to the server: at the start and after every change. */
enum kv_status kv_api_issue_tokens(struct kv_app *app, struct kv_error *err);
void kv_api_post_status(struct kv_app *app); /* twice a second */

/* --- JSON; NULL when memory is out */
json_t *kv_api_status_json(struct kv_app *app);
json_t *kv_api_tiers_json(struct kv_app *app);
json_t *kv_api_extents_json(struct kv_app *app); /* null: it keeps none */
json_t *kv_api_pipelines_json(const struct kv_app *app);
json_t *kv_api_tournament_json(struct kv_app *app); /* null: there was none */
json_t *kv_api_rollout_json(const struct kv_rollout_view *v);
json_t *kv_api_transition_json(const struct kv_transition *t);
json_t *kv_api_receipt_json(const struct kv_receipt_row *row);
json_t *kv_api_armed_faults_json(struct kv_app *app);
json_t *kv_api_failure_json(const struct kv_receipt_row *row);
json_t *kv_api_flight_json(const struct kv_flight *f, int32_t n);
enum kv_status kv_api_flight_of(struct kv_app *app, const struct kv_receipt_row *row, struct kv_flight_copy *out, struct kv_error *err); /* NOT_FOUND: the receipt names none */
enum kv_status kv_api_receipt_find(const struct kv_http_request *r, struct kv_receipt_row *row, struct kv_error *err); /* by the path's first part */
json_t *kv_api_hex_json(const uint8_t *bytes, size_t n);
json_t *kv_api_openapi_json(void);
void kv_request_id_format(uint64_t id, char out[24]); /* "q_000000000012" */
bool kv_request_id_parse(const char *text, uint64_t *out);

/* Fills q, which starts zeroed, from the body of POST /api/v1/rollouts; its strings belong to o. */
enum kv_status kv_api_rollout_parse(json_t *o, struct kv_rollout_request *q, struct kv_error *err);

enum kv_status kv_api_gates_parse(json_t *list, struct kv_gate_spec *out, int32_t *n, struct kv_error *err); /* out: KV_MAX_GATES long, zeroed */
json_t *kv_api_gates_json(const struct kv_gate_result *gates, int32_t n);

/* --- handlers by file: api_rollouts.c, api_records.c, api_policies.c, api.c, openai.c */
#define KV_HANDLER(name) enum kv_status name(struct kv_http_request *r, struct kv_error *err)
KV_HANDLER(kv_api_rollouts_list);
KV_HANDLER(kv_api_rollouts_create);
KV_HANDLER(kv_api_rollouts_show);
KV_HANDLER(kv_api_rollouts_history);
KV_HANDLER(kv_api_rollouts_verb);
KV_HANDLER(kv_api_rollout_samples);
KV_HANDLER(kv_api_gates_dry_run);
KV_HANDLER(kv_api_drills);
KV_HANDLER(kv_api_drill_run);
KV_HANDLER(kv_api_freeze);
KV_HANDLER(kv_api_receipts);
KV_HANDLER(kv_api_receipt);
KV_HANDLER(kv_api_flight);
KV_HANDLER(kv_api_receipt_flight);
KV_HANDLER(kv_api_verify);
KV_HANDLER(kv_api_backup);
KV_HANDLER(kv_api_failures);
KV_HANDLER(kv_api_sessions);
KV_HANDLER(kv_api_session);
KV_HANDLER(kv_api_sessions_verb);
KV_HANDLER(kv_api_policies);
KV_HANDLER(kv_api_policy);
KV_HANDLER(kv_api_policy_check);
KV_HANDLER(kv_api_policy_versions);
KV_HANDLER(kv_api_policy_version);
KV_HANDLER(kv_api_policy_verb);
KV_HANDLER(kv_api_tournament);
KV_HANDLER(kv_api_tournament_start);
KV_HANDLER(kv_api_tournament_stop);
KV_HANDLER(kv_api_tokens);
KV_HANDLER(kv_api_faults);
KV_HANDLER(kv_api_fault_arm);
KV_HANDLER(kv_api_fault_disarm);
KV_HANDLER(kv_api_fault_run);
KV_HANDLER(kv_api_extents);
KV_HANDLER(kv_api_extent_get);
KV_HANDLER(kv_api_extent_put);
KV_HANDLER(kv_api_extent_erase);
KV_HANDLER(kv_api_token_create);
KV_HANDLER(kv_api_token_revoke);
KV_HANDLER(kv_openai_completions);
KV_HANDLER(kv_openai_chat);
KV_HANDLER(kv_openai_models);
KV_HANDLER(kv_openai_model);
KV_HANDLER(kv_openai_tokenize);
KV_HANDLER(kv_openai_detokenize);
KV_HANDLER(kv_metrics);

#endif
