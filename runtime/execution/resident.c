/* resident.c — nothing moves. */
#include "runtime/execution/resident.h"

#include <string.h>

static enum kv_status resident_admit(struct kv_placement_ctx *ctx, int32_t max_rows)
{
    (void)ctx, (void)max_rows;
    return KV_OK;
}

static enum kv_status resident_acquire(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer)
{
    (void)ctx;
    if (layer < 0 || layer >= c->n_layers) return KV_BAD_ARGUMENT;
    uint8_t *const *slabs = c->slab + (size_t)layer * (size_t)c->max_blocks;
    for (int32_t b = 0; b < c->n_blocks; b++) c->read[b] = slabs[b];
    return KV_OK;
}

static void resident_release(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer)
{
    (void)ctx, (void)layer;
    memset(c->read, 0, (size_t)c->max_blocks * sizeof *c->read);
}

const struct kv_placement kv_placement_resident = {
    .name = "resident", .admit = resident_admit, .acquire = resident_acquire, .release = resident_release};
