/* generation.h — every counter of the contract as its own type: one current counter never repairs another stale one, and the
 * compiler refuses the attempt. A generation is compared for equality only, and 0 is never current. */
#ifndef KV_GENERATION_H
#define KV_GENERATION_H

#include <stdint.h>

#define KV_GENERATIONS(X)                                                                                              \
    X(request) X(cache) X(publication) X(allocation) X(replica) X(authority) X(selector) X(index) X(row_map) X(directory) X(lease) \
    X(event) X(lifecycle) X(manifest) X(checkpoint) X(ns) X(producer) X(transfer)

#define KV_GENERATION_TYPE(name) struct kv_##name##_generation { uint64_t n; };
KV_GENERATIONS(KV_GENERATION_TYPE)
#undef KV_GENERATION_TYPE

#endif
