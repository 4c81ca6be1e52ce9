/* faults.c — see faults.h. */
#include "runtime/residency/faults.h"

#include "runtime/residency/disk.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(KV_FAULTS <= 32, "marks are 32 bits");

static const struct kv_fault_info infos[KV_FAULTS] = {
#define KV_FAULT(name, site, reason, action, meaning) {#name, #action, meaning, KV_FAULT_##site, KV_##reason},
#include "runtime/residency/faults.def"
#undef KV_FAULT
};
static const char *const site_names[KV_FAULT_SITES] = {"TRANSFER", "DISK_READ", "DISK_WRITE", "SELECTOR", "POLICY", "CLOCK", "PROCESS", "REMOTE"};

struct kv_faults {
    pthread_mutex_t lock;
    struct kv_fault_scope scope[KV_FAULTS]; /* under the lock */
    bool armed[KV_FAULTS];                  /* under the lock */
    _Atomic uint32_t mask;                  /* of the armed ones */
    bool remote;                            /* there is such a tier */
    uint32_t armings;                       /* under the lock: so far, of any fault */
    _Atomic uint64_t left[KV_FAULTS];       /* arming << 32 | strikes left: who was marked under an earlier arming has no part in this one */
    _Atomic uint64_t hits[KV_FAULTS];
};

const struct kv_fault_info *kv_fault_info(enum kv_fault k)
{
    return &infos[k];
}

const char *kv_fault_site_name(enum kv_fault_site s)
{
    return site_names[s];
}

enum kv_fault kv_fault_from_name(const char *name)
{
    int k = 0;
    while (k < KV_FAULTS && strcmp(infos[k].name, name)) k++;
    return (enum kv_fault)k;
}

uint32_t kv_fault_sites(uint32_t mask)
{
    uint32_t sites = 0;
    for (int k = 0; k < KV_FAULTS; k++)
        if (mask >> k & 1) sites |= 1u << infos[k].site;
    return sites;
}

enum kv_status kv_faults_create(struct kv_faults **out)
{
    struct kv_faults *f = *out = calloc(1, sizeof *f);
    if (!f) return KV_OUT_OF_MEMORY;
    pthread_mutex_init(&f->lock, NULL);
    return KV_OK;
}

void kv_faults_offer_remote(struct kv_faults *f)
{
    f->remote = true;
}

void kv_faults_destroy(struct kv_faults *f)
{
    if (!f) return;
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---------------------------------------------------------------- arm and disarm */

enum kv_status kv_faults_arm(struct kv_faults *f, enum kv_fault k, uint32_t count, const struct kv_fault_scope *scope, struct kv_error *err)
{
    if (infos[k].site == KV_FAULT_REMOTE && !f->remote) {
        kv_fail(err, KV_UNSUPPORTED, infos[k].name, "%s strikes the remote tier, and none is configured", infos[k].name);
        kv_hint(err, "set tiers.remote.url");
        return KV_UNSUPPORTED;
    }
    if (!scope->candidate && !*scope->tenant) {
        kv_fail(err, KV_BAD_ARGUMENT, "scope", "a fault needs a scope: nobody meets it who was not named");
        kv_hint(err, "name a live rollout, or a tenant and, if you like, one of its sessions");
        return KV_BAD_ARGUMENT;
    }
    if (count == 0) return kv_fail(err, KV_BAD_ARGUMENT, "count", "count is how often the fault strikes and must be at least 1");
    pthread_mutex_lock(&f->lock);
    bool armed = f->armed[k] && (uint32_t)atomic_load(&f->left[k]) > 0;
    if (!armed) {
        f->scope[k] = *scope;
        f->armed[k] = true;
        atomic_store(&f->left[k], (uint64_t)++f->armings << 32 | count);
        atomic_fetch_or(&f->mask, 1u << k);
    }
    pthread_mutex_unlock(&f->lock);
    if (!armed) return KV_OK;
    kv_fail(err, KV_CONFLICT, infos[k].name, "%s is armed already", infos[k].name);
    kv_hint(err, "disarm it first");
    return KV_CONFLICT;
}

bool kv_faults_disarm(struct kv_faults *f, enum kv_fault k)
{
    pthread_mutex_lock(&f->lock);
    bool was = f->armed[k] && (uint32_t)atomic_load(&f->left[k]) > 0;
    f->armed[k] = false;
    atomic_store(&f->left[k], 0);
    atomic_fetch_and(&f->mask, ~(1u << k));
    pthread_mutex_unlock(&f->lock);
    return was;
}

void kv_faults_view(struct kv_faults *f, enum kv_fault k, struct kv_fault_view *out)
{
    pthread_mutex_lock(&f->lock);
    *out = (struct kv_fault_view){.left = (uint32_t)atomic_load(&f->left[k]), .hits = atomic_load(&f->hits[k]), .scope = f->scope[k]};
    out->armed = f->armed[k] && out->left > 0;
    pthread_mutex_unlock(&f->lock);
}

/* ---------------------------------------------------------------- who meets what */

static bool meets(const struct kv_fault_scope *s, const char *tenant, const char *session, uint64_t candidate)
{
    return (!s->candidate || s->candidate == candidate) && (!*s->tenant || !strcmp(s->tenant, tenant)) && (!*s->session || !strcmp(s->session, session));
}

struct kv_fault_marks kv_faults_match(struct kv_faults *f, const char *tenant, const char *session, uint64_t candidate)
{
    struct kv_fault_marks m = {0};
    if (!f || !atomic_load_explicit(&f->mask, memory_order_relaxed)) return m;
    pthread_mutex_lock(&f->lock);
    for (int k = 0; k < KV_FAULTS; k++)
        if (f->armed[k] && (uint32_t)atomic_load(&f->left[k]) && meets(&f->scope[k], tenant ? tenant : "", session ? session : "", candidate)) m.mask |= 1u << k;
    m.arming = f->armings;
    pthread_mutex_unlock(&f->lock);
    if (m.mask) m.from = f;
    return m;
}

bool kv_faults_take(const struct kv_fault_marks *m, enum kv_fault k)
{
    struct kv_faults *f = m->from;
    uint64_t left = atomic_load(&f->left[k]);
    bool takes;
    do takes = (uint32_t)left && left >> 32 <= m->arming;
    while (takes && (uint32_t)left != KV_FAULT_EVERY && !atomic_compare_exchange_weak(&f->left[k], &left, left - 1));
    if (takes) atomic_fetch_add(&f->hits[k], 1);
    return takes;
}

/* ---------------------------------------------------------------- the disk */

enum { PAGE_BYTES = 4096, HEADER_BYTES = PAGE_BYTES }; /* what is read of a payload is more than a header */

static _Thread_local const struct kv_fault_marks *at_disk;

void kv_faults_at_disk(const struct kv_fault_marks *m)
{
    at_disk = m && m->mask ? m : NULL;
}

static ssize_t faulty_pread(int fd, void *buf, size_t n, off_t at)
{
    static _Thread_local off_t cut; /* nothing is there from here on */
    if (!at_disk) return pread(fd, buf, n, at);
    if (cut && at == cut) return cut = 0;
    if (kv_fault_strikes(at_disk, KV_FAULT_dropped_read)) return 0;
    if (n > HEADER_BYTES && kv_fault_strikes(at_disk, KV_FAULT_truncation)) {
        size_t half = n / 2 / PAGE_BYTES * PAGE_BYTES;
        cut = at + (off_t)half;
        return pread(fd, buf, half, at);
    }
    ssize_t got = pread(fd, buf, n, at);
    if (got > HEADER_BYTES && kv_fault_strikes(at_disk, KV_FAULT_bit_flip)) ((uint8_t *)buf)[got / 2] ^= 16;
    return got;
}

static ssize_t faulty_pwrite(int fd, const void *buf, size_t n, off_t at)
{
    if (!kv_fault_strikes(at_disk, KV_FAULT_disk_full)) return pwrite(fd, buf, n, at);
    errno = ENOSPC;
    return -1;
}

static int faulty_sync(int fd)
{
    if (!kv_fault_strikes(at_disk, KV_FAULT_sync_failure)) return fdatasync(fd);
    errno = EIO;
    return -1;
}

static int faulty_open(const char *path, int flags, unsigned mode) { return kv_disk_io_system.open(path, flags, mode); }
static int faulty_allocate(int fd, off_t at, off_t n) { return kv_disk_io_system.allocate(fd, at, n); }
static int faulty_punch(int fd, off_t at, off_t n) { return kv_disk_io_system.punch(fd, at, n); }
static int faulty_free_bytes(const char *path, uint64_t *out) { return kv_disk_io_system.free_bytes(path, out); }
static int faulty_submit(aio_context_t c, struct iocb *r) { return at_disk ? -1 : kv_disk_io_system.submit(c, r); } /* whoever meets faults meets them in the calls */
static int faulty_collect(aio_context_t c, int least, int most, struct io_event *e) { return kv_disk_io_system.collect(c, least, most, e); }
const struct kv_disk_io kv_disk_io_faulty = {faulty_open, faulty_pread, faulty_pwrite, faulty_sync, faulty_allocate, faulty_punch, ftruncate, unlink, faulty_free_bytes, faulty_submit, faulty_collect};
