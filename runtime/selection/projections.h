/* projections.h — random directions that every index of the same seed and size hashes with: one copy of them in the process. */
#ifndef KV_SELECTION_PROJECTIONS_H
#define KV_SELECTION_PROJECTIONS_H

#include <stddef.h>
#include <stdint.h>

/* n normal values that are a function of the seed. Any thread; NULL without memory. Given back as often as taken. */
const float *kv_projections_take(uint64_t seed, size_t n);
void kv_projections_give(const float *values); /* NULL: nothing */

#endif
