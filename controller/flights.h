/* flights.h — copies of the flight recorder that faults left behind, kept in the state folder under the digest that the fault's receipt names. The
 * newest 256 stay. Any thread. */
#ifndef KV_FLIGHTS_H
#define KV_FLIGHTS_H

#include "runtime/kvasir.h"

#define KV_FLIGHTS_KEPT 256

enum kv_status kv_flights_keep(const char *state_dir, struct kv_engine *e, struct kv_error *err); /* what the engine has made since */
/* NOT_FOUND: none of that digest is kept. CHECKSUM_MISMATCH: the file is not what the receipt names. */
enum kv_status kv_flights_read(const char *state_dir, const uint8_t digest[32], struct kv_flight_copy *out, struct kv_error *err);

#endif
