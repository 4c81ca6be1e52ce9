/* cmd_compare.c — kvasir compare: one prompt answered by the baseline and by the candidate, token by token. Both are asked for by their pipelines' names. */
#include "console/client.h"
#include "console/output.h"
#include "console/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 32, MOST_TOKENS = 512 };

static const char *member(const json_t *o, const char *name)
{
    const char *v = json_string_value(json_object_get(o, name));
    return v ? v : "";
}

static int complete(const struct kv_cli *cli, const char *prompt, const char *contract, const char *pipeline, int tokens, json_t **out)
{
    json_t *body = json_pack("{s:s, s:s, s:i, s:i, s:i, s:{s:s, s:s}}", "model", "default", "prompt", prompt, "max_tokens", tokens, "temperature", 0, "logprobs", 1, "kvasir", "contract",
                             contract, "pipeline", pipeline);
    if (!body) return fprintf(stderr, "kvasir: the prompt is not UTF-8 text\n"), KV_EXIT_USAGE;
    json_t *models = NULL;
    int status = kv_client_do(cli, "GET", "/v1/models", NULL, NULL, &models);
    const json_t *name = json_object_get(json_array_get(json_object_get(models, "data"), 0), "id");
    if (name) json_object_set(body, "model", (json_t *)name);
    if (!status) status = kv_client_do(cli, "POST", "/v1/completions", body, NULL, out);
    json_decref(models);
    json_decref(body);
    return status;
}

/* *found: it answered itself, and the admission policy has not left the request to the baseline. */
static int candidate(const struct kv_cli *cli, const char *prompt, int tokens, const json_t *release, json_t **out, bool *found)
{
    static const char *const serving[] = {"CANARY", "RAMP", "FULL"};
    size_t i = 0;
    while (i < 3 && strcmp(serving[i], member(release, "stage"))) i++;
    int status = complete(cli, prompt, "approximate", i < 3 ? member(release, "pipeline") : "resident", tokens, out);
    *found = !status && i < 3 && !strcmp(member(json_object_get(*out, "kvasir"), "pipeline"), member(release, "pipeline"));
    return status;
}

static const json_t *logprobs(const json_t *answer, const char *name)
{
    return json_object_get(json_object_get(json_array_get(json_object_get(answer, "choices"), 0), "logprobs"), name);
}

static json_t *beside(const json_t *a, const json_t *b, const json_t *release, bool found)
{
    const json_t *ta = logprobs(a, "tokens"), *tb = logprobs(b, "tokens"), *la = logprobs(a, "token_logprobs"), *lb = logprobs(b, "token_logprobs");
    const json_t *ka = json_object_get(a, "kvasir"), *kb = json_object_get(b, "kvasir");
    size_t n = json_array_size(ta) > json_array_size(tb) ? json_array_size(ta) : json_array_size(tb), same = 0;
    bool still = true;
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) {
        const char *x = json_string_value(json_array_get(ta, i)), *y = json_string_value(json_array_get(tb, i));
        bool equal = x && y && !strcmp(x, y);
        still &= equal;
        same += still;
        json_array_append_new(rows, json_pack("{s:s, s:f, s:s, s:f, s:b}", "baseline", x ? x : "", "baseline_logprob", json_number_value(json_array_get(la, i)), "candidate", y ? y : "",
                                              "candidate_logprob", json_number_value(json_array_get(lb, i)), "same", equal));
    }
    char summary[300];
    if (found)
        snprintf(summary, sizeof summary, "%.40s beside %.40s at %s %.4g %%: %s %zu of %zu tokens", member(ka, "pipeline"), member(kb, "pipeline"), member(release, "stage"),
                 100 * json_number_value(json_object_get(release, "fraction")), same == n ? "the same, all" : "the same for the first", same, n);
    else
        snprintf(summary, sizeof summary, "no candidate served at %s %.4g %%: both columns are the baseline (%.40s, %.40s)", member(release, "stage"),
                 100 * json_number_value(json_object_get(release, "fraction")), member(ka, "pipeline"), member(kb, "pipeline"));
    return json_pack("{s:s, s:b, s:I, s:I, s:O?, s:O?, s:o}", "summary", summary, "candidate_served", found, "same_tokens", (json_int_t)same, "tokens", (json_int_t)n, "baseline", ka, "candidate",
                     kb, "rows", rows);
}

static void print(const json_t *v)
{
    size_t i;
    json_t *row;
    printf("%s\n%5s   %-24s %9s   %-24s %9s\n", member(v, "summary"), "", "baseline", "logprob", "candidate", "logprob");
    json_array_foreach(json_object_get(v, "rows"), i, row) {
        char text[2][128];
        static const char *const names[] = {"baseline", "candidate"};
        for (int k = 0; k < 2; k++) { /* as JSON writes it, so that spaces and line breaks are seen */
            char *quoted = json_dumps(json_object_get(row, names[k]), JSON_ENCODE_ANY);
            snprintf(text[k], sizeof text[k], "%s", quoted ? quoted : "");
            free(quoted);
            kv_plain_text(text[k]);
        }
        printf("%5zu %c %-24s %9.3f   %-24s %9.3f\n", i + 1, json_is_true(json_object_get(row, "same")) ? ' ' : '!', text[0], json_number_value(json_object_get(row, "baseline_logprob")), text[1],
               json_number_value(json_object_get(row, "candidate_logprob")));
    }
}

int kv_cmd_compare(int argc, char **argv, const struct kv_cli *cli)
{
    const char *prompt = NULL;
    int tokens = TOKENS;
    bool words = false;
    for (int i = 1; i < argc; i++) {
        if (!words && !strcmp(argv[i], "--")) words = true;
        else if (!words && !strcmp(argv[i], "--tokens") && i + 1 < argc) tokens = atoi(argv[++i]);
        else if (!prompt && (words || argv[i][0] != '-')) prompt = argv[i];
        else prompt = NULL, i = argc;
    }
    if (!prompt || tokens < 1 || tokens > MOST_TOKENS) return fprintf(stderr, "usage: kvasir compare [--tokens 1..%d] PROMPT\n", MOST_TOKENS), KV_EXIT_USAGE;
    json_t *status = NULL, *a = NULL, *b = NULL;
    bool found = false;
    int rc = kv_client_do(cli, "GET", "/api/v1/status", NULL, NULL, &status);
    const json_t *release = json_object_get(status, "release");
    if (!rc) rc = complete(cli, prompt, "exact", "resident", tokens, &a);
    if (!rc) rc = candidate(cli, prompt, tokens, release, &b, &found);
    if (!rc) {
        json_t *v = beside(a, b, release, found);
        if (cli->json) kv_output_json(v, JSON_INDENT(2)), putchar('\n');
        else print(v);
        json_decref(v);
    }
    json_decref(status);
    json_decref(a);
    json_decref(b);
    return rc;
}
