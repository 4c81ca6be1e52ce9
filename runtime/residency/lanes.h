/* lanes.h — a few transfer threads that carry out the independent copies of one group side by side, so that cipher and device work at once.
 *
 * The caller works along and returns when every item is done. One group at a time: a caller who finds the lanes taken works alone. Any thread. */
#ifndef KV_LANES_H
#define KV_LANES_H

#include "runtime/status.h"

#include <stdint.h>

#define KV_LANES_MAX 16

struct kv_lanes;
/* n: threads that work on a group, the caller's own included; 1: the caller alone. */
enum kv_status kv_lanes_create(int32_t n, struct kv_lanes **out);
void kv_lanes_destroy(struct kv_lanes *l);
/* Calls item(ctx, i) once for every i of [0, n), in any order. */
void kv_lanes_run(struct kv_lanes *l, int32_t n, void (*item)(void *ctx, int32_t i), void *ctx);
int32_t kv_lanes_count(const struct kv_lanes *l);
/* The calling thread takes a small share of a processor that others want, and all of one that nobody does: tokens of those that run wait for no copy. The
 * lanes' own threads do. */
void kv_lanes_give_way(void);

#endif
