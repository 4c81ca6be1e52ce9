/* disk.c — segments and extents: reserving, sealing, reading, releasing. */
#include "runtime/residency/disk_state.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

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

enum kv_status kv_disk_errno(int e)
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
        if (w <= 0) return kv_disk_errno(w < 0 ? errno : ENOSPC);
        done += (size_t)w;
    }
    count(d, &d->stats.bytes_written, n);
    return KV_OK;
}

enum kv_status kv_disk_read_all(struct disk *d, int fd, void *buf, size_t n, uint64_t at)
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
    return d->io->sync(fd) ? kv_disk_errno(errno) : KV_OK;
}

void kv_disk_segment_name(const struct disk *d, uint64_t number, char *out, size_t cap)
{
    snprintf(out, cap, "%s/segment-%016" PRIx64, d->path, number);
}

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

uint64_t kv_disk_span(uint64_t payload_bytes)
{
    return PAGE + pages(payload_bytes + TAG);
}

/* ---------------------------------------------------------------- extents */

static struct extent *held(struct disk *d, struct kv_block b)
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
    static const uint8_t zero[PAGE];
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
    struct extent *e = held(d, b);
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
    kv_disk_segment_name(d, s.number, name, sizeof name);
    if (gnutls_rnd(GNUTLS_RND_NONCE, s.id, sizeof s.id)) return KV_INTERNAL;
    s.fd = d->io->open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (s.fd < 0) return kv_disk_errno(errno);
    struct segment_page page = {.magic = SEGMENT_MAGIC, .segment_bytes = d->segment_bytes, .number = s.number};
    memcpy(page.id, s.id, sizeof page.id);
    page.checksum = XXH3_64bits(&page, offsetof(struct segment_page, checksum));
    enum kv_status r = d->io->allocate(s.fd, 0, (off_t)d->segment_bytes) ? kv_disk_errno(errno) : write_all(d, s.fd, &page, sizeof page, 0);
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
    uint64_t span = kv_disk_span(bytes);
    if (bytes == 0 || bytes > d->segment_bytes || span + PAGE > d->segment_bytes) return KV_BAD_ARGUMENT;
    uint32_t i = 0;
    while (i < d->n_segments && !(d->segment[i].fd >= 0 && d->segment[i].open && d->segment[i].next + span <= d->segment_bytes)) i++;
    if (i == d->n_segments) {
        for (uint32_t k = 0; k < d->n_segments; k++) kv_disk_close_segment(d, k);
        enum kv_status r = new_segment(d, &i);
        if (r != KV_OK) return failed(d, r);
    }
    struct segment *s = &d->segment[i];
    enum kv_status r = kv_disk_add_extent(d, i, s->next, bytes, out);
    if (r == KV_OK) s->next += span;
    return r;
}

/* ---------------------------------------------------------------- payloads */

/* Kept between writes: fresh pages for every extent would cost as much as the cipher. */
static struct scratch take_scratch(struct disk *d, size_t n)
{
    struct scratch got = {0};
    pthread_mutex_lock(&d->counters);
    for (int i = 0; i < SCRATCH && !got.bytes; i++)
        if (d->scratch[i].cap >= n) got = d->scratch[i], d->scratch[i] = (struct scratch){0};
    pthread_mutex_unlock(&d->counters);
    if (!got.bytes) got = (struct scratch){malloc(n), n};
    return got;
}

static void give_scratch(struct disk *d, struct scratch s)
{
    pthread_mutex_lock(&d->counters);
    for (int i = 0; i < SCRATCH && s.bytes; i++)
        if (d->scratch[i].cap < s.cap) { /* the larger one stays */
            struct scratch less = d->scratch[i];
            d->scratch[i] = s;
            s = less;
        }
    pthread_mutex_unlock(&d->counters);
    free(s.bytes);
}

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

/* Ciphertext and tag of one extent to its place; the header is made and not yet written. */
static enum kv_status seal_payload(struct disk *d, const struct extent *e, const struct kv_chunk_identity *id, const void *payload, struct extent_page *h)
{
    struct segment *s = &d->segment[e->segment];
    gnutls_aead_cipher_hd_t cipher;
    uint8_t nonce[12];
    size_t sealed = pages(e->bytes + TAG), n = e->bytes + TAG;
    enum kv_status r = fill_header(h, e, id);
    if (r != KV_OK) return r;
    if ((r = extent_cipher(d, s, id->tenant, &cipher)) != KV_OK) return r;
    struct extent_page aad = associated(h);
    nonce_of(e->offset, nonce);
    struct scratch buffer = take_scratch(d, sealed);
    if (!buffer.bytes) r = KV_OUT_OF_MEMORY;
    else if (gnutls_aead_cipher_encrypt(cipher, nonce, sizeof nonce, &aad, sizeof aad, TAG, payload, e->bytes, buffer.bytes, &n)) r = KV_INTERNAL;
    gnutls_aead_cipher_deinit(cipher);
    if (r == KV_OK) memset(buffer.bytes + n, 0, sealed - n);
    if (r == KV_OK) r = write_all(d, s->fd, buffer.bytes, sealed, e->offset + PAGE);
    give_scratch(d, buffer);
    return r;
}

/* Neighbours in a group share a segment but where one ended. */
static enum kv_status sync_extents(struct disk *d, int32_t n, const struct kv_block *b)
{
    enum kv_status r = KV_OK;
    for (int32_t i = 0; i < n && r == KV_OK; i++)
        if (i == 0 || held(d, b[i])->segment != held(d, b[i - 1])->segment) r = sync_file(d, d->segment[held(d, b[i])->segment].fd);
    return r;
}

static enum kv_status disk_write_group(void *ctx, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, const void *const *payload, uint64_t bytes)
{
    struct disk *d = ctx;
    enum kv_status r = KV_OK;
    if (n < 1) return KV_BAD_ARGUMENT;
    for (int32_t i = 0; i < n; i++) {
        struct extent *e = held(d, b[i]);
        if (!e) return KV_RECYCLED_DESTINATION;
        if (bytes != e->bytes) return failed(d, KV_SHORT_COPY);
    }
    struct extent_page *h = calloc((size_t)n, sizeof *h);
    if (!h) return KV_OUT_OF_MEMORY;
    for (int32_t i = 0; i < n && r == KV_OK; i++) r = seal_payload(d, held(d, b[i]), &id[i], payload[i], &h[i]);
    if (r == KV_OK) r = sync_extents(d, n, b);
    for (int32_t i = 0; i < n && r == KV_OK; i++) r = write_all(d, d->segment[held(d, b[i])->segment].fd, &h[i], sizeof h[i], held(d, b[i])->offset);
    if (r == KV_OK) r = sync_extents(d, n, b);
    free(h);
    return r == KV_OK ? r : failed(d, r);
}

static enum kv_status disk_write(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint64_t *hash)
{
    *hash = 0; /* the tag is the payload hash, and stays with the extent */
    return disk_write_group(ctx, 1, &b, id, &payload, bytes);
}

bool kv_disk_header_whole(const struct extent_page *h, uint64_t offset, uint64_t end)
{
    return h->magic == EXTENT_MAGIC && h->offset == offset && h->identity_bytes <= sizeof h->identity && h->payload_bytes > 0 && h->payload_bytes <= end &&
           offset + kv_disk_span(h->payload_bytes) <= end && h->checksum == XXH3_64bits(h, offsetof(struct extent_page, checksum));
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
    enum kv_status r = kv_disk_read_all(d, s->fd, &h, sizeof h, e->offset);
    if (r != KV_OK) return failed(d, r);
    if (!kv_disk_header_whole(&h, e->offset, e->offset + e->span)) return failed(d, KV_CHECKSUM_MISMATCH);
    if ((r = fill_header(&want, e, id)) != KV_OK) return r;
    if (h.identity_bytes != want.identity_bytes || memcmp(h.identity, want.identity, sizeof h.identity)) return failed(d, KV_IDENTITY_MISMATCH);
    if ((r = extent_cipher(d, s, id->tenant, &cipher)) != KV_OK) return r;
    uint8_t tag[TAG];
    struct extent_page aad = associated(&want);
    nonce_of(e->offset, nonce);
    r = kv_disk_read_all(d, s->fd, dst, bytes, e->offset + PAGE);
    if (r == KV_OK) r = kv_disk_read_all(d, s->fd, tag, TAG, e->offset + PAGE + bytes);
    struct iovec covered = {&aad, sizeof aad}, text = {dst, bytes};
    if (r == KV_OK && gnutls_aead_cipher_decryptv2(cipher, nonce, sizeof nonce, &covered, 1, &text, 1, tag, TAG)) r = KV_CHECKSUM_MISMATCH;
    if (r != KV_OK) memset(dst, 0, bytes);
    gnutls_aead_cipher_deinit(cipher);
    return r == KV_OK ? r : failed(d, r);
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
                                          .write = disk_write, .write_group = disk_write_group, .read = disk_read, .erase = disk_erase,
                                          .used_bytes = disk_used, .capacity_bytes = disk_capacity};
