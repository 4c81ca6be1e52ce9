/* simulate.h — a request trace through tiers, admission and credits on a virtual clock: what a machine of given rates would have done.
 *
 *   arrival → bounded queue → admission (policy proposes, credits decide) → load what tiers hold → prefill the rest in chunks → decode
 *
 * Every rate is an input; nothing is measured here, and whoever shows a result calls it emulated. Kept blocks live in a host pool whose victims go
 * down to a disk pool; a block found on disk comes up again. Iterations carry one token for each decoding sequence and one prefill chunk, their time
 * is base + sequences × each + chunk ÷ prefill rate. One loading link and one disk serve in order; two requests that load the same blocks at
 * once share one read, each with its own staging. Deterministic; one thread a run. */
#ifndef KV_SIMULATE_H
#define KV_SIMULATE_H

#include "runtime/service/credits.h"
#include "runtime/service/simulate_pool.h"

/* What a policy is told and answers. Mirrors the live question (controller/policy/policy_host.h) without knowing Lua. */
struct kv_sim_question {
    const struct kv_sim_request *request;
    double slack_ms, estimate_ms; /* slack < 0: no deadline */
    uint64_t backend_bytes, staging_bytes;
    uint64_t pinned_free, staging_free, link_free;
    uint32_t queue_free;
};
struct kv_sim_answer {
    bool transfer;    /* false: do without what the tiers hold */
    int32_t priority; /* 0 … 100 */
};
typedef void kv_sim_decide(void *ctx, const struct kv_sim_question *q, struct kv_sim_answer *out);

struct kv_sim_config {
    uint64_t bytes_per_token, device_bytes, host_bytes, disk_bytes; /* device: K/V of running sequences */
    int32_t n_layers;           /* staging of a request is two layers of what it loads */
    enum kv_eviction eviction;
    double link_bytes_per_s, disk_bytes_per_s, link_latency_us, disk_latency_us;
    double prefill_tokens_per_s, decode_base_us, decode_sequence_us;
    int32_t max_sequences, max_queue, prefill_chunk, starvation_ms, deadline_ms; /* deadline: of requests without one; 0: none */
    struct kv_credit_limits credits;
    void (*told)(void *ctx, uint64_t done, uint64_t total); /* requests that have arrived, of all; NULL: nobody */
    void *told_ctx;
    kv_sim_decide *decide;      /* NULL: order of arrival, transfer whenever deadline and credits allow */
    void *decide_ctx;
};
void kv_sim_config_default(struct kv_sim_config *c);

struct kv_sim_spread {
    double p50, p90, p99, mean;
};
struct kv_sim_result {
    uint64_t requests, finished, in_time, output_tokens;
    uint64_t refused_queue, refused_deadline, refused_capacity;      /* QUEUE_FULL, DEADLINE, CAPACITY */
    uint64_t fallback_deadline, fallback_credit, fallback_policy;    /* recomputed though a tier had rows */
    uint64_t blocks, host_hits, disk_hits;                           /* in blocks; a miss is the rest */
    uint64_t host_hit_tokens, disk_hit_tokens, recomputed_tokens;    /* of prompts that were prefilled or loaded */
    uint64_t link_bytes, disk_read_bytes, disk_write_bytes, coalesced_bytes;
    uint64_t iterations, policy_calls, peak_live;
    double seconds, busy_seconds, max_wait_ms;                       /* virtual */
    struct kv_sim_spread ttft_ms, tpot_ms;
    struct kv_credit_view credits;                                   /* at the end; used must be 0 */
};
enum kv_status kv_sim_run(const struct kv_sim_trace *t, const struct kv_sim_config *c, struct kv_sim_result *out, struct kv_error *err);

#endif
