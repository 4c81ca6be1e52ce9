/* client.h — kvasir's HTTP client: one call, one reply, the same errors everywhere. */
#ifndef KV_CLIENT_H
#define KV_CLIENT_H

#include "console/commands/cli.h"

#include <curl/curl.h>
#include <jansson.h>

struct kv_reply {
    long http;    /* 0: unreachable */
    json_t *body; /* NULL when the answer was no JSON */
    char error[640]; /* one sentence when http is not 2xx */
};

/* What a transfer brings, one zero byte behind it; the owner frees data. */
struct kv_answer {
    char *data;
    size_t n, most; /* most: bytes at which the transfer fails */
};
/* A CURLOPT_WRITEFUNCTION for a struct kv_answer. */
size_t kv_client_collect(char *p, size_t size, size_t count, void *answer);

/* Resolves --context, KVASIR_URL and KVASIR_TOKEN into url and token. 0, or an exit status after printing why. */
int kv_client_resolve(const struct kv_cli *cli, char *url, size_t url_cap, char *token, size_t token_cap);

/* The address and token of a named context, from contexts.json; false, with the reason in why. */
bool kv_client_context(const char *name, char *url, size_t url_cap, char *token, size_t token_cap, char *why, size_t cap);
/* The names of all contexts, or that there is none and where they belong. */
void kv_client_contexts(char *out, size_t cap);

/* Sets URL, headers and time limits common to every call on an easy handle; *headers is to be freed after the transfer. */
void kv_client_prepare(CURL *h, const char *base, const char *token, const char *method, const char *path, const char *if_match,
                       struct curl_slist **headers);
/* The sentence of an error answer: "CODE: message; hint". */
void kv_client_error_text(const json_t *body, long http, char *out, size_t cap);

/* Blocking call for commands. Returns an exit status and prints nothing. The caller frees reply->body. */
int kv_client_call(const struct kv_cli *cli, const char *method, const char *path, const json_t *body, const char *if_match,
                   struct kv_reply *reply);
/* The same, printing the error on stderr when it was refused or unreachable. */
int kv_client_do(const struct kv_cli *cli, const char *method, const char *path, const json_t *body, const char *if_match,
                 json_t **out);
/* Why a JSON file of the operator's was not read, on stderr. */
void kv_client_bad_file(const char *file, const json_error_t *why);

#endif
