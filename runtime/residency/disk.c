/* disk.c — segments, extents, and what remains of them after a crash. */
#include "runtime/residency/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PAGE = 4096, TAG = 16, MAX_SEGMENTS = 65536, MIN_SEGMENT = 1 << 20, MAX_EXTENTS = 1 << 22, SEGMENTS_AT_CAP = 256 };
static const uint64_t SEGMENT_MAGIC = 0x3147455356534b56, EXTENT_MAGIC = 0x3154584556534b56; /* "VKSVSEG1", "VKSVEXT1" */
static const uint64_t MAX_SEGMENT = (uint64_t)1 << 40;

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
    pthread_mutex_t counters; /* stats are counted by transfer threads */
    struct kv_disk_stats stats;
};

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
const struct kv_disk_io kv_disk_io_system = {sys_open, pread, pwrite, fdatasync, sys_allocate, sys_punch, ftruncate, unlink, sys_free_bytes};

static enum kv_status from_errno(int e)
{
    return e == ENOSPC || e == EDQUOT || e == EFBIG ? KV_NO_SPACE : KV_IO_ERROR;
}

static void count(struct disk *d, uint64_t *counter, uint64_t n)
{
    pthread_mutex_lock(&d->counters);
    *counter += n;
    pthread_mutex_unlock(&d->counters);
}

static enum kv_status failed(struct disk *d, enum kv_status s)
{
    count(d, &d->stats.failures, 1);
    return s;
}

static enum kv_status write_all(struct disk *d, int fd, const void *buf, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t w = d->io->pwrite(fd, (const uint8_t *)buf + done, n - done, (off_t)(at + done));
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return from_errno(w < 0 ? errno : ENOSPC);
        done += (size_t)w;
    }
    count(d, &d->stats.bytes_written, n);
    return KV_OK;
}

static enum kv_status read_all(struct disk *d, int fd, void *buf, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = d->io->pread(fd, (uint8_t *)buf + done, n - done, (off_t)(at + done));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return KV_IO_ERROR;
        if (r == 0) return KV_SHORT_COPY;
        done += (size_t)r;
    }
    count(d, &d->stats.bytes_read, n);
    return KV_OK;
}

static enum kv_status sync_file(struct disk *d, int fd)
{
    count(d, &d->stats.syncs, 1);
    return d->io->sync(fd) ? from_errno(errno) : KV_OK;
}

static void segment_name(const struct disk *d, uint64_t number, char *out, size_t cap)
{
    snprintf(out, cap, "%s/segment-%016" PRIx64, d->path, number);
}

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* ---------------------------------------------------------------- extents */

static struct extent *held(struct disk *d, struct kv_block b)
{
    if (b.allocation.n == 0 || b.place >= d->cap_extents || d->extent[b.place].generation != b.allocation.n) return NULL;
    return &d->extent[b.place];
}

static enum kv_status add_extent(struct disk *d, uint32_t segment, uint64_t offset, uint64_t bytes, struct kv_block *out)
{
    uint64_t i = d->free_extent;
    while (i < d->n_extents && d->extent[i].generation) i++;
    if (i == d->cap_extents) return KV_CAPACITY;
    if (i == d->n_extents) d->n_extents++;
    d->free_extent = i + 1;
    d->extent[i] = (struct extent){.segment = segment, .offset = offset, .bytes = bytes, .span = PAGE + pages(bytes + TAG), .generation = ++d->next_generation};
    d->segment[segment].live++;
    *out = (struct kv_block){i, {d->extent[i].generation}};
    return KV_OK;
}

/* Returns pages to the file system; where holes cannot be punched they count as used until the segment goes. */
static void punch(struct disk *d, struct segment *s, uint64_t at, uint64_t n)
{
    if (n == 0) return;
    if (d->io->punch(s->fd, (off_t)at, (off_t)n) == 0) {
        d->used -= n;
        return;
    }
    static const uint8_t zero[PAGE];
    (void)d->io->pwrite(s->fd, zero, PAGE, (off_t)at); /* at least the header goes, so that nothing comes back after a restart */
}

/* A segment that is closed and empty is unlinked; its remaining bytes are free again. */
static void drop_if_empty(struct disk *d, uint32_t index)
{
    struct segment *s = &d->segment[index];
    if (s->fd < 0 || s->open || s->live) return;
    char name[600];
    segment_name(d, s->number, name, sizeof name);
    if (d->io->unlink(name)) return;
    close(s->fd);
    s->fd = -1;
    d->used -= s->bytes; /* its header page, and what could not be punched */
    s->bytes = 0;
}

static void disk_release(void *ctx, struct kv_block b)
{
    struct disk *d = ctx;
    struct extent *e = held(d, b);
    if (!e) return;
    struct segment *s = &d->segment[e->segment];
    uint64_t before = d->used;
    punch(d, s, e->offset, e->span);
    s->bytes -= before - d->used;
    s->live--;
    e->generation = 0;
    if (b.place < d->free_extent) d->free_extent = b.place;
    drop_if_empty(d, e->segment);
}

static enum kv_status disk_erase(void *ctx, struct kv_block b)
{
    struct disk *d = ctx;
    struct extent *e = held(d, b);
    if (!e) return KV_NOT_FOUND;
    struct segment *s = &d->segment[e->segment];
    static const uint8_t zero[PAGE];
    /* The header page holds the identity; overwriting it is the deletion, punching only gives back the space. */
    enum kv_status r = write_all(d, s->fd, zero, PAGE, e->offset);
    if (r == KV_OK) r = sync_file(d, s->fd);
    if (r != KV_OK) return failed(d, r);
    disk_release(d, b);
    return KV_OK;
}

static bool disk_current(void *ctx, struct kv_block b)
{
    return held(ctx, b) != NULL;
}

/* ---------------------------------------------------------------- segments */

static void close_segment(struct disk *d, uint32_t index)
{
    struct segment *s = &d->segment[index];
    if (s->fd < 0 || !s->open) return;
    s->open = false;
    uint64_t tail = s->bytes > 0 && s->next < d->segment_bytes ? d->segment_bytes - s->next : 0;
    if (tail && d->io->truncate(s->fd, (off_t)s->next) == 0) {
        d->used -= tail;
        s->bytes -= tail;
    }
    drop_if_empty(d, index);
}

static void sync_folder(struct disk *d)
{
    int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)d->io->sync(fd);
    close(fd);
}

static enum kv_status new_segment(struct disk *d, uint32_t *out)
{
    uint64_t free_bytes;
    if (d->used + d->segment_bytes > d->capacity) return KV_CAPACITY;
    if (d->io->free_bytes(d->path, &free_bytes)) return KV_IO_ERROR;
    if (free_bytes < d->reserve || free_bytes - d->reserve < d->segment_bytes) return KV_NO_SPACE;
    uint32_t i = 0;
    while (i < d->n_segments && d->segment[i].fd >= 0) i++;
    if (i == MAX_SEGMENTS) return KV_CAPACITY;
    struct segment s = {.number = d->next_number++, .bytes = d->segment_bytes, .next = PAGE, .open = true};
    char name[600];
    segment_name(d, s.number, name, sizeof name);
    if (gnutls_rnd(GNUTLS_RND_NONCE, s.id, sizeof s.id)) return KV_INTERNAL;
    s.fd = d->io->open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (s.fd < 0) return from_errno(errno);
    struct segment_page page = {.magic = SEGMENT_MAGIC, .segment_bytes = d->segment_bytes, .number = s.number};
    memcpy(page.id, s.id, sizeof page.id);
    page.checksum = XXH3_64bits(&page, offsetof(struct segment_page, checksum));
    enum kv_status r = d->io->allocate(s.fd, 0, (off_t)d->segment_bytes) ? from_errno(errno) : write_all(d, s.fd, &page, sizeof page, 0);
    if (r == KV_OK) r = sync_file(d, s.fd);
    if (r != KV_OK) {
        (void)d->io->unlink(name);
        close(s.fd);
        return r;
    }
    sync_folder(d);
    d->segment[i] = s;
    if (i == d->n_segments) d->n_segments++;
    d->used += d->segment_bytes;
    *out = i;
    return KV_OK;
}

static enum kv_status disk_reserve(void *ctx, uint64_t bytes, const struct kv_chunk_identity *id, struct kv_block *out)
{
    struct disk *d = ctx;
    (void)id;
    uint64_t span = PAGE + pages(bytes + TAG);
    if (bytes == 0 || bytes > d->segment_bytes || span + PAGE > d->segment_bytes) return KV_BAD_ARGUMENT;
    uint32_t i = 0;
    while (i < d->n_segments && !(d->segment[i].fd >= 0 && d->segment[i].open && d->segment[i].next + span <= d->segment_bytes)) i++;
    if (i == d->n_segments) {
        for (uint32_t k = 0; k < d->n_segments; k++) close_segment(d, k);
        enum kv_status r = new_segment(d, &i);
        if (r != KV_OK) return failed(d, r);
    }
    struct segment *s = &d->segment[i];
    enum kv_status r = add_extent(d, i, s->next, bytes, out);
    if (r == KV_OK) s->next += span;
    return r;
}

/* ---------------------------------------------------------------- payloads */

/* Key of (segment, tenant), and the bytes the tag covers beside the payload. */
static enum kv_status extent_cipher(const struct disk *d, const struct segment *s, const char *tenant, gnutls_aead_cipher_hd_t *out)
{
    uint8_t text[16 + KV_NAME_CHARS] = {0}, key[32];
    memcpy(text, s->id, 16);
    memcpy(text + 16, tenant, strnlen(tenant, KV_NAME_CHARS));
    if (gnutls_hmac_fast(GNUTLS_MAC_SHA256, d->key, sizeof d->key, text, sizeof text, key)) return KV_INTERNAL;
    gnutls_datum_t k = {key, sizeof key};
    int e = gnutls_aead_cipher_init(out, GNUTLS_CIPHER_AES_256_GCM, &k);
    gnutls_memset(key, 0, sizeof key);
    return e ? KV_INTERNAL : KV_OK;
}

static enum kv_status fill_header(struct extent_page *h, const struct extent *e, const struct kv_chunk_identity *id)
{
    size_t n = 0;
    memset(h, 0, sizeof *h);
    h->magic = EXTENT_MAGIC;
    h->payload_bytes = e->bytes;
    h->sequence = e->generation;
    h->offset = e->offset;
    enum kv_status s = kv_identity_encode(&kv_chunk_type, id, h->identity, sizeof h->identity, &n);
    h->identity_bytes = (uint32_t)n;
    h->checksum = XXH3_64bits(h, offsetof(struct extent_page, checksum));
    return s;
}

/* Sequence numbers order extents at rebuild and are renumbered then, so they are no part of what the tag covers. */
static struct extent_page associated(const struct extent_page *h)
{
    struct extent_page a = *h;
    a.sequence = a.checksum = 0;
    return a;
}

static void nonce_of(uint64_t offset, uint8_t out[12])
{
    memset(out, 0, 12);
    memcpy(out, &offset, 8);
}

static enum kv_status disk_write(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint64_t *hash)
{
    struct disk *d = ctx;
    struct extent *e = held(d, b);
    *hash = 0; /* the tag is the payload hash, and stays with the extent */
    if (!e) return KV_RECYCLED_DESTINATION;
    if (bytes != e->bytes) return failed(d, KV_SHORT_COPY);
    struct segment *s = &d->segment[e->segment];
    struct extent_page h;
    gnutls_aead_cipher_hd_t cipher;
    uint8_t nonce[12];
    size_t sealed = pages(bytes + TAG), n = bytes + TAG;
    enum kv_status r = fill_header(&h, e, id);
    if (r != KV_OK) return r;
    if ((r = extent_cipher(d, s, id->tenant, &cipher)) != KV_OK) return r;
    uint8_t *buffer = calloc(1, sealed);
    struct extent_page aad = associated(&h);
    nonce_of(e->offset, nonce);
    if (!buffer) r = KV_OUT_OF_MEMORY;
    else if (gnutls_aead_cipher_encrypt(cipher, nonce, sizeof nonce, &aad, sizeof aad, TAG, payload, bytes, buffer, &n)) r = KV_INTERNAL;
    gnutls_aead_cipher_deinit(cipher);
    if (r == KV_OK) r = write_all(d, s->fd, buffer, sealed, e->offset + PAGE);
    if (r == KV_OK) r = sync_file(d, s->fd);
    if (r == KV_OK) r = write_all(d, s->fd, &h, sizeof h, e->offset);
    if (r == KV_OK) r = sync_file(d, s->fd);
    free(buffer);
    return r == KV_OK ? r : failed(d, r);
}

static bool header_whole(const struct extent_page *h, uint64_t offset, uint64_t end)
{
    return h->magic == EXTENT_MAGIC && h->offset == offset && h->identity_bytes <= sizeof h->identity && h->payload_bytes > 0 && h->payload_bytes <= end &&
           offset + PAGE + pages(h->payload_bytes + TAG) <= end && h->checksum == XXH3_64bits(h, offsetof(struct extent_page, checksum));
}

static enum kv_status disk_read(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, void *dst, uint64_t bytes)
{
    struct disk *d = ctx;
    struct extent *e = held(d, b);
    if (!e) return KV_STALE_REPLICA_GENERATION;
    if (bytes != e->bytes) return failed(d, KV_SHORT_COPY);
    struct segment *s = &d->segment[e->segment];
    struct extent_page h, want;
    gnutls_aead_cipher_hd_t cipher;
    uint8_t nonce[12];
    enum kv_status r = read_all(d, s->fd, &h, sizeof h, e->offset);
    if (r != KV_OK) return failed(d, r);
    if (!header_whole(&h, e->offset, e->offset + e->span)) return failed(d, KV_CHECKSUM_MISMATCH);
    if ((r = fill_header(&want, e, id)) != KV_OK) return r;
    if (h.identity_bytes != want.identity_bytes || memcmp(h.identity, want.identity, sizeof h.identity)) return failed(d, KV_IDENTITY_MISMATCH);
    if ((r = extent_cipher(d, s, id->tenant, &cipher)) != KV_OK) return r;
    size_t sealed = bytes + TAG, n = bytes;
    uint8_t *buffer = malloc(sealed);
    struct extent_page aad = associated(&want);
    nonce_of(e->offset, nonce);
    if (!buffer) r = KV_OUT_OF_MEMORY;
    else r = read_all(d, s->fd, buffer, sealed, e->offset + PAGE);
    if (r == KV_OK && gnutls_aead_cipher_decrypt(cipher, nonce, sizeof nonce, &aad, sizeof aad, TAG, buffer, sealed, dst, &n)) r = KV_CHECKSUM_MISMATCH;
    if (r != KV_OK) memset(dst, 0, bytes);
    gnutls_aead_cipher_deinit(cipher);
    free(buffer);
    return r == KV_OK ? r : failed(d, r);
}

/* ---------------------------------------------------------------- open */

struct found { /* an extent of an earlier run */
    struct kv_chunk_identity id;
    uint64_t sequence, offset, bytes, number;
    uint32_t segment;
};
struct found_list {
    size_t n, cap;
    struct found *item;
};

/* Walks the pages of a segment. Between whole extents lie the traces of writes that never finished: they are punched out. */
static enum kv_status scan_segment(struct disk *d, uint32_t index, uint64_t file_bytes, struct found_list *list)
{
    struct segment *s = &d->segment[index];
    struct extent_page h;
    uint64_t gap = PAGE;
    for (uint64_t at = PAGE; at + PAGE <= file_bytes;) {
        enum kv_status r = read_all(d, s->fd, &h, sizeof h, at);
        if (r != KV_OK) return r;
        struct found f = {.sequence = h.sequence, .offset = at, .bytes = h.payload_bytes, .segment = index, .number = s->number};
        if (!header_whole(&h, at, file_bytes) || kv_identity_decode(&kv_chunk_type, h.identity, h.identity_bytes, &f.id) != KV_OK) {
            d->stats.dropped_at_open += h.magic == EXTENT_MAGIC;
            at += PAGE;
            continue;
        }
        punch(d, s, gap, at - gap);
        if (list->n == list->cap) {
            size_t cap = list->cap ? list->cap * 2 : 64;
            struct found *grown = realloc(list->item, cap * sizeof *grown);
            if (!grown) return KV_OUT_OF_MEMORY;
            list->item = grown;
            list->cap = cap;
        }
        list->item[list->n++] = f;
        gap = at = at + PAGE + pages(h.payload_bytes + TAG);
    }
    if (gap < file_bytes && d->io->truncate(s->fd, (off_t)gap) == 0) d->used -= file_bytes - gap;
    s->next = gap;
    return KV_OK;
}

static int by_age(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static enum kv_status adopt_segment(struct disk *d, uint64_t number, struct found_list *list)
{
    char name[600];
    struct segment_page page;
    struct stat st;
    segment_name(d, number, name, sizeof name);
    int fd = d->io->open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return from_errno(errno);
    bool whole = fstat(fd, &st) == 0 && st.st_size >= PAGE && read_all(d, fd, &page, sizeof page, 0) == KV_OK && page.magic == SEGMENT_MAGIC &&
                 page.checksum == XXH3_64bits(&page, offsetof(struct segment_page, checksum)) && page.number == number && page.segment_bytes <= MAX_SEGMENT;
    if (!whole || d->n_segments == MAX_SEGMENTS) { /* made by a run that died before the header was durable: nothing refers to it */
        close(fd);
        d->stats.dropped_at_open += !whole;
        return d->io->unlink(name) ? KV_IO_ERROR : KV_OK;
    }
    uint32_t i = d->n_segments++;
    uint64_t size = (uint64_t)st.st_size / PAGE * PAGE, before = d->used;
    d->segment[i] = (struct segment){.fd = fd, .number = number};
    memcpy(d->segment[i].id, page.id, 16);
    d->used += size;
    size_t first = list->n;
    enum kv_status r = scan_segment(d, i, size, list);
    /* Holes punched by the last run were counted with the size and are taken off here: what is live plus one page is what is used. */
    uint64_t live = PAGE;
    for (size_t k = first; k < list->n; k++) live += PAGE + pages(list->item[k].bytes + TAG);
    d->used = before + live;
    d->segment[i].bytes = live;
    return r;
}

static enum kv_status rebuild(struct disk *d, const struct kv_disk_config *c, struct kv_error *err)
{
    struct found_list list = {0};
    uint64_t *numbers = calloc(MAX_SEGMENTS, sizeof *numbers);
    size_t n = 0;
    enum kv_status s = KV_OK;
    DIR *dir = numbers ? opendir(d->path) : NULL;
    if (!dir) free(numbers);
    if (!dir) return kv_fail(err, KV_IO_ERROR, d->path, "the folder of the disk tier cannot be read: %s", strerror(errno));
    for (struct dirent *e; (e = readdir(dir)) && n < MAX_SEGMENTS;) {
        uint64_t number;
        char rest;
        if (sscanf(e->d_name, "segment-%16" SCNx64 "%c", &number, &rest) == 1) numbers[n++] = number;
    }
    closedir(dir);
    for (size_t i = 0; i < n && s == KV_OK; i++) {
        if (numbers[i] >= d->next_number) d->next_number = numbers[i] + 1;
        s = adopt_segment(d, numbers[i], &list);
    }
    if (list.n) qsort(list.item, list.n, sizeof *list.item, by_age);
    for (size_t i = 0; i < list.n && s == KV_OK; i++) {
        struct kv_block b;
        s = add_extent(d, list.item[i].segment, list.item[i].offset, list.item[i].bytes, &b);
        if (s != KV_OK) break;
        /* Over the cap, or unwanted: the oldest go. */
        if (d->used > d->capacity) {
            disk_release(d, b);
            d->stats.dropped_at_open++;
        } else if (c->found) {
            c->found(c->found_ctx, &list.item[i].id, b, list.item[i].bytes);
        }
    }
    for (uint32_t i = 0; i < d->n_segments; i++) drop_if_empty(d, i);
    free(list.item);
    free(numbers);
    return s == KV_OK ? s : kv_fail(err, s, d->path, "the segments of the disk tier cannot be read");
}

static uint64_t disk_used(void *ctx)
{
    return ((struct disk *)ctx)->used;
}

static uint64_t disk_capacity(void *ctx)
{
    return ((struct disk *)ctx)->capacity;
}

enum kv_status kv_disk_open(const struct kv_disk_config *c, struct kv_tier *out, struct kv_error *err)
{
    memset(out, 0, sizeof *out);
    /* Few enough files for the usual limit of open ones. */
    uint64_t segment = c->segment_bytes, share = c->capacity_bytes / SEGMENTS_AT_CAP / PAGE * PAGE;
    if (!segment) segment = share > 64u << 20 ? share : 64u << 20;
    if (segment < MIN_SEGMENT || segment > MAX_SEGMENT || segment % PAGE || strlen(c->path) >= 512)
        return kv_fail(err, KV_BAD_ARGUMENT, "tiers.disk", "a segment of %" PRIu64 " bytes is not whole pages of at least 1 MiB, or the path is too long", segment);
    struct disk *d = calloc(1, sizeof *d);
    if (!d) return KV_OUT_OF_MEMORY;
    snprintf(d->path, sizeof d->path, "%s", c->path);
    d->capacity = c->capacity_bytes;
    d->reserve = c->reserve_bytes;
    d->segment_bytes = segment;
    d->io = c->io ? c->io : &kv_disk_io_system;
    d->lock_fd = -1;
    memcpy(d->key, c->key, sizeof d->key);
    pthread_mutex_init(&d->counters, NULL);
    out->ctx = d;
    d->segment = calloc(MAX_SEGMENTS, sizeof *d->segment);
    d->cap_extents = c->capacity_bytes / (2 * PAGE) + 1;
    if (d->cap_extents > MAX_EXTENTS) d->cap_extents = MAX_EXTENTS;
    d->extent = calloc(d->cap_extents, sizeof *d->extent);
    enum kv_status s = d->segment && d->extent ? KV_OK : KV_OUT_OF_MEMORY;
    if (s == KV_OK && mkdir(d->path, 0700) && errno != EEXIST) s = kv_fail(err, from_errno(errno), d->path, "the folder of the disk tier cannot be made: %s", strerror(errno));
    if (s == KV_OK) {
        /* Two processes on one folder would give one offset to two extents. */
        char name[600];
        snprintf(name, sizeof name, "%s/lock", d->path);
        d->lock_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (d->lock_fd < 0) s = kv_fail(err, from_errno(errno), name, "the lock file cannot be made: %s", strerror(errno));
        else if (flock(d->lock_fd, LOCK_EX | LOCK_NB)) s = kv_fail(err, KV_STORE_LOCKED, d->path, "another process holds the disk tier's folder");
    }
    if (s == KV_OK) s = rebuild(d, c, err);
    if (s != KV_OK) {
        kv_disk_close(out);
        return s;
    }
    out->capability = (struct kv_tier_capability){.name = "disk", .address_space = "file", .codecs = "identity", .layouts = "slab-64", .persistence = "machine", .trust = "authenticated",
                                                  .alignment_bytes = PAGE, .checksum = "aes-256-gcm"};
    out->reserve = disk_reserve, out->release = disk_release, out->current = disk_current, out->write = disk_write, out->read = disk_read, out->erase = disk_erase;
    out->used_bytes = disk_used, out->capacity_bytes = disk_capacity;
    return KV_OK;
}

void kv_disk_close(struct kv_tier *t)
{
    struct disk *d = t->ctx;
    if (!d) return;
    for (uint32_t i = 0; d->segment && i < d->n_segments; i++) {
        close_segment(d, i);
        if (d->segment[i].fd >= 0) close(d->segment[i].fd);
    }
    if (d->lock_fd >= 0) close(d->lock_fd);
    gnutls_memset(d->key, 0, sizeof d->key);
    pthread_mutex_destroy(&d->counters);
    free(d->segment);
    free(d->extent);
    free(d);
    t->ctx = NULL;
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
