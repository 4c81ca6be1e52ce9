/* extents.c — see extents.h. */
#include "controller/extents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BUCKETS = 1 << 16, MAX_OBJECTS = 1 << 20, PAGE = 4096 };
#define ASIDE "writing-" /* files that are being written */

struct object {
    struct object *next;           /* of its bucket */
    struct object *newer, *older;  /* order of use */
    char name[KV_EXTENT_NAME_CHARS];
    uint64_t bytes;
    int64_t used_ns; /* while opening */
};

struct kv_extents {
    struct kv_extents_config config;
    char path[512];
    int folder; /* and its lock */
    pthread_mutex_t lock;
    /* Under the lock. */
    struct object *bucket[BUCKETS], ends; /* ends.newer: the oldest; ends.older: the newest */
    uint64_t held_bytes;                  /* of objects, and of those being written */
    uint64_t next;                        /* number of a file being written */
    struct kv_extents_stats stats;
};

/* ---------------------------------------------------------------- names and the table */

static bool is_name(const char *s)
{
    return strspn(s, "0123456789abcdef") == KV_EXTENT_NAME_CHARS && !s[KV_EXTENT_NAME_CHARS];
}

static enum kv_status check_name(const char *name, struct kv_error *err)
{
    return is_name(name) ? KV_OK : kv_fail(err, KV_BAD_ARGUMENT, "name", "an extent's name is %d characters of 0-9 and a-f, not '%.80s'", KV_EXTENT_NAME_CHARS, name);
}

static struct object **slot_of(struct kv_extents *e, const char *name)
{
    char head[5] = {name[0], name[1], name[2], name[3]};
    struct object **at = &e->bucket[strtoul(head, NULL, 16)];
    while (*at && memcmp((*at)->name, name, KV_EXTENT_NAME_CHARS)) at = &(*at)->next;
    return at;
}

static uint64_t on_disk(uint64_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

static void unlist(struct object *o)
{
    o->newer->older = o->older;
    o->older->newer = o->newer;
}

static void newest(struct kv_extents *e, struct object *o)
{
    o->newer = &e->ends;
    o->older = e->ends.older;
    o->older->newer = e->ends.older = o;
}

/* Its file is gone, or another one's now. */
static void forget(struct kv_extents *e, struct object **at)
{
    struct object *o = *at;
    *at = o->next;
    unlist(o);
    e->held_bytes -= on_disk(o->bytes);
    e->stats.objects--;
    e->stats.bytes -= o->bytes;
    free(o);
}

static struct object *add(struct kv_extents *e, const char *name, uint64_t n)
{
    struct object **at = slot_of(e, name), *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    if (*at) forget(e, at), at = slot_of(e, name);
    memcpy(o->name, name, sizeof o->name);
    o->bytes = n;
    *at = o;
    newest(e, o);
    e->stats.objects++;
    e->stats.bytes += n;
    return o;
}

static bool unlink_object(struct kv_extents *e, const char *name)
{
    char text[KV_EXTENT_NAME_CHARS + 1] = "";
    memcpy(text, name, KV_EXTENT_NAME_CHARS);
    return unlinkat(e->folder, text, 0) == 0 || errno == ENOENT;
}

static bool evict(struct kv_extents *e)
{
    struct object *oldest = e->ends.newer;
    if (oldest == &e->ends || !unlink_object(e, oldest->name)) return false;
    e->stats.evictions++;
    forget(e, slot_of(e, oldest->name));
    return true;
}

/* ---------------------------------------------------------------- put */

/* Under the lock. */
static enum kv_status refuse(struct kv_extents *e, enum kv_status s, uint64_t n, struct kv_error *err)
{
    e->stats.refused++;
    if (s == KV_BODY_TOO_LARGE) {
        kv_fail(err, s, "body", "the object has %llu bytes; the limit is %llu", (unsigned long long)n, (unsigned long long)e->config.object_bytes);
        kv_hint(err, "raise extents.object_bytes");
    } else {
        kv_fail(err, s, "extents.capacity_bytes", "an object of %llu bytes does not fit in what is free", (unsigned long long)n);
        kv_hint(err, "raise extents.capacity_bytes, or free disk space");
    }
    return s;
}

/* Under the lock. */
static enum kv_status make_room(struct kv_extents *e, uint64_t n, struct kv_error *err)
{
    struct statvfs v;
    uint64_t span = on_disk(n);
    if (n == 0) return kv_fail(err, KV_BAD_ARGUMENT, "body", "an object has at least one byte");
    if (n > e->config.object_bytes) return refuse(e, KV_BODY_TOO_LARGE, n, err);
    if (span > e->config.capacity_bytes) return refuse(e, KV_NO_SPACE, n, err); /* nothing goes for what cannot fit */
    while ((e->held_bytes + span > e->config.capacity_bytes || e->stats.objects >= MAX_OBJECTS) && evict(e)) continue;
    bool fits = e->held_bytes + span <= e->config.capacity_bytes && e->stats.objects < MAX_OBJECTS;
    if (!fits || fstatvfs(e->folder, &v) || (uint64_t)v.f_bavail * v.f_frsize < e->config.reserve_bytes + span) return refuse(e, KV_NO_SPACE, n, err);
    e->held_bytes += span;
    return KV_OK;
}

static enum kv_status write_aside(struct kv_extents *e, const char *aside, const void *object, uint64_t n)
{
    int fd = openat(e->folder, aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    uint64_t done = 0;
    while (fd >= 0 && done < n) {
        ssize_t w = write(fd, (const uint8_t *)object + done, n - done);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) break;
        done += (uint64_t)w;
    }
    int why = fd < 0 || done < n || fsync(fd) ? errno : 0;
    if (fd >= 0) close(fd);
    return !why ? KV_OK : why == ENOSPC || why == EDQUOT || why == EFBIG ? KV_NO_SPACE : KV_IO_ERROR;
}

enum kv_status kv_extents_put(struct kv_extents *e, const char *name, const void *object, uint64_t n, struct kv_error *err)
{
    char aside[64];
    enum kv_status s = check_name(name, err);
    if (s != KV_OK) return s;
    pthread_mutex_lock(&e->lock);
    s = make_room(e, n, err);
    snprintf(aside, sizeof aside, ASIDE "%llu", (unsigned long long)e->next++);
    pthread_mutex_unlock(&e->lock);
    if (s != KV_OK) return s;
    s = write_aside(e, aside, object, n);
    pthread_mutex_lock(&e->lock);
    if (s == KV_OK && (renameat(e->folder, aside, e->folder, name) || !add(e, name, n))) s = KV_IO_ERROR;
    if (s != KV_OK) e->held_bytes -= on_disk(n);
    else e->stats.puts++;
    if (s == KV_NO_SPACE) (void)refuse(e, s, n, err);
    pthread_mutex_unlock(&e->lock);
    if (s == KV_OK) return fsync(e->folder) ? kv_fail(err, KV_IO_ERROR, "extents", "the folder could not be synced: %s", strerror(errno)) : KV_OK;
    (void)unlinkat(e->folder, aside, 0);
    return s == KV_NO_SPACE ? s : kv_fail(err, s, "extents", "the object could not be written");
}

/* ---------------------------------------------------------------- get and erase */

static enum kv_status missing(const char *name, struct kv_error *err)
{
    return kv_fail(err, KV_NOT_FOUND, "name", "no extent is named %.80s", name);
}

enum kv_status kv_extents_get(struct kv_extents *e, const char *name, int *fd, uint64_t *n, struct kv_error *err)
{
    struct stat st;
    enum kv_status s = check_name(name, err);
    if (s != KV_OK) return s;
    pthread_mutex_lock(&e->lock);
    struct object **at = slot_of(e, name);
    *fd = *at ? openat(e->folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    int why = *at && (*fd < 0 || fstat(*fd, &st)) ? errno : 0;
    bool there = *at && !why;
    if (why == ENOENT) forget(e, at); /* somebody took the file away */
    if (there) {
        (void)futimens(*fd, NULL); /* the order of use outlives the process */
        unlist(*at);
        newest(e, *at);
        *n = (uint64_t)st.st_size;
        e->stats.hits++;
    } else e->stats.misses++;
    pthread_mutex_unlock(&e->lock);
    if (there) return KV_OK;
    if (*fd >= 0) close(*fd);
    return !why || why == ENOENT ? missing(name, err) : kv_fail(err, KV_IO_ERROR, "extents", "the object could not be opened: %s", strerror(why));
}

enum kv_status kv_extents_has(struct kv_extents *e, const char *name, uint64_t *n, struct kv_error *err)
{
    enum kv_status s = check_name(name, err);
    if (s != KV_OK) return s;
    pthread_mutex_lock(&e->lock);
    const struct object *o = *slot_of(e, name);
    if (o) *n = o->bytes;
    pthread_mutex_unlock(&e->lock);
    return o ? KV_OK : missing(name, err);
}

enum kv_status kv_extents_erase(struct kv_extents *e, const char *name, struct kv_error *err)
{
    enum kv_status s = check_name(name, err);
    if (s != KV_OK) return s;
    pthread_mutex_lock(&e->lock);
    struct object **at = slot_of(e, name);
    bool there = *at != NULL, gone = there && unlink_object(e, name);
    if (gone) forget(e, at), e->stats.erased++;
    pthread_mutex_unlock(&e->lock);
    if (!there) return missing(name, err);
    if (!gone || fsync(e->folder)) return kv_fail(err, KV_IO_ERROR, "extents", "the object could not be erased: %s", strerror(errno));
    return KV_OK;
}

void kv_extents_stats(struct kv_extents *e, struct kv_extents_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->lock);
}

/* ---------------------------------------------------------------- open and close */

static int by_use(const void *a, const void *b)
{
    int64_t x = ((const struct object *)a)->used_ns, y = ((const struct object *)b)->used_ns;
    return x < y ? -1 : x > y;
}

/* What an earlier process left: objects in *found, files that were being written removed. */
static bool scan(struct kv_extents *e, struct object **found, size_t *n)
{
    int fd = openat(e->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    size_t cap = 0;
    bool good = d != NULL;
    for (struct dirent *f; good && (f = readdir(d));) {
        struct stat st;
        if (!strncmp(f->d_name, ASIDE, strlen(ASIDE))) (void)unlinkat(e->folder, f->d_name, 0);
        if (!is_name(f->d_name) || fstatat(e->folder, f->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode) || st.st_size <= 0) continue;
        if (*n == cap) {
            struct object *grown = realloc(*found, (cap = cap ? cap * 2 : 1024) * sizeof *grown);
            if (!(good = grown != NULL)) break;
            *found = grown;
        }
        struct object o = {.bytes = (uint64_t)st.st_size, .used_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
        memcpy(o.name, f->d_name, sizeof o.name);
        (*found)[(*n)++] = o;
    }
    if (d) closedir(d);
    else if (fd >= 0) close(fd);
    return good;
}

static enum kv_status load(struct kv_extents *e, struct kv_error *err)
{
    struct object *found = NULL;
    size_t n = 0;
    bool good = scan(e, &found, &n);
    if (good && n) qsort(found, n, sizeof *found, by_use);
    for (size_t i = 0; good && i < n; i++) {
        char name[KV_EXTENT_NAME_CHARS + 1] = "";
        memcpy(name, found[i].name, KV_EXTENT_NAME_CHARS);
        good = add(e, name, found[i].bytes) != NULL;
        e->held_bytes += on_disk(found[i].bytes);
    }
    free(found);
    while (good && e->held_bytes > e->config.capacity_bytes && evict(e)) continue;
    return good ? KV_OK : kv_fail(err, KV_IO_ERROR, e->path, "the folder of extents cannot be read");
}

enum kv_status kv_extents_open(const struct kv_extents_config *c, struct kv_extents **out, struct kv_error *err)
{
    *out = NULL;
    if (strlen(c->path) >= sizeof (*out)->path) return kv_fail(err, KV_BAD_ARGUMENT, "extents.path", "the path is too long");
    struct kv_extents *e = calloc(1, sizeof *e);
    if (!e) return kv_fail(err, KV_OUT_OF_MEMORY, "extents", "no memory for the store of extents");
    e->config = *c;
    snprintf(e->path, sizeof e->path, "%s", c->path);
    e->stats.capacity_bytes = c->capacity_bytes;
    e->ends.newer = e->ends.older = &e->ends;
    pthread_mutex_init(&e->lock, NULL);
    int made = mkdir(e->path, 0700), why = errno;
    e->folder = open(e->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum kv_status s = KV_OK;
    if (e->folder < 0) {
        s = kv_fail(err, KV_FILE_UNREADABLE, e->path, "the folder of extents cannot be used: %s", strerror(made && why != EEXIST ? why : errno));
        kv_hint(err, "set extents.path to a folder that this user may write");
    } else if (flock(e->folder, LOCK_EX | LOCK_NB)) {
        s = kv_fail(err, KV_STORE_LOCKED, e->path, "another process holds the folder of extents %.300s", e->path);
        kv_hint(err, "stop it, or give each kvasird an extents.path of its own");
    } else s = load(e, err);
    if (s == KV_OK) *out = e;
    else kv_extents_close(e);
    return s;
}

void kv_extents_close(struct kv_extents *e)
{
    if (!e) return;
    while (e->ends.newer != &e->ends) forget(e, slot_of(e, e->ends.newer->name));
    if (e->folder >= 0) close(e->folder);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
