/* disk.c — segments and extents: reserving and releasing. */
#include "runtime/residency/disk_state.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static const _Alignas(PAGE) uint8_t zero[PAGE];

/* ---------------------------------------------------------------- system calls */

static int sys_open(const char *path, int flags, unsigned mode) { return open(path, flags, mode); }
static int sys_punch(int fd, off_t at, off_t n) { return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, n); }
static int sys_allocate(int fd, off_t at, off_t n)
{
    int e = posix_fallocate(fd, at, n);
    errno = e;
    return e ? -1 : 0;
}
static int sys_free_bytes(const char *path, uint64_t *out)
{
    struct statvfs v;
    if (statvfs(path, &v)) return -1;
    *out = (uint64_t)v.f_bavail * v.f_frsize;
    return 0;
}
const struct kv_disk_io kv_disk_io_system = {sys_open, pread, pwrite, fdatasync, sys_allocate, sys_punch, ftruncate, unlink, sys_free_bytes, kv_disk_system_submit, kv_disk_system_collect};

enum kv_status kv_disk_errno(int e)
{
    return e == ENOSPC || e == EDQUOT || e == EFBIG ? KV_NO_SPACE : KV_IO_ERROR;
}

void kv_disk_count(struct disk *d, uint64_t *counter, uint64_t n)
{
    pthread_mutex_lock(&d->counters);
    *counter += n;
    pthread_mutex_unlock(&d->counters);
}

enum kv_status kv_disk_failed(struct disk *d, enum kv_status s)
{
    kv_disk_count(d, &d->stats.failures, 1);
    return s;
}

/* What is left of a short write or read begins anew with its page: elsewhere no call may begin. */
enum kv_status kv_disk_write_all(struct disk *d, int fd, const void *buf, size_t n, uint64_t at)
{
    int stalls = 0;
    for (size_t done = 0; done < n;) {
        ssize_t w = d->io->pwrite(fd, (const uint8_t *)buf + done, n - done, (off_t)(at + done));
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0 || (w < PAGE && stalls++ == MAX_STALLS)) return kv_disk_errno(w < 0 ? errno : ENOSPC);
        done += (size_t)w / PAGE * PAGE;
    }
    kv_disk_count(d, &d->stats.bytes_written, n);
    return KV_OK;
}

enum kv_status kv_disk_read_all(struct disk *d, int fd, void *buf, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = d->io->pread(fd, (uint8_t *)buf + done, n - done, (off_t)(at + done));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return KV_IO_ERROR;
        if (r < PAGE) return KV_SHORT_COPY; /* files end with a page */
        done += (size_t)r / PAGE * PAGE;
    }
    kv_disk_count(d, &d->stats.bytes_read, n);
    return KV_OK;
}

void kv_disk_past_cache(int fd)
{
    _Alignas(PAGE) uint8_t page[PAGE];
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT)) return;
    /* Some want borders wider than a page, and say so only when they are asked for bytes. */
    if (pread(fd, page, PAGE, 0) < 0) (void)fcntl(fd, F_SETFL, flags);
}

void kv_disk_sync_folder(struct disk *d)
{
    int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)d->io->sync(fd);
    close(fd);
}

enum kv_status kv_disk_sync(struct disk *d, int fd)
{
    kv_disk_count(d, &d->stats.syncs, 1);
    return d->io->sync(fd) ? kv_disk_errno(errno) : KV_OK;
}

void kv_disk_segment_name(const struct disk *d, uint64_t number, char *out, size_t cap)
{
    snprintf(out, cap, "%s/segment-%016" PRIx64, d->path, number);
}

uint64_t kv_disk_pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

uint64_t kv_disk_span(uint64_t payload_bytes)
{
    return PAGE + kv_disk_pages(payload_bytes + TAG);
}

/* ---------------------------------------------------------------- extents */

struct extent *kv_disk_held(struct disk *d, struct kv_block b)
{
    if (b.allocation.n == 0 || b.place >= d->cap_extents || d->extent[b.place].generation != b.allocation.n) return NULL;
    return &d->extent[b.place];
}

enum kv_status kv_disk_add_extent(struct disk *d, uint32_t segment, uint64_t offset, uint64_t bytes, struct kv_block *out)
{
    uint64_t i = d->free_extent;
    while (i < d->n_extents && d->extent[i].generation) i++;
    if (i == d->cap_extents) return KV_CAPACITY;
    if (i == d->n_extents) d->n_extents++;
    d->free_extent = i + 1;
    d->extent[i] = (struct extent){.segment = segment, .offset = offset, .bytes = bytes, .span = kv_disk_span(bytes), .generation = ++d->next_generation};
    d->segment[segment].live++;
    *out = (struct kv_block){i, {d->extent[i].generation}};
    return KV_OK;
}

/* Returns pages to the file system; where holes cannot be punched they count as used until the segment goes. */
void kv_disk_punch(struct disk *d, struct segment *s, uint64_t at, uint64_t n)
{
    if (n == 0) return;
    if (d->io->punch(s->fd, (off_t)at, (off_t)n) == 0) {
        d->used -= n;
        return;
    }
    (void)d->io->pwrite(s->fd, zero, PAGE, (off_t)at); /* at least the header goes, so that nothing comes back after a restart */
}

/* A segment that is closed and empty is unlinked; its remaining bytes are free again. */
void kv_disk_drop_if_empty(struct disk *d, uint32_t index)
{
    struct segment *s = &d->segment[index];
    if (s->fd < 0 || s->open || s->live) return;
    char name[600];
    kv_disk_segment_name(d, s->number, name, sizeof name);
    if (d->io->unlink(name)) return;
    close(s->fd);
    s->fd = -1;
    d->used -= s->bytes; /* its header page, and what could not be punched */
    s->bytes = 0;
}

static void disk_release(void *ctx, struct kv_block b)
{
    struct disk *d = ctx;
    struct extent *e = kv_disk_held(d, b);
    if (!e) return;
    struct segment *s = &d->segment[e->segment];
    uint64_t before = d->used;
    kv_disk_punch(d, s, e->offset, e->span);
    s->bytes -= before - d->used;
    s->live--;
    e->generation = 0;
    if (b.place < d->free_extent) d->free_extent = b.place;
    kv_disk_drop_if_empty(d, e->segment);
}

static enum kv_status disk_erase(void *ctx, struct kv_block b)
{
    struct disk *d = ctx;
    struct extent *e = kv_disk_held(d, b);
    if (!e) return KV_NOT_FOUND;
    struct segment *s = &d->segment[e->segment];
    /* The header page holds the identity; overwriting it is the deletion, punching only gives back the space. */
    enum kv_status r = kv_disk_write_all(d, s->fd, zero, PAGE, e->offset);
    if (r == KV_OK) r = kv_disk_sync(d, s->fd);
    if (r != KV_OK) return kv_disk_failed(d, r);
    disk_release(d, b);
    return KV_OK;
}

static bool disk_current(void *ctx, struct kv_block b)
{
    return kv_disk_held(ctx, b) != NULL;
}

/* ---------------------------------------------------------------- segments */

void kv_disk_close_segment(struct disk *d, uint32_t index)
{
    struct segment *s = &d->segment[index];
    if (s->fd < 0 || !s->open) return;
    s->open = false;
    uint64_t tail = s->bytes > 0 && s->next < d->segment_bytes ? d->segment_bytes - s->next : 0;
    if (tail && d->io->truncate(s->fd, (off_t)s->next) == 0) {
        d->used -= tail;
        s->bytes -= tail;
    }
    kv_disk_drop_if_empty(d, index);
}

enum kv_status kv_disk_room(struct disk *d)
{
    uint64_t free_bytes;
    if (d->used + d->segment_bytes > d->capacity) return KV_CAPACITY;
    if (d->io->free_bytes(d->path, &free_bytes)) return KV_IO_ERROR;
    return free_bytes < d->reserve || free_bytes - d->reserve < d->segment_bytes ? KV_NO_SPACE : KV_OK;
}

enum kv_status kv_disk_make_segment(struct disk *d, uint64_t number, struct segment *out)
{
    struct segment s = {.number = number, .bytes = d->segment_bytes, .next = PAGE, .open = true};
    char name[600];
    kv_disk_segment_name(d, s.number, name, sizeof name);
    if (gnutls_rnd(GNUTLS_RND_NONCE, s.id, sizeof s.id)) return KV_INTERNAL;
    s.fd = d->io->open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (s.fd < 0) return kv_disk_errno(errno);
    _Alignas(PAGE) union { uint8_t bytes[PAGE]; struct segment_page h; } page = {{0}};
    page.h = (struct segment_page){.magic = SEGMENT_MAGIC, .segment_bytes = d->segment_bytes, .number = s.number};
    memcpy(page.h.id, s.id, sizeof page.h.id);
    page.h.checksum = XXH3_64bits(&page.h, offsetof(struct segment_page, checksum));
    kv_disk_past_cache(s.fd);
    /* The page and the file's name reach the disk with the first group: before that nothing in it counts. */
    enum kv_status r = d->io->allocate(s.fd, 0, (off_t)d->segment_bytes) ? kv_disk_errno(errno) : kv_disk_write_all(d, s.fd, &page, PAGE, 0);
    if (r != KV_OK) {
        (void)d->io->unlink(name);
        close(s.fd);
        return r;
    }
    *out = s;
    return KV_OK;
}

static enum kv_status new_segment(struct disk *d, uint32_t *out)
{
    struct segment s;
    uint32_t i = 0;
    while (i < d->n_segments && d->segment[i].fd >= 0) i++;
    if (i == MAX_SEGMENTS) return KV_CAPACITY;
    if (!kv_disk_spare_take(d, &s)) {
        enum kv_status r = kv_disk_room(d);
        if (r == KV_OK) r = kv_disk_make_segment(d, d->next_number++, &s);
        if (r != KV_OK) return r;
        d->used += d->segment_bytes;
    }
    d->segment[i] = s;
    if (i == d->n_segments) d->n_segments++;
    *out = i;
    return KV_OK;
}

static enum kv_status disk_reserve(void *ctx, uint64_t bytes, const struct kv_chunk_identity *id, struct kv_block *out)
{
    struct disk *d = ctx;
    (void)id;
    uint64_t span = kv_disk_span(bytes);
    if (bytes == 0 || bytes > d->segment_bytes || span + PAGE > d->segment_bytes) return KV_BAD_ARGUMENT;
    uint32_t i = 0;
    while (i < d->n_segments && !(d->segment[i].fd >= 0 && d->segment[i].open && d->segment[i].next + span <= d->segment_bytes)) i++;
    if (i == d->n_segments) {
        for (uint32_t k = 0; k < d->n_segments; k++) kv_disk_close_segment(d, k);
        enum kv_status r = new_segment(d, &i);
        if (r != KV_OK) return kv_disk_failed(d, r);
    }
    struct segment *s = &d->segment[i];
    enum kv_status r = kv_disk_add_extent(d, i, s->next, bytes, out);
    if (r != KV_OK) return r;
    bool ask = s->next < d->segment_bytes / 2 && s->next + span >= d->segment_bytes / 2; /* once a segment: what failed is not tried at every extent */
    s->next += span;
    if (ask) kv_disk_spare_ask(d);
    return KV_OK;
}

/* ---------------------------------------------------------------- facts */

static uint64_t disk_used(void *ctx)
{
    return ((struct disk *)ctx)->used;
}

static uint64_t disk_capacity(void *ctx)
{
    return ((struct disk *)ctx)->capacity;
}

void kv_disk_stats(const struct kv_tier *t, struct kv_disk_stats *out)
{
    struct disk *d = t->ctx;
    pthread_mutex_lock(&d->counters);
    *out = d->stats;
    pthread_mutex_unlock(&d->counters);
    out->segments = out->live_extents = out->live_bytes = 0;
    for (uint32_t i = 0; i < d->n_segments; i++) out->segments += d->segment[i].fd >= 0;
    for (uint64_t i = 0; i < d->n_extents; i++)
        if (d->extent[i].generation) out->live_extents++, out->live_bytes += d->extent[i].bytes;
    out->used_bytes = d->used;
}

const struct kv_tier kv_disk_functions = {.capability = {.name = "disk", .address_space = "file", .codecs = "identity", .layouts = "slab-64", .persistence = "machine",
                                                         .trust = "authenticated", .alignment_bytes = PAGE, .checksum = "aes-256-gcm"},
                                          .reserve = disk_reserve, .release = disk_release, .current = disk_current,
                                          .write = kv_disk_write, .write_group = kv_disk_write_group, .read = kv_disk_read, .read_group = kv_disk_read_group, .erase = disk_erase,
                                          .used_bytes = disk_used, .capacity_bytes = disk_capacity};
