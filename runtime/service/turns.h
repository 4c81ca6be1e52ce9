/* turns.h — what outlives a turn: the sealed exact blocks of its sequence on disk, read back for the session's next turn or for any other
 * request of the tenant that begins with the same tokens, in this process or the next.
 *
 * One thread owns the directory and the disk tier, and makes every read and write; reads come before
 * saves, between any two windows of bytes. The decode
 * thread hands over a kv_turn and looks at its phase; it never waits for the disk. A read fills slabs layer by layer. What cannot be
 * read is recomputed: rows that failed are never handed back. */
#ifndef KV_TURNS_H
#define KV_TURNS_H

#include "runtime/residency/snapshot.h"
#include "runtime/service/credits.h"
#include "runtime/service/lifecycle.h"

#include <stdatomic.h>

struct kv_turns_config {
    struct kv_chunk_identity base; /* but for the tenant */
    int32_t n_layers, n_kv_heads;
    size_t slab_bytes;
    const char *path;              /* of the disk tier */
    uint64_t capacity_bytes, reserve_bytes;
    uint8_t key[32];
    const struct kv_disk_io *io;   /* NULL: the system's */
    enum kv_victim victim;
    const struct kv_remote_io *remote; /* NULL: no remote tier; used during create only */
    uint64_t remote_bytes;             /* of blocks on their way, each way */
    int32_t remote_timeout_ms, remote_pause_ms;
    void (*event)(void *ctx);      /* turns thread: a look, read or save is done; the remote tier's: its uploads are */
    void *event_ctx;
};

enum kv_look { KV_LOOK_ALL, KV_LOOK_AHEAD, KV_LOOK_DISK }; /* AHEAD: for a request that waits still; DISK: the remote tier is left out */
enum kv_turn_phase { KV_TURN_LOOKING, KV_TURN_FOUND, KV_TURN_READING, KV_TURN_DONE };
struct kv_turn { /* fields but phase, ready and cancelled belong to whoever the phase names: FOUND and DONE the decode thread */
    struct kv_turn *next;
    char tenant[64], session[64];
    struct kv_chain chain;
    int32_t first, end;            /* blocks [first, end) are to be read, or were found; those before are in the cache already */
    int32_t asked;                 /* end as the read began; constant from then on, while end falls when a block cannot be read */
    int32_t held;                  /* blocks that were there as it looked; turns thread */
    struct kv_fetch *fetch;        /* blocks that only the remote tier has, or is asked for; NULL: none */
    int32_t fetched;               /* of the blocks that were read, those that it gave */
    struct kv_cache *cache;        /* of the sequence */
    struct kv_cache own;           /* of a save, which has the slabs to itself */
    uint64_t request;              /* of a save: whose rows they are */
    struct kv_credit_ticket credit; /* the decode thread's: held while the rows move */
    double us_per_row, began_us, took_us;
    struct kv_fault_marks faults;  /* injected ones that it meets */
    enum kv_look look;
    bool ahead;                    /* of its turn */
    bool dearer;                   /* the blocks are there and computing them again is expected to be faster */
    enum kv_status status;         /* why end is less than what was asked for */
    enum kv_status fetch_status;   /* why the remote tier gave less than it was asked for; OK: it has no more */
    bool fetch_short;              /* it gave less */
    bool detached;                 /* under the lock: nobody waits for it any more, and who works on it frees it */
    uint64_t bytes;                /* read */
    _Atomic int phase;
    _Atomic uint32_t ready;        /* layers in place, of every block that was asked for; KV_ARRIVAL_FAILED: end has fallen. A futex word */
    _Atomic bool cancelled;
};

struct kv_turns;
enum kv_status kv_turns_create(const struct kv_turns_config *c, struct kv_turns **out, struct kv_error *err);
/* Finishes the saves that were handed over; timeout_ms 0: however long that takes. false: the disk hangs, and the thread that waits for it goes on using t, what
 * it was handed over and its event: none of them may be destroyed. What kv_turns_saved has not returned must be fetched after. */
bool kv_turns_stop(struct kv_turns *t, int32_t timeout_ms);
void kv_turns_destroy(struct kv_turns *t);

/* ---------------------------------------------------------------- decode thread */

/* Asks which blocks of these tokens from `first` on are there. us_per_row: what computing a row takes, 0: unknown.
 * Whoever has a request's turn comes before those that wait. NULL: no memory, or the disk hangs since a look was given up. */
struct kv_turn *kv_turns_look(struct kv_turns *t, const char *tenant, const char *session, const int32_t *tokens, int32_t n_tokens, int32_t first, double us_per_row,
                              enum kv_look look, struct kv_fault_marks faults);
/* FOUND with end > first: the cache has slabs for blocks [first, end) now; the read begins. A step may run over them meanwhile (kv_cache.arrived). */
void kv_turns_read(struct kv_turns *t, struct kv_turn *turn, struct kv_cache *cache);
/* READING, and every layer is ready or has failed: returns as soon as it is DONE; false: what was asked for did not all come. */
bool kv_turns_read_over(struct kv_turns *t, struct kv_turn *turn);
/* A look, or a read that has not begun, was waited for long enough: true, and the turn is gone, IO_TIMEOUT counted. false: it is over, or a read has begun, or the
 * remote tier is asked, which has a bound of its own. */
bool kv_turns_give_up(struct kv_turns *t, struct kv_turn *turn);
/* Decode thread. What is looked for ahead of a turn that has come meanwhile waits behind others no longer. */
void kv_turns_hurry(struct kv_turns *t, struct kv_turn *turn);
/* Any phase. Returns when no slab is touched any more. */
void kv_turns_let_go(struct kv_turns *t, struct kv_turn *turn);
struct kv_turn_rows { /* whole exact blocks, and nothing else in the cache */
    const char *tenant, *session;
    uint64_t request;
    const int32_t *tokens;
    struct kv_cache *cache;
    int32_t blocks;
    double us_per_row;
    struct kv_credit_ticket credit; /* of their movement; generation 0: none */
};
/* Takes over cache and credit. false: no memory, and both stay the caller's. */
bool kv_turns_save(struct kv_turns *t, const struct kv_turn_rows *r);
/* A save that is over; the caller frees turn->own, releases turn->credit, and then lets the turn go. NULL: none. */
struct kv_turn *kv_turns_saved(struct kv_turns *t);
/* The session's next state; one that may not follow changes nothing and is counted, but for those that a turn may have passed already (RESUME_READY,
 * PREFILL_NEW_TURN). QUIESCING ends a turn, whatever the state was. */
void kv_turns_note(struct kv_turns *t, const char *tenant, const char *session, enum kv_session_state state);
/* All of the history was in host memory: nothing is read, and the turn is as good as restored. */
void kv_turns_in_memory(struct kv_turns *t, const char *tenant, const char *session);
/* Restored rows are in use; overlapped: a step ran over them while they came, and waited so long. */
void kv_turns_arrived(struct kv_turns *t, const char *tenant, const char *session, bool overlapped, double waited_us);

/* ---------------------------------------------------------------- any thread */

/* remote: its name is NULL where there is none. */
void kv_turns_stats(struct kv_turns *t, struct kv_tier_stats *disk, struct kv_tier_stats *remote, struct kv_turn_stats *out);
int32_t kv_turns_sessions(struct kv_turns *t, struct kv_session_info *out, int32_t cap); /* last used first */
/* These wait for the turns thread, as long as it gets on: IO_TIMEOUT when it did not for a while. NOT_FOUND: no such session. info may be NULL. */
enum kv_status kv_turns_command(struct kv_turns *t, enum kv_session_command what, const char *tenant, const char *session, struct kv_session_info *info);

#endif
