/* api_sessions.c — sessions as operators see them: which arm serves them, what of their history is kept, and pin, unpin and drop. */
#include "controller/http/api.h"
#include "controller/interruptions.h"

#include <stdlib.h>
#include <string.h>

static void add_kept(json_t *to, const struct kv_session_info *i)
{
    json_t *o = json_pack("{s:s, s:b, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "state", kv_session_state_name(i->state), "pinned", (int)i->pinned, "saved_tokens", (int)i->tokens,
                          "saved_blocks", (int)i->blocks, "held_blocks", (int)i->held_blocks, "saved_bytes", (json_int_t)i->bytes, "turns", (json_int_t)i->turns, "saves",
                          (json_int_t)i->saves, "restores", (json_int_t)i->restores, "recomputes", (json_int_t)i->recomputes, "save_failures", (json_int_t)i->failures);
    json_object_set_new(o, "restored_tokens", json_integer(i->restored_tokens));
    json_object_set_new(o, "restore_ms", kv_real_json(i->restore_us / 1e3));
    json_object_set_new(o, "restore_wait_ms", kv_real_json(i->restore_wait_us / 1e3));
    json_object_set_new(o, "recompute_ms", i->recompute_us > 0 ? kv_real_json(i->recompute_us / 1e3) : json_null());
    json_object_set_new(o, "reason", json_string(kv_status_name(i->reason)));
    json_object_update(to, o);
    json_decref(o);
}

static bool same(const struct kv_session_view *seen, const struct kv_session_info *kept)
{
    return !strcmp(kept->session, seen->session) && !strcmp(kept->tenant, seen->tenant);
}

/* Sessions of earlier runs: kept, and without a request so far. */
static void add_unseen(json_t *list, const char *session, const struct kv_session_view *seen, int32_t n_seen, const struct kv_session_info *kept, int32_t n_kept)
{
    for (int32_t k = 0; k < n_kept; k++) {
        int32_t i = 0;
        while (i < n_seen && !same(&seen[i], &kept[k])) i++;
        if (i < n_seen || (session && strcmp(session, kept[k].session))) continue;
        json_t *o = json_pack("{s:s, s:s, s:n, s:i, s:i, s:o}", "session", kept[k].session, "tenant", kept[k].tenant, "arm", "requests", 0, "tokens", 0, "last_at",
                              kv_time_json(kept[k].used_us));
        add_kept(o, &kept[k]);
        json_array_append_new(list, o);
    }
}

/* Paused ones of an earlier run that nothing else knows. */
static void add_paused(struct kv_app *app, json_t *list, const char *session)
{
    enum { MOST = 512 };
    struct kv_pause_row *p = calloc(MOST, sizeof *p);
    struct kv_session_info none = {.state = KV_SESSION_TOKEN_ONLY};
    struct kv_error ignored; /* the list of pauses says it */
    int32_t n = MOST, total;
    if (!p || kv_store_open_pauses(app->store, p, &n, &total, &ignored)) n = 0;
    for (int32_t i = 0; i < n; i++) {
        bool known = session && strcmp(session, p[i].session);
        size_t k;
        json_t *v;
        json_array_foreach(list, k, v)
            known |= !strcmp(json_string_value(json_object_get(v, "session")), p[i].session) && !strcmp(json_string_value(json_object_get(v, "tenant")), p[i].tenant);
        if (known) continue;
        json_t *o = json_pack("{s:s, s:s, s:n, s:i, s:i, s:o}", "session", p[i].session, "tenant", p[i].tenant, "arm", "requests", 0, "tokens", 0, "last_at", kv_time_json(p[i].paused_us));
        add_kept(o, &none);
        json_array_append_new(list, o);
    }
    free(p);
}

/* One row a (tenant, session): what was seen of its requests, and what the engine keeps of it. */
static json_t *rows_of(struct kv_app *app, const char *session)
{
    struct kv_session_view *seen = calloc(KV_SESSIONS_KEPT, sizeof *seen);
    struct kv_session_info *kept = calloc(KV_SESSIONS_MAX, sizeof *kept);
    json_t *list = seen && kept ? json_array() : NULL;
    int32_t n_seen = list ? kv_sessions_list(app->sessions, seen) : 0, n_kept = list ? kv_engine_sessions(app->engine, kept, KV_SESSIONS_MAX) : 0;
    for (int32_t i = 0; i < n_seen; i++) {
        if (session && strcmp(session, seen[i].session)) continue;
        json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "session", seen[i].session, "tenant", seen[i].tenant, "arm", kv_arm_name(seen[i].arm), "requests",
                              (json_int_t)seen[i].requests, "tokens", (json_int_t)seen[i].tokens, "last_at", kv_time_json(seen[i].last_us));
        for (int32_t k = 0; k < n_kept; k++)
            if (same(&seen[i], &kept[k])) add_kept(o, &kept[k]);
        json_array_append_new(list, o);
    }
    if (list) add_unseen(list, session, seen, n_seen, kept, n_kept);
    if (list) add_paused(app, list, session);
    free(seen);
    free(kept);
    return list;
}

KV_HANDLER(kv_api_sessions)
{
    json_t *list = rows_of(r->app, NULL);
    return kv_http_reply_json(r, 200, list ? json_pack("{s:o}", "sessions", list) : NULL, err);
}

/* A session's name is its tenant's own; where two tenants have the same one, ?tenant= says which. */
static enum kv_status one_row(struct kv_http_request *r, json_t **row, struct kv_error *err)
{
    static const char *const keys[] = {"tenant"};
    const char *tenant = kv_http_query(r, "tenant");
    size_t i, n = 0;
    *row = NULL;
    enum kv_status st = kv_http_query_known(r, keys, 1, err);
    if (st) return st;
    json_t *list = rows_of(r->app, r->part[0]), *v;
    if (!list) return kv_fail(err, KV_OUT_OF_MEMORY, "sessions", "no memory for the sessions");
    json_array_foreach(list, i, v)
        if (!tenant || !strcmp(tenant, json_string_value(json_object_get(v, "tenant")))) *row = v, n++;
    json_incref(*row);
    json_decref(list);
    if (n == 1) return KV_OK;
    json_decref(*row);
    *row = NULL;
    if (n == 0) return kv_fail(err, KV_NOT_FOUND, "session", "no session is named '%s'", r->part[0]);
    kv_fail(err, KV_CONFLICT, "tenant", "%d tenants have a session named '%s'", (int)n, r->part[0]);
    kv_hint(err, "add ?tenant=NAME");
    return KV_CONFLICT;
}

KV_HANDLER(kv_api_session)
{
    struct kv_app *app = r->app;
    struct kv_session_info info;
    json_t *row;
    enum kv_status st = one_row(r, &row, err);
    if (st) return st;
    if (!kv_engine_session(app->engine, KV_SESSION_SHOW, json_string_value(json_object_get(row, "tenant")), r->part[0], &info, err)) add_kept(row, &info);
    return kv_http_reply_json(r, 200, row, err);
}

static enum kv_status record_deletion(const struct kv_http_request *r, const char *tenant, const struct kv_session_info *info, json_t *row, struct kv_error *err)
{
    struct kv_receipt x;
    uint64_t id;
    kv_receipt_init(&x, KV_ROW_DELETION, kv_realtime_us());
    x.bytes = info->bytes;
    snprintf(x.tenant, sizeof x.tenant, "%s", tenant);
    snprintf(x.session, sizeof x.session, "%.63s", r->part[0]);
    snprintf(x.detail, sizeof x.detail, "dropped by operator:%.40s from every tier", r->who.name);
    enum kv_status st = kv_store_put_receipt(((struct kv_app *)r->app)->store, &x, &id, err);
    if (st) kv_hint(err, kv_store_post(((struct kv_app *)r->app)->store, &x) ? "the session's rows are gone; its receipt waits in the queue" : "the session's rows are gone, and no receipt says so");
    else json_object_set_new(row, "receipt", json_integer((json_int_t)id));
    return st;
}

KV_HANDLER(kv_api_sessions_verb)
{
    static const struct { const char *name; enum kv_session_command what; } verbs[] = {{"pin", KV_SESSION_PIN}, {"unpin", KV_SESSION_UNPIN}, {"drop", KV_SESSION_DROP}};
    struct kv_app *app = r->app;
    struct kv_session_info info = {0};
    json_t *row;
    size_t v = 0;
    while (v < sizeof verbs / sizeof *verbs && strcmp(verbs[v].name, r->part[1])) v++;
    if (v == sizeof verbs / sizeof *verbs) return kv_fail(err, KV_NOT_FOUND, "verb", "no verb of sessions is named '%s'; pin, unpin and drop are there", r->part[1]);
    enum kv_status st = one_row(r, &row, err);
    if (st) return st;
    const char *tenant = json_string_value(json_object_get(row, "tenant"));
    bool paused = false;
    st = kv_engine_session(app->engine, verbs[v].what, tenant, r->part[0], &info, err);
    if (verbs[v].what == KV_SESSION_DROP && (!st || st == KV_NOT_FOUND)) {
        struct kv_error pause;
        enum kv_status dropped = kv_interruptions_drop(app, tenant, r->part[0], &paused, &pause);
        if (dropped) st = dropped, *err = pause;
        else if (paused) st = KV_OK; /* its rows may have been in memory only */
    }
    if (st) return json_decref(row), st;
    if (verbs[v].what == KV_SESSION_DROP) {
        json_object_set_new(row, "dropped_bytes", json_integer((json_int_t)info.bytes));
        st = record_deletion(r, tenant, &info, row, err);
    } else {
        add_kept(row, &info);
    }
    if (st) return json_decref(row), st;
    return kv_http_reply_json(r, 200, row, err);
}
