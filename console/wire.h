/* wire.h — the console's talk with one daemon: the event stream, the lists, and every wish, none of which blocks the screen. */
#ifndef KV_WIRE_H
#define KV_WIRE_H

#include "console/app.h"
#include "console/client.h"

enum { KV_WIRE_CALLS = 24 };

enum kv_purpose { KV_FOR_EVENTS, KV_FOR_HISTORY, KV_FOR_LIST, KV_FOR_OLDER, KV_FOR_OPEN, KV_FOR_VERB, KV_FOR_EDIT, KV_FOR_CHECK, KV_FOR_ACTIVATE, KV_FOR_SESSION, KV_FOR_PROGRESS, KV_FOR_FAULT };

struct kv_call {
    CURL *h;
    struct curl_slist *headers;
    enum kv_purpose purpose;
    enum kv_view view;
    const struct kv_verb *verb;
    json_t *active;                /* of a check: the policy the edit is based on */
    char route[512], kind[32];
    char *body, *source;
    struct kv_answer answer;
};

struct kv_wire {
    struct kv_app *app;
    CURLM *multi;
    struct kv_call call[KV_WIRE_CALLS];
    char url[256], token[256], last_id[64], event[64];
    int64_t retry_ms, refreshed_ms;
    json_t *event_data;
    /* Lets the operator edit text, NULL when the editor failed (why says so). The caller frees. */
    char *(*edit)(const char *kind, const char *text, char *why, size_t cap);
    struct {                       /* kvasir compare in a process of its own */
        int fd;
        long pid;
        char *data;
        size_t n;
    } compare;
};

/* An exit status; 0 when the address is known. */
int kv_wire_open(struct kv_wire *w, struct kv_app *a, const struct kv_cli *cli);
void kv_wire_close(struct kv_wire *w);
/* Waits for news or a key, at most timeout_ms, and takes what came. */
void kv_wire_step(struct kv_wire *w, int timeout_ms);
void kv_wire_grant(struct kv_wire *w, struct kv_wish wish);

/* wire_policy.c: e on a policy, in three answers. */
void kv_wire_take_policy(struct kv_wire *w, const char *kind, json_t *active);
void kv_wire_take_check(struct kv_wire *w, struct kv_call *c, json_t *answer, const char *refused);
void kv_wire_activate(struct kv_wire *w, const char *kind);
struct kv_call *kv_wire_start(struct kv_wire *w, enum kv_purpose purpose, const char *method, const char *route, json_t *body, const char *if_match);

/* wire_compare.c */
void kv_wire_compare(struct kv_wire *w, const char *prompt);
void kv_wire_take_compare(struct kv_wire *w);
void kv_wire_end_compare(struct kv_wire *w);

#endif
