/* pauses.c — see pauses.h. The list is changed under the engine's lock, so that others may read it. */
#include "runtime/service/pauses.h"

#include "runtime/service/engine.h"
#include "runtime/service/lifecycle.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REVISE_US = 20000, MEASURED_BYTES = 1 << 20, PAUSE_TIMEOUT_S = 20 };
static const double moving_share = 0.08; /* of an iteration's time, both ways together */

struct paused {
    struct kv_pause_view view;
    int32_t *tokens;
    struct kv_cache cache;       /* holds blocks while the rows are in the arena */
    uint64_t reserved_bytes;
    uint8_t *swap;               /* [n_slabs][slab_bytes] */
    uint64_t *sum;               /* [n_slabs] */
    size_t n_slabs, moved;
    struct kv_sequence *into;    /* resumes, and waits for its rows */
    bool forget, on_disk;
    struct kv_credit_ticket credit; /* while rows move */
};

struct want { /* of a thread that asks for a pause; lives on its stack */
    const char *tenant, *session;
    enum kv_pause_action action;
    enum kv_status status;
    struct kv_pause_view *view;
    bool done;
    struct want *next;
};

struct kv_pauses {
    struct paused *list[KV_PAUSES_MAX];
    int32_t n;
    struct want *wants;
    uint64_t swap_cap, swap_used;
    double bytes_per_s; /* measured, of a copy */
    int64_t revised_us;
};

const char *kv_pause_action_name(enum kv_pause_action a)
{
    static const char *const names[KV_PAUSE_ACTIONS] = {"auto", "preserve", "swap", "discard"};
    return (unsigned)a < KV_PAUSE_ACTIONS ? names[a] : "?";
}

static void measure_copy(struct kv_pauses *p)
{
    char *a = malloc(2 * MEASURED_BYTES);
    if (!a) return;
    memset(a, 1, 2 * MEASURED_BYTES);
    int64_t began_ns = kv_now_ns();
    memcpy(a + MEASURED_BYTES, a, MEASURED_BYTES);
    int64_t ns = kv_now_ns() - began_ns;
    p->bytes_per_s = MEASURED_BYTES * 1e9 / (double)(ns > 0 ? ns : 1);
    free(a);
}

enum kv_status kv_pauses_create(uint64_t swap_bytes, struct kv_pauses **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return KV_OUT_OF_MEMORY;
    (*out)->swap_cap = swap_bytes;
    measure_copy(*out);
    return KV_OK;
}

static void move(struct kv_engine *e, struct paused *p, enum kv_session_state to)
{
    pthread_mutex_lock(&e->lock);
    enum kv_status s = kv_lifecycle_move(&p->view.state, to);
    pthread_mutex_unlock(&e->lock);
    assert(s == KV_OK);
    (void)s;
}

static void drop_swap(struct kv_pauses *ps, struct paused *p)
{
    if (p->swap) ps->swap_used -= p->n_slabs * p->cache.slab_bytes;
    free(p->swap);
    free(p->sum);
    p->swap = NULL;
    p->sum = NULL;
}

static void drop_rows(struct kv_engine *e, struct paused *p)
{
    kv_cache_truncate(&p->cache, e->arena, 0);
    e->reserved_bytes -= p->reserved_bytes;
    p->reserved_bytes = 0;
    pthread_mutex_lock(&e->lock);
    p->view.held_bytes = 0;
    pthread_mutex_unlock(&e->lock);
}

static void give_credits(struct kv_engine *e, struct paused *p);

static void remove_at(struct kv_engine *e, int32_t i)
{
    struct kv_pauses *ps = e->pauses;
    struct paused *p = ps->list[i];
    give_credits(e, p);
    drop_rows(e, p);
    drop_swap(ps, p);
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
    while (p->n) remove_at(e, p->n - 1);
    free(p);
}

static int32_t find(const struct kv_pauses *ps, uint64_t id)
{
    int32_t i = 0;
    while (i < ps->n && ps->list[i]->view.request != id) i++;
    return i < ps->n ? i : -1;
}

/* ---------------------------------------------------------------- actions */

static uint64_t row_bytes(const struct kv_engine *e)
{
    return (uint64_t)e->weights->n_layers * (uint64_t)e->weights->n_kv_heads * 2 * kv_row_bytes(KV_ROW_TYPE, e->weights->d_head);
}

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

static void set_action(struct kv_engine *e, struct paused *p, enum kv_pause_action a)
{
    pthread_mutex_lock(&e->lock);
    p->view.action = a;
    if (a == KV_PAUSE_DISCARD) p->view.rows = 0;
    pthread_mutex_unlock(&e->lock);
}

static void discard(struct kv_engine *e, struct paused *p)
{
    set_action(e, p, KV_PAUSE_DISCARD);
    drop_rows(e, p);
    drop_swap(e->pauses, p);
    move(e, p, KV_SESSION_TOKEN_ONLY);
}

static bool take_credits(struct kv_engine *e, struct paused *p, const char *what, uint64_t bytes)
{
    struct kv_credit_ask ask = {.request = p->view.request, .what = what, .backend_bytes = bytes, .queue_slots = 1};
    enum kv_credit lacks;
    enum kv_status s = kv_credits_reserve(e->credits, &ask, kv_engine_now_us(), &p->credit, &lacks, NULL);
    if (s == KV_CREDIT_PRESSURE) kv_credits_wait(e->credits, p->view.request, what, lacks, kv_engine_now_us());
    return s == KV_OK;
}

static void give_credits(struct kv_engine *e, struct paused *p)
{
    if (p->credit.generation) kv_credits_release(e->credits, &p->credit);
    kv_credits_forget(e->credits, p->view.request);
}

static bool swap_fits(const struct kv_pauses *ps, const struct paused *p)
{
    uint64_t bytes = (uint64_t)p->cache.n_blocks * (uint64_t)p->cache.n_layers * p->cache.slab_bytes;
    return bytes && bytes <= ps->swap_cap - ps->swap_used;
}

/* Whole blocks to disk; the open one is given up and computed again. False: none is whole, or there is no memory for the save. */
static bool start_save(struct kv_engine *e, struct paused *p)
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
    if (!saves) return give_credits(e, p), false;
    p->on_disk = true;
    p->reserved_bytes = 0; /* the save's now; given back with it */
    set_action(e, p, KV_PAUSE_SWAP);
    move(e, p, KV_SESSION_SWAPPING_OUT);
    return true;
}

/* False: there is no room for it, nothing changed. */
static bool start_swap(struct kv_engine *e, struct paused *p)
{
    struct kv_pauses *ps = e->pauses;
    if (e->turns && start_save(e, p)) return true;
    size_t n = (size_t)p->cache.n_blocks * (size_t)p->cache.n_layers;
    if (!swap_fits(ps, p) || !take_credits(e, p, "swap-out", n * p->cache.slab_bytes)) return false;
    p->swap = malloc(n * p->cache.slab_bytes);
    p->sum = malloc(n * sizeof *p->sum);
    if (!p->swap || !p->sum) {
        free(p->swap);
        free(p->sum);
        p->swap = NULL, p->sum = NULL;
        return give_credits(e, p), false;
    }
    p->n_slabs = n;
    p->moved = 0;
    ps->swap_used += n * p->cache.slab_bytes;
    set_action(e, p, KV_PAUSE_SWAP);
    move(e, p, KV_SESSION_SWAPPING_OUT);
    return true;
}

static void apply(struct kv_engine *e, struct paused *p, enum kv_pause_action a)
{
    bool held = p->view.state == KV_SESSION_PAUSED_GPU;
    if (a == KV_PAUSE_SWAP && start_swap(e, p)) return;
    if (a == KV_PAUSE_DISCARD) return discard(e, p);
    if (held) return;
    set_action(e, p, KV_PAUSE_PRESERVE);
    move(e, p, KV_SESSION_PAUSED_GPU);
}

/* ---------------------------------------------------------------- decisions */

static void costs(const struct kv_engine *e, struct kv_pause_costs *c)
{
    int64_t others = 0;
    for (int32_t i = 0; i < e->n_live; i++) others += e->live[i] ? e->live[i]->cache.n_rows : 0;
    *c = (struct kv_pause_costs){.bytes_per_token = (double)row_bytes(e), .us_per_row = e->us_per_row, .swap_bytes_per_s = e->pauses->bytes_per_s,
                                 .chunk_rows = kv_recompute_rows(e->config.prefill_chunk, e->n_live), .other_tokens = others};
}

static void count_revision(struct kv_engine *e, struct paused *p)
{
    pthread_mutex_lock(&e->lock);
    p->view.revisions++;
    pthread_mutex_unlock(&e->lock);
}

static void note_waste(struct kv_engine *e, struct paused *p, const struct kv_pause_costs *c, const struct kv_pause_waste *w)
{
    pthread_mutex_lock(&e->lock);
    p->view.preserve_byte_ms = w->preserve;
    p->view.swap_byte_ms = w->swap;
    p->view.discard_byte_ms = w->discard;
    p->view.crossing_us = kv_pause_crossing_us(c, p->view.rows);
    pthread_mutex_unlock(&e->lock);
}

static void revise(struct kv_engine *e, int64_t now_us)
{
    struct kv_pauses *ps = e->pauses;
    struct kv_pause_costs c;
    struct kv_pause_choice choice[KV_PAUSES_MAX];
    struct paused *of[KV_PAUSES_MAX];
    int32_t n = 0;
    if (now_us - ps->revised_us < REVISE_US || e->us_per_row <= 0) return; /* what a row costs is not known yet */
    ps->revised_us = now_us;
    costs(e, &c);
    for (int32_t i = 0; i < ps->n; i++) {
        struct paused *p = ps->list[i];
        if (p->view.state != KV_SESSION_PAUSED_GPU || p->view.asked != KV_PAUSE_AUTO || p->into) continue;
        of[n] = p;
        choice[n++] = (struct kv_pause_choice){.tokens = p->view.rows, .elapsed_us = now_us - p->view.paused_us, .can_swap = swap_fits(ps, p)};
    }
    kv_pause_decide(&c, choice, n, ps->swap_cap - ps->swap_used);
    for (int32_t i = 0; i < n; i++) {
        note_waste(e, of[i], &c, &choice[i].waste);
        if (choice[i].action == of[i]->view.action) continue;
        count_revision(e, of[i]);
        apply(e, of[i], choice[i].action);
    }
}

void kv_pauses_make_room(struct kv_engine *e)
{
    struct kv_pauses *ps = e->pauses;
    struct paused *most = NULL;
    for (int32_t i = 0; i < ps->n; i++) {
        struct paused *p = ps->list[i];
        if (p->view.state == KV_SESSION_SWAPPING_OUT) return; /* room is on its way */
        if (p->view.state == KV_SESSION_PAUSED_GPU && !p->into && (!most || p->reserved_bytes > most->reserved_bytes)) most = p;
    }
    if (!most) return;
    count_revision(e, most);
    if (!start_swap(e, most)) discard(e, most);
}

/* ---------------------------------------------------------------- movement */

static void swapped_out(struct kv_engine *e, struct paused *p)
{
    give_credits(e, p);
    drop_rows(e, p);
    pthread_mutex_lock(&e->lock);
    p->view.swapped_bytes = p->n_slabs * p->cache.slab_bytes;
    pthread_mutex_unlock(&e->lock);
    move(e, p, KV_SESSION_PAUSED_HOST);
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = p->view.rows, .rows = (uint64_t)p->view.rows, .bytes = p->view.swapped_bytes, .request = p->view.request};
    memcpy(r.tenant, p->view.tenant, sizeof r.tenant);
    memcpy(r.session, p->view.session, sizeof r.session);
    snprintf(r.detail, sizeof r.detail, "swapped out of the arena");
    kv_report_receipt(e, NULL, KV_RECEIPT_TRANSFER, KV_OK, r);
}

void kv_pauses_saved(struct kv_engine *e, const struct kv_turn *t)
{
    for (int32_t i = 0; i < e->pauses->n; i++) {
        struct paused *p = e->pauses->list[i];
        if (p->view.state != KV_SESSION_SWAPPING_OUT || !p->on_disk || strcmp(p->view.session, t->session) || strcmp(p->view.tenant, t->tenant)) continue;
        give_credits(e, p);
        pthread_mutex_lock(&e->lock);
        p->view.held_bytes = 0;
        if (t->status == KV_OK) p->view.swapped_bytes = (uint64_t)(p->view.rows / KV_BLOCK_ROWS) * (uint64_t)t->own.n_layers * t->own.slab_bytes;
        else p->view.rows = 0;
        pthread_mutex_unlock(&e->lock);
        move(e, p, t->status == KV_OK ? KV_SESSION_PAUSED_HOST : KV_SESSION_TOKEN_ONLY);
    }
}

/* The rows are back, or are not to be had: the sequence goes on. */
static void go_on(struct kv_engine *e, struct paused *p)
{
    struct kv_sequence *s = p->into;
    if (p->view.state != KV_SESSION_RESUME_READY) move(e, p, KV_SESSION_RESUME_READY);
    move(e, p, KV_SESSION_PREFILL_EXTERNAL_RESULT);
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = s->cache.n_rows, .rows = (uint64_t)s->cache.n_rows, .rows_total = (uint64_t)s->n_tokens,
                           .tokens = (uint64_t)(s->n_tokens - p->view.n_tokens), .value = (double)(kv_engine_now_us() - p->view.paused_us)};
    snprintf(r.detail, sizeof r.detail, "resumed after %s, request %llu goes on", kv_pause_action_name(p->view.action), (unsigned long long)p->view.request);
    kv_report_receipt(e, s, KV_RECEIPT_RESUME, KV_OK, r);
    e->live[e->n_live++] = s;
    remove_at(e, find(e->pauses, p->view.request));
}

static void lost(struct kv_engine *e, struct paused *p)
{
    kv_report_failure(e, p->into, KV_CHECKSUM_MISMATCH, "rows that were moved out came back changed; they are computed again");
    kv_cache_truncate(&p->into->cache, e->arena, 0);
    move(e, p, KV_SESSION_TOKEN_ONLY);
    move(e, p, KV_SESSION_RECOMPUTING);
    go_on(e, p);
}

/* One slab; false when p has nothing more to move. */
static bool move_slab(struct kv_engine *e, struct paused *p)
{
    size_t bytes = p->cache.slab_bytes, i = p->moved;
    uint8_t *out = p->swap + i * bytes;
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
    go_on(e, p);
    return false;
}

static bool moves(const struct kv_engine *e, const struct paused *p)
{
    return !p->on_disk && (p->view.state == KV_SESSION_SWAPPING_OUT || (p->view.state == KV_SESSION_SWAPPING_IN && e->n_live < e->config.max_sequences));
}

/* Both directions share the budget; who waits to run comes first. Alone in the engine they need none. */
static void move_some(struct kv_engine *e)
{
    struct kv_pauses *ps = e->pauses;
    int64_t began_ns = kv_now_ns(), budget_ns = e->n_live ? (int64_t)(e->last_iteration_us * 1e3 * moving_share) : 20000000;
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < ps->n; i++) {
            struct paused *p = ps->list[i];
            if (!moves(e, p) || (pass == 0) != (p->view.state == KV_SESSION_SWAPPING_IN)) continue;
            int32_t before = ps->n;
            size_t p_bytes = p->cache.slab_bytes;
            for (bool more = true; more;) {
                more = move_slab(e, p);
                bytes += p_bytes;
                int64_t spent = kv_now_ns() - began_ns;
                if (spent < budget_ns) continue;
                ps->bytes_per_s = 0.8 * ps->bytes_per_s + 0.2 * (double)bytes * 1e9 / (double)spent;
                return;
            }
            if (ps->n < before) i--;
        }
}

/* ---------------------------------------------------------------- pause */

bool kv_pauses_hold(struct kv_engine *e, struct kv_sequence *s, enum kv_pause_action asked)
{
    struct kv_pauses *ps = e->pauses;
    struct paused *p = ps->n < KV_PAUSES_MAX ? calloc(1, sizeof *p) : NULL;
    if (p) p->tokens = malloc((size_t)s->n_tokens * sizeof *p->tokens);
    if (!p || !p->tokens) return free(p), false;
    kv_engine_turn_ends(e, s, KV_FINISH_PAUSED);
    if (s->candidate) kv_scheduler_to_baseline(e, s); /* only exact rows are kept */
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
    p->reserved_bytes = held;
    e->reserved_bytes -= s->reserved_bytes - held;
    s->reserved_bytes = 0;
    pthread_mutex_lock(&e->lock);
    ps->list[ps->n++] = p;
    pthread_mutex_unlock(&e->lock);
    move(e, p, KV_SESSION_QUIESCING);
    apply(e, p, asked == KV_PAUSE_SWAP || asked == KV_PAUSE_DISCARD ? asked : KV_PAUSE_PRESERVE);
    struct kv_pause_costs c;
    struct kv_pause_waste w;
    costs(e, &c);
    kv_pause_waste_of(&c, p->view.rows, 0, &w);
    note_waste(e, p, &c, &w);
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

static enum kv_status pause_live(struct kv_engine *e, const struct want *w)
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
    if (!kv_pauses_hold(e, s, w->action)) return KV_QUEUE_FULL;
    memmove(&e->live[at], &e->live[at + 1], (size_t)(--e->n_live - at) * sizeof *e->live);
    *w->view = e->pauses->list[e->pauses->n - 1]->view;
    return KV_OK;
}

void kv_pauses_begin(struct kv_engine *e)
{
    struct kv_pauses *ps = e->pauses;
    pthread_mutex_lock(&e->lock);
    struct want *wants = ps->wants;
    ps->wants = NULL;
    pthread_mutex_unlock(&e->lock);
    while (wants) {
        struct want *w = wants;
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
        struct paused *p = ps->list[i];
        pthread_mutex_lock(&e->lock);
        bool forget = p->forget;
        pthread_mutex_unlock(&e->lock);
        bool gone = p->into && (atomic_load(&p->into->stream->cancelled) || atomic_load(&e->cancel_all));
        if (gone) kv_scheduler_finish(e, p->into, KV_FINISH_CANCELLED, KV_CANCELLED);
        if (gone || (forget && !p->into)) remove_at(e, i);
    }
    revise(e, kv_engine_now_us());
    move_some(e);
}

bool kv_pauses_busy(const struct kv_engine *e)
{
    const struct kv_pauses *ps = e->pauses;
    bool busy = ps->wants != NULL;
    for (int32_t i = 0; i < ps->n && !busy; i++) busy = moves(e, ps->list[i]) || ps->list[i]->forget;
    return busy;
}

void kv_pauses_spoil(struct kv_engine *e, uint64_t request)
{
    pthread_mutex_lock(&e->lock);
    int32_t i = find(e->pauses, request);
    if (i >= 0 && e->pauses->list[i]->swap) e->pauses->list[i]->swap[e->pauses->list[i]->cache.slab_bytes / 2] ^= 1;
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
    int32_t i = s->resume ? find(e->pauses, s->resume) : -1;
    return i < 0 ? 0 : e->pauses->list[i]->reserved_bytes;
}

/* The blocks change owners; the new table has room for the whole answer. */
static void take_over(struct kv_engine *e, struct paused *p, struct kv_sequence *s)
{
    struct kv_cache *from = &p->cache, *to = &s->cache;
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
    int32_t i = find(e->pauses, s->resume);
    struct paused *p = i < 0 ? NULL : e->pauses->list[i];
    bool same = p && !p->into && !strcmp(p->view.tenant, s->tenant) && s->n_tokens >= p->view.n_tokens && !memcmp(p->tokens, s->tokens, (size_t)p->view.n_tokens * sizeof *s->tokens);
    if (!same) return false; /* of a process before, or of other tokens: everything is computed */
    p->into = s;
    /* A save in flight is brought to its end first: a partial one is never restored. */
    while (p->view.state == KV_SESSION_SWAPPING_OUT && !p->on_disk) move_slab(e, p);
    if (p->on_disk) { /* found, read and verified before its prefill like any session's history; what is still being written is not found */
        if (p->view.state == KV_SESSION_SWAPPING_OUT) move(e, p, KV_SESSION_PAUSED_HOST);
        if (p->view.state == KV_SESSION_PAUSED_HOST) move(e, p, KV_SESSION_SWAPPING_IN);
        else move(e, p, KV_SESSION_RECOMPUTING);
        return go_on(e, p), true;
    }
    if (p->view.state == KV_SESSION_PAUSED_GPU) {
        take_over(e, p, s);
        go_on(e, p);
    } else if (p->view.state == KV_SESSION_PAUSED_HOST && kv_cache_reserve(&s->cache, e->arena, p->view.rows) == KV_OK) {
        p->moved = 0;
        move(e, p, KV_SESSION_SWAPPING_IN);
    } else {
        if (p->view.state != KV_SESSION_TOKEN_ONLY) move(e, p, KV_SESSION_TOKEN_ONLY);
        move(e, p, KV_SESSION_RECOMPUTING);
        go_on(e, p);
    }
    return true;
}

/* ---------------------------------------------------------------- other threads */

enum kv_status kv_engine_pause(struct kv_engine *e, const char *tenant, const char *session, enum kv_pause_action action, struct kv_pause_view *out, struct kv_error *err)
{
    struct want w = {.tenant = tenant, .session = session, .action = action, .view = out};
    if ((unsigned)action >= KV_PAUSE_ACTIONS || !*session) return kv_fail(err, KV_BAD_ARGUMENT, "session", "a pause needs a session and one of the actions auto, preserve, swap and discard");
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PAUSE_TIMEOUT_S;
    pthread_mutex_lock(&e->lock);
    w.next = e->pauses->wants;
    e->pauses->wants = &w;
    pthread_cond_broadcast(&e->wake);
    int rc = 0;
    while (!w.done && rc == 0) rc = pthread_cond_timedwait(&e->wake, &e->lock, &until);
    for (struct want **at = &e->pauses->wants; !w.done && *at; at = &(*at)->next)
        if (*at == &w) { /* the decode thread has not seen it: nothing happened */
            *at = w.next;
            w.done = true;
            w.status = KV_DEADLINE;
            break;
        }
    while (!w.done) pthread_cond_wait(&e->wake, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return w.status == KV_OK ? KV_OK : kv_fail(err, w.status, "session", "session '%s': %s", session, w.status == KV_NOT_FOUND ? "no request of it is running" : kv_status_meaning(w.status));
}

enum kv_status kv_engine_paused(struct kv_engine *e, uint64_t request, struct kv_pause_view *out)
{
    pthread_mutex_lock(&e->lock);
    int32_t i = find(e->pauses, request);
    if (i >= 0) *out = e->pauses->list[i]->view;
    pthread_mutex_unlock(&e->lock);
    return i < 0 ? KV_NOT_FOUND : KV_OK;
}

enum kv_status kv_engine_paused_tokens(struct kv_engine *e, uint64_t request, int32_t *tokens, int32_t cap, int32_t *n)
{
    pthread_mutex_lock(&e->lock);
    int32_t i = find(e->pauses, request);
    *n = i < 0 ? 0 : e->pauses->list[i]->view.n_tokens;
    if (*n && *n <= cap) memcpy(tokens, e->pauses->list[i]->tokens, (size_t)*n * sizeof *tokens);
    pthread_mutex_unlock(&e->lock);
    return i < 0 ? KV_NOT_FOUND : *n > cap ? KV_CAPACITY : KV_OK;
}

int32_t kv_engine_paused_list(struct kv_engine *e, struct kv_pause_view *out, int32_t cap)
{
    pthread_mutex_lock(&e->lock);
    int32_t n = e->pauses->n;
    for (int32_t i = 0; i < n && i < cap; i++) out[i] = e->pauses->list[i]->view;
    pthread_mutex_unlock(&e->lock);
    return n;
}

enum kv_status kv_engine_forget_paused(struct kv_engine *e, uint64_t request)
{
    pthread_mutex_lock(&e->lock);
    int32_t i = find(e->pauses, request);
    if (i >= 0) e->pauses->list[i]->forget = true;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return i < 0 ? KV_NOT_FOUND : KV_OK;
}
