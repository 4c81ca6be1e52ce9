/* extent.c — see extent.h. */
#include "runtime/residency/extent.h"

#include <string.h>

static bool derive(const uint8_t master[32], const uint8_t salt[KV_EXTENT_SALT], const char *tenant, uint8_t key[32])
{
    uint8_t text[KV_EXTENT_SALT + KV_NAME_CHARS] = {0};
    memcpy(text, salt, KV_EXTENT_SALT);
    memcpy(text + KV_EXTENT_SALT, tenant, strnlen(tenant, KV_NAME_CHARS));
    return gnutls_hmac_fast(GNUTLS_MAC_SHA256, master, 32, text, sizeof text, key) == 0;
}

enum kv_status kv_extent_cipher(const uint8_t master[32], const uint8_t salt[KV_EXTENT_SALT], const char *tenant, gnutls_aead_cipher_hd_t *out)
{
    uint8_t key[32];
    if (!derive(master, salt, tenant, key)) return KV_INTERNAL;
    gnutls_datum_t k = {key, sizeof key};
    int e = gnutls_aead_cipher_init(out, GNUTLS_CIPHER_AES_256_GCM, &k);
    gnutls_memset(key, 0, sizeof key);
    return e ? KV_INTERNAL : KV_OK;
}

enum kv_status kv_extent_header(uint64_t offset, uint64_t payload_bytes, const struct kv_chunk_identity *id, struct kv_extent_header *out)
{
    size_t n = 0;
    memset(out, 0, sizeof *out);
    out->magic = KV_EXTENT_MAGIC;
    out->payload_bytes = payload_bytes;
    out->offset = offset;
    enum kv_status s = kv_identity_encode(&kv_chunk_type, id, out->identity, sizeof out->identity, &n);
    out->identity_bytes = (uint32_t)n;
    return s;
}

/* Sequences order extents at rebuild and are renumbered then, so they are no part of what the tag covers. */
static struct kv_extent_header associated(const struct kv_extent_header *h)
{
    struct kv_extent_header a = *h;
    a.sequence = a.durable = a.checksum = 0;
    return a;
}

static void nonce_of(uint64_t offset, uint8_t out[12])
{
    memset(out, 0, 12);
    memcpy(out, &offset, 8);
}

enum kv_status kv_extent_seal(gnutls_aead_cipher_hd_t cipher, const struct kv_extent_header *h, const void *payload, uint8_t *out)
{
    struct kv_extent_header aad = associated(h);
    uint8_t nonce[12];
    size_t n = h->payload_bytes + KV_EXTENT_TAG;
    nonce_of(h->offset, nonce);
    return gnutls_aead_cipher_encrypt(cipher, nonce, sizeof nonce, &aad, sizeof aad, KV_EXTENT_TAG, payload, h->payload_bytes, out, &n) ? KV_INTERNAL : KV_OK;
}

enum kv_status kv_extent_unseal(gnutls_aead_cipher_hd_t cipher, const struct kv_extent_header *h, const uint8_t *sealed, void *dst)
{
    struct kv_extent_header aad = associated(h);
    uint8_t nonce[12];
    size_t n = h->payload_bytes;
    nonce_of(h->offset, nonce);
    if (!gnutls_aead_cipher_decrypt(cipher, nonce, sizeof nonce, &aad, sizeof aad, KV_EXTENT_TAG, sealed, h->payload_bytes + KV_EXTENT_TAG, dst, &n) && n == h->payload_bytes) return KV_OK;
    memset(dst, 0, h->payload_bytes);
    return KV_CHECKSUM_MISMATCH;
}

enum kv_status kv_extent_begin(const uint8_t master[32], const uint8_t salt[KV_EXTENT_SALT], const char *tenant, const struct kv_extent_header *h, struct kv_extent_pieces *out)
{
    struct kv_extent_header aad = associated(h);
    uint8_t key[32], nonce[12];
    if (!derive(master, salt, tenant, key)) return KV_INTERNAL;
    nonce_of(h->offset, nonce);
    gnutls_datum_t k = {key, sizeof key}, n = {nonce, sizeof nonce};
    bool begun = gnutls_cipher_init(&out->cipher, GNUTLS_CIPHER_AES_256_GCM, &k, &n) == 0;
    gnutls_memset(key, 0, sizeof key);
    if (!begun) out->cipher = NULL;
    return begun && gnutls_cipher_add_auth(out->cipher, &aad, sizeof aad) == 0 ? KV_OK : KV_INTERNAL;
}

enum kv_status kv_extent_seal_piece(struct kv_extent_pieces *x, const uint8_t *payload, size_t n, uint8_t *out)
{
    return gnutls_cipher_encrypt2(x->cipher, payload, n, out, n) == 0 ? KV_OK : KV_INTERNAL;
}

enum kv_status kv_extent_unseal_piece(struct kv_extent_pieces *x, const uint8_t *sealed, size_t n, uint8_t *dst)
{
    return gnutls_cipher_decrypt2(x->cipher, sealed, n, dst, n) == 0 ? KV_OK : KV_INTERNAL;
}

void kv_extent_give_up(struct kv_extent_pieces *x)
{
    if (x->cipher) gnutls_cipher_deinit(x->cipher);
    x->cipher = NULL;
}

enum kv_status kv_extent_seal_end(struct kv_extent_pieces *x, uint8_t tag[KV_EXTENT_TAG])
{
    int e = gnutls_cipher_tag(x->cipher, tag, KV_EXTENT_TAG);
    kv_extent_give_up(x);
    return e ? KV_INTERNAL : KV_OK;
}

enum kv_status kv_extent_unseal_end(struct kv_extent_pieces *x, const uint8_t tag[KV_EXTENT_TAG])
{
    uint8_t computed[KV_EXTENT_TAG];
    return kv_extent_seal_end(x, computed) == KV_OK && gnutls_memcmp(computed, tag, sizeof computed) == 0 ? KV_OK : KV_CHECKSUM_MISMATCH;
}
