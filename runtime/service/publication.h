/* publication.h — the release word and the fence around the only place where tokens leave.
 *
 *   decode thread                                   rollback, any thread
 *   E = word; plan, run, sample                     word |= latch
 *   begin: pub = BUSY                               wait until pub is IDLE
 *   unchanged(E)? append : baseline only            → fenced
 *   end:   pub = IDLE
 *
 * Both sides write one word and then read the other, sequentially consistent: either the decode thread sees the latch, or the
 * rollback sees BUSY and waits. One publisher; every other function is for any thread and a signal handler. */
#ifndef KV_PUBLICATION_H
#define KV_PUBLICATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define KV_LATCH (UINT64_C(1) << 63)
#define KV_EPOCH_MAX (KV_LATCH - 1)

struct kv_publication {
    _Atomic uint64_t word; /* latch bit | epoch */
    _Atomic uint32_t busy, waiting; /* waiting: fences asleep until busy is 0 */
};

static inline uint64_t kv_publication_word(const struct kv_publication *p)
{
    return atomic_load(&((struct kv_publication *)p)->word);
}

/* Decode thread. */
void kv_publication_begin(struct kv_publication *p);
bool kv_publication_unchanged(const struct kv_publication *p, uint64_t word);
void kv_publication_end(struct kv_publication *p);

/* Latches and returns once no publication that began before is in progress; answers the word before. */
uint64_t kv_publication_fence(struct kv_publication *p);
/* The epoch moves on only from an unlatched `expected`. */
bool kv_publication_advance(struct kv_publication *p, uint64_t expected, uint64_t epoch);
/* Clears the latch; false when it was not set. */
bool kv_publication_rearm(struct kv_publication *p, uint64_t epoch);

#endif
