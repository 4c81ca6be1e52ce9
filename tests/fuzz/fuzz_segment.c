/* fuzz_segment.c — damaged segment files of the disk tier: what is found must read as what was written, or be refused; no crash, no bytes that are nobody's.
 *
 * Half of the damaged headers get a fitting checksum again, as somebody who writes the file on purpose would give them.
 * usage: fuzz_segment [--cases N] [--seed S]    the same numbers give the same cases; a failing one is named by its number */
#include "runtime/residency/disk_state.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { EXTENTS_N = 5, BYTES = 9000, SEGMENT = 1 << 20 };

static char folder[64], name[128];
static struct {
    int n;
    struct kv_chunk_identity id[600];
    struct kv_block b[600];
    uint64_t bytes[600];
} found;

static void on_found(void *ctx, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes)
{
    (void)ctx;
    if (found.n == 600) abort();
    found.id[found.n] = *id;
    found.b[found.n] = b;
    found.bytes[found.n++] = bytes;
}

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15u;
    uint64_t z = (*state ^ (*state >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t below(uint64_t *state, uint64_t n)
{
    return n ? next_random(state) % n : 0;
}

static struct kv_chunk_identity identity(int n)
{
    struct kv_chunk_identity id;
    memset(&id, 0, sizeof id);
    id.layer = n;
    strcpy(id.tenant, "alpha");
    return id;
}

static void payload(int n, uint8_t *out)
{
    for (int i = 0; i < BYTES; i++) out[i] = (uint8_t)(n * 41 + i * 11 + (i >> 8));
}

static enum kv_status open_disk(struct kv_tier *disk)
{
    struct kv_error err;
    struct kv_disk_config c = {.path = folder, .capacity_bytes = 16 << 20, .segment_bytes = SEGMENT, .key = {9}, .found = on_found};
    found.n = 0;
    return kv_disk_open(&c, disk, &err);
}

static void clear_folder(void)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
}

static size_t make_base(uint8_t *out)
{
    struct kv_tier disk;
    struct kv_block b;
    uint8_t p[BYTES];
    uint64_t hash;
    if (open_disk(&disk) != KV_OK) abort();
    for (int i = 0; i < EXTENTS_N; i++) {
        struct kv_chunk_identity id = identity(i);
        payload(i, p);
        if (disk.reserve(disk.ctx, BYTES, &id, &b) != KV_OK || disk.write(disk.ctx, b, &id, p, BYTES, &hash) != KV_OK) abort();
    }
    kv_disk_close(&disk);
    int fd = open(name, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, out, SEGMENT);
    if (n <= 0) abort();
    close(fd);
    return (size_t)n;
}

static void write_file(const uint8_t *bytes, size_t n)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
    close(fd);
}

/* Headers are where damage does most. */
static size_t damage(uint64_t *state, uint8_t *bytes, size_t n)
{
    static const uint64_t numbers[] = {0, 1, 4095, 4096, BYTES - 1, BYTES + 1, SEGMENT, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX - 4096};
    if (!below(state, 12)) n = (size_t)below(state, n + 1);
    for (uint64_t times = below(state, 3) + 1; times; times--) {
        size_t page = (size_t)below(state, n / PAGE + 1) * PAGE, at = page + (size_t)below(state, below(state, 3) ? 64 : sizeof(struct kv_extent_header));
        if (at + 8 > n) continue;
        switch (below(state, 4)) {
        case 0: bytes[at] ^= (uint8_t)(1u << below(state, 8)); break;
        case 1: memcpy(bytes + at / 8 * 8, &numbers[below(state, sizeof numbers / sizeof *numbers)], 8); break;
        case 2: { /* one extent's page over another's */
            size_t other = (size_t)below(state, n / PAGE) * PAGE;
            if (page + PAGE <= n && other + PAGE <= n) memmove(bytes + page, bytes + other, PAGE);
            break;
        }
        default: bytes[below(state, n)] = (uint8_t)next_random(state);
        }
        struct kv_extent_header h;
        if (page >= PAGE && page + sizeof h <= n && below(state, 2)) {
            memcpy(&h, bytes + page, sizeof h);
            h.checksum = XXH3_64bits(&h, offsetof(struct kv_extent_header, checksum));
            memcpy(bytes + page, &h, sizeof h);
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    uint64_t cases = 1500, seed = 1, read_ok = 0, refused = 0, unopened = 0;
    static uint8_t base[SEGMENT], bytes[SEGMENT], have[SEGMENT], want[BYTES];
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--cases")) cases = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], NULL, 10);
    }
    snprintf(folder, sizeof folder, "%s/kvasir-fuzz-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
    snprintf(name, sizeof name, "%s/segment-%016x", folder, 0);
    if (mkdir(folder, 0700)) return 2;
    size_t n_base = make_base(base);
    for (uint64_t c = 0; c < cases; c++) {
        uint64_t state = seed * 0x9E3779B97F4A7C15u + c;
        struct kv_tier disk;
        clear_folder();
        memcpy(bytes, base, n_base);
        write_file(bytes, damage(&state, bytes, n_base));
        if (open_disk(&disk) != KV_OK) {
            unopened++;
            continue;
        }
        for (int i = 0; i < found.n; i++) {
            enum kv_status s = disk.read(disk.ctx, found.b[i], &found.id[i], have, found.bytes[i]);
            s == KV_OK ? read_ok++ : refused++;
            payload(found.id[i].layer, want);
            struct kv_chunk_identity id = identity(found.id[i].layer);
            if (s == KV_OK && (found.bytes[i] != BYTES || memcmp(have, want, BYTES) || kv_identity_compare(&kv_chunk_type, &id, &found.id[i], NULL) != KV_OK))
                return fprintf(stderr, "case %llu: extent %d reads as what it is not\n", (unsigned long long)c, i), 1;
        }
        for (int i = 0; i < found.n; i++) disk.release(disk.ctx, found.b[i]);
        struct kv_disk_stats st;
        kv_disk_stats(&disk, &st);
        if (st.used_bytes || st.live_extents) return fprintf(stderr, "case %llu: %llu bytes are nobody's\n", (unsigned long long)c, (unsigned long long)st.used_bytes), 1;
        kv_disk_close(&disk);
    }
    clear_folder();
    rmdir(folder);
    printf("%llu cases: %llu reads, %llu refused, %llu files not opened\n", (unsigned long long)cases, (unsigned long long)read_ok, (unsigned long long)refused, (unsigned long long)unopened);
    return read_ok && refused ? 0 : 1;
}
