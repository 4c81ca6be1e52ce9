/* flights.c — one file a copy: its records as they lie in memory, so that the file's SHA-256 is its name. */
#include "controller/flights.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little-endian");

static void name_of(const char *state_dir, const uint8_t digest[32], const char *suffix, char out[1200])
{
    char hex[65];
    kv_hex(digest, 32, hex);
    snprintf(out, 1200, "%.1000s/flights/%s%s", state_dir, hex, suffix);
}

/* The oldest beyond those that stay. */
static void prune(const char *folder)
{
    DIR *d = opendir(folder);
    char oldest[300] = "", path[1500];
    int64_t oldest_ns = INT64_MAX;
    int n = 0;
    struct stat st;
    for (struct dirent *f; d && (f = readdir(d));) {
        if (fstatat(dirfd(d), f->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) continue;
        int64_t ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        n++;
        if (ns >= oldest_ns) continue;
        oldest_ns = ns;
        snprintf(oldest, sizeof oldest, "%s", f->d_name);
    }
    if (d) closedir(d);
    if (n <= KV_FLIGHTS_KEPT) return;
    snprintf(path, sizeof path, "%s/%s", folder, oldest);
    unlink(path);
}

static enum kv_status write_copy(const char *state_dir, const struct kv_flight_copy *c, struct kv_error *err)
{
    char folder[1100], path[1200], part[1200];
    size_t bytes = (size_t)c->n * sizeof *c->record;
    snprintf(folder, sizeof folder, "%.1000s/flights", state_dir);
    name_of(state_dir, c->digest, "", path);
    name_of(state_dir, c->digest, ".part", part);
    if (mkdir(folder, 0700) && errno != EEXIST) return kv_fail(err, KV_IO_ERROR, folder, "%s cannot be made: %s", folder, strerror(errno));
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool whole = fd >= 0 && write(fd, c->record, bytes) == (ssize_t)bytes;
    int why = errno;
    if (fd >= 0) close(fd);
    if (whole && !rename(part, path)) return prune(folder), KV_OK;
    if (fd >= 0) unlink(part);
    return kv_fail(err, why == ENOSPC ? KV_NO_SPACE : KV_IO_ERROR, path, "a flight recording cannot be written: %s", strerror(why));
}

enum kv_status kv_flights_keep(const char *state_dir, struct kv_engine *e, struct kv_error *err)
{
    struct kv_flight_copy *c = malloc(sizeof *c);
    if (!c) return kv_fail(err, KV_OUT_OF_MEMORY, "flights", "no memory for a flight recording");
    enum kv_status st = KV_OK;
    while (kv_engine_flight_copy(e, c)) {
        enum kv_status s = write_copy(state_dir, c, err);
        if (s) st = s;
    }
    free(c);
    return st;
}

enum kv_status kv_flights_read(const char *state_dir, const uint8_t digest[32], struct kv_flight_copy *out, struct kv_error *err)
{
    char path[1200];
    name_of(state_dir, digest, "", path);
    FILE *f = fopen(path, "rb");
    if (!f) {
        kv_fail(err, KV_NOT_FOUND, "flight", "no flight recording is kept for this receipt");
        kv_hint(err, "the newest %d are kept, at most one a second, and none where nothing was selected", KV_FLIGHTS_KEPT);
        return KV_NOT_FOUND;
    }
    size_t n = fread(out->record, sizeof *out->record, KV_FLIGHT_COPY, f);
    bool more = fgetc(f) != EOF;
    fclose(f);
    out->n = (int32_t)n;
    kv_sha256(out->record, n * sizeof *out->record, out->digest);
    if (!more && !memcmp(out->digest, digest, 32)) return KV_OK;
    return kv_fail(err, KV_CHECKSUM_MISMATCH, path, "%s is not what the receipt names", path);
}
