/* pauses_decide.c — what becomes of the rows of paused requests: by waste, looked at again as a pause ages, and by who waits for room. */
#include "runtime/service/pauses_internal.h"

enum { REVISE_US = 20000, LONGEST_WAIT_US = 1000000, CREDITS_US = 1000 };

static uint64_t row_bytes(const struct kv_engine *e)
{
    return (uint64_t)e->weights->n_layers * (uint64_t)e->weights->n_kv_heads * 2 * kv_row_bytes(KV_ROW_TYPE, e->weights->d_head);
}

void kv_paused_costs(const struct kv_engine *e, struct kv_pause_costs *c)
{
    int64_t others = 0;
    for (int32_t i = 0; i < e->n_live; i++) others += e->live[i] ? e->live[i]->cache.n_rows : 0;
    *c = (struct kv_pause_costs){.bytes_per_token = (double)row_bytes(e), .us_per_row = e->us_per_row, .swap_bytes_per_s = e->pauses->bytes_per_s,
                                 .chunk_rows = kv_recompute_rows(e->config.prefill_chunk, e->n_live), .other_tokens = others};
}

static void count_revision(struct kv_engine *e, struct kv_paused *p)
{
    pthread_mutex_lock(&e->lock);
    p->view.revisions++;
    pthread_mutex_unlock(&e->lock);
}

void kv_paused_note_waste(struct kv_engine *e, struct kv_paused *p, const struct kv_pause_costs *c, const struct kv_pause_waste *w)
{
    pthread_mutex_lock(&e->lock);
    p->view.preserve_byte_ms = w->preserve;
    p->view.swap_byte_ms = w->swap;
    p->view.discard_byte_ms = w->discard;
    p->view.crossing_us = kv_pause_crossing_us(c, p->view.rows);
    pthread_mutex_unlock(&e->lock);
}

static bool undecided(const struct kv_paused *p)
{
    return p->view.state == KV_SESSION_PAUSED_GPU && p->view.asked == KV_PAUSE_AUTO && !p->into;
}

int64_t kv_paused_left_us(const struct kv_engine *e, const struct kv_paused *p, int64_t now_us)
{
    int64_t left_us = e->config.max_pause_us - (now_us - p->view.paused_us);
    return !e->config.max_pause_us ? INT64_MAX : left_us > 0 ? left_us : 0;
}

int64_t kv_pauses_wait_us(const struct kv_engine *e)
{
    const struct kv_pauses *ps = e->pauses;
    int64_t now_us = kv_engine_now_us(), least_us = INT64_MAX, revise_us = e->us_per_row > 0 ? ps->revised_us + REVISE_US - now_us : LONGEST_WAIT_US;
    for (int32_t i = 0; i < ps->n; i++) {
        int64_t left_us = kv_paused_waits(ps->list[i]) ? CREDITS_US : ps->list[i]->into ? INT64_MAX : kv_paused_left_us(e, ps->list[i], now_us);
        if (undecided(ps->list[i]) && revise_us < left_us) left_us = revise_us;
        if (left_us < least_us) least_us = left_us;
    }
    return least_us == INT64_MAX ? -1 : least_us > 0 ? least_us : 0;
}

void kv_paused_revise(struct kv_engine *e, int64_t now_us)
{
    struct kv_pauses *ps = e->pauses;
    struct kv_pause_costs c;
    struct kv_pause_choice choice[KV_PAUSES_MAX];
    struct kv_paused *of[KV_PAUSES_MAX];
    int32_t n = 0;
    if (now_us - ps->revised_us < REVISE_US || e->us_per_row <= 0) return; /* what a row costs is not known yet */
    ps->revised_us = now_us;
    kv_paused_costs(e, &c);
    for (int32_t i = 0; i < ps->n; i++) {
        struct kv_paused *p = ps->list[i];
        if (!undecided(p)) continue;
        of[n] = p;
        choice[n++] = (struct kv_pause_choice){.tokens = p->view.rows, .elapsed_us = now_us - p->view.paused_us, .can_swap = e->turns ? p->view.rows >= KV_BLOCK_ROWS : kv_paused_swap_fits(ps, p)};
    }
    kv_pause_decide(&c, choice, n, e->turns ? e->config.disk_bytes : kv_arena_capacity_bytes(ps->swap) - kv_arena_used_bytes(ps->swap));
    for (int32_t i = 0; i < n; i++) {
        kv_paused_note_waste(e, of[i], &c, &choice[i].waste);
        if (choice[i].action == of[i]->view.action) continue;
        count_revision(e, of[i]);
        kv_paused_apply(e, of[i], choice[i].action);
    }
}

void kv_pauses_make_room(struct kv_engine *e)
{
    struct kv_pauses *ps = e->pauses;
    struct kv_paused *most = NULL;
    for (int32_t i = 0; i < ps->n; i++) {
        struct kv_paused *p = ps->list[i];
        if (p->view.state == KV_SESSION_SWAPPING_OUT) return; /* room is on its way */
        if (p->view.state == KV_SESSION_PAUSED_GPU && !p->into && (!most || p->reserved_bytes > most->reserved_bytes)) most = p;
    }
    if (!most) return;
    count_revision(e, most);
    if (!kv_paused_start_swap(e, most)) kv_paused_discard(e, most);
}
