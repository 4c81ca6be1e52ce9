/* pauses_move.c — rows of paused requests on their way: to disk by the turns thread, or slab by slab to memory beside the arena, and back. */
#include "runtime/service/pauses_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MEASURED_BYTES = 1 << 20, MEASURED_TIMES = 8, ALONE_US = 20000, PAGES_NS = 100000000 };
static const double moving_share = 0.04; /* of an iteration's time, both ways together */

double kv_paused_copy_rate(void)
{
    char *a = malloc(2 * MEASURED_BYTES);
    if (!a) return 0;
    memset(a, 1, 2 * MEASURED_BYTES);
    int64_t best_ns = INT64_MAX; /* other work on the machine only ever adds */
    for (int i = 0; i < MEASURED_TIMES; i++) {
        int64_t began_ns = kv_now_ns();
        memcpy(a + MEASURED_BYTES, a, MEASURED_BYTES);
        __asm__ volatile("" : : "r"(a) : "memory"); /* nobody reads the copy, and it must be made all the same */
        int64_t ns = kv_now_ns() - began_ns;
        if (ns < best_ns) best_ns = ns;
    }
    free(a);
    return MEASURED_BYTES * 1e9 / (double)(best_ns > 0 ? best_ns : 1);
}

/* ---------------------------------------------------------------- actions */

/* In the order in which slabs are taken: their pages are made in it too. */
static uint8_t *slab_at(const struct kv_cache *c, size_t i)
{
    size_t layers = (size_t)c->n_layers;
    return c->slab[i % layers * (size_t)c->max_blocks + i / layers];
}

static void set_action(struct kv_engine *e, struct kv_paused *p, enum kv_pause_action a)
{
    pthread_mutex_lock(&e->lock);
    p->view.action = a;
    if (a == KV_PAUSE_DISCARD) p->view.rows = 0;
    pthread_mutex_unlock(&e->lock);
}

void kv_paused_discard(struct kv_engine *e, struct kv_paused *p)
{
    set_action(e, p, KV_PAUSE_DISCARD);
    kv_paused_drop_rows(e, p);
    kv_paused_drop_swap(e->pauses, p);
    kv_paused_move(e, p, KV_SESSION_TOKEN_ONLY);
}

static enum kv_status take_credits(struct kv_engine *e, struct kv_paused *p, const char *what, uint64_t bytes)
{
    return kv_engine_take_move_credits(e, p->view.request, what, bytes, &p->credit);
}

void kv_paused_give_credits(struct kv_engine *e, struct kv_paused *p)
{
    kv_engine_give_move_credits(e, p->view.request, &p->credit);
}

bool kv_paused_swap_fits(const struct kv_pauses *ps, const struct kv_paused *p)
{
    uint64_t bytes = (uint64_t)p->cache.n_blocks * (uint64_t)p->cache.n_layers * p->cache.slab_bytes;
    return bytes && bytes <= kv_arena_capacity_bytes(ps->swap) - kv_arena_used_bytes(ps->swap);
}

/* Whole blocks to disk; the open one is given up and computed again. False: none is whole, or there is no memory for the save. */
static bool start_save(struct kv_engine *e, struct kv_paused *p)
{
    int32_t blocks = p->view.rows / KV_BLOCK_ROWS;
    if (!blocks || !*p->view.session || p->dropped || take_credits(e, p, "swap-out", (uint64_t)blocks * (uint64_t)p->cache.n_layers * p->cache.slab_bytes)) return false;
    kv_cache_truncate(&p->cache, e->arena, blocks * KV_BLOCK_ROWS);
    uint64_t bytes = (uint64_t)blocks * (uint64_t)p->cache.n_layers * p->cache.slab_bytes;
    e->reserved_bytes -= p->reserved_bytes - bytes;
    p->reserved_bytes = bytes;
    kv_turns_note(e->turns, p->view.tenant, p->view.session, KV_SESSION_QUIESCING);
    kv_turns_note(e->turns, p->view.tenant, p->view.session, KV_SESSION_SAVING);
    bool saves = kv_turns_save(e->turns, &(struct kv_turn_rows){.tenant = p->view.tenant, .session = p->view.session, .request = p->view.request, .tokens = p->tokens, .cache = &p->cache,
                                                                .blocks = blocks, .us_per_row = e->us_per_row, .credit = p->credit});
    if (!saves) kv_turns_note(e->turns, p->view.tenant, p->view.session, KV_SESSION_TOKEN_ONLY);
    pthread_mutex_lock(&e->lock);
    p->view.rows = blocks * KV_BLOCK_ROWS;
    pthread_mutex_unlock(&e->lock);
    if (!saves) return kv_paused_give_credits(e, p), false;
    p->on_disk = true;
    p->reserved_bytes = 0; /* the save's now, as its credit is; given back with it */
    p->credit = (struct kv_credit_ticket){0};
    e->saving_bytes += bytes;
    set_action(e, p, KV_PAUSE_SWAP);
    kv_paused_move(e, p, KV_SESSION_SWAPPING_OUT);
    return true;
}

bool kv_paused_start_swap(struct kv_engine *e, struct kv_paused *p)
{
    struct kv_pauses *ps = e->pauses;
    if (e->turns && start_save(e, p)) return true;
    size_t n = (size_t)p->cache.n_blocks * (size_t)p->cache.n_layers;
    if (!kv_paused_swap_fits(ps, p) || take_credits(e, p, "swap-out", n * p->cache.slab_bytes)) return false;
    p->swap = malloc(n * sizeof *p->swap);
    p->sum = malloc(n * sizeof *p->sum);
    if (!p->swap || !p->sum) {
        free(p->swap);
        free(p->sum);
        p->swap = NULL, p->sum = NULL;
        return kv_paused_give_credits(e, p), false;
    }
    p->n_slabs = n;
    p->moved = 0;
    for (size_t i = 0; i < n; i++) p->swap[i] = kv_arena_take_raw(ps->swap); /* they fit, and are written whole */
    set_action(e, p, KV_PAUSE_SWAP);
    kv_paused_move(e, p, KV_SESSION_SWAPPING_OUT);
    return true;
}

void kv_paused_apply(struct kv_engine *e, struct kv_paused *p, enum kv_pause_action a)
{
    bool held = p->view.state == KV_SESSION_PAUSED_GPU;
    if (a == KV_PAUSE_SWAP && kv_paused_start_swap(e, p)) return;
    if (a == KV_PAUSE_DISCARD) return kv_paused_discard(e, p);
    if (held) return;
    set_action(e, p, KV_PAUSE_PRESERVE);
    kv_paused_move(e, p, KV_SESSION_PAUSED_GPU);
}

/* ---------------------------------------------------------------- movement */

static void swapped_out(struct kv_engine *e, struct kv_paused *p)
{
    kv_paused_give_credits(e, p);
    kv_paused_drop_rows(e, p);
    pthread_mutex_lock(&e->lock);
    p->view.swapped_bytes = p->n_slabs * p->cache.slab_bytes;
    pthread_mutex_unlock(&e->lock);
    kv_paused_move(e, p, KV_SESSION_PAUSED_HOST);
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = p->view.rows, .rows = (uint64_t)p->view.rows, .bytes = p->view.swapped_bytes, .request = p->view.request};
    memcpy(r.tenant, p->view.tenant, sizeof r.tenant);
    memcpy(r.session, p->view.session, sizeof r.session);
    snprintf(r.detail, sizeof r.detail, "swapped out of the arena");
    kv_report_receipt(e, NULL, KV_RECEIPT_TRANSFER, KV_OK, r);
}

void kv_pauses_saved(struct kv_engine *e, const struct kv_turn *t)
{
    for (int32_t i = 0; i < e->pauses->n; i++) {
        struct kv_paused *p = e->pauses->list[i];
        if (p->view.request != t->request || p->view.state != KV_SESSION_SWAPPING_OUT) continue;
        pthread_mutex_lock(&e->lock);
        p->view.held_bytes = 0;
        if (t->status == KV_OK) p->view.swapped_bytes = (uint64_t)(p->view.rows / KV_BLOCK_ROWS) * (uint64_t)t->own.n_layers * t->own.slab_bytes;
        else p->view.rows = 0;
        pthread_mutex_unlock(&e->lock);
        kv_paused_move(e, p, t->status == KV_OK ? KV_SESSION_PAUSED_HOST : KV_SESSION_TOKEN_ONLY);
    }
}

void kv_paused_go_on(struct kv_engine *e, struct kv_paused *p)
{
    struct kv_sequence *s = p->into;
    if (p->view.state != KV_SESSION_RESUME_READY) kv_paused_move(e, p, KV_SESSION_RESUME_READY);
    kv_paused_move(e, p, KV_SESSION_PREFILL_EXTERNAL_RESULT);
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = s->cache.n_rows, .rows = (uint64_t)s->cache.n_rows, .rows_total = (uint64_t)s->n_tokens,
                           .tokens = (uint64_t)(s->n_tokens - p->view.n_tokens), .value = (double)(kv_engine_now_us() - p->view.paused_us)};
    snprintf(r.detail, sizeof r.detail, "resumed after %s, request %llu goes on", kv_pause_action_name(p->view.action), (unsigned long long)p->view.request);
    kv_report_receipt(e, s, KV_RECEIPT_RESUME, KV_OK, r);
    e->live[e->n_live++] = s;
    kv_paused_remove_at(e, kv_paused_find(e->pauses, p->view.request));
}

static void recompute(struct kv_engine *e, struct kv_paused *p)
{
    if (p->view.state != KV_SESSION_TOKEN_ONLY) kv_paused_move(e, p, KV_SESSION_TOKEN_ONLY);
    kv_paused_move(e, p, KV_SESSION_RECOMPUTING);
    kv_paused_go_on(e, p);
}

/* Slabs for the rows that come back; what is kept of prefixes goes first, and enough of it at once. */
static bool make_place(struct kv_engine *e, struct kv_paused *p)
{
    uint64_t bytes = p->n_slabs * p->cache.slab_bytes;
    while (kv_arena_capacity_bytes(e->arena) - kv_arena_used_bytes(e->arena) < bytes && kv_prefix_evict(e->prefix, e->arena)) continue;
    return kv_cache_reserve_raw(&p->into->cache, e->arena, p->view.rows) == KV_OK;
}

bool kv_paused_waits(const struct kv_paused *p)
{
    return p->into && !p->on_disk && p->view.state == KV_SESSION_PAUSED_HOST;
}

void kv_paused_start_in(struct kv_engine *e, struct kv_paused *p)
{
    enum kv_status s = p->view.state != KV_SESSION_PAUSED_HOST ? KV_CAPACITY : p->into->credit.generation ? KV_OK : take_credits(e, p, "swap-in", p->n_slabs * p->cache.slab_bytes);
    if (s == KV_CREDIT_PRESSURE) return;
    if (s != KV_OK || !make_place(e, p)) return recompute(e, p);
    p->moved = 0;
    kv_paused_move(e, p, KV_SESSION_SWAPPING_IN);
}

static void lost(struct kv_engine *e, struct kv_paused *p)
{
    kv_report_failure(e, p->into, KV_CHECKSUM_MISMATCH, "rows that were moved out came back changed; they are computed again");
    kv_cache_truncate(&p->into->cache, e->arena, 0);
    recompute(e, p);
}

/* Resumed while they moved out: the save is brought to its end first, since a partial one is never restored, and then the rows are in the arena still. */
static void out_and_in(struct kv_engine *e, struct kv_paused *p)
{
    kv_paused_give_credits(e, p);
    kv_paused_move(e, p, KV_SESSION_PAUSED_HOST);
    kv_paused_move(e, p, KV_SESSION_SWAPPING_IN);
    kv_paused_take_over(e, p);
    kv_paused_go_on(e, p);
}

/* false when p has nothing more to move. */
static bool move_slab(struct kv_engine *e, struct kv_paused *p)
{
    size_t bytes = p->cache.slab_bytes, i = p->moved;
    uint8_t *out = p->swap[i];
    if (p->view.state == KV_SESSION_SWAPPING_OUT) {
        memcpy(out, slab_at(&p->cache, i), bytes);
        p->sum[i] = XXH3_64bits(out, bytes);
        if (++p->moved < p->n_slabs) return true;
        if (p->into) out_and_in(e, p);
        else swapped_out(e, p);
        return false;
    }
    uint8_t *to = slab_at(&p->into->cache, i);
    memcpy(to, out, bytes);
    if (XXH3_64bits(to, bytes) != p->sum[i]) return lost(e, p), false;
    if (++p->moved < p->n_slabs) return true;
    p->into->cache.n_rows = p->view.rows;
    kv_paused_go_on(e, p);
    return false;
}

bool kv_paused_moves(const struct kv_paused *p)
{
    return !p->on_disk && (p->view.state == KV_SESSION_SWAPPING_OUT || p->view.state == KV_SESSION_SWAPPING_IN);
}

double kv_pauses_copy_rate(const struct kv_engine *e)
{
    return e->pauses->bytes_per_s;
}

/* Part of an iteration that rows may move in while others run. One long iteration is no licence to make the next one long. */
static double share_us(const struct kv_engine *e)
{
    double usual_us = e->decode_step_us > 0 && e->decode_step_us < e->last_iteration_us ? e->decode_step_us : e->last_iteration_us;
    return usual_us * moving_share;
}

static uint64_t bytes_in(const struct kv_engine *e, double us)
{
    return (uint64_t)(us * e->pauses->bytes_per_s / 1e6);
}

uint64_t kv_pauses_cap_bytes(const struct kv_engine *e)
{
    return e->pauses ? bytes_in(e, share_us(e)) : 0;
}

/* Others run, and would wait for the huge page of the next slab: there is a thread that makes it. What it has no time for is written all the same, after a while. */
static bool next_waits(const struct kv_engine *e, const struct kv_paused *p, int64_t now_ns)
{
    bool in = p->view.state == KV_SESSION_SWAPPING_IN;
    return in && e->n_live && now_ns - e->pauses->moved_ns < PAGES_NS && !kv_arena_ready(e->arena, slab_at(&p->into->cache, p->moved));
}

/* Blocks that answers begin in this iteration, which the arena zeroes for them: it is longer by that already. */
static uint64_t growing_bytes(const struct kv_engine *e)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < e->n_live; i++) {
        const struct kv_cache *c = &e->live[i]->cache;
        if (c->n_rows == c->n_blocks * KV_BLOCK_ROWS && e->live[i]->n_tokens == c->n_rows + 1) n += (uint64_t)c->n_layers * c->slab_bytes;
    }
    return n;
}

/* Both directions share what may move, in bytes and in time, of which a slab always goes; who waits to run comes first. */
void kv_paused_move_some(struct kv_engine *e)
{
    struct kv_pauses *ps = e->pauses;
    bool moves = false;
    double us = e->n_live ? share_us(e) : ALONE_US; /* alone in the engine nobody waits for them */
    int64_t began_ns = kv_now_ns(), spent_ns = 0, share_ns = (int64_t)(us * 1e3);
    uint64_t cap = bytes_in(e, us), grows = growing_bytes(e);
    ps->cap_bytes = cap > grows ? cap - grows : 0;
    ps->moved_bytes = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < ps->n; i++) {
            struct kv_paused *p = ps->list[i];
            if (!kv_paused_moves(p) || (pass == 0) != (p->into != NULL)) continue;
            int32_t before = ps->n;
            uint64_t slab = p->cache.slab_bytes;
            for (bool more = true; more;) {
                moves = true;
                if (ps->moved_bytes && (ps->moved_bytes + slab > ps->cap_bytes || spent_ns >= share_ns)) goto measured;
                if (next_waits(e, p, began_ns)) break;
                more = move_slab(e, p);
                ps->moved_bytes += slab;
                spent_ns = kv_now_ns() - began_ns;
            }
            if (ps->n < before) i--;
        }
measured:
    if (ps->moved_bytes || !moves) ps->moved_ns = began_ns;
    if (ps->moved_bytes) ps->bytes_per_s = 0.8 * ps->bytes_per_s + 0.2 * (double)ps->moved_bytes * 1e9 / (double)(spent_ns > 0 ? spent_ns : 1);
}
