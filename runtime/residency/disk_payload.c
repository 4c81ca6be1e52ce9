/* disk_payload.c — payloads to their extents: sealed in whole pages, which are at the device while the next are sealed. */
#include "runtime/residency/disk_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    PIECE = 512 << 10, /* sealed between two writes, where there is so much */
    ROUND = 16 << 20,  /* of a group, sealed in memory at a time */
    HUGE_PAGE = 2 << 20,
};

/* In huge pages where allowed: scattered small ones are more pieces than a device takes in one request. */
static struct scratch make_scratch(struct disk *d, size_t n)
{
    struct scratch s = {NULL, n <= HUGE_PAGE / 16 ? n : (n + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE};
    s.bytes = aligned_alloc(s.cap % HUGE_PAGE ? PAGE : HUGE_PAGE, s.cap);
    if (s.bytes && s.cap % HUGE_PAGE == 0) (void)madvise(s.bytes, s.cap, MADV_HUGEPAGE);
    if (s.bytes) kv_disk_count(d, &d->stats.scratch_bytes, s.cap);
    return s;
}

/* Kept between groups: fresh pages for every extent would cost as much as the cipher. */
struct scratch kv_disk_take_scratch(struct disk *d, size_t n)
{
    struct scratch got = {0}, *least = NULL;
    pthread_mutex_lock(&d->counters);
    for (int i = 0; i < SCRATCH; i++)
        if (d->scratch[i].cap >= n && (!least || d->scratch[i].cap < least->cap)) least = &d->scratch[i];
    if (least) got = *least, *least = (struct scratch){0};
    pthread_mutex_unlock(&d->counters);
    if (!got.bytes) got = make_scratch(d, n);
    return got;
}

void kv_disk_give_scratch(struct disk *d, struct scratch s)
{
    pthread_mutex_lock(&d->counters);
    for (int i = 0; i < SCRATCH && s.bytes; i++)
        if (d->scratch[i].cap < s.cap) { /* the larger one stays */
            struct scratch less = d->scratch[i];
            d->scratch[i] = s;
            s = less;
        }
    if (s.bytes) d->stats.scratch_bytes -= s.cap;
    pthread_mutex_unlock(&d->counters);
    free(s.bytes);
}

bool kv_disk_header_whole(const struct kv_extent_header *h, uint64_t offset, uint64_t end)
{
    return h->magic == KV_EXTENT_MAGIC && h->offset == offset && h->identity_bytes <= sizeof h->identity && h->payload_bytes > 0 && h->payload_bytes <= end &&
           offset + kv_disk_span(h->payload_bytes) <= end && h->checksum == XXH3_64bits(h, offsetof(struct kv_extent_header, checksum));
}

/* ---------------------------------------------------------------- writing */

/* Some of a group's extents, in memory one after the other as in the file: a place is an offset in them. */
struct write_round {
    struct disk *d;
    const struct kv_block *b;
    const struct kv_chunk_identity *id;
    const void *const *payload;
    const struct kv_extent_header *h;
    uint64_t bytes, span, end;
    uint8_t *pages;
    gnutls_aead_cipher_hd_t whole;   /* of small extents, until segment or tenant change */
    struct kv_extent_pieces cipher;  /* of the large one that is being sealed */
    uint64_t sealed, given;
    struct request *request;
    struct iovec *part; /* one a request */
    int32_t n_requests;
    enum kv_status status; /* the first failure */
};

static const struct segment *segment_of(const struct write_round *g, uint64_t n)
{
    return &g->d->segment[kv_disk_held(g->d, g->b[n])->segment];
}

static void put_header(const struct write_round *g, uint64_t n, uint8_t *out)
{
    memset(out, 0, PAGE);
    memcpy(out, &g->h[n], sizeof g->h[n]);
}

static enum kv_status seal_whole(struct write_round *g, uint64_t n, uint8_t *out)
{
    bool same = n > 0 && g->whole && segment_of(g, n) == segment_of(g, n - 1) && !strncmp(g->id[n].tenant, g->id[n - 1].tenant, KV_NAME_CHARS);
    if (!same && g->whole) gnutls_aead_cipher_deinit(g->whole);
    if (!same) g->whole = NULL;
    enum kv_status s = same ? KV_OK : kv_extent_cipher(g->d->key, segment_of(g, n)->id, g->id[n].tenant, &g->whole);
    if (s != KV_OK) return s;
    put_header(g, n, out);
    memset(out + PAGE + g->bytes + TAG, 0, g->span - PAGE - g->bytes - TAG);
    return kv_extent_seal(g->whole, &g->h[n], g->payload[n], out + PAGE);
}

/* Bytes [from, to) of the extent's pages, after all before them. */
static enum kv_status seal_piece(struct write_round *g, uint64_t n, uint64_t from, uint64_t to, uint8_t *out)
{
    uint64_t end = PAGE + g->bytes;
    enum kv_status s = KV_OK;
    if (from == 0) {
        put_header(g, n, out);
        s = kv_extent_begin(g->d->key, segment_of(g, n)->id, g->id[n].tenant, &g->h[n], &g->cipher);
        from = PAGE;
    }
    if (s == KV_OK && from < end) s = kv_extent_seal_piece(&g->cipher, (const uint8_t *)g->payload[n] + from - PAGE, (to < end ? to : end) - from, out + from);
    if (to < g->span || s != KV_OK) return s;
    memset(out + end + TAG, 0, g->span - end - TAG);
    return kv_extent_seal_end(&g->cipher, out + end);
}

/* The last piece of an extent takes what would be less than a page of ciphertext and the tag along. */
static void seal_next(struct write_round *g)
{
    uint64_t n = g->sealed / g->span, from = g->sealed % g->span, to = g->span - from < 2 * PIECE ? g->span : from + PIECE;
    uint8_t *out = g->pages + n * g->span;
    enum kv_status s = g->span <= PIECE ? seal_whole(g, n, out) : seal_piece(g, n, from, to, out);
    g->sealed += to - from;
    if (g->status == KV_OK) g->status = s;
}

/* Whether what is sealed and not given goes to the device as one. */
static bool due(const struct write_round *g)
{
    if (g->sealed == g->end || g->sealed - g->given >= PIECE) return true;
    if (g->sealed % g->span) return false;
    const struct extent *last = kv_disk_held(g->d, g->b[g->sealed / g->span - 1]), *next = kv_disk_held(g->d, g->b[g->sealed / g->span]);
    return last->segment != next->segment || last->offset + last->span != next->offset;
}

static void give(struct write_round *g, struct queue *q)
{
    const struct extent *e = kv_disk_held(g->d, g->b[g->given / g->span]);
    int fd = g->d->segment[e->segment].fd;
    uint64_t at = e->offset + g->given % g->span;
    struct iovec *part = &g->part[g->n_requests];
    *part = (struct iovec){g->pages + g->given, (size_t)(g->sealed - g->given)};
    g->given = g->sealed;
    if (kv_disk_send(g->d, q, &g->request[g->n_requests], true, fd, part, 1, at)) g->n_requests++;
    else g->status = kv_disk_write_all(g->d, fd, part->iov_base, part->iov_len, at);
}

/* Short ones are finished: whole pages of them count. */
static void settle(struct write_round *g, const struct request *r, const struct iovec *part)
{
    enum kv_status s = KV_OK;
    size_t done = r->result < 0 ? 0 : (size_t)r->result / PAGE * PAGE;
    kv_disk_count(g->d, &g->d->stats.bytes_written, done);
    if (r->result < 0) s = kv_disk_errno((int)-r->result);
    else if (done < part->iov_len) s = kv_disk_write_all(g->d, (int)r->call.aio_fildes, (uint8_t *)part->iov_base + done, part->iov_len - done, (uint64_t)r->call.aio_offset + done);
    if (g->status == KV_OK) g->status = s;
}

static void write_round(struct write_round *g)
{
    struct queue q = kv_disk_take_queue(g->d);
    while (g->sealed < g->end && g->status == KV_OK) {
        seal_next(g);
        if (g->status == KV_OK && due(g)) give(g, &q);
    }
    while (q.under_way) kv_disk_hear(g->d, &q, true); /* also after a failure: the device reads from the pages */
    kv_disk_give_queue(g->d, &q);
    for (int32_t i = 0; i < g->n_requests; i++) settle(g, &g->request[i], &g->part[i]);
    if (g->whole) gnutls_aead_cipher_deinit(g->whole);
    kv_extent_give_up(&g->cipher);
}

static enum kv_status write_extents(struct disk *d, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, const void *const *payload, const struct kv_extent_header *h,
                                    uint64_t bytes)
{
    struct write_round g = {.d = d, .b = b, .id = id, .payload = payload, .h = h, .bytes = bytes, .span = kv_disk_span(bytes)};
    g.end = (uint64_t)n * g.span;
    size_t most = (size_t)(g.end / PIECE) + (size_t)n + 1;
    struct scratch pages = kv_disk_take_scratch(d, (size_t)g.end);
    g.pages = pages.bytes;
    g.request = calloc(most, sizeof *g.request);
    g.part = calloc(most, sizeof *g.part);
    if (!pages.bytes || !g.request || !g.part) g.status = KV_OUT_OF_MEMORY;
    else write_round(&g);
    if (pages.bytes) kv_disk_give_scratch(d, pages);
    free(g.request);
    free(g.part);
    return g.status;
}

/* Numbers the group's extents, and says in each what had reached the disk before it. Neighbours in a group share a segment but where one ended. */
static void begin_group(struct disk *d, int32_t n, const struct kv_block *b, struct kv_extent_header *h)
{
    pthread_mutex_lock(&d->counters);
    for (int32_t i = 0; i < n; i++) {
        struct segment *s = &d->segment[kv_disk_held(d, b[i])->segment];
        if (i == 0 || s != &d->segment[kv_disk_held(d, b[i - 1])->segment]) s->in_flight++;
        h[i].sequence = s->begun = ++d->next_sequence;
        h[i].durable = s->durable;
        h[i].checksum = XXH3_64bits(&h[i], offsetof(struct kv_extent_header, checksum));
    }
    pthread_mutex_unlock(&d->counters);
}

static enum kv_status end_group(struct disk *d, int32_t n, const struct kv_block *b, enum kv_status written)
{
    enum kv_status status = written;
    for (int32_t i = 0; i < n; i++) {
        struct segment *s = &d->segment[kv_disk_held(d, b[i])->segment];
        if (i && s == &d->segment[kv_disk_held(d, b[i - 1])->segment]) continue;
        if (status == KV_OK) status = kv_disk_sync(d, s->fd);
        pthread_mutex_lock(&d->counters);
        bool names = status == KV_OK && !s->named;
        pthread_mutex_unlock(&d->counters);
        if (names) kv_disk_sync_folder(d);
        pthread_mutex_lock(&d->counters);
        s->named |= names;
        s->failed |= status != KV_OK;
        if (--s->in_flight == 0 && !s->failed) s->durable = s->begun;
        pthread_mutex_unlock(&d->counters);
    }
    return status;
}

enum kv_status kv_disk_write_group(void *ctx, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, const void *const *payload, uint64_t bytes)
{
    struct disk *d = ctx;
    enum kv_status r = KV_OK;
    if (n < 1) return KV_BAD_ARGUMENT;
    for (int32_t i = 0; i < n; i++) {
        struct extent *e = kv_disk_held(d, b[i]);
        if (!e) return KV_RECYCLED_DESTINATION;
        if (bytes != e->bytes) return kv_disk_failed(d, KV_SHORT_COPY);
    }
    struct kv_extent_header *h = calloc((size_t)n, sizeof *h);
    if (!h) r = KV_OUT_OF_MEMORY;
    for (int32_t i = 0; i < n && r == KV_OK; i++) {
        const struct extent *e = kv_disk_held(d, b[i]);
        r = kv_extent_header(e->offset, e->bytes, &id[i], &h[i]);
    }
    if (r == KV_OK) {
        int32_t at_once = kv_disk_span(bytes) < ROUND ? (int32_t)(ROUND / kv_disk_span(bytes)) : 1;
        begin_group(d, n, b, h);
        for (int32_t i = 0; i < n && r == KV_OK; i += at_once) r = write_extents(d, n - i < at_once ? n - i : at_once, b + i, id + i, payload + i, h + i, bytes);
        r = end_group(d, n, b, r);
    }
    free(h);
    return r == KV_OK ? r : kv_disk_failed(d, r);
}

enum kv_status kv_disk_write(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint64_t *hash)
{
    *hash = 0; /* the tag is the payload hash, and stays with the extent */
    return kv_disk_write_group(ctx, 1, &b, id, &payload, bytes);
}
