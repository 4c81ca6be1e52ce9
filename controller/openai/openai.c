/* openai.c — completions and chat completions: assigned to an arm, submitted, answered whole; models and tokens. */
#include "controller/openai/admission.h"
#include "controller/interruptions.h"
#include "controller/http/trace_context.h"
#include "controller/http/trace_record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { READ_MS = 200, CHUNKS = 64 /* a full read may have left more */ };

void kv_openai_free(struct kv_openai *o)
{
    if (!o) return;
    if (o->reader) {
        struct kv_request_stats s;
        kv_stream_stats(o->reader, &s);
        kv_sessions_note(o->app->sessions, o->tenant, o->session, o->arm.arm, 0, (uint64_t)s.n_published, kv_realtime_us());
        kv_trace_record_add(o->app->trace, o->came_us, o->tenant, o->ids, o->q.n_prompt, s.n_published, o->deadline_ms, o->q.contract);
        kv_stream_close(o->reader);
        if (o->resumed && (s.finish != KV_FINISH_CANCELLED || !o->app->draining)) kv_interruptions_resumed(o); /* what a stop cuts off is paused again at the next start */
    }
    kv_interruptions_ended(o->app->interruptions, o);
    o->app->inferring--;
    kv_openai_schema_free(o->schema);
    free(o->ids);
    free(o);
}

const char *kv_openai_finish_name(enum kv_finish f)
{
    return f == KV_FINISH_PAUSED ? "pause" : f == KV_FINISH_STOP ? "stop" : f == KV_FINISH_LENGTH ? "length" : f == KV_FINISH_CANCELLED ? "cancelled" : "error";
}

enum kv_status kv_openai_failed(const struct kv_openai *o, const struct kv_request_stats *s, struct kv_error *err)
{
    if (s->finish == KV_FINISH_CANCELLED && o->app->draining) { /* the client is still there: it is the server that left */
        kv_fail(err, KV_DRAINING, "request", "the server stopped before the answer was whole");
        kv_hint(err, "ask another instance, or again when this one is back");
        return KV_DRAINING;
    }
    enum kv_status st = s->finish == KV_FINISH_CANCELLED && !s->status ? KV_CANCELLED : s->status ? s->status : KV_INTERNAL;
    return kv_fail(err, st, "request", "%s", kv_status_meaning(st));
}

json_t *kv_openai_stamp(const struct kv_openai *o, uint64_t candidate, uint64_t epoch, enum kv_contract published)
{
    char id[24];
    kv_request_id_format(o->id, id);
    enum kv_stage stage = epoch == o->arm.epoch ? o->arm.stage : kv_control_stage_at(o->app->control, epoch);
    if (o->arm.candidate && !candidate) stage = KV_STAGE_EXACT_BASELINE; /* what it had was taken from it on the way */
    json_t *stamp = json_pack("{s:s, s:I, s:s, s:s, s:s, s:s}", "release_stage", kv_stage_name(stage), "release_epoch", (json_int_t)epoch,
                     "pipeline", candidate ? o->arm.pipeline : "resident", "contract", o->q.contract == KV_APPROXIMATE ? "approximate" : "exact",
                     "published_contract", published == KV_APPROXIMATE ? "approximate" : "exact", "receipt_id", id);
    char trace[33];
    kv_hex(o->q.trace_id, 16, trace);
    if (*o->http->traceparent) json_object_set_new(stamp, "trace_id", json_string(trace));
    if (o->undurable) json_object_set_new(stamp, "receipt_durable", json_false());
    return stamp;
}

json_t *kv_openai_usage(const struct kv_request_stats *s)
{
    return json_pack("{s:i, s:i, s:i, s:{s:i}}", "prompt_tokens", (int)s->n_prompt, "completion_tokens", (int)s->n_published, "total_tokens",
                     (int)(s->n_prompt + s->n_published), "prompt_tokens_details", "cached_tokens", (int)s->n_reused);
}

json_t *kv_openai_envelope(const struct kv_openai *o, const char *object)
{
    char id[40] = "cmpl-";
    if (o->chat) strcpy(id, "chatcmpl-");
    kv_request_id_format(o->id, id + strlen(id));
    return json_pack("{s:s, s:s, s:I, s:s}", "id", id, "object", object, "created", (json_int_t)o->created_s, "model", kv_model_info(o->app->model)->name);
}

/* ---------------------------------------------------------------- logprobs */

static json_t *token_text(const struct kv_openai *o, int32_t id, size_t *bytes, char *raw, size_t cap)
{
    *bytes = kv_token_bytes(o->app->model, id, true, raw, cap);
    if (*bytes > cap) *bytes = cap;
    return kv_text_json(raw, *bytes);
}

static json_t *logprob_entry(const struct kv_openai *o, int32_t id, float logprob)
{
    char raw[256];
    size_t n;
    json_t *text = token_text(o, id, &n, raw, sizeof raw), *bytes = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(bytes, json_integer((unsigned char)raw[i]));
    return json_pack("{s:o, s:o, s:o}", "token", text, "logprob", kv_real_json((double)logprob), "bytes", bytes);
}

json_t *kv_openai_token_json(const struct kv_openai *o, const struct kv_chunk *c)
{
    json_t *entry = logprob_entry(o, c->token, c->logprob), *top = json_array();
    for (int32_t i = 0; i < c->n_top && i < o->q.n_logprobs; i++) json_array_append_new(top, logprob_entry(o, c->top_id[i], c->top_logprob[i]));
    json_object_set_new(entry, "top_logprobs", top);
    return entry;
}

void kv_openai_add_logprobs(const struct kv_openai *o, json_t *to, const struct kv_chunk *c, int64_t *text_offset)
{
    char raw[256];
    size_t n, own;
    json_t *top = json_object();
    json_array_append_new(json_object_get(to, "tokens"), token_text(o, c->token, &own, raw, sizeof raw));
    json_array_append_new(json_object_get(to, "token_ids"), json_integer(c->token));
    json_array_append_new(json_object_get(to, "token_logprobs"), kv_real_json((double)c->logprob));
    json_array_append_new(json_object_get(to, "text_offset"), json_integer(*text_offset));
    for (int32_t i = 0; i < c->n_top; i++) {
        json_t *text = token_text(o, c->top_id[i], &n, raw, sizeof raw);
        json_object_set_new(top, json_string_value(text), kv_real_json((double)c->top_logprob[i]));
        json_decref(text);
    }
    json_array_append_new(json_object_get(to, "top_logprobs"), top);
    *text_offset += (int64_t)own;
}

/* ---------------------------------------------------------------- the whole answer */

struct text {
    char *at;
    size_t n, cap;
};

static bool append(struct text *t, const char *s, size_t n)
{
    if (t->n + n + 1 > t->cap) {
        size_t cap = 2 * (t->n + n + 128);
        char *more = realloc(t->at, cap);
        if (!more) return false;
        t->at = more;
        t->cap = cap;
    }
    memcpy(t->at + t->n, s, n);
    t->n += n;
    t->at[t->n] = 0;
    return true;
}

/* Reads to the end; CANCELLED when the client goes away first. */
static enum kv_status read_all(struct kv_openai *o, struct text *text, json_t *logprobs, uint64_t *epoch, struct kv_error *err)
{
    struct kv_chunk *chunk = calloc(CHUNKS, sizeof *chunk);
    enum kv_finish finish = KV_RUNNING;
    int64_t offset = 0;
    char tail[256] = "";
    enum kv_status st = chunk ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "request", "no memory for the answer");
    for (int32_t n = CHUNKS; !st && (finish == KV_RUNNING || n == CHUNKS);) {
        st = kv_stream_read(o->reader, chunk, CHUNKS, READ_MS, &n, &finish);
        for (int32_t i = 0; i < n && !st; i++) {
            if (!append(text, chunk[i].text, (size_t)chunk[i].n_text)) st = kv_fail(err, KV_OUT_OF_MEMORY, "request", "no memory for the answer");
            if (o->logprobs && o->chat) json_array_append_new(json_object_get(logprobs, "content"), kv_openai_token_json(o, &chunk[i]));
            else if (o->logprobs) kv_openai_add_logprobs(o, logprobs, &chunk[i], &offset);
            *epoch = chunk[i].epoch;
        }
        if (!st && finish == KV_RUNNING && (kv_http_client_gone(o->http) || kv_http_stopping(o->http->server)))
            st = kv_fail(err, KV_CANCELLED, "request", "the client went away");
    }
    if (!st) kv_stream_tail(o->reader, tail, sizeof tail);
    if (!st && !append(text, tail, strlen(tail))) st = kv_fail(err, KV_OUT_OF_MEMORY, "request", "no memory for the answer");
    free(chunk);
    return st;
}

enum kv_status kv_openai_paused(struct kv_openai *o, json_t **pause, struct kv_error *err)
{
    *pause = NULL;
    if (kv_interruptions_paused(o->app->interruptions, o)) return KV_OK;
    if (o->q.pause_at_stop) return kv_interruptions_tool_call(o, pause, err);
    return kv_fail(err, KV_NOT_PAUSED, "session", "the pause of session '%s' could not be written down; its answer has ended", o->session);
}

enum kv_status kv_openai_answer(struct kv_openai *o, struct kv_error *err)
{
    struct text text = {0};
    struct kv_request_stats stats;
    uint64_t epoch = o->arm.epoch;
    json_t *pause = NULL;
    json_t *logprobs = !o->logprobs ? json_null() : o->chat ? json_pack("{s:[]}", "content")
                     : json_pack("{s:[], s:[], s:[], s:[], s:[]}", "tokens", "token_ids", "token_logprobs", "top_logprobs", "text_offset");
    enum kv_status st = read_all(o, &text, logprobs, &epoch, err);
    if (!st) {
        kv_stream_stats(o->reader, &stats);
        o->undurable = !kv_store_settle(o->app->store);
        if (stats.finish == KV_FINISH_PAUSED) st = kv_openai_paused(o, &pause, err);
        else if (stats.finish != KV_FINISH_STOP && stats.finish != KV_FINISH_LENGTH) st = kv_openai_failed(o, &stats, err);
    }
    if (!st) {
        json_t *body = kv_openai_envelope(o, o->chat ? "chat.completion" : "text_completion"), *answer = kv_text_json(text.at, text.n);
        json_t *choice = o->chat ? json_pack("{s:i, s:{s:s, s:o}}", "index", 0, "message", "role", "assistant", "content", answer)
                                 : json_pack("{s:i, s:o}", "index", 0, "text", answer);
        json_object_set(choice, "logprobs", logprobs);
        json_object_set_new(choice, "finish_reason", json_string(pause ? "tool_calls" : kv_openai_finish_name(stats.finish)));
        json_object_set_new(body, "choices", json_pack("[o]", choice));
        json_object_set_new(body, "usage", kv_openai_usage(&stats));
        json_object_set_new(body, "kvasir", kv_openai_stamp(o, stats.candidate, epoch, stats.published));
        if (pause) json_object_set_new(json_object_get(body, "kvasir"), "pause", pause);
        st = kv_http_reply_json(o->http, 200, body, err);
    }
    json_decref(logprobs);
    free(text.at);
    return st;
}

/* ---------------------------------------------------------------- submit */

static const char *header_of(void *http, const char *name)
{
    return kv_http_header(http, name);
}

static enum kv_status assign(struct kv_openai *o, struct kv_error *err)
{
    struct kv_cohort_key key = {o->tenant, o->q.class, o->session, o->q.contract, header_of, o->http};
    bool baseline = o->pipeline && !strcmp(o->pipeline, "resident");
    if (o->pipeline && !baseline) return kv_control_assign_candidate(o->app->control, o->pipeline, o->q.contract, &o->arm, err);
    kv_control_assign(o->app->control, &key, &o->arm);
    if (baseline) o->arm.candidate = 0, o->arm.arm = KV_ARM_OUTSIDE;
    return KV_OK;
}

static enum kv_status submit(struct kv_openai *o, struct kv_error *err)
{
    struct kv_request_stats s;
    enum kv_status st = assign(o, err);
    if (st) return st;
    kv_admission_ask(o);
    kv_traceparent_parse(o->http->traceparent, o->q.trace_id);
    o->q.candidate = o->arm.candidate;
    o->q.epoch = o->arm.epoch;
    o->q.deadline_us = o->deadline_ms ? kv_monotonic_us() + o->deadline_ms * 1000 : 0;
    st = kv_engine_submit(o->app->engine, &o->q, &o->reader, err);
    if (st) return st;
    kv_stream_stats(o->reader, &s);
    o->id = s.id;
    kv_control_started(o->app->control, o->id, o->arm.arm);
    kv_sessions_note(o->app->sessions, o->tenant, o->session, o->arm.arm, 1, 0, kv_realtime_us());
    kv_interruptions_running(o->app->interruptions, o);
    return KV_OK;
}

static enum kv_status complete(struct kv_http_request *r, bool chat, struct kv_error *err)
{
    struct kv_app *app = r->app;
    if (app->draining) return kv_fail(err, KV_DRAINING, "server", "%s", kv_status_meaning(KV_DRAINING));
    struct kv_openai *o = calloc(1, sizeof *o);
    if (!o) return kv_fail(err, KV_OUT_OF_MEMORY, "request", "no memory for the request");
    *o = (struct kv_openai){.app = app, .http = r, .chat = chat, .created_s = kv_realtime_us() / 1000000, .came_us = kv_realtime_us()};
    snprintf(o->tenant, sizeof o->tenant, "%s", r->who.tenant);
    bool taken = false, room = ++app->inferring <= app->max_inferring;
    enum kv_status st = room ? kv_openai_parse(o, err) : kv_fail(err, KV_QUEUE_FULL, "server", "%d requests are under way; retry later", app->max_inferring);
    if (!st) st = submit(o, err);
    if (!st) st = o->stream ? kv_openai_answer_stream(o, &taken, err) : kv_openai_answer(o, err);
    if (!taken) kv_openai_free(o);
    return st;
}

KV_HANDLER(kv_openai_completions)
{
    return complete(r, false, err);
}

KV_HANDLER(kv_openai_chat)
{
    return complete(r, true, err);
}

/* ---------------------------------------------------------------- models and tokens */

static json_t *model_json(const struct kv_app *app)
{
    const struct kv_model_info *m = kv_model_info(app->model);
    return json_pack("{s:s, s:s, s:I, s:s, s:{s:o, s:s, s:i, s:i}}", "id", m->name, "object", "model", "created", (json_int_t)0, "owned_by", "kvasir", "kvasir",
                     "artifact", kv_api_hex_json(m->artifact, 32), "architecture", m->architecture, "context_length", (int)m->context_length, "vocabulary", (int)m->n_vocab);
}

KV_HANDLER(kv_openai_models)
{
    return kv_http_reply_json(r, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(r->app)), err);
}

KV_HANDLER(kv_openai_model)
{
    const char *own = kv_model_info(((struct kv_app *)r->app)->model)->name;
    if (strcmp(r->part[0], own)) return kv_fail(err, KV_NOT_FOUND, "model", "no model is named '%s'; this server has '%s'", r->part[0], own);
    return kv_http_reply_json(r, 200, model_json(r->app), err);
}

/* NOT the wire's business to guess: fields other than these two are refused. */
static enum kv_status only(json_t *o, const char *a, const char *b, struct kv_error *err)
{
    const char *name;
    json_t *v;
    json_object_foreach(o, name, v) {
        if (strcmp(name, a) && strcmp(name, b)) return kv_fail(err, KV_UNKNOWN_KEY, name, "no field of this request is named '%.60s'", name);
    }
    return KV_OK;
}

KV_HANDLER(kv_openai_tokenize)
{
    json_t *text = json_object_get(r->json, "text"), *special = json_object_get(r->json, "special");
    enum kv_status st = only(r->json, "text", "special", err);
    if (st) return st;
    if (!json_is_string(text)) return kv_fail(err, KV_BAD_ARGUMENT, "text", "text must be given, as text");
    if (special && !json_is_boolean(special)) return kv_fail(err, KV_BAD_ARGUMENT, "special", "special must be true or false");
    size_t cap = json_string_length(text) + 8, n = 0;
    int32_t *ids = calloc(cap, sizeof *ids);
    if (!ids) return kv_fail(err, KV_OUT_OF_MEMORY, "text", "no memory for the tokens");
    st = kv_tokenize(((struct kv_app *)r->app)->model, json_string_value(text), json_string_length(text), json_is_true(special), ids, cap, &n, err);
    json_t *list = json_array();
    for (size_t i = 0; i < n && !st; i++) json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    if (st) json_decref(list);
    return st ? st : kv_http_reply_json(r, 200, json_pack("{s:o}", "ids", list), err);
}

KV_HANDLER(kv_openai_detokenize)
{
    struct kv_app *app = r->app;
    json_t *list = json_object_get(r->json, "ids"), *v;
    size_t i, n = json_array_size(list), len = 0;
    int32_t vocabulary = kv_model_info(app->model)->n_vocab;
    enum kv_status st = only(r->json, "ids", "special", err);
    if (!st && !json_is_array(list)) st = kv_fail(err, KV_BAD_ARGUMENT, "ids", "ids must be a list of token ids");
    int32_t *ids = calloc(n + 1, sizeof *ids);
    for (i = 0; i < n && !st; i++) {
        v = json_array_get(list, i);
        if (!json_is_integer(v)) st = kv_fail(err, KV_BAD_ARGUMENT, "ids", "ids[%zu] is not a whole number", i);
        else if (json_integer_value(v) < 0 || json_integer_value(v) >= vocabulary)
            st = kv_fail(err, KV_TOKEN_OUT_OF_RANGE, "ids", "token id %lld at index %zu lies outside the vocabulary of %d", (long long)json_integer_value(v), i, (int)vocabulary);
        else if (ids) ids[i] = (int32_t)json_integer_value(v);
    }
    bool special = json_is_true(json_object_get(r->json, "special"));
    char *text = NULL;
    if (!st && ids) kv_detokenize(app->model, ids, n, special, NULL, 0, &len);
    if (!st) st = ids && (text = calloc(1, len + 1)) ? kv_detokenize(app->model, ids, n, special, text, len + 1, &len) : KV_OUT_OF_MEMORY;
    if (st && !err->status) kv_fail(err, st, "ids", "%s", kv_status_meaning(st));
    if (!st) st = kv_http_reply_json(r, 200, json_pack("{s:o}", "text", kv_text_json(text, len)), err);
    free(text);
    free(ids);
    return st;
}
