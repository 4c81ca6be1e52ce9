/* client.c — kvasir's HTTP client over libcurl; answers are JSON by jansson. */
#include "console/client.h"

#include "console/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ANSWER_BYTES = 64 << 20, CALL_TIMEOUT_S = 150 /* a drill takes up to two minutes */ };

size_t kv_client_collect(char *p, size_t size, size_t count, void *answer)
{
    struct kv_answer *b = answer;
    size_t n = size * count;
    if (b->n + n > b->most) return 0;
    char *grown = realloc(b->data, b->n + n + 1);
    if (!grown) return 0;
    memcpy(grown + b->n, p, n);
    b->data = grown;
    b->n += n;
    grown[b->n] = 0;
    return n;
}

static const char *contexts_path(char *out, size_t cap)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (config && *config) snprintf(out, cap, "%s/kvasir/contexts.json", config);
    else snprintf(out, cap, "%s/.config/kvasir/contexts.json", home ? home : "");
    return out;
}

bool kv_client_context(const char *name, char *url, size_t url_cap, char *token, size_t token_cap, char *why, size_t cap)
{
    char path[512];
    json_error_t bad;
    json_t *file = json_load_file(contexts_path(path, sizeof path), 0, &bad), *row = json_object_get(file, name);
    const char *u = json_string_value(json_object_get(row, "url")), *t = json_string_value(json_object_get(row, "token"));
    if (u) {
        snprintf(url, url_cap, "%s", u);
        if (t) snprintf(token, token_cap, "%s", t);
        for (size_t n = strlen(url); n && url[n - 1] == '/'; n--) url[n - 1] = 0;
    } else snprintf(why, cap, "no context '%s' with a url in %s%s%s", name, path, file ? "" : ": ", file ? "" : bad.text);
    json_decref(file);
    return u != NULL;
}

void kv_client_contexts(char *out, size_t cap)
{
    char path[512];
    const char *name;
    json_t *file = json_load_file(contexts_path(path, sizeof path), 0, NULL), *row;
    size_t used = 0;
    snprintf(out, cap, "none; they are named in %s", path);
    json_object_foreach(file, name, row)
        if (used < cap) used += (size_t)snprintf(out + used, cap - used, "%s%s", used ? " " : "", name);
    json_decref(file);
}

int kv_client_resolve(const struct kv_cli *cli, char *url, size_t url_cap, char *token, size_t token_cap)
{
    char why[700];
    snprintf(url, url_cap, "%s", cli->url);
    snprintf(token, token_cap, "%s", cli->token ? cli->token : "");
    for (size_t n = strlen(url); n && url[n - 1] == '/'; n--) url[n - 1] = 0;
    if (!cli->context || kv_client_context(cli->context, url, url_cap, token, token_cap, why, sizeof why)) return KV_EXIT_DONE;
    fprintf(stderr, "kvasir: %s\n", why);
    return KV_EXIT_USAGE;
}

void kv_client_prepare(CURL *h, const char *base, const char *token, const char *method, const char *path, const char *if_match,
                       struct curl_slist **headers)
{
    char line[1024];
    snprintf(line, sizeof line, "%s%s", base, path);
    curl_easy_setopt(h, CURLOPT_URL, line);
    curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, 5L);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_USERAGENT, "kvasir");
    *headers = curl_slist_append(*headers, "Content-Type: application/json");
    *headers = curl_slist_append(*headers, "Expect:");
    if (token && *token) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", token);
        *headers = curl_slist_append(*headers, line);
    }
    if (if_match) {
        snprintf(line, sizeof line, "If-Match: %s", if_match);
        *headers = curl_slist_append(*headers, line);
    }
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, *headers);
}

void kv_client_error_text(const json_t *body, long http, char *out, size_t cap)
{
    const json_t *e = json_object_get(body, "error");
    const char *code = json_string_value(json_object_get(e, "code")), *message = json_string_value(json_object_get(e, "message"));
    const char *hint = json_string_value(json_object_get(e, "hint"));
    if (message) snprintf(out, cap, "%s: %s%s%s", code ? code : "ERROR", message, hint && *hint ? "; " : "", hint ? hint : "");
    else snprintf(out, cap, "the server answered HTTP %ld", http);
    kv_plain_text(out);
}

int kv_client_call(const struct kv_cli *cli, const char *method, const char *path, const json_t *body, const char *if_match,
                   struct kv_reply *reply)
{
    char url[512], token[256];
    memset(reply, 0, sizeof *reply);
    int status = kv_client_resolve(cli, url, sizeof url, token, sizeof token);
    if (status) return status;
    CURL *h = curl_easy_init();
    if (!h) return KV_EXIT_REFUSED;
    struct curl_slist *headers = NULL;
    struct kv_answer answer = {.most = MAX_ANSWER_BYTES};
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    kv_client_prepare(h, url, token, method, path, if_match, &headers);
    curl_easy_setopt(h, CURLOPT_TIMEOUT, (long)CALL_TIMEOUT_S);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, kv_client_collect);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, &answer);
    if (strcmp(method, "GET")) curl_easy_setopt(h, CURLOPT_POSTFIELDS, text ? text : "{}");
    CURLcode rc = curl_easy_perform(h);
    if (rc == CURLE_OK) {
        curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &reply->http);
        reply->body = json_loadb(answer.data ? answer.data : "", answer.n, JSON_DECODE_ANY, NULL);
        status = reply->http >= 200 && reply->http < 300 ? KV_EXIT_DONE : KV_EXIT_REFUSED;
        if (status) kv_client_error_text(reply->body, reply->http, reply->error, sizeof reply->error);
    } else {
        snprintf(reply->error, sizeof reply->error, "cannot reach %s: %s; is kvasird running there?", url, curl_easy_strerror(rc));
        status = KV_EXIT_UNREACHABLE;
    }
    free(text);
    free(answer.data);
    curl_slist_free_all(headers);
    curl_easy_cleanup(h);
    return status;
}

int kv_client_do(const struct kv_cli *cli, const char *method, const char *path, const json_t *body, const char *if_match,
                 json_t **out)
{
    struct kv_reply r;
    int status = kv_client_call(cli, method, path, body, if_match, &r);
    if (status && r.error[0]) fprintf(stderr, "kvasir: %s\n", r.error);
    if (out && !status) *out = r.body;
    else json_decref(r.body);
    return status;
}

void kv_client_bad_file(const char *file, const json_error_t *why)
{
    if (json_error_code(why) == json_error_cannot_open_file) fprintf(stderr, "kvasir: FILE_UNREADABLE: %s\n", why->text);
    else fprintf(stderr, "kvasir: BAD_JSON: %s line %d: %s\n", file, why->line, why->text);
}
