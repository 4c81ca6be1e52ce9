/* tier.c — movements between tiers against what memory, cipher and disk do in the same run.
 * One JSON line a figure: {"name","value","unit","floor","ratio"}. Promotion and demotion: floor is memcpy of the same slabs. Disk: the slower of
 * the cipher alone and a plain file moved in the same pieces, as many at once, through the page cache or past it, whichever is faster. Rates are the
 * best of several passes, by the thread's own CPU time where it never waits (memory, directory, cipher) and by the clock where it waits for a disk or
 * another thread: the machine may be shared, and what interrupts a pass is no property of the code. */
#include "runtime/execution/layerwise.h"
#include "runtime/residency/directory.h"
#include "runtime/residency/disk.h"
#include "runtime/residency/lanes.h"

#include <fcntl.h>
#include <gnutls/crypto.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SLAB = 256 << 10, SLABS = 512, PASSES = 7, CHUNKS = 20000, OPERATIONS = 200000 };

static void check(enum kv_status s, const char *what)
{
    if (s == KV_OK) return;
    fprintf(stderr, "bench/tier: %s: %s\n", what, kv_status_name(s));
    exit(1);
}

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void line(const char *name, double value, const char *unit, double floor_value)
{
    printf("{\"name\":\"tier/%s\",\"value\":%.3f,\"unit\":\"%s\",\"floor\":", name, value, unit);
    if (floor_value > 0) printf("%.3f,\"ratio\":%.3f}\n", floor_value, value / floor_value);
    else printf("null,\"ratio\":null}\n");
    fflush(stdout);
}

/* GB/s (decimal) of the best pass, each of which moved `bytes`. */
static double best_rate(const double *us, int n, double bytes)
{
    double least = us[0];
    for (int i = 1; i < n; i++) least = us[i] < least ? us[i] : least;
    return bytes / least / 1e3;
}

static struct kv_chunk_identity identity(int n)
{
    struct kv_chunk_identity id;
    memset(&id, 0, sizeof id);
    id.layer = n;
    snprintf(id.tenant, sizeof id.tenant, "bench");
    snprintf(id.support, sizeof id.support, "exact");
    return id;
}

static uint8_t *filled(size_t n)
{
    enum { HUGE_PAGE = 2 << 20 };
    uint8_t *p = aligned_alloc(HUGE_PAGE, (n + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (!p) check(KV_OUT_OF_MEMORY, "memory");
    (void)madvise(p, (n + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* floors have what the tier has */
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(i * 2654435761u >> 13);
    return p;
}

/* ---------------------------------------------------------------- memory tiers */

static double memcpy_rate(double (*now_us)(void))
{
    uint8_t *a = filled((size_t)SLAB * SLABS), *b = filled((size_t)SLAB * SLABS);
    double us[PASSES];
    for (int p = 0; p < PASSES; p++) {
        double start = now_us();
        for (int i = 0; i < SLABS; i++) memcpy(b + (size_t)i * SLAB, a + (size_t)i * SLAB, SLAB);
        us[p] = now_us() - start;
    }
    free(a);
    free(b);
    return best_rate(us, PASSES, (double)SLAB * SLABS);
}

/* Whole transactions: begin, verified copy, complete. */
static void memory_tiers(double floor_rate)
{
    struct kv_tier device, host;
    struct kv_directory *d;
    uint8_t *payload = filled(SLAB);
    double up[PASSES], down[PASSES];
    check(kv_tier_memory_create("device", "device", true, SLAB, (uint64_t)SLAB * SLABS, &device), "device");
    check(kv_tier_memory_create("host", "host", false, SLAB, (uint64_t)SLAB * SLABS, &host), "host");
    struct kv_directory_config c = {.tier = {&device, &host}, .max_chunks = SLABS, .max_transactions = 8, .max_payload_bytes = SLAB, .victim = KV_VICTIM_LRU};
    check(kv_directory_create(&c, &d), "directory");
    for (int i = 0; i < SLABS; i++) {
        struct kv_chunk_identity id = identity(i);
        check(kv_directory_publish(d, &id, (struct kv_cache_generation){1}, KV_TIER_HOST, payload, SLAB, 100), "publish");
    }
    for (int p = 0; p < PASSES + 1; p++) { /* the first pass touches fresh pages and is not counted */
        struct kv_transfer t;
        struct kv_transfer_done done;
        struct kv_waiter w;
        bool join;
        double start = cpu_us();
        for (int i = 0; i < SLABS; i++) {
            struct kv_chunk_identity id = identity(i);
            check(kv_promote_begin(d, &id, KV_TIER_DEVICE, NULL, &w, &join, &t), "promote");
            kv_transfer_copy(&t, &done);
            check(kv_transfer_complete(d, &done), "complete");
            check(kv_waiter_result(d, &w), "result");
        }
        if (p) up[p - 1] = cpu_us() - start;
        for (int i = 0; i < SLABS; i++) { /* back to one replica, so that a demotion has something to copy */
            bool pending;
            check(kv_evict_one(d, KV_TIER_HOST, &pending, &t), "evict");
        }
        start = cpu_us();
        for (int i = 0; i < SLABS; i++) {
            struct kv_chunk_identity id = identity(i);
            check(kv_demote_begin(d, &id, KV_TIER_DEVICE, KV_TIER_HOST, &t), "demote");
            kv_transfer_copy(&t, &done);
            check(kv_transfer_complete(d, &done), "complete");
        }
        if (p) down[p - 1] = cpu_us() - start;
    }
    line("promote/verified", best_rate(up, PASSES, (double)SLAB * SLABS), "GB/s", floor_rate);
    line("demote/verified", best_rate(down, PASSES, (double)SLAB * SLABS), "GB/s", floor_rate);
    kv_directory_destroy(d);
    kv_tier_memory_destroy(&device);
    kv_tier_memory_destroy(&host);
    free(payload);
}

/* Blocks of several layers in host memory, and the placement that copies a layer at a time into two slots. */
struct staged {
    struct kv_arena *host;
    struct kv_cache c;
    struct kv_placement_ctx *ctx;
    const struct kv_placement *p;
    size_t slab;
};

static void staged_open(struct staged *s, int layers)
{
    struct kv_error err;
    int blocks = SLABS / layers;
    s->slab = kv_slab_bytes(KV_F16, 8, 128);
    s->p = kv_placement_find("layerwise");
    struct kv_placement_config pc = {.n_layers = layers, .n_kv_heads = 8, .d_head = 128, .row_type = KV_F16, .device_bytes = 2 * s->slab * (size_t)blocks};
    check(kv_arena_create(s->slab, s->slab * SLABS, &s->host), "arena");
    check(kv_cache_init(&s->c, layers, 8, 128, KV_F16, blocks * KV_BLOCK_ROWS), "cache");
    check(kv_cache_reserve(&s->c, s->host, blocks * KV_BLOCK_ROWS), "reserve");
    s->c.n_rows = blocks * KV_BLOCK_ROWS;
    s->c.n_sealed = blocks;
    for (int i = 0; i < layers * blocks; i++) memset(s->c.slab[i], i, s->slab);
    check(kv_placement_ctx_create(&pc, &s->ctx, &err), "placement");
}

/* One step over all layers; compute_us of each keep a core busy. */
static void staged_step(struct staged *s, double compute_us)
{
    kv_placement_step_begin(s->ctx);
    s->p->prefetch(s->ctx, &s->c, 0);
    for (int32_t l = 0; l < s->c.n_layers; l++) {
        check(s->p->acquire(s->ctx, &s->c, l), "acquire");
        if (l + 1 < s->c.n_layers) s->p->prefetch(s->ctx, &s->c, l + 1);
        for (double until = kv_now_us() + compute_us; compute_us > 0 && kv_now_us() < until;) continue;
        s->p->release(s->ctx, &s->c, l);
    }
    (void)kv_placement_step_end(s->ctx);
}

static void staged_close(struct staged *s)
{
    kv_placement_ctx_destroy(s->ctx);
    kv_cache_free(&s->c, s->host);
    kv_arena_destroy(s->host);
}

/* The staging path of decoding through the transfer thread, nothing to overlap with. */
static void staging(double floor_rate)
{
    struct staged s;
    double us[PASSES];
    staged_open(&s, 4);
    for (int pass = 0; pass < PASSES + 1; pass++) {
        double start = kv_now_us();
        staged_step(&s, 0);
        if (pass) us[pass - 1] = kv_now_us() - start;
    }
    line("stage/layerwise", best_rate(us, PASSES, (double)s.slab * SLABS), "GB/s", floor_rate);
    staged_close(&s);
}

/* What of the fetches the staging hides under computing, beside what the two-slot recurrence fed with the fetch and compute times of the same step says
 * can be hidden. Computing takes as long as a fetch. */
static void hiding(void)
{
    enum { LAYERS = 16 };
    struct kv_layer_timing t[LAYERS];
    struct staged s;
    double hidden = 0, hidable = 0, share = -1, fetch_us = 500;
    staged_open(&s, LAYERS);
    for (int pass = 0; pass < PASSES; pass++) {
        staged_step(&s, 1.2 * fetch_us);
        kv_placement_timings(s.ctx, t, LAYERS);
        double fetch = 0, stall = 0, predicted = 0;
        for (int l = 0; l < LAYERS; l++) fetch += t[l].fetch_us, stall += t[l].stall_us, predicted += t[l].predicted_stall_us;
        fetch_us = fetch / LAYERS;
        if (fetch > predicted && (fetch - stall) / (fetch - predicted) > share) share = (fetch - stall) / (fetch - predicted), hidden = fetch - stall, hidable = fetch - predicted;
    }
    line("stage/hidden", hidden, "us of a step", hidable);
    staged_close(&s);
}

/* ---------------------------------------------------------------- disk */

static double cipher_rate(bool open)
{
    enum { SEALED = 1 << 20 };
    uint8_t *a = filled(SEALED), *b = filled(SEALED + 16), key[32] = {1}, nonce[12] = {0};
    gnutls_aead_cipher_hd_t h;
    gnutls_datum_t k = {key, sizeof key};
    double us[PASSES];
    if (gnutls_aead_cipher_init(&h, GNUTLS_CIPHER_AES_256_GCM, &k)) check(KV_INTERNAL, "cipher");
    for (int p = 0; p < PASSES; p++) {
        size_t n = SEALED + 16;
        if (gnutls_aead_cipher_encrypt(h, nonce, sizeof nonce, NULL, 0, 16, a, SEALED, b, &n)) check(KV_INTERNAL, "encrypt");
        double start = cpu_us();
        for (int i = 0; i < 8; i++) {
            n = open ? SEALED : SEALED + 16;
            int e = open ? gnutls_aead_cipher_decrypt(h, nonce, sizeof nonce, NULL, 0, 16, b, SEALED + 16, a, &n)
                         : gnutls_aead_cipher_encrypt(h, nonce, sizeof nonce, NULL, 0, 16, a, SEALED, b, &n);
            if (e) check(KV_INTERNAL, "cipher");
        }
        us[p] = cpu_us() - start;
    }
    gnutls_aead_cipher_deinit(h);
    free(a);
    free(b);
    return best_rate(us, PASSES, 8.0 * SEALED);
}

/* ---- plain files, which say what the device gives without cipher, identities or recovery, and the tier, piece for piece the same */

enum { MOVED = 64 << 20, WINDOW = 8 << 20, LEAST = 256 << 10, DISK_PASSES = 7, LANES = 16 };

struct movement {
    bool write;
    size_t extent;
    int group; /* extents side by side; written ones are synced together */
};
/* Extents alone and by the window that a turn is saved in. */
static const struct movement movements[] = {
    {true, 256 << 10, 1}, {true, 256 << 10, 32}, {true, 1 << 20, 1}, {true, 1 << 20, 8}, {true, 4 << 20, 1}, {true, 4 << 20, 2},
    {false, 256 << 10, 1}, {false, 256 << 10, 32}, {false, 1 << 20, 1}, {false, 1 << 20, 8}, {false, 4 << 20, 1}, {false, 4 << 20, 2},
};
enum { MOVEMENTS = sizeof movements / sizeof *movements, CACHED = 0, DIRECT, TIER, WAYS };

struct disk_bench {
    char folder[64], plain[96]; /* the last plain file */
    int n_plain, n_unlinked;
    struct kv_lanes *lanes;
    struct kv_tier disk;
    uint8_t *text; /* a window */
    struct kv_chunk_identity id[MOVED / LEAST];
    struct kv_block b[MOVED / LEAST]; /* allocation 0: none */
    /* Of a plain file. */
    const struct movement *m;
    int fd;
    off_t at;
};

static void plain_piece(void *ctx, int32_t i)
{
    struct disk_bench *x = ctx;
    size_t n = x->m->extent;
    off_t at = x->at + (off_t)i * (off_t)n;
    if ((x->m->write ? pwrite(x->fd, x->text + (size_t)i * n, n, at) : pread(x->fd, x->text + (size_t)i * n, n, at)) != (ssize_t)n) check(KV_IO_ERROR, x->plain);
}

/* What is written is a new file, preallocated, and in another place than the last, as the tier's are: a device may be twice as fast where it was written before.
 * What is read comes from the device. */
static double plain(struct disk_bench *x, const struct movement *m, int flags)
{
    x->m = m;
    if (m->write) snprintf(x->plain, sizeof x->plain, "%s/plain-%d", x->folder, x->n_plain++);
    x->fd = open(x->plain, O_RDWR | O_CREAT | flags, 0600);
    if (x->fd < 0 || (m->write && posix_fallocate(x->fd, 0, MOVED)) || fdatasync(x->fd)) check(KV_IO_ERROR, x->plain);
    (void)posix_fadvise(x->fd, 0, 0, POSIX_FADV_DONTNEED);
    double start = kv_now_us();
    for (x->at = 0; x->at < MOVED; x->at += m->group * (off_t)m->extent) {
        kv_lanes_run(x->lanes, m->group, plain_piece, x);
        if (m->write && fdatasync(x->fd)) check(KV_IO_ERROR, x->plain);
    }
    double us = kv_now_us() - start;
    close(x->fd);
    return us;
}

static void unlink_plain(struct disk_bench *x, int left)
{
    char name[96];
    for (; x->n_unlinked < x->n_plain - left; x->n_unlinked++) {
        snprintf(name, sizeof name, "%s/plain-%d", x->folder, x->n_unlinked);
        unlink(name);
    }
}

/* And the file system is done with what that freed, as it is before a plain file is timed. */
static void release_all(struct disk_bench *x)
{
    for (int i = 0; i < MOVED / LEAST; i++) x->disk.release(x->disk.ctx, x->b[i]);
    memset(x->b, 0, sizeof x->b);
    int fd = open(x->folder, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fsync(fd)) check(KV_IO_ERROR, x->folder);
    close(fd);
}

static double tier(struct disk_bench *x, const struct movement *m)
{
    enum { MOST = WINDOW / LEAST };
    void *dst[MOST];
    const void *payload[MOST];
    enum kv_status each[MOST];
    for (int i = 0; i < m->group; i++) payload[i] = dst[i] = x->text + (size_t)i * m->extent;
    double start = kv_now_us();
    for (int g = 0; g < (int)(MOVED / m->extent); g += m->group) {
        for (int i = g; m->write && i < g + m->group; i++) check(x->disk.reserve(x->disk.ctx, m->extent, &x->id[i], &x->b[i]), "reserve");
        if (m->write) check(x->disk.write_group(x->disk.ctx, m->group, x->b + g, x->id + g, payload, m->extent), "write");
        else x->disk.read_group(x->disk.ctx, m->group, x->b + g, x->id + g, dst, m->extent, each);
        for (int i = 0; !m->write && i < m->group; i++) check(each[i], "read");
    }
    return kv_now_us() - start;
}

/* Of the extents' size, to be read: whatever was there before. */
static double way(struct disk_bench *x, const struct movement *m, int w)
{
    if (w != TIER) return plain(x, m, w == DIRECT ? O_DIRECT : 0);
    struct movement fill = {true, m->extent, WINDOW / (int)m->extent};
    if (m->write || m->group == 1) release_all(x);
    if (!m->write && m->group == 1) (void)tier(x, &fill);
    return tier(x, m);
}

static void open_bench(struct disk_bench *x)
{
    struct kv_error err = {0};
    snprintf(x->folder, sizeof x->folder, "/tmp/kvasir-bench-XXXXXX");
    if (!mkdtemp(x->folder)) check(KV_IO_ERROR, x->folder);
    check(kv_lanes_create(LANES, &x->lanes), "lanes");
    x->text = filled(WINDOW);
    for (int i = 0; i < MOVED / LEAST; i++) x->id[i] = identity(i);
    struct kv_disk_config c = {.path = x->folder, .capacity_bytes = 4ull << 30, .key = {1}};
    if (kv_disk_open(&c, &x->disk, &err) != KV_OK) check(err.status, err.message);
}

static void close_bench(struct disk_bench *x)
{
    char lock[80];
    release_all(x);
    kv_disk_close(&x->disk);
    snprintf(lock, sizeof lock, "%s/lock", x->folder);
    unlink_plain(x, 0);
    unlink(lock);
    rmdir(x->folder);
    free(x->text);
    kv_lanes_destroy(x->lanes);
}

static void movement_line(const struct movement *m, int w, double value, double floor_value)
{
    char label[80], many[16] = "";
    static const char *const after[WAYS] = {"/cached", "/direct", ""};
    if (m->group > 1) snprintf(many, sizeof many, "%dx", m->group);
    snprintf(label, sizeof label, "disk/%s%s-%s%d%s%s", w == TIER ? "" : "plain-", m->write ? "write" : "read", many, (int)(m->extent >> (m->extent < 1 << 20 ? 10 : 20)),
             m->extent < 1 << 20 ? "KiB" : "MiB", after[w]);
    line(label, value, "GB/s", floor_value);
}

/* What the tier does comes right after what plain files do, so that a busy moment meets both. */
static void disk_tier(void)
{
    static struct disk_bench x;
    double us[MOVEMENTS][WAYS][DISK_PASSES], seal = cipher_rate(false), unseal = cipher_rate(true);
    open_bench(&x);
    for (int p = 0; p < DISK_PASSES; p++, unlink_plain(&x, 1))
        for (int i = 0; i < MOVEMENTS; i++)
            for (int w = 0; w < WAYS; w++) us[i][w][p] = way(&x, &movements[i], w);
    close_bench(&x);
    line("disk/seal", seal, "GB/s", 0);
    line("disk/unseal", unseal, "GB/s", 0);
    for (int i = 0; i < MOVEMENTS; i++) {
        double rate[WAYS];
        for (int w = 0; w < WAYS; w++) rate[w] = best_rate(us[i][w], DISK_PASSES, MOVED);
        for (int w = 0; w < WAYS; w++) movement_line(&movements[i], w, rate[w], w == TIER ? fmin(movements[i].write ? seal : unseal, fmax(rate[CACHED], rate[DIRECT])) : 0);
    }
}

/* ---------------------------------------------------------------- directory */

static void directory_rates(void)
{
    struct kv_tier host;
    struct kv_directory *d;
    uint8_t payload[64] = {1};
    check(kv_tier_memory_create("host", "host", false, 4096, 4096ull * CHUNKS, &host), "host");
    struct kv_directory_config c = {.tier = {[KV_TIER_HOST] = &host}, .max_chunks = CHUNKS, .max_transactions = 8, .max_payload_bytes = 4096, .victim = KV_VICTIM_LRU};
    check(kv_directory_create(&c, &d), "directory");
    struct kv_chunk_identity *ids = malloc(CHUNKS * sizeof *ids); /* made before: making one costs as much as a lookup */
    if (!ids) check(KV_OUT_OF_MEMORY, "memory");
    for (int i = 0; i < CHUNKS; i++) ids[i] = identity(i);
    double start = cpu_us();
    for (int i = 0; i < CHUNKS; i++)
        check(kv_directory_publish(d, &ids[i], (struct kv_cache_generation){1}, KV_TIER_HOST, payload, sizeof payload, 100), "publish");
    line("directory/publish", CHUNKS / (cpu_us() - start) * 1e6, "1/s", 0);
    start = cpu_us();
    for (int i = 0; i < OPERATIONS; i++) {
        struct kv_lease l;
        if (kv_directory_lookup(d, &ids[(unsigned)i * 7919u % CHUNKS], KV_TIER_HOST, &l) != KV_ANSWER_READY) check(KV_INTERNAL, "lookup");
        check(kv_directory_release(d, &l), "release");
    }
    line("directory/lookup-lease", OPERATIONS / (cpu_us() - start) * 1e6, "1/s", 0);
    start = cpu_us();
    for (int i = 0; i < OPERATIONS; i++) {
        volatile uint8_t sink = kv_chunk_digest(&ids[i % CHUNKS]).b[0];
        (void)sink;
    }
    line("directory/digest", OPERATIONS / (cpu_us() - start) * 1e6, "1/s", 0);
    free(ids);
    kv_directory_destroy(d);
    kv_tier_memory_destroy(&host);
}

/* Share of lookups that a tenth of the chunks answers, by policy: popularity falls off as 1/rank and drifts, recompute times differ. */
static void hit_rates(void)
{
    enum { HELD = 200, ALL = 2000, LOOKUPS = 40000 };
    uint8_t payload[64] = {1};
    for (int policy = 0; policy < KV_VICTIMS; policy++) {
        struct kv_tier device, host;
        struct kv_directory *d;
        char label[64];
        check(kv_tier_memory_create("device", "device", true, 4096, 4096ull * HELD, &device), "device");
        check(kv_tier_memory_create("host", "host", false, 4096, 4096ull * ALL, &host), "host");
        struct kv_directory_config c = {.tier = {&device, &host}, .max_chunks = ALL, .max_transactions = 2, .max_payload_bytes = 4096, .victim = (enum kv_victim)policy,
                                        .promote_us = {0, 50, 0}};
        check(kv_directory_create(&c, &d), "directory");
        for (int i = 0; i < ALL; i++) {
            struct kv_chunk_identity id = identity(i);
            check(kv_directory_publish(d, &id, (struct kv_cache_generation){1}, KV_TIER_HOST, payload, sizeof payload, 20 + i % 100), "publish");
        }
        uint64_t seed = 7;
        for (int i = 0; i < LOOKUPS; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            double u = (double)(seed >> 11) / 9007199254740992.0;
            int rank = (int)pow(ALL, u) - 1;
            struct kv_chunk_identity id = identity((rank * 613 + i / 8000) % ALL);
            if (kv_directory_lookup(d, &id, KV_TIER_DEVICE, NULL) != KV_ANSWER_MISS) continue;
            struct kv_transfer t;
            struct kv_transfer_done done;
            struct kv_waiter w;
            bool join, pending;
            enum kv_status s;
            while ((s = kv_promote_begin(d, &id, KV_TIER_DEVICE, NULL, &w, &join, &t)) == KV_CAPACITY) check(kv_evict_one(d, KV_TIER_DEVICE, &pending, &t), "evict");
            check(s, "promote");
            kv_transfer_copy(&t, &done);
            check(kv_transfer_complete(d, &done), "complete");
            check(kv_waiter_result(d, &w), "result");
        }
        struct kv_directory_stats st;
        kv_directory_stats(d, &st);
        snprintf(label, sizeof label, "hit-rate/%s", kv_victim_name((enum kv_victim)policy));
        line(label, (double)st.hits[KV_TIER_DEVICE] / (double)st.lookups[KV_TIER_DEVICE], "share", 0);
        kv_directory_destroy(d);
        kv_tier_memory_destroy(&device);
        kv_tier_memory_destroy(&host);
    }
}

int main(void)
{
    double floor_rate = memcpy_rate(cpu_us);
    line("memcpy-256KiB", floor_rate, "GB/s", 0);
    memory_tiers(floor_rate);
    staging(memcpy_rate(kv_now_us)); /* two threads: by the clock, like its floor */
    hiding();
    directory_rates();
    hit_rates();
    disk_tier();
    return 0;
}
