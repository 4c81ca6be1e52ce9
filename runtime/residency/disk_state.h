/* disk_state.h — the disk tier from the inside, for disk.c and disk_open.c only. */
#ifndef KV_DISK_STATE_H
#define KV_DISK_STATE_H

#include "runtime/residency/disk.h"

#include <pthread.h>

enum { PAGE = 4096, TAG = 16, MAX_SEGMENTS = 65536, MIN_SEGMENT = 1 << 20, MAX_EXTENTS = 1 << 22, SEGMENTS_AT_CAP = 256, SCRATCH = 8 };
#define SEGMENT_MAGIC UINT64_C(0x3147455356534b56) /* "VKSVSEG1" */
#define EXTENT_MAGIC UINT64_C(0x3154584556534b56)  /* "VKSVEXT1" */
#define MAX_SEGMENT (UINT64_C(1) << 40)

struct segment_page {
    uint64_t magic, segment_bytes;
    uint8_t id[16];
    uint64_t number; /* order of creation */
    uint64_t checksum;
};

struct extent_page {
    uint64_t magic, payload_bytes, sequence, offset;
    uint32_t identity_bytes, reserved;
    uint8_t identity[KV_IDENTITY_MAX_BYTES];
    uint64_t checksum;
};

struct segment {
    int fd;
    uint64_t number, bytes, next, live; /* next: offset of the next extent; live: live extents */
    uint8_t id[16];
    bool open; /* may be appended to */
};

struct extent { /* of the directory owner's table; place is its index */
    uint32_t segment;
    uint64_t offset, span, bytes; /* span: pages of header, ciphertext and tag */
    uint64_t generation;          /* 0: free */
};

struct scratch { /* ciphertext on its way to the file */
    uint8_t *bytes;
    size_t cap;
};

struct disk {
    char path[512];
    uint64_t capacity, reserve, segment_bytes;
    uint8_t key[32];
    const struct kv_disk_io *io;
    int lock_fd;
    struct segment *segment; /* [MAX_SEGMENTS]; fd −1: unused */
    uint32_t n_segments;
    struct extent *extent; /* never moved: transfer threads read the entries they hold */
    uint64_t n_extents, cap_extents, free_extent; /* free_extent: hint */
    uint64_t next_generation, next_number, used;
    pthread_mutex_t counters; /* guards stats and scratch, which transfer threads share */
    struct kv_disk_stats stats;
    struct scratch scratch[SCRATCH];
};

/* Reads n bytes or says why not. */
enum kv_status kv_disk_read_all(struct disk *d, int fd, void *buf, size_t n, uint64_t at);
enum kv_status kv_disk_errno(int e);
void kv_disk_segment_name(const struct disk *d, uint64_t number, char *out, size_t cap);
uint64_t kv_disk_span(uint64_t payload_bytes); /* pages of header, ciphertext and tag */
bool kv_disk_header_whole(const struct extent_page *h, uint64_t offset, uint64_t end);
enum kv_status kv_disk_add_extent(struct disk *d, uint32_t segment, uint64_t offset, uint64_t bytes, struct kv_block *out);
void kv_disk_punch(struct disk *d, struct segment *s, uint64_t at, uint64_t n);
void kv_disk_drop_if_empty(struct disk *d, uint32_t segment);
void kv_disk_close_segment(struct disk *d, uint32_t segment); /* its unused tail goes back */
extern const struct kv_tier kv_disk_functions; /* everything but ctx */

#endif
