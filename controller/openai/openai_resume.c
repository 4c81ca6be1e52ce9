/* openai_resume.c — the rest of a paused request's answer. */
#include "controller/openai/admission.h"
#include "controller/interruptions.h"
#include "controller/http/trace_context.h"

#include <stdlib.h>
#include <string.h>

static double number(const json_t *o, const char *name)
{
    return json_number_value(json_object_get(o, name));
}

static int32_t whole(const json_t *o, const char *name)
{
    return (int32_t)json_integer_value(json_object_get(o, name));
}

/* The clock may have been set between two processes: an arrival is never in the future. */
static int64_t monotonic_arrival(const struct kv_openai *o)
{
    int64_t age_us = kv_interruptions_now_us(o->app->interruptions) - o->arrival_us, now_us = kv_monotonic_us();
    return age_us < 0 ? now_us : age_us < now_us ? now_us - age_us : 1;
}

static enum kv_status continue_from(struct kv_openai *o, const struct kv_stored_pause *p, json_t *m, struct kv_error *err)
{
    const json_t *s = json_object_get(m, "sampling"), *stops = json_object_get(m, "stop"), *seed = json_object_get(s, "seed");
    int32_t n = p->n_tokens + p->n_result_tokens, heard_from = whole(m, "heard_from");
    int64_t context = o->app->config->context_length ? o->app->config->context_length : kv_model_info(o->app->model)->context_length;
    o->ids = calloc((size_t)n + 1, sizeof *o->ids);
    if (!o->ids) return kv_fail(err, KV_OUT_OF_MEMORY, "session", "no memory for the continuation");
    memcpy(o->ids, p->tokens, (size_t)p->n_tokens * sizeof *o->ids);
    memcpy(o->ids + p->n_tokens, p->result_tokens, (size_t)p->n_result_tokens * sizeof *o->ids);
    uint8_t trace[24];
    kv_traceparent_parse(o->http->traceparent, trace);
    bool text_goes_on = !p->n_result_tokens && heard_from >= 0 && heard_from <= p->n_tokens;
    o->q = (struct kv_request){.prompt = o->ids, .n_prompt = n, .first_prompt = whole(m, "first_prompt"), .n_spoken = whole(m, "spoken"), .ignore_eos = json_is_true(json_object_get(m, "ignore_eos")),
        .spoken = text_goes_on ? o->ids + heard_from : NULL, .n_heard = text_goes_on ? p->n_tokens - heard_from : 0, .resume = (uint64_t)json_integer_value(json_object_get(m, "request")),
        .arrival_us = monotonic_arrival(o), .pause_at_stop = json_is_true(json_object_get(m, "tool_pause")), .tenant = o->tenant, .session = o->session,
        .class = json_string_value(json_object_get(m, "class")), .max_tokens = whole(m, "max_tokens"),
        .contract = json_string_value(json_object_get(m, "contract")) && *json_string_value(json_object_get(m, "contract")) == 'a' ? KV_APPROXIMATE : KV_EXACT};
    o->q.sampling = (struct kv_sampling){.temperature = (float)number(s, "temperature"), .top_p = (float)number(s, "top_p"), .top_k = whole(s, "top_k"), .repetition_penalty = (float)number(s, "repetition_penalty"),
        .presence_penalty = (float)number(s, "presence_penalty"), .frequency_penalty = (float)number(s, "frequency_penalty"), .seed = strtoull(json_string_value(seed) ? json_string_value(seed) : "0", NULL, 10)};
    for (size_t i = 0; i < json_array_size(stops) && i < KV_MAX_STOPS; i++) o->q.stop[i] = json_string_value(json_array_get(stops, i));
    memcpy(o->q.trace_id, trace, sizeof trace);
    if (o->q.max_tokens > context - n) o->q.max_tokens = (int32_t)(context - n);
    return o->q.max_tokens > 0 ? KV_OK : kv_fail(err, KV_CONTEXT_OVERRUN, "session", "%d tokens leave no room in the context of %lld", (int)n, (long long)context);
}

static enum kv_status start(struct kv_openai *o, struct kv_stored_pause *p, struct kv_error *err)
{
    struct kv_request_stats s;
    json_t *m = json_loads(p->manifest, 0, NULL);
    enum kv_status st = m ? KV_OK : kv_fail(err, KV_STORE_CORRUPT, "session", "the pause's manifest cannot be read");
    o->chat = json_is_true(json_object_get(m, "chat"));
    o->arrival_us = json_integer_value(json_object_get(m, "arrival_us"));
    if (!st) st = continue_from(o, p, m, err);
    if (!st) kv_admission_ask(o);
    if (!st) st = kv_store_resume(o->app->store, o->tenant, o->session, p->epoch, err); /* one of two that resume at once wins here */
    if (!st && (st = kv_engine_submit(o->app->engine, &o->q, &o->reader, err))) {
        struct kv_error undo;
        if (kv_interruptions_undo(o->app, o->tenant, o->session, p->epoch, &undo))
            kv_events_log(KV_LOG_WARN, "session %.63s stays resumed until the next start: its continuation was refused, and that could not be written down: %s", o->session, undo.message);
    }
    if (!st) {
        kv_stream_stats(o->reader, &s);
        o->id = s.id;
        kv_control_started(o->app->control, o->id, o->arm.arm);
        o->resumed = p->epoch;
        kv_interruptions_running(o->app->interruptions, o);
    }
    json_decref(m);
    return st;
}

KV_HANDLER(kv_session_resume)
{
    struct kv_app *app = r->app;
    json_t *epoch = json_object_get(r->json, "pause_epoch"), *stream = json_object_get(r->json, "stream"), *v;
    const char *name;
    json_object_foreach(r->json, name, v) {
        if (strcmp(name, "pause_epoch") && strcmp(name, "stream")) return kv_fail(err, KV_UNKNOWN_KEY, name, "no field of this request is named '%.60s'", name);
    }
    if (!json_is_integer(epoch)) return kv_fail(err, KV_BAD_ARGUMENT, "pause_epoch", "pause_epoch must be the whole number that the pause answered with");
    if (stream && !json_is_boolean(stream)) return kv_fail(err, KV_BAD_ARGUMENT, "stream", "stream must be true or false");
    if (app->draining) return kv_fail(err, KV_DRAINING, "server", "%s", kv_status_meaning(KV_DRAINING));
    struct kv_openai *o = calloc(1, sizeof *o);
    if (!o) return kv_fail(err, KV_OUT_OF_MEMORY, "request", "no memory for the request");
    *o = (struct kv_openai){.app = app, .http = r, .stream = json_is_true(stream), .created_s = kv_realtime_us() / 1000000, .came_us = kv_realtime_us(), .arm = {.arm = KV_ARM_OUTSIDE}};
    snprintf(o->tenant, sizeof o->tenant, "%s", r->who.tenant);
    snprintf(o->session, sizeof o->session, "%.63s", r->part[0]);
    struct kv_stored_pause p = {0};
    bool taken = false, room = ++app->inferring <= app->max_inferring;
    enum kv_status st = room ? kv_store_last_pause(app->store, o->tenant, o->session, &p, err) : kv_fail(err, KV_QUEUE_FULL, "server", "%d requests are under way; retry later", app->max_inferring);
    if (!st && p.resumed && !p.expired) {
        st = kv_fail(err, KV_NOT_PAUSED, "session", "session '%s' was resumed at epoch %llu", p.session, (unsigned long long)p.epoch + 1);
        kv_hint(err, "whoever resumed it has its answer; go on in a new request");
    }
    if (!st && p.epoch != (uint64_t)json_integer_value(epoch)) {
        st = kv_fail(err, KV_STALE_PAUSE_EPOCH, "pause_epoch", "the session is paused at epoch %llu", (unsigned long long)p.epoch);
        kv_hint(err, "send the pause_epoch of its last pause");
    }
    if (!st) st = start(o, &p, err);
    if (!st) st = o->stream ? kv_openai_answer_stream(o, &taken, err) : kv_openai_answer(o, err);
    kv_stored_pause_free(&p);
    if (!taken) kv_openai_free(o);
    return st;
}
