/* layerwise.h — move-to-compute: K/V stay in the host arena, and the layer in work is read from one of two staging slots in
 * the device arena while the transfer thread fills the other (contract §4).
 *
 *   FREE → FILLING → READY → IN_USE → FREE      one slot: one layer of one sequence
 *            └──────────┴── cancel ──→ FREE
 *
 * A completion is believed only when slot, allocation generation, owner and transfer generation all match what the slot is now.
 * Decode thread only; the copying is done by a kv_mover. */
#ifndef KV_LAYERWISE_H
#define KV_LAYERWISE_H

#include "runtime/execution/placement.h"
#include "runtime/residency/mover.h"

extern const struct kv_placement kv_placement_layerwise;

struct kv_layerwise; /* slots, device arena, transfer thread, measurements of one step */

enum kv_status kv_layerwise_create(const struct kv_placement_config *c, struct kv_layerwise **out);
void kv_layerwise_destroy(struct kv_layerwise *w);
void kv_layerwise_step_begin(struct kv_layerwise *w);
double kv_layerwise_step_end(struct kv_layerwise *w);
int32_t kv_layerwise_timings(const struct kv_layerwise *w, struct kv_layer_timing *out, int32_t cap);
void kv_layerwise_tier_stats(const struct kv_layerwise *w, struct kv_tier_stats *device);
/* What a completion meets: OK, or why it is refused — RECYCLED_DESTINATION when the slot serves another transfer by now,
 * SHORT_COPY when bytes are missing. Refusals count as failures. */
enum kv_status kv_layerwise_complete(struct kv_layerwise *w, const struct kv_completion *done);

/* The placement context: what placement.h hides from the engine. */
struct kv_placement_ctx {
    struct kv_placement_config config;
    struct kv_layerwise *layerwise;
    double *compute_us; /* [n_layers] of the step in work, as the engine measured it */
    double step_start_us;
};

#endif
