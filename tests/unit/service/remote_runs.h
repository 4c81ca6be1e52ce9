/* remote_runs.h — what tests of the remote tier share: a store in memory that lies, stalls, fills and dies, and engines over one folder that use it. */
#ifndef KV_REMOTE_RUNS_H
#define KV_REMOTE_RUNS_H

#include "runtime/residency/remote.h"
#include "runtime/service/engine.h"
#include "tests/unit/service/engine_runs.h"
#include "tests/unit/wall_clock.h"

#include <pthread.h>
#include <stdatomic.h>

enum { HISTORY = 330, MORE = 30, STEPS = 8, OBJECTS = 64, TIMEOUT_S = 600 };

struct remote_store {
    pthread_mutex_t lock;
    struct { char name[KV_REMOTE_NAME_CHARS + 1]; uint8_t *bytes; size_t n; } object[OBJECTS];
    int n;
    _Atomic int fails, put_fails; /* an enum kv_status for every call; for puts */
    _Atomic bool holds;           /* gets answer when they are stopped, or when this ends */
    _Atomic bool holds_puts;      /* puts so too */
    _Atomic bool slow;            /* erasing takes 100 ms */
    _Atomic long erase_s;         /* and so long by the steady clock */
    _Atomic int held, calls, gets, puts, erases, puts_at_erase; /* held: by holds and slow; puts_at_erase: those that had come before the first erase */
};
extern struct remote_store store;
extern const struct kv_remote_io remote_io;
int remote_find(const char *name); /* store.n: not there */

void remote_setup(void);
void remote_teardown(void);
void remote_clear_folder(void);
extern _Atomic int good_syncs; /* that succeed before those that fail; negative: none fails */
struct kv_engine_config remote_config(uint64_t disk_bytes, uint64_t remote_bytes);
struct kv_engine *remote_engine(uint64_t disk_bytes, uint64_t remote_bytes);
void remote_turn(struct run *r, uint32_t seed, int32_t n, const char *session);
void remote_plain(struct run *r, int32_t n); /* text 4 by an engine without tiers */
struct kv_tier_stats remote_tier(struct kv_engine *e);
int32_t remote_held(struct kv_engine *e, const char *session); /* blocks on disk, once it is saved */
/* Session s with text 4 is saved, and others crowd it out until the disk has nothing of it. */
void remote_crowd_out(struct kv_engine *e, struct run *r);
void remote_settle(struct kv_engine *e); /* nothing is on its way any more */

#endif
