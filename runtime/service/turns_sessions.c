/* turns_sessions.c — the table of sessions: states, and what operators ask and order. */
#include "runtime/service/turns_records.h"
#include "runtime/service/turns_remote.h"

#include "runtime/residency/mover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 10000, HUNG_MS = 100 }; /* without a step of the turns thread; once it was seen to hang */

static bool used(const struct session *s)
{
    return s->info.session[0] != 0;
}

static void now_used(struct kv_turns *t, struct session *s)
{
    s->used = ++t->clock;
    s->info.used_us = kv_wall_us();
}

struct session *kv_turns_find(struct kv_turns *t, const char *tenant, const char *session)
{
    for (int32_t i = 0; i < KV_SESSIONS_MAX; i++)
        if (used(&t->session[i]) && !strcmp(t->session[i].info.session, session) && !strcmp(t->session[i].info.tenant, tenant)) return &t->session[i];
    return NULL;
}

struct session *kv_turns_make(struct kv_turns *t, const char *tenant, const char *session, enum kv_session_state first)
{
    struct session *s = kv_turns_find(t, tenant, session), *oldest = NULL;
    if (s) return now_used(t, s), s;
    for (int32_t i = 0; i < KV_SESSIONS_MAX; i++) {
        struct session *o = &t->session[i];
        if (!used(o)) {
            s = o;
            break;
        }
        /* Were all pinned, the oldest pin would have to go. */
        if (!oldest || o->info.pinned < oldest->info.pinned || (o->info.pinned == oldest->info.pinned && o->used < oldest->used)) oldest = o;
    }
    if (!s) {
        s = oldest;
        kv_turns_unpin(t, s);
        kv_turns_record_release(t, s);
        kv_chain_free(&s->chain);
        t->stats.sessions--;
    }
    *s = (struct session){.info.state = first};
    strncpy(s->info.tenant, tenant, sizeof s->info.tenant - 1);
    strncpy(s->info.session, session, sizeof s->info.session - 1);
    t->stats.sessions++;
    now_used(t, s);
    return s;
}

/* ---------------------------------------------------------------- pins: leases on every chunk; turns thread */

void kv_turns_unpin(struct kv_turns *t, struct session *s)
{
    for (int32_t i = 0; i < s->n_leases; i++) (void)kv_directory_release(t->directory, &s->lease[i]);
    free(s->lease);
    s->lease = NULL;
    s->n_leases = 0;
    s->info.pinned = false;
}

enum kv_status kv_turns_pin(struct kv_turns *t, struct session *s)
{
    size_t n = (size_t)s->chain.n_blocks * (size_t)t->config.n_layers;
    kv_turns_unpin(t, s);
    s->lease = malloc((n + 1) * sizeof *s->lease);
    if (!s->lease) return KV_OUT_OF_MEMORY;
    for (int32_t b = 0; b < s->chain.n_blocks; b++)
        for (int32_t l = 0; l < t->config.n_layers; l++) {
            struct kv_chunk_identity id = kv_chain_chunk(&s->chain, l, b);
            if (kv_directory_nearest(t->directory, &id) < 0) continue; /* it went already */
            if (kv_directory_lookup(t->directory, &id, KV_TIER_DISK, &s->lease[s->n_leases]) == KV_ANSWER_READY) s->n_leases++;
        }
    s->info.pinned = true;
    return KV_OK;
}

void kv_turns_keep_chain(struct kv_turns *t, struct session *s, struct kv_chain *chain, int32_t blocks)
{
    bool pinned = s->info.pinned;
    kv_turns_unpin(t, s);
    kv_chain_free(&s->chain);
    s->chain = *chain;
    s->chain.n_blocks = blocks;
    *chain = (struct kv_chain){0};
    s->info.blocks = s->info.held_blocks = blocks;
    s->info.bytes = (uint64_t)blocks * (uint64_t)t->config.n_layers * t->config.slab_bytes;
    if (pinned) (void)kv_turns_pin(t, s); /* without memory the pin is lost, and shown as such */
}

/* ---------------------------------------------------------------- commands: turns thread, without the lock */

static bool names(const struct session *o, const struct session *s, int32_t block)
{
    return o != s && used(o) && block < o->chain.n_blocks && !strcmp(o->info.tenant, s->info.tenant) &&
           !memcmp(o->chain.prefix[block].b, s->chain.prefix[block].b, sizeof s->chain.prefix[block].b);
}

/* From the end, so that what is left of a failed deletion is still a beginning. Blocks that another session names stay with it; gone: [n_blocks] the others. */
static enum kv_status drop_local(struct kv_turns *t, struct session *s, struct kv_chunk_identity *gone, int32_t *n_gone)
{
    for (int32_t b = s->chain.n_blocks - 1; b >= 0; b--) {
        bool shared = false;
        for (int32_t i = 0; i < KV_SESSIONS_MAX && !shared; i++) shared = names(&t->session[i], s, b);
        for (int32_t l = 0; l < t->config.n_layers && !shared; l++) {
            struct kv_chunk_identity id = kv_chain_chunk(&s->chain, l, b);
            enum kv_status r = kv_directory_remove(t->directory, &id);
            if (r != KV_OK && r != KV_NOT_FOUND) return r;
            if (gone && l == 0) gone[(*n_gone)++] = id;
        }
        s->chain.n_blocks = b;
    }
    return KV_OK;
}

/* First what lies here, then, by the command's second run, what the remote tier has: nothing can leave for it any more. A session whose remote blocks
 * could not be erased stays, to be dropped again; one that has a new turn by then stays with that. */
static enum kv_status drop(struct kv_turns *t, struct session *s, struct command *c, bool *asked)
{
    if (c->erased) {
        if (c->status != KV_OK && s->chain.n_blocks == 0) s->chain.n_blocks = c->n_blocks;
        return c->status;
    }
    if (s->info.pinned) return KV_CONFLICT;
    struct kv_chunk_identity *gone = t->remote ? malloc(((size_t)s->chain.n_blocks + 1) * sizeof *gone) : NULL;
    int32_t n_gone = 0, n_blocks = s->chain.n_blocks;
    if (t->remote && !gone) return KV_OUT_OF_MEMORY;
    enum kv_status r = drop_local(t, s, gone, &n_gone);
    if (r != KV_OK || n_gone == 0) {
        free(gone);
        if (t->remote && r != KV_OK) s->chain.n_blocks = n_blocks; /* what went here may lie there still, and is asked for when it is dropped again */
        return r;
    }
    c->n_blocks = n_blocks;
    pthread_mutex_lock(&t->lock);
    r = kv_turns_remote_erase(t, gone, n_gone, c);
    pthread_mutex_unlock(&t->lock);
    *asked = r == KV_OK;
    if (!*asked) s->chain.n_blocks = n_blocks;
    return r;
}

static enum kv_status apply_pin(struct kv_turns *t, struct session *s, bool pinned)
{
    enum kv_status r = KV_OK;
    pthread_mutex_lock(&t->lock);
    if (pinned) r = kv_turns_pin(t, s);
    else kv_turns_unpin(t, s);
    pthread_mutex_unlock(&t->lock);
    return r;
}

/* OK: it will still be so after a restart; else it is as before. */
static enum kv_status set_pin(struct kv_turns *t, struct session *s, bool pinned)
{
    bool before = s->info.pinned;
    enum kv_status r = apply_pin(t, s, pinned);
    if (r == KV_OK && before != pinned) r = kv_turns_record_write(t, s);
    if (r != KV_OK) (void)apply_pin(t, s, before);
    return r;
}

static void show(struct kv_turns *t, struct command *c, struct session *s)
{
    pthread_mutex_lock(&t->lock);
    if (c->what == KV_SESSION_SHOW) s->info.held_blocks = kv_chain_held(t->directory, &s->chain);
    c->info = s->info;
    pthread_mutex_unlock(&t->lock);
}

/* The chains and leases are this thread's alone; what others read of a session changes under the lock. */
enum kv_status kv_turns_run(struct kv_turns *t, struct command *c)
{
    pthread_mutex_lock(&t->lock);
    struct session *s = kv_turns_find(t, c->tenant, c->session);
    pthread_mutex_unlock(&t->lock);
    enum kv_status r = KV_OK;
    bool again = c->erased, asked = false;
    if (!s) return again ? c->status : KV_NOT_FOUND;
    if (c->what == KV_SESSION_PIN || c->what == KV_SESSION_UNPIN) r = set_pin(t, s, c->what == KV_SESSION_PIN);
    if (!again) show(t, c, s);
    if (c->what != KV_SESSION_DROP) return r;
    r = drop(t, s, c, &asked);
    if (asked || (again && s->chain.n_blocks)) return r;
    if (r == KV_OK) r = kv_turns_record_erase(t, s);
    pthread_mutex_lock(&t->lock);
    s->info.blocks = s->chain.n_blocks;
    s->info.held_blocks = kv_chain_held(t->directory, &s->chain);
    s->info.bytes = (uint64_t)s->chain.n_blocks * (uint64_t)t->config.n_layers * t->config.slab_bytes;
    if (r == KV_OK) {
        kv_chain_free(&s->chain);
        *s = (struct session){0};
        t->stats.sessions--;
    }
    pthread_mutex_unlock(&t->lock);
    return r;
}

/* ---------------------------------------------------------------- any thread */

/* Under the lock. false: the disk hangs, and the command is gone or the turns thread's. */
static bool await(struct kv_turns *t, struct command *c)
{
    uint64_t seen = t->steps;
    struct timespec until = kv_turns_time_in(t->hangs ? HUNG_MS : PATIENCE_MS);
    while (!c->done) {
        if (pthread_cond_timedwait(&t->answered, &t->lock, &until) == 0) continue;
        if (c->done) break;
        if (c->erasing || t->steps != seen) { /* the remote tier's patience is bounded elsewhere */
            seen = t->steps;
            until = kv_turns_time_in(PATIENCE_MS);
            continue;
        }
        struct command **at = &t->command;
        while (*at && *at != c) at = &(*at)->next;
        if (*at) *at = c->next, free(c);
        else c->detached = true;
        kv_turns_note_failure(t, KV_IO_TIMEOUT);
        return false;
    }
    return true;
}

enum kv_status kv_turns_command(struct kv_turns *t, enum kv_session_command what, const char *tenant, const char *session, struct kv_session_info *info)
{
    struct command *c = calloc(1, sizeof *c);
    if (!c) return KV_OUT_OF_MEMORY;
    c->what = what;
    snprintf(c->tenant, sizeof c->tenant, "%s", tenant);
    snprintf(c->session, sizeof c->session, "%s", session);
    pthread_mutex_lock(&t->lock);
    struct command **at = &t->command;
    while (*at) at = &(*at)->next;
    *at = c;
    pthread_cond_broadcast(&t->work);
    bool over = await(t, c);
    enum kv_status s = over ? c->status : KV_IO_TIMEOUT;
    if (over && info) *info = c->info;
    if (over) free(c);
    pthread_mutex_unlock(&t->lock);
    return s;
}

void kv_turns_note(struct kv_turns *t, const char *tenant, const char *session, enum kv_session_state state)
{
    pthread_mutex_lock(&t->lock);
    struct session *s = kv_turns_find(t, tenant, session);
    if (s) {
        bool moved = kv_lifecycle_move(&s->info.state, state) == KV_OK, passed = state == KV_SESSION_RESUME_READY || state == KV_SESSION_PREFILL_NEW_TURN;
        s->info.turns += state == KV_SESSION_QUIESCING;
        t->stats.illegal_moves += !moved && !passed;
        if (moved) now_used(t, s);
    }
    pthread_mutex_unlock(&t->lock);
}

void kv_turns_in_memory(struct kv_turns *t, const char *tenant, const char *session)
{
    pthread_mutex_lock(&t->lock);
    struct session *s = kv_turns_find(t, tenant, session);
    if (s && kv_lifecycle_move(&s->info.state, KV_SESSION_RESTORING) == KV_OK) {
        (void)kv_lifecycle_move(&s->info.state, KV_SESSION_RESUME_READY);
        now_used(t, s);
    }
    pthread_mutex_unlock(&t->lock);
}

void kv_turns_arrived(struct kv_turns *t, const char *tenant, const char *session, bool overlapped, double waited_us)
{
    pthread_mutex_lock(&t->lock);
    t->stats.overlapped += overlapped;
    t->stats.restore_wait_us += waited_us;
    struct session *s = session[0] ? kv_turns_find(t, tenant, session) : NULL;
    if (s) {
        s->info.restore_wait_us = waited_us;
        (void)kv_lifecycle_move(&s->info.state, KV_SESSION_PREFILL_NEW_TURN);
    }
    pthread_mutex_unlock(&t->lock);
}

static int by_use(const void *a, const void *b)
{
    int64_t x = (*(const struct session *const *)a)->used, y = (*(const struct session *const *)b)->used;
    return x < y ? 1 : x > y ? -1 : 0;
}

int32_t kv_turns_sessions(struct kv_turns *t, struct kv_session_info *out, int32_t cap)
{
    const struct session *known[KV_SESSIONS_MAX];
    int32_t n = 0;
    pthread_mutex_lock(&t->lock);
    for (int32_t i = 0; i < KV_SESSIONS_MAX; i++)
        if (used(&t->session[i])) known[n++] = &t->session[i];
    qsort(known, (size_t)n, sizeof known[0], by_use); /* not by the wall clock, which may have been set meanwhile */
    if (n > cap) n = cap;
    for (int32_t i = 0; i < n; i++) out[i] = known[i]->info;
    pthread_mutex_unlock(&t->lock);
    return n;
}

void kv_turns_stats(struct kv_turns *t, struct kv_tier_stats *disk, struct kv_tier_stats *remote, struct kv_turn_stats *out)
{
    *remote = (struct kv_tier_stats){0};
    if (t->remote) kv_turns_remote_stats(t, remote);
    pthread_mutex_lock(&t->lock);
    *disk = t->tier;
    disk->transfers_in_flight = (uint64_t)t->stats.waiting;
    *out = t->stats;
    pthread_mutex_unlock(&t->lock);
}
