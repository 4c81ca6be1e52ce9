/* wire_policy.c — a policy edited in the operator's own editor: read, edited, checked, and activated when y is said to the difference. */
#include "console/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *o, const char *field)
{
    const char *s = json_string_value(json_object_get(o, field));
    return s ? s : "";
}

void kv_wire_take_policy(struct kv_wire *w, const char *kind, json_t *active)
{
    struct kv_app *a = w->app;
    char why[256] = "";
    const char *source = text_of(active, "source"), *draft = json_string_value(json_object_get(a->draft, kind));
    char *edited = w->edit(kind, draft ? draft : source, why, sizeof why);
    if (!a->draft) a->draft = json_object();
    json_t *text = edited ? json_string(edited) : NULL;
    if (!edited) kv_app_say(a, KV_STYLE_BAD, "%s", why);
    else if (!text) kv_app_say(a, KV_STYLE_BAD, "the edited text is not UTF-8; nothing was done");
    else if (!strcmp(edited, source)) kv_app_say(a, KV_STYLE_NORMAL, "nothing differs from ACTIVE; nothing was done"), json_object_del(a->draft, kind);
    else {
        json_t *body = json_pack("{s:s, s:s}", "kind", kind, "source", edited);
        struct kv_call *c = kv_wire_start(w, KV_FOR_CHECK, "POST", "/api/v1/policies/check", body, NULL);
        json_object_set(a->draft, kind, text);
        if (c) {
            snprintf(c->kind, sizeof c->kind, "%s", kind);
            c->active = json_incref(active);
            c->source = edited;
            edited = NULL;
            kv_app_await(a, "checking the %s policy", kind);
        }
        json_decref(body);
    }
    json_decref(text);
    free(edited);
}

/* The next question about the same edit. Its answer comes back to kv_wire_take_check. */
static void go_on(struct kv_wire *w, struct kv_call *c, const char *verb, const char *version)
{
    char route[128];
    json_t *body = version ? json_pack("{s:s}", "version", version) : json_pack("{s:s}", "source", c->source);
    snprintf(route, sizeof route, "/api/v1/policies/%.31s/%s", c->kind, verb);
    struct kv_call *next = kv_wire_start(w, KV_FOR_CHECK, "POST", route, body, NULL);
    json_decref(body);
    if (!next) return;
    memcpy(next->kind, c->kind, sizeof next->kind);
    next->active = json_incref(c->active);
    next->source = c->source;
    c->source = NULL;
    kv_app_await(w->app, "%s of the %s policy", verb, next->kind);
}

/* What the operator decides on: who it is, and what it would have answered to what was asked lately. */
static void propose(struct kv_wire *w, struct kv_call *c, const json_t *version, const json_t *replay)
{
    char text[200] = "";
    const json_t *changes = json_object_get(replay, "changes");
    if (replay)
        snprintf(text, sizeof text, "%.0f of %.0f recorded answers would change, %.0f faults", json_number_value(json_object_get(replay, "changed")), json_number_value(json_object_get(replay, "asked")),
                 json_number_value(json_object_get(replay, "faults")));
    json_t *o = json_pack("{s:s, s:s, s:s, s:s}", "name", text_of(version, "name"), "version", text_of(version, "version"), "state", text_of(version, "state"), "replay", *text ? text : "none");
    if (json_array_size(changes)) json_object_set(o, "changes", (json_t *)changes);
    kv_app_propose(w->app, c->kind, c->active, c->source, o);
}

/* policies/check touches nothing; then the text becomes a version, is checked with its tests, and replayed. */
void kv_wire_take_check(struct kv_wire *w, struct kv_call *c, json_t *answer, const char *refused)
{
    const char *step = strrchr(c->route, '/') + 1;
    const json_t *inner = json_object_get(answer, "version");
    if (refused) kv_app_say(w->app, KV_STYLE_BAD, "%.400s; e goes on with your edit", refused);
    else if (!strcmp(c->route, "/api/v1/policies/check")) go_on(w, c, "submit", NULL);
    else if (!strcmp(step, "submit") && !strcmp(text_of(answer, "state"), "DRAFT")) go_on(w, c, "check", text_of(answer, "version"));
    else if (!strcmp(step, "check") || (!strcmp(step, "submit") && !strcmp(text_of(answer, "state"), "CHECKED"))) go_on(w, c, "replay", text_of(answer, "version"));
    else if (!strcmp(step, "replay")) propose(w, c, inner, answer);
    else propose(w, c, answer, NULL); /* known before: it was replayed then */
}

void kv_wire_activate(struct kv_wire *w, const char *kind)
{
    struct kv_app *a = w->app;
    char route[128];
    const struct kv_page *p = kv_app_page(a);
    if (!p || p->kind != KV_PAGE_DIFF) return;
    if (kv_app_stale(a)) {
        kv_app_say(a, KV_STYLE_WARN, "the data is stale; nothing is changed until the server answers again; e goes on with your edit");
        kv_app_pop(a);
        return;
    }
    snprintf(route, sizeof route, "/api/v1/policies/%.31s/activate", kind);
    json_t *body = json_pack("{s:s}", "source", text_of(p->data, "source"));
    struct kv_call *c = kv_wire_start(w, KV_FOR_ACTIVATE, "POST", route, body, text_of(p->data, "base"));
    if (c) snprintf(c->kind, sizeof c->kind, "%s", kind), kv_app_await(a, "activating the %s policy", kind);
    json_decref(body);
    kv_app_pop(a);
}
