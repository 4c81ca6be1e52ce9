/* identity.h — what rows are: typed digests over typed, length-prefixed fields, and one table per object from which its digest,
 * its canonical bytes, its explanation and its comparison are made (contract §2, source 0x01).
 *
 *   prefix ── chained per 64-token block over the token ids
 *   chunk  ── prefix, model, adapters, ABI and numerics, layer, heads, positions, position contract, representation, tenant, lineage
 *   row    ── (chunk, offset)
 *   replica── chunk, tier, allocation, replica, authority, codec, layout, payload
 *
 * Moving or re-encoding a chunk losslessly changes the replica digest and never the chunk digest; request-local generations are
 * in the source binding and never in a chunk. Pure functions; any thread. */
#ifndef KV_IDENTITY_H
#define KV_IDENTITY_H

#include "runtime/identity/generation.h"
#include "runtime/kvasir.h"

/* A digest says what it is a digest of. */
#define KV_DIGESTS(X) X(prefix) X(chunk) X(row) X(replica) X(source) X(query) X(mask) X(support) X(payload) X(artifact)
#define KV_DIGEST_TYPE(name) struct kv_##name##_digest { uint8_t b[32]; };
KV_DIGESTS(KV_DIGEST_TYPE)
#undef KV_DIGEST_TYPE

#define KV_NAME_CHARS 64

struct kv_chunk_identity {
    struct kv_prefix_digest prefix;           /* of every token up to and including the chunk's last */
    struct kv_artifact_digest model, adapters; /* adapters: zero for none */
    struct kv_artifact_digest cache_abi, numerics;
    int32_t layer, head_first, head_count;    /* K/V heads */
    int32_t position_first, position_count;
    struct kv_artifact_digest position_contract; /* RoPE configuration and rule of positions */
    char representation[KV_NAME_CHARS];       /* "kv-f16-post-rope-v1" */
    char tenant[KV_NAME_CHARS];
    struct kv_ns_generation ns;
    char support[KV_NAME_CHARS];              /* lineage: "exact", or the approximate contract that tainted the rows */
};

struct kv_replica_identity {
    struct kv_chunk_digest chunk;
    char tier[KV_NAME_CHARS];
    struct kv_allocation_generation allocation;
    struct kv_replica_generation replica;
    struct kv_authority_generation authority;
    char codec[KV_NAME_CHARS], layout[KV_NAME_CHARS];
    struct kv_payload_digest payload;
};

struct kv_source_binding { /* RetrievalSourceBinding: selector and index snapshots bind to it */
    struct kv_artifact_digest logical_cache_abi, cache_layout, visibility_policy, model_artifact;
    struct kv_checkpoint_generation checkpoint;
    struct kv_artifact_digest adapter_set, position_contract, rope_config;
    char tenant[KV_NAME_CHARS];
    struct kv_ns_generation ns;
    struct kv_request_generation request;
    struct kv_cache_generation cache;
    struct kv_publication_generation publication;
    int64_t committed_frontier; /* F_c: rows [0, F_c) are committed */
};

/* ---------------------------------------------------------------- one table per object */

enum kv_identity_kind { KV_ID_DIGEST, KV_ID_TEXT, KV_ID_I32, KV_ID_I64, KV_ID_U64 };
struct kv_identity_field {
    const char *name;
    enum kv_identity_kind kind;
    uint16_t offset;
    enum kv_status mismatch; /* the stable reason when this field differs */
};
struct kv_identity_type {
    const char *domain; /* "kvasir.chunk.v1": part of the hash */
    const struct kv_identity_field *field;
    int32_t n_fields;
};
extern const struct kv_identity_type kv_chunk_type, kv_replica_type, kv_source_type;

/* Canonical bytes: the domain, then each field as kind, length and value, in table order, integers little-endian. *len is set to the bytes
 * needed; CAPACITY when cap is less. */
#define KV_IDENTITY_MAX_BYTES 1024
enum kv_status kv_identity_encode(const struct kv_identity_type *t, const void *object, uint8_t *out, size_t cap, size_t *len);
/* The inverse: refuses another domain, another kind, a wrong length or trailing bytes with IDENTITY_MISMATCH. */
enum kv_status kv_identity_decode(const struct kv_identity_type *t, const uint8_t *bytes, size_t len, void *object);
/* "name=value" lines. Returns the bytes a whole explanation needs, like snprintf. */
size_t kv_identity_explain(const struct kv_identity_type *t, const void *object, char *out, size_t cap);
/* OK when every field is equal; else the reason of the first that differs, its name and both values in err. */
enum kv_status kv_identity_compare(const struct kv_identity_type *t, const void *expected, const void *got, struct kv_error *err);

/* ---------------------------------------------------------------- digests */

/* tokens: up to 64, the next block of the prefix; previous: NULL for the first. A short block ends a prefix. */
struct kv_prefix_digest kv_prefix_extend(const struct kv_prefix_digest *previous, const int32_t *tokens, int32_t n);
struct kv_chunk_digest kv_chunk_digest(const struct kv_chunk_identity *c);
/* For tables in memory: equal chunks have equal keys, others almost always different ones; whoever finds one compares the identities. */
uint64_t kv_chunk_key(const struct kv_chunk_identity *c);
struct kv_row_digest kv_row_digest(const struct kv_chunk_digest *c, int32_t offset);
struct kv_replica_digest kv_replica_digest(const struct kv_replica_identity *r);
/* Binding and geometry: I_source = H(upstream, tensor, cache, publication, [0, F_c)). */
struct kv_source_digest kv_source_digest(const struct kv_source_binding *b, int32_t n_layers, int32_t n_kv_heads, int32_t d_head, enum kv_contract contract);
/* Ascending original positions. */
struct kv_support_digest kv_support_digest(const int32_t *positions, int32_t n);

#endif
