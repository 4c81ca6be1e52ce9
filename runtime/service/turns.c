/* turns.c — the thread that reads and saves, and how the decode thread talks to it. */
#include "runtime/service/turns_records.h"
#include "runtime/service/turns_remote.h"

#include "runtime/residency/lanes.h"
#include "runtime/residency/mover.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CHUNKS = 1 << 20, MIN_CHUNKS = 1024, MAX_PAYLOAD = 256 << 20, SAVE_WINDOW = 8 << 20 }; /* window: bytes between two looks at what else waits */

/* ---------------------------------------------------------------- lists, under the lock */

static void list_init(struct turn_list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void push(struct turn_list *l, struct kv_turn *j)
{
    j->next = NULL;
    *l->tail = j;
    l->tail = &j->next;
}

static bool take_out(struct turn_list *l, struct kv_turn *j)
{
    struct kv_turn **at = &l->head;
    while (*at && *at != j) at = &(*at)->next;
    if (!*at) return false;
    *at = j->next;
    if (l->tail == &j->next) l->tail = at;
    return true;
}

/* ---------------------------------------------------------------- saving: turns thread */

static void note_write(struct kv_turns *t, double bytes, double us)
{
    double rate = bytes * 1e6 / (us > 1 ? us : 1);
    pthread_mutex_lock(&t->lock);
    double *mean = &t->stats.save_bytes_per_second;
    *mean = *mean > 0 ? 0.8 * *mean + 0.2 * rate : rate;
    pthread_mutex_unlock(&t->lock);
}

static enum kv_status save_blocks(struct kv_turns *t, struct kv_turn *j, int32_t n)
{
    double recompute_us = j->us_per_row * KV_BLOCK_ROWS / j->chain.n_layers;
    double began = kv_now_us();
    kv_faults_at_disk(&j->faults);
    enum kv_status s = kv_chain_save(t->directory, &j->chain, j->first, n, &j->own, (struct kv_cache_generation){1}, KV_TIER_DISK, recompute_us);
    kv_faults_at_disk(NULL);
    if (s == KV_OK) note_write(t, (double)n * j->chain.n_layers * (double)t->config.slab_bytes, kv_now_us() - began);
    return s;
}

/* One window more: its blocks share a sync. true: the save is over. */
static bool save_window(struct kv_turns *t, struct kv_turn *j)
{
    int32_t n = kv_turns_blocks_in(SAVE_WINDOW, (uint64_t)j->chain.n_layers * t->config.slab_bytes), most = KV_PUBLISH_MAX / j->chain.n_layers;
    if (n > most) n = most;
    if (n > j->end - j->first) n = j->end - j->first;
    if (n == 0) return true;
    j->status = save_blocks(t, j, n);
    /* Of what does not go in whole, as much as goes block by block. */
    if (j->status != KV_OK && n > 1) j->status = save_blocks(t, j, n = 1);
    if (j->status == KV_OK) j->first += n;
    else j->end = j->first;
    return j->first == j->end;
}

static void finish_save(struct kv_turns *t, struct kv_turn *j)
{
    struct kv_chain used = j->chain;
    used.n_blocks = j->end;
    kv_chain_touch(t->directory, &used);
    int32_t remote = kv_turns_remote_overflow(t, j, j->end, j->asked);
    pthread_mutex_lock(&t->lock);
    t->stats.saves++;
    t->stats.failures += j->status != KV_OK;
    kv_turns_note_failure(t, j->status);
    struct session *s = kv_turns_make(t, j->tenant, j->session, KV_SESSION_SAVING);
    s->info.saves++;
    s->info.failures += j->status != KV_OK;
    s->info.reason = j->status;
    s->info.tokens = j->chain.n_blocks * KV_BLOCK_ROWS;
    kv_turns_keep_chain(t, s, &j->chain, j->end + remote); /* of what is remote too, so that dropping it finds it */
    s->info.blocks = s->info.held_blocks = j->end;
    pthread_mutex_unlock(&t->lock);
    /* Whoever sees the session saved finds it after a restart too. */
    kv_turns_records_sweep(t);
    enum kv_status recorded = kv_turns_record_write(t, s);
    pthread_mutex_lock(&t->lock);
    if (recorded != KV_OK && j->status == KV_OK) { /* one save that failed is one failure */
        s->info.reason = recorded;
        s->info.failures++;
        t->stats.failures++;
        kv_turns_note_failure(t, recorded);
    }
    (void)kv_lifecycle_move(&s->info.state, j->end > 0 ? KV_SESSION_PAUSED_HOST : KV_SESSION_TOKEN_ONLY);
    pthread_mutex_unlock(&t->lock);
}

/* ---------------------------------------------------------------- the thread */

static void publish_stats(struct kv_turns *t)
{
    struct kv_directory_stats d;
    struct kv_disk_stats k;
    kv_directory_stats(t->directory, &d);
    kv_disk_stats(&t->disk, &k);
    pthread_mutex_lock(&t->lock);
    t->tier.used_bytes = k.used_bytes;
    t->tier.scratch_bytes = k.scratch_bytes;
    t->tier.persistent_bytes = d.replica_bytes[KV_TIER_DISK];
    t->tier.bytes_in = d.bytes_added[KV_TIER_DISK];
    t->tier.bytes_out = d.bytes_dropped[KV_TIER_DISK];
    t->stats.saved_bytes = k.bytes_written;
    pthread_mutex_unlock(&t->lock);
}

static void done(struct kv_turns *t, struct kv_turn *j, enum kv_turn_phase phase)
{
    atomic_store(&j->phase, phase);
    t->stats.waiting--;
    pthread_cond_broadcast(&t->answered);
}

/* Under the lock. A session that is dropped before its saves would come back with them; one that is dropped while it is erased elsewhere would be gone
 * before that has failed. */
static bool waits(const struct kv_turns *t, const struct command *c)
{
    const struct command *o = t->command;
    const struct kv_turn *j = t->saves.head;
    if (c->erasing || c->what != KV_SESSION_DROP) return c->erasing;
    while (o && (!o->erasing || strcmp(o->session, c->session) || strcmp(o->tenant, c->tenant))) o = o->next;
    while (j && (strcmp(j->session, c->session) || strcmp(j->tenant, c->tenant))) j = j->next;
    return o || j;
}

/* Under the lock. The oldest command that need not wait; NULL in *at: none. */
static struct command **next_command(struct kv_turns *t)
{
    struct command **at = &t->command;
    while (*at && waits(t, *at)) at = &(*at)->next;
    return at;
}

static void free_turn(struct kv_turns *t, struct kv_turn *j)
{
    kv_turns_fetch_free(t, j->fetch);
    kv_chain_free(&j->chain);
    free(j);
}

/* Under the lock, which is given up while it works. plan: what the remote tier is to be asked for, or NULL. */
static void looked_or_read(struct kv_turns *t, struct kv_turn *j, bool looks, struct kv_fetch *plan)
{
    bool nobody = j->detached;
    if (plan && !nobody) kv_turns_fetch_begin(t, j, plan);
    else done(t, j, looks ? KV_TURN_FOUND : KV_TURN_DONE); /* unless nobody waits, j may be gone from here on */
    if (!nobody) return;
    pthread_mutex_unlock(&t->lock);
    kv_turns_fetch_free(t, plan);
    free_turn(t, j);
    pthread_mutex_lock(&t->lock);
}

/* Under the lock. */
static void command_over(struct kv_turns *t, struct command *c, enum kv_status s, bool again)
{
    if (!again && (c->erasing || c->erased)) {
        c->next = t->command;
        t->command = c;
    } else if (c->detached) {
        free(c);
    } else {
        c->status = s;
        c->done = true;
    }
    pthread_cond_broadcast(&t->answered);
}

/* Under the lock, which is given up while it works. false: nothing to do. */
static bool work(struct kv_turns *t)
{
    struct command **at = next_command(t), *c = *at;
    struct kv_turn *j = c ? NULL : t->reads.head ? t->reads.head : t->ahead.head;
    if (c) {
        *at = c->next;
        pthread_mutex_unlock(&t->lock);
        bool again = c->erased;
        enum kv_status s = kv_turns_run(t, c);
        publish_stats(t);
        pthread_mutex_lock(&t->lock);
        command_over(t, c, s, again);
    } else if (j) {
        take_out(j->ahead ? &t->ahead : &t->reads, j);
        pthread_mutex_unlock(&t->lock);
        bool looks = atomic_load(&j->phase) == KV_TURN_LOOKING;
        struct kv_fetch *plan = looks && !j->fetch ? kv_turns_look_on_disk(t, j) : NULL;
        if (!looks) kv_turns_read_blocks(t, j);
        else if (!plan) kv_turns_looked(t, j);
        publish_stats(t);
        pthread_mutex_lock(&t->lock);
        looked_or_read(t, j, looks, plan);
    } else if ((j = t->saves.head)) {
        pthread_mutex_unlock(&t->lock);
        bool over = save_window(t, j);
        if (over) finish_save(t, j), publish_stats(t);
        pthread_mutex_lock(&t->lock);
        if (!over) return true;
        take_out(&t->saves, j);
        push(&t->saved, j);
        done(t, j, KV_TURN_DONE);
    } else {
        return false;
    }
    pthread_mutex_unlock(&t->lock);
    t->config.event(t->config.event_ctx);
    pthread_mutex_lock(&t->lock);
    return true;
}

static void *run(void *arg)
{
    struct kv_turns *t = arg;
    kv_lanes_give_way();
    pthread_mutex_lock(&t->lock);
    for (;;) {
        bool worked = work(t);
        t->steps++;
        t->hangs = false;
        if (worked) continue;
        if (t->stopping) break;
        pthread_cond_wait(&t->work, &t->lock);
    }
    t->stopped = true;
    pthread_cond_broadcast(&t->answered);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---------------------------------------------------------------- create and destroy */

static void found(void *ctx, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes)
{
    struct kv_turns *t = ctx;
    if (kv_turns_record_found(t, id, b, bytes)) return;
    if (kv_directory_adopt(t->directory, id, KV_TIER_DISK, b, bytes) == KV_OK) return;
    if (t->n_unwanted == t->cap_unwanted) {
        size_t cap = t->cap_unwanted ? t->cap_unwanted * 2 : 64;
        struct kv_block *grown = realloc(t->unwanted, cap * sizeof *grown);
        if (!grown) return; /* it stays on disk, unlisted, until the next start */
        t->unwanted = grown;
        t->cap_unwanted = cap;
    }
    t->unwanted[t->n_unwanted++] = b;
}

static enum kv_status open_tier(struct kv_turns *t, struct kv_error *err)
{
    const struct kv_turns_config *c = &t->config;
    uint64_t chunks = c->capacity_bytes / c->slab_bytes + MIN_CHUNKS;
    struct kv_directory_config d = {.tier = {[KV_TIER_DISK] = &t->disk}, .max_chunks = chunks > MAX_CHUNKS ? MAX_CHUNKS : (uint32_t)chunks, .max_transactions = 1,
                                    .max_payload_bytes = MAX_PAYLOAD, .victim = c->victim};
    enum kv_status s = kv_directory_create(&d, &t->directory);
    if (s != KV_OK) return kv_fail(err, s, "tiers.disk", "no memory for the directory of the disk tier");
    struct kv_disk_config disk = {.path = c->path, .capacity_bytes = c->capacity_bytes, .reserve_bytes = c->reserve_bytes,
                                    .io = c->io, .found = found, .found_ctx = t};
    memcpy(disk.key, c->key, sizeof disk.key);
    s = kv_disk_open(&disk, &t->disk, err);
    for (size_t i = 0; s == KV_OK && i < t->n_unwanted; i++) t->disk.release(t->disk.ctx, t->unwanted[i]);
    free(t->unwanted);
    t->unwanted = NULL;
    if (s == KV_OK && c->remote) s = kv_turns_remote_create(t, err);
    if (s == KV_OK) kv_turns_records_load(t);
    t->tier = (struct kv_tier_stats){.name = "disk", .capacity_bytes = c->capacity_bytes, .capability = &t->disk.capability};
    if (s == KV_OK) publish_stats(t);
    return s;
}

enum kv_status kv_turns_create(const struct kv_turns_config *c, struct kv_turns **out, struct kv_error *err)
{
    *out = NULL;
    struct kv_turns *t = calloc(1, sizeof *t);
    if (!t) return kv_fail(err, KV_OUT_OF_MEMORY, "tiers.disk", "no memory for the disk tier");
    t->config = *c;
    list_init(&t->reads);
    list_init(&t->ahead);
    list_init(&t->saves);
    list_init(&t->saved);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    t->session = calloc(KV_SESSIONS_MAX, sizeof *t->session);
    enum kv_status s = t->session ? open_tier(t, err) : kv_fail(err, KV_OUT_OF_MEMORY, "tiers.disk", "no memory for the sessions");
    if (s == KV_OK) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        t->started = pthread_create(&t->thread, NULL, run, t) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!t->started) s = kv_fail(err, KV_OUT_OF_MEMORY, "tiers.disk", "the transfer thread could not be started");
    }
    if (s == KV_OK) *out = t;
    else kv_turns_destroy(t);
    return s;
}

struct timespec kv_turns_time_in(int32_t ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += ms / 1000;
    at.tv_nsec += ms % 1000 * 1000000;
    if (at.tv_nsec >= 1000000000) at.tv_sec++, at.tv_nsec -= 1000000000;
    return at;
}

bool kv_turns_stop(struct kv_turns *t, int32_t timeout_ms)
{
    if (!t || !t->started) return true;
    struct timespec until = kv_turns_time_in(timeout_ms);
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_broadcast(&t->work);
    while (timeout_ms && !t->stopped && pthread_cond_timedwait(&t->answered, &t->lock, &until) == 0) continue;
    bool hangs = timeout_ms && !t->stopped;
    pthread_mutex_unlock(&t->lock);
    if (hangs) return false;
    pthread_join(t->thread, NULL);
    t->started = false;
    return true;
}

void kv_turns_destroy(struct kv_turns *t)
{
    if (!t) return;
    (void)kv_turns_stop(t, 0);
    kv_turns_remote_destroy(t);
    for (int32_t i = 0; t->session && i < KV_SESSIONS_MAX; i++) {
        if (t->directory) kv_turns_unpin(t, &t->session[i]);
        kv_chain_free(&t->session[i].chain);
    }
    kv_directory_destroy(t->directory);
    if (t->disk.ctx) kv_disk_close(&t->disk);
    free(t->session);
    pthread_cond_destroy(&t->answered);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---------------------------------------------------------------- decode thread */

static struct kv_turn *make_turn(struct kv_turns *t, const char *tenant, const char *session, const int32_t *tokens, int32_t n_tokens, double us_per_row)
{
    struct kv_turn *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    struct kv_chunk_identity base = t->config.base;
    strncpy(j->tenant, tenant, sizeof j->tenant - 1);
    strncpy(j->session, session, sizeof j->session - 1);
    memset(base.tenant, 0, sizeof base.tenant);
    memcpy(base.tenant, j->tenant, sizeof base.tenant < sizeof j->tenant ? sizeof base.tenant : sizeof j->tenant);
    j->us_per_row = us_per_row;
    j->began_us = kv_now_us();
    if (kv_chain_create(&base, tokens, n_tokens, t->config.n_layers, t->config.n_kv_heads, &j->chain) != KV_OK) {
        free(j);
        return NULL;
    }
    if (t->remote) j->chain.leaving = &t->leaving;
    return j;
}

static void hand_over(struct kv_turns *t, struct turn_list *to, struct kv_turn *j, enum kv_turn_phase phase)
{
    pthread_mutex_lock(&t->lock);
    atomic_store(&j->phase, phase);
    push(to, j);
    t->stats.waiting++;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
}

void kv_turns_look_again(struct kv_turns *t, struct kv_turn *j)
{
    push(j->ahead ? &t->ahead : &t->reads, j);
    pthread_cond_broadcast(&t->work);
}

struct kv_turn *kv_turns_look(struct kv_turns *t, const char *tenant, const char *session, const int32_t *tokens, int32_t n_tokens, int32_t first, double us_per_row,
                              enum kv_look look, struct kv_fault_marks faults)
{
    pthread_mutex_lock(&t->lock);
    bool hangs = t->hangs;
    pthread_mutex_unlock(&t->lock);
    struct kv_turn *j = hangs ? NULL : make_turn(t, tenant, session, tokens, n_tokens, us_per_row);
    if (!j) return NULL;
    j->first = first;
    j->faults = faults;
    j->look = look;
    j->ahead = look == KV_LOOK_AHEAD;
    hand_over(t, j->ahead ? &t->ahead : &t->reads, j, KV_TURN_LOOKING);
    return j;
}

void kv_turns_read(struct kv_turns *t, struct kv_turn *j, struct kv_cache *cache)
{
    j->cache = cache;
    j->asked = j->end;
    j->began_us = kv_now_us();
    hand_over(t, j->ahead ? &t->ahead : &t->reads, j, KV_TURN_READING);
}

bool kv_turns_read_over(struct kv_turns *t, struct kv_turn *j)
{
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&j->phase) == KV_TURN_READING) pthread_cond_wait(&t->answered, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return j->status == KV_OK && j->end == j->asked;
}

/* Under the lock: none of the threads works on it. */
static bool take_back(struct kv_turns *t, struct kv_turn *j)
{
    bool back = take_out(&t->reads, j) || take_out(&t->ahead, j);
    if (back) done(t, j, KV_TURN_DONE);
    return back;
}

bool kv_turns_give_up(struct kv_turns *t, struct kv_turn *j)
{
    pthread_mutex_lock(&t->lock);
    bool back = take_back(t, j), asks = j->fetch && !j->fetch->done;
    if (!back) j->detached = !asks && atomic_load(&j->phase) == KV_TURN_LOOKING;
    bool gone = back || j->detached;
    struct session *s = gone && *j->session ? kv_turns_find(t, j->tenant, j->session) : NULL;
    if (s) {
        s->info.failures++;
        s->info.reason = KV_IO_TIMEOUT;
    }
    if (gone) {
        t->hangs = true;
        t->stats.failures++;
        kv_turns_note_failure(t, KV_IO_TIMEOUT);
    }
    pthread_mutex_unlock(&t->lock);
    if (back) free_turn(t, j);
    return gone;
}

void kv_turns_let_go(struct kv_turns *t, struct kv_turn *j)
{
    atomic_store(&j->cancelled, true);
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&j->phase) == KV_TURN_READING && !take_back(t, j)) pthread_cond_wait(&t->answered, &t->lock);
    if (atomic_load(&j->phase) == KV_TURN_LOOKING && !take_back(t, j)) {
        if (kv_turns_fetch_cancel(t, j)) done(t, j, KV_TURN_DONE);
        else j->detached = true; /* a look touches no slab: whoever is at it need not be waited for */
    }
    bool detached = j->detached;
    pthread_mutex_unlock(&t->lock);
    if (!detached) free_turn(t, j);
}

bool kv_turns_save(struct kv_turns *t, const struct kv_turn_rows *r)
{
    struct kv_turn *j = make_turn(t, r->tenant, r->session, r->tokens, r->blocks * KV_BLOCK_ROWS, r->us_per_row);
    if (!j) return false;
    j->end = j->asked = r->blocks;
    j->request = r->request;
    j->credit = r->credit;
    j->own = *r->cache;
    j->faults = r->cache->faults;
    memset(r->cache, 0, sizeof *r->cache);
    hand_over(t, &t->saves, j, KV_TURN_READING);
    return true;
}

struct kv_turn *kv_turns_saved(struct kv_turns *t)
{
    pthread_mutex_lock(&t->lock);
    struct kv_turn *j = t->saved.head;
    if (j) take_out(&t->saved, j);
    pthread_mutex_unlock(&t->lock);
    return j;
}
