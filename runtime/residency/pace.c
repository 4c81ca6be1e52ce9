/* pace.c — see pace.h. */
#include "runtime/residency/pace.h"

#include "runtime/execution/futex.h"

#include <time.h>
#include <unistd.h>

enum { NICER = 12, LATE_US = 100000, OWED = 4 }; /* nicer: to the system a fifteenth of a thread that computes. Owed: grants, at most */

static int64_t time_ns(clockid_t of)
{
    struct timespec t;
    clock_gettime(of, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void kv_pace_grant(struct kv_pace *p, int64_t ns)
{
    int64_t left = atomic_load(&p->left_ns), then;
    do then = left >= 0 || ns < 0 ? ns : left < -OWED * ns ? (1 - OWED) * ns : left + ns;
    while (!atomic_compare_exchange_weak(&p->left_ns, &left, then));
    atomic_store(&p->bound, ns >= 0);
    atomic_fetch_add(&p->grants, 1);
    if ((ns < 0 || then > 0) && atomic_load(&p->waiting)) kv_futex_wake(&p->grants);
}

void kv_pace_pass(struct kv_pace *p)
{
    static _Thread_local int64_t passed_ns;
    if (!p) return;
    int64_t now_ns = time_ns(CLOCK_THREAD_CPUTIME_ID);
    int64_t used_ns = now_ns - passed_ns;
    passed_ns = now_ns;
    if (!atomic_load(&p->bound)) return;
    atomic_fetch_sub(&p->left_ns, used_ns);
    if (atomic_load(&p->left_ns) > 0) return;
    int64_t came_ns = time_ns(CLOCK_MONOTONIC);
    atomic_fetch_add(&p->waiting, 1);
    for (;;) {
        uint32_t seen = atomic_load(&p->grants); /* before the look, so that a grant after it is no wait */
        if (!atomic_load(&p->bound) || atomic_load(&p->left_ns) > 0) break;
        int64_t began_ns = time_ns(CLOCK_MONOTONIC);
        kv_futex_wait(&p->grants, seen, LATE_US);
        if (atomic_load(&p->grants) == seen && time_ns(CLOCK_MONOTONIC) - began_ns >= LATE_US * 1000LL) atomic_store(&p->bound, 0);
    }
    atomic_fetch_sub(&p->waiting, 1);
    atomic_fetch_add(&p->waited_ns, time_ns(CLOCK_MONOTONIC) - came_ns);
}

void kv_pace_give_way(void)
{
    (void)!nice(NICER); /* of this thread alone, on Linux */
}
