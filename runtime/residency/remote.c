/* remote.c — see remote.h. */
#include "runtime/residency/remote.h"

#include "runtime/residency/extent.h"
#include "runtime/residency/mover.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define OBJECT_MAGIC UINT64_C(0x314a424f4552564b) /* "KVREOBJ1" */

struct object_head { /* followed by ciphertext and tag */
    uint64_t magic, payload_bytes;
    uint8_t salt[KV_EXTENT_SALT];
};

struct kv_remote {
    struct kv_remote_io io;
    uint8_t key[32], name_key[32];
    double pause_us;
    pthread_mutex_t lock;
    /* Under the lock. */
    struct kv_remote_stats stats;
    int32_t strikes;
    double open_until_us, full_until_us; /* of kv_now_us */
};

const struct kv_tier_capability kv_remote_capability = {.name = "remote", .address_space = "object", .codecs = "identity", .layouts = "block-64", .persistence = "store",
                                                        .trust = "authenticated", .alignment_bytes = 1, .checksum = "aes-256-gcm"};

const char *kv_breaker_name(enum kv_breaker b)
{
    static const char *const names[] = {"closed", "open", "trial", "full"};
    return names[b];
}

/* ---------------------------------------------------------------- whether to ask */

static bool open_now(const struct kv_remote *r)
{
    return r->stats.breaker == KV_BREAKER_TRIAL || (r->stats.breaker == KV_BREAKER_OPEN && kv_now_us() < r->open_until_us);
}

bool kv_remote_asks(struct kv_remote *r)
{
    pthread_mutex_lock(&r->lock);
    bool asks = !open_now(r);
    pthread_mutex_unlock(&r->lock);
    return asks;
}

static bool full_now(const struct kv_remote *r)
{
    return kv_now_us() < r->full_until_us;
}

bool kv_remote_takes(struct kv_remote *r)
{
    pthread_mutex_lock(&r->lock);
    bool takes = !open_now(r) && !full_now(r);
    pthread_mutex_unlock(&r->lock);
    return takes;
}

void kv_remote_skipped(struct kv_remote *r, uint64_t n)
{
    pthread_mutex_lock(&r->lock);
    r->stats.skipped += n;
    pthread_mutex_unlock(&r->lock);
}

/* OK: the call may be made, and is then to be left. */
static enum kv_status enter(struct kv_remote *r, bool sends)
{
    pthread_mutex_lock(&r->lock);
    enum kv_status s = open_now(r) ? KV_REMOTE_UNAVAILABLE : sends && full_now(r) ? KV_NO_SPACE : KV_OK;
    if (s != KV_OK) r->stats.skipped++;
    else if (r->stats.breaker == KV_BREAKER_OPEN) r->stats.breaker = KV_BREAKER_TRIAL;
    pthread_mutex_unlock(&r->lock);
    return s;
}

/* Of the store as a whole, not of this one object. */
static bool strikes(enum kv_status s)
{
    return s == KV_REMOTE_TIMEOUT || s == KV_REMOTE_UNAVAILABLE || s == KV_UNAUTHENTICATED || s == KV_FORBIDDEN || s == KV_RATE_LIMITED;
}

static void count_failure(struct kv_remote *r, enum kv_status s)
{
    r->stats.failures++;
    r->stats.last_failure = s;
    r->stats.last_failure_us = kv_wall_us();
}

static enum kv_status leave(struct kv_remote *r, enum kv_status s)
{
    pthread_mutex_lock(&r->lock);
    bool tried = r->stats.breaker == KV_BREAKER_TRIAL;
    if (strikes(s)) {
        if (++r->strikes >= KV_REMOTE_STRIKES || tried) {
            r->stats.breaker = KV_BREAKER_OPEN;
            r->open_until_us = kv_now_us() + r->pause_us;
        }
    } else if (s != KV_TRANSFER_CANCELLED) {
        r->strikes = 0;
        r->stats.breaker = KV_BREAKER_CLOSED;
    } else if (tried) r->stats.breaker = KV_BREAKER_OPEN; /* nothing was learnt: the next call tries */
    if (s != KV_OK && s != KV_NOT_FOUND && s != KV_TRANSFER_CANCELLED) count_failure(r, s);
    pthread_mutex_unlock(&r->lock);
    return s;
}

/* After a put. */
static enum kv_status note_room(struct kv_remote *r, enum kv_status s)
{
    pthread_mutex_lock(&r->lock);
    if (s == KV_NO_SPACE || s == KV_BODY_TOO_LARGE) r->full_until_us = kv_now_us() + r->pause_us;
    pthread_mutex_unlock(&r->lock);
    return s;
}

static void count(struct kv_remote *r, uint64_t *counter, uint64_t n)
{
    pthread_mutex_lock(&r->lock);
    *counter += n;
    pthread_mutex_unlock(&r->lock);
}

/* ---------------------------------------------------------------- names and objects */

static enum kv_status name_of(const struct kv_remote *r, const struct kv_chunk_identity *id, char out[KV_REMOTE_NAME_CHARS + 1])
{
    uint8_t bytes[KV_IDENTITY_MAX_BYTES], mac[32];
    size_t n = 0;
    enum kv_status s = kv_identity_encode(&kv_chunk_type, id, bytes, sizeof bytes, &n);
    if (s == KV_OK && gnutls_hmac_fast(GNUTLS_MAC_SHA256, r->name_key, sizeof r->name_key, bytes, n, mac)) s = KV_INTERNAL;
    if (s == KV_OK) kv_hex(mac, sizeof mac, out);
    return s;
}

static enum kv_status cipher_of(const struct kv_remote *r, const struct kv_chunk_identity *id, uint64_t bytes, const uint8_t *salt, struct kv_extent_header *h,
                                gnutls_aead_cipher_hd_t *cipher)
{
    enum kv_status s = kv_extent_header(0, bytes, id, h);
    return s == KV_OK ? kv_extent_cipher(r->key, salt, id->tenant, cipher) : s;
}

/* A salt of its own for every object, so that the one nonce is used once under each key. */
static enum kv_status seal(const struct kv_remote *r, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint8_t *object)
{
    struct object_head head = {.magic = OBJECT_MAGIC, .payload_bytes = bytes};
    struct kv_extent_header h;
    gnutls_aead_cipher_hd_t cipher;
    if (gnutls_rnd(GNUTLS_RND_NONCE, head.salt, sizeof head.salt)) return KV_INTERNAL;
    memcpy(object, &head, sizeof head);
    enum kv_status s = cipher_of(r, id, bytes, head.salt, &h, &cipher);
    if (s != KV_OK) return s;
    s = kv_extent_seal(cipher, &h, payload, object + sizeof head);
    gnutls_aead_cipher_deinit(cipher);
    return s;
}

static enum kv_status unseal(const struct kv_remote *r, const struct kv_chunk_identity *id, const uint8_t *object, void *dst, uint64_t bytes)
{
    struct object_head head;
    struct kv_extent_header h;
    gnutls_aead_cipher_hd_t cipher;
    memcpy(&head, object, sizeof head);
    if (head.magic != OBJECT_MAGIC || head.payload_bytes != bytes) return KV_CHECKSUM_MISMATCH;
    enum kv_status s = cipher_of(r, id, bytes, head.salt, &h, &cipher);
    if (s != KV_OK) return s;
    s = kv_extent_unseal(cipher, &h, object + sizeof head, dst);
    gnutls_aead_cipher_deinit(cipher);
    return s;
}

static size_t object_bytes(uint64_t payload_bytes)
{
    return sizeof(struct object_head) + payload_bytes + KV_EXTENT_TAG;
}

/* ---------------------------------------------------------------- calls */

enum kv_status kv_remote_put(struct kv_remote *r, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, const _Atomic bool *stop)
{
    char name[KV_REMOTE_NAME_CHARS + 1];
    enum kv_status s = name_of(r, id, name);
    if (s == KV_OK && (s = enter(r, true)) == KV_OK) {
        s = leave(r, r->io.has(r->io.ctx, name, stop));
        if (s == KV_OK) count(r, &r->stats.kept, 1);
    }
    if (s != KV_NOT_FOUND) return s;
    uint8_t *object = malloc(object_bytes(bytes));
    s = object ? seal(r, id, payload, bytes, object) : KV_OUT_OF_MEMORY;
    if (s == KV_OK && (s = enter(r, true)) == KV_OK) s = note_room(r, leave(r, r->io.put(r->io.ctx, name, object, object_bytes(bytes), stop)));
    free(object);
    if (s != KV_OK) return s;
    count(r, &r->stats.puts, 1);
    count(r, &r->stats.bytes_out, object_bytes(bytes));
    return KV_OK;
}

enum kv_status kv_remote_get(struct kv_remote *r, const struct kv_chunk_identity *id, void *dst, uint64_t bytes, const _Atomic bool *stop)
{
    char name[KV_REMOTE_NAME_CHARS + 1];
    size_t n = 0, whole = object_bytes(bytes);
    enum kv_status s = name_of(r, id, name);
    uint8_t *object = s == KV_OK ? malloc(whole) : NULL;
    if (!object) return s == KV_OK ? KV_OUT_OF_MEMORY : s;
    if ((s = enter(r, false)) == KV_OK) {
        s = r->io.get(r->io.ctx, name, object, whole, &n, stop);
        count(r, &r->stats.bytes_in, n);
        if (s == KV_OK) s = n == whole ? unseal(r, id, object, dst, bytes) : KV_SHORT_COPY;
        s = leave(r, s);
        if (s == KV_OK) count(r, &r->stats.hits, 1);
        if (s == KV_NOT_FOUND) count(r, &r->stats.misses, 1);
        if (s == KV_CHECKSUM_MISMATCH || s == KV_SHORT_COPY) {
            count(r, &r->stats.refused, 1);
            (void)kv_remote_erase(r, id, stop);
        }
    }
    free(object);
    return s;
}

enum kv_status kv_remote_erase(struct kv_remote *r, const struct kv_chunk_identity *id, const _Atomic bool *stop)
{
    char name[KV_REMOTE_NAME_CHARS + 1];
    enum kv_status s = name_of(r, id, name);
    if (s == KV_OK) s = enter(r, false);
    if (s != KV_OK) return s;
    s = leave(r, r->io.erase(r->io.ctx, name, stop));
    if (s == KV_OK) count(r, &r->stats.erased, 1);
    return s == KV_NOT_FOUND ? KV_OK : s;
}

enum kv_status kv_remote_ask_facts(struct kv_remote *r, const _Atomic bool *stop)
{
    struct kv_remote_facts facts;
    enum kv_status s = enter(r, false);
    if (s != KV_OK) return s;
    s = leave(r, r->io.facts(r->io.ctx, &facts, stop));
    pthread_mutex_lock(&r->lock);
    if (s == KV_OK) r->stats.store = facts;
    pthread_mutex_unlock(&r->lock);
    return s;
}

void kv_remote_stats(struct kv_remote *r, struct kv_remote_stats *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->stats;
    if (out->breaker == KV_BREAKER_OPEN && !open_now(r)) out->breaker = KV_BREAKER_TRIAL; /* the next call tries */
    if (out->breaker == KV_BREAKER_CLOSED && full_now(r)) out->breaker = KV_BREAKER_FULL;
    pthread_mutex_unlock(&r->lock);
}

/* ---------------------------------------------------------------- life */

enum kv_status kv_remote_create(const struct kv_remote_io *io, const uint8_t key[32], int32_t pause_ms, struct kv_remote **out)
{
    static const char purpose[] = "kvasir remote names v1";
    struct kv_remote *r = *out = calloc(1, sizeof *r);
    if (!r) return KV_OUT_OF_MEMORY;
    r->io = *io;
    r->pause_us = pause_ms * 1e3;
    memcpy(r->key, key, sizeof r->key);
    pthread_mutex_init(&r->lock, NULL);
    return gnutls_hmac_fast(GNUTLS_MAC_SHA256, key, 32, purpose, sizeof purpose - 1, r->name_key) ? KV_INTERNAL : KV_OK;
}

void kv_remote_destroy(struct kv_remote *r)
{
    if (!r) return;
    gnutls_memset(r->key, 0, sizeof r->key);
    gnutls_memset(r->name_key, 0, sizeof r->name_key);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
