/* intent.c — two 512-byte slots in a preallocated file, each with its SHA-256. */
#include "controller/release/intent.h"

#include "runtime/kvasir.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 4096, SLOT_BYTES = 512, SLOTS = 2 };

struct slot { /* fixed layout, little-endian hosts only, as the rest of the state directory */
    char magic[8];
    uint64_t sequence, rollout, epoch;
    int64_t at_us;
    char reason[40], actor[64], detail[160];
    uint8_t sum[32];
};
_Static_assert(sizeof(struct slot) <= SLOT_BYTES, "a slot must stay inside one sector");
static const char magic[8] = "KVINTNT1";

struct kv_intent {
    int fd;
    pthread_mutex_t mutex;
    uint64_t sequence;
};

static void slot_sum(const struct slot *s, uint8_t out[32])
{
    kv_sha256(s, offsetof(struct slot, sum), out);
}

static bool read_slot(int fd, int i, struct kv_intent_record *out)
{
    struct slot s;
    uint8_t sum[32];
    if (pread(fd, &s, sizeof s, (off_t)i * SLOT_BYTES) != (ssize_t)sizeof s || memcmp(s.magic, magic, sizeof magic)) return false;
    slot_sum(&s, sum);
    if (memcmp(sum, s.sum, sizeof sum)) return false;
    s.reason[sizeof s.reason - 1] = s.actor[sizeof s.actor - 1] = s.detail[sizeof s.detail - 1] = 0;
    *out = (struct kv_intent_record){.sequence = s.sequence, .rollout = s.rollout, .epoch = s.epoch, .at_us = s.at_us};
    out->reason = kv_status_from_name(s.reason);
    if (out->reason == KV_STATUS_COUNT) out->reason = KV_OPERATOR_ROLLBACK;
    memcpy(out->actor, s.actor, sizeof out->actor);
    memcpy(out->detail, s.detail, sizeof out->detail);
    return true;
}

/* The file is zeroed and made durable before it is first needed, with its directory entry, so that a rollback needs no new block. */
static enum kv_status preallocate(const char *path, int fd)
{
    static const char zeros[FILE_BYTES];
    struct stat st;
    if (fstat(fd, &st)) return KV_IO_ERROR;
    if (st.st_size >= FILE_BYTES) return KV_OK;
    if (pwrite(fd, zeros, sizeof zeros, 0) != (ssize_t)sizeof zeros) return errno == ENOSPC ? KV_NO_SPACE : KV_IO_ERROR;
    if (fsync(fd)) return KV_IO_ERROR;
    char dir[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    if (n >= sizeof dir) return KV_IO_ERROR;
    memcpy(dir, slash ? path : ".", n);
    dir[n] = 0;
    int dfd = open(n ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dfd < 0) return KV_IO_ERROR;
    int rc = fsync(dfd);
    close(dfd);
    return rc ? KV_IO_ERROR : KV_OK;
}

enum kv_status kv_intent_open(const char *path, struct kv_intent **out, struct kv_intent_record *last, struct kv_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        kv_fail(err, KV_FILE_UNREADABLE, path, "the rollback record cannot be opened: %s", strerror(errno));
        kv_hint(err, "check the owner and mode of the state directory");
        return KV_FILE_UNREADABLE;
    }
    enum kv_status s = preallocate(path, fd);
    struct kv_intent *i = s == KV_OK ? calloc(1, sizeof *i) : NULL;
    if (!i) {
        close(fd);
        return kv_fail(err, s == KV_OK ? KV_OUT_OF_MEMORY : s, path, "the rollback record cannot be prepared: %s", strerror(errno));
    }
    i->fd = fd;
    pthread_mutex_init(&i->mutex, NULL);
    memset(last, 0, sizeof *last);
    for (int k = 0; k < SLOTS; k++) {
        struct kv_intent_record r;
        if (read_slot(fd, k, &r) && r.sequence > last->sequence) *last = r;
    }
    i->sequence = last->sequence;
    *out = i;
    return KV_OK;
}

void kv_intent_close(struct kv_intent *i)
{
    if (!i) return;
    close(i->fd);
    pthread_mutex_destroy(&i->mutex);
    free(i);
}

enum kv_status kv_intent_write(struct kv_intent *i, struct kv_intent_record *r)
{
    struct slot s;
    memset(&s, 0, sizeof s);
    memcpy(s.magic, magic, sizeof magic);
    strncpy(s.reason, kv_status_name(r->reason), sizeof s.reason - 1);
    memcpy(s.actor, r->actor, sizeof s.actor);
    memcpy(s.detail, r->detail, sizeof s.detail);
    s.rollout = r->rollout;
    s.epoch = r->epoch;
    s.at_us = r->at_us;
    pthread_mutex_lock(&i->mutex);
    r->sequence = s.sequence = i->sequence + 1;
    slot_sum(&s, s.sum);
    enum kv_status st = KV_OK;
    if (pwrite(i->fd, &s, sizeof s, (off_t)(s.sequence % SLOTS) * SLOT_BYTES) != (ssize_t)sizeof s || fdatasync(i->fd)) st = KV_IO_ERROR;
    /* After a failed write the same slot is tried again: it may be torn, and the other one still holds the last good record. */
    if (st == KV_OK) i->sequence = s.sequence;
    pthread_mutex_unlock(&i->mutex);
    return st;
}
