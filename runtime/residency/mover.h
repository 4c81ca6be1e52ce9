/* mover.h — one transfer thread that copies lists of slabs from one arena to another, under an optional link model.
 *
 * submit, next and cancel are called by one thread (the decode thread); the copying is done by the mover's own, or by next when it would wait for a
 * job that nobody has begun. A completion
 * carries the identity its job was submitted with; the receiver compares it with what the destination is now and refuses it when they
 * differ: cancelled work completes too, with TRANSFER_CANCELLED. */
#ifndef KV_MOVER_H
#define KV_MOVER_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_transfer_id {
    uint32_t destination;           /* physical block or slot */
    uint64_t allocation_generation; /* of the destination when the transfer was issued */
    uint64_t owner;                 /* who asked: a sequence's identity */
    uint64_t transfer_generation;   /* one per submit, never reused */
};

struct kv_completion {
    struct kv_transfer_id id;
    enum kv_status status;
    uint64_t bytes;          /* that arrived */
    double start_us, end_us; /* CLOCK_MONOTONIC */
};

struct kv_link {
    double bytes_per_second; /* 0: as fast as memory */
    double latency_us;
};

struct kv_mover;

enum kv_status kv_mover_create(const struct kv_link *link, int32_t max_jobs, int32_t max_slabs, struct kv_mover **out);
void kv_mover_destroy(struct kv_mover *m); /* cancels what is left */

/* Copies n slabs of slab_bytes each; the pointer lists are copied, the slabs must live until the completion or the return of
 * cancel. QUEUE_FULL when max_jobs are in flight, BAD_ARGUMENT when n exceeds max_slabs. */
enum kv_status kv_mover_submit(struct kv_mover *m, struct kv_transfer_id id, int32_t n, size_t slab_bytes, const uint8_t *const *src, uint8_t *const *dst);
/* The oldest completion. wait: block until there is one; false only when none is in flight, or none is there and wait is false. */
bool kv_mover_next(struct kv_mover *m, bool wait, struct kv_completion *out);
/* Stops the job at its next slab border and returns when source and destination are no longer touched. */
void kv_mover_cancel(struct kv_mover *m, uint64_t transfer_generation);
int32_t kv_mover_in_flight(const struct kv_mover *m); /* submitted and not yet taken by next */
uint64_t kv_mover_copied_bytes(const struct kv_mover *m); /* of finished jobs */

double kv_now_us(void);   /* CLOCK_MONOTONIC */
int64_t kv_wall_us(void); /* CLOCK_REALTIME */

#endif
