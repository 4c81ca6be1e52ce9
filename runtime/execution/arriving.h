/* arriving.h — the placement of a step that runs while its history is still being read: resident rows, each layer waited for. */
#ifndef KV_ARRIVING_H
#define KV_ARRIVING_H

#include "runtime/execution/placement.h"

/* Not in the list of placements: the engine uses it for the first step over restored rows. After a failed arrival (KV_ARRIVAL_FAILED) acquire
 * still answers OK, so that the step ends; the engine then throws the step away. */
extern const struct kv_placement kv_placement_arriving;

#endif
