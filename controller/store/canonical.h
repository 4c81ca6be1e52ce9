/* canonical.h — typed, length-prefixed fields in a fixed order: the bytes that manifests and receipts are hashed over.
 *
 * A field is one type byte, a little-endian 32-bit length and its value, so no two different sequences of fields give the same bytes. */
#ifndef KV_CANONICAL_H
#define KV_CANONICAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_canonical {
    uint8_t *out;
    size_t cap, n; /* n: bytes needed, also past cap */
};
void kv_canonical_text(struct kv_canonical *c, const char *s); /* NULL is the empty text */
void kv_canonical_u64(struct kv_canonical *c, uint64_t v);
void kv_canonical_i64(struct kv_canonical *c, int64_t v);
void kv_canonical_f64(struct kv_canonical *c, double v);       /* IEEE bits; -0 and 0 differ, every NaN is one */
void kv_canonical_bytes(struct kv_canonical *c, const void *p, size_t n);

/* The same fields read back in the same order. After any mismatch of type or length every further read fails. */
struct kv_canonical_reader {
    const uint8_t *in;
    size_t n, at;
    bool failed;
};
bool kv_canonical_read_text(struct kv_canonical_reader *r, char *out, size_t cap);
uint64_t kv_canonical_read_u64(struct kv_canonical_reader *r);
int64_t kv_canonical_read_i64(struct kv_canonical_reader *r);
double kv_canonical_read_f64(struct kv_canonical_reader *r);
bool kv_canonical_read_bytes(struct kv_canonical_reader *r, void *out, size_t n);

#endif
