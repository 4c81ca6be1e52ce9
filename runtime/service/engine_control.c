/* engine_control.c — what other threads do to a running engine: submit, install, roll back, rearm, set the gate. */
#include "runtime/service/engine.h"

#include <string.h>
#include <time.h>

/* ---------------------------------------------------------------- submit */

static enum kv_status check_request(const struct kv_engine *e, const struct kv_request *r, struct kv_error *err)
{
    if (atomic_load(&e->draining)) return kv_fail(err, KV_DRAINING, "engine", "the engine is draining and takes no new work");
    if (r->n_prompt < 1 || !r->prompt) return kv_fail(err, KV_EMPTY_PROMPT, "prompt", "the prompt holds no token");
    if (r->max_tokens < 1) return kv_fail(err, KV_BAD_ARGUMENT, "max_tokens", "max_tokens is %d and must be at least 1", r->max_tokens);
    if (r->priority < 0 || r->priority > 100) return kv_fail(err, KV_BAD_ARGUMENT, "priority", "the priority is %d and must lie in 0 to 100", r->priority);
    if (r->n_logprobs < 0 || r->n_logprobs > KV_MAX_LOGPROBS)
        return kv_fail(err, KV_BAD_ARGUMENT, "logprobs", "logprobs is %d and must lie in 0 to %d", r->n_logprobs, KV_MAX_LOGPROBS);
    if (r->n_force && r->schema) return kv_fail(err, KV_BAD_ARGUMENT, "force", "forced tokens and a schema exclude each other");
    if (r->n_force < 0 || r->n_force > r->max_tokens) return kv_fail(err, KV_BAD_ARGUMENT, "force", "more tokens are forced than asked for");
    if (r->n_prompt > e->context_length || r->max_tokens > e->context_length - r->n_prompt) {
        kv_fail(err, KV_CONTEXT_OVERRUN, "max_tokens", "%d prompt tokens and %d to come exceed the context of %d", r->n_prompt, r->max_tokens, e->context_length);
        kv_hint(err, "shorten the prompt or ask for at most %d tokens", r->n_prompt < e->context_length ? e->context_length - r->n_prompt : 0);
        return KV_CONTEXT_OVERRUN;
    }
    for (int32_t i = 0; i < r->n_prompt + r->n_force; i++) {
        int32_t id = i < r->n_prompt ? r->prompt[i] : r->force[i - r->n_prompt];
        if (id < 0 || id >= e->info->n_vocab)
            return kv_fail(err, KV_TOKEN_OUT_OF_RANGE, "prompt", "token %d is %d and the vocabulary holds %d", i, id, e->info->n_vocab);
    }
    return KV_OK;
}

/* The candidate a request is served by, or 0 for the baseline. */
static uint64_t assigned(const struct kv_engine *e, const struct kv_request *r, const struct kv_assignment *a)
{
    bool fits = r->candidate && r->candidate == a->candidate.id && (!a->shadow || r->probe) && kv_publication_word(&e->publication) == r->epoch &&
                a->epoch == r->epoch;
    return fits && !(a->candidate.pipeline->exactness == KV_APPROXIMATE && r->contract == KV_EXACT) ? r->candidate : 0;
}

static enum kv_status queue_full(const struct kv_engine *e, struct kv_error *err)
{
    kv_fail(err, KV_QUEUE_FULL, "queue", "%d requests wait already", e->config.max_queue);
    kv_hint(err, "retry later");
    return KV_QUEUE_FULL;
}

static enum kv_status enqueue(struct kv_engine *e, struct kv_sequence *s, struct kv_error *err)
{
    pthread_mutex_lock(&e->lock);
    bool full = e->queue_n >= e->config.max_queue;
    if (!full) {
        int32_t at = e->queue_n++; /* by arrival: a continuation keeps its age */
        for (; at && e->queue[(e->queue_head + at - 1) % e->config.max_queue]->arrival_us > s->arrival_us; at--)
            e->queue[(e->queue_head + at) % e->config.max_queue] = e->queue[(e->queue_head + at - 1) % e->config.max_queue];
        e->queue[(e->queue_head + at) % e->config.max_queue] = s;
        e->queued_tokens += s->n_prompt;
        e->stats_out.requests++;
        pthread_cond_broadcast(&e->wake);
    } else {
        e->stats_out.rejected++;
    }
    pthread_mutex_unlock(&e->lock);
    return full ? queue_full(e, err) : KV_OK;
}

static enum kv_status refuse(struct kv_engine *e, enum kv_status s)
{
    pthread_mutex_lock(&e->lock);
    e->stats_out.rejected++;
    pthread_mutex_unlock(&e->lock);
    return s;
}

/* Text that was held back when a request was paused is held back again: what might begin a stop string, half a character. */
static void hear_again(const struct kv_engine *e, struct kv_sequence *s, const struct kv_request *r)
{
    char bytes[KV_MAX_TOKEN_BYTES], shown[sizeof((struct kv_log_entry *)0)->text];
    for (int32_t i = 0; r->spoken && i < r->n_heard; i++) {
        size_t n = kv_token_bytes(e->model, r->spoken[i], false, bytes, sizeof bytes);
        kv_text_add(&s->text, bytes, n < sizeof bytes ? n : sizeof bytes);
        kv_text_take(&s->text, false, shown, (int32_t)sizeof shown); /* as much as each token showed then */
    }
}

enum kv_status kv_engine_submit(struct kv_engine *e, const struct kv_request *r, struct kv_stream **out, struct kv_error *err)
{
    *out = NULL;
    enum kv_status status = check_request(e, r, err);
    if (status != KV_OK) return refuse(e, status);
    pthread_mutex_lock(&e->lock);
    bool full = e->queue_n >= e->config.max_queue; /* under overload most end here, before anything is made for them */
    struct kv_assignment a = e->assignment;
    pthread_mutex_unlock(&e->lock);
    if (full) return refuse(e, queue_full(e, err));
    struct kv_sequence *s;
    status = kv_sequence_create(r, &e->shape, e->backlog, &s, err);
    if (status != KV_OK) return refuse(e, status);
    uint64_t bytes = (uint64_t)s->cache.max_blocks * (uint64_t)e->shape.n_layers * s->cache.slab_bytes;
    if (bytes > kv_arena_capacity_bytes(e->arena)) {
        status = kv_fail(err, KV_CAPACITY, "tiers.host.capacity_bytes", "the request needs %llu bytes of K/V and the tier holds %llu",
                         (unsigned long long)bytes, (unsigned long long)kv_arena_capacity_bytes(e->arena));
        kv_hint(err, "ask for fewer tokens or raise tiers.host.capacity_bytes");
        goto fail;
    }
    s->candidate = assigned(e, r, &a);
    if (s->candidate && a.method) {
        s->no_index = kv_selection_create(a.method, &a.candidate.params, &e->shape, r->n_prompt + r->max_tokens, r->n_prompt, true, &s->selection, NULL) != KV_OK;
        if (s->no_index) s->candidate = 0; /* the baseline has memory for it */
    }
    if (s->selection) {
        s->selection->build_rows = r->n_prompt;
        s->selection->build_share = a.candidate.index_share;
        s->selection->byte_cost = a.candidate.byte_cost;
    }
    s->submitted_us = kv_engine_now_us();
    s->arrival_us = r->arrival_us ? r->arrival_us : s->submitted_us;
    hear_again(e, s, r);
    s->id = atomic_fetch_add(&e->next_id, 1) + 1;
    s->stream->id = s->id;
    s->stream->n_prompt = s->n_prompt;
    struct kv_stream *stream = s->stream;
    status = enqueue(e, s, err);
    if (status == KV_OK) {
        *out = stream;
        return KV_OK;
    }
    kv_stream_unref(s->stream); /* the reader's reference */
    kv_sequence_destroy(s);
    return status;
fail:
    kv_stream_unref(s->stream);
    kv_sequence_destroy(s);
    return refuse(e, status);
}

/* ---------------------------------------------------------------- release */

enum kv_status kv_engine_check(const struct kv_engine *e, const struct kv_pipeline *p, const struct kv_params *params, struct kv_error *err)
{
    const struct kv_selector_method *m = p->selector ? kv_selector_find(p->selector) : NULL;
    if (!p->built || !p->placement || !kv_placement_find(p->placement) || (p->selector && !m))
        return kv_fail(err, KV_NOT_BUILT, p->name, "pipeline %s is registered but not built", p->name);
    if (!m) return KV_OK;
    struct kv_selector *probe;
    enum kv_status s = m->create(params, e->shape.d_head, e->shape.n_q_heads / e->shape.n_kv_heads, KV_BLOCK_ROWS, 0, &probe, err);
    if (s == KV_OK) m->destroy(probe);
    return s;
}

enum kv_status kv_engine_install(struct kv_engine *e, const struct kv_candidate *c, bool shadow, uint64_t expected_epoch,
                                 uint64_t epoch, struct kv_error *err)
{
    struct kv_assignment a = {.epoch = epoch, .shadow = shadow};
    if (c) {
        const struct kv_pipeline *p = c->pipeline;
        if (!c->id || !p) return kv_fail(err, KV_BAD_ARGUMENT, "candidate", "a candidate needs an id other than 0 and a pipeline");
        enum kv_status s = kv_engine_check(e, p, &c->params, err);
        if (s != KV_OK) return s;
        a.candidate = *c;
        a.placement = kv_placement_find(p->placement);
        a.method = p->selector ? kv_selector_find(p->selector) : NULL;
        if (!(c->byte_cost >= 0 && c->byte_cost <= KV_BYTE_COST_MOST)) return kv_fail(err, KV_BAD_ARGUMENT, "byte_cost", "byte_cost is %g and must lie in 0 to %d", c->byte_cost, KV_BYTE_COST_MOST);
        if (c->own_share && !(c->index_share >= 0 && c->index_share <= KV_INDEX_SHARE_MOST)) return kv_fail(err, KV_BAD_ARGUMENT, "index_share", "index_share is %g and must lie in 0 to %d", c->index_share, KV_INDEX_SHARE_MOST);
        if (!c->own_share) a.candidate.index_share = e->config.index_share;
        if (a.method && c->byte_cost == 0) a.candidate.byte_cost = a.method->byte_cost * e->config.break_even;
    }
    if (epoch > KV_EPOCH_MAX) return kv_fail(err, KV_BAD_ARGUMENT, "epoch", "the epoch exceeds its range");
    /* Word and assignment move together under the lock; a rollback needs neither and wins by the word. */
    pthread_mutex_lock(&e->lock);
    bool moved = kv_publication_advance(&e->publication, expected_epoch, epoch);
    if (moved) e->assignment = a;
    pthread_mutex_unlock(&e->lock);
    return moved ? KV_OK : kv_fail(err, KV_SUPERSEDED, "epoch", "the release moved on from epoch %llu before this took effect", (unsigned long long)expected_epoch);
}

double kv_engine_index_share(const struct kv_engine *e)
{
    return e->config.index_share;
}

enum kv_status kv_engine_rearm(struct kv_engine *e, uint64_t epoch, struct kv_error *err)
{
    if (kv_engine_recomputing(e)) return kv_fail(err, KV_CONFLICT, "release", "sequences are still being recomputed");
    pthread_mutex_lock(&e->lock);
    bool cleared = kv_publication_rearm(&e->publication, epoch);
    if (cleared) e->assignment = (struct kv_assignment){.epoch = epoch};
    pthread_mutex_unlock(&e->lock);
    return cleared ? KV_OK : kv_fail(err, KV_ILLEGAL_TRANSITION, "release", "the release is not latched");
}

struct kv_release_word kv_engine_release(const struct kv_engine *e)
{
    uint64_t w = kv_publication_word(&e->publication);
    return (struct kv_release_word){.latched = w & KV_LATCH, .epoch = w & ~KV_LATCH};
}

void kv_engine_rollback(struct kv_engine *e, struct kv_rollback *out)
{
    int64_t began_ns = kv_now_ns();
    int32_t live = atomic_load(&e->candidate_live);
    uint64_t before = kv_publication_fence(&e->publication);
    /* The decode thread may have sent some back before this line: whichever count is higher saw them all. */
    int32_t after = kv_engine_recomputing(e);
    *out = (struct kv_rollback){.epoch = before & ~KV_LATCH, .fence_us = (kv_now_ns() - began_ns + 999) / 1000,
                                .already = before & KV_LATCH, .sequences = live > after ? live : after,
                                .unsent_tokens = (int32_t)atomic_load(&e->backlog->unsent)};
}

int32_t kv_engine_recomputing(const struct kv_engine *engine)
{
    struct kv_engine *e = (struct kv_engine *)engine;
    int32_t to_come = kv_publication_word(&e->publication) & KV_LATCH ? atomic_load(&e->candidate_live) : 0;
    return to_come + atomic_load(&e->recomputing);
}

void kv_engine_set_fallback(struct kv_engine *e, const struct kv_fallback_table *t, double max_omitted_mass)
{
    pthread_mutex_lock(&e->lock);
    e->gate_next = (struct kv_gate){*t, max_omitted_mass};
    e->gate_changed = true;
    pthread_mutex_unlock(&e->lock);
}
