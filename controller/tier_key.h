/* tier_key.h — the master key of the disk tier: tier.key in the state folder, made at the first start, and refused where others
 * than its owner may read or change it. Daemons that shall find each other's blocks in a remote tier have the same one. */
#ifndef KV_TIER_KEY_H
#define KV_TIER_KEY_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stdint.h>

enum kv_status kv_tier_key_load(const char *state_dir, uint8_t key[32], struct kv_error *err);

#endif
