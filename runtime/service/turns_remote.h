/* turns_remote.h — blocks that leave the disk go to the remote tier, and come back for a session that the disk no longer has whole.
 *
 * One thread uploads and erases, erasing first, another fetches, so that nobody waits for a slow store who has not asked for it: the turns thread only hands over, and a
 * look that goes on to the store waits for it alone. Blocks on their way, either way, are plain copies in memory under a cap; what does not fit is
 * dropped and counted. A fetch ends at the first block that is not there, or when tiers.remote.timeout_ms or the time computing its rows takes,
 * whichever is longer, have passed since it was asked for, others before it included. What does not come is computed. */
#ifndef KV_TURNS_REMOTE_H
#define KV_TURNS_REMOTE_H

#include "runtime/residency/remote.h"
#include "runtime/service/turns_state.h"

struct kv_fetch { /* of one look; whoever looked owns it once it is over */
    struct kv_fetch *next;
    struct kv_turn *turn; /* under the lock: who waits; NULL: not begun, or given up */
    struct kv_chain chain;
    int32_t first, end, n; /* blocks [first, end) are asked for; n came */
    uint8_t **block;       /* [end − first] all layers of one block, in order */
    size_t block_bytes;
    uint64_t held_bytes;   /* of the cap */
    double us_per_row, asked_us; /* asked: when it began to wait */
    struct kv_fault_marks faults;
    enum kv_status status; /* why it ended before `end`; OK: it did not, or the store has no more */
    _Atomic bool ahead;    /* of its turn; gives way to others between blocks */
    bool done;
    _Atomic bool stop;
};

enum kv_status kv_turns_remote_create(struct kv_turns *t, struct kv_error *err);
void kv_turns_remote_stop(struct kv_turns *t); /* what is on its way is given up */
void kv_turns_remote_destroy(struct kv_turns *t);

/* --- turns thread, without the lock */
/* After the disk was looked at: what the store is to be asked for, or NULL. */
struct kv_fetch *kv_turns_fetch_plan(struct kv_turns *t, const struct kv_turn *j, int32_t held);
void kv_turns_fetch_copy(const struct kv_turns *t, const struct kv_turn *j, int32_t layer); /* one layer of its blocks into the cache, up to j->end */
/* Blocks [first, end) of a save that the disk had no room for. Returns how many are on their way. */
int32_t kv_turns_remote_overflow(struct kv_turns *t, const struct kv_turn *save, int32_t first, int32_t end);
/* Takes over ids, all layers of each block; those that wait to be sent stay here. The command is run again when the store answered, or
 * with REMOTE_TIMEOUT after six times tiers.remote.timeout_ms at most, however many blocks and whatever else is sent. Under the lock. OUT_OF_MEMORY. */
enum kv_status kv_turns_remote_erase(struct kv_turns *t, struct kv_chunk_identity *ids, int32_t n, struct command *c);

/* --- under the lock */
void kv_turns_fetch_begin(struct kv_turns *t, struct kv_turn *j, struct kv_fetch *f);
bool kv_turns_fetch_cancel(struct kv_turns *t, struct kv_turn *j); /* false: none is under way */

/* --- any thread */
void kv_turns_fetch_free(struct kv_turns *t, struct kv_fetch *f);
void kv_turns_remote_stats(struct kv_turns *t, struct kv_tier_stats *out);

#endif
