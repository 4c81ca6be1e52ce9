/* trial.c — see trial.h. */
#include "runtime/evaluate/trial.h"

#include "runtime/evaluate/interval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GENERATED = 512, READ_MS = 1000, SAMPLES = 256 };

void kv_trial_free(struct kv_trial *t)
{
    free(t->score);
    free(t->token_us);
    *t = (struct kv_trial){0};
}

/* ---------------------------------------------------------------- one task */

struct likelihood { /* of the forced tokens, summed as logits pass by on the decode thread */
    const struct kv_task *task;
    double nats;
    int32_t n;
};

static void observe(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    struct likelihood *k = ctx;
    int32_t next = position + 1;
    if (next < k->task->n_context || next >= k->task->n_context + k->task->n_question) return;
    float best = logits[0];
    double sum = 0;
    for (int32_t i = 1; i < n_vocab; i++) best = logits[i] > best ? logits[i] : best;
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - best);
    k->nats -= logits[k->task->ids[next]] - best - log(sum);
    k->n++;
}

static enum kv_status collect(struct kv_stream *stream, int32_t skip, int32_t *ids, int32_t *n, struct kv_request_stats *st, struct kv_error *err)
{
    enum kv_finish finish = KV_RUNNING;
    *n = 0;
    while (finish == KV_RUNNING) {
        struct kv_chunk c[16];
        int32_t got;
        kv_stream_read(stream, c, 16, READ_MS, &got, &finish);
        for (int32_t i = 0; i < got; i++, skip--)
            if (skip <= 0 && *n < MAX_GENERATED) ids[(*n)++] = c[i].token;
    }
    kv_stream_stats(stream, st);
    return finish == KV_FINISH_ERROR ? kv_fail(err, st->status, "evaluation", "%s", kv_status_meaning(st->status)) : KV_OK;
}

static bool push_token_us(struct kv_trial *t, double us)
{
    if (t->n_token_us == t->cap_token_us) {
        int32_t cap = t->cap_token_us ? 2 * t->cap_token_us : 1024;
        double *grown = realloc(t->token_us, (size_t)cap * sizeof *grown);
        if (!grown) return false;
        t->token_us = grown;
        t->cap_token_us = cap;
    }
    t->token_us[t->n_token_us++] = us;
    return true;
}

static void drain(struct kv_engine *e, struct kv_trial *t)
{
    struct kv_sample s[SAMPLES];
    for (size_t got; (got = kv_engine_samples(e, s, SAMPLES)) > 0;)
        for (size_t i = 0; i < got; i++) {
            if (s[i].kind == KV_SAMPLE_TOKEN) push_token_us(t, s[i].token_us);
            if (s[i].kind == KV_SAMPLE_STALL) t->stall_us_sum += s[i].token_us, t->n_stalls++;
            if (s[i].kind != KV_SAMPLE_UNIT) continue;
            t->units++;
            t->unit_bytes += s[i].bytes;
            t->bounds_broken += !s[i].bound_holds;
            t->mass_sum += s[i].omitted_mass;
            t->error_sum += s[i].output_error_relative;
            if (!(s[i].omitted_mass <= t->mass_most)) t->mass_most = s[i].omitted_mass;
            if (!(s[i].output_error_relative <= t->error_most)) t->error_most = s[i].output_error_relative;
        }
}

/* What it takes before rows that are not where they are computed with can be read. */
static double cold_us(const struct kv_engine *e, const struct kv_trial_setup *setup, const struct kv_request_stats *st)
{
    struct kv_layer_timing layer[256];
    int32_t n = kv_engine_layer_timings(e, layer, 256);
    double fetch_us = 0;
    if (setup->cold) return (double)(st->ttft_us - st->queued_us);
    for (int32_t i = 0; i < n; i++) fetch_us += layer[i].fetch_us;
    return fetch_us;
}

static enum kv_status run_task(struct kv_engine *e, const struct kv_model *m, const struct kv_suite *suite, const struct kv_task *task,
                               const struct kv_trial_setup *setup, struct kv_trial *t, double *score, struct kv_error *err)
{
    struct likelihood likelihood = {.task = task};
    bool text = suite->kind == KV_SUITE_TEXT, served = setup->pipeline != NULL;
    struct kv_request q = {.prompt = task->ids, .n_prompt = task->n_context, .max_tokens = task->n_question + task->n_answer,
                           .force = task->ids + task->n_context, .n_force = task->n_question, .ignore_eos = true,
                           .sampling = {.top_p = 1, .repetition_penalty = 1}, .contract = served ? KV_APPROXIMATE : KV_EXACT,
                           .candidate = served ? 1 : 0, .epoch = kv_engine_release(e).epoch};
    if (text) {
        q.observe = observe;
        q.observe_ctx = &likelihood;
    }
    struct kv_stream *stream;
    struct kv_request_stats st;
    int32_t ids[MAX_GENERATED], n = 0;
    enum kv_status status = kv_engine_submit(e, &q, &stream, err);
    if (status != KV_OK) return status;
    status = collect(stream, task->n_question, ids, &n, &st, err);
    kv_stream_close(stream);
    if (status != KV_OK) return status;
    if (st.candidate != q.candidate)
        return kv_fail(err, KV_INTERNAL, "evaluation", "the pipeline did not serve: the request fell back to the baseline");
    drain(e, t);
    t->ttft_us_sum += (double)st.ttft_us;
    t->cold_us_sum += cold_us(e, setup, &st);
    char out[8 * MAX_GENERATED + 1];
    size_t len = 0;
    if (!text) kv_detokenize(m, ids, (size_t)n, false, out, sizeof out - 1, &len);
    out[len < sizeof out ? len : sizeof out - 1] = 0;
    *score = text ? likelihood.nats / likelihood.n : kv_task_score(suite, task, out);
    return KV_OK;
}

/* ---------------------------------------------------------------- the trial */

static enum kv_status start(struct kv_model *m, const struct kv_trial_setup *setup, struct kv_engine **out, struct kv_error *err)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = setup->n_threads;
    c.max_sequences = 1;
    c.iteration_us = INT32_MAX; /* whole chunks: nobody else waits */
    c.shadow_fraction = setup->sampled;
    c.shadow_queue = 4096;
    c.serial_transfers = setup->serial;
    c.window_rows = setup->window_rows;
    c.link_bytes_per_second = setup->link_bytes_per_second;
    c.index_share = 0; /* every token after the prompt is selected for, */
    c.break_even = KV_BREAK_EVEN_LEAST; /* also where all rows would come faster */
    enum kv_status status = kv_engine_create(m, &c, out, err);
    if (status != KV_OK) return status;
    struct kv_fallback_table table;
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        struct kv_fallback_state s;
        kv_fallback_state_of(i, &s);
        table.action[i] = (uint8_t)kv_fallback_source(&s);
    }
    kv_engine_set_fallback(*out, &table, setup->max_omitted_mass);
    if (!setup->pipeline) return KV_OK;
    struct kv_candidate candidate = {.id = 1, .pipeline = setup->pipeline, .params = setup->params};
    return kv_engine_install(*out, &candidate, false, 0, 1, err);
}

enum kv_status kv_trial_run(struct kv_model *m, const struct kv_trial_setup *setup, const struct kv_suite *suite, const struct kv_task *tasks,
                            int32_t n, void (*progress)(void *ctx, int32_t done), void *ctx, struct kv_trial *out, struct kv_error *err)
{
    *out = (struct kv_trial){.n = n, .score = calloc((size_t)n + 1, sizeof *out->score)};
    struct kv_engine *e = NULL;
    enum kv_status status = out->score ? start(m, setup, &e, err) : kv_fail(err, KV_OUT_OF_MEMORY, "evaluation", "no memory for %d scores", n);
    for (int32_t i = 0; status == KV_OK && i < n; i++) {
        status = run_task(e, m, suite, &tasks[i], setup, out, &out->score[i], err);
        if (progress) progress(ctx, i + 1);
    }
    if (status == KV_OK) {
        kv_engine_drain(e, READ_MS);
        kv_engine_stats(e, &out->stats);
    }
    kv_engine_destroy(e);
    if (status != KV_OK) kv_trial_free(out);
    return status;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kv_trial_token_us(const struct kv_trial *t, double quantile)
{
    if (!t->n_token_us) return NAN;
    qsort(t->token_us, (size_t)t->n_token_us, sizeof *t->token_us, by_size);
    return t->token_us[(int32_t)(quantile * (t->n_token_us - 1) + 0.5)];
}

const char *kv_trial_insane(const struct kv_suite *s, const struct kv_trial *baseline, const struct kv_task *tasks)
{
    if (s->kind != KV_SUITE_TEXT) {
        struct kv_interval share = kv_interval_share(baseline->score, baseline->n);
        return share.lower > s->chance + KV_SANE_SHARE ? NULL : "the exact baseline's own score is not surely above a fifth beyond chance";
    }
    for (int32_t i = 0; i < baseline->n; i++)
        if (!(baseline->score[i] < kv_text_unigram_nats(tasks[i].ids, tasks[i].n_context + tasks[i].n_question)))
            return "the exact baseline predicts a text no better than its token frequencies do";
    return NULL;
}
