/* pace.h — how much a thread that moves rows computes while others do: as much of each iteration as it is granted, in time of the processor.
 *
 * On a busy machine every microsecond of a cipher is one that a step waits for, and the system gives who gives way little, but several milliseconds at a
 * time: a tenth of an iteration often hurts nobody, all of it in one of ten is what their slowest tokens are made of. */
#ifndef KV_PACE_H
#define KV_PACE_H

#include <stdatomic.h>
#include <stdint.h>

struct kv_pace { /* all zero: without a bound */
    _Atomic int64_t left_ns;
    _Atomic uint32_t grants; /* a futex word */
    _Atomic int64_t waited_ns; /* by all threads together, since the start */
    _Atomic int waiting;     /* threads */
    _Atomic int bound;
};

/* Who computes, once an iteration: what is left of the grant before lapses, what was overdrawn is owed, up to a few grants. ns < 0: no bound until the next grant. Any thread. */
void kv_pace_grant(struct kv_pace *p, int64_t ns);
/* Who moves, before every piece of its work, which should be a small part of a grant: counts what this thread has computed since it last passed, and waits for
 * the next grant when nothing is left. Nobody grants for a tenth of a second: there is no bound, since nobody computes. No lock is held meanwhile.
 * NULL: returns at once. */
void kv_pace_pass(struct kv_pace *p);
/* The calling thread takes a small share of a processor that others want, and all of one that nobody does. */
void kv_pace_give_way(void);

#endif
