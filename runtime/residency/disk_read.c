/* disk_read.c — payloads from their extents. Ciphertext is read to where the payload is wanted and opened there, what has arrived while the rest is on its
 * way: a device is slow to write where a processor only looked, and not where it wrote. */
#include "runtime/residency/disk_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAST_READ = 512 << 10, MOST_READ = 2 << 20, /* of one request; the last ones are small, so that little is left to open when all has arrived */
    OPENED = 128 << 10,                          /* between two looks at the device */
    ROUND = 16 << 20,                            /* of a group at a time */
    MAX_PARTS = 256,                             /* pieces of memory of one request */
};

struct opening { /* of one extent */
    uint8_t *edge; /* pages before and after the body */
    struct kv_extent_pieces cipher;
    enum kv_status status;
};

/* The pages of a round's extents one after the other, as in the file: a place is an offset in them. Of each the body, whole pages of ciphertext, lies where
 * its payload is wanted. Where that is on no border of pages there is no body. */
struct read_round {
    struct disk *d;
    const struct kv_block *b;
    const struct kv_chunk_identity *id;
    void *const *dst;
    uint64_t bytes, span, body, end;
    struct opening *open;
    uint64_t given, arrived, opened;
    struct request request;
    struct iovec part[MAX_PARTS];
};

static const struct extent *extent_at(const struct read_round *g, uint64_t place)
{
    return kv_disk_held(g->d, g->b[place / g->span]);
}

/* Memory of [place, to), as far as it is one piece of one extent. */
static struct iovec piece_at(const struct read_round *g, uint64_t place, uint64_t to)
{
    uint64_t n = place / g->span, at = place % g->span, body_end = PAGE + g->body;
    bool in_body = at >= PAGE && at < body_end;
    uint64_t stop = n * g->span + (in_body ? body_end : at < PAGE && g->body ? PAGE : g->span);
    uint8_t *from = in_body ? (uint8_t *)g->dst[n] + at - PAGE : g->open[n].edge + at - (at >= body_end ? g->body : 0);
    return (struct iovec){from, (size_t)((stop < to ? stop : to) - place)};
}

/* One after the other, each extent with its own verdict: where there is no queue, and when a request was not whole. */
static void read_now(struct read_round *g, uint64_t from, uint64_t to)
{
    for (struct iovec m; from < to; from += m.iov_len) {
        const struct extent *e = extent_at(g, from);
        struct opening *x = &g->open[from / g->span];
        m = piece_at(g, from, to);
        if (x->status == KV_OK) x->status = kv_disk_read_all(g->d, g->d->segment[e->segment].fd, m.iov_base, m.iov_len, e->offset + from % g->span);
    }
}

/* To where the next request goes: neighbours in a segment, a third of what is left. */
static uint64_t request_end(struct read_round *g, int *n_parts)
{
    uint64_t share = kv_disk_pages((g->end - g->given) / 3), to = g->given;
    uint64_t want = g->given + (share < LEAST_READ ? LEAST_READ : share > MOST_READ ? MOST_READ : share);
    if (want > g->end) want = g->end;
    *n_parts = 0;
    while (to < want && *n_parts < MAX_PARTS) {
        if (to % g->span == 0 && to > g->given) {
            const struct extent *before = extent_at(g, to - 1), *e = extent_at(g, to);
            if (before->segment != e->segment || before->offset + before->span != e->offset) break;
        }
        g->part[*n_parts] = piece_at(g, to, want);
        to += g->part[(*n_parts)++].iov_len;
    }
    return to;
}

static void give_next(struct read_round *g, struct queue *q)
{
    int n_parts;
    const struct extent *e = extent_at(g, g->given);
    uint64_t from = g->given, to = request_end(g, &n_parts);
    g->given = to;
    if (kv_disk_send(g->d, q, &g->request, false, g->d->segment[e->segment].fd, g->part, n_parts, e->offset + from % g->span)) return;
    read_now(g, from, to);
    g->arrived = to;
}

/* The header's own page has arrived. */
static enum kv_status begin(const struct read_round *g, uint64_t n)
{
    const struct extent *e = kv_disk_held(g->d, g->b[n]);
    struct kv_extent_header h, want;
    memcpy(&h, g->open[n].edge, sizeof h);
    if (!kv_disk_header_whole(&h, e->offset, e->offset + e->span)) return KV_CHECKSUM_MISMATCH;
    enum kv_status s = kv_extent_header(e->offset, e->bytes, &g->id[n], &want);
    if (s != KV_OK) return s;
    if (h.identity_bytes != want.identity_bytes || memcmp(h.identity, want.identity, sizeof h.identity)) return KV_IDENTITY_MISMATCH;
    return kv_extent_begin(g->d->key, g->d->segment[e->segment].id, g->id[n].tenant, &want, &g->open[n].cipher);
}

/* Some of what has arrived: not further than the end of a piece of memory. */
static void open_next(struct read_round *g)
{
    uint64_t n = g->opened / g->span, at = g->opened % g->span, end = PAGE + g->bytes;
    struct opening *x = &g->open[n];
    struct iovec m = piece_at(g, g->opened, g->arrived < g->opened + OPENED ? g->arrived : g->opened + OPENED);
    const uint8_t *sealed = m.iov_base;
    uint64_t stop = at + m.iov_len;
    g->opened += m.iov_len;
    if (x->status == KV_OK && at == 0) x->status = begin(g, n);
    if (at == 0) at = PAGE, sealed += PAGE;
    uint64_t to = stop < end ? stop : end;
    if (x->status == KV_OK && at < to) x->status = kv_extent_unseal_piece(&x->cipher, sealed, to - at, (uint8_t *)g->dst[n] + at - PAGE);
    if (stop < g->span) return;
    if (x->status == KV_OK) x->status = kv_extent_unseal_end(&x->cipher, x->edge + (end - g->body));
    kv_extent_give_up(&x->cipher);
    if (x->status != KV_OK) memset(g->dst[n], 0, g->bytes);
}

static void hear(struct read_round *g, struct queue *q, bool wait)
{
    uint64_t from = g->arrived;
    kv_disk_hear(g->d, q, wait);
    if (!g->request.told) return;
    if (g->request.result == (int64_t)g->request.bytes) kv_disk_count(g->d, &g->d->stats.bytes_read, g->request.bytes);
    else read_now(g, from, g->given);
    g->arrived = g->given;
}

/* What is told of is followed by the next request before anything is opened: the device does not wait. */
static void read_round(struct read_round *g, struct queue *q)
{
    while (g->opened < g->end) {
        if (g->given > g->arrived) hear(g, q, g->opened == g->arrived);
        if (g->given == g->arrived && g->given < g->end) give_next(g, q);
        if (g->opened < g->arrived) open_next(g);
    }
}

static bool on_pages(int32_t n, void *const *dst)
{
    for (int32_t i = 0; i < n; i++)
        if ((uintptr_t)dst[i] % PAGE) return false;
    return true;
}

/* n extents that are there, of one length. */
static void read_extents(struct disk *d, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, void *const *dst, uint64_t bytes, enum kv_status *each)
{
    uint64_t span = kv_disk_span(bytes), body = on_pages(n, dst) ? bytes / PAGE * PAGE : 0;
    struct read_round g = {.d = d, .b = b, .id = id, .dst = dst, .bytes = bytes, .span = span, .body = body, .end = (uint64_t)n * span, .open = calloc((size_t)n, sizeof *g.open)};
    struct scratch edges = kv_disk_take_scratch(d, (size_t)(g.end - (uint64_t)n * body));
    bool memory = g.open && edges.bytes;
    if (memory) {
        struct queue q = kv_disk_take_queue(d);
        for (int32_t i = 0; i < n; i++) g.open[i].edge = edges.bytes + (uint64_t)i * (span - body);
        read_round(&g, &q);
        kv_disk_give_queue(d, &q);
    }
    for (int32_t i = 0; i < n; i++) each[i] = memory ? g.open[i].status : KV_OUT_OF_MEMORY;
    if (edges.bytes) kv_disk_give_scratch(d, edges);
    free(g.open);
}

static enum kv_status there(struct disk *d, struct kv_block b, uint64_t bytes)
{
    const struct extent *e = kv_disk_held(d, b);
    return !e ? KV_STALE_REPLICA_GENERATION : bytes != e->bytes ? KV_SHORT_COPY : KV_OK;
}

void kv_disk_read_group(void *ctx, int32_t n, const struct kv_block *b, const struct kv_chunk_identity *id, void *const *dst, uint64_t bytes, enum kv_status *each)
{
    struct disk *d = ctx;
    for (int32_t i = 0, k; i < n; i = k > i ? k : i + 1) {
        for (k = i; k < n && (k == i || (uint64_t)(k + 1 - i) * kv_disk_span(bytes) <= ROUND) && (each[k] = there(d, b[k], bytes)) == KV_OK;) k++;
        if (k > i) read_extents(d, k - i, b + i, id + i, dst + i, bytes, each + i);
    }
    for (int32_t i = 0; i < n; i++)
        if (each[i] != KV_OK && each[i] != KV_STALE_REPLICA_GENERATION) kv_disk_failed(d, each[i]);
}

enum kv_status kv_disk_read(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, void *dst, uint64_t bytes)
{
    enum kv_status each;
    kv_disk_read_group(ctx, 1, &b, id, &dst, bytes, &each);
    return each;
}
