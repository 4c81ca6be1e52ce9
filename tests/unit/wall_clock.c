/* wall_clock.c — see wall_clock.h. */
#include "tests/unit/wall_clock.h"

#include <time.h>

_Atomic long wall_clock_ahead_s, steady_clock_ahead_s;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int r = __real_clock_gettime(clock, out);
    if (r == 0 && clock == CLOCK_REALTIME) out->tv_sec += atomic_load(&wall_clock_ahead_s);
    if (r == 0 && clock == CLOCK_MONOTONIC) out->tv_sec += atomic_load(&steady_clock_ahead_s);
    return r;
}
