/* merkle.c — see merkle.h. A leaf is hashed after a zero byte, a node after a one, so that neither passes for the other. */
#include "controller/store/merkle.h"

#include "runtime/kvasir.h"

#include <string.h>

static void join(const uint8_t left[32], const uint8_t right[32], uint8_t out[32])
{
    uint8_t text[65] = {1};
    memcpy(text + 1, left, 32);
    memcpy(text + 33, right, 32);
    kv_sha256(text, sizeof text, out);
}

static int subtrees(uint64_t n)
{
    int count = 0;
    for (; n; n &= n - 1) count++;
    return count;
}

void kv_merkle_add(struct kv_merkle *m, const uint8_t leaf[32])
{
    uint8_t text[33] = {0};
    int top = subtrees(m->n);
    memcpy(text + 1, leaf, 32);
    kv_sha256(text, sizeof text, m->node[top]);
    for (uint64_t carry = m->n; carry & 1; carry >>= 1, top--) join(m->node[top - 1], m->node[top], m->node[top - 1]);
    m->n++;
}

void kv_merkle_root(const struct kv_merkle *m, uint8_t out[32])
{
    int top = subtrees(m->n) - 1;
    memset(out, 0, 32);
    if (top < 0) return;
    memcpy(out, m->node[top], 32);
    for (int i = top - 1; i >= 0; i--) join(m->node[i], out, out);
}
