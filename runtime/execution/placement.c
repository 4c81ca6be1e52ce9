/* placement.c — the list of placements, and the context they share. */
#include "runtime/execution/placement.h"
#include "runtime/execution/layerwise.h"
#include "runtime/execution/resident.h"

#include <stdlib.h>
#include <string.h>

static const struct kv_placement *const placements[] = {&kv_placement_resident, &kv_placement_layerwise};

size_t kv_placement_count(void)
{
    return sizeof placements / sizeof *placements;
}

const struct kv_placement *kv_placement_at(size_t i)
{
    return i < kv_placement_count() ? placements[i] : NULL;
}

const struct kv_placement *kv_placement_find(const char *name)
{
    for (size_t i = 0; i < kv_placement_count(); i++)
        if (!strcmp(placements[i]->name, name)) return placements[i];
    return NULL;
}

enum kv_status kv_placement_ctx_create(const struct kv_placement_config *c, struct kv_placement_ctx **out, struct kv_error *err)
{
    *out = NULL;
    if (c->n_layers < 1 || c->n_layers > 4096 || c->n_kv_heads < 1 || !kv_row_bytes(c->row_type, c->d_head))
        return kv_fail(err, KV_BAD_ARGUMENT, "placement", "a placement needs layers, K/V heads and float rows");
    if (!(c->link_bytes_per_second >= 0) || !(c->link_latency_us >= 0))
        return kv_fail(err, KV_BAD_ARGUMENT, "tiers.device.link", "bandwidth and latency of the link cannot be negative");
    struct kv_placement_ctx *ctx = calloc(1, sizeof *ctx);
    if (!ctx) return kv_fail(err, KV_OUT_OF_MEMORY, "placement", "no memory for the placement context");
    ctx->config = *c;
    ctx->compute_us = calloc((size_t)c->n_layers, sizeof *ctx->compute_us);
    enum kv_status s = ctx->compute_us ? kv_layerwise_create(c, &ctx->layerwise) : KV_OUT_OF_MEMORY;
    if (s != KV_OK) {
        kv_placement_ctx_destroy(ctx);
        kv_fail(err, s, "tiers.device.capacity_bytes", "the device arena of %llu bytes could not be had", (unsigned long long)c->device_bytes);
        kv_hint(err, "lower tiers.device.capacity_bytes");
        return s;
    }
    *out = ctx;
    return KV_OK;
}

void kv_placement_ctx_destroy(struct kv_placement_ctx *ctx)
{
    if (!ctx) return;
    kv_layerwise_destroy(ctx->layerwise);
    free(ctx->compute_us);
    free(ctx);
}

void kv_placement_step_begin(struct kv_placement_ctx *ctx)
{
    ctx->step_start_us = kv_now_us();
    memset(ctx->compute_us, 0, (size_t)ctx->config.n_layers * sizeof *ctx->compute_us);
    kv_layerwise_step_begin(ctx->layerwise);
}

double kv_placement_step_end(struct kv_placement_ctx *ctx)
{
    return kv_layerwise_step_end(ctx->layerwise);
}

void kv_placement_compute(struct kv_placement_ctx *ctx, int32_t layer, double start_us, double end_us)
{
    if (layer >= 0 && layer < ctx->config.n_layers && end_us > start_us) ctx->compute_us[layer] += end_us - start_us;
}

int32_t kv_placement_timings(const struct kv_placement_ctx *ctx, struct kv_layer_timing *out, int32_t cap)
{
    int32_t n = kv_layerwise_timings(ctx->layerwise, out, cap);
    /* Layers that staged nothing know their compute from the engine alone. */
    for (int32_t l = 0; l < n; l++)
        if (out[l].compute_us == 0) out[l].compute_us = ctx->compute_us[l];
    return n;
}

void kv_placement_tier_stats(const struct kv_placement_ctx *ctx, struct kv_tier_stats *device)
{
    kv_layerwise_tier_stats(ctx->layerwise, device);
}
