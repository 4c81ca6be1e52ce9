/* simulate_pool.h — a bounded set of block ids with an eviction policy, and a request trace run through one: what a tier of that many
 * blocks would have held.
 *
 * A block hits when it and all before it in its request are present. Blocks are touched in order, so that a request larger than the pool
 * pushes out its own beginning. `lru` evicts the least recently touched, `fifo` the oldest, `lfu` the least often touched (the least recent of
 * them), `value` the one of least V = L + touches × saved time, L being the value of the last one evicted: what was worth much once ages.
 * Pure; one thread a pool. */
#ifndef KV_SIMULATE_POOL_H
#define KV_SIMULATE_POOL_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_eviction { KV_EVICT_LRU, KV_EVICT_FIFO, KV_EVICT_LFU, KV_EVICT_VALUE, KV_EVICTIONS };
const char *kv_eviction_name(enum kv_eviction e); /* "lru" */
bool kv_eviction_from_name(const char *name, enum kv_eviction *out);

struct kv_sim_request {
    int64_t at_us;
    int32_t input_tokens, output_tokens;
    int32_t deadline_ms;           /* to the first token; 0: none */
    uint32_t first_block, n_blocks; /* into the trace's blocks */
    bool approximate;
};
struct kv_sim_trace { /* requests in order of arrival */
    struct kv_sim_request *request;
    size_t n_requests;
    uint64_t *block;
    size_t n_blocks;
    int32_t block_tokens;
};

struct kv_pool;
/* capacity 0: unlimited, which must be bounded by `most` distinct blocks. saved: weight of a touch under `value`. */
enum kv_status kv_pool_create(size_t capacity, size_t most, enum kv_eviction eviction, struct kv_pool **out);
void kv_pool_destroy(struct kv_pool *p);
bool kv_pool_has(const struct kv_pool *p, uint64_t block);
size_t kv_pool_count(const struct kv_pool *p);
/* Makes the block present and recent. *hit: it was. *evicted: *gone left for it. saved: time a hit of it spares, in any unit. */
void kv_pool_touch(struct kv_pool *p, uint64_t block, double saved, bool *hit, bool *evicted, uint64_t *gone);
bool kv_pool_remove(struct kv_pool *p, uint64_t block);

struct kv_pool_result {
    uint64_t requests, blocks, block_hits, evictions, input_tokens, hit_tokens; /* hit_tokens ≤ input_tokens of each request */
};
/* The whole trace through one pool. capacity 0: unlimited. */
enum kv_status kv_pool_run(const struct kv_sim_trace *t, size_t capacity, enum kv_eviction eviction, struct kv_pool_result *out);
/* The least capacity in blocks that reaches `share` of the trace's blocks as hits under LRU, by bisection; NOT_FOUND, with *best the share of an unlimited
 * pool, when none does. */
enum kv_status kv_pool_size_for(const struct kv_sim_trace *t, double share, size_t *capacity, double *best);

#endif
