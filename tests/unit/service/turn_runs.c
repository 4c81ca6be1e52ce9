/* turn_runs.c — see turn_runs.h. */
#include "tests/unit/service/turn_runs.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void turn_setup(void)
{
    tier_folder_make("turns");
}

void turn_teardown(void)
{
    tier_folder_remove();
}

struct kv_engine *turn_engine(uint64_t disk_bytes, const struct kv_disk_io *io)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.prefix_reuse = false; /* what is found was read */
    c.disk_path = tier_folder;
    c.disk_bytes = disk_bytes;
    c.disk_io = io;
    c.disk_key[5] = 9;
    return make_engine(&c);
}

/* Prompt: the first n tokens of a fixed text. */
void turn_init(struct run *r, int32_t n, const char *tenant, const char *session)
{
    run_init(r, 4, n, STEPS);
    r->request.tenant = tenant;
    r->request.session = session;
    r->request.observe_prompt = false;
}

void turn_plain(struct run *r, int32_t n)
{
    struct kv_engine *e = make_engine(NULL);
    turn_init(r, n, "alpha", NULL);
    run_all(e, r);
    kv_engine_destroy(e);
}

struct kv_turn_stats turn_stats(struct kv_engine *e)
{
    struct kv_engine_stats s;
    kv_engine_stats(e, &s);
    ck_assert_str_eq(s.tier[2].name, "disk");
    ck_assert_uint_eq(s.tier[2].bytes_in, s.tier[2].bytes_out + s.tier[2].persistent_bytes);
    ck_assert_uint_le(s.tier[2].used_bytes, s.tier[2].capacity_bytes);
    for (int t = 0; t < 2; t++) {
        ck_assert_uint_ge(s.tier[t].bytes_in, s.tier[t].bytes_out);
        ck_assert_uint_le(s.tier[t].used_bytes, s.tier[t].capacity_bytes);
    }
    ck_assert_str_eq(s.tier[1].name, "host");
    ck_assert_uint_eq(s.tier[1].bytes_in, s.tier[1].bytes_out + s.tier[1].used_bytes);
    ck_assert_uint_eq(s.tier[1].used_bytes, s.tier[1].persistent_bytes + s.tier[1].staging_bytes);
    ck_assert_uint_eq(s.tier[1].pinned_bytes, 0); /* there is no device to pin for */
    ck_assert(!s.turns.restores || s.tier[2].scratch_bytes > 0);
    ck_assert(!s.tier[2].failures == !s.tier[2].last_failure_us && !s.tier[2].failures == (s.tier[2].last_failure == KV_OK));
    return s.turns;
}

/* The turn's save is over: a state, not a time, is waited for. */
void turn_await_saved(struct kv_engine *e, const char *session)
{
    struct kv_session_info info = {0};
    struct kv_error err;
    while (kv_engine_session(e, KV_SESSION_SHOW, "alpha", session, &info, &err) != KV_OK || info.state != KV_SESSION_PAUSED_HOST) continue;
}

void turn_first(const char *tenant, const char *session, int32_t n)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = turn_engine(256 << 20, NULL);
    turn_init(r, n, tenant, session);
    run_all(e, r);
    kv_engine_destroy(e); /* saves that were begun are finished */
    free(r);
}

_Atomic int reads_left, writes_left;

ssize_t failing_pread(int fd, void *buf, size_t n, off_t at)
{
    if (atomic_fetch_sub(&reads_left, 1) > 0) return pread(fd, buf, n, at);
    errno = EIO;
    return -1;
}

ssize_t failing_pwrite(int fd, const void *buf, size_t n, off_t at)
{
    if (atomic_fetch_sub(&writes_left, 1) > 0) return pwrite(fd, buf, n, at);
    errno = ENOSPC;
    return -1;
}

void turn_say(struct kv_engine *e, uint32_t text, const char *tenant, const char *session)
{
    struct run *r = calloc(1, sizeof *r);
    run_init(r, text, 400, 2);
    r->request.tenant = tenant;
    r->request.session = session;
    r->request.observe_prompt = false;
    run_all(e, r);
    free(r);
}
