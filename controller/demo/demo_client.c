/* demo_client.c — requests through libcurl, answers gathered in memory. */
#include "controller/demo/demo_client.h"

#include <curl/curl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_ANSWER = 16 << 20 };

struct kv_demo_client {
    CURL *curl;
    char base[300], authorization[128];
    const _Atomic bool *stop;
    char *got;
    size_t n;
};

static size_t take(char *data, size_t size, size_t n, void *arg)
{
    struct kv_demo_client *c = arg;
    size_t add = size * n;
    char *more = c->n + add < LARGEST_ANSWER ? realloc(c->got, c->n + add + 1) : NULL;
    if (!more) return 0;
    memcpy(more + c->n, data, add);
    c->got = more;
    c->n += add;
    more[c->n] = 0;
    return add;
}

static int progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t d, curl_off_t e)
{
    const struct kv_demo_client *c = arg;
    (void)a, (void)b, (void)d, (void)e;
    return c->stop && *c->stop;
}

struct kv_demo_client *kv_demo_client_create(const char *base_url, const char *token, bool insecure)
{
    struct kv_demo_client *c = calloc(1, sizeof *c);
    if (!c || !(c->curl = curl_easy_init())) {
        free(c);
        return NULL;
    }
    snprintf(c->base, sizeof c->base, "%s", base_url);
    if (*token) snprintf(c->authorization, sizeof c->authorization, "Authorization: Bearer %s", token);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, progress);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT, 120L);
    curl_easy_setopt(c->curl, CURLOPT_NOPROXY, "*"); /* the server is this process */
    if (insecure) { /* its own certificate, over loopback */
        curl_easy_setopt(c->curl, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(c->curl, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    return c;
}

void kv_demo_client_free(struct kv_demo_client *c)
{
    if (!c) return;
    curl_easy_cleanup(c->curl);
    free(c->got);
    free(c);
}

void kv_demo_client_watch(struct kv_demo_client *c, const _Atomic bool *stop)
{
    c->stop = stop;
}

static void perform(struct kv_demo_client *c, const char *method, const char *path, const json_t *body, uint64_t version, long *status)
{
    char url[600], match[64];
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (*c->authorization) headers = curl_slist_append(headers, c->authorization);
    headers = curl_slist_append(headers, "Expect:");
    snprintf(match, sizeof match, "If-Match: \"%llu\"", (unsigned long long)version);
    if (version) headers = curl_slist_append(headers, match);
    snprintf(url, sizeof url, "%s%s", c->base, path);
    c->n = 0;
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    if (strcmp(method, "GET")) curl_easy_setopt(c->curl, CURLOPT_POST, 1L);
    else curl_easy_setopt(c->curl, CURLOPT_HTTPGET, 1L);
    if (strcmp(method, "GET")) {
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, text ? text : "");
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE, (long)(text ? strlen(text) : 0));
    }
    *status = 0;
    if (curl_easy_perform(c->curl) == CURLE_OK) curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, status);
    curl_slist_free_all(headers);
    free(text);
}

void kv_demo_call(struct kv_demo_client *c, const char *method, const char *path, const json_t *body, uint64_t version, long *status, json_t **answer)
{
    perform(c, method, path, body, version, status);
    if (answer) *answer = *status && c->n ? json_loadb(c->got, c->n, JSON_DECODE_ANY, NULL) : NULL;
}

bool kv_demo_stream(struct kv_demo_client *c, const char *path, const json_t *body, long *status)
{
    static const char done[] = "data: [DONE]\n\n";
    perform(c, "POST", path, body, 0, status);
    return *status == 200 && c->n >= sizeof done - 1 && !memcmp(c->got + c->n - (sizeof done - 1), done, sizeof done - 1);
}
