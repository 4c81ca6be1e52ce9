/* extent.h — how a payload is sealed before it leaves the process: encrypted and authenticated together with its identity. Disk and remote tier share it.
 *
 * Key: HMAC of the master key over a salt and the tenant; nonce: the offset. Whoever seals sees to it that no offset is used twice under one salt. The
 * associated data is the header's fields and the identity; the GCM tag is the payload hash. */
#ifndef KV_EXTENT_H
#define KV_EXTENT_H

#include "runtime/identity/identity.h"

#include <gnutls/crypto.h>

#define KV_EXTENT_MAGIC UINT64_C(0x3254584556534b56) /* "VKSVEXT2" */
enum { KV_EXTENT_TAG = 16, KV_EXTENT_SALT = 16 };

struct kv_extent_header {
    uint64_t magic, payload_bytes, sequence, offset;
    uint64_t durable; /* every extent of the segment up to this sequence had reached the disk when this one was written */
    uint32_t identity_bytes, reserved;
    uint8_t identity[KV_IDENTITY_MAX_BYTES];
    uint64_t checksum;
};

enum kv_status kv_extent_header(uint64_t offset, uint64_t payload_bytes, const struct kv_chunk_identity *id, struct kv_extent_header *out);
enum kv_status kv_extent_cipher(const uint8_t master[32], const uint8_t salt[KV_EXTENT_SALT], const char *tenant, gnutls_aead_cipher_hd_t *out);
/* out: payload_bytes + KV_EXTENT_TAG. */
enum kv_status kv_extent_seal(gnutls_aead_cipher_hd_t cipher, const struct kv_extent_header *h, const void *payload, uint8_t *out);
/* dst is zeroed unless OK; CHECKSUM_MISMATCH for whatever is not what was sealed under this header. */
enum kv_status kv_extent_unseal(gnutls_aead_cipher_hd_t cipher, const struct kv_extent_header *h, const uint8_t *sealed, void *dst);

/* The same bits piece by piece, so that the others are on their way meanwhile: in order, every piece but the last a multiple of 16 bytes. */
struct kv_extent_pieces {
    gnutls_cipher_hd_t cipher; /* NULL: not begun */
};
enum kv_status kv_extent_begin(const uint8_t master[32], const uint8_t salt[KV_EXTENT_SALT], const char *tenant, const struct kv_extent_header *h, struct kv_extent_pieces *out);
enum kv_status kv_extent_seal_piece(struct kv_extent_pieces *x, const uint8_t *payload, size_t n, uint8_t *out);
enum kv_status kv_extent_seal_end(struct kv_extent_pieces *x, uint8_t tag[KV_EXTENT_TAG]);
enum kv_status kv_extent_unseal_piece(struct kv_extent_pieces *x, const uint8_t *sealed, size_t n, uint8_t *dst);
enum kv_status kv_extent_unseal_end(struct kv_extent_pieces *x, const uint8_t tag[KV_EXTENT_TAG]); /* before it said OK nothing in dst may be used */
void kv_extent_give_up(struct kv_extent_pieces *x);

#endif
