/* tier.c — movements between tiers against what memory, cipher and disk do in the same run.
 * One JSON line a figure: {"name","value","unit","floor","ratio"}. Promotion and demotion: floor is memcpy of the same slabs. Disk: the slower of
 * the cipher alone and a plain file written and synced in the same pieces. Rates are the best of several passes, by the thread's
 * own CPU time where it never waits (memory, directory, cipher, reads that the page cache answers; staging has a second thread) and by the clock
 * where it waits for a disk: the machine may be shared, and what interrupts a pass is no property of the code. */
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

enum { SLAB = 256 << 10, SLABS = 512, PASSES = 7, EXTENT = 1 << 20, GROUP = 8, CHUNKS = 20000, OPERATIONS = 200000 };

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

/* The staging path of decoding: blocks of one layer through the transfer thread, nothing to overlap with. */
static void staging(double floor_rate)
{
    enum { LAYERS = 4, BLOCKS = SLABS / LAYERS };
    struct kv_arena *host;
    struct kv_cache c;
    struct kv_placement_ctx *ctx;
    struct kv_error err;
    double us[PASSES];
    size_t slab = kv_slab_bytes(KV_F16, 8, 128);
    struct kv_placement_config pc = {LAYERS, 8, 128, KV_F16, 2 * slab * BLOCKS, 0, 0};
    check(kv_arena_create(slab, slab * SLABS, &host), "arena");
    check(kv_cache_init(&c, LAYERS, 8, 128, KV_F16, BLOCKS * KV_BLOCK_ROWS), "cache");
    check(kv_cache_reserve(&c, host, BLOCKS * KV_BLOCK_ROWS), "reserve");
    c.n_rows = BLOCKS * KV_BLOCK_ROWS;
    c.n_sealed = BLOCKS;
    for (int i = 0; i < LAYERS * BLOCKS; i++) memset(c.slab[i], i, slab);
    check(kv_placement_ctx_create(&pc, &ctx, &err), "placement");
    const struct kv_placement *p = kv_placement_find("layerwise");
    for (int pass = 0; pass < PASSES + 1; pass++) {
        double start = kv_now_us();
        kv_placement_step_begin(ctx);
        p->prefetch(ctx, &c, 0);
        for (int32_t l = 0; l < LAYERS; l++) {
            check(p->acquire(ctx, &c, l), "acquire");
            if (l + 1 < LAYERS) p->prefetch(ctx, &c, l + 1);
            p->release(ctx, &c, l);
        }
        if (pass) us[pass - 1] = kv_now_us() - start;
    }
    line("stage/layerwise", best_rate(us, PASSES, (double)slab * SLABS), "GB/s", floor_rate);
    kv_placement_ctx_destroy(ctx);
    kv_cache_free(&c, host);
    kv_arena_destroy(host);
}

/* What of the fetches the staging hides under computing, beside what the two-slot recurrence fed with the fetch and compute times of the same step says
 * can be hidden. Computing keeps a core busy as long as a fetch takes. */
static void hiding(void)
{
    enum { LAYERS = 16, BLOCKS = SLABS / LAYERS };
    struct kv_layer_timing t[LAYERS];
    struct kv_arena *host;
    struct kv_cache c;
    struct kv_placement_ctx *ctx;
    struct kv_error err;
    double hidden = 0, hidable = 0, share = -1, fetch_us = 500;
    size_t slab = kv_slab_bytes(KV_F16, 8, 128);
    struct kv_placement_config pc = {LAYERS, 8, 128, KV_F16, 2 * slab * BLOCKS, 0, 0};
    check(kv_arena_create(slab, slab * SLABS, &host), "arena");
    check(kv_cache_init(&c, LAYERS, 8, 128, KV_F16, BLOCKS * KV_BLOCK_ROWS), "cache");
    check(kv_cache_reserve(&c, host, BLOCKS * KV_BLOCK_ROWS), "reserve");
    c.n_rows = BLOCKS * KV_BLOCK_ROWS;
    c.n_sealed = BLOCKS;
    for (int i = 0; i < LAYERS * BLOCKS; i++) memset(c.slab[i], i, slab);
    check(kv_placement_ctx_create(&pc, &ctx, &err), "placement");
    const struct kv_placement *p = kv_placement_find("layerwise");
    for (int pass = 0; pass < PASSES; pass++) {
        kv_placement_step_begin(ctx);
        p->prefetch(ctx, &c, 0);
        for (int32_t l = 0; l < LAYERS; l++) {
            check(p->acquire(ctx, &c, l), "acquire");
            if (l + 1 < LAYERS) p->prefetch(ctx, &c, l + 1);
            for (double until = kv_now_us() + 1.2 * fetch_us; kv_now_us() < until;) continue;
            p->release(ctx, &c, l);
        }
        (void)kv_placement_step_end(ctx);
        kv_placement_timings(ctx, t, LAYERS);
        double fetch = 0, stall = 0, predicted = 0;
        for (int l = 0; l < LAYERS; l++) fetch += t[l].fetch_us, stall += t[l].stall_us, predicted += t[l].predicted_stall_us;
        fetch_us = fetch / LAYERS;
        if (fetch > predicted && (fetch - stall) / (fetch - predicted) > share) share = (fetch - stall) / (fetch - predicted), hidden = fetch - stall, hidable = fetch - predicted;
    }
    line("stage/hidden", hidden, "us of a step", hidable);
    kv_placement_ctx_destroy(ctx);
    kv_cache_free(&c, host);
    kv_arena_destroy(host);
}

/* ---------------------------------------------------------------- disk */

static double cipher_rate(bool open)
{
    uint8_t *a = filled(EXTENT), *b = filled(EXTENT + 16), key[32] = {1}, nonce[12] = {0};
    gnutls_aead_cipher_hd_t h;
    gnutls_datum_t k = {key, sizeof key};
    double us[PASSES];
    if (gnutls_aead_cipher_init(&h, GNUTLS_CIPHER_AES_256_GCM, &k)) check(KV_INTERNAL, "cipher");
    for (int p = 0; p < PASSES; p++) {
        size_t n = EXTENT + 16;
        if (gnutls_aead_cipher_encrypt(h, nonce, sizeof nonce, NULL, 0, 16, a, EXTENT, b, &n)) check(KV_INTERNAL, "encrypt");
        double start = cpu_us();
        for (int i = 0; i < 8; i++) {
            n = open ? EXTENT : EXTENT + 16;
            int e = open ? gnutls_aead_cipher_decrypt(h, nonce, sizeof nonce, NULL, 0, 16, b, EXTENT + 16, a, &n)
                         : gnutls_aead_cipher_encrypt(h, nonce, sizeof nonce, NULL, 0, 16, a, EXTENT, b, &n);
            if (e) check(KV_INTERNAL, "cipher");
        }
        us[p] = cpu_us() - start;
    }
    gnutls_aead_cipher_deinit(h);
    free(a);
    free(b);
    return best_rate(us, PASSES, 8.0 * EXTENT);
}

/* ---- plain files: what the device gives without cipher, identities or recovery */

enum { PIECES = 64, DISK_PASSES = 5, LANES = KV_DISK_THREADS };

struct plain {
    int fd;
    uint8_t *piece;
    int first; /* of a group */
};

static void plain_piece(void *ctx, int32_t i)
{
    struct plain *p = ctx;
    if (pwrite(p->fd, p->piece, EXTENT, (off_t)(p->first + i) * EXTENT) != EXTENT) check(KV_IO_ERROR, "plain file");
}

/* Microseconds for PIECES in a preallocated file, `group` of them side by side before each sync. */
static double plain_write(const char *name, int flags, struct kv_lanes *lanes, int group)
{
    struct plain p = {open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0600), filled(EXTENT), 0};
    if (p.fd < 0 || posix_fallocate(p.fd, 0, (off_t)EXTENT * PIECES) || fdatasync(p.fd)) check(KV_IO_ERROR, name);
    double start = kv_now_us();
    for (; p.first < PIECES; p.first += group) {
        kv_lanes_run(lanes, group, plain_piece, &p);
        if (fdatasync(p.fd)) check(KV_IO_ERROR, name);
    }
    double us = kv_now_us() - start;
    close(p.fd);
    free(p.piece);
    return us;
}

static double plain_read(const char *name, double (*now_us)(void), bool cold)
{
    int fd = open(name, O_RDONLY);
    uint8_t *a = filled(EXTENT);
    if (cold) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    double start = now_us();
    for (int i = 0; i < PIECES; i++)
        if (pread(fd, a, EXTENT, (off_t)i * EXTENT) != EXTENT) check(KV_IO_ERROR, name);
    double us = now_us() - start;
    close(fd);
    free(a);
    return us;
}

/* ---- the tier */

struct disk_bench {
    struct kv_tier disk;
    uint8_t *text[GROUP];
    struct kv_chunk_identity id[PIECES];
    struct kv_block b[PIECES];
};

static double tier_write(struct disk_bench *x, int group)
{
    const void *payload[GROUP];
    double start = kv_now_us();
    for (int i = 0; i < GROUP; i++) payload[i] = x->text[i];
    for (int g = 0; g < PIECES; g += group) {
        for (int i = g; i < g + group; i++) check(x->disk.reserve(x->disk.ctx, EXTENT, &x->id[i], &x->b[i]), "reserve");
        check(x->disk.write_group(x->disk.ctx, group, x->b + g, x->id + g, payload, EXTENT), "write");
    }
    return kv_now_us() - start;
}

static double tier_read_one_by_one(struct disk_bench *x)
{
    double start = cpu_us();
    for (int i = 0; i < PIECES; i++) check(x->disk.read(x->disk.ctx, x->b[i], &x->id[i], x->text[0], EXTENT), "read");
    return cpu_us() - start;
}

static double tier_read_groups(struct disk_bench *x)
{
    void *dst[GROUP];
    enum kv_status each[GROUP];
    double start = kv_now_us();
    for (int i = 0; i < GROUP; i++) dst[i] = x->text[i];
    for (int g = 0; g < PIECES; g += GROUP) {
        x->disk.read_group(x->disk.ctx, GROUP, x->b + g, x->id + g, dst, EXTENT, each);
        for (int i = 0; i < GROUP; i++) check(each[i], "read");
    }
    return kv_now_us() - start;
}

/* And the file system is done with what that freed, as it is before a plain file is timed. */
static void tier_release(struct disk_bench *x, const char *folder)
{
    for (int i = 0; i < PIECES; i++) x->disk.release(x->disk.ctx, x->b[i]);
    int fd = open(folder, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fsync(fd)) check(KV_IO_ERROR, folder);
    close(fd);
}

static void open_bench(struct disk_bench *x, const char *folder)
{
    struct kv_error err = {0};
    struct kv_disk_config c = {.path = folder, .capacity_bytes = 4ull << 30, .key = {1}};
    if (kv_disk_open(&c, &x->disk, &err) != KV_OK) check(err.status, err.message);
}

static double best(double a, double b)
{
    return a > b ? a : b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* Floors and tier take turns, so that a busy moment meets both. */
static void disk_tier(void)
{
    enum { BUFFERED, DIRECT, LANED, SINGLE_BUFFERED, SINGLE_DIRECT, READ_HOT, READ_COLD, T_SINGLE, T_GROUP, T_HOT, T_COLD, T_HOT_GROUP, RATES };
    static const char *const names[] = {"plain-write-8x1MiB/cached", "plain-write-8x1MiB/direct", "plain-write-8x1MiB/lanes", "plain-write-1MiB/cached", "plain-write-1MiB/direct",
                                        "plain-read/page-cache", "plain-read/device"};
    char folder[] = "/tmp/kvasir-bench-XXXXXX", name[64];
    struct disk_bench x;
    struct kv_lanes *lanes, *alone;
    double us[RATES][DISK_PASSES], rate[RATES];
    if (!mkdtemp(folder)) check(KV_IO_ERROR, folder);
    snprintf(name, sizeof name, "%s/plain", folder);
    check(kv_lanes_create(LANES, &lanes), "lanes");
    check(kv_lanes_create(1, &alone), "lanes");
    for (int i = 0; i < GROUP; i++) x.text[i] = filled(EXTENT);
    for (int i = 0; i < PIECES; i++) x.id[i] = identity(i);
    open_bench(&x, folder);
    for (int p = 0; p < DISK_PASSES; p++) {
        us[SINGLE_BUFFERED][p] = plain_write(name, 0, alone, 1);
        us[SINGLE_DIRECT][p] = plain_write(name, O_DIRECT, alone, 1);
        us[T_SINGLE][p] = tier_write(&x, 1);
        tier_release(&x, folder);
        us[BUFFERED][p] = plain_write(name, 0, alone, GROUP);
        us[DIRECT][p] = plain_write(name, O_DIRECT, alone, GROUP);
        us[LANED][p] = plain_write(name, O_DIRECT, lanes, GROUP);
        us[T_GROUP][p] = tier_write(&x, GROUP);
        us[READ_COLD][p] = plain_read(name, kv_now_us, true);
        us[T_COLD][p] = tier_read_groups(&x);
        us[READ_HOT][p] = plain_read(name, cpu_us, false);
        us[T_HOT][p] = tier_read_one_by_one(&x);
        us[T_HOT_GROUP][p] = tier_read_groups(&x);
        tier_release(&x, folder);
    }
    for (int r = 0; r < RATES; r++) rate[r] = best_rate(us[r], DISK_PASSES, (double)EXTENT * PIECES);
    double seal = cipher_rate(false), unseal = cipher_rate(true);
    line("disk/cipher", seal, "GB/s", 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char label[64];
        snprintf(label, sizeof label, "disk/%s", names[i]);
        line(label, rate[i], "GB/s", 0);
    }
    line("disk/write-1MiB", rate[T_SINGLE], "GB/s", least(seal, best(rate[SINGLE_BUFFERED], rate[SINGLE_DIRECT])));
    line("disk/write-8x1MiB", rate[T_GROUP], "GB/s", least(seal, best(rate[BUFFERED], best(rate[DIRECT], rate[LANED]))));
    line("disk/read-1MiB", rate[T_HOT], "GB/s", least(unseal, rate[READ_HOT]));
    line("disk/read-8x1MiB/page-cache", rate[T_HOT_GROUP], "GB/s", least(unseal, rate[READ_HOT]));
    line("disk/read-8x1MiB/device", rate[T_COLD], "GB/s", least(unseal, rate[READ_COLD]));
    kv_disk_close(&x.disk);
    unlink(name);
    snprintf(name, sizeof name, "%s/lock", folder);
    unlink(name);
    rmdir(folder);
    for (int i = 0; i < GROUP; i++) free(x.text[i]);
    kv_lanes_destroy(lanes);
    kv_lanes_destroy(alone);
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
