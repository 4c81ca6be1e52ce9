/* layerwise.c — two staging slots, one transfer thread, and the measurements that are set beside the recurrence. */
#include "runtime/execution/layerwise.h"
#include "runtime/execution/planner_pipeline.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_SLOTS = 2, MAX_JOBS = 8, UNITS_PER_LAYER = 64, DELAY_MS = 20 /* of the injected fault */ };

enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_READY, SLOT_IN_USE };

struct slot {
    enum slot_state state;
    struct kv_transfer_id id; /* what a completion must match */
    const struct kv_cache *owner;
    int32_t layer, n_sealed, n_moved; /* moved: the sealed ones before the window */
    int32_t n_slabs, cap;
    uint8_t **slab; /* [cap] of the device arena; n_slabs taken so far */
    struct kv_completion fetched;
    uint64_t held_bytes; /* of rows, since it was last free */
    int32_t unit; /* index in units while in use; -1 when there was no room */
};

struct unit { /* one (layer, sequence) of the step: what was measured */
    int32_t layer;
    double fetch_us, ready_us, ask_us, start_us, end_us, stall_us;
};

struct kv_layerwise {
    struct kv_placement_config config;
    size_t slab_bytes;
    struct kv_arena *arena;
    struct kv_mover *mover; /* NULL when the device arena cannot hold two slots */
    struct slot slots[N_SLOTS];
    uint64_t next_allocation, next_transfer;
    const uint8_t **src; /* [slot cap] scratch for submit */
    struct unit *units;
    struct kv_pipeline_stage *stages;
    int32_t n_units, max_units;
    double step_start_us, last_end_us;
    struct kv_layer_timing *last; /* [n_layers] of the last step that staged anything */
    uint64_t hits, misses, bytes_in, bytes_out, failures, receipt_bytes;
    enum kv_status last_failure;
    int64_t last_failure_us;
    bool broken; /* an assertion of contract §4 failed: acquire answers INTERNAL from then on */
};

enum kv_status kv_layerwise_create(const struct kv_placement_config *c, struct kv_layerwise **out)
{
    *out = NULL;
    struct kv_layerwise *w = calloc(1, sizeof *w);
    if (!w) return KV_OUT_OF_MEMORY;
    w->config = *c;
    w->slab_bytes = kv_slab_bytes(c->row_type, c->n_kv_heads, c->d_head);
    uint64_t per_slot = c->device_bytes / w->slab_bytes / N_SLOTS;
    int32_t cap = per_slot > (1 << 24) ? 1 << 24 : (int32_t)per_slot;
    enum kv_status s = kv_arena_create(w->slab_bytes, c->device_bytes, &w->arena);
    if (s != KV_OK) goto fail;
    s = KV_OUT_OF_MEMORY;
    w->max_units = c->n_layers * UNITS_PER_LAYER;
    w->units = calloc((size_t)w->max_units, sizeof *w->units);
    w->stages = calloc((size_t)w->max_units, sizeof *w->stages);
    w->last = calloc((size_t)c->n_layers, sizeof *w->last);
    w->src = calloc((size_t)cap + 1, sizeof *w->src);
    if (!w->units || !w->stages || !w->last || !w->src) goto fail;
    for (int i = 0; i < N_SLOTS; i++) {
        w->slots[i].cap = cap;
        w->slots[i].slab = calloc((size_t)cap + 1, sizeof *w->slots[i].slab);
        if (!w->slots[i].slab) goto fail;
    }
    if (cap > 0) {
        struct kv_link link = {c->link_bytes_per_second, c->link_latency_us};
        s = kv_mover_create(&link, MAX_JOBS, cap, &w->mover);
        if (s != KV_OK) goto fail;
    }
    *out = w;
    return KV_OK;
fail:
    kv_layerwise_destroy(w);
    return s;
}

void kv_layerwise_destroy(struct kv_layerwise *w)
{
    if (!w) return;
    kv_mover_destroy(w->mover);
    for (int i = 0; i < N_SLOTS; i++) free(w->slots[i].slab);
    kv_arena_destroy(w->arena);
    free(w->units);
    free(w->stages);
    free(w->last);
    free(w->src);
    free(w);
}

/* ---------------------------------------------------------------- slots and completions */

static void count_failure(struct kv_layerwise *w, enum kv_status why)
{
    w->failures++;
    w->last_failure = why;
    w->last_failure_us = kv_wall_us();
}

enum kv_status kv_layerwise_complete(struct kv_layerwise *w, const struct kv_completion *done)
{
    struct slot *s = &w->slots[done->id.destination % N_SLOTS];
    bool same = s->state == SLOT_FILLING && s->id.allocation_generation == done->id.allocation_generation &&
                s->id.owner == done->id.owner && s->id.transfer_generation == done->id.transfer_generation;
    w->receipt_bytes += done->bytes;
    if (!same) return KV_RECYCLED_DESTINATION;
    s->fetched = *done;
    s->state = SLOT_READY;
    enum kv_status r = done->status;
    if (r == KV_OK && done->bytes != (uint64_t)s->n_moved * w->slab_bytes) r = KV_SHORT_COPY;
    if (r != KV_OK) {
        s->state = SLOT_FREE;
        count_failure(w, r);
        return r;
    }
    w->bytes_in += done->bytes;
    s->held_bytes += done->bytes;
    return KV_OK;
}

static void drain(struct kv_layerwise *w)
{
    struct kv_completion done;
    while (kv_mover_next(w->mover, false, &done)) (void)kv_layerwise_complete(w, &done);
}

static struct slot *slot_of(struct kv_layerwise *w, const struct kv_cache *c, int32_t layer)
{
    for (int i = 0; i < N_SLOTS; i++)
        if (w->slots[i].state != SLOT_FREE && w->slots[i].owner == c && w->slots[i].layer == layer) return &w->slots[i];
    return NULL;
}

static struct slot *free_slot(struct kv_layerwise *w)
{
    for (int i = 0; i < N_SLOTS; i++)
        if (w->slots[i].state == SLOT_FREE) return &w->slots[i];
    return NULL;
}

/* Forgets what a slot holds. The source is no longer read when this returns; a late completion finds another generation. */
static void undo(struct kv_layerwise *w, struct slot *s)
{
    if (s->state == SLOT_FILLING) kv_mover_cancel(w->mover, s->id.transfer_generation);
    s->state = SLOT_FREE;
    s->id.allocation_generation = ++w->next_allocation;
    s->owner = NULL;
    w->bytes_out += s->held_bytes;
    s->held_bytes = 0;
}

static enum kv_status fill(struct kv_layerwise *w, struct slot *s, const struct kv_cache *c, int32_t layer)
{
    if (c->n_blocks > s->cap || c->slab_bytes != w->slab_bytes) return KV_CAPACITY;
    while (s->n_slabs < c->n_blocks) {
        uint8_t *slab = kv_arena_take(w->arena);
        if (!slab) return KV_CAPACITY;
        s->slab[s->n_slabs++] = slab;
    }
    s->owner = c;
    s->layer = layer;
    s->n_sealed = c->n_sealed;
    s->n_moved = c->n_sealed > w->config.window_blocks ? c->n_sealed - w->config.window_blocks : 0;
    s->id = (struct kv_transfer_id){.destination = (uint32_t)(s - w->slots), .allocation_generation = ++w->next_allocation,
                                    .owner = (uint64_t)(uintptr_t)c, .transfer_generation = ++w->next_transfer};
    if (s->n_moved == 0) { /* nothing to fetch: every block is open and comes at acquire, or in the window */
        s->fetched = (struct kv_completion){.id = s->id, .start_us = kv_now_us()};
        s->fetched.end_us = s->fetched.start_us;
        s->state = SLOT_READY;
        return KV_OK;
    }
    for (int32_t b = 0; b < s->n_moved; b++) w->src[b] = c->slab[(size_t)layer * (size_t)c->max_blocks + (size_t)b];
    enum kv_status r = kv_mover_submit(w->mover, s->id, s->n_moved, w->slab_bytes, w->src, s->slab);
    if (r != KV_OK) return r;
    s->state = SLOT_FILLING;
    return KV_OK;
}

/* ---------------------------------------------------------------- the placement */

static enum kv_status layerwise_admit(struct kv_placement_ctx *ctx, int32_t max_rows)
{
    struct kv_layerwise *w = ctx->layerwise;
    int32_t blocks = max_rows / KV_BLOCK_ROWS + (max_rows % KV_BLOCK_ROWS != 0);
    return w->mover && max_rows >= 0 && blocks <= w->slots[0].cap ? KV_OK : KV_CAPACITY;
}

static void layerwise_prefetch(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer)
{
    struct kv_layerwise *w = ctx->layerwise;
    if (!w->mover || w->config.serial || layer < 0 || layer >= c->n_layers) return;
    drain(w);
    struct slot *s = slot_of(w, c, layer) ? NULL : free_slot(w);
    /* Both slots busy, or no room: acquire fetches it then, and the stall shows. */
    if (s) (void)fill(w, s, c, layer);
}

/* A slot to fetch into now: a free one, or one that was prefetched for a pair that did not come. */
static struct slot *claim_slot(struct kv_layerwise *w)
{
    struct slot *s = free_slot(w);
    for (int i = 0; !s && i < N_SLOTS; i++)
        if (w->slots[i].state != SLOT_IN_USE) undo(w, s = &w->slots[i]);
    return s;
}

static void measure_acquire(struct kv_layerwise *w, struct slot *s, double ask_us, double got_us)
{
    /* A new unit starts the compute of this one; what lay between the last acquire and this call was the last one's compute. */
    if (w->n_units > 0 && w->units[w->n_units - 1].end_us == 0) w->units[w->n_units - 1].end_us = ask_us;
    s->unit = w->n_units < w->max_units ? w->n_units++ : -1;
    if (s->unit < 0) return;
    struct unit *u = &w->units[s->unit];
    *u = (struct unit){.layer = s->layer, .fetch_us = s->fetched.end_us - s->fetched.start_us, .ready_us = s->fetched.end_us,
                       .ask_us = ask_us, .start_us = got_us, .stall_us = got_us - ask_us};
    if (u->start_us < u->ready_us) w->broken = true;
}

/* A completion that comes when its slot is no longer what it was: it must be refused, and the slot is given up. */
static enum kv_status complete_late(struct kv_layerwise *w, struct slot *s, enum kv_status why)
{
    struct kv_completion late = s->state == SLOT_READY ? s->fetched : (struct kv_completion){.id = s->id, .status = KV_OK, .bytes = (uint64_t)s->n_moved * w->slab_bytes};
    uint64_t counted = w->receipt_bytes;
    undo(w, s);
    if (why == KV_RECYCLED_DESTINATION) s->id.owner = ++w->next_transfer, s->state = SLOT_FILLING; /* somebody else's by now */
    enum kv_status refused = kv_layerwise_complete(w, &late);
    w->receipt_bytes = counted; /* these bytes were moved once */
    s->state = SLOT_FREE;
    count_failure(w, why);
    return refused == KV_RECYCLED_DESTINATION ? why : KV_INTERNAL;
}

static enum kv_status inject(struct kv_layerwise *w, struct slot *s, const struct kv_cache *c)
{
    if (c->n_sealed == 0) return KV_OK; /* nothing is on its way */
    if (kv_fault_strikes(&c->faults, KV_FAULT_delayed_completion)) nanosleep(&(struct timespec){.tv_nsec = DELAY_MS * 1000000}, NULL);
    if (kv_fault_strikes(&c->faults, KV_FAULT_completion_after_cancel)) return complete_late(w, s, KV_TRANSFER_CANCELLED);
    if (kv_fault_strikes(&c->faults, KV_FAULT_block_reuse_before_callback)) return complete_late(w, s, KV_RECYCLED_DESTINATION);
    return KV_OK;
}

static enum kv_status layerwise_acquire(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer)
{
    struct kv_layerwise *w = ctx->layerwise;
    if (layer < 0 || layer >= c->n_layers) return KV_BAD_ARGUMENT;
    if (!w->mover) return KV_CAPACITY;
    double ask_us = kv_now_us();
    drain(w);
    struct slot *s = slot_of(w, c, layer);
    if (s && s->state != SLOT_IN_USE && s->n_sealed != c->n_sealed) undo(w, s), s = NULL; /* rows were sealed or dropped since */
    if (s && s->state == SLOT_IN_USE) return KV_CONFLICT;
    s ? w->hits++ : w->misses++;
    if (!s) {
        if (!(s = claim_slot(w))) return KV_CONFLICT; /* two pairs are in use: the caller did not release */
        enum kv_status r = fill(w, s, c, layer);
        if (r != KV_OK) return r;
    }
    if (c->faults.mask) {
        enum kv_status r = inject(w, s, c);
        if (r != KV_OK) return r;
    }
    while (s->state == SLOT_FILLING) {
        struct kv_completion done;
        if (!kv_mover_next(w->mover, true, &done)) return KV_INTERNAL;
        enum kv_status r = kv_layerwise_complete(w, &done);
        if (r != KV_OK && done.id.transfer_generation == s->id.transfer_generation) return r;
    }
    if (s->state != SLOT_READY) return KV_INTERNAL;
    s->state = SLOT_IN_USE;
    measure_acquire(w, s, ask_us, kv_now_us());
    for (int32_t b = c->n_sealed; b < c->n_blocks; b++) {
        memcpy(s->slab[b], c->slab[(size_t)layer * (size_t)c->max_blocks + (size_t)b], w->slab_bytes);
        w->bytes_in += w->slab_bytes;
        s->held_bytes += w->slab_bytes;
    }
    for (int32_t b = 0; b < c->n_blocks; b++)
        c->read[b] = b >= s->n_moved && b < c->n_sealed ? c->slab[(size_t)layer * (size_t)c->max_blocks + (size_t)b] : s->slab[b];
    return w->broken ? KV_INTERNAL : KV_OK;
}

static void layerwise_release(struct kv_placement_ctx *ctx, struct kv_cache *c, int32_t layer)
{
    struct kv_layerwise *w = ctx->layerwise;
    struct slot *s = slot_of(w, c, layer);
    memset(c->read, 0, (size_t)c->max_blocks * sizeof *c->read);
    if (!s || s->state != SLOT_IN_USE) return;
    w->last_end_us = kv_now_us();
    undo(w, s);
}

static void layerwise_cancel(struct kv_placement_ctx *ctx, struct kv_cache *c)
{
    struct kv_layerwise *w = ctx->layerwise;
    for (int i = 0; i < N_SLOTS; i++)
        if (w->slots[i].state != SLOT_FREE && w->slots[i].owner == c) undo(w, &w->slots[i]);
}

const struct kv_placement kv_placement_layerwise = {.name = "layerwise",
                                                    .admit = layerwise_admit,
                                                    .prefetch = layerwise_prefetch,
                                                    .acquire = layerwise_acquire,
                                                    .release = layerwise_release,
                                                    .cancel = layerwise_cancel};

/* ---------------------------------------------------------------- measurements */

void kv_layerwise_step_begin(struct kv_layerwise *w)
{
    /* No slot outlives its step: what was prefetched and not fetched would meet another owner at the same address one day. */
    for (int i = 0; i < N_SLOTS; i++)
        if (w->slots[i].state != SLOT_FREE) undo(w, &w->slots[i]);
    w->n_units = 0;
    w->step_start_us = w->last_end_us = kv_now_us();
}

/* Feeds the recurrence with the fetch and compute times that were measured under overlap, and writes both side by side. */
static void predict(struct kv_layerwise *w)
{
    for (int32_t i = 0; i < w->n_units; i++)
        w->stages[i] = (struct kv_pipeline_stage){.fetch = w->units[i].fetch_us, .compute = w->units[i].end_us - w->units[i].start_us};
    /* The first fetch may have begun before the step; compute of the first unit is ready when its acquire was called. */
    double ready_us = w->units[0].ask_us - w->step_start_us;
    double start_us = w->units[0].ready_us - w->units[0].fetch_us - w->step_start_us;
    kv_pipeline_two_slot(w->stages, w->n_units, start_us, ready_us);
    memset(w->last, 0, (size_t)w->config.n_layers * sizeof *w->last);
    for (int32_t i = 0; i < w->n_units; i++) {
        const struct unit *u = &w->units[i];
        struct kv_layer_timing *t = &w->last[u->layer];
        bool first = t->end_us == 0;
        if (first) {
            t->start_us = u->start_us - w->step_start_us;
            t->predicted_start_us = w->stages[i].compute_start;
        }
        t->ready_us = u->ready_us - w->step_start_us;
        t->end_us = u->end_us - w->step_start_us;
        t->stall_us += u->stall_us;
        t->predicted_stall_us += w->stages[i].stall;
        t->fetch_us += u->fetch_us;
        t->compute_us += w->stages[i].compute;
    }
}

double kv_layerwise_step_end(struct kv_layerwise *w)
{
    if (w->n_units == 0) return 0;
    if (w->units[w->n_units - 1].end_us == 0) w->units[w->n_units - 1].end_us = w->last_end_us;
    double stall_us = 0;
    for (int32_t i = 0; i < w->n_units; i++) stall_us += w->units[i].stall_us;
    predict(w);
    /* Once nothing is on its way, the receipts account for every byte that moved. */
    drain(w);
    if (kv_mover_in_flight(w->mover) == 0 && w->receipt_bytes != kv_mover_copied_bytes(w->mover)) w->broken = true;
    return stall_us;
}

int32_t kv_layerwise_timings(const struct kv_layerwise *w, struct kv_layer_timing *out, int32_t cap)
{
    int32_t n = cap < w->config.n_layers ? cap : w->config.n_layers;
    memcpy(out, w->last, (size_t)n * sizeof *out);
    return n;
}

void kv_layerwise_tier_stats(const struct kv_layerwise *w, struct kv_tier_stats *device)
{
    uint64_t staging = 0;
    for (int i = 0; i < N_SLOTS; i++) staging += (uint64_t)w->slots[i].n_slabs * w->slab_bytes;
    *device = (struct kv_tier_stats){.name = "device",
                                     .emulated = true,
                                     .capacity_bytes = w->config.device_bytes,
                                     .used_bytes = kv_arena_used_bytes(w->arena),
                                     .staging_bytes = staging,
                                     .hits = w->hits,
                                     .misses = w->misses,
                                     .bytes_in = w->bytes_in,
                                     .bytes_out = w->bytes_out,
                                     .transfers_in_flight = w->mover ? (uint64_t)kv_mover_in_flight(w->mover) : 0,
                                     .failures = w->failures,
                                     .last_failure = w->last_failure,
                                     .last_failure_us = w->last_failure_us};
}
