/* engine_runs.c — see engine_runs.h. */
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct kv_model *demo_model(void)
{
    static struct kv_model *m;
    struct kv_error err = {0};
    if (!m) ck_assert_msg(kv_model_open("models/kvasir-demo-q8_0.gguf", NULL, &m, &err) == KV_OK, "%s", err.message);
    return m;
}

struct kv_engine *make_engine(const struct kv_engine_config *c)
{
    struct kv_engine_config own;
    kv_engine_config_default(&own);
    own.n_threads = 2;
    struct kv_engine *e;
    struct kv_error err = {0};
    ck_assert_msg(kv_engine_create(demo_model(), c ? c : &own, &e, &err) == KV_OK, "%s", err.message);
    return e;
}

static void observe(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    struct run *r = ctx;
    if (r->at) r->at(r, position);
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (int32_t i = 0; i < n_vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        h = (h ^ bits) * UINT64_C(0x100000001b3);
    }
    if (position < RUN_MAX) r->logits[position] = h;
}

void run_init(struct run *r, uint32_t seed, int32_t n_prompt, int32_t steps)
{
    memset(r, 0, sizeof *r);
    r->n_prompt = n_prompt;
    for (int32_t i = 0; i < n_prompt; i++) {
        seed = seed * 1664525u + 1013904223u;
        r->prompt[i] = VOCAB_LOW + (int32_t)((seed >> 10) % VOCAB_SPAN);
    }
    r->request = (struct kv_request){.prompt = r->prompt, .n_prompt = n_prompt, .max_tokens = steps, .n_logprobs = 1, .ignore_eos = true,
                                     .sampling = {.top_p = 1, .repetition_penalty = 1}, .observe = observe, .observe_ctx = r,
                                     .observe_prompt = true};
}

void run_begin(struct kv_engine *e, struct run *r)
{
    struct kv_error err = {0};
    ck_assert_msg(kv_engine_submit(e, &r->request, &r->stream, &err) == KV_OK, "%s", err.message);
}

static enum kv_finish take(struct run *r)
{
    struct kv_chunk c[8];
    enum kv_finish finish;
    int32_t got;
    ck_assert_int_eq(kv_stream_read(r->stream, c, 8, 20000, &got, &finish), KV_OK);
    ck_assert_msg(got > 0 || finish != KV_RUNNING, "no token within 20 seconds");
    for (int32_t i = 0; i < got; i++, r->n++) {
        r->ids[r->n] = c[i].token;
        r->top_id[r->n] = c[i].n_top ? c[i].top_id[0] : -1;
        r->logprob[r->n] = c[i].logprob;
        r->published[r->n] = (uint8_t)c[i].published;
    }
    return finish;
}

void run_read(struct run *r, int32_t n)
{
    while (r->n < n && take(r) == KV_RUNNING) continue;
}

void run_end(struct run *r)
{
    while (take(r) == KV_RUNNING) continue;
    kv_stream_stats(r->stream, &r->stats);
    kv_stream_close(r->stream);
    r->stream = NULL;
}

void run_all(struct kv_engine *e, struct run *r)
{
    run_begin(e, r);
    run_end(r);
}

void same_runs(const struct run *a, const struct run *b)
{
    ck_assert_int_eq(a->n, b->n);
    for (int32_t i = 0; i < a->n; i++) ck_assert_msg(a->ids[i] == b->ids[i], "token %d is %d and %d", i, a->ids[i], b->ids[i]);
    for (int32_t i = 0; i < a->n_prompt + a->n - 1; i++) ck_assert_msg(a->logits[i] == b->logits[i], "logits after position %d differ", i);
}

void install(struct kv_engine *e, const char *pipeline, const char *param, double value, bool shadow)
{
    struct kv_candidate c = {.id = 1, .pipeline = kv_pipeline_find(pipeline), .byte_cost = 1}; /* contexts are short: bytes alike */
    struct kv_error err = {0};
    kv_params_default(c.pipeline, &c.params);
    if (param) ck_assert_int_eq(kv_params_set(c.pipeline, &c.params, param, value, &err), KV_OK);
    struct kv_release_word w = kv_engine_release(e);
    ck_assert_msg(kv_engine_install(e, &c, shadow, w.epoch, w.epoch + 1, &err) == KV_OK, "%s", err.message);
}

void assign(struct kv_engine *e, struct run *r, enum kv_contract contract)
{
    r->request.contract = contract;
    r->request.candidate = 1;
    r->request.epoch = kv_engine_release(e).epoch;
}
