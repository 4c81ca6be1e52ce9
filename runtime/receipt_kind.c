/* receipt_kind.c — names of receipt kinds. */
#include "runtime/kvasir.h"

const char *kv_receipt_kind_name(enum kv_receipt_kind k)
{
    static const char *const names[KV_RECEIPT_KINDS] = {"REQUEST", "PUBLICATION", "FALLBACK", "TRANSFER", "FAILURE", "ROLLBACK", "RECOMPUTE"};
    return (unsigned)k < KV_RECEIPT_KINDS ? names[k] : "UNKNOWN";
}
