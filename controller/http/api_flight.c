/* api_flight.c — what was selected for each head of the last steps: the live recorder, and the copy that a failure's receipt names. */
#include "controller/flights.h"
#include "controller/http/api.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_LIMIT = 200 };

static json_t *record_json(const struct kv_flight *f)
{
    char request[24], rollout[24], support[20];
    kv_request_id_format(f->request, request);
    kv_rollout_id_format(f->candidate, rollout);
    snprintf(support, sizeof support, "%016llx", (unsigned long long)f->support);
    json_t *o = json_pack("{s:I, s:s, s:o, s:i, s:i, s:o, s:i, s:i, s:I, s:i, s:o, s:o, s:b, s:s, s:o}", "order", (json_int_t)f->order, "request", request, "rollout",
                          f->candidate ? json_string(rollout) : json_null(), "position", (int)f->position, "layer", (int)f->layer, "kv_head", f->kv_head < 0 ? json_null() : json_integer(f->kv_head),
                          "frontier", (int)f->frontier, "covered", (int)f->covered, "index", (json_int_t)f->index, "rows", (int)f->rows, "support",
                          f->support ? json_string(support) : json_null(), "omitted_mass", f->mass < 0 ? json_null() : kv_real_json((double)f->mass), "widened", (int)f->widened, "status",
                          kv_status_name((enum kv_status)f->status), "action",
                          f->action < KV_FALLBACK_ACTIONS ? json_string(kv_fallback_action_name((enum kv_fallback_action)f->action)) : json_null());
    return o;
}

json_t *kv_api_flight_json(const struct kv_flight *f, int32_t n)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(list, record_json(&f[i]));
    return list;
}

enum kv_status kv_api_flight_of(struct kv_app *app, const struct kv_receipt_row *row, struct kv_flight_copy *out, struct kv_error *err)
{
    const char *dir = kv_store_dir(app->store);
    bool may = (int)row->r.kind == KV_RECEIPT_FALLBACK || (int)row->r.kind == KV_RECEIPT_FAILURE;
    if (!may || !memcmp(row->r.digest, (uint8_t[32]){0}, 32)) return kv_fail(err, KV_NOT_FOUND, "flight", "this receipt names no flight recording");
    kv_flights_keep(dir, app->engine, NULL); /* it may have been made since anybody looked */
    return kv_flights_read(dir, row->r.digest, out, err);
}

KV_HANDLER(kv_api_flight)
{
    static const char *const keys[] = {"request", "limit"};
    const char *request = kv_http_query(r, "request");
    uint64_t id = 0;
    int64_t limit;
    enum kv_status st = kv_http_query_known(r, keys, sizeof keys / sizeof *keys, err);
    if (!st) st = kv_http_query_int(r, "limit", DEFAULT_LIMIT, 1, KV_FLIGHT_COPY, &limit, err);
    if (!st && request && *request && !kv_request_id_parse(request, &id)) st = kv_fail(err, KV_BAD_ARGUMENT, "request", "request ids look like q_000000000012");
    if (st) return st;
    struct kv_flight *f = calloc((size_t)limit, sizeof *f);
    if (!f) return kv_fail(err, KV_OUT_OF_MEMORY, "flight", "no memory for the records");
    json_t *list = kv_api_flight_json(f, kv_engine_flight(((struct kv_app *)r->app)->engine, id, f, (int32_t)limit));
    free(f);
    return kv_http_reply_json(r, 200, json_pack("{s:o}", "flight", list), err);
}

KV_HANDLER(kv_api_receipt_flight)
{
    struct kv_app *app = r->app;
    struct kv_receipt_row row;
    struct kv_flight_copy *c = malloc(sizeof *c);
    enum kv_status st = c ? kv_api_receipt_find(r, &row, err) : kv_fail(err, KV_OUT_OF_MEMORY, "flight", "no memory for the records");
    if (!st) st = kv_api_flight_of(app, &row, c, err);
    json_t *o = st ? NULL : json_pack("{s:I, s:o, s:o}", "receipt", (json_int_t)row.id, "digest", kv_api_hex_json(c->digest, 32), "flight", kv_api_flight_json(c->record, c->n));
    free(c);
    return st ? st : kv_http_reply_json(r, 200, o, err);
}
