/* pauses_move.c — rows of paused requests on their way: to disk by the turns thread, or slab by slab to memory beside the arena, and back. */
#include "runtime/service/pauses_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEASURED_BYTES = 1 << 20, MEASURED_TIMES = 8, ALONE_NS = 20000000 };
static const double moving_share = 0.06; /* of an iteration's time, both ways together */

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

static uint64_t checksum(const uint8_t *bytes, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15, x;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&x, bytes + i, 8);
        h = (h ^ x) * 0xff51afd7ed558ccd;
        h ^= h >> 32;
    }
    return h;
}

static uint8_t *slab_at(const struct kv_cache *c, size_t i)
{
    size_t blocks = (size_t)c->n_blocks;
    return c->slab[i / blocks * (size_t)c->max_blocks + i % blocks];
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

static bool take_credits(struct kv_engine *e, struct kv_paused *p, const char *what, uint64_t bytes)
{
    struct kv_credit_ask ask = {.request = p->view.request, .what = what, .backend_bytes = bytes, .queue_slots = 1};
    enum kv_credit lacks;
    enum kv_status s = kv_credits_reserve(e->credits, &ask, kv_engine_now_us(), &p->credit, &lacks, NULL);
    if (s == KV_CREDIT_PRESSURE) kv_credits_wait(e->credits, p->view.request, what, lacks, kv_engine_now_us());
    return s == KV_OK;
}

void kv_paused_give_credits(struct kv_engine *e, struct kv_paused *p)
{
    if (p->credit.generation) kv_credits_release(e->credits, &p->credit);
    kv_credits_forget(e->credits, p->view.request);
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
    if (!blocks || !*p->view.session || !take_credits(e, p, "swap-out", (uint64_t)blocks * (uint64_t)p->cache.n_layers * p->cache.slab_bytes)) return false;
    kv_cache_truncate(&p->cache, e->arena, blocks * KV_BLOCK_ROWS);
    uint64_t bytes = (uint64_t)blocks * (uint64_t)p->cache.n_layers * p->cache.slab_bytes;
    e->reserved_bytes -= p->reserved_bytes - bytes;
    p->reserved_bytes = bytes;
    kv_turns_note(e->turns, p->view.tenant, p->view.session, KV_SESSION_QUIESCING);
    kv_turns_note(e->turns, p->view.tenant, p->view.session, KV_SESSION_SAVING);
    bool saves = kv_turns_save(e->turns, p->view.tenant, p->view.session, p->tokens, &p->cache, blocks, e->us_per_row);
    if (!saves) kv_turns_note(e->turns, p->view.tenant, p->view.session, KV_SESSION_TOKEN_ONLY);
    pthread_mutex_lock(&e->lock);
    p->view.rows = blocks * KV_BLOCK_ROWS;
    pthread_mutex_unlock(&e->lock);
    if (!saves) return kv_paused_give_credits(e, p), false;
    p->on_disk = true;
    p->reserved_bytes = 0; /* the save's now; given back with it */
    set_action(e, p, KV_PAUSE_SWAP);
    kv_paused_move(e, p, KV_SESSION_SWAPPING_OUT);
    return true;
}

bool kv_paused_start_swap(struct kv_engine *e, struct kv_paused *p)
{
    struct kv_pauses *ps = e->pauses;
    if (e->turns && start_save(e, p)) return true;
    size_t n = (size_t)p->cache.n_blocks * (size_t)p->cache.n_layers;
    if (!kv_paused_swap_fits(ps, p) || !take_credits(e, p, "swap-out", n * p->cache.slab_bytes)) return false;
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
        if (p->view.state != KV_SESSION_SWAPPING_OUT || !p->on_disk || strcmp(p->view.session, t->session) || strcmp(p->view.tenant, t->tenant)) continue;
        kv_paused_give_credits(e, p);
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

static void lost(struct kv_engine *e, struct kv_paused *p)
{
    kv_report_failure(e, p->into, KV_CHECKSUM_MISMATCH, "rows that were moved out came back changed; they are computed again");
    kv_cache_truncate(&p->into->cache, e->arena, 0);
    kv_paused_move(e, p, KV_SESSION_TOKEN_ONLY);
    kv_paused_move(e, p, KV_SESSION_RECOMPUTING);
    kv_paused_go_on(e, p);
}

bool kv_paused_move_slab(struct kv_engine *e, struct kv_paused *p)
{
    size_t bytes = p->cache.slab_bytes, i = p->moved;
    uint8_t *out = p->swap[i];
    if (p->view.state == KV_SESSION_SWAPPING_OUT) {
        memcpy(out, slab_at(&p->cache, i), bytes);
        p->sum[i] = checksum(out, bytes);
        if (++p->moved < p->n_slabs) return true;
        swapped_out(e, p);
        return false;
    }
    uint8_t *to = slab_at(&p->into->cache, i);
    memcpy(to, out, bytes);
    if (checksum(to, bytes) != p->sum[i]) return lost(e, p), false;
    if (++p->moved < p->n_slabs) return true;
    p->into->cache.n_rows = p->view.rows;
    kv_paused_go_on(e, p);
    return false;
}

bool kv_paused_moves(const struct kv_engine *e, const struct kv_paused *p)
{
    return !p->on_disk && (p->view.state == KV_SESSION_SWAPPING_OUT || (p->view.state == KV_SESSION_SWAPPING_IN && e->n_live < e->config.max_sequences));
}

double kv_pauses_copy_rate(const struct kv_engine *e)
{
    return e->pauses->bytes_per_s;
}

/* One long iteration is no licence to make the next one long. */
static double usual_us(const struct kv_engine *e)
{
    return e->decode_step_us > 0 && e->decode_step_us < e->last_iteration_us ? e->decode_step_us : e->last_iteration_us;
}

/* Both directions share the budget; who waits to run comes first. Alone in the engine they need none. */
void kv_paused_move_some(struct kv_engine *e)
{
    struct kv_pauses *ps = e->pauses;
    int64_t began_ns = kv_now_ns(), budget_ns = e->n_live ? (int64_t)(usual_us(e) * 1e3 * moving_share) : ALONE_NS;
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < ps->n; i++) {
            struct kv_paused *p = ps->list[i];
            if (!kv_paused_moves(e, p) || (pass == 0) != (p->view.state == KV_SESSION_SWAPPING_IN)) continue;
            int32_t before = ps->n;
            size_t p_bytes = p->cache.slab_bytes;
            for (bool more = true; more;) {
                more = kv_paused_move_slab(e, p);
                bytes += p_bytes;
                int64_t spent = kv_now_ns() - began_ns;
                if (spent < budget_ns) continue;
                ps->bytes_per_s = 0.8 * ps->bytes_per_s + 0.2 * (double)bytes * 1e9 / (double)spent;
                return;
            }
            if (ps->n < before) i--;
        }
}
