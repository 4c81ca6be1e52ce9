/* disk_payload.c — payloads to their extents: sealed in whole pages, a group's extents side by side on the lanes. */
#include "runtime/residency/disk_state.h"
#include "runtime/residency/faults.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    RUN_BYTES = 512 << 10, /* neighbouring extents up to this go in one write */
    PIECE = 512 << 10, SMALL_PIECE = 256 << 10, MAX_PIECES = 64, /* small: where there are fewer extents than threads to move them */
    HUGE_PAGE = 2 << 20,
};

/* In huge pages where allowed: scattered small ones are more pieces than a device takes in one request. */
static struct scratch make_scratch(struct disk *d, size_t n)
{
    struct scratch s = {NULL, n <= HUGE_PAGE / 4 ? n : (n + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE};
    s.bytes = aligned_alloc(s.cap % HUGE_PAGE ? PAGE : HUGE_PAGE, s.cap);
    if (s.bytes && s.cap % HUGE_PAGE == 0) (void)madvise(s.bytes, s.cap, MADV_HUGEPAGE);
    if (s.bytes) kv_disk_count(d, &d->stats.scratch_bytes, s.cap);
    return s;
}

/* Kept between groups: fresh pages for every extent would cost as much as the cipher. */
struct scratch kv_disk_take_scratch(struct disk *d, size_t n)
{
    struct scratch got = {0};
    pthread_mutex_lock(&d->counters);
    for (int i = 0; i < SCRATCH && !got.bytes; i++)
        if (d->scratch[i].cap >= n) got = d->scratch[i], d->scratch[i] = (struct scratch){0};
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

int32_t kv_disk_pieces(const struct disk *d, int32_t n, uint64_t span, uint64_t *piece_bytes)
{
    uint64_t pieces = span / (n < kv_lanes_count(d->lanes) ? SMALL_PIECE : PIECE);
    pieces = pieces < 1 ? 1 : pieces > MAX_PIECES ? MAX_PIECES : pieces;
    *piece_bytes = kv_disk_pages(span / pieces);
    return (int32_t)pieces;
}

struct run { /* neighbours in one segment, or one extent in pieces */
    int32_t first, n;
    uint64_t span, piece_bytes;
    int32_t first_item, pieces;
    struct scratch pages;
    struct kv_extent_pieces cipher; /* of an extent in pieces */
    int32_t sealed, written;        /* pieces; under the group's lock */
};

struct group {
    struct disk *d;
    const struct kv_block *b;
    const struct kv_chunk_identity *id;
    const void *const *payload;
    uint64_t bytes;
    struct kv_extent_header *h;
    struct run *run;
    int32_t n_runs;
    const struct kv_fault_marks *faults;
    pthread_mutex_t lock;
    pthread_cond_t sealed;
    enum kv_status status; /* the first failure */
};

/* Whole extents, one after the other. */
static enum kv_status seal_all(const struct group *g, struct run *r)
{
    gnutls_aead_cipher_hd_t cipher = NULL;
    const struct segment *s = &g->d->segment[kv_disk_held(g->d, g->b[r->first])->segment];
    enum kv_status status = KV_OK;
    uint8_t *out = r->pages.bytes;
    for (int32_t i = r->first; status == KV_OK && i < r->first + r->n; i++, out += kv_disk_span(g->bytes)) {
        if (i == r->first || strncmp(g->id[i].tenant, g->id[i - 1].tenant, KV_NAME_CHARS)) {
            if (cipher) gnutls_aead_cipher_deinit(cipher);
            cipher = NULL;
            if ((status = kv_extent_cipher(g->d->key, s->id, g->id[i].tenant, &cipher)) != KV_OK) break;
        }
        memset(out, 0, PAGE);
        memcpy(out, &g->h[i], sizeof g->h[i]);
        status = kv_extent_seal(cipher, &g->h[i], g->payload[i], out + PAGE);
        memset(out + PAGE + g->bytes + TAG, 0, kv_disk_span(g->bytes) - PAGE - g->bytes - TAG);
    }
    if (cipher) gnutls_aead_cipher_deinit(cipher);
    return status;
}

/* Bytes [from, to) of the pages of one extent, after all before them. */
static enum kv_status seal_piece(const struct group *g, struct run *r, uint64_t from, uint64_t to)
{
    const struct segment *s = &g->d->segment[kv_disk_held(g->d, g->b[r->first])->segment];
    uint64_t end = PAGE + g->bytes;
    uint8_t *out = r->pages.bytes;
    enum kv_status status = KV_OK;
    if (from == 0) {
        memset(out, 0, PAGE);
        memcpy(out, &g->h[r->first], sizeof g->h[r->first]);
        status = kv_extent_begin(g->d->key, s->id, g->id[r->first].tenant, &g->h[r->first], &r->cipher);
        from = PAGE;
    }
    if (status == KV_OK && from < end) status = kv_extent_seal_piece(&r->cipher, (const uint8_t *)g->payload[r->first] + from - PAGE, (to < end ? to : end) - from, out + from);
    if (to < r->span || status != KV_OK) return status;
    memset(out + end + TAG, 0, r->span - end - TAG);
    return kv_extent_seal_end(&r->cipher, out + end);
}

static enum kv_status take_pages(const struct group *g, struct run *r)
{
    if (!r->pages.bytes) r->pages = kv_disk_take_scratch(g->d, r->span);
    return r->pages.bytes ? KV_OK : KV_OUT_OF_MEMORY;
}

/* Items are taken in order: whoever has the piece before this one is at work on it. */
static void write_item(void *ctx, int32_t item)
{
    struct group *g = ctx;
    struct run *r = g->run;
    while (item >= r->first_item + r->pieces) r++;
    int32_t piece = item - r->first_item;
    uint64_t from = (uint64_t)piece * r->piece_bytes, to = piece + 1 == r->pieces ? r->span : from + r->piece_bytes;
    pthread_mutex_lock(&g->lock);
    while (r->sealed < piece) pthread_cond_wait(&g->sealed, &g->lock);
    enum kv_status status = g->status;
    pthread_mutex_unlock(&g->lock);
    if (status == KV_OK) status = take_pages(g, r);
    if (status == KV_OK) status = r->pieces == 1 ? seal_all(g, r) : seal_piece(g, r, from, to);
    pthread_mutex_lock(&g->lock);
    r->sealed++;
    if (g->status == KV_OK) g->status = status;
    pthread_cond_broadcast(&g->sealed);
    pthread_mutex_unlock(&g->lock);
    const struct extent *first = kv_disk_held(g->d, g->b[r->first]);
    kv_faults_at_disk(g->faults);
    if (status == KV_OK) status = kv_disk_write_all(g->d, g->d->segment[first->segment].fd, r->pages.bytes + from, to - from, first->offset + from);
    kv_faults_at_disk(NULL);
    pthread_mutex_lock(&g->lock);
    if (g->status == KV_OK) g->status = status;
    bool last = ++r->written == r->pieces;
    pthread_mutex_unlock(&g->lock);
    if (!last) return;
    kv_extent_give_up(&r->cipher);
    if (r->pages.bytes) kv_disk_give_scratch(g->d, r->pages);
}

/* How many items they are in all. */
static int32_t find_runs(struct group *g, int32_t n)
{
    int32_t items = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct extent *e = kv_disk_held(g->d, g->b[i]), *before = i ? kv_disk_held(g->d, g->b[i - 1]) : NULL;
        struct run *r = g->n_runs ? &g->run[g->n_runs - 1] : NULL;
        if (!before || before->segment != e->segment || before->offset + before->span != e->offset || r->span + e->span > RUN_BYTES) r = &g->run[g->n_runs++], r->first = i;
        r->n++;
        r->span += e->span;
    }
    for (int32_t i = 0; i < g->n_runs; i++) {
        struct run *r = &g->run[i];
        r->first_item = items;
        r->pieces = 1;
        r->piece_bytes = r->span;
        if (r->n == 1) r->pieces = kv_disk_pieces(g->d, n, r->span, &r->piece_bytes);
        items += r->pieces;
    }
    return items;
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
    struct group g = {.d = d, .b = b, .id = id, .payload = payload, .bytes = bytes, .h = calloc((size_t)n, sizeof *g.h), .run = calloc((size_t)n, sizeof *g.run),
                      .faults = kv_faults_here()};
    pthread_mutex_init(&g.lock, NULL);
    pthread_cond_init(&g.sealed, NULL);
    if (!g.h || !g.run) r = KV_OUT_OF_MEMORY;
    for (int32_t i = 0; i < n && r == KV_OK; i++) {
        const struct extent *e = kv_disk_held(d, b[i]);
        r = kv_extent_header(e->offset, e->bytes, &id[i], &g.h[i]);
    }
    if (r == KV_OK) {
        begin_group(d, n, b, g.h);
        kv_lanes_run(d->lanes, find_runs(&g, n), write_item, &g);
        kv_faults_at_disk(g.faults);
        r = end_group(d, n, b, g.status);
    }
    pthread_cond_destroy(&g.sealed);
    pthread_mutex_destroy(&g.lock);
    free(g.h);
    free(g.run);
    return r == KV_OK ? r : kv_disk_failed(d, r);
}

enum kv_status kv_disk_write(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint64_t *hash)
{
    *hash = 0; /* the tag is the payload hash, and stays with the extent */
    return kv_disk_write_group(ctx, 1, &b, id, &payload, bytes);
}
