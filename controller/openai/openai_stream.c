/* openai_stream.c — answers as server-sent events: one a published token, made as the client takes them. */
#include "controller/interruptions.h"

#include <stdlib.h>
#include <string.h>

enum { READ_MS = 200, CHUNKS = 16 /* a full read may have left more */ };

struct sse {
    struct kv_openai *o;
    char *out; /* encoded and not yet sent */
    size_t n, sent;
    int64_t text_offset;
    uint64_t epoch, candidate;
    enum kv_contract published;
    bool opened, done;
};

static void put(struct sse *s, json_t *event)
{
    char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;
    size_t n = text ? strlen(text) : 0;
    char *more = text ? realloc(s->out, s->n + n + 9) : NULL;
    json_decref(event);
    if (more) {
        s->n += (size_t)sprintf(more + s->n, "data: %s\n\n", text);
        s->out = more;
    } else s->done = true; /* out of memory: the stream ends without its [DONE] */
    free(text);
}

static json_t *event(struct sse *s, json_t *choices, enum kv_contract published)
{
    json_t *e = kv_openai_envelope(s->o, s->o->chat ? "chat.completion.chunk" : "text_completion");
    json_object_set_new(e, "choices", choices);
    json_object_set_new(e, "kvasir", kv_openai_stamp(s->o, s->candidate, s->epoch, published));
    return e;
}

static json_t *choice(const struct sse *s, const char *text, size_t n, json_t *logprobs, const char *finish)
{
    json_t *t = kv_text_json(text, n), *end = finish ? json_string(finish) : json_null();
    if (!s->o->chat) return json_pack("{s:i, s:o, s:o, s:o}", "index", 0, "text", t, "logprobs", logprobs, "finish_reason", end);
    json_t *delta = finish && !n ? (json_decref(t), json_object()) : json_pack("{s:o}", "content", t);
    return json_pack("{s:i, s:o, s:o, s:o}", "index", 0, "delta", delta, "logprobs", logprobs, "finish_reason", end);
}

static void put_chunk(struct sse *s, const struct kv_chunk *c)
{
    json_t *logprobs = json_null();
    if (s->o->logprobs && s->o->chat) logprobs = json_pack("{s:[o]}", "content", kv_openai_token_json(s->o, c));
    else if (s->o->logprobs) {
        logprobs = json_pack("{s:[], s:[], s:[], s:[], s:[]}", "tokens", "token_ids", "token_logprobs", "top_logprobs", "text_offset");
        kv_openai_add_logprobs(s->o, logprobs, c, &s->text_offset);
    }
    s->epoch = c->epoch;
    s->candidate = c->candidate;
    if (c->published == KV_APPROXIMATE) s->published = KV_APPROXIMATE;
    put(s, event(s, json_pack("[o]", choice(s, c->text, (size_t)c->n_text, logprobs, NULL)), c->published));
}

static void put_end(struct sse *s)
{
    struct kv_request_stats stats;
    struct kv_error err = {0};
    char tail[256] = "", *more;
    kv_stream_stats(s->o->reader, &stats);
    s->o->undurable = !kv_store_settle(s->o->app->store);
    s->done = true;
    json_t *pause = NULL;
    bool paused = stats.finish == KV_FINISH_PAUSED, ok = stats.finish == KV_FINISH_STOP || stats.finish == KV_FINISH_LENGTH || paused;
    if (!ok || (paused && kv_openai_paused(s->o, &pause, &err) != KV_OK)) {
        if (!ok) kv_openai_failed(s->o, &stats, &err);
        put(s, kv_http_error_json(&err));
        return;
    }
    kv_stream_tail(s->o->reader, tail, sizeof tail);
    if (*tail) put(s, event(s, json_pack("[o]", choice(s, tail, strlen(tail), json_null(), NULL)), s->published));
    json_t *end = event(s, json_pack("[o]", choice(s, "", 0, json_null(), pause ? "tool_calls" : kv_openai_finish_name(stats.finish))), s->published);
    if (pause) json_object_set_new(json_object_get(end, "kvasir"), "pause", pause);
    put(s, end);
    if (s->o->include_usage) {
        json_t *e = event(s, json_array(), s->published);
        json_object_set_new(e, "usage", kv_openai_usage(&stats));
        put(s, e);
    }
    if ((more = realloc(s->out, s->n + 15))) {
        s->out = more;
        s->n += (size_t)sprintf(more + s->n, "data: [DONE]\n\n");
    }
}

static ssize_t sse_read(void *ctx, char *buf, size_t cap)
{
    struct sse *s = ctx;
    if (s->sent == s->n) {
        struct kv_chunk chunk[CHUNKS];
        enum kv_finish finish = KV_RUNNING;
        int32_t n = 0;
        s->sent = s->n = 0;
        if (s->done) return -1;
        if (s->o->chat && !s->opened) put(s, event(s, json_pack("[{s:i, s:{s:s, s:s}, s:n, s:n}]", "index", 0, "delta", "role", "assistant", "content", "", "logprobs", "finish_reason"), KV_EXACT));
        s->opened = true;
        if (!s->n && kv_stream_read(s->o->reader, chunk, CHUNKS, READ_MS, &n, &finish)) return -1;
        for (int32_t i = 0; i < n; i++)
            if (chunk[i].n_text || s->o->logprobs) put_chunk(s, &chunk[i]);
        if (finish != KV_RUNNING && n < CHUNKS && !s->n) put_end(s); /* alone: it waits for the disk, which tokens do not */
    }
    size_t left = s->n - s->sent, take = left < cap ? left : cap;
    if (take) memcpy(buf, s->out + s->sent, take);
    s->sent += take;
    return (ssize_t)take;
}

static void sse_release(void *ctx)
{
    struct sse *s = ctx;
    kv_openai_free(s->o);
    free(s->out);
    free(s);
}

enum kv_status kv_openai_answer_stream(struct kv_openai *o, bool *taken, struct kv_error *err)
{
    struct sse *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "request", "no memory for the stream");
    *s = (struct sse){.o = o, .epoch = o->arm.epoch, .candidate = o->arm.candidate};
    *taken = true;
    return kv_http_reply_stream(o->http, "text/event-stream", &(struct kv_http_stream){sse_read, sse_release, s}, err);
}
