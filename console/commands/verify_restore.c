/* verify_restore.c — rows that are written to a tier and read back, or computed again from their tokens, in the middle of a run; and rollbacks from an
 * approximate stage with tokens of its own, greedy and sampled. */
#include "console/commands/verify.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRIES = 20, PATIENCE_MS = 10000 };

static void moment(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

/* ---------------------------------------------------------------- paused and resumed */

static enum kv_status wait_for(struct kv_engine *e, uint64_t request, enum kv_session_state state, struct kv_pause_view *view, struct kv_error *err)
{
    for (int waited = 0; waited < PATIENCE_MS; waited++) {
        enum kv_status s = kv_engine_paused(e, request, view);
        if (s != KV_OK || view->state == state) return s;
        moment();
    }
    return kv_fail(err, KV_INTERNAL, "verify", "a paused request stays %s", kv_session_state_name(view->state));
}

/* Forced as the first case is, paused in its middle, its rows kept, moved out or dropped, and resumed. *retry: it had ended before the pause came. */
static enum kv_status interrupted(struct kv_verification *v, struct kv_engine *e, enum kv_pause_action action, enum kv_session_state state, struct kv_watch *w, bool *retry, struct kv_error *err)
{
    struct kv_stream *stream;
    struct kv_request_stats st;
    struct kv_pause_view view;
    int32_t n = 0, total = v->n_prompt + v->n_forced, middle = v->n_prompt + v->n_forced / 2;
    struct kv_request q = {.prompt = v->ids, .n_prompt = v->n_prompt, .max_tokens = v->n_forced, .force = v->ids + v->n_prompt, .n_force = v->n_forced, .ignore_eos = true,
                           .sampling = {.top_p = 1, .repetition_penalty = 1}, .tenant = "verify", .session = "paused", .observe = kv_verify_observe, .observe_ctx = w, .observe_prompt = true};
    atomic_store(&w->reached, -1);
    atomic_store(&w->wait_at, middle);
    enum kv_status s = kv_engine_submit(e, &q, &stream, err);
    if (s != KV_OK) return s;
    do {
        moment();
        kv_stream_stats(stream, &st);
    } while (atomic_load(&w->reached) < middle && st.finish == KV_RUNNING);
    atomic_store(&w->wait_at, -1);
    enum kv_status paused = kv_engine_pause(e, "verify", "paused", action, &view, err);
    s = kv_verify_finish(stream, NULL, 0, &st, err);
    *retry = s == KV_OK && paused == KV_NOT_FOUND;
    if (s != KV_OK || paused != KV_OK) return *retry ? KV_OK : s != KV_OK ? s : paused;
    int32_t *tokens = malloc((size_t)total * sizeof *tokens);
    if (!tokens) return kv_fail(err, KV_OUT_OF_MEMORY, "verify", "no memory for %d tokens", total);
    s = wait_for(e, view.request, state, &view, err);
    if (s == KV_OK) s = kv_engine_paused_tokens(e, view.request, tokens, total, &n);
    if (s == KV_OK && (n <= v->n_prompt || n >= total || memcmp(tokens, v->ids, (size_t)n * sizeof *tokens))) s = kv_fail(err, KV_INTERNAL, "verify", "a paused request has %d of %d tokens", n, total);
    q.prompt = tokens;
    q.n_prompt = n;
    q.first_prompt = v->n_prompt;
    q.n_spoken = n - v->n_prompt;
    q.max_tokens = q.n_force = total - n;
    q.force = v->ids + n;
    q.resume = view.request;
    q.observe_prompt = false;
    if (s == KV_OK) s = kv_engine_submit(e, &q, &stream, err);
    if (s == KV_OK) s = kv_verify_finish(stream, NULL, 0, &st, err);
    free(tokens);
    return s;
}

static enum kv_status check_pause(struct kv_verification *v, const char *name, enum kv_pause_action action, enum kv_session_state state, struct kv_error *err)
{
    struct kv_verify_case s = {.batch = 1, .chunk = 64, .threads = 2};
    struct kv_engine *e = NULL;
    struct kv_watch w = {.digest = calloc((size_t)(v->n_prompt + v->n_forced), 32), .roll_back_at = -1};
    enum kv_status status = w.digest ? kv_verify_create(v, &s, &e, err) : kv_fail(err, KV_OUT_OF_MEMORY, "verify", "no memory for the digests");
    bool retry = true;
    for (int i = 0; status == KV_OK && retry && i < TRIES; i++) status = interrupted(v, e, action, state, &w, &retry, err);
    if (status == KV_OK && retry) status = kv_fail(err, KV_INTERNAL, "verify", "%s: no run could be paused before it ended", name);
    if (status == KV_OK) status = kv_verify_add(v, name, w.digest, 0, NULL, err);
    kv_engine_destroy(e);
    free(w.digest);
    return status;
}

/* ---------------------------------------------------------------- rolled back with tokens of its own */

struct spoken {
    int32_t *token, n;          /* published */
    uint8_t (*digest)[32];
};

/* force: [n_force] first outputs. pipeline: NULL resident, else from an approximate stage that is rolled back in the middle. */
static enum kv_status speak(struct kv_verification *v, const char *pipeline, struct kv_sampling sampling, const int32_t *force, int32_t n_force, struct spoken *out, struct kv_error *err)
{
    struct kv_verify_case s = {.batch = 1, .chunk = 64, .threads = 2};
    struct kv_engine *e = NULL;
    struct kv_stream *stream;
    struct kv_request_stats st;
    char budget[] = "budget_rows=16";
    struct kv_watch w = {.digest = out->digest, .roll_back_at = pipeline ? v->n_prompt + v->n_forced / 2 : -1, .wait_at = -1};
    enum kv_status status = kv_verify_create(v, &s, &e, err);
    if (status == KV_OK) status = kv_offline_install(e, pipeline, (char *[]){budget}, pipeline != NULL, err);
    struct kv_request q = {.prompt = v->ids, .n_prompt = v->n_prompt, .max_tokens = v->n_forced, .force = force, .n_force = n_force, .ignore_eos = true, .sampling = sampling, .tenant = "verify",
                           .contract = pipeline ? KV_APPROXIMATE : KV_EXACT, .candidate = pipeline ? 1 : 0, .observe = kv_verify_observe, .observe_ctx = &w, .observe_prompt = true};
    w.engine = e;
    if (status == KV_OK) q.epoch = kv_engine_release(e).epoch, status = kv_engine_submit(e, &q, &stream, err);
    if (status == KV_OK) status = kv_verify_finish(stream, out->token, v->n_forced, &st, err);
    out->n = status == KV_OK ? st.n_published : 0;
    kv_engine_destroy(e);
    return status;
}

/* After the rollback every logit and every draw is that of a fresh exact run over the tokens that were published before it. */
static enum kv_status check_rollback(struct kv_verification *v, const char *name, struct kv_sampling sampling, struct kv_error *err)
{
    size_t rows = (size_t)(v->n_prompt + v->n_forced), said = (size_t)(v->n_forced / 2) + 1; /* the step that is rolled back would have published the next one */
    struct spoken a = {.token = calloc((size_t)v->n_forced, sizeof(int32_t)), .digest = calloc(rows, 32)}, b = {.token = calloc((size_t)v->n_forced, sizeof(int32_t)), .digest = calloc(rows, 32)};
    bool memory = a.token && a.digest && b.token && b.digest;
    enum kv_status status = memory ? speak(v, "quest", sampling, NULL, 0, &a, err) : kv_fail(err, KV_OUT_OF_MEMORY, "verify", "no memory for the run");
    if (status == KV_OK) status = speak(v, NULL, sampling, a.token, (int32_t)said, &b, err);
    if (status == KV_OK) {
        uint8_t all[32];
        char hex[65];
        size_t p = 0;
        while (p + 1 < rows && !memcmp(a.digest[p], b.digest[p], 32)) p++; /* rows from the frontier on were computed again */
        bool same = p + 1 >= rows && a.n == v->n_forced && b.n == v->n_forced && !memcmp(a.token, b.token, (size_t)a.n * sizeof *a.token);
        kv_sha256(a.digest, (rows - 1) * 32, all);
        kv_hex(all, sizeof all, hex);
        json_t *row = json_pack("{s:s, s:s, s:b}", "name", name, "digest", hex, "equal", (int)same);
        if (!same) json_object_set_new(row, "differs_from_position", json_integer((json_int_t)p)), v->equal = false;
        json_array_append_new(v->rollbacks, row);
    }
    free(a.token), free(a.digest), free(b.token), free(b.digest);
    return status;
}

enum kv_status kv_verify_restores(struct kv_verification *v, struct kv_error *err)
{
    static const struct {
        const char *name;
        enum kv_pause_action action;
        enum kv_session_state state;
    } pauses[] = {{"restore/kept", KV_PAUSE_PRESERVE, KV_SESSION_PAUSED_GPU}, {"restore/host", KV_PAUSE_SWAP, KV_SESSION_PAUSED_HOST}, {"restore/recompute", KV_PAUSE_DISCARD, KV_SESSION_TOKEN_ONLY}};
    enum kv_status status = KV_OK;
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses && status == KV_OK; i++) status = check_pause(v, pauses[i].name, pauses[i].action, pauses[i].state, err);
    if (status == KV_OK) status = check_rollback(v, "rollback/quest/greedy", (struct kv_sampling){.top_p = 1, .repetition_penalty = 1}, err);
    if (status == KV_OK) status = check_rollback(v, "rollback/quest/sampled", (struct kv_sampling){.temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .repetition_penalty = 1.1f, .seed = 7}, err);
    return status;
}
