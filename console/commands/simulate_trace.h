/* simulate_trace.h — request traces from files: one JSON object a line, {"timestamp": ms, "input_length", "output_length", "hash_ids": […]},
 * each id naming a block of tokens with everything before it; "deadline_ms" and "contract" are Kvasir's own additions and may be absent. */
#ifndef KV_SIMULATE_TRACE_H
#define KV_SIMULATE_TRACE_H

#include "runtime/service/simulate_pool.h"

struct kv_trace_options {
    int32_t block_tokens; /* of one hash id; default 512 */
    double speed;         /* arrivals are this much denser */
    size_t limit;         /* first requests only; 0: all */
    int32_t repeat;       /* the whole trace again behind itself, with block ids of its own */
};
/* *out is freed by kv_trace_free, also after a failure. */
enum kv_status kv_trace_read(const char *file, const struct kv_trace_options *o, struct kv_sim_trace *out, struct kv_error *err);
void kv_trace_free(struct kv_sim_trace *t);

#endif
