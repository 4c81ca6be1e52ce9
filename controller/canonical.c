/* canonical.c — see canonical.h. */
#include "controller/canonical.h"

#include <string.h>

static void field(struct kv_canonical *c, char type, const void *p, size_t n)
{
    uint8_t head[5] = {(uint8_t)type, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    if (c->n + sizeof head + n <= c->cap) {
        memcpy(c->out + c->n, head, sizeof head);
        if (n) memcpy(c->out + c->n + sizeof head, p, n);
    }
    c->n += sizeof head + n;
}

static void word(struct kv_canonical *c, char type, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++) b[i] = (uint8_t)(v >> (8 * i));
    field(c, type, b, sizeof b);
}

void kv_canonical_text(struct kv_canonical *c, const char *s)
{
    field(c, 't', s, s ? strlen(s) : 0);
}

void kv_canonical_u64(struct kv_canonical *c, uint64_t v)
{
    word(c, 'u', v);
}

void kv_canonical_i64(struct kv_canonical *c, int64_t v)
{
    word(c, 'i', (uint64_t)v);
}

void kv_canonical_f64(struct kv_canonical *c, double v)
{
    uint64_t bits = UINT64_C(0x7ff8000000000000);
    if (v == v) memcpy(&bits, &v, sizeof bits);
    word(c, 'f', bits);
}

void kv_canonical_bytes(struct kv_canonical *c, const void *p, size_t n)
{
    field(c, 'b', p, n);
}
