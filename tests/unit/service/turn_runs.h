/* turn_runs.h — what tests of completed turns share: engines over one folder, turns of a fixed text, and a disk that fails when it is told to. */
#ifndef KV_TURN_RUNS_H
#define KV_TURN_RUNS_H

#include "runtime/residency/disk.h"
#include "runtime/service/engine.h"
#include "tests/unit/residency/tier_fixture.h"
#include "tests/unit/service/engine_runs.h"

#include <stdatomic.h>

enum { HISTORY = 330, MORE = 30, STEPS = 8 };

void turn_setup(void);
void turn_teardown(void);
struct kv_engine *turn_engine(uint64_t disk_bytes, const struct kv_disk_io *io);
void turn_init(struct run *r, int32_t n, const char *tenant, const char *session); /* the first n tokens of a fixed text */
void turn_plain(struct run *r, int32_t n);                                         /* the same without any disk */
void turn_first(const char *tenant, const char *session, int32_t n);               /* by an engine that is gone and has saved it */
void turn_say(struct kv_engine *e, uint32_t text, const char *tenant, const char *session);
struct kv_turn_stats turn_stats(struct kv_engine *e);                              /* the counters of every tier reconcile */
void turn_await_saved(struct kv_engine *e, const char *session);                   /* of tenant alpha */

extern _Atomic int reads_left, writes_left; /* before they fail */
ssize_t failing_pread(int fd, void *buf, size_t n, off_t at);
ssize_t failing_pwrite(int fd, const void *buf, size_t n, off_t at);

#endif
