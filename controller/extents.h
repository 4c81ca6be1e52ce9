/* extents.h — the store that remote tiers share: opaque objects under 256-bit names, one file each, with a cap and the longest unused ones going first.
 *
 * It never sees keys, identities or rows. A file appears whole or not at all (written aside, synced, renamed), and what is not an object's name in its
 * folder is left alone. Order of use and total are found again after a restart. Any thread. */
#ifndef KV_EXTENTS_H
#define KV_EXTENTS_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stdint.h>

#define KV_EXTENT_NAME_CHARS 64 /* lower-case hexadecimal */

struct kv_extents_config {
    const char *path;        /* folder; made when absent, mode 0700 */
    uint64_t capacity_bytes; /* of all files, in whole pages */
    uint64_t reserve_bytes;  /* stays free on the file system */
    uint64_t object_bytes;   /* longest object */
};
struct kv_extents_stats {
    uint64_t objects, bytes, capacity_bytes, hits, misses, puts, erased, evictions, refused; /* refused: too long, or no space */
};

struct kv_extents;
enum kv_status kv_extents_open(const struct kv_extents_config *c, struct kv_extents **out, struct kv_error *err);
void kv_extents_close(struct kv_extents *e);
/* BAD_ARGUMENT for a name that is none, in all of these. */
enum kv_status kv_extents_put(struct kv_extents *e, const char *name, const void *object, uint64_t n, struct kv_error *err);
/* An open file that the caller closes. NOT_FOUND; IO_ERROR, also for want of file descriptors. */
enum kv_status kv_extents_get(struct kv_extents *e, const char *name, int *fd, uint64_t *n, struct kv_error *err);
enum kv_status kv_extents_has(struct kv_extents *e, const char *name, uint64_t *n, struct kv_error *err); /* counts as no use */
enum kv_status kv_extents_erase(struct kv_extents *e, const char *name, struct kv_error *err);            /* durable; NOT_FOUND */
void kv_extents_stats(struct kv_extents *e, struct kv_extents_stats *out);

#endif
