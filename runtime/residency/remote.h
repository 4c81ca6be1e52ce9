/* remote.h — blocks of rows in a store that several machines share, each one object: sealed, and named so that only who has the key and the identity
 * can ask for it.
 *
 * Name: HMAC of the identity under a key of its own, derived from the master key. Object: magic, payload length and salt, then ciphertext and tag; the
 * identity is associated data and never leaves the machine. What is not exactly what was sealed under that identity is refused and erased, so that it
 * is not asked for again. After KV_REMOTE_STRIKES failures in a row nothing is asked for a while; then one call tries. A store that had no room for an
 * object, or takes none so long, is sent nothing for as long; what it has is asked for still. Any thread. */
#ifndef KV_REMOTE_H
#define KV_REMOTE_H

#include "runtime/residency/tier.h"

#include <stdatomic.h>

#define KV_REMOTE_STRIKES 3
#define KV_REMOTE_NAME_CHARS 64 /* hexadecimal */

struct kv_remote_facts { /* of the store, shared by all its users */
    uint64_t objects, bytes, capacity_bytes;
};
/* What carries objects. Every call returns within its own time limit, and sooner once *stop: TRANSFER_CANCELLED. NOT_FOUND: no object has that name. */
struct kv_remote_io {
    void *ctx;
    enum kv_status (*put)(void *ctx, const char *name, const void *object, size_t n, const _Atomic bool *stop);
    /* *n: bytes that came; more than cap is CHECKSUM_MISMATCH. */
    enum kv_status (*get)(void *ctx, const char *name, void *object, size_t cap, size_t *n, const _Atomic bool *stop);
    enum kv_status (*has)(void *ctx, const char *name, const _Atomic bool *stop);
    enum kv_status (*erase)(void *ctx, const char *name, const _Atomic bool *stop);
    enum kv_status (*facts)(void *ctx, struct kv_remote_facts *out, const _Atomic bool *stop);
};

enum kv_breaker { KV_BREAKER_CLOSED, KV_BREAKER_OPEN, KV_BREAKER_TRIAL, KV_BREAKER_FULL };
const char *kv_breaker_name(enum kv_breaker b); /* "closed" */

struct kv_remote_stats {
    uint64_t hits, misses, puts, kept, erased, failures, refused, skipped; /* kept: was there already; refused: not what was sealed; skipped: not asked */
    uint64_t bytes_in, bytes_out;                                           /* read from the store; written to it */
    struct kv_remote_facts store;                                           /* as it last said */
    enum kv_breaker breaker;
    enum kv_status last_failure;
    int64_t last_failure_us; /* CLOCK_REALTIME; 0: never */
};

struct kv_remote;
enum kv_status kv_remote_create(const struct kv_remote_io *io, const uint8_t key[32], int32_t pause_ms, struct kv_remote **out);
void kv_remote_destroy(struct kv_remote *r);
/* Before a transfer is prepared: whether it would be tried; takes: whether a put would. */
bool kv_remote_asks(struct kv_remote *r);
bool kv_remote_takes(struct kv_remote *r);
void kv_remote_skipped(struct kv_remote *r, uint64_t n);
/* An object that is there already stays: its name says what it holds. NO_SPACE also while nothing is sent. */
enum kv_status kv_remote_put(struct kv_remote *r, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, const _Atomic bool *stop);
/* Nothing is in dst unless OK. NOT_FOUND is a miss; SHORT_COPY and CHECKSUM_MISMATCH are refusals; REMOTE_UNAVAILABLE also while nothing is asked. */
enum kv_status kv_remote_get(struct kv_remote *r, const struct kv_chunk_identity *id, void *dst, uint64_t bytes, const _Atomic bool *stop);
enum kv_status kv_remote_erase(struct kv_remote *r, const struct kv_chunk_identity *id, const _Atomic bool *stop); /* OK: it is gone, or never was */
enum kv_status kv_remote_ask_facts(struct kv_remote *r, const _Atomic bool *stop);
void kv_remote_stats(struct kv_remote *r, struct kv_remote_stats *out);
extern const struct kv_tier_capability kv_remote_capability;

#endif
