/* flight.h — the flight recorder: what was selected for every head of the last steps, in a ring that is written without lock or allocation, and the
 * copies of it that a fault leaves behind.
 *
 * Worker threads and the decode thread put, anybody reads; a record that is being overwritten is left out. Copies are made by the decode thread
 * between steps and taken by one other thread. */
#ifndef KV_FLIGHT_H
#define KV_FLIGHT_H

#include "runtime/kvasir.h"

struct kv_flight_recorder;
enum kv_status kv_flight_create(struct kv_flight_recorder **out);
void kv_flight_destroy(struct kv_flight_recorder *f);
void kv_flight_put(struct kv_flight_recorder *f, const struct kv_flight *r); /* order is given here */
/* The newest of a request, 0: of all, oldest first. */
int32_t kv_flight_read(const struct kv_flight_recorder *f, uint64_t request, struct kv_flight *out, int32_t cap);
/* Keeps a copy of a request's newest records; its digest. false: there are none, or copies are made faster than they are taken away. */
bool kv_flight_keep(struct kv_flight_recorder *f, uint64_t request, int64_t now_us, uint8_t digest[32]);
bool kv_flight_take(struct kv_flight_recorder *f, struct kv_flight_copy *out);

#endif
