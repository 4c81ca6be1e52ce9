/* turns_read.c — what of a history is there, and its rows into the cache. Turns thread, without the lock where nothing else is said. */
#include "runtime/service/turns_remote.h"

#include "runtime/execution/futex.h"
#include "runtime/residency/mover.h"

#include <stdlib.h>
#include <string.h>

enum { READ_WINDOW = 16 << 20 }; /* bytes between two looks at whether it was cancelled */

static bool named(const struct kv_turn *j)
{
    return j->session[0] != 0;
}

/* What the disk has, and what the remote tier is to be asked for. */
struct kv_fetch *kv_turns_look_on_disk(struct kv_turns *t, struct kv_turn *j)
{
    int32_t held = j->held = kv_chain_held(t->directory, &j->chain);
    double rows = (held - j->first) * KV_BLOCK_ROWS, bytes = (double)(held - j->first) * j->chain.n_layers * (double)t->config.slab_bytes;
    j->end = held > j->first ? held : j->first;
    if (j->end > j->first && j->us_per_row > 0 && !j->faults.mask && bytes * t->us_per_byte > rows * j->us_per_row) {
        j->dearer = true;
        j->end = j->first;
        t->us_per_byte *= 0.95; /* one slow read must not rule out reading for ever */
    }
    struct kv_chain used = j->chain;
    used.n_blocks = held;
    kv_chain_touch(t->directory, &used); /* what a request waits for is no victim of the saves before it */
    if (j->ahead) return kv_turns_fetch_plan(t, j, held);
    pthread_mutex_lock(&t->lock);
    t->tier.hits += (uint64_t)(held > j->first ? held - j->first : 0);
    t->tier.misses += (uint64_t)(j->chain.n_blocks - (held > j->first ? held : j->first));
    pthread_mutex_unlock(&t->lock);
    return kv_turns_fetch_plan(t, j, held);
}

/* Both tiers were asked: the session's state follows. */
void kv_turns_looked(struct kv_turns *t, struct kv_turn *j)
{
    if (j->fetch && !j->dearer) {
        bool full = j->ahead && j->fetch->status == KV_CREDIT_PRESSURE; /* what is left is asked for when its turn comes */
        j->fetch_status = full ? KV_OK : j->fetch->status;
        j->fetch_short = !full && j->fetch->first + j->fetch->n < j->fetch->end;
        if (j->fetch->n) j->held = j->end = j->fetch->first + j->fetch->n;
    }
    int32_t held = j->held;
    double rows = (held - j->first) * KV_BLOCK_ROWS;
    pthread_mutex_lock(&t->lock);
    t->stats.failures += j->fetch_status != KV_OK;
    if (j->ahead) {
        pthread_mutex_unlock(&t->lock);
        return;
    }
    t->stats.recomputes += j->dearer;
    if (named(j)) {
        struct session *s = kv_turns_make(t, j->tenant, j->session, held > 0 ? KV_SESSION_PAUSED_HOST : KV_SESSION_PREFILL_NEW_TURN);
        s->info.recomputes += j->dearer;
        s->info.failures += j->fetch_status != KV_OK;
        if (j->fetch_status != KV_OK) s->info.reason = j->fetch_status;
        s->info.recompute_us = rows > 0 ? rows * j->us_per_row : 0;
        if (held > 0 && s->chain.n_blocks == 0) {
            struct kv_chain copy = j->chain;
            copy.prefix = malloc((size_t)held * sizeof *copy.prefix);
            copy.n_blocks = copy.prefix ? held : 0;
            if (copy.prefix) memcpy(copy.prefix, j->chain.prefix, (size_t)held * sizeof *copy.prefix);
            kv_turns_keep_chain(t, s, &copy, copy.n_blocks);
        }
        bool reads = j->end > j->first;
        if (s->info.state == KV_SESSION_PAUSED_HOST) (void)kv_lifecycle_move(&s->info.state, reads ? KV_SESSION_RESTORING : KV_SESSION_TOKEN_ONLY);
        if (!reads && s->info.state == KV_SESSION_TOKEN_ONLY) (void)kv_lifecycle_move(&s->info.state, KV_SESSION_RECOMPUTING);
    }
    pthread_mutex_unlock(&t->lock);
}

/* At least one; windows are bytes, whatever a block weighs. */
int32_t kv_turns_blocks_in(uint64_t window_bytes, uint64_t block_bytes)
{
    uint64_t n = window_bytes / block_bytes;
    return n < 1 ? 1 : n > KV_PUBLISH_MAX ? KV_PUBLISH_MAX : (int32_t)n;
}

/* Under the lock. */
void kv_turns_note_failure(struct kv_turns *t, enum kv_status s)
{
    if (s == KV_OK) return;
    t->tier.failures++;
    t->tier.last_failure = s;
    t->tier.last_failure_us = kv_wall_us();
}

/* The session of a request that still waits: what a look says of one that has its turn. */
static void restore_begins(struct kv_turns *t, struct kv_turn *j)
{
    int32_t near = j->fetch && j->fetch->first < j->end ? j->fetch->first : j->end;
    pthread_mutex_lock(&t->lock);
    t->tier.hits += (uint64_t)(near > j->first ? near - j->first : 0);
    struct session *s = named(j) ? kv_turns_make(t, j->tenant, j->session, KV_SESSION_PAUSED_HOST) : NULL;
    if (s) {
        s->info.recompute_us = (j->end - j->first) * KV_BLOCK_ROWS * j->us_per_row;
        (void)kv_lifecycle_move(&s->info.state, KV_SESSION_RESTORING);
    }
    pthread_mutex_unlock(&t->lock);
}

void kv_turns_read_blocks(struct kv_turns *t, struct kv_turn *j)
{
    double began = kv_now_us();
    if (j->ahead) restore_begins(t, j);
    int32_t window = kv_turns_blocks_in(READ_WINDOW, t->config.slab_bytes);
    kv_faults_at_disk(&j->faults);
    j->chain.faults = &j->faults;
    for (int32_t l = 0; l < j->chain.n_layers && j->end > j->first && !atomic_load(&j->cancelled); l++) {
        int32_t near = j->fetch && j->fetch->first < j->end ? j->fetch->first : j->end; /* those before are on disk */
        for (int32_t b = j->first, whole; b < near && !atomic_load(&j->cancelled); b = whole) {
            int32_t end = near - b > window ? b + window : near;
            enum kv_status s = kv_chain_read_layer(t->directory, &j->chain, l, b, end, j->cache, &whole);
            j->bytes += (uint64_t)(whole - b) * t->config.slab_bytes;
            if (s == KV_OK) continue;
            j->status = s;
            j->end = near = whole;
        }
        if (j->fetch) kv_turns_fetch_copy(t, j, l);
        atomic_store(&j->ready, j->status == KV_OK ? (uint32_t)l + 1 : KV_ARRIVAL_FAILED);
        kv_futex_wake(&j->ready);
        if (l + 1 < j->chain.n_layers) t->config.event(t->config.event_ctx);
    }
    kv_faults_at_disk(NULL);
    if (atomic_load(&j->ready) < (uint32_t)j->chain.n_layers) j->end = j->first; /* cancelled: nobody will use them */
    j->took_us = kv_now_us() - began;
    if (j->bytes) {
        double each = j->took_us / (double)j->bytes;
        t->us_per_byte = t->us_per_byte > 0 ? 0.7 * t->us_per_byte + 0.3 * each : each;
    }
    if (j->fetch && j->end > j->fetch->first) {
        j->fetched = j->end - (j->fetch->first > j->first ? j->fetch->first : j->first);
        j->bytes += (uint64_t)j->fetched * j->fetch->block_bytes;
    }
    struct kv_chain used = j->chain;
    used.n_blocks = j->end;
    kv_chain_touch(t->directory, &used);
    int32_t tokens = (j->end - j->first) * KV_BLOCK_ROWS;
    pthread_mutex_lock(&t->lock);
    t->stats.restores += tokens > 0;
    t->stats.restored_tokens += (uint64_t)tokens;
    t->stats.restored_bytes += j->bytes;
    t->stats.prefetches += j->ahead && tokens > 0;
    t->stats.prefetched_bytes += j->ahead ? j->bytes : 0;
    t->stats.failures += j->status != KV_OK;
    t->stats.restore_bytes_per_second = t->us_per_byte > 0 ? 1e6 / t->us_per_byte : 0;
    kv_turns_note_failure(t, j->status);
    struct session *s = named(j) ? kv_turns_find(t, j->tenant, j->session) : NULL;
    if (s) {
        s->info.restores += tokens > 0;
        s->info.restored_tokens = tokens;
        s->info.restore_us = j->took_us;
        s->info.failures += j->status != KV_OK;
        s->info.reason = j->status ? j->status : j->fetch_status;
        if (tokens > 0) (void)kv_lifecycle_move(&s->info.state, KV_SESSION_RESUME_READY);
        else if (kv_lifecycle_move(&s->info.state, KV_SESSION_TOKEN_ONLY) == KV_OK) (void)kv_lifecycle_move(&s->info.state, KV_SESSION_RECOMPUTING);
    }
    pthread_mutex_unlock(&t->lock);
}
