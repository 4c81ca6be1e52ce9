/* receipt.h — one decode operation and the three receipts it may lead to: a lookup names candidates, a gather names rows, a partial
 * carries query-specific state. None stands for another (source 0x01I–L, 0x04W). Each validator answers the first reason to refuse.
 * Pure; any thread. */
#ifndef KV_RECEIPT_H
#define KV_RECEIPT_H

#include "runtime/identity/identity.h"

enum { KV_RECEIPT_MAX_ROWS = 4096, KV_RECEIPT_MAX_REPLICAS = 16 };

struct kv_decode_operation { /* what one lookup is for */
    struct kv_source_binding source;
    struct kv_source_digest source_digest;
    struct kv_manifest_generation manifest;
    int32_t n_q_heads, n_kv_heads, layer, q_head, kv_head; /* kv_head owns q_head: q_head / (H_q / H_kv) */
    int64_t decode_position;
    struct kv_query_digest query;
    struct kv_mask_digest mask;
    double score_scale;
    int64_t deadline_us;
    char clock_origin[KV_NAME_CHARS]; /* "monotonic:boot": a deadline without it means nothing */
    char fallback[KV_NAME_CHARS];     /* broaden_search, exact_promote, recompute, reject */
    bool fallback_published;          /* receipts that come later are refused */
};

struct kv_index_snapshot { /* what a lookup may be made from */
    struct kv_source_digest source;
    struct kv_selector_generation selector; /* of the proxy it was built over */
    struct kv_index_generation index;
    int64_t covered;                        /* F_i */
    bool exact_rest;                        /* a declared exact set or fallback serves [F_i, F_c) */
};

struct kv_lookup_receipt {
    char semantics[KV_NAME_CHARS]; /* "candidate_ids_only" */
    struct kv_index_generation index;
    struct kv_selector_generation selector;
    struct kv_cache_generation cache;
    int64_t committed_frontier;
    struct kv_query_digest query;
    int32_t layer, q_head, kv_head;
    const int32_t *positions; /* [n] original positions, ascending */
    const double *scores;     /* [n] */
    int32_t n, n_scores;
};

struct kv_replica_fact { /* one row of the directory, as a gather must have seen it */
    struct kv_replica_generation replica;
    struct kv_authority_generation authority;
    char tenant[KV_NAME_CHARS], codec[KV_NAME_CHARS], layout[KV_NAME_CHARS];
    struct kv_payload_digest payload;
    bool payload_rows; /* false for a proxy or an index entry: neither can rebuild K/V */
};
struct kv_directory_facts {
    struct kv_authority_generation authority;
    struct kv_payload_digest payload; /* of the logical chunk */
    char codec[KV_NAME_CHARS], layout[KV_NAME_CHARS];
    struct kv_replica_fact replica[KV_RECEIPT_MAX_REPLICAS];
    int32_t n, required; /* R_min */
};

struct kv_gather_receipt {
    int32_t layer, q_head, kv_head;
    const int32_t *positions;                  /* [n] */
    const struct kv_replica_generation *source; /* [n] */
    int32_t n, n_sources;
    struct kv_allocation_generation destination;
    struct kv_event_generation visible;
};
struct kv_gather_destination { /* what the destination is now */
    struct kv_allocation_generation allocation;
    struct kv_event_generation reached; /* the last visibility event the consumer waited for */
};

struct kv_partial_receipt {
    char tenant[KV_NAME_CHARS], schema[KV_NAME_CHARS]; /* "fp32-m-l-u-v1" */
    struct kv_request_generation request;
    struct kv_checkpoint_generation checkpoint;
    int32_t layer, q_head, kv_head;
    int64_t query_position;
    struct kv_query_digest query;
    struct kv_mask_digest mask;
    double score_scale;
    const int32_t *positions; /* [n] the support as described */
    int32_t n;
    struct kv_support_digest support;
    double m, l;
    bool has_mass; /* false: an output without m and l cannot be merged */
    struct kv_event_generation completed;
};

enum kv_status kv_operation_validate(const struct kv_decode_operation *op, struct kv_error *err);
/* Index against source: same source digest, current selector, F_i covers F_c = frontier or the rest is declared. Asked before every selection that is served. */
enum kv_status kv_index_validate(const struct kv_source_digest *source, int64_t frontier, const struct kv_index_snapshot *index, struct kv_selector_generation current,
                                 struct kv_error *err);
enum kv_status kv_lookup_validate(const struct kv_decode_operation *op, const struct kv_index_snapshot *index, const struct kv_lookup_receipt *r, struct kv_error *err);
/* Replicas that may serve: at the current epoch, of the tenant, with the declared codec, layout and payload, at least R_min of them. */
enum kv_status kv_directory_facts_validate(const struct kv_decode_operation *op, const struct kv_directory_facts *d, struct kv_error *err);
enum kv_status kv_gather_validate(const struct kv_decode_operation *op, const struct kv_lookup_receipt *lookup, const struct kv_directory_facts *d,
                                  const struct kv_gather_destination *to, const struct kv_gather_receipt *r, struct kv_error *err);
/* expected: positions this partial was asked for, ascending. */
enum kv_status kv_partial_validate(const struct kv_decode_operation *op, const int32_t *expected, int32_t n_expected, const struct kv_partial_receipt *r, struct kv_error *err);

#endif
