/* pauses.h — requests of an engine that wait for somebody outside: their rows stay in the arena, move out of it in chunks, or go.
 *
 *   live ─ quiesce ─ PAUSED_GPU ─────────────────────────────── RESUME_READY ─ live
 *                    ├ SWAPPING_OUT ─ PAUSED_HOST ─ SWAPPING_IN ─┤
 *                    └ TOKEN_ONLY ─ RECOMPUTING ─────────────────┘
 *
 * With a disk tier whole blocks go there by the turns thread, and come back under the continuation's prefill, in this process or the next. Without one
 * rows lie in memory outside the arena, under a cap of their own; what moves in an iteration, either way, is bounded by a share of the last one's time, with a checksum for each slab; a slab that does not match is no row any more, and the request is recomputed. Decode thread,
 * but for what kvasir.h says. */
#ifndef KV_PAUSES_H
#define KV_PAUSES_H

#include "runtime/service/interruption.h"

struct kv_engine;
struct kv_sequence;
struct kv_pauses;
struct kv_turn;

enum { KV_PAUSES_MAX = 256 };

enum kv_status kv_pauses_create(size_t slab_bytes, uint64_t swap_bytes, struct kv_pauses **out);
void kv_pauses_destroy(struct kv_pauses *p, struct kv_engine *e);

/* Once an iteration: pauses that were asked for, decisions that have aged, one budget of movement, sequences whose rows are back. */
void kv_pauses_begin(struct kv_engine *e);
int32_t kv_pauses_resuming(const struct kv_engine *e); /* sequences that wait for their rows, and are not live yet */
bool kv_pauses_busy(const struct kv_engine *e); /* there is something to do; the engine's lock is held */
int64_t kv_pauses_wait_us(const struct kv_engine *e); /* until a decision has aged enough to be looked at again, or a pause expires; < 0: never. The engine's lock is held */
/* A sequence that is not live any more from here on: rows and tokens are kept, its stream has ended. by_itself: nobody asked, so that nothing is kept when
 * its reader is gone. false: there are too many, nothing changed. */
bool kv_pauses_hold(struct kv_engine *e, struct kv_sequence *s, enum kv_pause_action asked, bool by_itself);
/* A save to disk that kv_turns_saved returned. */
void kv_pauses_saved(struct kv_engine *e, const struct kv_turn *t);
/* At admission of a sequence with `resume`, which takes its pause along when it ends before. true: it is live when its rows are back, and not the caller's any more. */
bool kv_pauses_attach(struct kv_engine *e, struct kv_sequence *s);
uint64_t kv_pauses_held_bytes(const struct kv_engine *e, const struct kv_sequence *s); /* of the arena's reservation, by the pause s resumes */
/* Somebody waits for room: the pause that holds most waste moves out or goes. */
void kv_pauses_make_room(struct kv_engine *e);
double kv_pauses_copy_rate(const struct kv_engine *e); /* bytes a second that leave the arena or come back, measured */
uint64_t kv_pauses_cap_bytes(const struct kv_engine *e); /* of rows that may move in an iteration, both ways together */
void kv_pauses_spoil(struct kv_engine *e, uint64_t request); /* for tests and the failure lab: one bit of rows that are out */

#endif
