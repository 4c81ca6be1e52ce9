/* verify_run.c — see verify.h. */
#include "console/commands/verify.h"

#include "runtime/model/transformer.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { WHOLE_BLOCKS = 2 * 64 /* a prompt this long has a block that can be found again */, TRACED = 512 /* positions before the first difference that are looked at */, SPOILT_BITS = 63 };

/* ---------------------------------------------------------------- traces */

struct kv_trace_table { /* hash of what each operation gave: [TRACED positions from `from` on][layers + 1][KV_OPERATION_COUNT]; 0: not computed */
    int32_t from, n_layers;
    uint64_t *hash;
};

static uint64_t *cell(const struct kv_trace_table *t, int32_t position, int32_t layer, int operation)
{
    if (position < t->from || position >= t->from + TRACED) return NULL;
    return &t->hash[((size_t)(position - t->from) * (size_t)(t->n_layers + 1) + (size_t)(layer + 1)) * KV_OPERATION_COUNT + (size_t)operation];
}

static bool make_table(const struct kv_verification *v, int32_t position, struct kv_trace_table *t)
{
    t->from = position >= TRACED ? position - TRACED + 1 : 0;
    t->n_layers = kv_model_info(v->model)->n_layers;
    t->hash = calloc((size_t)TRACED * (size_t)(t->n_layers + 1) * KV_OPERATION_COUNT, sizeof *t->hash);
    return t->hash != NULL;
}

/* Another order of adding changes the last bits of what is added. */
static void spoil(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits ^= SPOILT_BITS;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static void trace(void *ctx, int32_t position, int32_t layer, int operation, float *x, int32_t n)
{
    struct kv_watch *w = ctx;
    if (w->faulty && position >= w->v->n_prompt / 2 && layer == w->v->fault_layer && operation == w->v->fault_operation) spoil(x, n);
    uint64_t *at = w->table ? cell(w->table, position, layer, operation) : NULL;
    if (at) *at = XXH3_64bits(x, (size_t)n * sizeof *x) | 1;
}

enum kv_status kv_verify_fault(struct kv_verification *v, const char *text, struct kv_error *err)
{
    const char *colon = text ? strchr(text, ':') : NULL;
    v->fault_layer = v->fault_operation = -1;
    if (!text || !*text) return KV_OK;
    for (int o = 0; colon && o < KV_OPERATION_COUNT; o++)
        if (!strcmp(colon + 1, kv_operation_name((enum kv_operation)o))) v->fault_operation = o;
    v->fault_layer = atoi(text);
    if (v->fault_operation >= 0 && v->fault_layer >= 0 && v->fault_layer < kv_model_info(v->model)->n_layers) return KV_OK;
    kv_fail(err, KV_BAD_ARGUMENT, "KVASIR_VERIFY_FAULT", "KVASIR_VERIFY_FAULT is '%.60s' and must be LAYER:OPERATION, such as 2:down, of this model's %d layers", text,
            kv_model_info(v->model)->n_layers);
    kv_hint(err, "unset it: it is for tests of kvasir verify itself");
    return KV_BAD_ARGUMENT;
}

/* ---------------------------------------------------------------- one run */

void kv_verify_observe(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    struct kv_watch *w = ctx;
    if (position == w->roll_back_at) {
        struct kv_rollback back;
        kv_engine_rollback(w->engine, &back); /* from the decode thread, outside a publication: the step in work must not publish */
        w->roll_back_at = -1;
    }
    kv_sha256(logits, (size_t)n_vocab * sizeof *logits, w->digest[position]);
    atomic_store(&w->reached, position);
    while (atomic_load(&w->wait_at) == position) nanosleep(&(struct timespec){0, 200000}, NULL);
}

/* Rows that are reused yield no logits: only those from the last prompt token on are observed then. */
static bool reuses(const struct kv_verify_case *s) { return s->source != KV_VERIFY_COMPUTED; }

static enum kv_status begin(struct kv_engine *e, const struct kv_verification *v, const struct kv_verify_case *s, struct kv_watch *w, int32_t skip,
                            struct kv_stream **out, struct kv_error *err)
{
    struct kv_release_word word = kv_engine_release(e);
    struct kv_request q = {.prompt = v->ids + skip, .n_prompt = v->n_prompt - skip, .max_tokens = v->n_forced, .force = v->ids + v->n_prompt,
                           .n_force = v->n_forced, .ignore_eos = true, .sampling = {.top_p = 1, .repetition_penalty = 1},
                           .contract = s->pipeline ? KV_APPROXIMATE : KV_EXACT, .candidate = s->pipeline ? 1 : 0, .epoch = word.epoch,
                           .tenant = "verify", .session = s->source == KV_VERIFY_DISK ? "verify" : NULL};
    if (w) {
        q.observe = kv_verify_observe;
        q.observe_ctx = w;
        q.observe_prompt = !reuses(s);
        if (w->table || w->faulty) q.trace = trace;
    }
    return kv_engine_submit(e, &q, out, err);
}

enum kv_status kv_verify_finish(struct kv_stream *s, int32_t *tokens, int32_t cap, struct kv_request_stats *st, struct kv_error *err)
{
    enum kv_finish end = KV_RUNNING;
    int32_t n = 0;
    for (int32_t got = 0; end == KV_RUNNING || got;) {
        struct kv_chunk c[32];
        kv_stream_read(s, c, 32, 1000, &got, &end);
        for (int32_t i = 0; i < got && tokens && n < cap; i++) tokens[n++] = c[i].token;
    }
    kv_stream_stats(s, st);
    kv_stream_close(s);
    bool well = end == KV_FINISH_LENGTH || end == KV_FINISH_PAUSED;
    return well ? KV_OK : kv_fail(err, st->status ? st->status : KV_INTERNAL, "verify", "the run ended early: %s", kv_status_meaning(st->status));
}

/* The watched run in its company: shorter sequences of the same tokens, each with other positions, start with it. */
static enum kv_status run(struct kv_engine *e, const struct kv_verification *v, const struct kv_verify_case *s, struct kv_watch *w, int32_t *n_reused, struct kv_error *err)
{
    struct kv_stream *stream[KV_VERIFY_COMPANY] = {0};
    enum kv_status status = KV_OK, ended;
    *n_reused = 0;
    for (int32_t i = s->batch - 1; i >= 0 && status == KV_OK; i--) {
        int32_t skip = i * 5 < v->n_prompt ? i * 5 : 0;
        status = begin(e, v, s, i == 0 ? w : NULL, skip, &stream[i], err);
    }
    for (int32_t i = 0; i < s->batch; i++) {
        struct kv_request_stats st;
        if (!stream[i]) continue;
        if ((ended = kv_verify_finish(stream[i], NULL, 0, &st, err)) != KV_OK) status = ended;
        if (i == 0) *n_reused = st.n_reused;
    }
    return status;
}

enum kv_status kv_verify_create(struct kv_verification *v, const struct kv_verify_case *s, struct kv_engine **out, struct kv_error *err)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.break_even = KV_BREAK_EVEN_LEAST; /* approximate runs are to be so, however few their rows */
    c.n_threads = s->threads;
    c.prefill_chunk = s->chunk ? s->chunk : v->n_prompt < 8192 ? v->n_prompt : 8192;
    c.iteration_us = INT32_MAX;
    c.max_sequences = KV_VERIFY_COMPANY;
    c.context_length = v->n_prompt + v->n_forced;
    if (s->source == KV_VERIFY_DISK) {
        c.disk_path = v->disk;
        c.disk_bytes = UINT64_C(4) << 30;
    }
    return kv_engine_create(v->model, &c, out, err);
}

/* One unobserved run that leaves its rows behind; those of the disk are left by another engine. */
static enum kv_status leave_rows(struct kv_verification *v, const struct kv_verify_case *s, struct kv_engine **e, struct kv_error *err)
{
    struct kv_stream *stream;
    struct kv_request_stats st;
    enum kv_status status = begin(*e, v, s, NULL, 0, &stream, err);
    if (status == KV_OK) status = kv_verify_finish(stream, NULL, 0, &st, err);
    if (status != KV_OK || s->source != KV_VERIFY_DISK) return status;
    kv_engine_drain(*e, 10000);
    kv_engine_destroy(*e);
    *e = NULL;
    return kv_verify_create(v, s, e, err);
}

static enum kv_status run_case(struct kv_verification *v, const struct kv_verify_case *s, struct kv_watch *w, int32_t *n_reused, struct kv_error *err)
{
    struct kv_engine *e = NULL;
    enum kv_status status = kv_verify_create(v, s, &e, err);
    if (status == KV_OK && reuses(s)) status = leave_rows(v, s, &e, err);
    char budget[] = "budget_rows=16";
    bool narrow = s->pipeline && !strcmp(s->pipeline, "quest"); /* a budget small enough that rows are tainted */
    if (status == KV_OK) status = kv_offline_install(e, s->pipeline, (char *[]){budget}, narrow, err);
    w->engine = e;
    w->v = v;
    w->faulty = s->faulty && v->fault_operation >= 0;
    w->roll_back_at = s->rollback ? v->n_prompt + v->n_forced / 2 : -1;
    atomic_store(&w->wait_at, -1);
    if (status == KV_OK) status = run(e, v, s, w, n_reused, err);
    kv_engine_destroy(e);
    return status;
}

/* ---------------------------------------------------------------- where it begins */

/* The first operation, by position and then in the order of computing, that both runs computed and that gave other bits. */
static bool first_difference(const struct kv_trace_table *a, const struct kv_trace_table *b, int32_t *position, int32_t *layer, int *operation)
{
    size_t per_layer = KV_OPERATION_COUNT, per_position = (size_t)(a->n_layers + 1) * per_layer;
    for (size_t i = 0; i < TRACED * per_position; i++) {
        if (!a->hash[i] || !b->hash[i] || a->hash[i] == b->hash[i]) continue;
        *position = a->from + (int32_t)(i / per_position);
        *layer = (int32_t)(i % per_position / per_layer) - 1;
        *operation = (int)(i % per_layer);
        return true;
    }
    return false;
}

/* Runs the first case and this one again, both traced up to the first logits that differ. */
static enum kv_status locate(struct kv_verification *v, const struct kv_verify_case *s, int32_t until, json_t *row, struct kv_error *err)
{
    struct kv_trace_table table[2] = {{0}, {0}};
    const struct kv_verify_case *which[2] = {&v->reference, s};
    uint8_t (*digest)[32] = calloc((size_t)(v->n_prompt + v->n_forced), 32);
    enum kv_status status = digest ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "verify", "no memory for the digests");
    for (int i = 0; i < 2 && status == KV_OK; i++) {
        int32_t n_reused;
        struct kv_watch w = {.digest = digest, .table = &table[i]};
        status = make_table(v, until, &table[i]) ? run_case(v, which[i], &w, &n_reused, err) : kv_fail(err, KV_OUT_OF_MEMORY, "verify", "no memory for the traces");
    }
    int32_t position, layer;
    int operation;
    if (status == KV_OK && first_difference(&table[0], &table[1], &position, &layer, &operation)) {
        json_object_set_new(row, "begins_at_position", json_integer(position));
        json_object_set_new(row, "begins_in_layer", json_integer(layer));
        json_object_set_new(row, "begins_in_operation", json_string(kv_operation_name((enum kv_operation)operation)));
    }
    free(table[0].hash);
    free(table[1].hash);
    free(digest);
    return status;
}

enum kv_status kv_verify_add(struct kv_verification *v, const char *name, uint8_t (*digest)[32], int32_t from, const struct kv_verify_case *s, struct kv_error *err)
{
    int32_t rows = v->n_prompt + v->n_forced - 1;
    uint8_t all[32];
    char hex[65];
    enum kv_status status = KV_OK;
    if (v->first) memcpy(digest, v->first, (size_t)from * 32); /* not computed again */
    kv_sha256(digest, (size_t)rows * 32, all);
    kv_hex(all, sizeof all, hex);
    json_t *row = json_pack("{s:s,s:s}", "name", name, "digest", hex);
    int32_t p = 0;
    while (v->first && p < rows && !memcmp(digest[p], v->first[p], 32)) p++;
    if (v->first && p < rows) {
        v->equal = false;
        json_object_set_new(row, "differs_from_position", json_integer(p));
        if (s) status = locate(v, s, p, row, err);
    }
    json_array_append_new(v->cases, row);
    return status;
}

enum kv_status kv_verify_check(struct kv_verification *v, const struct kv_verify_case *s, struct kv_error *err)
{
    struct kv_watch w = {.digest = calloc((size_t)(v->n_prompt + v->n_forced), 32)};
    if (!w.digest) return kv_fail(err, KV_OUT_OF_MEMORY, "verify", "no memory for %d digests", v->n_prompt + v->n_forced);
    int32_t n_reused = 0;
    enum kv_status status = run_case(v, s, &w, &n_reused, err);
    if (status == KV_OK && reuses(s) && n_reused == 0 && v->n_prompt > WHOLE_BLOCKS) status = kv_fail(err, KV_INTERNAL, "verify", "%s: no row was found again", s->name);
    if (status == KV_OK) status = kv_verify_add(v, s->name, w.digest, reuses(s) && v->first ? v->n_prompt - 1 : 0, s, err);
    if (status == KV_OK && !v->first) {
        v->first = w.digest;
        v->reference = *s;
        return KV_OK;
    }
    free(w.digest);
    return status;
}
