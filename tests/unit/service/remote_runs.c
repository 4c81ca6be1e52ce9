/* remote_runs.c — see remote_runs.h. */
#include "tests/unit/service/remote_runs.h"

#include "runtime/residency/disk.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct remote_store store = {.lock = PTHREAD_MUTEX_INITIALIZER};

int remote_find(const char *name)
{
    int i = 0;
    while (i < store.n && strcmp(store.object[i].name, name)) i++;
    return i;
}

static enum kv_status store_put(void *ctx, const char *name, const void *object, size_t n, const _Atomic bool *stop)
{
    (void)ctx;
    store.calls++;
    store.puts++;
    while (store.holds_puts && !*stop) usleep(200);
    if (store.fails || store.put_fails) return (enum kv_status)(store.fails ? store.fails : store.put_fails);
    pthread_mutex_lock(&store.lock);
    int i = remote_find(name);
    bool room = i < OBJECTS;
    if (room) {
        if (i == store.n) store.n++;
        strcpy(store.object[i].name, name);
        free(store.object[i].bytes);
        store.object[i].bytes = malloc(n);
        memcpy(store.object[i].bytes, object, n);
        store.object[i].n = n;
    }
    pthread_mutex_unlock(&store.lock);
    return room ? KV_OK : KV_NO_SPACE;
}

static enum kv_status store_get(void *ctx, const char *name, void *object, size_t cap, size_t *n, const _Atomic bool *stop)
{
    (void)ctx;
    store.calls++;
    store.gets++;
    *n = 0;
    if (store.holds) {
        store.held++;
        while (store.holds && !*stop) usleep(200);
        if (*stop) return KV_TRANSFER_CANCELLED;
    }
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    int i = remote_find(name);
    enum kv_status s = i == store.n ? KV_NOT_FOUND : store.object[i].n > cap ? KV_CHECKSUM_MISMATCH : KV_OK;
    if (s == KV_OK) memcpy(object, store.object[i].bytes, *n = store.object[i].n);
    pthread_mutex_unlock(&store.lock);
    return s;
}

static enum kv_status store_has(void *ctx, const char *name, const _Atomic bool *stop)
{
    (void)ctx, (void)stop;
    store.calls++;
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    bool there = remote_find(name) < store.n;
    pthread_mutex_unlock(&store.lock);
    return there ? KV_OK : KV_NOT_FOUND;
}

static enum kv_status store_erase(void *ctx, const char *name, const _Atomic bool *stop)
{
    (void)ctx, (void)stop;
    store.calls++;
    if (!store.erases++) store.puts_at_erase = store.puts;
    steady_clock_ahead_s += store.erase_s;
    if (store.slow) {
        store.held++;
        usleep(100000);
    }
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    int i = remote_find(name);
    bool there = i < store.n;
    if (there) {
        free(store.object[i].bytes);
        store.object[i] = store.object[--store.n];
        store.object[store.n].bytes = NULL;
    }
    pthread_mutex_unlock(&store.lock);
    return there ? KV_OK : KV_NOT_FOUND;
}

static enum kv_status store_facts(void *ctx, struct kv_remote_facts *out, const _Atomic bool *stop)
{
    (void)ctx, (void)stop;
    if (store.fails) return (enum kv_status)store.fails;
    pthread_mutex_lock(&store.lock);
    *out = (struct kv_remote_facts){.objects = (uint64_t)store.n, .capacity_bytes = 1};
    pthread_mutex_unlock(&store.lock);
    return KV_OK;
}
const struct kv_remote_io remote_io = {NULL, store_put, store_get, store_has, store_erase, store_facts};

/* ---------------------------------------------------------------- engines */

static char folder[64];

void remote_clear_folder(void)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(name);
    }
    if (d) closedir(d);
}

void remote_setup(void)
{
    snprintf(folder, sizeof folder, "%s/kvasir-remote-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (int)getpid());
    mkdir(folder, 0700);
    remote_clear_folder();
}

void remote_teardown(void)
{
    remote_clear_folder();
    rmdir(folder);
}

_Atomic int good_syncs = -1;
static int sync_some(int fd)
{
    if (good_syncs < 0 || good_syncs-- > 0) return fdatasync(fd);
    good_syncs = 0;
    errno = EIO;
    return -1;
}

struct kv_engine_config remote_config(uint64_t disk_bytes, uint64_t remote_bytes)
{
    static struct kv_disk_io disk_io;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    disk_io = kv_disk_io_system;
    disk_io.sync = sync_some;
    c.disk_io = &disk_io;
    c.remote_timeout_ms = TIMEOUT_S * 1000;
    c.n_threads = 2;
    c.prefix_reuse = false; /* what is found was read */
    c.disk_path = folder;
    c.disk_bytes = disk_bytes;
    c.disk_key[5] = 9;
    c.remote = &remote_io;
    c.remote_bytes = remote_bytes;
    c.remote_pause_ms = 3600000;
    return c;
}

struct kv_engine *remote_engine(uint64_t disk_bytes, uint64_t remote_bytes)
{
    struct kv_engine_config c = remote_config(disk_bytes, remote_bytes);
    return make_engine(&c);
}

void remote_turn(struct run *r, uint32_t seed, int32_t n, const char *session)
{
    run_init(r, seed, n, STEPS);
    r->request.tenant = "alpha";
    r->request.session = session;
    r->request.observe_prompt = false;
}

struct kv_tier_stats remote_tier(struct kv_engine *e)
{
    struct kv_engine_stats s;
    kv_engine_stats(e, &s);
    ck_assert_int_eq(s.n_tiers, 4);
    ck_assert_str_eq(s.tier[3].name, "remote");
    return s.tier[3];
}

int32_t remote_held(struct kv_engine *e, const char *session)
{
    struct kv_session_info info = {0};
    while (kv_engine_session(e, KV_SESSION_SHOW, "alpha", session, &info, NULL) != KV_OK || (info.state != KV_SESSION_PAUSED_HOST && info.state != KV_SESSION_TOKEN_ONLY)) continue;
    return info.held_blocks;
}

void remote_crowd_out(struct kv_engine *e, struct run *r)
{
    static const char *const others[] = {"o0", "o1", "o2", "o3", "o4", "o5", "o6", "o7", "o8", "o9", "o10", "o11"};
    remote_turn(r, 4, HISTORY, "s");
    run_all(e, r);
    for (uint32_t i = 0; remote_held(e, "s") > 0; i++) {
        ck_assert_uint_lt(i, sizeof others / sizeof *others);
        remote_turn(r, 100 + i, HISTORY, others[i]);
        run_all(e, r);
        (void)remote_held(e, others[i]);
    }
}

void remote_settle(struct kv_engine *e)
{
    while (remote_tier(e).scratch_bytes) usleep(200);
}

void remote_plain(struct run *r, int32_t n)
{
    struct kv_engine *e = make_engine(NULL);
    remote_turn(r, 4, n, NULL);
    run_all(e, r);
    kv_engine_destroy(e);
}
