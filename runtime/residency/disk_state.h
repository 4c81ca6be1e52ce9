/* disk_state.h — the disk tier from the inside, for disk*.c only. */
#ifndef KV_DISK_STATE_H
#define KV_DISK_STATE_H

#include "runtime/residency/disk.h"
#include "runtime/residency/extent.h"

#include <pthread.h>
#include <sys/uio.h>

enum { PAGE = 4096, TAG = KV_EXTENT_TAG, MAX_SEGMENTS = 65536, MIN_SEGMENT = 1 << 20, MAX_EXTENTS = 1 << 22, SEGMENTS_AT_CAP = 256, SCRATCH = 8, MAX_STALLS = 3, QUEUES = 8, QUEUE_DEPTH = 64 };
#define SEGMENT_MAGIC UINT64_C(0x3147455356534b56) /* "VKSVSEG1" */
#define MAX_SEGMENT (UINT64_C(1) << 40)

struct segment_page {
    uint64_t magic, segment_bytes;
    uint8_t id[16];
    uint64_t number; /* order of creation */
    uint64_t checksum;
};

struct segment {
    int fd; /* past the page cache where the file system allows it: reads and writes are whole pages of aligned memory */
    uint64_t number, bytes, next, live; /* next: offset of the next extent; live: live extents */
    uint8_t id[16];
    bool open; /* may be appended to */
    /* Under `counters`: groups being written, the last sequence they were given, and up to which all have reached the disk. */
    uint32_t in_flight;
    uint64_t begun, durable;
    bool failed; /* a write or sync failed: durable stays where it is */
    bool named;  /* the folder was synced since it was made */
};

struct extent { /* of the directory owner's table; place is its index */
    uint32_t segment;
    uint64_t offset, span, bytes; /* span: pages of header, ciphertext and tag */
    uint64_t generation;          /* 0: free */
};

struct scratch { /* whole pages, on their way to or from the file */
    uint8_t *bytes;
    size_t cap;
};

/* One group's requests at the device. */
struct queue {
    aio_context_t aio; /* 0: there is none */
    int under_way;
};

struct request { /* stays where it is until it was told of */
    struct iocb call;
    size_t bytes;
    int64_t result; /* told: bytes, or −errno */
    bool told;
};

/* One segment that is made before it is needed. The owner asks, a thread of its own makes it, the owner takes it. */
struct spare {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { SPARE_NONE, SPARE_ASKED, SPARE_MADE } state;
    bool stop;
    struct segment segment; /* asked for: its number; made: the file */
    enum kv_status status;
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
    pthread_mutex_t counters; /* guards stats, scratch, queues, sequences and what segments say of their writes: transfer threads share them */
    uint64_t next_sequence;
    struct kv_disk_stats stats;
    struct scratch scratch[SCRATCH];
    aio_context_t queue[QUEUES]; /* idle */
    struct spare spare;
};

/* Whole pages, or why not. buf and at lie on borders of pages. */
enum kv_status kv_disk_read_all(struct disk *d, int fd, void *buf, size_t n, uint64_t at);
enum kv_status kv_disk_write_all(struct disk *d, int fd, const void *buf, size_t n, uint64_t at);
void kv_disk_past_cache(int fd); /* where the file system allows it */
enum kv_status kv_disk_sync(struct disk *d, int fd);
void kv_disk_sync_folder(struct disk *d); /* what a file system does not offer is not missed */
void kv_disk_count(struct disk *d, uint64_t *counter, uint64_t n);
enum kv_status kv_disk_failed(struct disk *d, enum kv_status s); /* counts it */
enum kv_status kv_disk_errno(int e);
struct extent *kv_disk_held(struct disk *d, struct kv_block b); /* NULL: the place has another owner */
uint64_t kv_disk_pages(uint64_t bytes);
void kv_disk_segment_name(const struct disk *d, uint64_t number, char *out, size_t cap);
uint64_t kv_disk_span(uint64_t payload_bytes); /* pages of header, ciphertext and tag */
bool kv_disk_header_whole(const struct kv_extent_header *h, uint64_t offset, uint64_t end);
enum kv_status kv_disk_add_extent(struct disk *d, uint32_t segment, uint64_t offset, uint64_t bytes, struct kv_block *out);
void kv_disk_punch(struct disk *d, struct segment *s, uint64_t at, uint64_t n);
void kv_disk_drop_if_empty(struct disk *d, uint32_t segment);
void kv_disk_close_segment(struct disk *d, uint32_t segment); /* its unused tail goes back */
enum kv_status kv_disk_room(struct disk *d); /* for one segment more: under the cap, and beside the reserve */
enum kv_status kv_disk_make_segment(struct disk *d, uint64_t number, struct segment *out); /* its file, open for appending. Any thread */
extern const struct kv_tier kv_disk_functions; /* everything but ctx */

/* disk_spare.c. Its bytes count as used from the asking on. */
enum kv_status kv_disk_spare_start(struct disk *d);
void kv_disk_spare_stop(struct disk *d);                         /* the file goes */
void kv_disk_spare_ask(struct disk *d);                          /* unless there is one, or no room for one */
bool kv_disk_spare_take(struct disk *d, struct segment *out);    /* false: none was asked for, or it could not be made */

struct scratch kv_disk_take_scratch(struct disk *d, size_t n); /* no bytes: no memory */
void kv_disk_give_scratch(struct disk *d, struct scratch s);

/* disk_queue.c */
int kv_disk_system_submit(aio_context_t c, struct iocb *r);
int kv_disk_system_collect(aio_context_t c, int least, int most, struct io_event *e);
struct queue kv_disk_take_queue(struct disk *d);
void kv_disk_give_queue(struct disk *d, struct queue *q); /* nothing is under way in it */
void kv_disk_drop_queues(struct disk *d);
/* false: it was not taken. part stays where it is until the request was told of. */
bool kv_disk_send(struct disk *d, struct queue *q, struct request *r, bool write, int fd, const struct iovec *part, int n_parts, uint64_t at);
void kv_disk_hear(struct disk *d, struct queue *q, bool wait); /* marks what was told; wait: for one at least */

/* disk_payload.c and disk_read.c: transfer threads */
enum kv_status kv_disk_write(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint64_t *hash);
enum kv_status kv_disk_write_group(void *ctx, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, const void *const *payload, uint64_t bytes);
enum kv_status kv_disk_read(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, void *dst, uint64_t bytes);
void kv_disk_read_group(void *ctx, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, void *const *dst, uint64_t bytes, enum kv_status *each);

#endif
