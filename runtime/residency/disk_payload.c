/* disk_payload.c — payloads to their extents: sealed in whole pages, a group's extents side by side on the lanes. */
#include "runtime/residency/disk_state.h"
#include "runtime/residency/faults.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { RUN_BYTES = 1 << 20 }; /* neighbouring extents up to this go in one write */

enum { HUGE_PAGE = 2 << 20 };

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

struct run { /* neighbours in one segment */
    int32_t first, n;
    uint64_t span;
};

struct group {
    struct disk *d;
    const struct kv_block *b;
    const struct kv_chunk_identity *id;
    const void *const *payload;
    uint64_t bytes;
    struct kv_extent_header *h;
    struct run *run;
    const struct kv_fault_marks *faults;
    _Atomic int status; /* the first failure */
};

static enum kv_status seal(gnutls_aead_cipher_hd_t cipher, const struct extent *e, const struct kv_extent_header *h, const void *payload, uint8_t *out)
{
    memset(out, 0, PAGE);
    memcpy(out, h, sizeof *h);
    enum kv_status r = kv_extent_seal(cipher, h, payload, out + PAGE);
    if (r == KV_OK) memset(out + PAGE + e->bytes + TAG, 0, e->span - PAGE - e->bytes - TAG);
    return r;
}

static enum kv_status write_run(struct group *g, const struct run *r)
{
    struct disk *d = g->d;
    const struct extent *first = kv_disk_held(d, g->b[r->first]);
    const struct segment *s = &d->segment[first->segment];
    struct scratch buffer = kv_disk_take_scratch(d, r->span);
    gnutls_aead_cipher_hd_t cipher = NULL;
    enum kv_status status = buffer.bytes ? KV_OK : KV_OUT_OF_MEMORY;
    uint64_t at = 0;
    for (int32_t i = r->first; status == KV_OK && i < r->first + r->n; i++) {
        const struct extent *e = kv_disk_held(d, g->b[i]);
        if (i == r->first || strncmp(g->id[i].tenant, g->id[i - 1].tenant, KV_NAME_CHARS)) {
            if (cipher) gnutls_aead_cipher_deinit(cipher);
            cipher = NULL;
            if ((status = kv_extent_cipher(d->key, s->id, g->id[i].tenant, &cipher)) != KV_OK) break;
        }
        status = seal(cipher, e, &g->h[i], g->payload[i], buffer.bytes + at);
        at += e->span;
    }
    if (cipher) gnutls_aead_cipher_deinit(cipher);
    if (status == KV_OK) status = kv_disk_write_all(d, s->fd, buffer.bytes, r->span, first->offset);
    kv_disk_give_scratch(d, buffer);
    return status;
}

static void run_item(void *ctx, int32_t i)
{
    struct group *g = ctx;
    int none = KV_OK;
    if (atomic_load(&g->status) != KV_OK) return;
    kv_faults_at_disk(g->faults);
    enum kv_status s = write_run(g, &g->run[i]);
    kv_faults_at_disk(NULL);
    if (s != KV_OK) atomic_compare_exchange_strong(&g->status, &none, (int)s);
}

static int32_t find_runs(struct disk *d, int32_t n, const struct kv_block *b, struct run *run)
{
    int32_t runs = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct extent *e = kv_disk_held(d, b[i]), *before = i ? kv_disk_held(d, b[i - 1]) : NULL;
        bool joins = before && before->segment == e->segment && before->offset + before->span == e->offset && run[runs - 1].span + e->span <= RUN_BYTES;
        if (!joins) run[runs++] = (struct run){.first = i};
        run[runs - 1].n++;
        run[runs - 1].span += e->span;
    }
    return runs;
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
    if (!g.h || !g.run) r = KV_OUT_OF_MEMORY;
    for (int32_t i = 0; i < n && r == KV_OK; i++) {
        const struct extent *e = kv_disk_held(d, b[i]);
        r = kv_extent_header(e->offset, e->bytes, &id[i], &g.h[i]);
    }
    if (r == KV_OK) {
        begin_group(d, n, b, g.h);
        kv_lanes_run(d->lanes, find_runs(d, n, b, g.run), run_item, &g);
        kv_faults_at_disk(g.faults);
        r = end_group(d, n, b, (enum kv_status)atomic_load(&g.status));
    }
    free(g.h);
    free(g.run);
    return r == KV_OK ? r : kv_disk_failed(d, r);
}

enum kv_status kv_disk_write(void *ctx, struct kv_block b, const struct kv_chunk_identity *id, const void *payload, uint64_t bytes, uint64_t *hash)
{
    *hash = 0; /* the tag is the payload hash, and stays with the extent */
    return kv_disk_write_group(ctx, 1, &b, id, &payload, bytes);
}
