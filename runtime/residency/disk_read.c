/* disk_read.c — payloads from their extents. An extent is read in pieces, several at once, and each piece is opened as soon as those before it are: device
 * and cipher work side by side, also on one extent. */
#include "runtime/residency/disk_state.h"
#include "runtime/residency/faults.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    READERS = 4, /* threads at most. With more all pieces would be told of at once, and opened with nothing left to read meanwhile */
    PIECE = 512 << 10, SMALL_PIECE = 256 << 10, MAX_PIECES = 64, /* small: where there are fewer extents than readers */
};

struct opening { /* of one extent */
    struct scratch pages;
    struct kv_extent_pieces cipher; /* whoever is busy with it */
    /* Under the group's lock. */
    uint64_t arrived; /* bit per piece: it is there, or will not come */
    int32_t next;     /* piece to open */
    bool busy;        /* somebody opens a piece */
    enum kv_status status;
};

struct read_group {
    struct disk *d;
    const struct kv_block *b;
    const struct kv_chunk_identity *id;
    void *const *dst;
    uint64_t bytes, span, piece_bytes;
    int32_t pieces; /* of an extent */
    struct opening *open;
    int32_t all;          /* pieces of the group */
    _Atomic int32_t next; /* to read */
    pthread_mutex_t lock;
    const struct kv_fault_marks *faults;
};

/* Bytes [from, to) of the extent's pages, after all before them. */
static enum kv_status open_piece(const struct read_group *g, int32_t n, uint64_t from, uint64_t to)
{
    struct opening *x = &g->open[n];
    const struct extent *e = kv_disk_held(g->d, g->b[n]);
    uint64_t end = PAGE + g->bytes;
    enum kv_status r = KV_OK;
    if (from == 0) {
        struct kv_extent_header h, want;
        memcpy(&h, x->pages.bytes, sizeof h);
        if (!kv_disk_header_whole(&h, e->offset, e->offset + e->span)) return KV_CHECKSUM_MISMATCH;
        if ((r = kv_extent_header(e->offset, e->bytes, &g->id[n], &want)) != KV_OK) return r;
        if (h.identity_bytes != want.identity_bytes || memcmp(h.identity, want.identity, sizeof h.identity)) return KV_IDENTITY_MISMATCH;
        r = kv_extent_begin(g->d->key, g->d->segment[e->segment].id, g->id[n].tenant, &want, &x->cipher);
        from = PAGE;
    }
    if (r == KV_OK && from < end) r = kv_extent_unseal_piece(&x->cipher, x->pages.bytes + from, (to < end ? to : end) - from, (uint8_t *)g->dst[n] + from - PAGE);
    if (r == KV_OK && to == g->span) r = kv_extent_unseal_end(&x->cipher, x->pages.bytes + end);
    return r;
}

static uint64_t piece_end(const struct read_group *g, int32_t piece)
{
    return piece + 1 == g->pieces ? g->span : (uint64_t)(piece + 1) * g->piece_bytes;
}

/* Under the lock, which is given up meanwhile: opens what has arrived and is next, unless somebody else is at it. */
static void open_arrived(struct read_group *g, int32_t n)
{
    struct opening *x = &g->open[n];
    while (!x->busy && x->next < g->pieces && x->arrived >> x->next & 1) {
        x->busy = true;
        bool good = x->status == KV_OK;
        pthread_mutex_unlock(&g->lock);
        enum kv_status r = good ? open_piece(g, n, (uint64_t)x->next * g->piece_bytes, piece_end(g, x->next)) : KV_OK;
        pthread_mutex_lock(&g->lock);
        if (x->status == KV_OK) x->status = r;
        x->next++;
        x->busy = false;
    }
    if (x->next < g->pieces || !x->pages.bytes) return;
    kv_disk_give_scratch(g->d, x->pages);
    x->pages.bytes = NULL;
    if (x->status == KV_OK) return;
    kv_extent_give_up(&x->cipher);
    memset(g->dst[n], 0, g->bytes);
}

static void read_piece(struct read_group *g, int32_t i)
{
    struct opening *x = &g->open[i / g->pieces];
    int32_t piece = i % g->pieces;
    uint64_t from = (uint64_t)piece * g->piece_bytes;
    const struct extent *e = kv_disk_held(g->d, g->b[i / g->pieces]);
    pthread_mutex_lock(&g->lock);
    if (x->status == KV_OK && !x->pages.bytes) {
        x->pages = kv_disk_take_scratch(g->d, g->span);
        if (!x->pages.bytes) x->status = KV_OUT_OF_MEMORY;
    }
    bool good = x->status == KV_OK;
    pthread_mutex_unlock(&g->lock);
    kv_faults_at_disk(g->faults);
    enum kv_status r = good ? kv_disk_read_all(g->d, g->d->segment[e->segment].fd, x->pages.bytes + from, piece_end(g, piece) - from, e->offset + from) : KV_OK;
    kv_faults_at_disk(NULL);
    pthread_mutex_lock(&g->lock);
    if (x->status == KV_OK) x->status = r;
    x->arrived |= UINT64_C(1) << piece;
    open_arrived(g, i / g->pieces);
    pthread_mutex_unlock(&g->lock);
}

static void read_pieces(void *ctx, int32_t reader)
{
    struct read_group *g = ctx;
    (void)reader;
    for (int32_t i; (i = atomic_fetch_add(&g->next, 1)) < g->all;) read_piece(g, i);
}

static void cut(struct read_group *g, int32_t n, int32_t readers)
{
    uint64_t pieces = g->span / (n < readers ? SMALL_PIECE : PIECE);
    g->pieces = pieces < 1 ? 1 : pieces > MAX_PIECES ? MAX_PIECES : (int32_t)pieces;
    g->piece_bytes = kv_disk_pages(g->span / (uint64_t)g->pieces);
    g->all = n * g->pieces;
}

void kv_disk_read_group(void *ctx, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, void *const *dst, uint64_t bytes, enum kv_status *each)
{
    struct disk *d = ctx;
    struct read_group g = {.d = d, .b = b, .id = id, .dst = dst, .bytes = bytes, .span = kv_disk_span(bytes), .faults = kv_faults_here()};
    int32_t readers = kv_lanes_count(d->lanes) < READERS ? kv_lanes_count(d->lanes) : READERS;
    cut(&g, n, readers);
    g.open = calloc((size_t)n, sizeof *g.open);
    if (!g.open) {
        for (int32_t i = 0; i < n; i++) each[i] = KV_OUT_OF_MEMORY;
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const struct extent *e = kv_disk_held(d, b[i]);
        g.open[i].status = !e ? KV_STALE_REPLICA_GENERATION : bytes != e->bytes ? KV_SHORT_COPY : KV_OK;
    }
    pthread_mutex_init(&g.lock, NULL);
    kv_lanes_run(d->lanes, readers < g.all ? readers : g.all, read_pieces, &g);
    kv_faults_at_disk(g.faults);
    pthread_mutex_destroy(&g.lock);
    for (int32_t i = 0; i < n; i++) {
        each[i] = g.open[i].status;
        if (each[i] != KV_OK && each[i] != KV_STALE_REPLICA_GENERATION) kv_disk_failed(d, each[i]);
    }
    free(g.open);
}

enum kv_status kv_disk_read(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, void *dst, uint64_t bytes)
{
    enum kv_status each;
    kv_disk_read_group(ctx, 1, &b, id, &dst, bytes, &each);
    return each;
}
