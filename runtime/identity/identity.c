/* identity.c — field tables, and what is made from them. */
#include "runtime/identity/identity.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define FIELD(type, member, kind, reason) {#member, kind, offsetof(struct type, member), reason}
#define COUNT(a) ((int32_t)(sizeof(a) / sizeof *(a)))

static const struct kv_identity_field chunk_fields[] = {
    FIELD(kv_chunk_identity, prefix, KV_ID_DIGEST, KV_PREFIX_MISMATCH),
    FIELD(kv_chunk_identity, model, KV_ID_DIGEST, KV_MODEL_MISMATCH),
    FIELD(kv_chunk_identity, adapters, KV_ID_DIGEST, KV_ADAPTER_MISMATCH),
    FIELD(kv_chunk_identity, cache_abi, KV_ID_DIGEST, KV_CACHE_ABI_MISMATCH),
    FIELD(kv_chunk_identity, numerics, KV_ID_DIGEST, KV_CACHE_ABI_MISMATCH),
    FIELD(kv_chunk_identity, layer, KV_ID_I32, KV_LAYER_MISMATCH),
    FIELD(kv_chunk_identity, head_first, KV_ID_I32, KV_KV_HEAD_MISMATCH),
    FIELD(kv_chunk_identity, head_count, KV_ID_I32, KV_KV_HEAD_MISMATCH),
    FIELD(kv_chunk_identity, position_first, KV_ID_I32, KV_POSITION_CONTRACT_MISMATCH),
    FIELD(kv_chunk_identity, position_count, KV_ID_I32, KV_POSITION_CONTRACT_MISMATCH),
    FIELD(kv_chunk_identity, position_contract, KV_ID_DIGEST, KV_POSITION_CONTRACT_MISMATCH),
    FIELD(kv_chunk_identity, representation, KV_ID_TEXT, KV_REPRESENTATION_MISMATCH),
    FIELD(kv_chunk_identity, tenant, KV_ID_TEXT, KV_TENANT_MISMATCH),
    FIELD(kv_chunk_identity, ns, KV_ID_U64, KV_STALE_NAMESPACE_GENERATION),
    FIELD(kv_chunk_identity, support, KV_ID_TEXT, KV_LINEAGE_MISMATCH),
};
const struct kv_identity_type kv_chunk_type = {"kvasir.chunk.v1", chunk_fields, COUNT(chunk_fields)};

static const struct kv_identity_field replica_fields[] = {
    FIELD(kv_replica_identity, chunk, KV_ID_DIGEST, KV_IDENTITY_MISMATCH),
    FIELD(kv_replica_identity, tier, KV_ID_TEXT, KV_IDENTITY_MISMATCH),
    FIELD(kv_replica_identity, allocation, KV_ID_U64, KV_RECYCLED_DESTINATION),
    FIELD(kv_replica_identity, replica, KV_ID_U64, KV_STALE_REPLICA_GENERATION),
    FIELD(kv_replica_identity, authority, KV_ID_U64, KV_STALE_AUTHORITY_EPOCH),
    FIELD(kv_replica_identity, codec, KV_ID_TEXT, KV_CODEC_MISMATCH),
    FIELD(kv_replica_identity, layout, KV_ID_TEXT, KV_CACHE_LAYOUT_MISMATCH),
    FIELD(kv_replica_identity, payload, KV_ID_DIGEST, KV_CHECKSUM_MISMATCH),
};
const struct kv_identity_type kv_replica_type = {"kvasir.replica.v1", replica_fields, COUNT(replica_fields)};

static const struct kv_identity_field source_fields[] = {
    FIELD(kv_source_binding, logical_cache_abi, KV_ID_DIGEST, KV_CACHE_ABI_MISMATCH),
    FIELD(kv_source_binding, cache_layout, KV_ID_DIGEST, KV_CACHE_LAYOUT_MISMATCH),
    FIELD(kv_source_binding, visibility_policy, KV_ID_DIGEST, KV_VISIBILITY_POLICY_MISMATCH),
    FIELD(kv_source_binding, model_artifact, KV_ID_DIGEST, KV_MODEL_MISMATCH),
    FIELD(kv_source_binding, checkpoint, KV_ID_U64, KV_CHECKPOINT_MISMATCH),
    FIELD(kv_source_binding, adapter_set, KV_ID_DIGEST, KV_ADAPTER_MISMATCH),
    FIELD(kv_source_binding, position_contract, KV_ID_DIGEST, KV_POSITION_CONTRACT_MISMATCH),
    FIELD(kv_source_binding, rope_config, KV_ID_DIGEST, KV_ROPE_MISMATCH),
    FIELD(kv_source_binding, tenant, KV_ID_TEXT, KV_TENANT_MISMATCH),
    FIELD(kv_source_binding, ns, KV_ID_U64, KV_STALE_NAMESPACE_GENERATION),
    FIELD(kv_source_binding, request, KV_ID_U64, KV_STALE_REQUEST_GENERATION),
    FIELD(kv_source_binding, cache, KV_ID_U64, KV_STALE_CACHE_GENERATION),
    FIELD(kv_source_binding, publication, KV_ID_U64, KV_STALE_PUBLICATION_GENERATION),
    FIELD(kv_source_binding, committed_frontier, KV_ID_I64, KV_STALE_INDEX),
};
const struct kv_identity_type kv_source_type = {"kvasir.source.v1", source_fields, COUNT(source_fields)};

/* ---------------------------------------------------------------- canonical bytes */

struct writer {
    uint8_t *out;
    size_t cap, len;
};

static void put(struct writer *w, const void *bytes, size_t n)
{
    if (w->len <= w->cap && n <= w->cap - w->len) memcpy(w->out + w->len, bytes, n);
    w->len += n;
}

static void put_u64(struct writer *w, uint64_t v, int bytes)
{
    uint8_t b[8];
    for (int i = 0; i < bytes; i++) b[i] = (uint8_t)(v >> (8 * i));
    put(w, b, (size_t)bytes);
}

static size_t value_bytes(enum kv_identity_kind kind, const uint8_t *at)
{
    switch (kind) {
    case KV_ID_DIGEST: return 32;
    case KV_ID_TEXT: return strnlen((const char *)at, KV_NAME_CHARS - 1);
    case KV_ID_I32: return 4;
    default: return 8;
    }
}

static void put_typed(struct writer *w, enum kv_identity_kind kind, const uint8_t *at)
{
    size_t n = value_bytes(kind, at);
    int32_t i32;
    uint64_t u64;
    put_u64(w, kind, 1);
    put_u64(w, n, 4);
    if (kind == KV_ID_I32) memcpy(&i32, at, 4), put_u64(w, (uint32_t)i32, 4);
    else if (kind == KV_ID_I64 || kind == KV_ID_U64) memcpy(&u64, at, 8), put_u64(w, u64, 8);
    else put(w, at, n);
}

static void put_domain(struct writer *w, const char *domain)
{
    put_u64(w, strlen(domain), 4);
    put(w, domain, strlen(domain));
}

enum kv_status kv_identity_encode(const struct kv_identity_type *t, const void *object, uint8_t *out, size_t cap, size_t *len)
{
    struct writer w = {out, cap, 0};
    put_domain(&w, t->domain);
    for (int32_t i = 0; i < t->n_fields; i++) put_typed(&w, t->field[i].kind, (const uint8_t *)object + t->field[i].offset);
    *len = w.len;
    return w.len <= cap ? KV_OK : KV_CAPACITY;
}

static uint64_t get_u64(const uint8_t *b, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)b[i] << (8 * i);
    return v;
}

enum kv_status kv_identity_decode(const struct kv_identity_type *t, const uint8_t *bytes, size_t len, void *object)
{
    size_t at = 4, domain = strlen(t->domain);
    if (len < 4 + domain || get_u64(bytes, 4) != domain || memcmp(bytes + 4, t->domain, domain)) return KV_IDENTITY_MISMATCH;
    at += domain;
    for (int32_t i = 0; i < t->n_fields; i++) {
        const struct kv_identity_field *f = &t->field[i];
        uint8_t *to = (uint8_t *)object + f->offset;
        if (len - at < 5 || bytes[at] != f->kind) return KV_IDENTITY_MISMATCH;
        uint64_t n = get_u64(bytes + at + 1, 4);
        at += 5;
        if (n > len - at) return KV_IDENTITY_MISMATCH;
        if (f->kind == KV_ID_TEXT) {
            if (n >= KV_NAME_CHARS || memchr(bytes + at, 0, n)) return KV_IDENTITY_MISMATCH;
            memset(to, 0, KV_NAME_CHARS);
            memcpy(to, bytes + at, n);
        } else if (n != value_bytes(f->kind, to)) {
            return KV_IDENTITY_MISMATCH;
        } else if (f->kind == KV_ID_DIGEST) {
            memcpy(to, bytes + at, 32);
        } else if (f->kind == KV_ID_I32) {
            int32_t v = (int32_t)(uint32_t)get_u64(bytes + at, 4);
            memcpy(to, &v, 4);
        } else {
            uint64_t v = get_u64(bytes + at, 8);
            memcpy(to, &v, 8);
        }
        at += n;
    }
    return at == len ? KV_OK : KV_IDENTITY_MISMATCH;
}

/* ---------------------------------------------------------------- explain and compare */

static void show(const struct kv_identity_field *f, const void *object, char *out, size_t cap)
{
    const uint8_t *at = (const uint8_t *)object + f->offset;
    char hex[65];
    int32_t i32;
    int64_t i64;
    switch (f->kind) {
    case KV_ID_DIGEST:
        kv_hex(at, 32, hex);
        snprintf(out, cap, "%s", hex);
        break;
    case KV_ID_TEXT: snprintf(out, cap, "%.*s", KV_NAME_CHARS - 1, (const char *)at); break;
    case KV_ID_I32:
        memcpy(&i32, at, 4);
        snprintf(out, cap, "%" PRId32, i32);
        break;
    default:
        memcpy(&i64, at, 8);
        if (f->kind == KV_ID_I64) snprintf(out, cap, "%" PRId64, i64);
        else snprintf(out, cap, "%" PRIu64, (uint64_t)i64);
    }
}

size_t kv_identity_explain(const struct kv_identity_type *t, const void *object, char *out, size_t cap)
{
    char value[80];
    size_t len = 0;
    for (int32_t i = 0; i < t->n_fields; i++) {
        show(&t->field[i], object, value, sizeof value);
        len += (size_t)snprintf(len < cap ? out + len : NULL, len < cap ? cap - len : 0, "%s=%s\n", t->field[i].name, value);
    }
    return len;
}

enum kv_status kv_identity_compare(const struct kv_identity_type *t, const void *expected, const void *got, struct kv_error *err)
{
    for (int32_t i = 0; i < t->n_fields; i++) {
        const struct kv_identity_field *f = &t->field[i];
        const uint8_t *a = (const uint8_t *)expected + f->offset, *b = (const uint8_t *)got + f->offset;
        size_t n = value_bytes(f->kind, a);
        if (n == value_bytes(f->kind, b) && !memcmp(a, b, n)) continue;
        char want[80], have[80];
        show(f, expected, want, sizeof want);
        show(f, got, have, sizeof have);
        return kv_fail(err, f->mismatch, f->name, "%s: expected %s, found %s", f->name, want, have);
    }
    return KV_OK;
}

/* ---------------------------------------------------------------- digests */

/* Every object fits: the tables are constant and texts are bounded. */
static void digest(const struct kv_identity_type *t, const void *object, uint8_t out[32])
{
    uint8_t bytes[KV_IDENTITY_MAX_BYTES];
    size_t len = 0;
    kv_identity_encode(t, object, bytes, sizeof bytes, &len);
    kv_sha256(bytes, len, out);
}

struct kv_prefix_digest kv_prefix_extend(const struct kv_prefix_digest *previous, const int32_t *tokens, int32_t n)
{
    uint8_t bytes[512];
    struct writer w = {bytes, sizeof bytes, 0};
    struct kv_prefix_digest first = {{0}}, out;
    put_domain(&w, "kvasir.prefix.v1");
    put_typed(&w, KV_ID_DIGEST, (previous ? previous : &first)->b);
    if (n > 64) n = 64;
    put_u64(&w, (uint64_t)n, 4);
    for (int32_t i = 0; i < n; i++) put_u64(&w, (uint32_t)tokens[i], 4);
    kv_sha256(bytes, w.len, out.b);
    return out;
}

struct kv_chunk_digest kv_chunk_digest(const struct kv_chunk_identity *c)
{
    struct kv_chunk_digest d;
    digest(&kv_chunk_type, c, d.b);
    return d;
}

uint64_t kv_chunk_key(const struct kv_chunk_identity *c)
{
    /* What tells the chunks of one model and tenant apart; the other fields seldom differ and are left to the comparison. */
    struct {
        struct kv_prefix_digest prefix;
        int32_t layer, head_first, head_count, position_first, position_count, zero;
        uint64_t ns;
    } fields = {c->prefix, c->layer, c->head_first, c->head_count, c->position_first, c->position_count, 0, c->ns.n};
    uint64_t model;
    memcpy(&model, c->model.b, sizeof model);
    return XXH3_64bits_withSeed(&fields, sizeof fields, model ^ XXH3_64bits(c->tenant, strnlen(c->tenant, sizeof c->tenant)));
}

struct kv_row_digest kv_row_digest(const struct kv_chunk_digest *c, int32_t offset)
{
    uint8_t bytes[128];
    struct writer w = {bytes, sizeof bytes, 0};
    struct kv_row_digest d;
    put_domain(&w, "kvasir.row.v1");
    put_typed(&w, KV_ID_DIGEST, c->b);
    put_typed(&w, KV_ID_I32, (const uint8_t *)&offset);
    kv_sha256(bytes, w.len, d.b);
    return d;
}

struct kv_replica_digest kv_replica_digest(const struct kv_replica_identity *r)
{
    struct kv_replica_digest d;
    digest(&kv_replica_type, r, d.b);
    return d;
}

struct kv_source_digest kv_source_digest(const struct kv_source_binding *b, int32_t n_layers, int32_t n_kv_heads, int32_t d_head, enum kv_contract contract)
{
    uint8_t bytes[KV_IDENTITY_MAX_BYTES];
    struct kv_source_digest d;
    size_t len = 0;
    kv_identity_encode(&kv_source_type, b, bytes, sizeof bytes, &len);
    struct writer w = {bytes, sizeof bytes, len};
    int32_t geometry[4] = {n_layers, n_kv_heads, d_head, (int32_t)contract};
    for (int i = 0; i < 4; i++) put_typed(&w, KV_ID_I32, (const uint8_t *)&geometry[i]);
    kv_sha256(bytes, w.len, d.b);
    return d;
}

struct kv_support_digest kv_support_digest(const int32_t *positions, int32_t n)
{
    /* Chained by 64 like a prefix, so that no size is unbounded here. */
    struct kv_prefix_digest chain = kv_prefix_extend(NULL, positions, n < 64 ? n : 64);
    for (int32_t i = 64; i < n; i += 64) chain = kv_prefix_extend(&chain, positions + i, n - i < 64 ? n - i : 64);
    uint8_t bytes[128];
    struct writer w = {bytes, sizeof bytes, 0};
    struct kv_support_digest d;
    put_domain(&w, "kvasir.support.v1");
    put_typed(&w, KV_ID_DIGEST, chain.b);
    put_u64(&w, (uint64_t)n, 4);
    kv_sha256(bytes, w.len, d.b);
    return d;
}
