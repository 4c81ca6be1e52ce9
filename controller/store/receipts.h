/* receipts.h — one row of the receipt chain: its kinds, its canonical bytes and its hash.
 *
 * Every durable fact is a struct kv_receipt (kvasir.h). The controller's own kinds continue the engine's. hash(n) =
 * SHA-256(hash(n-1) | canonical bytes of row n); the canonical bytes are typed, length-prefixed fields in a fixed order. Pure; any thread. */
#ifndef KV_RECEIPTS_H
#define KV_RECEIPTS_H

#include "runtime/kvasir.h"

enum kv_row_kind { /* stored by name; 0 … KV_RECEIPT_KINDS-1 are enum kv_receipt_kind */
    KV_ROW_TRANSITION = KV_RECEIPT_KINDS, /* a rollout moved; value: fraction */
    KV_ROW_SUPERSEDED,                    /* a committed advance that a rollback overtook */
    KV_ROW_GATE,                          /* a verdict changed; value: the metric's value */
    KV_ROW_DECISION,                      /* a release policy's proposal as C took it */
    KV_ROW_POLICY,                        /* a policy version was activated, or refused */
    KV_ROW_POLICY_FAULT,
    KV_ROW_ROLLOUT,                       /* created, retired, paused, resumed, skipped */
    KV_ROW_AUDIT,                         /* an operator's write through the API */
    KV_ROW_STORE,                         /* opened, recovered, closed */
    KV_ROW_DRILL,                         /* a drill of a candidate ended; value: violations */
    KV_ROW_DELETION,                      /* a session's rows are gone from every tier; bytes: of them, on disk */
    KV_ROW_KINDS
};
const char *kv_row_kind_name(int kind);   /* "REQUEST", …, "TRANSITION", … */
int kv_row_kind_from_name(const char *name); /* KV_ROW_KINDS: none */

struct kv_receipt_row {
    uint64_t id;
    struct kv_receipt r;
    uint8_t hash[32];
};
/* Empty receipt of a kind at a time, with layer, heads and position set to -1. */
void kv_receipt_init(struct kv_receipt *r, int kind, int64_t at_us);
#define KV_RECEIPT_BYTES 640 /* no row's canonical bytes are longer */
size_t kv_receipt_bytes(uint64_t id, const struct kv_receipt *r, uint8_t out[KV_RECEIPT_BYTES]);
void kv_receipt_hash(const uint8_t previous[32], uint64_t id, const struct kv_receipt *r, uint8_t out[32]);

#endif
