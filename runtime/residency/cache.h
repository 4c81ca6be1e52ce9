/* cache.h — the K/V rows of one sequence: which slab holds block b of layer l, and which slab the kernels read now.
 *
 * A slab holds one (layer, block): for each K/V head K[64][d] then V[64][d], contiguous, 4 KiB aligned. Authoritative slabs live
 * in the host arena; `read` points at whatever copy the placement acquired for the layer in work. Owned by the decode thread. */
#ifndef KV_CACHE_H
#define KV_CACHE_H

#include "kernels/kernels.h"
#include "runtime/residency/faults.h"

#include <stdatomic.h>

struct kv_cache {
    int32_t n_layers, n_kv_heads, d_head;
    enum kv_type row_type;
    int32_t n_rows;         /* committed rows, equal in every layer between steps */
    int32_t n_sealed;       /* full blocks at the start of the step in work: these may move */
    int32_t n_blocks;       /* blocks with a slab, in every layer */
    int32_t max_blocks;
    size_t slab_bytes;      /* n_kv_heads × 2 × 64 × d_head × row bytes, rounded up to 4 KiB */
    uint8_t **slab;         /* [n_layers][max_blocks] authoritative */
    const uint8_t **read;   /* [max_blocks] for the acquired layer */
    _Atomic uint32_t *arrived; /* layers [0, *arrived) of blocks that another thread fills are in place; NULL: all are */
    double arrival_wait_us;    /* spent waiting for them */
    struct kv_fault_marks faults; /* injected ones that its sequence meets */
};
#define KV_ARRIVAL_FAILED UINT32_MAX /* of *arrived: some block will not come; whatever was computed from it is void */

size_t kv_row_bytes(enum kv_type row_type, int32_t d_head);
size_t kv_slab_bytes(enum kv_type row_type, int32_t n_kv_heads, int32_t d_head);

static inline const void *kv_slab_k(const struct kv_cache *c, const uint8_t *slab, int32_t head)
{
    size_t half = KV_BLOCK_ROWS * kv_row_bytes(c->row_type, c->d_head);
    return slab ? slab + (size_t)head * 2 * half : 0;
}
static inline const void *kv_slab_v(const struct kv_cache *c, const uint8_t *slab, int32_t head)
{
    size_t half = KV_BLOCK_ROWS * kv_row_bytes(c->row_type, c->d_head);
    return slab ? slab + (size_t)head * 2 * half + half : 0;
}

/* An arena of equal slabs with a cap in bytes; grows lazily up to it, zeroes a slab before it is handed to another owner. */
struct kv_arena;
enum kv_status kv_arena_create(size_t slab_bytes, uint64_t capacity_bytes, struct kv_arena **out);
void kv_arena_destroy(struct kv_arena *a);
void *kv_arena_take(struct kv_arena *a);           /* NULL when the cap is reached */
void *kv_arena_take_raw(struct kv_arena *a);       /* a recycled slab keeps its bytes: for owners that overwrite before anybody reads */
void kv_arena_give(struct kv_arena *a, void *slab);         /* the slab is free when its last holder gave it back */
void kv_arena_share(struct kv_arena *a, void *slab);        /* one more holder: nobody may write it from then on */
bool kv_arena_shared(const struct kv_arena *a, const void *slab); /* more holders than one */
uint64_t kv_arena_used_bytes(const struct kv_arena *a);
uint64_t kv_arena_capacity_bytes(const struct kv_arena *a);
/* For who writes fresh slabs within a time: a huge page is zeroed at once, which can take milliseconds. */
void kv_arena_small_pages(struct kv_arena *a);
/* A thread that has pages made for slabs that were taken, and for up to `bytes` of those that come next: making a huge one can take milliseconds,
 * which who writes first would wait for. Called once at most; without the thread everything still works. */
void kv_arena_go_ahead(struct kv_arena *a, uint64_t bytes);
bool kv_arena_ready(const struct kv_arena *a, const void *slab); /* writing waits for no page, as far as that thread knows */
/* Where there is a CUDA device, all of it becomes memory that the device copies from directly; without one, or when the driver refuses, it stays as it is. */
void kv_arena_pin(struct kv_arena *a);
struct kv_arena_stats {
    uint64_t capacity_bytes, used_bytes, pinned_bytes;
    uint64_t taken_bytes, given_bytes; /* since the start, first and last holders counted: their difference is used_bytes */
    bool huge_pages;
};
void kv_arena_stats(const struct kv_arena *a, struct kv_arena_stats *out);

/* Decode thread. Rows [n_rows, n_rows + n) become writable: CAPACITY when the arena is at its cap, nothing changed then. A block that
 * others read too is copied before a row is added to it. */
enum kv_status kv_cache_init(struct kv_cache *c, int32_t n_layers, int32_t n_kv_heads, int32_t d_head, enum kv_type row_type, int32_t max_rows);
enum kv_status kv_cache_reserve(struct kv_cache *c, struct kv_arena *a, int32_t n);
/* For whole slabs that are copied in before n_rows says they are there: recycled ones keep their bytes until then. */
enum kv_status kv_cache_reserve_raw(struct kv_cache *c, struct kv_arena *a, int32_t n);
/* Takes a share of the slabs [n_layers] of the next block, all rows of it. The cache holds whole blocks only, and fewer than max_blocks. */
enum kv_status kv_cache_adopt(struct kv_cache *c, struct kv_arena *a, uint8_t *const *slabs);
void kv_cache_truncate(struct kv_cache *c, struct kv_arena *a, int32_t n_rows); /* gives back blocks beyond */
void kv_cache_free(struct kv_cache *c, struct kv_arena *a);

#endif
