/* receipts.c — names of row kinds, and the canonical bytes of a row. */
#include "controller/store/receipts.h"

#include "controller/store/canonical.h"

#include <string.h>
#include <strings.h>

static const char *const own_names[] = {
    "TRANSITION", "SUPERSEDED", "GATE", "DECISION", "POLICY", "POLICY_FAULT", "ROLLOUT", "AUDIT", "STORE", "DRILL", "DELETION",
};
_Static_assert(sizeof own_names / sizeof *own_names == KV_ROW_KINDS - KV_RECEIPT_KINDS, "a row kind has no name");

const char *kv_row_kind_name(int kind)
{
    if (kind < 0 || kind >= KV_ROW_KINDS) return "UNKNOWN";
    return kind < KV_RECEIPT_KINDS ? kv_receipt_kind_name((enum kv_receipt_kind)kind) : own_names[kind - KV_RECEIPT_KINDS];
}

int kv_row_kind_from_name(const char *name)
{
    for (int k = 0; k < KV_ROW_KINDS; k++)
        if (!strcasecmp(kv_row_kind_name(k), name)) return k;
    return KV_ROW_KINDS;
}

void kv_receipt_init(struct kv_receipt *r, int kind, int64_t at_us)
{
    memset(r, 0, sizeof *r);
    r->kind = (enum kv_receipt_kind)kind;
    r->at_us = at_us;
    r->layer = r->kv_head = r->q_head = -1;
    r->position = -1;
}

size_t kv_receipt_bytes(uint64_t id, const struct kv_receipt *r, uint8_t out[KV_RECEIPT_BYTES])
{
    struct kv_canonical c = {out, KV_RECEIPT_BYTES, 0};
    kv_canonical_text(&c, "kvasir-receipt-1");
    kv_canonical_u64(&c, id);
    kv_canonical_i64(&c, r->at_us);
    kv_canonical_text(&c, kv_row_kind_name((int)r->kind));
    kv_canonical_text(&c, kv_status_name(r->reason));
    kv_canonical_u64(&c, r->request);
    kv_canonical_u64(&c, r->candidate);
    kv_canonical_u64(&c, r->epoch);
    kv_canonical_u64(&c, (uint64_t)r->contract << 1 | (uint64_t)r->published);
    kv_canonical_i64(&c, r->layer);
    kv_canonical_i64(&c, r->kv_head);
    kv_canonical_i64(&c, r->q_head);
    kv_canonical_i64(&c, r->position);
    kv_canonical_u64(&c, r->bytes);
    kv_canonical_u64(&c, r->rows);
    kv_canonical_u64(&c, r->rows_total);
    kv_canonical_u64(&c, r->tokens);
    kv_canonical_f64(&c, r->value);
    kv_canonical_bytes(&c, r->digest, sizeof r->digest);
    kv_canonical_text(&c, r->tenant);
    kv_canonical_text(&c, r->session);
    kv_canonical_text(&c, r->detail);
    return c.n;
}

void kv_receipt_hash(const uint8_t previous[32], uint64_t id, const struct kv_receipt *r, uint8_t out[32])
{
    uint8_t buf[32 + KV_RECEIPT_BYTES];
    memcpy(buf, previous, 32);
    size_t n = kv_receipt_bytes(id, r, buf + 32);
    kv_sha256(buf, 32 + n, out);
}
