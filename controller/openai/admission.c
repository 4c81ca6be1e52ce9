/* admission.c — see admission.h. */
#include "controller/openai/admission.h"

#include "runtime/execution/placement.h"
#include "runtime/service/credits.h"

#include <string.h>

static double ms_at(double amount, double per_s)
{
    return per_s > 0 ? 1e3 * amount / per_s : 0;
}

void kv_admission_estimate(const struct kv_engine_stats *s, int32_t max_sequences, int32_t prompt_tokens, int32_t max_tokens, uint64_t bytes, double setup_us, struct kv_admission_estimate *out)
{
    const struct kv_rates *r = &s->rates;
    *out = (struct kv_admission_estimate){.queue_ms = ms_at((double)r->waiting_prompt_tokens, r->prefill_tokens_per_s), .transfer_ms = bytes ? setup_us / 1e3 + ms_at((double)bytes, r->h2d_bytes_per_s) : 0,
                                          .prefill_ms = ms_at(prompt_tokens, r->prefill_tokens_per_s), .decode_ms = max_tokens * r->decode_step_us / 1e3};
    int32_t before = s->active + s->queued + 1 - max_sequences; /* answers that must end before this one has a place */
    if (before > 0 && s->active > 0) out->queue_ms += before * ((double)r->live_tokens_left / s->active) / max_sequences * r->decode_step_us / 1e3;
}

/* Bytes of one token's K/V rows over all layers. */
static uint64_t row_bytes(const struct kv_model_info *m)
{
    return (uint64_t)m->n_layers * (uint64_t)m->n_kv_heads * (uint64_t)m->d_head * 2 * 2;
}

static void free_credits(struct kv_engine *e, struct kv_admission_credits *out)
{
    struct kv_credit_view v;
    uint64_t left[KV_CREDIT_KINDS];
    kv_credits_view(kv_engine_credits(e), &v, NULL, 0, NULL, 0);
    for (int k = 0; k < KV_CREDIT_KINDS; k++) left[k] = v.total[k] - v.used[k];
    *out = (struct kv_admission_credits){.pinned_free = left[KV_CREDIT_PINNED], .staging_free = left[KV_CREDIT_STAGING], .link_free = left[KV_CREDIT_LINK], .queue_free = (uint32_t)left[KV_CREDIT_QUEUE]};
}

/* Where a request stands among those who wait is the policy's to say, so the queue counts only against what would move. */
static void ask(const struct kv_openai *o, const struct kv_engine_stats *s, const struct kv_placement *placement, struct kv_admission_answer *out)
{
    const struct kv_app *app = o->app;
    const struct kv_model_info *m = kv_model_info(app->model);
    struct kv_admission_estimate t;
    struct kv_admission_credits credits;
    bool moves = placement && placement->prefetch; /* a method that reads its rows where they are asks for no link and no staging */
    uint64_t bytes = moves ? (uint64_t)(o->q.n_prompt + o->q.max_tokens) * row_bytes(m) : 0;
    free_credits(app->engine, &credits);
    kv_admission_estimate(s, (int32_t)app->config->max_sequences, o->q.n_prompt, o->q.max_tokens, bytes, app->config->link_latency_us, &t);
    struct kv_admission_request r = {.tenant = o->tenant, .placement = placement ? placement->name : NULL, .class = o->q.class, .contract = o->q.contract, .prompt_tokens = o->q.n_prompt, .max_tokens = o->q.max_tokens,
        .slack_ms = o->deadline_ms ? (double)o->deadline_ms : -1, .estimate_ms = (moves ? t.queue_ms : 0) + t.transfer_ms + t.prefill_ms + t.decode_ms, .backend_bytes = bytes,
        .staging_bytes = 2 * bytes / (uint64_t)m->n_layers};
    kv_control_admission(app->control, &r, &credits, out);
}

static const struct kv_placement *placement_of(const char *pipeline)
{
    const struct kv_pipeline *p = kv_pipeline_find(pipeline);
    return p ? kv_placement_find(p->placement) : NULL;
}

void kv_admission_ask(struct kv_openai *o)
{
    struct kv_engine_stats s;
    struct kv_admission_answer a = {0};
    kv_engine_stats(o->app->engine, &s);
    if (o->arm.candidate) {
        const struct kv_placement *own = placement_of(o->arm.pipeline);
        ask(o, &s, own, &a);
        o->q.priority = a.priority;
        bool baseline = own && *a.placement && strcmp(a.placement, own->name);
        if (a.action == KV_ADMIT_TRANSFER && !baseline) return;
        if (a.action != KV_ADMIT_TRANSFER) o->q.kept_back = a.action == KV_ADMIT_FALLBACK_DEADLINE ? KV_DEADLINE : KV_CREDIT_PRESSURE;
        o->arm.arm = KV_ARM_OUTSIDE;
        o->arm.candidate = 0;
    }
    if (s.active + s.queued < (int32_t)o->app->config->max_sequences) return;
    ask(o, &s, NULL, &a);
    o->q.priority = a.priority;
}
