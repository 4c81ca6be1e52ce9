/* wall_clock.h — a wall clock that tests may let jump. The unit tests are linked so that every reading of it passes through here. */
#ifndef KV_WALL_CLOCK_H
#define KV_WALL_CLOCK_H

#include <stdatomic.h>

extern _Atomic long wall_clock_ahead_s;

#endif
