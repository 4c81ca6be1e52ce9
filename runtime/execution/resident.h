/* resident.h — the baseline placement: attention reads the authoritative slabs in the host arena. */
#ifndef KV_RESIDENT_H
#define KV_RESIDENT_H

#include "runtime/execution/placement.h"

extern const struct kv_placement kv_placement_resident;

#endif
