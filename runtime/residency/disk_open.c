/* disk_open.c — what remains of earlier runs, and the tier that is made of it. */
#include "runtime/residency/disk_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

struct found { /* an extent of an earlier run */
    struct kv_chunk_identity id;
    uint64_t sequence, offset, bytes, number;
    uint32_t segment;
    bool unproven; /* no later extent says that it had reached the disk whole */
};
struct found_list {
    size_t n, cap;
    struct found *item;
};

/* Walks the pages of a segment. Between whole extents lie the traces of writes that never finished: they are punched out. */
static enum kv_status scan_segment(struct disk *d, uint32_t index, uint64_t file_bytes, struct found_list *list)
{
    struct segment *s = &d->segment[index];
    _Alignas(PAGE) union { struct kv_extent_header h; uint8_t bytes[PAGE]; } page;
    uint64_t gap = PAGE, durable = 0;
    size_t first = list->n;
    for (uint64_t at = PAGE; at + PAGE <= file_bytes;) {
        enum kv_status r = kv_disk_read_all(d, s->fd, &page, PAGE, at);
        if (r != KV_OK) return r;
        struct kv_extent_header h = page.h;
        struct found f = {.sequence = h.sequence, .offset = at, .bytes = h.payload_bytes, .segment = index, .number = s->number};
        if (!kv_disk_header_whole(&h, at, file_bytes) || kv_identity_decode(&kv_chunk_type, h.identity, h.identity_bytes, &f.id) != KV_OK) {
            d->stats.dropped_at_open += h.magic == KV_EXTENT_MAGIC;
            at += PAGE;
            continue;
        }
        kv_disk_punch(d, s, gap, at - gap);
        if (list->n == list->cap) {
            size_t cap = list->cap ? list->cap * 2 : 64;
            struct found *grown = realloc(list->item, cap * sizeof *grown);
            if (!grown) return KV_OUT_OF_MEMORY;
            list->item = grown;
            list->cap = cap;
        }
        list->item[list->n++] = f;
        if (h.durable > durable) durable = h.durable;
        gap = at = at + kv_disk_span(h.payload_bytes);
    }
    for (size_t i = first; i < list->n; i++) list->item[i].unproven = list->item[i].sequence > durable;
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
    _Alignas(PAGE) union { struct segment_page h; uint8_t bytes[PAGE]; } page;
    struct stat st;
    kv_disk_segment_name(d, number, name, sizeof name);
    /* A name of ours on something else, or on somebody's file: left alone. */
    if (lstat(name, &st) == 0 && !S_ISREG(st.st_mode)) return KV_OK;
    int fd = d->io->open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return kv_disk_errno(errno);
    uint64_t magic = 0;
    bool foreign = d->io->pread(fd, &magic, sizeof magic, 0) == (ssize_t)sizeof magic && magic != 0 && magic != SEGMENT_MAGIC;
    if (foreign) {
        close(fd);
        return KV_OK;
    }
    bool whole = fstat(fd, &st) == 0 && st.st_size >= PAGE && kv_disk_read_all(d, fd, &page, PAGE, 0) == KV_OK && page.h.magic == SEGMENT_MAGIC &&
                 page.h.checksum == XXH3_64bits(&page.h, offsetof(struct segment_page, checksum)) && page.h.number == number && page.h.segment_bytes <= MAX_SEGMENT;
    if (!whole || d->n_segments == MAX_SEGMENTS) { /* made by a run that died before the header was durable: nothing refers to it */
        close(fd);
        d->stats.dropped_at_open += !whole;
        return d->io->unlink(name) ? KV_IO_ERROR : KV_OK;
    }
    uint32_t i = d->n_segments++;
    uint64_t size = (uint64_t)st.st_size / PAGE * PAGE, before = d->used;
    d->segment[i] = (struct segment){.fd = fd, .number = number};
    memcpy(d->segment[i].id, page.h.id, 16);
    d->used += size;
    size_t first = list->n;
    enum kv_status r = scan_segment(d, i, size, list);
    /* Holes punched by the last run were counted with the size and are taken off here: what is live plus one page is what is used. */
    uint64_t live = PAGE;
    for (size_t k = first; k < list->n; k++) live += kv_disk_span(list->item[k].bytes);
    d->used = before + live;
    kv_disk_past_cache(fd);
    d->segment[i].bytes = live;
    return r;
}

/* The last groups of a segment: a machine that died may have kept their headers and lost some of their pages. */
static bool whole(struct disk *d, const struct found *f, struct kv_block b)
{
    uint8_t *payload = malloc(f->bytes);
    bool opens = payload && kv_disk_read(d, b, &f->id, payload, f->bytes) == KV_OK;
    free(payload);
    return opens;
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
        if (strlen(e->d_name) == strlen("segment-") + 16 && sscanf(e->d_name, "segment-%16" SCNx64 "%c", &number, &rest) == 1) numbers[n++] = number;
    }
    closedir(dir);
    for (size_t i = 0; i < n && s == KV_OK; i++) {
        if (numbers[i] >= d->next_number) d->next_number = numbers[i] + 1;
        s = adopt_segment(d, numbers[i], &list);
    }
    if (list.n) qsort(list.item, list.n, sizeof *list.item, by_age);
    for (size_t i = 0; i < list.n && s == KV_OK; i++) {
        struct kv_block b;
        s = kv_disk_add_extent(d, list.item[i].segment, list.item[i].offset, list.item[i].bytes, &b);
        if (s != KV_OK) break;
        /* Over the cap, or unwanted: the oldest go. */
        if (d->used > d->capacity || (list.item[i].unproven && !whole(d, &list.item[i], b))) {
            kv_disk_functions.release(d, b);
            d->stats.dropped_at_open++;
        } else if (c->found) {
            c->found(c->found_ctx, &list.item[i].id, b, list.item[i].bytes);
        }
    }
    for (uint32_t i = 0; i < d->n_segments; i++) kv_disk_drop_if_empty(d, i);
    free(list.item);
    free(numbers);
    return s == KV_OK ? s : kv_fail(err, s, d->path, "the segments of the disk tier cannot be read");
}

enum kv_status kv_disk_open(const struct kv_disk_config *c, struct kv_tier *out, struct kv_error *err)
{
    memset(out, 0, sizeof *out);
    /* Few enough files for the usual limit of open ones. */
    uint64_t segment = c->segment_bytes, share = c->capacity_bytes / SEGMENTS_AT_CAP / PAGE * PAGE;
    if (!segment) segment = share > 64u << 20 ? share : 64u << 20;
    if (!c->segment_bytes && segment > c->capacity_bytes / 4) segment = c->capacity_bytes / 4 / PAGE * PAGE; /* a small cap is filled in several steps */
    if (!c->segment_bytes && segment < MIN_SEGMENT) segment = MIN_SEGMENT;
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
    if (s == KV_OK && mkdir(d->path, 0700) && errno != EEXIST) s = kv_fail(err, kv_disk_errno(errno), d->path, "the folder of the disk tier cannot be made: %s", strerror(errno));
    if (s == KV_OK) {
        /* Two processes on one folder would give one offset to two extents. */
        char name[600];
        snprintf(name, sizeof name, "%s/lock", d->path);
        d->lock_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (d->lock_fd < 0) s = kv_fail(err, kv_disk_errno(errno), name, "the lock file cannot be made: %s", strerror(errno));
        else if (flock(d->lock_fd, LOCK_EX | LOCK_NB)) s = kv_fail(err, KV_STORE_LOCKED, d->path, "another process holds the disk tier's folder");
    }
    if (s == KV_OK) s = rebuild(d, c, err);
    if (s == KV_OK) s = kv_disk_spare_start(d);
    if (s != KV_OK) {
        kv_disk_close(out);
        return s;
    }
    void *ctx = out->ctx;
    *out = kv_disk_functions;
    out->ctx = ctx;
    return KV_OK;
}

void kv_disk_close(struct kv_tier *t)
{
    struct disk *d = t->ctx;
    if (!d) return;
    kv_disk_spare_stop(d);
    kv_disk_drop_queues(d);
    for (uint32_t i = 0; d->segment && i < d->n_segments; i++) {
        kv_disk_close_segment(d, i);
        if (d->segment[i].fd >= 0) close(d->segment[i].fd);
    }
    if (d->lock_fd >= 0) close(d->lock_fd);
    for (int i = 0; i < SCRATCH; i++) free(d->scratch[i].bytes);
    gnutls_memset(d->key, 0, sizeof d->key);
    pthread_mutex_destroy(&d->counters);
    free(d->segment);
    free(d->extent);
    free(d);
    t->ctx = NULL;
}
