/* openai.h — one request in OpenAI's wire format: read from JSON, submitted, answered whole or as a stream. */
#ifndef KV_OPENAI_H
#define KV_OPENAI_H

#include "controller/http/api.h"
#include "controller/openai/openai_schema.h"

struct kv_openai {
    struct kv_app *app;
    struct kv_http_request *http;
    bool chat, stream, include_usage, logprobs;
    const char *pipeline;  /* an operator asked for it: resident, or the live candidate's; NULL: as the cohort has it */
    int32_t *ids;
    struct kv_openai_schema *schema; /* of response_format; NULL: any text */
    struct kv_request q;   /* strings belong to the request's JSON */
    int64_t deadline_ms, created_s;
    int64_t arrival_us;    /* kv_interruptions_now_us, of a continuation: the original one */
    uint64_t resumed;      /* epoch of the pause that it continues; 0: none */
    int64_t came_us;       /* CLOCK_REALTIME */
    struct kv_assignment arm;
    struct kv_stream *reader;
    uint64_t id;           /* the engine's; 0 before submit */
    bool undurable;        /* it is over, and its receipts are not on disk */
    char tenant[64], session[64]; /* outlive the HTTP request's JSON in streams */
};

/* Fills o from r's JSON: every field checked, unknown ones refused with the nearest name. */
enum kv_status kv_openai_parse(struct kv_openai *o, struct kv_error *err);
bool kv_openai_plain(const char *name); /* no control characters, which would steer the terminals that lists are printed on */
/* Answers: the whole completion, or a stream that takes o over (*taken). */
enum kv_status kv_openai_answer(struct kv_openai *o, struct kv_error *err);
enum kv_status kv_openai_answer_stream(struct kv_openai *o, bool *taken, struct kv_error *err);
void kv_openai_free(struct kv_openai *o); /* closes the reader, which cancels a running request */

/* Shared by both answers. published: of this chunk or of the whole. */
json_t *kv_openai_stamp(const struct kv_openai *o, uint64_t candidate, uint64_t epoch, enum kv_contract published);
json_t *kv_openai_usage(const struct kv_request_stats *s);
json_t *kv_openai_envelope(const struct kv_openai *o, const char *object);
json_t *kv_openai_token_json(const struct kv_openai *o, const struct kv_chunk *c); /* chat's logprobs.content entry */
void kv_openai_add_logprobs(const struct kv_openai *o, json_t *to, const struct kv_chunk *c, int64_t *text_offset); /* completions' five lists */
const char *kv_openai_finish_name(enum kv_finish f);
/* Of a request that was paused: *pause, of its own tool call, NULL when somebody else paused it. Nobody is told before it is durable. */
enum kv_status kv_openai_paused(struct kv_openai *o, json_t **pause, struct kv_error *err);
/* The error of a request that ended in KV_FINISH_ERROR or was cancelled. */
enum kv_status kv_openai_failed(const struct kv_openai *o, const struct kv_request_stats *s, struct kv_error *err);

#endif
