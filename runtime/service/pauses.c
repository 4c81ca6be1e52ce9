/* pauses.c — see pauses.h: requests that are held, resumed or given up. */
#include "runtime/service/pauses_internal.h"

#include "runtime/service/lifecycle.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kv_pause_action_name(enum kv_pause_action a)
{
    static const char *const names[KV_PAUSE_ACTIONS] = {"auto", "preserve", "swap", "discard"};
    return (unsigned)a < KV_PAUSE_ACTIONS ? names[a] : "?";
}

enum kv_status kv_pauses_create(size_t slab_bytes, uint64_t swap_bytes, struct kv_pauses **out)
{
    *out = NULL;
    struct kv_pauses *ps = calloc(1, sizeof *ps);
    if (!ps || kv_arena_create(slab_bytes, swap_bytes, &ps->swap) != KV_OK) return free(ps), KV_OUT_OF_MEMORY;
    kv_arena_small_pages(ps->swap);
    kv_arena_go_ahead(ps->swap, 0);
    ps->bytes_per_s = kv_paused_copy_rate();
    *out = ps;
    return KV_OK;
}

void kv_paused_move(struct kv_engine *e, struct kv_paused *p, enum kv_session_state to)
{
    pthread_mutex_lock(&e->lock);
    enum kv_status s = kv_lifecycle_move(&p->view.state, to);
    pthread_mutex_unlock(&e->lock);
    assert(s == KV_OK);
    (void)s;
}

void kv_paused_drop_swap(struct kv_pauses *ps, struct kv_paused *p)
{
    for (size_t i = 0; p->swap && i < p->n_slabs; i++) kv_arena_give(ps->swap, p->swap[i]);
    free(p->swap);
    free(p->sum);
    p->swap = NULL;
    p->sum = NULL;
}

void kv_paused_drop_rows(struct kv_engine *e, struct kv_paused *p)
{
    kv_cache_truncate(&p->cache, e->arena, 0);
    e->reserved_bytes -= p->reserved_bytes;
    p->reserved_bytes = 0;
    pthread_mutex_lock(&e->lock);
    p->view.held_bytes = 0;
    pthread_mutex_unlock(&e->lock);
}

void kv_paused_remove_at(struct kv_engine *e, int32_t i)
{
    struct kv_pauses *ps = e->pauses;
    struct kv_paused *p = ps->list[i];
    kv_paused_give_credits(e, p);
    ps->tried_at = UINT64_MAX; /* it may have stood before others that wait */
    kv_paused_drop_rows(e, p);
    kv_paused_drop_swap(ps, p);
    pthread_mutex_lock(&e->lock);
    memmove(&ps->list[i], &ps->list[i + 1], (size_t)(--ps->n - i) * sizeof *ps->list);
    pthread_mutex_unlock(&e->lock);
    kv_cache_free(&p->cache, e->arena);
    free(p->tokens);
    free(p);
}

void kv_pauses_destroy(struct kv_pauses *p, struct kv_engine *e)
{
    if (!p) return;
    while (p->n) kv_paused_remove_at(e, p->n - 1);
    kv_arena_destroy(p->swap);
    free(p);
}

int32_t kv_paused_find(const struct kv_pauses *ps, uint64_t id)
{
    int32_t i = 0;
    while (i < ps->n && ps->list[i]->view.request != id) i++;
    return i < ps->n ? i : -1;
}

/* ---------------------------------------------------------------- pause */

bool kv_pauses_hold(struct kv_engine *e, struct kv_sequence *s, enum kv_pause_action asked, bool by_itself)
{
    struct kv_pauses *ps = e->pauses;
    struct kv_paused *p = ps->n < KV_PAUSES_MAX ? calloc(1, sizeof *p) : NULL;
    if (p) p->tokens = malloc((size_t)s->n_tokens * sizeof *p->tokens);
    if (!p || !p->tokens) return free(p), false;
    kv_engine_turn_ends(e, s, KV_FINISH_PAUSED);
    if (s->candidate) kv_scheduler_to_baseline(e, s); /* only exact rows are kept */
    kv_engine_give_credits(e, s); /* of a baseline that moves its rows */
    if (s->recomputing) atomic_fetch_sub(&e->recomputing, 1);
    s->recomputing = false;
    kv_report_publication(e, s);
    if (s->placement && s->placement->cancel) s->placement->cancel(e->placements, &s->cache);
    memcpy(p->tokens, s->tokens, (size_t)s->n_tokens * sizeof *p->tokens);
    int64_t now_us = kv_engine_now_us();
    p->cache = s->cache;
    memset(&s->cache, 0, sizeof s->cache);
    uint64_t held = (uint64_t)p->cache.n_blocks * (uint64_t)p->cache.n_layers * p->cache.slab_bytes;
    p->view = (struct kv_pause_view){.request = s->id, .state = KV_SESSION_RUNNING, .asked = asked, .n_tokens = s->n_tokens, .first_prompt = s->first_prompt,
                                     .n_spoken = s->n_spoken + s->n_tokens - s->n_prompt, .rows = p->cache.n_rows, .held_bytes = held, .arrival_us = s->arrival_us, .paused_us = now_us};
    memcpy(p->view.tenant, s->tenant, sizeof p->view.tenant);
    memcpy(p->view.session, s->session, sizeof p->view.session);
    p->dropped = s->dropped;
    p->reserved_bytes = held;
    e->reserved_bytes -= s->reserved_bytes - held;
    s->reserved_bytes = 0;
    pthread_mutex_lock(&e->lock);
    ps->list[ps->n++] = p;
    p->forget = by_itself && atomic_load(&s->stream->cancelled); /* in the list first: who goes from now on finds it there */
    pthread_mutex_unlock(&e->lock);
    kv_paused_move(e, p, KV_SESSION_QUIESCING);
    kv_paused_apply(e, p, asked == KV_PAUSE_SWAP || asked == KV_PAUSE_DISCARD ? asked : KV_PAUSE_PRESERVE);
    struct kv_pause_costs c;
    struct kv_pause_waste w;
    kv_paused_costs(e, &c);
    kv_pause_waste_of(&c, p->view.rows, 0, &w);
    kv_paused_note_waste(e, p, &c, &w);
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = s->n_tokens, .rows = (uint64_t)p->view.rows, .tokens = (uint64_t)(s->n_tokens - s->n_prompt), .bytes = held};
    snprintf(r.detail, sizeof r.detail, "%s: %s", kv_pause_action_name(asked), kv_session_state_name(p->view.state));
    kv_report_receipt(e, s, KV_RECEIPT_PAUSE, KV_OK, r);
    struct kv_request_stats st = {.finish = KV_FINISH_PAUSED, .id = s->id, .published = s->approximate ? KV_APPROXIMATE : KV_EXACT, .n_prompt = s->n_prompt,
                                  .n_published = s->n_tokens - s->n_prompt, .n_recomputed = s->n_recomputed, .queued_us = s->admitted_us - s->submitted_us,
                                  .ttft_us = s->first_us ? s->first_us - s->submitted_us : 0, .total_us = now_us - s->submitted_us};
    int32_t n = s->text.stopped ? kv_text_take(&s->text, true, s->stream->tail, (int32_t)sizeof s->stream->tail - 1) : 0;
    s->stream->tail[n] = 0;
    kv_stream_finish(s->stream, &st);
    kv_sequence_destroy(s);
    return true;
}

static enum kv_status pause_live(struct kv_engine *e, const struct kv_pause_want *w)
{
    int32_t at = -1;
    for (int32_t i = 0; i < e->n_live; i++)
        if (!strcmp(e->live[i]->session, w->session) && !strcmp(e->live[i]->tenant, w->tenant)) at = i;
    if (at < 0) {
        for (int32_t i = 0; i < e->pauses->n; i++)
            if (!strcmp(e->pauses->list[i]->view.session, w->session) && !strcmp(e->pauses->list[i]->view.tenant, w->tenant)) return KV_ALREADY_PAUSED;
        return KV_NOT_FOUND;
    }
    struct kv_sequence *s = e->live[at];
    if (s->n_tokens == s->n_prompt) return KV_PAUSE_IN_PREFILL;
    if (!kv_pauses_hold(e, s, w->action, false)) return KV_QUEUE_FULL;
    memmove(&e->live[at], &e->live[at + 1], (size_t)(--e->n_live - at) * sizeof *e->live);
    *w->view = e->pauses->list[e->pauses->n - 1]->view;
    return KV_OK;
}

static void report_expiry(struct kv_engine *e, const struct kv_paused *p)
{
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = p->view.n_tokens, .rows = (uint64_t)p->view.rows, .bytes = p->view.held_bytes + p->view.swapped_bytes,
                           .request = p->view.request, .value = (double)(kv_engine_now_us() - p->view.paused_us)};
    memcpy(r.tenant, p->view.tenant, sizeof r.tenant);
    memcpy(r.session, p->view.session, sizeof r.session);
    snprintf(r.detail, sizeof r.detail, "nobody came for it; its rows are given up");
    kv_report_receipt(e, NULL, KV_RECEIPT_PAUSE, KV_PAUSE_EXPIRED, r);
}

/* The first in the list gets its credits first, however little others want. */
static void start_waiting(struct kv_engine *e)
{
    struct kv_pauses *ps = e->pauses;
    uint64_t returns = kv_credits_returns(e->credits);
    if (returns == ps->tried_at) return;
    ps->tried_at = returns;
    for (int32_t i = 0; i < ps->n;) {
        int32_t before = ps->n;
        if (!kv_paused_waits(ps->list[i])) {
            i++;
            continue;
        }
        kv_paused_start_in(e, ps->list[i]);
        if (ps->n < before) continue; /* it goes on without them */
        if (kv_paused_waits(ps->list[i])) return;
    }
}

void kv_pauses_begin(struct kv_engine *e)
{
    struct kv_pauses *ps = e->pauses;
    pthread_mutex_lock(&e->lock);
    struct kv_pause_want *wants = ps->wants;
    ps->wants = NULL;
    pthread_mutex_unlock(&e->lock);
    while (wants) {
        struct kv_pause_want *w = wants;
        wants = w->next; /* w is gone once it is done */
        enum kv_status s = pause_live(e, w);
        pthread_mutex_lock(&e->lock);
        w->status = s;
        w->done = true;
        pthread_cond_broadcast(&e->wake);
        pthread_mutex_unlock(&e->lock);
    }
    if (!ps->n) return;
    for (int32_t i = ps->n - 1; i >= 0; i--) {
        struct kv_paused *p = ps->list[i];
        pthread_mutex_lock(&e->lock);
        bool forget = p->forget;
        pthread_mutex_unlock(&e->lock);
        bool gone = p->into && (atomic_load(&p->into->stream->cancelled) || atomic_load(&e->cancel_all));
        if (gone) kv_scheduler_finish(e, p->into, KV_FINISH_CANCELLED, KV_CANCELLED);
        bool late = !p->into && kv_paused_left_us(e, p, kv_engine_now_us()) == 0;
        if (late) report_expiry(e, p);
        if (gone || ((forget || late) && !p->into)) kv_paused_remove_at(e, i);
    }
    start_waiting(e);
    kv_paused_revise(e, kv_engine_now_us());
    kv_paused_move_some(e);
}

bool kv_pauses_busy(const struct kv_engine *e)
{
    const struct kv_pauses *ps = e->pauses;
    bool busy = ps->wants != NULL;
    for (int32_t i = 0; i < ps->n && !busy; i++)
        busy = kv_paused_moves(ps->list[i]) || (ps->list[i]->forget && !ps->list[i]->into) ||
               (kv_paused_waits(ps->list[i]) && (kv_credits_returns(e->credits) != ps->tried_at || atomic_load(&ps->list[i]->into->stream->cancelled) || atomic_load(&e->cancel_all)));
    return busy;
}

void kv_pauses_spoil(struct kv_engine *e, uint64_t request)
{
    pthread_mutex_lock(&e->lock);
    int32_t i = kv_paused_find(e->pauses, request);
    struct kv_paused *p = i < 0 ? NULL : e->pauses->list[i];
    if (p && p->swap && p->view.state == KV_SESSION_PAUSED_HOST) p->swap[0][p->cache.slab_bytes / 2] ^= 1;
    pthread_mutex_unlock(&e->lock);
}

int32_t kv_pauses_resuming(const struct kv_engine *e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->pauses->n; i++) n += e->pauses->list[i]->into != NULL;
    return n;
}

/* ---------------------------------------------------------------- resume */

uint64_t kv_pauses_held_bytes(const struct kv_engine *e, const struct kv_sequence *s)
{
    int32_t i = s->resume ? kv_paused_find(e->pauses, s->resume) : -1;
    return i < 0 ? 0 : e->pauses->list[i]->reserved_bytes;
}

/* The new table has room for the whole answer. */
void kv_paused_take_over(struct kv_engine *e, struct kv_paused *p)
{
    struct kv_cache *from = &p->cache, *to = &p->into->cache;
    for (int32_t l = 0; l < from->n_layers; l++)
        memcpy(to->slab + (size_t)l * (size_t)to->max_blocks, from->slab + (size_t)l * (size_t)from->max_blocks, (size_t)from->n_blocks * sizeof *to->slab);
    to->n_blocks = from->n_blocks;
    to->n_rows = from->n_rows;
    to->n_sealed = from->n_sealed;
    from->n_blocks = from->n_rows = from->n_sealed = 0;
    e->reserved_bytes -= p->reserved_bytes;
    p->reserved_bytes = 0;
}

bool kv_pauses_attach(struct kv_engine *e, struct kv_sequence *s)
{
    int32_t i = kv_paused_find(e->pauses, s->resume);
    struct kv_paused *p = i < 0 ? NULL : e->pauses->list[i];
    bool same = p && !p->into && !strcmp(p->view.tenant, s->tenant) && s->n_tokens >= p->view.n_tokens && !memcmp(p->tokens, s->tokens, (size_t)p->view.n_tokens * sizeof *s->tokens);
    if (!same) return false; /* of a process before, or of other tokens: everything is computed */
    p->into = s;
    s->dropped |= p->dropped;
    if (kv_paused_moves(p)) return true; /* still on its way out */
    if (p->on_disk) { /* found, read and verified before its prefill like any session's history; what is still being written is not found */
        if (p->view.state == KV_SESSION_SWAPPING_OUT) kv_paused_move(e, p, KV_SESSION_PAUSED_HOST);
        if (p->view.state == KV_SESSION_PAUSED_HOST) kv_paused_move(e, p, KV_SESSION_SWAPPING_IN);
        else kv_paused_move(e, p, KV_SESSION_RECOMPUTING);
        return kv_paused_go_on(e, p), true;
    }
    if (p->view.state == KV_SESSION_PAUSED_GPU) {
        kv_paused_take_over(e, p);
        kv_paused_go_on(e, p);
    } else {
        kv_paused_start_in(e, p);
    }
    return true;
}
