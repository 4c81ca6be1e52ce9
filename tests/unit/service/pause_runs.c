/* pause_runs.c — see pause_runs.h. */
#include "tests/unit/service/pause_runs.h"

#include "runtime/service/pauses_internal.h"

#include <check.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

void pause_prepare(struct run *r, int sampled)
{
    run_init(r, 9, PROMPT, STEPS);
    r->request.observe = NULL;
    r->request.tenant = "acme";
    r->request.session = "s-1";
    if (sampled) r->request.sampling = (struct kv_sampling){.temperature = 0.9f, .top_p = 0.95f, .top_k = 40, .repetition_penalty = 1.1f, .presence_penalty = 0.3f, .frequency_penalty = 0.2f, .seed = 77};
}

static struct {
    struct kv_engine *e;
    int32_t from;
    _Atomic bool asked;
} standing;

static void stand(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    (void)ctx, (void)logits, (void)n_vocab;
    while (position >= standing.from && !atomic_load(&standing.asked)) {
        pthread_mutex_lock(&standing.e->lock);
        for (const struct kv_pause_want *w = standing.e->pauses->wants; w; w = w->next)
            if (!strcmp(w->tenant, "acme")) atomic_store(&standing.asked, true);
        pthread_mutex_unlock(&standing.e->lock);
        sched_yield();
    }
}

void pause_stand_at(struct kv_engine *e, struct run *r, int32_t position)
{
    standing.e = e;
    standing.from = position;
    atomic_store(&standing.asked, false);
    r->request.observe = stand;
}

void pause_go(void)
{
    atomic_store(&standing.asked, true);
}

void pause_stand(struct kv_engine *e, struct run *r, int32_t tokens)
{
    pause_stand_at(e, r, r->n_prompt + tokens - 1);
    r->request.observe_prompt = false;
    run_begin(e, r);
}

void pause_after(struct kv_engine *e, struct run *r, int32_t tokens, enum kv_pause_action action, struct kv_pause_view *v)
{
    struct kv_error err = {0};
    pause_stand(e, r, tokens);
    run_read(r, tokens);
    ck_assert_msg(kv_engine_pause(e, "acme", "s-1", action, v, &err) == KV_OK, "%s", err.message);
}

void pause_continue(struct kv_engine *e, struct run *r, const struct kv_pause_view *v, int32_t *all, struct kv_request *q)
{
    int32_t n;
    ck_assert_int_eq(kv_engine_paused_tokens(e, v->request, all, RUN_MAX, &n), KV_OK);
    ck_assert_int_eq(n, v->n_tokens);
    *q = r->request;
    q->observe = NULL;
    q->prompt = all;
    q->n_prompt = n;
    q->first_prompt = v->first_prompt;
    q->n_spoken = v->n_spoken;
    q->spoken = all + v->first_prompt;
    q->n_heard = v->n_spoken;
    q->max_tokens = STEPS - v->n_spoken;
    q->arrival_us = v->arrival_us;
    q->resume = v->request;
}
