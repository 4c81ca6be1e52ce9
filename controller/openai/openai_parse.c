/* openai_parse.c — the request's JSON, field by field. null means absent, as OpenAI's clients send it. */
#include "controller/openai/openai.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const char *const known[] = {"model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed", "stop",
    "logprobs", "top_logprobs", "stream", "stream_options", "frequency_penalty", "presence_penalty", "repetition_penalty", "n", "ignore_eos", "response_format", "kvasir",
    /* told to us and of no consequence */
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key", "reasoning_effort", "verbosity"};
/* Known and not supported, but for the value that asks for nothing. */
static const struct { const char *name, *harmless; } unsupported[] = {{"suffix", "\"\""}, {"echo", "false"}, {"best_of", "1"}, {"logit_bias", "{}"},
    {"tools", "[]"}, {"tool_choice", "\"none\""}, {"functions", "[]"}, {"function_call", "\"none\""}, 
    {"audio", "null"}, {"modalities", "[\"text\"]"}, {"prediction", "null"}, {"web_search_options", "null"}};
static const char *const kvasir_fields[] = {"contract", "class", "session", "deadline_ms", "pipeline", "tool_pause"};

static json_t *get(json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    return json_is_null(v) ? NULL : v;
}

static enum kv_status wrong(const char *name, const char *want, struct kv_error *err)
{
    return kv_fail(err, KV_BAD_ARGUMENT, name, "%s must be %s", name, want);
}

static enum kv_status get_real(json_t *o, const char *name, double def, double min, double max, double *out, struct kv_error *err)
{
    json_t *v = get(o, name);
    char want[80];
    *out = v ? json_number_value(v) : def;
    if (!v || (json_is_number(v) && *out >= min && *out <= max)) return KV_OK;
    snprintf(want, sizeof want, "a number from %.6g to %.6g", min, max);
    return wrong(name, want, err);
}

static enum kv_status get_int(json_t *o, const char *name, int64_t def, int64_t min, int64_t max, int64_t *out, struct kv_error *err)
{
    json_t *v = get(o, name);
    char want[80];
    *out = v ? json_integer_value(v) : def;
    if (!v || (json_is_integer(v) && *out >= min && *out <= max)) return KV_OK;
    if (min == max) snprintf(want, sizeof want, "%lld", (long long)min);
    else snprintf(want, sizeof want, "a whole number from %lld to %lld", (long long)min, (long long)max);
    return wrong(name, want, err);
}

static enum kv_status get_bool(json_t *o, const char *name, bool *out, struct kv_error *err)
{
    json_t *v = get(o, name);
    *out = json_is_true(v);
    return !v || json_is_boolean(v) ? KV_OK : wrong(name, "true or false", err);
}

bool kv_openai_plain(const char *name)
{
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        if (*c < ' ' || *c == 0x7f || (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)) return false; /* the last: U+0080 to U+009F */
    return true;
}

static enum kv_status get_name(json_t *o, const char *name, const char **out, struct kv_error *err)
{
    json_t *v = get(o, name);
    *out = json_string_value(v);
    return !v || (*out && **out && json_string_length(v) < 64 && kv_openai_plain(*out)) ? KV_OK : wrong(name, "text of 1 to 63 bytes without control characters", err);
}

static enum kv_status unknown(const char *name, const char *const *names, size_t n, struct kv_error *err)
{
    const char *near = kv_config_nearest(name, names, n);
    kv_fail(err, KV_UNKNOWN_KEY, name, "no field of this request is named '%.60s'", name);
    if (near) kv_hint(err, "did you mean '%s'?", near);
    return KV_UNKNOWN_KEY;
}

static enum kv_status check_names(json_t *o, struct kv_error *err)
{
    const char *name;
    json_t *v;
    json_object_foreach(o, name, v) {
        size_t i = 0, u = 0;
        while (i < COUNT(known) && strcmp(known[i], name)) i++;
        while (u < COUNT(unsupported) && strcmp(unsupported[u].name, name)) u++;
        if (i == COUNT(known) && u == COUNT(unsupported)) return unknown(name, known, COUNT(known), err);
        if (i < COUNT(known) || json_is_null(v)) continue;
        json_t *harmless = json_loads(unsupported[u].harmless, JSON_DECODE_ANY, NULL);
        bool same = json_equal(harmless, v);
        json_decref(harmless);
        if (!same) return kv_fail(err, KV_UNSUPPORTED, name, "%s is not supported here", name);
    }
    return KV_OK;
}

static enum kv_status check_model(struct kv_openai *o, struct kv_error *err)
{
    json_t *v = get(o->http->json, "model");
    const char *name = json_string_value(v), *own = kv_model_info(o->app->model)->name;
    if (v && !name) return wrong("model", "text", err);
    if (!v || !strcmp(name, own)) return KV_OK;
    kv_fail(err, KV_NOT_FOUND, "model", "no model is named '%.80s'; this server has '%s'", name, own);
    kv_hint(err, "GET /v1/models lists the names");
    return KV_NOT_FOUND;
}

static enum kv_status parse_sampling(struct kv_openai *o, struct kv_error *err)
{
    json_t *j = o->http->json;
    struct kv_sampling *s = &o->q.sampling;
    double temperature, top_p, repetition, presence, frequency;
    int64_t top_k, seed, n;
    enum kv_status st = get_real(j, "temperature", 1, 0, 2, &temperature, err);
    if (!st) st = get_real(j, "top_p", 1, 1e-6, 1, &top_p, err);
    if (!st) st = get_int(j, "top_k", 0, 0, 1 << 24, &top_k, err);
    if (!st) st = get_real(j, "repetition_penalty", 1, 0.01, 10, &repetition, err);
    if (!st) st = get_real(j, "presence_penalty", 0, -2, 2, &presence, err);
    if (!st) st = get_real(j, "frequency_penalty", 0, -2, 2, &frequency, err);
    if (!st) st = get_int(j, "seed", 0, INT64_MIN, INT64_MAX, &seed, err);
    if (!st) st = get_int(j, "n", 1, 1, 1, &n, err);
    if (!st) st = get_bool(j, "ignore_eos", &o->q.ignore_eos, err);
    if (st) return st;
    *s = (struct kv_sampling){(float)temperature, (float)top_p, (int32_t)top_k, (float)repetition, (float)presence, (float)frequency, (uint64_t)seed};
    if (!get(j, "seed") && getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed) return kv_fail(err, KV_IO_ERROR, "seed", "no randomness can be had");
    return KV_OK;
}

static enum kv_status parse_stop(struct kv_openai *o, struct kv_error *err)
{
    json_t *v = get(o->http->json, "stop"), *item;
    size_t i;
    if (json_is_string(v) && json_string_length(v)) return o->q.stop[0] = json_string_value(v), KV_OK;
    if (!v) return KV_OK;
    if (!json_is_array(v) || json_array_size(v) > KV_MAX_STOPS) return wrong("stop", "text, or a list of at most 8 texts", err);
    json_array_foreach(v, i, item) {
        if (!json_is_string(item) || !json_string_length(item)) return wrong("stop", "made of texts that are not empty", err);
        o->q.stop[i] = json_string_value(item);
    }
    return KV_OK;
}

static enum kv_status parse_logprobs(struct kv_openai *o, struct kv_error *err)
{
    json_t *j = o->http->json;
    int64_t n = 0;
    enum kv_status st;
    if (o->chat) {
        st = get_bool(j, "logprobs", &o->logprobs, err);
        if (!st) st = get_int(j, "top_logprobs", 0, 0, KV_MAX_LOGPROBS, &n, err);
        if (!st && n && !o->logprobs) st = wrong("top_logprobs", "given together with logprobs=true", err);
    } else {
        st = get_int(j, "logprobs", 0, 0, 5, &n, err);
        o->logprobs = get(j, "logprobs") != NULL;
    }
    /* The chosen token's own logprob comes with at least one alternative. */
    o->q.n_logprobs = o->logprobs ? (int32_t)(n ? n : 1) : 0;
    return st;
}

static enum kv_status parse_format(struct kv_openai *o, struct kv_error *err)
{
    json_t *format = get(o->http->json, "response_format");
    enum kv_status st = format ? kv_openai_schema_read(format, &o->schema, err) : KV_OK;
    o->q.schema = kv_openai_schema_of(o->schema);
    return st;
}

static enum kv_status parse_stream(struct kv_openai *o, struct kv_error *err)
{
    json_t *options = get(o->http->json, "stream_options"), *v;
    const char *name;
    enum kv_status st = get_bool(o->http->json, "stream", &o->stream, err);
    if (st || !options) return st;
    if (!json_is_object(options) || !o->stream) return wrong("stream_options", "an object, given together with stream=true", err);
    json_object_foreach(options, name, v) {
        if (strcmp(name, "include_usage") && strcmp(name, "include_obfuscation")) return kv_fail(err, KV_UNKNOWN_KEY, name, "stream_options has no field '%.60s'", name);
    }
    return get_bool(options, "include_usage", &o->include_usage, err);
}

/* true, or the text that ends a tool call: the answer pauses there until the call's result is given. */
static enum kv_status parse_tool_pause(struct kv_openai *o, json_t *v, struct kv_error *err)
{
    if (!v || json_is_false(v)) return KV_OK;
    if (!json_is_true(v) && !(json_is_string(v) && json_string_length(v))) return wrong("kvasir.tool_pause", "true, or the text that ends a tool call", err);
    if (!o->q.session) return kv_fail(err, KV_BAD_ARGUMENT, "kvasir.tool_pause", "a request that pauses for tools needs kvasir.session");
    if (o->q.stop[0]) return kv_fail(err, KV_UNSUPPORTED, "stop", "stop and kvasir.tool_pause exclude each other");
    if (o->schema) return kv_fail(err, KV_UNSUPPORTED, "response_format", "response_format and kvasir.tool_pause exclude each other");
    o->q.stop[0] = json_is_string(v) ? json_string_value(v) : "</tool_call>";
    o->q.pause_at_stop = true;
    return KV_OK;
}

static enum kv_status parse_kvasir(struct kv_openai *o, struct kv_error *err)
{
    json_t *k = get(o->http->json, "kvasir"), *v;
    const char *name, *contract = NULL, *pipeline = NULL;
    if (!k) return KV_OK;
    if (!json_is_object(k)) return wrong("kvasir", "an object", err);
    json_object_foreach(k, name, v) {
        size_t i = 0;
        while (i < COUNT(kvasir_fields) && strcmp(kvasir_fields[i], name)) i++;
        if (i == COUNT(kvasir_fields)) return unknown(name, kvasir_fields, COUNT(kvasir_fields), err);
    }
    enum kv_status st = get_name(k, "contract", &contract, err);
    if (!st) st = get_name(k, "class", &o->q.class, err);
    if (!st) st = get_name(k, "session", &o->q.session, err);
    if (!st && o->q.session && strchr(o->q.session, '/')) st = wrong("kvasir.session", "text without '/', since it is a part of addresses", err);
    if (!st) st = get_name(k, "pipeline", &pipeline, err);
    if (!st) st = get_int(k, "deadline_ms", 0, 1, 86400000, &o->deadline_ms, err);
    if (!st) st = parse_tool_pause(o, get(k, "tool_pause"), err);
    if (st) return st;
    if (contract && strcmp(contract, "exact") && strcmp(contract, "approximate")) return wrong("kvasir.contract", "exact or approximate", err);
    o->q.contract = contract && *contract == 'a' ? KV_APPROXIMATE : KV_EXACT;
    if (!pipeline) return KV_OK;
    if (!(o->http->who.rights & KV_RIGHT_OPERATOR)) return kv_fail(err, KV_FORBIDDEN, "kvasir.pipeline", "choosing a pipeline needs the right 'operator'");
    if (!kv_pipeline_find(pipeline)) return kv_fail(err, KV_UNKNOWN_PIPELINE, "kvasir.pipeline", "no pipeline is named '%s'", pipeline);
    o->pipeline = pipeline;
    return KV_OK;
}

/* ---------------------------------------------------------------- prompts */

static enum kv_status take_ids(struct kv_openai *o, json_t *list, struct kv_error *err)
{
    size_t i;
    json_t *v;
    int32_t vocabulary = kv_model_info(o->app->model)->n_vocab;
    if (!(o->ids = calloc(json_array_size(list) + 1, sizeof *o->ids))) return kv_fail(err, KV_OUT_OF_MEMORY, "prompt", "no memory for the prompt");
    json_array_foreach(list, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v)) return wrong("prompt", "text or a list of token ids", err);
        if (id < 0 || id >= vocabulary) return kv_fail(err, KV_TOKEN_OUT_OF_RANGE, "prompt", "token id %lld at index %zu lies outside the vocabulary of %d", (long long)id, i, (int)vocabulary);
        o->ids[i] = (int32_t)id;
    }
    o->q.n_prompt = (int32_t)i;
    return KV_OK;
}

static bool make_room(struct kv_openai *o, size_t cap, struct kv_error *err)
{
    o->ids = calloc(cap + 1, sizeof *o->ids);
    if (!o->ids) kv_fail(err, KV_OUT_OF_MEMORY, "prompt", "no memory for the prompt");
    return o->ids != NULL;
}

static size_t has_bos(const struct kv_openai *o)
{
    const struct kv_model_info *info = kv_model_info(o->app->model);
    return info->add_bos && info->bos >= 0;
}

/* ids hold n tokens after room for BOS, which is filled unless the template wrote one. */
static void settle_bos(struct kv_openai *o, size_t bos, size_t n)
{
    int32_t id = kv_model_info(o->app->model)->bos;
    if (bos && n && o->ids[1] == id) memmove(o->ids, o->ids + 1, n * sizeof *o->ids), bos = 0;
    if (bos) o->ids[0] = id;
    o->q.n_prompt = n ? (int32_t)(n + bos) : 0;
}

static enum kv_status take_text(struct kv_openai *o, const char *text, size_t len, struct kv_error *err)
{
    size_t cap = len + 8, bos = has_bos(o), n = 0; /* a token covers at least one byte, but for a leading space that is added */
    if (!make_room(o, cap, err)) return KV_OUT_OF_MEMORY;
    enum kv_status st = kv_tokenize(o->app->model, text, len, false, o->ids + bos, cap, &n, err);
    if (st == KV_OK) settle_bos(o, bos, n);
    return st;
}

static enum kv_status parse_prompt(struct kv_openai *o, struct kv_error *err)
{
    json_t *v = get(o->http->json, "prompt");
    if (!v) return wrong("prompt", "given", err);
    if (json_is_array(v) && json_array_size(v) == 1 && !json_is_integer(json_array_get(v, 0))) v = json_array_get(v, 0);
    if (json_is_string(v)) return take_text(o, json_string_value(v), json_string_length(v), err);
    if (!json_is_array(v)) return wrong("prompt", "text or a list of token ids", err);
    if (json_array_size(v) > 1 && !json_is_integer(json_array_get(v, 0))) return kv_fail(err, KV_UNSUPPORTED, "prompt", "several prompts in one request are not supported");
    return take_ids(o, v, err);
}

/* A message's content: text, or a list of text parts joined. NULL: neither. */
static char *content_text(json_t *content)
{
    size_t i, used = 0, cap = 1;
    json_t *part;
    if (!content || json_is_null(content)) return strdup("");
    if (json_is_string(content)) return strdup(json_string_value(content));
    if (!json_is_array(content)) return NULL;
    json_array_foreach(content, i, part) {
        json_t *text = json_object_get(part, "text"), *type = json_object_get(part, "type");
        if (!json_is_string(text) || !json_is_string(type) || strcmp(json_string_value(type), "text")) return NULL;
        cap += json_string_length(text);
    }
    char *out = calloc(1, cap);
    json_array_foreach(content, i, part) {
        json_t *text = json_object_get(part, "text");
        if (out) memcpy(out + used, json_string_value(text), json_string_length(text));
        used += json_string_length(text);
    }
    return out;
}

static enum kv_status format_chat(struct kv_openai *o, const struct kv_chat_message *m, size_t n, struct kv_error *err)
{
    size_t cap = 0;
    enum kv_status st = kv_chat_tokenize(o->app->model, m, n, NULL, 0, &cap, err);
    if (st != KV_OK && st != KV_CAPACITY) return st;
    if (!make_room(o, cap, err)) return KV_OUT_OF_MEMORY;
    size_t bos = has_bos(o), n_ids = 0;
    st = kv_chat_tokenize(o->app->model, m, n, o->ids + bos, cap, &n_ids, err);
    return st == KV_OK ? settle_bos(o, bos, n_ids), KV_OK : st;
}

static enum kv_status parse_messages(struct kv_openai *o, struct kv_error *err)
{
    enum { MOST = 1024 };
    json_t *list = get(o->http->json, "messages"), *v;
    size_t i, n = json_array_size(list);
    enum kv_status st = KV_OK;
    if (!json_is_array(list) || !n || n > MOST) return wrong("messages", "a list of 1 to 1024 messages", err);
    struct kv_chat_message *m = calloc(n, sizeof *m);
    char **text = calloc(n, sizeof *text);
    if (!m || !text) st = kv_fail(err, KV_OUT_OF_MEMORY, "messages", "no memory for the messages");
    for (i = 0; i < n && !st; i++) {
        v = json_array_get(list, i);
        m[i].role = json_string_value(json_object_get(v, "role"));
        m[i].content = text[i] = content_text(json_object_get(v, "content"));
        if (!m[i].role) st = kv_fail(err, KV_BAD_ARGUMENT, "messages", "message %zu has no role", i);
        else if (!text[i]) st = kv_fail(err, KV_BAD_ARGUMENT, "messages", "message %zu has content that is neither text nor text parts", i);
    }
    if (!st) st = format_chat(o, m, n, err);
    for (i = 0; i < n && text; i++) free(text[i]);
    free(text);
    free(m);
    return st;
}

static enum kv_status parse_length(struct kv_openai *o, struct kv_error *err)
{
    json_t *j = o->http->json;
    const struct kv_model_info *info = kv_model_info(o->app->model);
    int64_t context = o->app->config->context_length ? o->app->config->context_length : info->context_length, n;
    const char *name = get(j, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    enum kv_status st = get_int(j, name, 0, 1, INT32_MAX, &n, err);
    if (st) return st;
    if (!o->q.n_prompt) return kv_fail(err, KV_EMPTY_PROMPT, o->chat ? "messages" : "prompt", "the prompt holds no token");
    int64_t room = context - o->q.n_prompt;
    if (!get(j, name)) n = o->app->default_max_tokens < room ? o->app->default_max_tokens : room;
    if (room < 1) {
        kv_fail(err, KV_CONTEXT_OVERRUN, o->chat ? "messages" : "prompt", "the prompt has %d tokens and the context %lld: no room is left for an answer", (int)o->q.n_prompt, (long long)context);
        kv_hint(err, "shorten the prompt");
        return KV_CONTEXT_OVERRUN;
    }
    if (n > room || n < 1) {
        kv_fail(err, KV_CONTEXT_OVERRUN, name, "the prompt has %d tokens and the context %lld; %s may be at most %lld", (int)o->q.n_prompt, (long long)context, name,
                (long long)room);
        return KV_CONTEXT_OVERRUN;
    }
    o->q.max_tokens = (int32_t)n;
    return KV_OK;
}

enum kv_status kv_openai_parse(struct kv_openai *o, struct kv_error *err)
{
    enum kv_status st = check_names(o->http->json, err);
    if (!st) st = check_model(o, err);
    if (!st) st = parse_sampling(o, err);
    if (!st) st = parse_stop(o, err);
    if (!st) st = parse_logprobs(o, err);
    if (!st) st = parse_format(o, err);
    if (!st) st = parse_stream(o, err);
    if (!st) st = parse_kvasir(o, err);
    if (!st) st = o->chat ? parse_messages(o, err) : parse_prompt(o, err);
    if (!st) st = parse_length(o, err);
    o->q.prompt = o->ids;
    o->q.tenant = o->tenant;
    snprintf(o->session, sizeof o->session, "%s", o->q.session ? o->q.session : "");
    return st;
}
