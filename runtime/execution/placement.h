/* placement.h — where K/V rows live while a sequence decodes, and how one layer's rows become readable by the kernels.
 *
 * Every exact placement publishes the same bits. prefetch, acquire and release are called by the decode thread; the order over a step
 * is layer by layer and, within a layer, sequence by sequence; transfer threads do the copying. */
#ifndef KV_PLACEMENT_H
#define KV_PLACEMENT_H

#include "runtime/kvasir.h"
#include "runtime/residency/cache.h"

struct kv_placement_ctx; /* per engine: device arena, staging slots, link model, transfer threads, timings, tier counters */

struct kv_placement {
    const char *name; /* "resident", "layerwise" */
    /* Whether this cache fits the placement's staging; CAPACITY otherwise (the sequence then stays on the baseline). */
    enum kv_status (*admit)(struct kv_placement_ctx *ctx, int32_t max_rows);
    /* Start moving the sealed blocks of (cache, layer) to the device; returns at once. May be NULL. Called for the next pair in order
     * while the present one computes; a prefetch without an acquire is undone by cancel. */
    void (*prefetch)(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer);
    /* Wait until sealed blocks are readable, copy the open ones (rows of this step included), and fill c->read. */
    enum kv_status (*acquire)(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer);
    /* Attention of this layer is done; the slot may be reused. */
    void (*release)(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer);
    void (*cancel)(struct kv_placement_ctx *ctx, struct kv_cache *c); /* drop what was prefetched; may be NULL */
};

const struct kv_placement *kv_placement_find(const char *name);
size_t kv_placement_count(void);
const struct kv_placement *kv_placement_at(size_t i);

struct kv_placement_config {
    int32_t n_layers, n_kv_heads, d_head;
    enum kv_type row_type;
    uint64_t device_bytes;        /* device arena, staging slots included */
    double link_bytes_per_second; /* > 0: emulated link */
    double link_latency_us;
    bool serial;                  /* nothing moves ahead of its use */
    int32_t window_blocks;        /* newest sealed blocks of a layer that are never moved: they are taken to be on the device already */
};
enum kv_status kv_placement_ctx_create(const struct kv_placement_config *c, struct kv_placement_ctx **out, struct kv_error *err);
void kv_placement_ctx_destroy(struct kv_placement_ctx *ctx);
/* Step borders, so that timings and stall are per step; begin also undoes whatever the last step left prefetched or acquired. Decode thread. */
void kv_placement_step_begin(struct kv_placement_ctx *ctx);
double kv_placement_step_end(struct kv_placement_ctx *ctx); /* exposed stall of the step, microseconds */
void kv_placement_compute(struct kv_placement_ctx *ctx, int32_t layer, double start_us, double end_us); /* measured compute of a layer */
int32_t kv_placement_timings(const struct kv_placement_ctx *ctx, struct kv_layer_timing *out, int32_t cap);
void kv_placement_tier_stats(const struct kv_placement_ctx *ctx, struct kv_tier_stats *device);

#endif
