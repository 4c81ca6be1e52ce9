/* arriving.c — waits on a word that the reading thread moves. */
#include "runtime/execution/arriving.h"

#include "runtime/execution/futex.h"
#include "runtime/execution/resident.h"
#include "runtime/residency/mover.h"

static enum kv_status arriving_acquire(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer)
{
    uint32_t there = c->arrived ? atomic_load(c->arrived) : KV_ARRIVAL_FAILED; /* the largest: no wait either */
    double began = there <= (uint32_t)layer ? kv_now_us() : 0;
    while (there <= (uint32_t)layer) {
        kv_futex_wait(c->arrived, there, -1);
        there = atomic_load(c->arrived);
    }
    if (began > 0) c->arrival_wait_us += kv_now_us() - began;
    return kv_placement_resident.acquire(ctx, c, layer);
}

static enum kv_status arriving_admit(struct kv_placement_ctx *ctx, int32_t max_rows)
{
    return kv_placement_resident.admit(ctx, max_rows);
}

static void arriving_release(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer)
{
    kv_placement_resident.release(ctx, c, layer);
}

const struct kv_placement kv_placement_arriving = {.name = "arriving", .admit = arriving_admit, .acquire = arriving_acquire, .release = arriving_release};
