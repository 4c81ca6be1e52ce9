/* turns_state.h — the turns from the inside, for turns*.c only. */
#ifndef KV_TURNS_STATE_H
#define KV_TURNS_STATE_H

#include "runtime/residency/disk.h"
#include "runtime/service/turns.h"

#include <pthread.h>

struct session {
    struct kv_session_info info; /* tenant "" and session "": unused */
    struct kv_chain chain;       /* of the blocks that were saved or found */
    struct kv_lease *lease;      /* [chain.n_blocks × n_layers] while pinned */
    int32_t n_leases;
    struct kv_block record;      /* on disk; allocation 0: none (runtime/service/turns_records.h) */
    int64_t used;                /* order of use */
};

struct turn_list {
    struct kv_turn *head, **tail;
};

struct command { /* of whoever asked; of the turns thread once `detached` */
    enum kv_session_command what;
    char tenant[64], session[64];
    struct kv_session_info info;
    enum kv_status status;
    bool done, detached;
    bool erasing, erased;       /* the remote tier is asked; it answered */
    int32_t n_blocks;           /* of the session's chain before that */
    struct command *next;
};

struct kv_turns {
    struct kv_turns_config config;
    pthread_t thread;
    bool started;
    /* Turns thread. */
    struct kv_tier disk;
    struct kv_directory *directory;
    struct kv_turns_remote *remote; /* NULL: none */
    struct kv_leaving leaving;
    double us_per_byte; /* of reads, moving average */
    struct kv_block *unwanted; /* extents of earlier runs that the directory had no room for; while opening */
    size_t n_unwanted, cap_unwanted;
    struct found_record *records; /* of sessions; while opening */
    size_t n_records;
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t work, answered; /* answered: a command or a turn is done */
    bool stopping, stopped;
    bool hangs;                    /* since a look was given up the thread has not got on */
    uint64_t steps;                /* that the thread has made */
    struct turn_list reads, ahead, saves, saved;
    struct command *command;
    struct session *session; /* [KV_SESSIONS_MAX] */
    int64_t clock;
    struct kv_turn_stats stats;
    struct kv_tier_stats tier;
};

/* turns_read.c. Turns thread, without the lock. */
struct kv_fetch *kv_turns_look_on_disk(struct kv_turns *t, struct kv_turn *j); /* what the remote tier is to be asked for; NULL: nothing */
void kv_turns_looked(struct kv_turns *t, struct kv_turn *j);       /* both tiers were asked */
void kv_turns_read_blocks(struct kv_turns *t, struct kv_turn *j);
int32_t kv_turns_blocks_in(uint64_t window_bytes, uint64_t block_bytes);
void kv_turns_note_failure(struct kv_turns *t, enum kv_status s); /* under the lock */

/* turns.c */
struct timespec kv_turns_time_in(int32_t ms); /* for waits on `answered` */
/* Under the lock: the remote tier answered a look. */
void kv_turns_look_again(struct kv_turns *t, struct kv_turn *j);

/* turns_sessions.c. Under the lock but where the turns thread is named. */
struct session *kv_turns_find(struct kv_turns *t, const char *tenant, const char *session);
struct session *kv_turns_make(struct kv_turns *t, const char *tenant, const char *session, enum kv_session_state first);
/* Turns thread, under the lock: the session's blocks are these now. Takes over the chain's memory when it keeps it. */
void kv_turns_keep_chain(struct kv_turns *t, struct session *s, struct kv_chain *chain, int32_t blocks);
enum kv_status kv_turns_run(struct kv_turns *t, struct command *c); /* turns thread, without the lock */
enum kv_status kv_turns_pin(struct kv_turns *t, struct session *s); /* leases on every chunk that is there */
void kv_turns_unpin(struct kv_turns *t, struct session *s);

#endif
