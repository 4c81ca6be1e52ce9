/* directory_runs.h — what tests of the directory share: one over three tiers of memory, and numbered chunks. */
#ifndef KV_DIRECTORY_RUNS_H
#define KV_DIRECTORY_RUNS_H

#include "runtime/residency/directory.h"

enum { SLAB = 4096, BYTES = 3000 };

extern struct kv_tier dir_device, dir_host, dir_disk;
extern struct kv_directory *dir;

void dir_open(int device_slabs, int host_slabs, int disk_slabs, enum kv_victim eviction);
void dir_close(void); /* nothing of the memory tiers is left in use */
struct kv_chunk_identity dir_chunk(int n);
void dir_payload(int n, uint8_t *out); /* BYTES */
void dir_publish(int n, enum kv_tier_id tier);
void dir_holds(int n, enum kv_tier_id tier); /* chunk n, with its bytes */
void dir_invariants(void);
struct kv_transfer_done dir_copied(const struct kv_transfer *t);

#endif
