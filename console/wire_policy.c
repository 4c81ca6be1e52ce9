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

void kv_wire_take_check(struct kv_wire *w, struct kv_call *c, json_t *answer, const char *refused)
{
    if (refused) kv_app_say(w->app, KV_STYLE_BAD, "%.400s; e goes on with your edit", refused);
    else kv_app_propose(w->app, c->kind, c->active, c->source, json_incref(answer));
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
