/* merkle.h — the root over a request's receipts: RFC 6962's tree, leaves added one by one. Pure. */
#ifndef KV_MERKLE_H
#define KV_MERKLE_H

#include <stddef.h>
#include <stdint.h>

struct kv_merkle {
    uint8_t node[64][32]; /* roots of perfect subtrees, the largest first */
    uint64_t n;           /* leaves; the subtrees' sizes are its bits */
};
void kv_merkle_add(struct kv_merkle *m, const uint8_t leaf[32]); /* m starts zeroed */
/* All zero without leaves. */
void kv_merkle_root(const struct kv_merkle *m, uint8_t out[32]);

#endif
