/* engine_turns.c — a turn finds rows of its history on disk before it prefills, and leaves its own there when it ends. */
#include "runtime/service/engine.h"

#include "runtime/execution/arriving.h"
#include "runtime/residency/mover.h"

#include <stdio.h>
#include <string.h>

enum { SAVING_PART = 4 }; /* of host memory that saves may hold */
#define LOOK_LEAST_US 2e6 /* a look asks memory: slower is a disk that hangs or a machine with much to do */
#define LOOK_MOST_US 5e6

static void on_event(void *ctx)
{
    struct kv_engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    e->turn_event = true;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

enum kv_status kv_engine_turns_create(struct kv_engine *e, struct kv_error *err)
{
    const struct kv_engine_config *c = &e->config;
    struct kv_turns_config t = {.base = e->prefix_base, .n_layers = e->weights->n_layers, .n_kv_heads = e->weights->n_kv_heads,
                                .slab_bytes = kv_slab_bytes(KV_ROW_TYPE, e->weights->n_kv_heads, e->weights->d_head), .path = c->disk_path,
                                .capacity_bytes = c->disk_bytes, .reserve_bytes = c->disk_reserve_bytes, .io = c->faults ? &kv_disk_io_faulty : c->disk_io, .victim = KV_VICTIM_LRU,
                                .event = on_event, .event_ctx = e, .remote = c->remote, .remote_bytes = c->remote_bytes, .remote_timeout_ms = c->remote_timeout_ms,
                                .remote_pause_ms = c->remote_pause_ms};
    if (!c->disk_path || !*c->disk_path) return KV_OK;
    memcpy(t.key, c->disk_key, sizeof t.key);
    if (c->eviction)
        for (t.victim = 0; t.victim < KV_VICTIMS && strcmp(kv_victim_name(t.victim), c->eviction); t.victim++) continue;
    if (t.victim == KV_VICTIMS) return kv_fail(err, KV_BAD_ARGUMENT, "tiers.eviction", "no eviction policy '%s'; fifo, lru, lfu and value are there", c->eviction);
    return kv_turns_create(&t, &e->turns, err);
}

/* ---------------------------------------------------------------- before the prefill */

static void leave(struct kv_engine *e, struct kv_sequence *s)
{
    s->cache.arrived = NULL;
    s->arriving = false;
    if (s->resume) kv_engine_give_move_credits(e, s->id, &s->turn->credit);
    kv_turns_let_go(e->turns, s->turn);
    s->turn = NULL;
    s->turn_over = true;
}

static bool look(struct kv_engine *e, struct kv_sequence *s)
{
    int32_t first = s->cache.n_rows / KV_BLOCK_ROWS, end = kv_engine_prefix_limit(s) / KV_BLOCK_ROWS;
    s->turn_over = true;
    if (*s->session && end > 0 && end <= first && !s->recomputing) kv_turns_in_memory(e->turns, s->tenant, s->session);
    if (s->observe_prompt || s->recomputing || s->cache.n_rows % KV_BLOCK_ROWS || end <= first) return false;
    s->turn = kv_turns_look(e->turns, s->tenant, s->session, s->tokens, end * KV_BLOCK_ROWS, first, e->us_per_row, s->ahead_short ? KV_LOOK_DISK : KV_LOOK_ALL, s->cache.faults);
    s->turn_over = s->turn == NULL;
    return s->turn != NULL;
}

const char *kv_turn_source(const struct kv_turn *t)
{
    return !t->fetched ? "disk" : t->fetched < t->end - t->first ? "disk and remote tier" : "the remote tier";
}

static void arrived(struct kv_engine *e, struct kv_sequence *s)
{
    const struct kv_turn *t = s->turn;
    int32_t rows = (t->end - t->first) * KV_BLOCK_ROWS;
    if (!s->arriving || t->status != KV_OK) {
        s->cache.n_rows = t->end * KV_BLOCK_ROWS;
        kv_cache_truncate(&s->cache, e->arena, s->cache.n_rows); /* what could not be read goes back and is computed */
    }
    s->n_reused += rows;
    e->stats.reused_tokens += (uint64_t)rows;
    kv_engine_offer_prefix(e, s);
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = t->first * KV_BLOCK_ROWS, .bytes = t->bytes, .rows = (uint64_t)rows,
                           .rows_total = (uint64_t)s->n_prompt, .value = t->took_us};
    snprintf(r.detail, sizeof r.detail, "restored from %s, %.0f us of it waited for by a step", kv_turn_source(t), s->cache.arrival_wait_us);
    kv_report_receipt(e, s, KV_RECEIPT_TRANSFER, t->status, r);
    if (t->status != KV_OK) kv_report_failure(e, s, t->status, "saved rows could not be read; they are computed again");
    kv_turns_arrived(e->turns, s->tenant, s->session, s->arriving, s->cache.arrival_wait_us);
}

/* A step may start before its history is there: when no layer is expected to be waited for, or all are there. With T_load and T_pref a layer's
 * read and compute, that is after max(0, L T_load − (L − 1) T_pref), the read buffer of contract §5 as time. */
static bool starts(struct kv_engine *e, struct kv_sequence *s)
{
    struct kv_turn *t = s->turn;
    uint32_t ready = atomic_load(&t->ready);
    if (s->arriving) return ready != KV_ARRIVAL_FAILED;
    if (ready == 0 || ready == KV_ARRIVAL_FAILED || e->us_per_row <= 0) return false;
    int32_t rows = s->n_tokens - t->asked * KV_BLOCK_ROWS, layers = e->weights->n_layers;
    if (rows > e->config.prefill_chunk) rows = e->config.prefill_chunk;
    double elapsed_us = kv_now_us() - t->began_us, load_us = elapsed_us / ready, compute_us = e->us_per_row * rows / layers;
    if (elapsed_us < layers * load_us - (layers - 1) * compute_us) return false;
    s->arriving = true;
    s->cache.n_rows = t->asked * KV_BLOCK_ROWS;
    s->cache.arrived = &t->ready;
    s->cache.arrival_wait_us = 0;
    return true;
}

/* Rows that come back from a swap hold credits while they do; those of who moves all its rows in every step do already. PRESSURE: not yet. */
static enum kv_status may_read(struct kv_engine *e, struct kv_sequence *s, uint64_t bytes)
{
    if (!s->resume || s->credit.generation) return KV_OK;
    uint64_t returns = kv_credits_returns(e->credits);
    if (s->credits_tried == returns + 1) return KV_CREDIT_PRESSURE;
    s->credits_tried = returns + 1;
    return kv_engine_take_move_credits(e, s->id, "swap-in", bytes, &s->turn->credit);
}

/* true: the read has begun, or waits for its credits. */
static bool begin_read(struct kv_engine *e, struct kv_sequence *s)
{
    struct kv_turn *t = s->turn;
    int32_t blocks = t->end - t->first;
    enum kv_status credit = blocks > 0 ? may_read(e, s, (uint64_t)blocks * (uint64_t)e->weights->n_layers * s->cache.slab_bytes) : KV_OK;
    if (credit == KV_CREDIT_PRESSURE) return true;
    if (t->fetch_status != KV_OK) kv_report_failure(e, s, t->fetch_status, KV_NOT_FETCHED);
    /* Written whole before anybody reads them: what was there before need not go first. */
    if (blocks <= 0 || credit != KV_OK || kv_engine_reserve_raw(e, s, blocks * KV_BLOCK_ROWS) != KV_OK) return false;
    kv_turns_read(e->turns, t, &s->cache);
    return true;
}

/* What computing the rows takes is what waiting for them may. */
bool kv_engine_turn_given_up(struct kv_engine *e, struct kv_sequence *s, struct kv_turn *t)
{
    double patience = (t->chain.n_blocks - t->first) * KV_BLOCK_ROWS * t->us_per_row;
    patience = patience < LOOK_LEAST_US ? LOOK_LEAST_US : patience > LOOK_MOST_US ? LOOK_MOST_US : patience;
    if (kv_now_us() - t->began_us < patience || !kv_turns_give_up(e->turns, t)) return false;
    kv_report_failure(e, s, KV_IO_TIMEOUT, "the disk tier did not say in time what it has; the rows are computed");
    return true;
}

/* Its turn is gone: what it would have read is computed. */
static bool computes(struct kv_engine *e, struct kv_sequence *s)
{
    struct kv_credit_ticket credit = s->turn->credit;
    if (s->arriving || !kv_engine_turn_given_up(e, s, s->turn)) return false;
    if (s->resume) kv_engine_give_move_credits(e, s->id, &credit);
    kv_cache_truncate(&s->cache, e->arena, s->cache.n_rows);
    s->turn = NULL;
    s->turn_over = true;
    return true;
}

bool kv_engine_turn_waits(struct kv_engine *e, struct kv_sequence *s)
{
    if (!e->turns || s->turn_over) return false;
    if (!s->turn && kv_engine_prefetches(e, s)) return true;
    if (!s->turn) return look(e, s);
    switch ((enum kv_turn_phase)atomic_load(&s->turn->phase)) {
    case KV_TURN_LOOKING: return !computes(e, s);
    case KV_TURN_READING: return !starts(e, s) && !computes(e, s);
    case KV_TURN_FOUND:
        if (begin_read(e, s)) return true;
        break;
    case KV_TURN_DONE: arrived(e, s); break;
    }
    leave(e, s);
    return false;
}

/* ---------------------------------------------------------------- while it runs and when it ends */

void kv_engine_turn_runs(struct kv_engine *e, struct kv_sequence *s)
{
    if (!e->turns || !*s->session || s->turn_runs || !s->first_us) return;
    s->turn_runs = true;
    for (enum kv_session_state to = KV_SESSION_RESUME_READY;; to = to == KV_SESSION_RESUME_READY ? KV_SESSION_PREFILL_NEW_TURN : KV_SESSION_RUNNING) {
        kv_turns_note(e->turns, s->tenant, s->session, to);
        if (to == KV_SESSION_RUNNING) return;
    }
}

void kv_engine_turn_ends(struct kv_engine *e, struct kv_sequence *s, enum kv_finish finish)
{
    if (!e->turns) return;
    /* Its last layer was used; the turns thread may not have come to say so. */
    uint32_t ready = s->arriving ? atomic_load(&s->turn->ready) : KV_ARRIVAL_FAILED;
    if (ready != KV_ARRIVAL_FAILED && ready >= (uint32_t)e->weights->n_layers && kv_turns_read_over(e->turns, s->turn)) arrived(e, s);
    if (s->turn) leave(e, s);
    kv_engine_turn_runs(e, s);
    if (!*s->session || s->dropped || (finish != KV_FINISH_STOP && finish != KV_FINISH_LENGTH)) return;
    int32_t exact = s->frontier < s->cache.n_rows ? s->frontier : s->cache.n_rows, blocks = exact / KV_BLOCK_ROWS;
    kv_turns_note(e->turns, s->tenant, s->session, KV_SESSION_QUIESCING);
    kv_turns_note(e->turns, s->tenant, s->session, blocks ? KV_SESSION_SAVING : KV_SESSION_TOKEN_ONLY);
    if (!blocks) return;
    uint64_t bytes = (uint64_t)blocks * (uint64_t)e->weights->n_layers * s->cache.slab_bytes;
    /* A disk that cannot keep up costs history, never room for requests. */
    if (e->saving_bytes && e->saving_bytes + bytes > kv_arena_capacity_bytes(e->arena) / SAVING_PART) {
        kv_report_failure(e, s, KV_CREDIT_PRESSURE, "the disk tier is behind with saving; this turn is not kept");
        kv_turns_note(e->turns, s->tenant, s->session, KV_SESSION_TOKEN_ONLY);
        return;
    }
    kv_cache_truncate(&s->cache, e->arena, blocks * KV_BLOCK_ROWS);
    struct kv_turn_rows rows = {.tenant = s->tenant, .session = s->session, .request = s->id, .tokens = s->tokens, .cache = &s->cache, .blocks = blocks, .us_per_row = e->us_per_row};
    if (kv_turns_save(e->turns, &rows)) e->reserved_bytes += bytes, e->saving_bytes += bytes;
    else kv_turns_note(e->turns, s->tenant, s->session, KV_SESSION_TOKEN_ONLY);
}

void kv_engine_turn_stepped(struct kv_step_item *it)
{
    struct kv_sequence *s = it->owner;
    if (s->arriving && atomic_load(&s->turn->ready) == KV_ARRIVAL_FAILED) atomic_fetch_or(&s->verdict, KV_STEP_POSTPONE);
}

static void report_unsaved(struct kv_engine *e, const struct kv_turn *t)
{
    struct kv_receipt r = {.layer = -1, .kv_head = -1, .q_head = -1, .position = t->end * KV_BLOCK_ROWS};
    memcpy(r.tenant, t->tenant, sizeof r.tenant);
    memcpy(r.session, t->session, sizeof r.session);
    snprintf(r.detail, sizeof r.detail, "a turn could not be saved whole; its history will be computed again");
    kv_report_receipt(e, NULL, KV_RECEIPT_FAILURE, t->status, r);
    kv_report_sample(e, &(struct kv_sample){.kind = KV_SAMPLE_FAILURE, .layer = -1, .kv_head = -1, .status = t->status});
}

static void give_back(struct kv_engine *e)
{
    for (struct kv_turn *t; (t = kv_turns_saved(e->turns));) {
        uint64_t bytes = (uint64_t)t->own.n_blocks * (uint64_t)e->weights->n_layers * t->own.slab_bytes;
        e->reserved_bytes -= bytes;
        e->saving_bytes -= bytes;
        if (t->status != KV_OK) report_unsaved(e, t);
        if (t->credit.generation) kv_engine_give_move_credits(e, t->request, &t->credit);
        kv_pauses_saved(e, t);
        kv_cache_free(&t->own, e->arena);
        kv_turns_let_go(e->turns, t);
    }
}

void kv_engine_turns_collect(struct kv_engine *e)
{
    if (!e->turns) return;
    pthread_mutex_lock(&e->lock);
    bool event = e->turn_event;
    e->turn_event = false;
    pthread_mutex_unlock(&e->lock);
    if (!event) return;
    give_back(e);
    for (int32_t i = 0; i < e->n_live; i++) {
        struct kv_sequence *s = e->live[i];
        if (!s->arriving || atomic_load(&s->turn->phase) != KV_TURN_DONE) continue;
        arrived(e, s);
        leave(e, s);
    }
}

bool kv_engine_turns_destroy(struct kv_engine *e)
{
    if (!e->turns) return true;
    bool over = kv_turns_stop(e->turns, e->stop_ms);
    give_back(e);
    if (over) kv_turns_destroy(e->turns);
    return over;
}

/* ---------------------------------------------------------------- any thread */

int32_t kv_engine_sessions(const struct kv_engine *e, struct kv_session_info *out, int32_t cap)
{
    return e->turns ? kv_turns_sessions(e->turns, out, cap) : 0;
}

enum kv_status kv_engine_session(struct kv_engine *e, enum kv_session_command what, const char *tenant, const char *session, struct kv_session_info *out, struct kv_error *err)
{
    if (!e->turns && what == KV_SESSION_DROP) {
        kv_engine_forget_session(e, tenant, session, false);
        if (out) *out = (struct kv_session_info){0};
        return KV_OK;
    }
    if (!e->turns) {
        kv_fail(err, KV_UNSUPPORTED, "tiers.disk.path", "sessions are kept on disk, and no disk tier is configured");
        kv_hint(err, "set tiers.disk.path");
        return KV_UNSUPPORTED;
    }
    if (what == KV_SESSION_DROP) kv_engine_forget_session(e, tenant, session, false); /* before the disk: what runs leaves nothing behind there */
    enum kv_status s = kv_turns_command(e->turns, what, tenant, session, out);
    if (what == KV_SESSION_DROP) kv_engine_forget_session(e, tenant, session, s == KV_CONFLICT); /* after it: nothing comes back from there */
    if (s == KV_OK) return s;
    if (s == KV_NOT_FOUND) {
        kv_fail(err, s, "session", "nothing of session %.63s of tenant %.63s is kept on disk", session, tenant);
        kv_hint(err, "what is kept are whole blocks of %d tokens that were computed exactly", KV_BLOCK_ROWS);
        return s;
    }
    if (s == KV_UNAUTHENTICATED || s == KV_FORBIDDEN || s == KV_RATE_LIMITED) { /* the store said so to this process, not this process to the caller */
        kv_fail(err, KV_REMOTE_UNAVAILABLE, "tiers.remote", "the remote tier answers %s, and what it has of session %.63s could not be erased", kv_status_name(s), session);
        kv_hint(err, "its blocks are gone from disk; see tiers.remote.token_file, and drop it again");
        return KV_REMOTE_UNAVAILABLE;
    }
    if (s == KV_REMOTE_TIMEOUT || s == KV_REMOTE_UNAVAILABLE) {
        kv_fail(err, s, "tiers.remote", "what the remote tier has of session %.63s could not be erased", session);
        kv_hint(err, "its blocks are gone from disk; drop it again once the remote tier answers");
        return s;
    }
    if (s == KV_CONFLICT) return kv_fail(err, s, "session", "session %.63s is pinned or its blocks are being read", session);
    return kv_fail(err, s, "session", "session %.63s could not be changed", session);
}
