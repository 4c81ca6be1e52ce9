/* hash.c — SHA-256 by GnuTLS, and digests as text. */
#include "runtime/kvasir.h"

#include <gnutls/crypto.h>
#include <stdlib.h>

void kv_sha256(const void *data, size_t n, uint8_t out[32])
{
    /* GnuTLS fails here only when the library itself is broken; no digest is then better than a wrong one. */
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, data, n, out) != 0) abort();
}

void kv_hex(const uint8_t *bytes, size_t n, char *out)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[bytes[i] >> 4];
        out[2 * i + 1] = digit[bytes[i] & 15];
    }
    out[2 * n] = 0;
}
