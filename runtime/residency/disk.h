/* disk.h — the disk tier: write-once segment files that survive kill -9, each extent encrypted and authenticated with its identity.
 *
 * File:   segment header page │ extent │ extent │ …            (4 KiB pages; the file is preallocated)
 * Extent: header page (identity, length, sequence) │ ciphertext and tag, padded
 *
 * A group of extents is written and read past the page cache where the file system allows it, in pieces that are at the device while the thread that carries
 * the group seals the next or opens the last; written ones are synced once. Each header says up to which extent of its segment all had reached the disk before; after a restart those beyond are opened before they
 * count, so that a machine that lost some of their pages shows none of them. Key: HMAC of the master key over segment id and tenant; nonce: the extent's offset. No offset is written twice and no segment is appended to after a
 * restart, so no nonce repeats. The associated data is the header's fields and the identity; the GCM tag is the payload hash. Released extents are
 * punched out; a segment without live extents is unlinked. From the half of one on the next is made by a thread of its own. Files hold the cap and the free-space reserve across restarts. */
#ifndef KV_DISK_H
#define KV_DISK_H

#include "runtime/residency/tier.h"

#include <linux/aio_abi.h>
#include <sys/types.h>

/* The system calls the tier makes, so that tests can fail, shorten or stop at any of them. Results and errno as the calls'. */
struct kv_disk_io {
    int (*open)(const char *path, int flags, unsigned mode);
    ssize_t (*pread)(int fd, void *buf, size_t n, off_t at);
    ssize_t (*pwrite)(int fd, const void *buf, size_t n, off_t at);
    int (*sync)(int fd);
    int (*allocate)(int fd, off_t at, off_t n);
    int (*punch)(int fd, off_t at, off_t n);
    int (*truncate)(int fd, off_t n);
    int (*unlink)(const char *path);
    int (*free_bytes)(const char *path, uint64_t *out);
    /* One request into a queue: 1, or it is made by pread or pwrite. And what the queue tells of, which is waited for when `least` is 1. submit NULL, or the
     * system's with another pread or pwrite: there is no queue. */
    int (*submit)(aio_context_t c, struct iocb *r);
    int (*collect)(aio_context_t c, int least, int most, struct io_event *e);
};
extern const struct kv_disk_io kv_disk_io_system;

struct kv_disk_config {
    const char *path;        /* folder; made when absent, mode 0700 */
    uint64_t capacity_bytes; /* of all files */
    uint64_t reserve_bytes;  /* stays free on the file system */
    uint64_t segment_bytes;  /* 0: 64 MiB, more where the cap would need too many files */
    uint8_t key[32];         /* master key */
    const struct kv_disk_io *io; /* NULL: the system's */
    /* Called at open for every extent whose header is whole, oldest first. Whoever has no use for one releases it after open. May be NULL. */
    void (*found)(void *ctx, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes);
    void *found_ctx;
};

struct kv_disk_stats {
    uint64_t segments, live_extents, live_bytes, used_bytes, dropped_at_open; /* dropped: extents that were not whole, or over the cap */
    uint64_t bytes_written, bytes_read, syncs, failures;
    uint64_t scratch_bytes; /* of host memory, for extents on their way */
};

enum kv_status kv_disk_open(const struct kv_disk_config *c, struct kv_tier *out, struct kv_error *err);
void kv_disk_close(struct kv_tier *t); /* keeps the files */
void kv_disk_stats(const struct kv_tier *t, struct kv_disk_stats *out);

#endif
