/* canonical.c — see canonical.h. */
#include "controller/store/canonical.h"

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

/* The next field's value if it has this type; *n is its length. */
static const uint8_t *take(struct kv_canonical_reader *r, char type, size_t *n)
{
    if (r->failed || r->n - r->at < 5 || r->in[r->at] != (uint8_t)type) return r->failed = true, NULL;
    const uint8_t *h = r->in + r->at;
    *n = (size_t)h[1] | (size_t)h[2] << 8 | (size_t)h[3] << 16 | (size_t)h[4] << 24;
    if (*n > r->n - r->at - 5) return r->failed = true, NULL;
    r->at += 5 + *n;
    return h + 5;
}

static uint64_t take_word(struct kv_canonical_reader *r, char type)
{
    size_t n;
    const uint8_t *p = take(r, type, &n);
    if (!p || n != 8) return r->failed = true, 0;
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

bool kv_canonical_read_text(struct kv_canonical_reader *r, char *out, size_t cap)
{
    size_t n = 0;
    const uint8_t *p = take(r, 't', &n);
    if (!p || n >= cap || memchr(p, 0, n)) return !(r->failed = true);
    memcpy(out, p, n);
    out[n] = 0;
    return true;
}

uint64_t kv_canonical_read_u64(struct kv_canonical_reader *r)
{
    return take_word(r, 'u');
}

int64_t kv_canonical_read_i64(struct kv_canonical_reader *r)
{
    return (int64_t)take_word(r, 'i');
}

double kv_canonical_read_f64(struct kv_canonical_reader *r)
{
    uint64_t bits = take_word(r, 'f');
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

bool kv_canonical_read_bytes(struct kv_canonical_reader *r, void *out, size_t n)
{
    size_t have = 0;
    const uint8_t *p = take(r, 'b', &have);
    if (!p || have != n) return !(r->failed = true);
    memcpy(out, p, n);
    return true;
}
