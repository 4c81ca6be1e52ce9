/* samples.c — see samples.h. */
#include "controller/release/samples.h"

#include "controller/release/release.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct header {
    char magic[8];
    uint64_t rollout, written;
    uint8_t reserved[40];
};
_Static_assert(sizeof(struct header) == sizeof(struct kv_sample_record), "the header takes one record's place");
static const char magic[8] = "KVSAMP01";

struct kv_samples {
    int fd;
    uint64_t rollout, written;
    _Atomic uint64_t lost;
    pthread_mutex_t file, waiting; /* in this order; file is held while the disk is written, waiting never */
    int filling;                   /* which of the two; the other one is written */
    int32_t n;
    struct kv_sample_record buffer[2][KV_SAMPLES_WAITING];
};

static void path_of(const char *dir, uint64_t rollout, char *out, size_t cap)
{
    char id[24];
    kv_rollout_id_format(rollout, id);
    snprintf(out, cap, "%s/samples/%s", dir, id);
}

/* Rollouts are numbered, so the oldest file is the one with the smallest number. */
static void drop_oldest(const char *dir)
{
    char folder[900], path[1024];
    snprintf(folder, sizeof folder, "%s/samples", dir);
    for (int n = KV_SAMPLES_FILES + 1; n > KV_SAMPLES_FILES;) {
        DIR *d = opendir(folder);
        uint64_t oldest = 0, id;
        n = 0;
        for (struct dirent *e; d && (e = readdir(d));) {
            if (!kv_rollout_id_parse(e->d_name, &id)) continue;
            if (!n++ || id < oldest) oldest = id;
        }
        if (d) closedir(d);
        path_of(dir, oldest, path, sizeof path);
        if (n > KV_SAMPLES_FILES && unlink(path)) return;
        n--;
    }
}

static bool read_header(int fd, uint64_t rollout, struct header *h)
{
    return pread(fd, h, sizeof *h, 0) == (ssize_t)sizeof *h && !memcmp(h->magic, magic, sizeof magic) && h->rollout == rollout;
}

enum kv_status kv_samples_open(const char *dir, uint64_t rollout, struct kv_samples **out, struct kv_error *err)
{
    char path[1024];
    struct header h;
    snprintf(path, sizeof path, "%s/samples", dir);
    if (mkdir(path, 0700) && errno != EEXIST) return kv_fail(err, KV_IO_ERROR, path, "the folder of samples cannot be made: %s", strerror(errno));
    struct kv_samples *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "samples", "memory could not be had");
    pthread_mutex_init(&s->file, NULL);
    pthread_mutex_init(&s->waiting, NULL);
    path_of(dir, rollout, path, sizeof path);
    s->rollout = rollout;
    s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->fd < 0) {
        free(s);
        return kv_fail(err, KV_IO_ERROR, path, "the samples cannot be written: %s", strerror(errno));
    }
    if (read_header(s->fd, rollout, &h)) s->written = h.written;
    else if (ftruncate(s->fd, 0)) s->lost++;
    drop_oldest(dir);
    *out = s;
    return KV_OK;
}

void kv_samples_add(struct kv_samples *s, const struct kv_sample_record *r)
{
    if (!s) return;
    pthread_mutex_lock(&s->waiting);
    if (s->n < KV_SAMPLES_WAITING) s->buffer[s->filling][s->n++] = *r;
    else s->lost++;
    pthread_mutex_unlock(&s->waiting);
}

/* Records first, then the header that counts them: after a crash the file says no more than it holds. */
void kv_samples_flush(struct kv_samples *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->file);
    pthread_mutex_lock(&s->waiting);
    const struct kv_sample_record *buffer = s->buffer[s->filling];
    int32_t done = 0, n = s->n;
    s->filling = !s->filling;
    s->n = 0;
    pthread_mutex_unlock(&s->waiting);
    while (done < n) {
        uint64_t at = (s->written + (uint64_t)done) % KV_SAMPLES_KEPT;
        size_t run = (size_t)(n - done), room = (size_t)(KV_SAMPLES_KEPT - at);
        if (run > room) run = room;
        size_t bytes = run * sizeof *buffer;
        if (pwrite(s->fd, buffer + done, bytes, (off_t)((at + 1) * sizeof *buffer)) != (ssize_t)bytes) break;
        done += (int32_t)run;
    }
    struct header h = {.rollout = s->rollout, .written = s->written + (uint64_t)done};
    memcpy(h.magic, magic, sizeof magic);
    if (n && pwrite(s->fd, &h, sizeof h, 0) == (ssize_t)sizeof h) s->written = h.written;
    else done = 0;
    s->lost += (uint64_t)(n - done);
    pthread_mutex_unlock(&s->file);
}

uint64_t kv_samples_lost(const struct kv_samples *s)
{
    return s ? s->lost : 0;
}

void kv_samples_close(struct kv_samples *s)
{
    if (!s) return;
    kv_samples_flush(s);
    close(s->fd);
    pthread_mutex_destroy(&s->file);
    pthread_mutex_destroy(&s->waiting);
    free(s);
}

enum kv_status kv_samples_read(const char *dir, uint64_t rollout, struct kv_sample_record **out, size_t *n, uint64_t *written, struct kv_error *err)
{
    char path[1024];
    struct header h;
    path_of(dir, rollout, path, sizeof path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        kv_fail(err, errno == ENOENT ? KV_NOT_FOUND : KV_IO_ERROR, "samples", "no samples of this rollout are kept");
        kv_hint(err, "samples of the last %d rollouts are kept, from their first step on", KV_SAMPLES_FILES);
        return errno == ENOENT ? KV_NOT_FOUND : KV_IO_ERROR;
    }
    memset(&h, 0, sizeof h);
    enum kv_status st = KV_OK;
    struct stat file;
    if (fstat(fd, &file) || (file.st_size && !read_header(fd, rollout, &h))) st = kv_fail(err, KV_STORE_CORRUPT, path, "the file of samples cannot be read");
    size_t have = h.written < KV_SAMPLES_KEPT ? (size_t)h.written : KV_SAMPLES_KEPT, first = (size_t)(h.written - have) % KV_SAMPLES_KEPT;
    struct kv_sample_record *r = st == KV_OK ? malloc((have + 1) * sizeof *r) : NULL;
    if (st == KV_OK && !r) st = kv_fail(err, KV_OUT_OF_MEMORY, "samples", "memory could not be had");
    size_t tail = have < KV_SAMPLES_KEPT - first ? have : KV_SAMPLES_KEPT - first, parts[2][2] = {{first, tail}, {0, have - tail}};
    for (int i = 0, at = 0; i < 2 && st == KV_OK; at += (int)parts[i++][1]) {
        size_t bytes = parts[i][1] * sizeof *r;
        if (pread(fd, r + at, bytes, (off_t)((parts[i][0] + 1) * sizeof *r)) != (ssize_t)bytes) st = kv_fail(err, KV_STORE_CORRUPT, path, "the file of samples is shorter than its header says");
    }
    close(fd);
    if (st != KV_OK) return free(r), st;
    *out = r;
    *n = have;
    *written = h.written;
    return KV_OK;
}
