/* engine_credits.c — the engine's account of transfers: limits from its configuration, and the tickets of requests under exact offload. */
#include "runtime/service/engine.h"

#include <stdio.h>

enum kv_status kv_engine_credits_create(struct kv_engine *e, struct kv_error *err)
{
    const struct kv_engine_config *c = &e->config;
    uint64_t queue = c->read_queue > 0 ? (uint64_t)c->read_queue : 2 * (uint64_t)c->max_sequences;
    struct kv_credit_limits l = {.total = {c->pinned_bytes ? c->pinned_bytes : c->host_bytes, c->staging_bytes ? c->staging_bytes : c->device_bytes,
                                           c->link_window_bytes ? c->link_window_bytes : c->host_bytes, queue},
                                 .max_tickets = c->max_sequences + KV_PAUSES_MAX};
    enum kv_status s = kv_credits_create(&l, &e->credits);
    return s == KV_OK ? s : kv_fail(err, s, "credits", "no memory for the account of transfers");
}

struct kv_credits *kv_engine_credits(struct kv_engine *e)
{
    return e->credits;
}

/* Every layer crosses the link once a step, through two staging slots of one layer. */
static void ask_of(const struct kv_engine *e, const struct kv_sequence *s, struct kv_credit_ask *ask)
{
    uint64_t layer = (uint64_t)s->cache.max_blocks * s->cache.slab_bytes;
    *ask = (struct kv_credit_ask){.request = s->id, .what = "layerwise", .backend_bytes = layer * (uint64_t)e->weights->n_layers, .staging_bytes = 2 * layer, .queue_slots = 1};
}

/* Steps a second that the request needs: to end before its deadline, or to keep a step within the bound of an iteration. */
static double pace(const struct kv_engine *e, const struct kv_sequence *s, int64_t now_us)
{
    double left_us = (double)(s->deadline_us - now_us) - e->us_per_row * s->n_prompt;
    return s->deadline_us && left_us > 1 ? 1e6 * s->max_tokens / left_us : 1e6 / e->config.iteration_us;
}

static double beyond(double rate, double promised)
{
    return rate > promised ? rate - promised : 0;
}

bool kv_engine_take_credits(struct kv_engine *e, struct kv_sequence *s, const struct kv_placement *p)
{
    struct kv_credit_ask ask;
    enum kv_credit lacks;
    struct kv_credit_view v;
    struct kv_error err = {0};
    const struct kv_rates *rates = &e->stats.rates;
    if (!p->prefetch) return true; /* rows stay where they are */
    ask_of(e, s, &ask);
    kv_credits_view(e->credits, &v, NULL, 0, NULL, 0);
    /* The seven conditions. All rows cross to the device in every step; one new row of each layer goes back. */
    double steps = pace(e, s, kv_engine_now_us()), row = (double)ask.backend_bytes / ((double)s->cache.max_blocks * KV_BLOCK_ROWS);
    struct kv_offload_demand need = {.recoverable = true, .device_bytes = ask.staging_bytes, .host_bytes = s->reserved_bytes, .pinned_bytes = ask.backend_bytes,
                                     .h2d_bytes_per_s = (double)ask.backend_bytes * steps, .d2h_bytes_per_s = row * steps, .transfer_jobs = ask.queue_slots};
    struct kv_offload_demand room = {.recoverable = true, .device_bytes = v.total[KV_CREDIT_STAGING] - v.used[KV_CREDIT_STAGING],
                                     .host_bytes = kv_arena_capacity_bytes(e->arena) - e->reserved_bytes + s->reserved_bytes,
                                     .pinned_bytes = v.total[KV_CREDIT_PINNED] - v.used[KV_CREDIT_PINNED], .h2d_bytes_per_s = beyond(rates->h2d_bytes_per_s, e->h2d_promised),
                                     .d2h_bytes_per_s = beyond(rates->d2h_bytes_per_s, e->d2h_promised), .transfer_jobs = (uint32_t)(v.total[KV_CREDIT_QUEUE] - v.used[KV_CREDIT_QUEUE])};
    enum kv_status status = kv_offload_admit(&need, &room, &err);
    if (status == KV_OK) status = kv_credits_reserve(e->credits, &ask, kv_engine_now_us(), &s->credit, &lacks, NULL);
    if (status == KV_OK) {
        e->h2d_promised += s->h2d_bytes_per_s = need.h2d_bytes_per_s;
        e->d2h_promised += s->d2h_bytes_per_s = need.d2h_bytes_per_s;
        return true;
    }
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = -1, .bytes = ask.backend_bytes};
    snprintf(r.detail, sizeof r.detail, "exact offload refused, rows stay resident: %.50s", kv_status_name(status));
    kv_report_receipt(e, s, KV_RECEIPT_FALLBACK, KV_CREDIT_PRESSURE, r);
    return false;
}

enum kv_status kv_engine_take_move_credits(struct kv_engine *e, uint64_t request, const char *what, uint64_t bytes, struct kv_credit_ticket *out)
{
    struct kv_credit_ask ask = {.request = request, .what = what, .backend_bytes = bytes, .queue_slots = 1};
    enum kv_credit lacks;
    enum kv_status s = kv_credits_reserve(e->credits, &ask, kv_engine_now_us(), out, &lacks, NULL);
    if (s == KV_CREDIT_PRESSURE) kv_credits_wait(e->credits, request, what, lacks, kv_engine_now_us());
    return s;
}

void kv_engine_give_move_credits(struct kv_engine *e, uint64_t request, struct kv_credit_ticket *t)
{
    if (t->generation) (void)kv_credits_release(e->credits, t); /* one from before a reset counts as stale */
    kv_credits_forget(e->credits, request);
}

/* The last one leaves nothing of the rounding behind. */
static void give_rate(double *promised, double rate)
{
    *promised = *promised > 1.000001 * rate ? *promised - rate : 0;
}

void kv_engine_give_credits(struct kv_engine *e, struct kv_sequence *s)
{
    if (!s->credit.generation) return;
    give_rate(&e->h2d_promised, s->h2d_bytes_per_s);
    give_rate(&e->d2h_promised, s->d2h_bytes_per_s);
    if (kv_credits_release(e->credits, &s->credit) != KV_OK) kv_report_failure(e, s, KV_STALE_CREDIT, "a request's credits were not its own any more");
}
