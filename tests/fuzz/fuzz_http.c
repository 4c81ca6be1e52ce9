/* fuzz_http.c — mutated JSON through everything that reads JSON from outside: completions, chats, rollouts, configuration.
 * Usage: fuzz_http [--cases N] [--seed N]; needs models/kvasir-demo-q8_0.gguf. Every case must end in OK or an input error with a sentence. */
#include "controller/openai/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const bodies[] = {
    "{\"model\":\"kvasir-demo\",\"prompt\":\"The magic number is \",\"max_tokens\":8,\"temperature\":0.5,\"top_p\":0.9,\"seed\":7,\"stop\":[\"\\n\",\"a\"],\"logprobs\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
    "{\"prompt\":[1,2,3,1023],\"max_tokens\":4,\"n\":1,\"frequency_penalty\":-2,\"presence_penalty\":2,\"kvasir\":{\"contract\":\"approximate\",\"class\":\"c\",\"session\":\"s\",\"deadline_ms\":5,\"pipeline\":\"resident\"}}",
    "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\\u00e9\"}]}],\"logprobs\":true,\"top_logprobs\":3,\"max_completion_tokens\":5}",
    "{\"name\":\"q\",\"pipeline\":\"quest\",\"params\":{\"page_rows\":16,\"budget_rows\":64},\"contract\":\"approximate\",\"cohort\":{\"tenants\":[\"a\"],\"classes\":[]},"
    "\"steps\":[{\"stage\":\"SHADOW\",\"min_seconds\":1},{\"stage\":\"CANARY\",\"fraction\":0.1},{\"stage\":\"FULL\",\"min_samples\":3}],\"gates\":[{\"metric\":\"omitted_mass\",\"threshold\":0.1,\"min_n\":5}]}",
    "{\"listen\":\"127.0.0.1:0\",\"engine\":{\"threads\":2,\"max_queue\":9},\"tiers\":{\"host\":{\"capacity_bytes\":\"64MiB\"}},\"shadow.fraction\":0.5,\"http\":{\"allowed_hosts\":[\"a\"]},"
    "\"auth\":{\"mode\":\"token\",\"tokens\":[{\"name\":\"x\",\"sha256\":\"0000000000000000000000000000000000000000000000000000000000000000\",\"rights\":[\"viewer\"]}]}}",
};
enum { N_BODIES = sizeof bodies / sizeof *bodies, LONGEST = 8192 };
static const char *const pieces[] = {"null", "true", "{}", "[]", "\"\"", "-1", "0", "1e308", "-1e-308", "9223372036854775807", "-9223372036854775808", "4096", "\"\\ud83d\\ude00\"", "\"\\u0001\"",
    "[[[[[[[[[[[[[[[[", "{\"a\":", ",", ":", "\"", "\\", "[1,2,3]", "\"text\"", "99999999999999999999", "0.1", "\xff", "\xc3"};

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

/* Replaces [at, at + cut) by n bytes. */
static size_t splice(char *s, size_t len, size_t at, size_t cut, const char *with, size_t n)
{
    if (at > len) at = len;
    if (cut > len - at) cut = len - at;
    if (len - cut + n > LONGEST) return len;
    memmove(s + at + n, s + at + cut, len - at - cut);
    memcpy(s + at, with, n);
    return len - cut + n;
}

/* Bytes of the JSON value at s, brackets and quotes matched as far as they are. */
static size_t value_length(const char *s)
{
    size_t i = 0;
    int depth = 0;
    bool text = false;
    for (; s[i]; i++) {
        if (s[i] == '"') text = !text;
        else if (text) continue;
        if (s[i] == '{' || s[i] == '[') depth++;
        if (depth == 0 && !text && strchr(",}]", s[i])) break;
        if ((s[i] == '}' || s[i] == ']') && --depth == 0) return i + 1;
    }
    return i;
}

/* The value at a random colon or comma gives way to a piece, so that most mutants still parse. */
static size_t replace_value(char *s, size_t len)
{
    const char *piece = pieces[draw(sizeof pieces / sizeof *pieces)];
    size_t at = draw(len + 1);
    while (at < len && s[at] != ':' && s[at] != ',' && s[at] != '[') at++;
    if (at < len) at++;
    size_t cut = value_length(s + at);
    return splice(s, len, at, cut, piece, strlen(piece));
}

static size_t mutate(char *s, size_t len)
{
    for (uint64_t k = 1 + draw(2); k > 0; k--) {
        size_t at = draw(len + 1);
        char copy[64], c = (char)draw(256);
        s[len] = 0;
        switch (draw(16)) { /* mostly values */
        case 0: len = splice(s, len, at, 1, &c, 1); break;
        case 1: len = splice(s, len, at, draw(16), "", 0); break;
        case 2: {
            size_t n = draw(sizeof copy), from = draw(len + 1);
            if (n > len - from) n = len - from;
            memcpy(copy, s + from, n);
            len = splice(s, len, at, 0, copy, n);
            break;
        }
        default: len = replace_value(s, len);
        }
    }
    return len;
}

static void must(enum kv_status st, const struct kv_error *err, const char *what, const char *body, size_t n)
{
    bool input = !strcmp(kv_status_class(st), "INPUT") || st == KV_UNKNOWN_PIPELINE || st == KV_UNKNOWN_METRIC;
    if (st == KV_OK || (input && *err->message && err->status == st)) return;
    fprintf(stderr, "%s: %s: '%s' for %.*s\n", what, kv_status_name(st), err->message, (int)n, body);
    abort();
}

static void try_openai(struct kv_app *app, json_t *json, bool chat, const char *body, size_t n)
{
    struct kv_http_request r = {.app = app, .json = json, .who = {.rights = KV_RIGHT_OPERATOR | KV_RIGHT_INFER, .tenant = "t"}};
    struct kv_openai *o = calloc(1, sizeof *o);
    struct kv_error err = {0};
    if (!o) return;
    *o = (struct kv_openai){.app = app, .http = &r, .chat = chat};
    app->inferring++;
    must(kv_openai_parse(o, &err), &err, chat ? "chat" : "completion", body, n);
    kv_openai_free(o);
}

static void try_config(const char *body, size_t n)
{
    char path[40];
    struct kv_config c;
    struct kv_error err = {0};
    int fd = memfd_create("config", 0);
    if (fd < 0 || write(fd, body, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    char *argv[] = {"kvasird", "--config", path, NULL};
    must(kv_config_load(&c, 3, argv, NULL, &err), &err, "configuration", body, n);
    kv_config_free(&c);
    close(fd);
}

static void try_all(struct kv_app *app, const char *body, size_t n)
{
    json_t *json = json_loadb(body, n, JSON_REJECT_DUPLICATES, NULL);
    struct kv_error err = {0};
    try_config(body, n);
    if (json_is_object(json)) {
        struct kv_rollout_request *q = calloc(1, sizeof *q);
        if (!q) abort();
        try_openai(app, json, false, body, n);
        try_openai(app, json, true, body, n);
        must(kv_api_rollout_parse(json, q, &err), &err, "rollout", body, n);
        free(q);
    }
    json_decref(json);
}

int main(int argc, char **argv)
{
    static char text[LONGEST + 64];
    struct kv_error err = {0};
    struct kv_config config;
    struct kv_app app = {.config = &config};
    uint64_t cases = 3000, valid = 0;
    state = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--cases")) cases = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--seed")) state = strtoull(argv[i + 1], NULL, 10);
    }
    if (kv_config_load(&config, 1, argv, NULL, &err) || kv_model_open("models/kvasir-demo-q8_0.gguf", NULL, &app.model, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return EXIT_FAILURE;
    }
    app.default_max_tokens = 16;
    for (uint64_t k = 0; k < cases; k++) {
        size_t n = strlen(bodies[k % N_BODIES]);
        memcpy(text, bodies[k % N_BODIES], n);
        if (k >= N_BODIES) n = mutate(text, n); /* each as it is, once */
        try_all(&app, text, n);
        json_t *json = json_loadb(text, n, 0, NULL);
        valid += json != NULL;
        json_decref(json);
    }
    printf("fuzz_http: %llu cases, %llu of them JSON\n", (unsigned long long)cases, (unsigned long long)valid);
    kv_model_close(app.model);
    kv_config_free(&config);
    return EXIT_SUCCESS;
}
