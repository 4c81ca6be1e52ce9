/* tier_fixture.h — what tests of tiers share: a folder of their own, and a host and a disk tier under one directory. */
#ifndef KV_TIER_FIXTURE_H
#define KV_TIER_FIXTURE_H

#include "runtime/residency/directory.h"
#include "runtime/residency/disk.h"

extern char tier_folder[64];
void tier_folder_make(const char *name); /* empty; in memory where that is possible: these tests end processes, not machines */
void tier_folder_clear(void);
void tier_folder_remove(void);

struct tiers {
    struct kv_tier host, disk;
    struct kv_directory *dir;
};
/* What the disk held before is adopted. */
void tiers_open(struct tiers *t, size_t slab_bytes, int host_slabs, uint64_t disk_bytes, const struct kv_disk_io *io);
void tiers_close(struct tiers *t); /* the directory's invariants hold */

#endif
