/* wire.c — calls by libcurl's multi interface; answers change the app. */
#include "console/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ANSWER_BYTES = 16 << 20, RETRY_MS = 1000, REFRESH_MS = 3000, CALL_S = 60, DRILL_S = 150 };

struct kv_call *kv_wire_start(struct kv_wire *w, enum kv_purpose purpose, const char *method, const char *route, json_t *body, const char *if_match)
{
    struct kv_call *c = NULL;
    for (int i = 0; i < KV_WIRE_CALLS && !c; i++)
        if (!w->call[i].h) c = &w->call[i];
    if (!c) return NULL;
    *c = (struct kv_call){.h = curl_easy_init(), .purpose = purpose, .answer.most = MAX_ANSWER_BYTES};
    if (!c->h) return NULL;
    snprintf(c->route, sizeof c->route, "%s", route);
    kv_client_prepare(c->h, w->url, w->token, method, route, if_match, &c->headers);
    if (purpose == KV_FOR_EVENTS && w->last_id[0]) {
        char header[96];
        snprintf(header, sizeof header, "Last-Event-ID: %s", w->last_id);
        c->headers = curl_slist_append(c->headers, header);
        curl_easy_setopt(c->h, CURLOPT_HTTPHEADER, c->headers);
    }
    if (purpose != KV_FOR_EVENTS) curl_easy_setopt(c->h, CURLOPT_TIMEOUT, (long)CALL_S);
    if (strcmp(method, "GET")) {
        c->body = body ? json_dumps(body, JSON_COMPACT) : NULL;
        curl_easy_setopt(c->h, CURLOPT_POSTFIELDS, c->body ? c->body : "{}");
    }
    curl_easy_setopt(c->h, CURLOPT_WRITEFUNCTION, kv_client_collect);
    curl_easy_setopt(c->h, CURLOPT_WRITEDATA, &c->answer);
    curl_easy_setopt(c->h, CURLOPT_PRIVATE, c);
    curl_multi_add_handle(w->multi, c->h);
    return c;
}

static void finish(struct kv_wire *w, struct kv_call *c)
{
    curl_multi_remove_handle(w->multi, c->h);
    curl_easy_cleanup(c->h);
    curl_slist_free_all(c->headers);
    json_decref(c->active);
    free(c->answer.data);
    free(c->body);
    free(c->source);
    *c = (struct kv_call){0};
}

static void finish_all(struct kv_wire *w)
{
    for (int i = 0; i < KV_WIRE_CALLS; i++)
        if (w->call[i].h) finish(w, &w->call[i]);
    json_decref(w->event_data);
    w->event_data = NULL;
    w->last_id[0] = 0;
    w->retry_ms = 0;
}

/* ---------------------------------------------------------------- events */

/* One line of the event stream: id, event, data, or the blank line that ends an event. */
static void event_line(struct kv_wire *w, const char *s)
{
    if (!strncmp(s, "id:", 3)) snprintf(w->last_id, sizeof w->last_id, "%s", s + 3 + (s[3] == ' '));
    else if (!strncmp(s, "event:", 6)) snprintf(w->event, sizeof w->event, "%s", s + 6 + (s[6] == ' '));
    else if (!strncmp(s, "data:", 5)) {
        json_decref(w->event_data);
        w->event_data = json_loads(s + 5, 0, NULL);
    } else if (!*s && w->event_data) {
        kv_app_event(w->app, w->event, w->event_data);
        json_decref(w->event_data);
        w->event_data = NULL;
    }
}

static void take_events(struct kv_wire *w, struct kv_call *c)
{
    long http = 0;
    curl_easy_getinfo(c->h, CURLINFO_RESPONSE_CODE, &http);
    if (http != 200) return;
    char *from = c->answer.data, *end;
    while (from && (end = strchr(from, '\n'))) {
        *end = 0;
        if (end > from && end[-1] == '\r') end[-1] = 0;
        event_line(w, from);
        from = end + 1;
    }
    if (!from) return;
    c->answer.n -= (size_t)(from - c->answer.data);
    memmove(c->answer.data, from, c->answer.n + 1);
}

/* ---------------------------------------------------------------- lists */

static void fetch_list(struct kv_wire *w, enum kv_view view)
{
    char route[256];
    if (!kv_view_route(view)) return;
    for (int i = 0; i < KV_WIRE_CALLS; i++)
        if (w->call[i].h && w->call[i].purpose == KV_FOR_LIST && w->call[i].view == view) return;
    snprintf(route, sizeof route, "%s%s", kv_view_route(view), kv_view_long(view) ? "?limit=500" : "");
    struct kv_call *c = kv_wire_start(w, KV_FOR_LIST, "GET", route, NULL, NULL);
    if (c) c->view = view;
}

static void fetch_older(struct kv_wire *w, enum kv_view view)
{
    char route[256];
    const struct kv_table *t = kv_view_table(view);
    const json_t *rows = t ? json_object_get(w->app->list[view], t->array) : NULL;
    const json_t *id = json_object_get(json_array_get(rows, json_array_size(rows) - 1), "id");
    if (!json_is_integer(id)) return;
    snprintf(route, sizeof route, "%s?limit=500&before=%" JSON_INTEGER_FORMAT, t->route, json_integer_value(id));
    struct kv_call *c = kv_wire_start(w, KV_FOR_OLDER, "GET", route, NULL, NULL);
    if (!c) return;
    c->view = view;
    kv_app_await(w->app, "reading older %s", kv_view_name(view));
}

/* ---------------------------------------------------------------- answers */

static void take_verb(struct kv_app *a, const struct kv_call *c, json_t *v)
{
    const json_t *back = json_object_get(v, "rollback");
    json_t *now = json_object_get(v, "rollout");
    if (!now) now = v;
    const char *stage = json_string_value(json_object_get(now, "stage"));
    if (back)
        kv_app_say(a, KV_STYLE_GOOD, "fenced in %.0f us, durable %s, %.0f recomputing, %.0f tokens already on their way", json_number_value(json_object_get(back, "fence_us")),
                   json_is_true(json_object_get(back, "durable")) ? "yes" : "NO", json_number_value(json_object_get(back, "recomputing")), json_number_value(json_object_get(back, "unsent_tokens")));
    else kv_app_say(a, KV_STYLE_GOOD, "%s: done, now %s", c->verb->name, stage ? stage : "");
    if (json_is_object(now)) json_decref(a->rollout), a->rollout = json_incref(now);
}

static void take_fault(struct kv_app *a, const struct kv_call *c, const json_t *v)
{
    const json_t *last = json_object_get(v, "last"), *check;
    const char *name = json_string_value(json_object_get(v, "name"));
    size_t i, failed = 0;
    if (strcmp(c->kind, "run")) {
        kv_app_say(a, KV_STYLE_GOOD, "%s: %sed", name ? name : "fault", c->kind);
        return;
    }
    const char *first = "";
    json_array_foreach(json_object_get(last, "checks"), i, check)
        if (!json_is_true(json_object_get(check, "pass")) && !failed++) first = json_string_value(json_object_get(check, "detail"));
    if (failed) kv_app_say(a, KV_STYLE_BAD, "%s: FAIL, %zu of %zu checks; %s", name ? name : "fault", failed, i, first ? first : "");
    else kv_app_say(a, KV_STYLE_GOOD, "%s: PASS, %zu checks hold", name ? name : "fault", i);
}

static void take_good(struct kv_wire *w, struct kv_call *c, json_t *v)
{
    struct kv_app *a = w->app;
    switch (c->purpose) {
    case KV_FOR_HISTORY: kv_app_history(a, v); break;
    case KV_FOR_LIST: kv_app_list(a, c->view, json_incref(v)); break;
    case KV_FOR_OLDER: kv_app_older(a, c->view, json_incref(v)); break;
    case KV_FOR_OPEN: kv_app_fill(a, c->route, v); break;
    case KV_FOR_VERB: take_verb(a, c, v); break;
    case KV_FOR_EDIT: kv_wire_take_policy(w, c->kind, v); break;
    case KV_FOR_CHECK: kv_wire_take_check(w, c, v, NULL); break;
    case KV_FOR_ACTIVATE:
        json_object_del(a->draft, c->kind);
        kv_app_say(a, KV_STYLE_GOOD, "%s %.12s is ACTIVE", c->kind, json_string_value(json_object_get(v, "version")) ? json_string_value(json_object_get(v, "version")) : "");
        fetch_list(w, KV_VIEW_POLICIES);
        break;
    case KV_FOR_SESSION:
        kv_app_say(a, KV_STYLE_GOOD, "%s: done", c->kind);
        fetch_list(w, KV_VIEW_SESSIONS);
        break;
    case KV_FOR_PROGRESS: kv_app_tasks(a, v); break;
    case KV_FOR_FAULT: take_fault(a, c, v); break;
    case KV_FOR_EVENTS: break;
    }
}

static void take_refusal(struct kv_wire *w, struct kv_call *c, long http, json_t *v)
{
    struct kv_app *a = w->app;
    char why[480];
    kv_client_error_text(v, http, why, sizeof why);
    if (c->purpose == KV_FOR_CHECK) {
        kv_wire_take_check(w, c, NULL, why);
        return;
    }
    if (c->purpose == KV_FOR_HISTORY || c->purpose == KV_FOR_PROGRESS || (c->purpose == KV_FOR_LIST && http == 503)) return;
    if (c->purpose == KV_FOR_LIST && http == 404) {
        a->absent[c->view] = true;
        return;
    }
    if (http == 412 && c->purpose == KV_FOR_VERB) { /* another operator was faster: what is shown was old */
        kv_app_say(a, KV_STYLE_BAD, "%s: nothing was done, it changed meanwhile; the newest state is shown", c->verb->name);
        char route[192];
        const char *id = json_string_value(json_object_get(a->rollout, "id"));
        snprintf(route, sizeof route, "/api/v1/rollouts/%.64s", id ? id : "");
        kv_wire_start(w, KV_FOR_OPEN, "GET", route, NULL, NULL);
        return;
    }
    if (http == 412 && c->purpose == KV_FOR_ACTIVATE) kv_app_say(a, KV_STYLE_BAD, "not activated: another %s policy became ACTIVE meanwhile; e compares your edit with it", c->kind);
    else kv_app_say(a, KV_STYLE_BAD, "%s", why);
    if (c->purpose == KV_FOR_OPEN && kv_app_page(a) && !kv_app_page(a)->data) kv_app_pop(a);
}

static void take_answer(struct kv_wire *w, struct kv_call *c, CURLcode rc)
{
    struct kv_app *a = w->app;
    long http = 0;
    curl_easy_getinfo(c->h, CURLINFO_RESPONSE_CODE, &http);
    json_t *v = c->answer.data ? json_loadb(c->answer.data, c->answer.n, 0, NULL) : NULL;
    if (c->purpose == KV_FOR_EVENTS) {
        a->connected = false;
        w->retry_ms = a->now_ms + RETRY_MS;
        char why[320];
        kv_client_error_text(v, http, why, sizeof why);
        if (rc != CURLE_OK) kv_app_say(a, KV_STYLE_WARN, "cannot reach %s: %s; trying again", w->url, curl_easy_strerror(rc));
        else if (http != 200) kv_app_say(a, KV_STYLE_WARN, "%s", why);
        if (http == 503) kv_wire_start(w, KV_FOR_PROGRESS, "GET", "/api/v1/progress", NULL, NULL); /* it starts; what it is at is told already */
    } else {
        bool unasked = c->purpose == KV_FOR_LIST || c->purpose == KV_FOR_HISTORY || c->purpose == KV_FOR_PROGRESS;
        if (!unasked) a->pending[0] = 0;
        if (rc != CURLE_OK && unasked) { } /* the event stream says what is wrong */
        else if (rc != CURLE_OK) kv_app_say(a, KV_STYLE_BAD, "no answer: %s%s", curl_easy_strerror(rc), c->purpose == KV_FOR_VERB || c->purpose == KV_FOR_ACTIVATE ? "; look before you repeat it" : "");
        else if (http < 200 || http >= 300) take_refusal(w, c, http, v);
        else if (v) take_good(w, c, v);
    }
    /* A rollout that was read anew after a refusal is the one that is shown. */
    if (c->purpose == KV_FOR_OPEN && http == 200 && !strncmp(c->route, "/api/v1/rollouts/", 17) && json_equal(json_object_get(v, "id"), json_object_get(a->rollout, "id")))
        json_decref(a->rollout), a->rollout = json_incref(v);
    json_decref(v);
}

/* ---------------------------------------------------------------- the loop's part */

static void ask_what_is_due(struct kv_wire *w)
{
    struct kv_app *a = w->app;
    bool events = false;
    for (int i = 0; i < KV_WIRE_CALLS; i++) events |= w->call[i].h && w->call[i].purpose == KV_FOR_EVENTS;
    if (!events && a->now_ms >= w->retry_ms) {
        kv_wire_start(w, KV_FOR_EVENTS, "GET", "/api/v1/events", NULL, NULL);
        if (!a->tokens_per_s.n) kv_wire_start(w, KV_FOR_HISTORY, "GET", "/api/v1/metrics/history?seconds=240", NULL, NULL);
        /* All of them, so that keys typed right after a digit meet rows and not an empty list. */
        for (int v = 0; v < KV_VIEWS; v++) fetch_list(w, (enum kv_view)v);
    }
    /* Receipts and failures come by the stream. */
    bool streamed = a->view == KV_VIEW_RECEIPTS || a->view == KV_VIEW_FAILURES || a->view == KV_VIEW_AUDIT;
    if (!streamed && a->now_ms - w->refreshed_ms > REFRESH_MS) {
        fetch_list(w, a->view);
        if (a->view == KV_VIEW_CREDITS) fetch_list(w, KV_VIEW_PAUSED);
        w->refreshed_ms = a->now_ms;
    }
}

void kv_wire_step(struct kv_wire *w, int timeout_ms)
{
    int running, left;
    struct curl_waitfd in[2] = {{.fd = STDIN_FILENO, .events = CURL_WAIT_POLLIN}, {.fd = w->compare.fd, .events = CURL_WAIT_POLLIN}};
    ask_what_is_due(w);
    curl_multi_poll(w->multi, in, w->compare.pid ? 2 : 1, timeout_ms, NULL);
    curl_multi_perform(w->multi, &running);
    for (int i = 0; i < KV_WIRE_CALLS; i++)
        if (w->call[i].h && w->call[i].purpose == KV_FOR_EVENTS && w->call[i].answer.n) take_events(w, &w->call[i]);
    CURLMsg *m;
    while ((m = curl_multi_info_read(w->multi, &left))) {
        struct kv_call *c;
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode rc = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
        take_answer(w, c, rc);
        finish(w, c);
    }
    if (w->compare.pid) kv_wire_take_compare(w);
}

/* ---------------------------------------------------------------- wishes */

static void copy(const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    printf("\033]52;c;");
    for (size_t i = 0, n = strlen(text); i < n; i += 3) {
        unsigned v = (unsigned)(unsigned char)text[i] << 16 | (i + 1 < n ? (unsigned)(unsigned char)text[i + 1] << 8 : 0) | (i + 2 < n ? (unsigned char)text[i + 2] : 0);
        printf("%c%c%c%c", digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=', i + 2 < n ? digits[v & 63] : '=');
    }
    printf("\a");
    fflush(stdout);
}

static void run_verb(struct kv_wire *w, const struct kv_wish *wish)
{
    struct kv_app *a = w->app;
    char route[192], version[32];
    const char *id = json_string_value(json_object_get(a->rollout, "id"));
    snprintf(route, sizeof route, "/api/v1/rollouts/%.64s/%s", id ? id : "", wish->verb->name);
    snprintf(version, sizeof version, "%lld", (long long)json_integer_value(json_object_get(a->rollout, "version")));
    json_t *body = wish->fraction > 0 ? json_pack("{s:s, s:f}", "reason", "from the console", "fraction", wish->fraction) : json_pack("{s:s}", "reason", "from the console");
    struct kv_call *c = kv_wire_start(w, KV_FOR_VERB, wish->verb->method, route, body, strcmp(wish->verb->name, "rollback") ? version : NULL);
    if (c) c->verb = wish->verb, kv_app_say(a, KV_STYLE_NORMAL, "%s: asked", wish->verb->name), kv_app_await(a, "%s: no answer yet", wish->verb->name);
    json_decref(body);
}

static void run_session_verb(struct kv_wire *w, char *text)
{
    char route[512], *tenant = strchr(text, '\n'), *id = tenant ? strchr(tenant + 1, '\n') : NULL;
    if (!id) return;
    *tenant++ = *id++ = 0;
    char *safe_id = curl_easy_escape(NULL, id, 0), *safe_tenant = curl_easy_escape(NULL, tenant, 0);
    snprintf(route, sizeof route, "/api/v1/sessions/%.300s/%.8s?tenant=%.150s", safe_id ? safe_id : "", text, safe_tenant ? safe_tenant : "");
    struct kv_call *c = kv_wire_start(w, KV_FOR_SESSION, "POST", route, NULL, NULL);
    if (c) snprintf(c->kind, sizeof c->kind, "%.8s", text), kv_app_await(w->app, "%.8s: no answer yet", text);
    curl_free(safe_id);
    curl_free(safe_tenant);
}

static void run_fault(struct kv_wire *w, char *text)
{
    char route[256], *name = strchr(text, '\n'), *rollout = name ? strchr(name + 1, '\n') : NULL;
    if (!rollout) return;
    *name++ = *rollout++ = 0;
    bool arms = !strcmp(text, "arm"), disarms = !strcmp(text, "disarm");
    char *safe = curl_easy_escape(NULL, name, 0);
    snprintf(route, sizeof route, "/api/v1/faults/%.200s%s", safe ? safe : "", arms || disarms ? "" : "/run");
    json_t *body = arms ? json_pack("{s:i, s:{s:s}}", "count", 1, "scope", "rollout", rollout) : NULL;
    struct kv_call *c = kv_wire_start(w, KV_FOR_FAULT, disarms ? "DELETE" : "POST", route, body, NULL);
    if (c) snprintf(c->kind, sizeof c->kind, "%.8s", text), kv_app_await(w->app, "fault %.8s: no answer yet", text);
    json_decref(body);
    curl_free(safe);
}

/* "route\nbody": without a body it is read. The page that waits for the route takes the answer. */
static void ask_evidence(struct kv_wire *w, char *text)
{
    char *body = strchr(text, '\n');
    if (!body) return;
    *body++ = 0;
    json_t *o = *body ? json_loads(body, 0, NULL) : NULL;
    struct kv_call *c = kv_wire_start(w, KV_FOR_OPEN, o ? "POST" : "GET", text, o, NULL);
    if (c) curl_easy_setopt(c->h, CURLOPT_TIMEOUT, (long)DRILL_S), kv_app_await(w->app, "%.60s: no answer yet", kv_app_page(w->app)->title);
    json_decref(o);
}

static void switch_context(struct kv_wire *w, const char *name)
{
    char url[256], token[256] = "", why[300];
    if (!*name) {
        kv_client_contexts(why, sizeof why);
        kv_app_say(w->app, KV_STYLE_NORMAL, "contexts: %s", why);
    } else if (kv_client_context(name, url, sizeof url, token, sizeof token, why, sizeof why)) {
        finish_all(w);
        kv_wire_end_compare(w);
        snprintf(w->url, sizeof w->url, "%s", url);
        snprintf(w->token, sizeof w->token, "%s", token);
        kv_app_switch(w->app, name, url);
        kv_app_say(w->app, KV_STYLE_NORMAL, "now on %s", url);
    } else kv_app_say(w->app, KV_STYLE_WARN, "%s", why);
}

void kv_wire_grant(struct kv_wire *w, struct kv_wish wish)
{
    struct kv_app *a = w->app;
    char route[192];
    struct kv_call *c;
    switch (wish.kind) {
    case KV_WISH_NONE: break;
    case KV_WISH_REFRESH: fetch_list(w, a->view); break;
    case KV_WISH_OLDER: fetch_older(w, a->view); break;
    case KV_WISH_OPEN:
        if (kv_wire_start(w, KV_FOR_OPEN, "GET", wish.text, NULL, NULL)) kv_app_await(a, "reading %.60s", kv_app_page(a)->title);
        break;
    case KV_WISH_COPY: copy(wish.text); break;
    case KV_WISH_EDIT:
        snprintf(route, sizeof route, "/api/v1/policies/%.100s", wish.text);
        c = kv_wire_start(w, KV_FOR_EDIT, "GET", route, NULL, NULL);
        if (c) snprintf(c->kind, sizeof c->kind, "%.31s", wish.text), kv_app_await(a, "reading the %.31s policy", c->kind);
        break;
    case KV_WISH_ACTIVATE: kv_wire_activate(w, wish.text); break;
    case KV_WISH_CONTEXT: switch_context(w, wish.text); break;
    case KV_WISH_COMPARE: kv_wire_compare(w, wish.text); break;
    case KV_WISH_VERB: run_verb(w, &wish); break;
    case KV_WISH_SESSION: run_session_verb(w, wish.text); break;
    case KV_WISH_FAULT: run_fault(w, wish.text); break;
    case KV_WISH_EVIDENCE: ask_evidence(w, wish.text); break;
    }
}

int kv_wire_open(struct kv_wire *w, struct kv_app *a, const struct kv_cli *cli)
{
    int status = kv_client_resolve(cli, w->url, sizeof w->url, w->token, sizeof w->token);
    if (status) return status;
    w->app = a;
    kv_app_switch(a, cli->context ? cli->context : "", w->url);
    w->multi = curl_multi_init();
    return w->multi ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

void kv_wire_close(struct kv_wire *w)
{
    if (!w->multi) return;
    finish_all(w);
    kv_wire_end_compare(w);
    curl_multi_cleanup(w->multi);
}
