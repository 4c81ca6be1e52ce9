/* wall_clock.h — clocks that tests may let jump: CLOCK_REALTIME, and CLOCK_MONOTONIC forward. The unit tests are linked so that every reading passes through
 * here; a timed wait of the system keeps its own. */
#ifndef KV_WALL_CLOCK_H
#define KV_WALL_CLOCK_H

#include <stdatomic.h>

extern _Atomic long wall_clock_ahead_s, steady_clock_ahead_s;

#endif
