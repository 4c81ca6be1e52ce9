/* interruptions.c — pause and result; openai_resume.c has resume. */
#include "controller/interruptions.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct running {
    char tenant[64], session[64];
    uint64_t request;
    bool shaped; /* by a response_format, which no continuation could take up in the middle */
    int32_t pausing; /* callers who ask for its pause, and have not written it down yet */
    bool paused;     /* written down */
    char *manifest;
    struct running *next;
};

struct ended { /* a continuation */
    char tenant[64], session[64];
    uint64_t epoch;
    struct ended *next;
};

struct kv_interruptions {
    pthread_mutex_t lock;
    pthread_cond_t asked; /* a caller has its answer */
    struct running *first; /* the newest */
    struct ended *ended;   /* not forgotten yet */
    int64_t began_us, began_monotonic_us;
    _Atomic int64_t oldest_us; /* no open pause is older */
};

struct kv_interruptions *kv_interruptions_create(void)
{
    struct kv_interruptions *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->asked, NULL);
    t->began_us = kv_realtime_us();
    t->began_monotonic_us = kv_monotonic_us();
    return t;
}

static void free_all(struct running *r)
{
    for (struct running *next; r; r = next) {
        next = r->next;
        free(r->manifest);
        free(r);
    }
}

void kv_interruptions_free(struct kv_interruptions *t)
{
    if (!t) return;
    free_all(t->first);
    for (struct ended *e = t->ended, *next; e; e = next) next = e->next, free(e);
    pthread_cond_destroy(&t->asked);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

int64_t kv_interruptions_now_us(const struct kv_interruptions *t)
{
    return t->began_us + kv_monotonic_us() - t->began_monotonic_us;
}

void kv_interruptions_expire(struct kv_app *app)
{
    int64_t max_us = app->config->max_pause_s * 1000000, before_us = kv_interruptions_now_us(app->interruptions) - max_us;
    struct kv_pause_row oldest;
    struct kv_error err = {0};
    int32_t n = 1, total;
    if (!max_us || app->interruptions->oldest_us > before_us) return;
    enum kv_status st = kv_store_open_pauses(app->store, &oldest, &n, &total, &err); /* oldest first */
    if (!st) app->interruptions->oldest_us = n ? oldest.paused_us : before_us + max_us;
    if (!st && n && oldest.paused_us < before_us) {
        st = kv_store_expire_pauses(app->store, before_us, &n, &err);
        if (!st && n) kv_events_log(KV_LOG_WARN, "%d paused sessions were given up: nobody came for them in %lld s", (int)n, (long long)app->config->max_pause_s);
    }
    if (st) kv_events_log(KV_LOG_WARN, "late pauses were not given up: %s: %s", kv_status_name(err.status), err.message);
}

enum kv_status kv_interruptions_undo(struct kv_app *app, const char *tenant, const char *session, uint64_t epoch, struct kv_error *err)
{
    enum kv_status st = kv_store_unresume(app->store, tenant, session, epoch, err);
    app->interruptions->oldest_us = 0; /* it may be the oldest again */
    return st;
}

void kv_interruptions_resumed(const struct kv_openai *o)
{
    struct kv_interruptions *t = o->app->interruptions;
    struct ended *e = malloc(sizeof *e);
    if (!e) return; /* the next start takes it for unfinished */
    *e = (struct ended){.epoch = o->resumed};
    memcpy(e->tenant, o->tenant, sizeof e->tenant);
    memcpy(e->session, o->session, sizeof e->session);
    pthread_mutex_lock(&t->lock);
    e->next = t->ended;
    t->ended = e;
    pthread_mutex_unlock(&t->lock);
}

void kv_interruptions_forget_ended(struct kv_app *app)
{
    struct kv_interruptions *t = app->interruptions;
    struct kv_error err;
    for (enum kv_status st = KV_OK; st == KV_OK;) {
        pthread_mutex_lock(&t->lock);
        struct ended *e = t->ended;
        if (e) t->ended = e->next;
        pthread_mutex_unlock(&t->lock);
        if (!e) return;
        st = kv_store_forget_resumed(app->store, e->tenant, e->session, e->epoch, &err);
        if (st == KV_OK) {
            free(e);
            continue;
        }
        pthread_mutex_lock(&t->lock);
        e->next = t->ended;
        t->ended = e;
        pthread_mutex_unlock(&t->lock);
    }
}

enum kv_status kv_interruptions_drop(struct kv_app *app, const char *tenant, const char *session, bool *was, struct kv_error *err)
{
    enum { MOST = 512 };
    struct kv_pause_view *v = calloc(MOST, sizeof *v);
    if (!v) return kv_fail(err, KV_OUT_OF_MEMORY, "session", "no memory for the list of pauses");
    enum kv_status st = kv_store_drop_pause(app->store, tenant, session, was, err);
    int32_t n = st ? 0 : kv_engine_paused_list(app->engine, v, MOST);
    for (int32_t i = 0; i < n && i < MOST; i++)
        if (!strcmp(v[i].tenant, tenant) && !strcmp(v[i].session, session)) (void)kv_engine_forget_paused(app->engine, v[i].request);
    free(v);
    return st;
}

/* ---------------------------------------------------------------- what a continuation needs */

static char *manifest_of(const struct kv_interruptions *t, const struct kv_openai *o)
{
    const struct kv_sampling *s = &o->q.sampling;
    json_t *stops = json_array();
    for (int i = 0; i < KV_MAX_STOPS && o->q.stop[i]; i++) json_array_append_new(stops, json_string(o->q.stop[i]));
    json_t *m = json_pack("{s:i, s:b, s:b, s:b, s:s, s:s, s:i, s:i, s:i, s:i, s:o}", "version", 1, "chat", (int)o->chat, "tool_pause", (int)o->q.pause_at_stop, "ignore_eos", (int)o->q.ignore_eos,
                          "contract", o->q.contract == KV_APPROXIMATE ? "approximate" : "exact", "class", o->q.class ? o->q.class : "", "first_prompt",
                          (int)(o->q.first_prompt ? o->q.first_prompt : o->q.n_prompt), "spoken", (int)o->q.n_spoken, "heard_from", (int)(o->q.n_prompt - o->q.n_heard), "max_tokens",
                          (int)o->q.max_tokens, "stop", stops);
    json_t *sampling = json_pack("{s:f, s:f, s:i, s:f, s:f, s:f}", "temperature", (double)s->temperature, "top_p", (double)s->top_p, "top_k", (int)s->top_k, "repetition_penalty",
                                 (double)s->repetition_penalty, "presence_penalty", (double)s->presence_penalty, "frequency_penalty", (double)s->frequency_penalty);
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)s->seed); /* JSON's integers are too short for one */
    json_object_set_new(sampling, "seed", json_string(seed));
    json_object_set_new(m, "sampling", sampling);
    json_object_set_new(m, "request", json_integer((json_int_t)o->id));
    json_object_set_new(m, "arrival_us", json_integer((json_int_t)(o->arrival_us ? o->arrival_us : kv_interruptions_now_us(t))));
    char *text = json_dumps(m, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(m);
    return text;
}

void kv_interruptions_running(struct kv_interruptions *t, const struct kv_openai *o)
{
    if (!*o->session) return;
    struct running *r = calloc(1, sizeof *r);
    if (!r || !(r->manifest = manifest_of(t, o))) return free(r); /* such a request cannot be paused, and is told so */
    snprintf(r->tenant, sizeof r->tenant, "%s", o->tenant);
    snprintf(r->session, sizeof r->session, "%s", o->session);
    r->request = o->id;
    r->shaped = o->q.schema != NULL;
    pthread_mutex_lock(&t->lock);
    r->next = t->first;
    t->first = r;
    pthread_mutex_unlock(&t->lock);
}

void kv_interruptions_ended(struct kv_interruptions *t, const struct kv_openai *o)
{
    if (!*o->session || !o->id) return;
    pthread_mutex_lock(&t->lock);
    struct running **at = &t->first, *r;
    while (*at && (*at)->request != o->id) at = &(*at)->next;
    if ((r = *at)) *at = r->next;
    bool unknown = r && o->q.pause_at_stop && !r->paused && !r->pausing;
    pthread_mutex_unlock(&t->lock);
    if (!r) return;
    r->next = NULL;
    free_all(r);
    if (unknown) (void)kv_engine_forget_paused(o->app->engine, o->id); /* it may have paused by itself when its client was gone: nobody was told how to resume it */
}

/* Copies of the session's running requests, or of request `id` alone, the newest first. What they become is not told before `tell`. */
static struct running *ask(struct kv_interruptions *t, const char *tenant, const char *session, uint64_t id)
{
    struct running *first = NULL, **end = &first;
    pthread_mutex_lock(&t->lock);
    for (struct running *r = t->first; r; r = r->next) {
        if (strcmp(r->tenant, tenant) || strcmp(r->session, session) || (id && r->request != id)) continue;
        struct running *copy = malloc(sizeof *copy);
        char *manifest = copy ? strdup(r->manifest) : NULL;
        if (!manifest) {
            free(copy);
            break; /* the older ones cannot be paused */
        }
        *copy = *r;
        copy->manifest = manifest;
        copy->next = NULL;
        *end = copy;
        end = &copy->next;
        r->pausing++;
    }
    pthread_mutex_unlock(&t->lock);
    return first;
}

/* paused: the request whose pause was written down; 0: none. Frees the copies. */
static void tell(struct kv_interruptions *t, struct running *copies, uint64_t paused)
{
    pthread_mutex_lock(&t->lock);
    for (const struct running *c = copies; c; c = c->next)
        for (struct running *r = t->first; r; r = r->next) {
            if (r->request != c->request) continue;
            r->pausing--;
            r->paused |= r->request == paused;
        }
    pthread_cond_broadcast(&t->asked);
    pthread_mutex_unlock(&t->lock);
    free_all(copies);
}

bool kv_interruptions_paused(struct kv_interruptions *t, const struct kv_openai *o)
{
    pthread_mutex_lock(&t->lock);
    struct running *r = t->first;
    while (r && r->request != o->id) r = r->next;
    while (r && r->pausing) pthread_cond_wait(&t->asked, &t->lock); /* only its own end takes it off the list */
    bool paused = r && r->paused;
    pthread_mutex_unlock(&t->lock);
    return paused;
}

/* ---------------------------------------------------------------- pause */

json_t *kv_pause_json(const struct kv_stored_pause *p, const struct kv_pause_view *v)
{
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:i, s:i}", "session", p->session, "call_id", p->result.call_id, "pause_epoch", (json_int_t)p->epoch, "state",
                          kv_session_state_name(v->state), "asked", kv_pause_action_name(v->asked), "action", kv_pause_action_name(v->action), "tokens", (int)v->n_tokens, "published", (int)v->n_spoken);
    json_object_set_new(o, "rows", json_integer(v->rows));
    json_object_set_new(o, "held_bytes", json_integer((json_int_t)v->held_bytes));
    json_object_set_new(o, "swapped_bytes", json_integer((json_int_t)v->swapped_bytes));
    json_object_set_new(o, "revisions", json_integer(v->revisions));
    json_object_set_new(o, "crossing_ms", kv_real_json(v->crossing_us / 1e3));
    json_object_set_new(o, "waste_byte_ms", json_pack("{s:o, s:o, s:o}", "preserve", kv_real_json(v->preserve_byte_ms), "swap", kv_real_json(v->swap_byte_ms), "discard", kv_real_json(v->discard_byte_ms)));
    return o;
}

/* Tokens and manifest become durable. The engine has paused the request already. */
static enum kv_status write_down(struct kv_app *app, const char *tenant, const char *session, const char *call_id, const char *manifest, const struct kv_pause_view *v, struct kv_stored_pause *p,
                             struct kv_error *err)
{
    *p = (struct kv_stored_pause){.paused_us = kv_interruptions_now_us(app->interruptions)};
    snprintf(p->tenant, sizeof p->tenant, "%s", tenant);
    snprintf(p->session, sizeof p->session, "%s", session);
    snprintf(p->result.call_id, sizeof p->result.call_id, "%s", call_id);
    json_t *m = json_loads(manifest, 0, NULL);
    p->tokens = calloc((size_t)v->n_tokens + 1, sizeof *p->tokens);
    int32_t before = (int32_t)json_integer_value(json_object_get(m, "spoken"));
    if (m && json_is_true(json_object_get(m, "tool_pause"))) json_object_set_new(m, "heard_from", json_integer(v->n_tokens)); /* its text has ended */
    json_object_set_new(m, "max_tokens", json_integer(json_integer_value(json_object_get(m, "max_tokens")) - (v->n_spoken - before)));
    json_object_set_new(m, "spoken", json_integer(v->n_spoken));
    json_object_set_new(m, "request", json_integer((json_int_t)v->request));
    p->manifest = m ? json_dumps(m, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(m);
    if (!p->tokens || !p->manifest) return kv_fail(err, KV_OUT_OF_MEMORY, "session", "no memory for the pause");
    enum kv_status st = kv_engine_paused_tokens(app->engine, v->request, p->tokens, v->n_tokens, &p->n_tokens);
    if (st) return kv_fail(err, st, "session", "the pause was dropped meanwhile");
    return kv_store_put_pause(app->store, p, err);
}

/* What could not be written down nobody can resume, so the engine keeps nothing of it. */
static enum kv_status record(struct kv_app *app, const char *tenant, const char *session, const char *call_id, const char *manifest, const struct kv_pause_view *v, struct kv_stored_pause *p,
                             struct kv_error *err)
{
    enum kv_status st = write_down(app, tenant, session, call_id, manifest, v, p, err);
    if (st) (void)kv_engine_forget_paused(app->engine, v->request);
    return st;
}

enum kv_status kv_interruptions_tool_call(struct kv_openai *o, json_t **out, struct kv_error *err)
{
    struct kv_pause_view v;
    struct kv_stored_pause p = {0};
    uint32_t salt = 0;
    char call_id[64];
    *out = NULL;
    struct running *own = ask(o->app->interruptions, o->tenant, o->session, o->id); /* never shaped: kvasir.tool_pause is refused then */
    if (!own || kv_engine_paused(o->app->engine, o->id, &v)) return tell(o->app->interruptions, own, 0), kv_fail(err, KV_NOT_PAUSED, "session", "the pause was dropped meanwhile");
    if (getrandom(&salt, sizeof salt, 0) < 0) salt = (uint32_t)kv_realtime_us();
    snprintf(call_id, sizeof call_id, "call_%llu_%08x", (unsigned long long)o->id, salt);
    enum kv_status st = record(o->app, o->tenant, o->session, call_id, own->manifest, &v, &p, err);
    if (!st) *out = kv_pause_json(&p, &v);
    kv_stored_pause_free(&p);
    tell(o->app->interruptions, own, st ? 0 : o->id);
    return st;
}

static enum kv_status text_field(json_t *o, const char *name, bool needed, const char **out, struct kv_error *err)
{
    json_t *v = json_object_get(o, name);
    *out = json_string_value(v) ? json_string_value(v) : "";
    if (!v && !needed) return KV_OK;
    return **out && json_string_length(v) < 64 && kv_openai_plain(*out) ? KV_OK : kv_fail(err, KV_BAD_ARGUMENT, name, "%s must be text of 1 to 63 bytes without control characters", name);
}

static enum kv_status only(json_t *o, const char *const *names, struct kv_error *err)
{
    const char *name;
    json_t *v;
    json_object_foreach(o, name, v) {
        int i = 0;
        while (names[i] && strcmp(names[i], name)) i++;
        if (!names[i]) return kv_fail(err, KV_UNKNOWN_KEY, name, "no field of this request is named '%.60s'", name);
    }
    return KV_OK;
}

/* Which of the session's requests the engine paused is known afterwards only: a newer one may wait in the queue. */
static enum kv_status pause_one(struct kv_app *app, const struct running *of, enum kv_pause_action action, const char *call_id, struct kv_pause_view *v, struct kv_stored_pause *p, struct kv_error *err)
{
    for (const struct running *r = of; r; r = r->next)
        if (r->shaped) {
            kv_fail(err, KV_UNSUPPORTED, "response_format", "the answer of session '%s' has a response_format and cannot be paused", r->session);
            kv_hint(err, "let it end, or ask without response_format");
            return KV_UNSUPPORTED;
        }
    enum kv_status st = kv_engine_pause(app->engine, of->tenant, of->session, action, v, err);
    if (st) return st;
    const struct running *r = of;
    while (r && r->request != v->request) r = r->next;
    if (r) return record(app, r->tenant, r->session, call_id, r->manifest, v, p, err);
    (void)kv_engine_forget_paused(app->engine, v->request);
    kv_fail(err, KV_NOT_PAUSED, "session", "another request of session '%s' began meanwhile, and its answer was ended", of->session);
    kv_hint(err, "ask again for that answer; run one request of a session at a time where it is to pause");
    return KV_NOT_PAUSED;
}

KV_HANDLER(kv_session_pause)
{
    static const char *const fields[] = {"call_id", "action", NULL};
    struct kv_app *app = r->app;
    const char *tenant = r->who.tenant, *session = r->part[0], *call_id, *name;
    enum kv_status st = only(r->json, fields, err);
    if (!st) st = text_field(r->json, "call_id", false, &call_id, err);
    if (!st) st = text_field(r->json, "action", false, &name, err);
    if (st) return st;
    int action = KV_PAUSE_AUTO;
    while (*name && action < KV_PAUSE_ACTIONS && strcmp(kv_pause_action_name((enum kv_pause_action)action), name)) action++;
    if (action == KV_PAUSE_ACTIONS) return kv_fail(err, KV_BAD_ARGUMENT, "action", "'%s' is none of auto, preserve, swap and discard", name);
    struct kv_pause_view v;
    struct kv_stored_pause p = {0}, before;
    st = kv_store_last_pause(app->store, tenant, session, &before, err);
    kv_stored_pause_free(&before);
    if (!st && !before.resumed) {
        kv_fail(err, KV_ALREADY_PAUSED, "session", "session '%s' is paused at epoch %llu", session, (unsigned long long)before.epoch);
        kv_hint(err, "resume it with that epoch first");
        return KV_ALREADY_PAUSED;
    }
    if (st && st != KV_NOT_FOUND) return st;
    struct running *of = ask(app->interruptions, tenant, session, 0);
    if (!of) {
        kv_fail(err, KV_NOT_FOUND, "session", "no request of session '%s' is running", session);
        kv_hint(err, "name the session in kvasir.session of the request, and pause it while it answers");
        return KV_NOT_FOUND;
    }
    st = pause_one(app, of, (enum kv_pause_action)action, call_id, &v, &p, err);
    tell(app->interruptions, of, st ? 0 : v.request);
    if (!st) st = kv_http_reply_json(r, 200, kv_pause_json(&p, &v), err);
    kv_stored_pause_free(&p);
    return st;
}

/* ---------------------------------------------------------------- result */

static enum kv_status check_digest(json_t *o, const char *content, size_t n, uint8_t digest[32], struct kv_error *err)
{
    char hex[65];
    const char *given = json_string_value(json_object_get(o, "digest"));
    kv_sha256(content, n, digest);
    kv_hex(digest, 32, hex);
    if (!json_object_get(o, "digest") || (given && !strcasecmp(given, hex))) return KV_OK;
    return kv_fail(err, KV_BAD_ARGUMENT, "digest", "the digest is not the SHA-256 of the content, which is %s", hex);
}

/* Content as tokens that fit behind those of the pause, with room for one more. */
static enum kv_status tokenize(struct kv_app *app, const struct kv_stored_pause *p, const char *content, size_t len, int32_t **out, int32_t *n, struct kv_error *err)
{
    int64_t context = app->config->context_length ? app->config->context_length : kv_model_info(app->model)->context_length, room = context - p->n_tokens - 1;
    size_t cap = len + 8, got = 0;
    *out = calloc(cap, sizeof **out);
    if (!*out) return kv_fail(err, KV_OUT_OF_MEMORY, "content", "no memory for the result");
    enum kv_status st = kv_tokenize(app->model, content, len, false, *out, cap, &got, err);
    *n = (int32_t)got;
    if (!st && (int64_t)got > room) {
        st = kv_fail(err, KV_CONTEXT_OVERRUN, "content", "the result has %zu tokens and the context has room for %lld", got, (long long)(room > 0 ? room : 0));
        kv_hint(err, "shorten it; nothing was applied and the call still waits");
    }
    return st;
}

static json_t *result_json(const struct kv_stored_pause *p, const struct kv_result_key *key, int32_t n)
{
    char hex[65];
    kv_hex(key->digest, 32, hex);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:i}", "session", p->session, "call_id", key->call_id, "pause_epoch", (json_int_t)key->pause_epoch, "result_id", key->result_id, "digest", hex,
                     "state", kv_result_state_name(KV_RESULT_APPLIED), "tokens", (int)n);
}

/* Reserve, see that the rows are of these tokens, commit suffix and frontier with the receipt, and say that it is applied. What fails before the commit leaves the
 * call waiting; what was committed is only finalised. */
static enum kv_status apply(struct kv_app *app, struct kv_stored_pause *p, const struct kv_result_key *key, const int32_t *tokens, int32_t n, struct kv_error *err)
{
    enum kv_result_answer answer;
    const char *t = p->tenant, *s = p->session;
    enum kv_status st = kv_store_move_result(app->store, t, s, key, KV_RESULT_RESERVED, NULL, 0, &answer, err);
    if (st || answer == KV_RESULT_NOOP) return st;
    if (answer == KV_RESULT_GO_ON) {
        /* Rows that wait in the engine are matched with the tokens when they are taken over; all others are computed. */
        st = kv_store_move_result(app->store, t, s, key, KV_RESULT_CACHE_READY_AND_VALIDATED, NULL, 0, &answer, err);
        if (!st) st = kv_store_move_result(app->store, t, s, key, KV_RESULT_RESULT_APPEND_COMMITTED, tokens, n, &answer, err);
        if (st) return st;
    }
    return kv_store_move_result(app->store, t, s, key, KV_RESULT_APPLIED, NULL, 0, &answer, err);
}

KV_HANDLER(kv_session_result)
{
    static const char *const fields[] = {"call_id", "pause_epoch", "result_id", "digest", "content", NULL};
    struct kv_app *app = r->app;
    const char *call_id, *result_id;
    json_t *content = json_object_get(r->json, "content"), *epoch = json_object_get(r->json, "pause_epoch");
    struct kv_result_key key = {.pause_epoch = (uint64_t)json_integer_value(epoch)};
    enum kv_status st = only(r->json, fields, err);
    if (!st) st = text_field(r->json, "call_id", true, &call_id, err);
    if (!st) st = text_field(r->json, "result_id", true, &result_id, err);
    if (st) return st;
    if (!json_is_integer(epoch) || json_integer_value(epoch) < 1) return kv_fail(err, KV_BAD_ARGUMENT, "pause_epoch", "pause_epoch must be a whole number above zero");
    if (!json_is_string(content)) return kv_fail(err, KV_BAD_ARGUMENT, "content", "content must be text");
    if ((st = check_digest(r->json, json_string_value(content), json_string_length(content), key.digest, err))) return st;
    snprintf(key.call_id, sizeof key.call_id, "%s", call_id);
    snprintf(key.result_id, sizeof key.result_id, "%s", result_id);
    struct kv_stored_pause p;
    enum kv_result_answer answer;
    int32_t *tokens = NULL, n = 0;
    st = kv_store_last_pause(app->store, r->who.tenant, r->part[0], &p, err);
    if (!st && !*p.result.call_id) {
        st = kv_fail(err, KV_NOT_FOUND, "call_id", "session '%s' waits for no result", p.session);
        kv_hint(err, "resume it; only a pause with a call_id takes a result");
    }
    if (!st) st = kv_result_offer(&p.result, p.result_state, &key, &answer, err); /* refused before anything is tokenised */
    if (!st && answer == KV_RESULT_GO_ON) st = tokenize(app, &p, json_string_value(content), json_string_length(content), &tokens, &n, err);
    else n = p.n_result_tokens;
    if (!st) st = apply(app, &p, &key, tokens, n, err);
    if (!st) st = kv_http_reply_json(r, 200, result_json(&p, &key, n), err);
    kv_stored_pause_free(&p);
    free(tokens);
    return st;
}
