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
    SMALL_PIECE = 256 << 10, LARGE_PIECE = 1 << 20, /* what one write takes at least, where there is so much, and at most, but for a very large extent */
    MAX_PIECES = 64,
    ROUND_BYTES = 16 << 20, /* of a group, sealed in memory at a time */
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

/* ---------------------------------------------------------------- writing
 * A device may tell of no write before it has done all it was given: whoever writes comes back when it stands still. So every piece of a round has a lane
 * of its own to wait on, and none that is to be sealed waits for one that is written. */

struct run { /* neighbours in one segment, or one extent in pieces */
    int32_t first, n;
    uint64_t span;
    uint8_t *pages;
    struct kv_extent_pieces cipher; /* of an extent in pieces */
    int32_t sealed;                 /* pieces; under the group's lock */
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
    int32_t pieces; /* of every run: their extents are of one size */
    struct run *round; /* the runs that are under way */
    int32_t n_round;
    const struct kv_fault_marks *faults;
    pthread_mutex_t lock;
    pthread_cond_t sealed[KV_LANES_MAX]; /* by the count that is waited for: each piece wakes whoever writes it, not all */
    enum kv_status status; /* the first failure */
};

/* Whole extents, one after the other. */
static enum kv_status seal_all(const struct group *g, struct run *r)
{
    gnutls_aead_cipher_hd_t cipher = NULL;
    const struct segment *s = &g->d->segment[kv_disk_held(g->d, g->b[r->first])->segment];
    enum kv_status status = KV_OK;
    uint8_t *out = r->pages;
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
    uint8_t *out = r->pages;
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

static uint64_t piece_at(const struct group *g, const struct run *r, int32_t piece)
{
    return piece == g->pieces ? r->span : kv_disk_pages(r->span / (uint64_t)g->pieces) * (uint64_t)piece;
}

static enum kv_status wait_sealed(struct group *g, const struct run *r, int32_t pieces)
{
    pthread_mutex_lock(&g->lock);
    while (r->sealed < pieces) pthread_cond_wait(&g->sealed[pieces % KV_LANES_MAX], &g->lock);
    enum kv_status status = g->status;
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* After all before it. What failed is counted as sealed, so that nobody waits for it, and not written. */
static void seal_next(struct group *g, struct run *r, int32_t piece)
{
    enum kv_status status = wait_sealed(g, r, piece);
    if (status == KV_OK) status = g->pieces == 1 ? seal_all(g, r) : seal_piece(g, r, piece_at(g, r, piece), piece_at(g, r, piece + 1));
    pthread_mutex_lock(&g->lock);
    int32_t count = ++r->sealed;
    if (g->status == KV_OK) g->status = status;
    pthread_cond_broadcast(&g->sealed[count % KV_LANES_MAX]);
    pthread_mutex_unlock(&g->lock);
}

static void put_piece(struct group *g, const struct run *r, int32_t piece)
{
    uint64_t from = piece_at(g, r, piece), to = piece_at(g, r, piece + 1);
    enum kv_status status = wait_sealed(g, r, piece + 1);
    if (status != KV_OK) return;
    const struct extent *first = kv_disk_held(g->d, g->b[r->first]);
    kv_faults_at_disk(g->faults);
    status = kv_disk_write_all(g->d, g->d->segment[first->segment].fd, r->pages + from, to - from, first->offset + from);
    kv_faults_at_disk(NULL);
    if (status == KV_OK) return;
    pthread_mutex_lock(&g->lock);
    if (g->status == KV_OK) g->status = status;
    pthread_mutex_unlock(&g->lock);
}

/* Items are taken in order, the first pieces of all runs before the second ones: whoever has the piece before this one is at work on it. One run alone is
 * sealed by one thread, the others write what is ready: a cipher that went from thread to thread would wait for each of them to wake. */
static void write_item(void *ctx, int32_t item)
{
    struct group *g = ctx;
    struct run *r = &g->round[item % g->n_round];
    int32_t piece = item / g->n_round;
    if (g->n_round > 1) {
        seal_next(g, r, piece);
        put_piece(g, r, piece);
    } else if (piece > 0) {
        put_piece(g, r, piece - 1);
    } else {
        for (int32_t i = 0; i < g->pieces; i++) seal_next(g, r, i);
        put_piece(g, r, g->pieces - 1);
    }
}

static void find_runs(struct group *g, int32_t n)
{
    uint64_t span = kv_disk_held(g->d, g->b[0])->span, share = (uint64_t)n * span / (uint64_t)kv_lanes_count(g->d->lanes);
    uint64_t piece = share < SMALL_PIECE ? SMALL_PIECE : share > LARGE_PIECE ? LARGE_PIECE : share;
    for (int32_t i = 0; i < n; i++) {
        const struct extent *e = kv_disk_held(g->d, g->b[i]), *before = i ? kv_disk_held(g->d, g->b[i - 1]) : NULL;
        struct run *r = g->n_runs ? &g->run[g->n_runs - 1] : NULL;
        if (!before || before->segment != e->segment || before->offset + before->span != e->offset || r->span + e->span > piece) r = &g->run[g->n_runs++], r->first = i;
        r->n++;
        r->span += e->span;
    }
    g->pieces = span < 2 * piece ? 1 : span / piece > MAX_PIECES ? MAX_PIECES : (int32_t)(span / piece);
}

/* As many runs as there is memory for at a time. */
static void write_rounds(struct group *g)
{
    for (int32_t i = 0; i < g->n_runs && g->status == KV_OK; i += g->n_round) {
        uint64_t bytes = 0;
        g->round = &g->run[i];
        for (g->n_round = 0; i + g->n_round < g->n_runs && (g->n_round == 0 || bytes + g->round[g->n_round].span <= ROUND_BYTES); g->n_round++) bytes += g->round[g->n_round].span;
        struct scratch pages = kv_disk_take_scratch(g->d, bytes);
        uint8_t *at = pages.bytes;
        for (int32_t k = 0; k < g->n_round && at; at += g->round[k++].span) g->round[k].pages = at;
        if (!pages.bytes) g->status = KV_OUT_OF_MEMORY;
        else kv_lanes_run(g->d->lanes, g->n_round * g->pieces, write_item, g);
        for (int32_t k = 0; k < g->n_round; k++) kv_extent_give_up(&g->round[k].cipher);
        if (pages.bytes) kv_disk_give_scratch(g->d, pages);
    }
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
    for (int i = 0; i < KV_LANES_MAX; i++) pthread_cond_init(&g.sealed[i], NULL);
    if (!g.h || !g.run) r = KV_OUT_OF_MEMORY;
    for (int32_t i = 0; i < n && r == KV_OK; i++) {
        const struct extent *e = kv_disk_held(d, b[i]);
        r = kv_extent_header(e->offset, e->bytes, &id[i], &g.h[i]);
    }
    if (r == KV_OK) {
        begin_group(d, n, b, g.h);
        find_runs(&g, n);
        write_rounds(&g);
        kv_faults_at_disk(g.faults);
        r = end_group(d, n, b, g.status);
    }
    for (int i = 0; i < KV_LANES_MAX; i++) pthread_cond_destroy(&g.sealed[i]);
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
