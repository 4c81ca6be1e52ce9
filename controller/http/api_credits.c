/* api_credits.c — who holds what of the links and the queue, and who is paused meanwhile: as operators see it. */
#include "controller/interruptions.h"

#include "runtime/service/credits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

KV_HANDLER(kv_api_interruptions)
{
    enum { MOST = 512 };
    struct kv_app *app = r->app;
    struct kv_pause_row *row = calloc(MOST, sizeof *row);
    struct kv_pause_view *view = calloc(MOST, sizeof *view);
    int32_t n = MOST, total = 0;
    enum kv_status st = row && view ? kv_store_open_pauses(app->store, row, &n, &total, err) : kv_fail(err, KV_OUT_OF_MEMORY, "interruptions", "no memory for the list");
    int32_t n_views = st ? 0 : kv_engine_paused_list(app->engine, view, MOST);
    json_t *list = json_array();
    for (int32_t i = 0; i < n && !st; i++) {
        const struct kv_pause_view *v = NULL;
        for (int32_t k = 0; k < n_views && k < MOST && !v; k++)
            if (!strcmp(view[k].session, row[i].session) && !strcmp(view[k].tenant, row[i].tenant)) v = &view[k];
        /* Of a process before: tokens are durable, rows are on disk or are computed again. */
        struct kv_pause_view none = {.state = KV_SESSION_TOKEN_ONLY, .action = KV_PAUSE_DISCARD, .n_tokens = row[i].n_tokens};
        struct kv_stored_pause p = {.epoch = row[i].epoch};
        snprintf(p.session, sizeof p.session, "%s", row[i].session);
        snprintf(p.result.call_id, sizeof p.result.call_id, "%s", row[i].call_id);
        json_t *o = kv_pause_json(&p, v ? v : &none);
        json_object_set_new(o, "tenant", json_string(row[i].tenant));
        json_object_set_new(o, "result_state", json_string(kv_result_state_name(row[i].result_state)));
        json_object_set_new(o, "paused_at", kv_time_json(row[i].paused_us));
        json_object_set_new(o, "seconds", kv_real_json(fmax(0, (double)(kv_interruptions_now_us(app->interruptions) - row[i].paused_us) / 1e6)));
        json_array_append_new(list, o);
    }
    free(row);
    free(view);
    if (st) return json_decref(list), st;
    return kv_http_reply_json(r, 200, json_pack("{s:o, s:i}", "interruptions", list, "total", (int)total), err);
}

static json_t *holders_json(const struct kv_credit_holder *h, int32_t n, int32_t cap, bool waits)
{
    json_t *list = json_array();
    int64_t now_us = kv_monotonic_us();
    for (int32_t i = 0; i < n && i < cap; i++) {
        char id[24];
        kv_request_id_format(h[i].request, id);
        json_t *o = json_pack("{s:s, s:s, s:o}", "request", id, "what", h[i].what, "seconds", kv_real_json((double)(now_us - h[i].since_us) / 1e6));
        if (waits) json_object_set_new(o, "lacks", json_string(kv_credit_name(h[i].lacks)));
        else json_object_update_new(o, json_pack("{s:I, s:I, s:i, s:i}", "backend_bytes", (json_int_t)h[i].backend_bytes, "staging_bytes", (json_int_t)h[i].staging_bytes, "queue_slots", (int)h[i].queue_slots,
                                             "sharers", (int)h[i].unit_waiters));
        json_array_append_new(list, o);
    }
    return list;
}

static void set_measured(json_t *o, const char *name, double v)
{
    json_object_set_new(o, name, v > 0 ? kv_real_json(v) : json_null());
}

/* What estimates are made from; null: not measured yet. */
static json_t *rates_json(const struct kv_engine_stats *s, bool emulated)
{
    const struct kv_rates *r = &s->rates;
    json_t *o = json_object();
    set_measured(o, "prefill_tokens_per_s", r->prefill_tokens_per_s);
    set_measured(o, "decode_tokens_per_s", r->decode_tokens_per_s);
    set_measured(o, "decode_step_us", r->decode_step_us);
    set_measured(o, "h2d_bytes_per_s", r->h2d_bytes_per_s);
    set_measured(o, "d2h_bytes_per_s", r->d2h_bytes_per_s);
    set_measured(o, "disk_read_bytes_per_s", r->disk_read_bytes_per_s);
    set_measured(o, "disk_write_bytes_per_s", r->disk_write_bytes_per_s);
    set_measured(o, "swap_bytes_per_iteration", (double)r->swap_bytes_per_iteration);
    json_object_set_new(o, "link_emulated", json_boolean(emulated));
    return o;
}

static json_t *demand_json(const struct kv_engine_stats *s)
{
    return json_pack("{s:o, s:o, s:i, s:I, s:i, s:I}", "h2d_bytes_per_s", kv_real_json(s->rates.h2d_promised), "d2h_bytes_per_s", kv_real_json(s->rates.d2h_promised), "waiting_requests", (int)s->queued,
                     "waiting_prompt_tokens", (json_int_t)s->rates.waiting_prompt_tokens, "live_requests", (int)s->active, "live_tokens_left", (json_int_t)s->rates.live_tokens_left);
}

KV_HANDLER(kv_api_credits)
{
    enum { MOST = 512 };
    struct kv_app *app = r->app;
    struct kv_credit_holder *h = calloc(2 * MOST, sizeof *h);
    struct kv_credit_view v;
    if (!h) return kv_fail(err, KV_OUT_OF_MEMORY, "credits", "no memory for the list");
    struct kv_engine_stats s;
    kv_engine_stats(app->engine, &s);
    kv_credits_view(kv_engine_credits(app->engine), &v, h, MOST, h + MOST, MOST);
    json_t *list = json_array();
    for (int k = 0; k < KV_CREDIT_KINDS; k++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "name", kv_credit_name((enum kv_credit)k), "unit", k == KV_CREDIT_QUEUE ? "slots" : "bytes", "total", (json_int_t)v.total[k],
                                              "used", (json_int_t)v.used[k], "free", (json_int_t)(v.total[k] - v.used[k]), "peak", (json_int_t)v.peak[k]));
    json_t *o = json_pack("{s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I}", "credits", list, "holders", holders_json(h, v.n_holders, MOST, false), "waiters", holders_json(h + MOST, v.n_waiters, MOST, true),
                          "reserved", (json_int_t)v.reserved, "released", (json_int_t)v.released, "refused", (json_int_t)v.refused, "stale", (json_int_t)v.stale, "coalesced_bytes", (json_int_t)v.coalesced_bytes);
    json_object_set_new(o, "rates", rates_json(&s, app->config->link_bytes_per_second > 0));
    json_object_set_new(o, "demand", demand_json(&s));
    free(h);
    return kv_http_reply_json(r, 200, o, err);
}
