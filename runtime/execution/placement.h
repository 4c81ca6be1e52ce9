/* placement.h — where K/V rows live while a sequence decodes, and how a layer's rows become readable by the kernels.
 *
 * A placement answers, per layer of one step, the block pointers that attention reads. Exact placements publish the same bits.
 * prefetch/acquire/release are called by the decode thread on layer borders, in layer order; transfer threads do the copying. */
#ifndef KV_PLACEMENT_H
#define KV_PLACEMENT_H

#include "runtime/kvasir.h"

struct kv_sequence;      /* runtime/service/sequence.h */
struct kv_placement_ctx; /* per engine: arenas, staging slots, link model */

struct kv_placement {
    const char *name; /* "resident", "layerwise" */
    /* Start moving layer's committed blocks of these sequences; returns at once. May be NULL. */
    void (*prefetch)(struct kv_placement_ctx *ctx, struct kv_sequence *const *seqs, int32_t n, int32_t layer);
    /* Wait until layer's rows are readable and point each sequence's k/v block tables at them. */
    enum kv_status (*acquire)(struct kv_placement_ctx *ctx, struct kv_sequence *const *seqs, int32_t n, int32_t layer);
    /* The layer's attention is done; its slot may be reused. */
    void (*release)(struct kv_placement_ctx *ctx, struct kv_sequence *const *seqs, int32_t n, int32_t layer);
};

const struct kv_placement *kv_placement_find(const char *name);

#endif
