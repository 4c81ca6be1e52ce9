/* api_json.c — the controller's views as the API writes them. */
#include "controller/http/api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

json_t *kv_api_hex_json(const uint8_t *bytes, size_t n)
{
    char hex[2 * 64 + 1];
    kv_hex(bytes, n < 64 ? n : 64, hex);
    return json_string(hex);
}

void kv_request_id_format(uint64_t id, char out[24])
{
    snprintf(out, 24, "q_%012llu", (unsigned long long)(id % 1000000000000000000ull));
}

bool kv_request_id_parse(const char *text, uint64_t *out)
{
    char *end;
    if (!strncmp(text, "q_", 2)) text += 2;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end;
}

static json_t *rollout_id(uint64_t id)
{
    char text[24];
    if (!id) return json_null();
    kv_rollout_id_format(id, text);
    return json_string(text);
}

static json_t *request_id(uint64_t id)
{
    char text[24];
    if (!id) return json_null();
    kv_request_id_format(id, text);
    return json_string(text);
}

/* A digest of nothing is null. */
static json_t *digest(const uint8_t d[32])
{
    static const uint8_t none[32];
    return memcmp(d, none, 32) ? kv_api_hex_json(d, 32) : json_null();
}

static json_t *text(const char *s)
{
    return kv_text_json(s, strlen(s));
}

static const char *contract(enum kv_contract c)
{
    return c == KV_APPROXIMATE ? "approximate" : "exact";
}

json_t *kv_api_transition_json(const struct kv_transition *t)
{
    return json_pack("{s:o, s:s, s:s, s:f, s:I, s:s, s:o, s:o, s:I}", "at", kv_time_json(t->at_us), "from", kv_stage_name(t->from), "to", kv_stage_name(t->to),
                     "fraction", t->fraction, "epoch", (json_int_t)t->epoch, "reason", kv_status_name(t->reason), "detail", text(t->detail), "actor", text(t->actor),
                     "receipt", (json_int_t)t->receipt);
}

static json_t *params_json(const struct kv_manifest *m)
{
    json_t *o = json_object();
    for (int32_t i = 0; i < m->pipeline->n_params; i++) {
        const struct kv_param_spec *p = &m->pipeline->params[i];
        double v = m->params.value[i];
        json_object_set_new(o, p->name, !strcmp(p->type, "int") ? json_integer((json_int_t)v) : !strcmp(p->type, "bool") ? json_boolean(v != 0) : kv_real_json(v));
    }
    return o;
}

static json_t *names_json(const char (*names)[64], int32_t n)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(list, text(names[i]));
    return list;
}

static json_t *headers_json(const struct kv_cohort *c)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < c->n_headers; i++) json_array_append_new(list, text(c->headers[i]));
    return list;
}

static json_t *steps_json(const struct kv_manifest *m)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < m->n_steps; i++) {
        const struct kv_step *s = &m->steps[i];
        json_array_append_new(list, json_pack("{s:s, s:f, s:i, s:I}", "stage", kv_stage_name(s->stage), "fraction", s->fraction, "min_seconds", (int)s->min_seconds,
                                              "min_samples", (json_int_t)s->min_samples));
    }
    return list;
}

json_t *kv_api_gates_json(const struct kv_gate_result *gates, int32_t n)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) {
        const struct kv_gate_result *g = &gates[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:s, s:I, s:I, s:s, s:o}", "name", g->metric, "metric", g->metric, "verdict",
            kv_verdict_name(g->verdict), "judged", (int)g->judged, "value", kv_real_json(g->value), "lower", kv_real_json(g->lower), "upper", kv_real_json(g->upper),
            "threshold", kv_real_json(g->threshold), "comparison", g->comparison ? g->comparison : "", "n", (json_int_t)g->n, "min_n", (json_int_t)g->min_n, "unit",
            g->unit ? g->unit : "", "detail", text(g->detail)));
    }
    return list;
}

static json_t *verbs_json(const struct kv_rollout_view *v)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < v->n_verbs; i++) {
        const struct kv_verb_view *w = &v->verbs[i];
        json_array_append_new(list, json_pack("{s:s, s:b, s:o}", "verb", kv_verb_name(w->verb), "enabled", (int)w->enabled, "why", text(w->why)));
    }
    return list;
}

json_t *kv_api_rollout_json(const struct kv_rollout_view *v)
{
    const struct kv_rollout *r = &v->r;
    const struct kv_manifest *m = &r->manifest;
    json_t *transitions = json_array();
    for (int32_t i = 0; i < r->n_transitions; i++) json_array_append_new(transitions, kv_api_transition_json(&r->transitions[i]));
    json_t *o = json_pack("{s:o, s:o, s:s, s:o, s:s, s:o, s:o}", "id", rollout_id(r->id), "name", text(m->name), "pipeline", m->pipeline->name, "params", params_json(m),
                          "contract", contract(m->contract), "manifest", kv_api_hex_json(m->digest, 32), "model_artifact", kv_api_hex_json(m->model_artifact, 32));
    json_object_set_new(o, "byte_cost", m->byte_cost > 0 ? kv_real_json(m->byte_cost) : json_null());
    json_object_set_new(o, "index_share", m->byte_cost > 0 && m->index_share >= 0 ? kv_real_json(m->index_share) : json_null());
    json_t *state = json_pack("{s:s, s:f, s:b, s:b, s:I, s:i, s:I, s:o, s:o, s:o}", "stage", kv_stage_name(r->stage), "fraction", r->fraction, "paused", (int)r->paused,
                              "live", (int)r->live, "version", (json_int_t)r->version, "step", (int)r->step, "epoch", (json_int_t)r->epoch, "created_at",
                              kv_time_json(r->created_us), "stage_since", kv_time_json(r->stage_since_us), "ended_at", kv_time_json(r->ended_us));
    json_object_update(o, state);
    json_decref(state);
    json_object_set_new(o, "cohort", json_pack("{s:o, s:o, s:o}", "tenants", names_json(m->cohort.tenants, m->cohort.n_tenants), "classes",
                                               names_json(m->cohort.classes, m->cohort.n_classes), "headers", headers_json(&m->cohort)));
    json_object_set_new(o, "author", text(r->author));
    json_object_set_new(o, "approver", text(r->approver));
    json_object_set_new(o, "steps", steps_json(m));
    json_object_set_new(o, "gates", kv_api_gates_json(v->gates, v->n_gates));
    json_object_set_new(o, "transitions", transitions);
    json_object_set_new(o, "verbs", verbs_json(v));
    return o;
}

json_t *kv_api_receipt_json(const struct kv_receipt_row *row)
{
    const struct kv_receipt *r = &row->r;
    json_t *o = json_pack("{s:I, s:o, s:s, s:s, s:o, s:o, s:I, s:s, s:s}", "id", (json_int_t)row->id, "at", kv_time_json(r->at_us), "kind", kv_row_kind_name((int)r->kind),
                          "reason", kv_status_name(r->reason), "request", request_id(r->request), "rollout", rollout_id(r->candidate), "epoch", (json_int_t)r->epoch,
                          "contract", contract(r->contract), "published", contract(r->published));
    json_t *more = json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "tenant", text(r->tenant), "session", text(r->session), "detail", text(r->detail), "value",
                             kv_real_json(r->value), "bytes", (json_int_t)r->bytes, "rows", (json_int_t)r->rows, "rows_total", (json_int_t)r->rows_total, "tokens",
                             (json_int_t)r->tokens, "digest", digest(r->digest), "hash", kv_api_hex_json(row->hash, 32));
    json_object_update(o, more);
    json_decref(more);
    if ((int)r->kind == KV_RECEIPT_REQUEST && memcmp(r->digest, (uint8_t[16]){0}, 16)) json_object_set_new(o, "trace", kv_api_hex_json(r->digest, 16));
    if (r->layer >= 0) json_object_set_new(o, "layer", json_integer(r->layer));
    if (r->kv_head >= 0) json_object_set_new(o, "kv_head", json_integer(r->kv_head));
    if (r->q_head >= 0) json_object_set_new(o, "q_head", json_integer(r->q_head));
    if (r->position >= 0) json_object_set_new(o, "position", json_integer(r->position));
    return o;
}

json_t *kv_api_failure_json(const struct kv_receipt_row *row)
{
    const struct kv_receipt *r = &row->r;
    return json_pack("{s:I, s:o, s:s, s:s, s:s, s:o, s:o, s:o, s:I}", "id", (json_int_t)row->id, "at", kv_time_json(r->at_us), "reason", kv_status_name(r->reason), "class",
                     kv_status_class(r->reason), "meaning", kv_status_meaning(r->reason), "detail", text(r->detail), "request", request_id(r->request), "rollout",
                     rollout_id(r->candidate), "receipt", (json_int_t)row->id);
}
