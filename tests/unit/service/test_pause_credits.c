/* test_pause_credits.c — rows that come back from a swap hold credits, once, and are seen to wait for them; what saves hold is given back by pauses too. */
#include "runtime/residency/disk.h"
#include "runtime/residency/faults.h"
#include "runtime/service/pauses_internal.h"
#include "tests/unit/service/pause_runs.h"

#include <check.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Suite *suite_pause_credits(void);

enum { ANSWER = 60, LATE = 50 };

static struct {
    struct kv_engine *e;
    uint64_t bytes;
    bool reset;            /* the account, while the rows are on their way back */
    _Atomic bool held, gate, go; /* gate: reads of the disk wait until the credits were seen; go: so does whoever watches, late in its answer, until then */
} coming;

/* Decode thread, once an iteration. */
static void watch_credits(struct run *r, int32_t position)
{
    (void)r;
    while (position > LATE && !atomic_load(&coming.go)) sched_yield();
    struct kv_credit_view v;
    struct kv_credit_holder h[4];
    coming.e->pauses->bytes_per_s = 1; /* a slab an iteration, so that an iteration sees it */
    kv_credits_view(coming.e->credits, &v, h, 4, NULL, 0);
    for (int32_t i = 0; i < v.n_holders && i < 4; i++) {
        if (strcmp(h[i].what, "swap-in") || atomic_load(&coming.held)) continue;
        ck_assert_uint_eq(h[i].backend_bytes, coming.bytes);
        ck_assert_uint_eq(h[i].queue_slots, 1);
        if (coming.reset) kv_credits_reset(coming.e->credits);
        atomic_store(&coming.held, true);
    }
}

static ssize_t gated_read(int fd, void *buf, size_t n, off_t at)
{
    while (atomic_load(&coming.gate) && !atomic_load(&coming.held)) sched_yield();
    return kv_disk_io_system.pread(fd, buf, n, at);
}

/* What everybody else holds is given back, the account is reset before or while the rows move, or nobody waits any more; from memory and from disk. */
START_TEST(rows_that_come_back_hold_credits_once)
{
    enum { GIVEN_BACK, RESET_BEFORE, RESET_MEANWHILE, CANCELLED } how = _i % 4;
    bool from_disk = _i >= 4;
    struct run *r = calloc(4, sizeof *r);
    char dir[] = "/tmp/kvasir-pauses-XXXXXX", command[64];
    struct kv_disk_io io = kv_disk_io_system;
    struct kv_engine_config c;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    kv_engine_config_default(&c);
    c.prefix_reuse = false;
    io.pread = gated_read;
    if (from_disk) c.disk_path = dir, c.disk_bytes = 64 << 20, c.disk_io = &io;
    memset(&coming, 0, sizeof coming);
    struct kv_engine *e = coming.e = make_engine(&c);
    coming.reset = how == RESET_MEANWHILE;
    pause_prepare(&r[0], 0);
    r[0].request.max_tokens = ANSWER;
    r[0].request.session = NULL; /* it leaves nothing on disk, whose reading could be found too dear a second time */
    run_all(e, &r[0]);
    struct kv_pause_view v;
    pause_prepare(&r[1], 0);
    r[1].request.max_tokens = ANSWER;
    pause_after(e, &r[1], 5, KV_PAUSE_SWAP, &v);
    while (v.state != KV_SESSION_PAUSED_HOST) ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    coming.bytes = v.swapped_bytes;
    struct kv_credit_view before, now;
    struct kv_credit_holder h[2];
    kv_credits_view(e->credits, &before, NULL, 0, NULL, 0);
    ck_assert_int_eq(before.n_holders, 0);
    ck_assert_uint_eq(before.used[KV_CREDIT_LINK], 0);

    struct kv_credit_ask all_of_it = {.request = 999, .what = "layerwise", .backend_bytes = before.total[KV_CREDIT_LINK]};
    struct kv_credit_ticket hog;
    ck_assert_int_eq(kv_credits_reserve(e->credits, &all_of_it, 0, &hog, NULL, NULL), KV_OK);
    static int32_t all[RUN_MAX];
    struct kv_request q;
    pause_continue(e, &r[1], &v, all, &q);
    q.max_tokens = ANSWER - v.n_spoken;
    kv_stream_close(r[1].stream);
    run_init(&r[3], 3, 20, RUN_MAX - 100); /* a mate, by whose tokens the account is watched */
    r[3].at = watch_credits;
    atomic_store(&coming.gate, true);
    r[2].request = q;
    run_begin(e, &r[2]);
    do kv_credits_view(e->credits, &now, NULL, 0, h, 2);
    while (now.n_waiters == 0 && !sched_yield());
    ck_assert_str_eq(h[0].what, "swap-in");
    ck_assert_int_eq(h[0].lacks, KV_CREDIT_PINNED);
    run_begin(e, &r[3]);
    run_read(&r[3], 20); /* iterations in which it is not tried in vain */
    kv_credits_view(e->credits, &now, NULL, 0, NULL, 0);
    ck_assert_uint_le(now.refused, before.refused + 2);
    ck_assert_int_eq(now.n_waiters, 1);
    if (how == CANCELLED) kv_stream_cancel(r[2].stream);
    else if (how == RESET_BEFORE) kv_credits_reset(e->credits);
    else ck_assert_int_eq(kv_credits_release(e->credits, &hog), KV_OK);
    atomic_store(&coming.go, true);
    run_end(&r[2]);
    kv_stream_cancel(r[3].stream);
    run_end(&r[3]);
    if (how == CANCELLED) ck_assert_int_eq(r[2].n, 0);
    else ck_assert_int_eq(r[2].n, ANSWER - v.n_spoken);
    for (int32_t i = 0; i < r[2].n; i++) ck_assert_int_eq(r[2].ids[i], r[0].ids[v.n_spoken + i]);
    ck_assert_int_eq(atomic_load(&coming.held), how != CANCELLED);
    kv_credits_view(e->credits, &now, NULL, 0, NULL, 0);
    ck_assert_int_eq(now.n_holders + now.n_waiters, how == CANCELLED);
    ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_NOT_FOUND);
    if (how == CANCELLED || how == RESET_BEFORE) ck_assert_int_eq(kv_credits_release(e->credits, &hog), how == CANCELLED ? KV_OK : KV_STALE_CREDIT);
    kv_credits_view(e->credits, &now, NULL, 0, NULL, 0);
    for (int k = 0; k < KV_CREDIT_KINDS; k++) ck_assert_uint_eq(now.used[k], 0);
    ck_assert_uint_eq(now.stale, how == RESET_BEFORE || how == RESET_MEANWHILE);
    ck_assert_uint_eq(now.reserved, now.released + now.stale);
    struct kv_engine_stats st;
    do kv_engine_stats(e, &st);
    while (st.reserved_bytes);
    kv_engine_destroy(e);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
    free(r);
}
END_TEST

/* The account of what saves hold is a pause's too: once it had moved to disk, no turn was kept any more. */
START_TEST(turns_are_kept_after_a_swap_to_disk)
{
    struct run *r = calloc(2, sizeof *r);
    char dir[] = "/tmp/kvasir-pauses-XXXXXX", command[64];
    struct kv_engine_config c;
    struct kv_session_info info = {0};
    struct kv_pause_view v;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    kv_engine_config_default(&c);
    c.disk_path = dir, c.disk_bytes = 64 << 20;
    struct kv_engine *e = make_engine(&c);
    pause_prepare(&r[0], 0);
    pause_after(e, &r[0], 5, KV_PAUSE_SWAP, &v);
    while (v.state != KV_SESSION_PAUSED_HOST) ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    ck_assert_uint_eq(e->saving_bytes, 0);
    kv_stream_close(r[0].stream);
    pause_prepare(&r[1], 1);
    r[1].request.session = "s-2";
    r[1].request.max_tokens = ANSWER;
    run_all(e, &r[1]);
    do (void)kv_engine_session(e, KV_SESSION_SHOW, "acme", "s-2", &info, NULL);
    while (info.state != KV_SESSION_PAUSED_HOST && info.state != KV_SESSION_TOKEN_ONLY);
    ck_assert_int_eq(info.blocks, (PROMPT + ANSWER - 1) / KV_BLOCK_ROWS);
    kv_engine_destroy(e);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
    free(r);
}
END_TEST

/* A continuation whose candidate moves its rows holds credits for all of them from its admission on: it would wait for itself. From memory and from disk. */
START_TEST(a_continuation_does_not_wait_for_credits_it_holds)
{
    struct run *r = calloc(3, sizeof *r);
    char dir[] = "/tmp/kvasir-pauses-XXXXXX", command[64];
    const struct kv_weights *w = kv_model_weights(demo_model());
    struct kv_engine_config c;
    struct kv_pause_view v;
    struct kv_request_stats st;
    struct kv_credit_view now;
    struct kv_credit_holder h[1];
    bool served = false;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    kv_engine_config_default(&c);
    c.prefix_reuse = false;
    c.link_window_bytes = (PROMPT + ANSWER + KV_BLOCK_ROWS - 1) / KV_BLOCK_ROWS * (uint64_t)w->n_layers * kv_slab_bytes(KV_ROW_TYPE, w->n_kv_heads, w->d_head);
    if (_i) c.disk_path = dir, c.disk_bytes = 64 << 20;
    struct kv_engine *e = make_engine(&c);
    pause_prepare(&r[0], 0);
    r[0].request.max_tokens = ANSWER;
    r[0].request.session = NULL;
    run_all(e, &r[0]);
    pause_prepare(&r[1], 0);
    r[1].request.max_tokens = ANSWER;
    pause_after(e, &r[1], 5, KV_PAUSE_SWAP, &v);
    while (v.state != KV_SESSION_PAUSED_HOST) ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    install(e, "layerwise", NULL, 0, false);
    static int32_t all[RUN_MAX];
    pause_continue(e, &r[1], &v, all, &r[2].request);
    kv_stream_close(r[1].stream);
    r[2].request.max_tokens = ANSWER - v.n_spoken;
    assign(e, &r[2], KV_EXACT);
    run_begin(e, &r[2]);
    do {
        kv_credits_view(e->credits, &now, h, 1, NULL, 0);
        served |= now.n_holders == 1 && !strcmp(h[0].what, "layerwise");
        ck_assert_msg(!now.n_waiters, "nobody else is there, and it waits");
        kv_stream_stats(r[2].stream, &st);
    } while (st.finish == KV_RUNNING && !sched_yield());
    run_end(&r[2]);
    ck_assert(served);
    ck_assert_int_eq(r[2].n, ANSWER - v.n_spoken);
    for (int32_t i = 0; i < r[2].n; i++) ck_assert_int_eq(r[2].ids[i], r[0].ids[v.n_spoken + i]);
    kv_credits_view(e->credits, &now, NULL, 0, NULL, 0);
    ck_assert_int_eq(now.n_holders + now.n_waiters, 0);
    ck_assert_uint_eq(now.stale, 0);
    kv_engine_destroy(e);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
    free(r);
}
END_TEST

/* The baseline moves its rows too where a fault of transfers is armed: who pauses then moves none any more. */
START_TEST(who_is_paused_holds_no_credits_of_its_steps)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_config c;
    struct kv_pause_view v;
    struct kv_credit_view now;
    struct kv_faults *faults;
    struct kv_error err = {0};
    ck_assert_int_eq(kv_faults_create(&faults), KV_OK);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_completion_after_cancel, 1, &(struct kv_fault_scope){.tenant = "acme"}, &err), KV_OK);
    kv_engine_config_default(&c);
    c.faults = faults;
    struct kv_engine *e = make_engine(&c);
    pause_prepare(r, 0);
    pause_after(e, r, 5, KV_PAUSE_PRESERVE, &v);
    kv_credits_view(e->credits, &now, NULL, 0, NULL, 0);
    ck_assert_uint_eq(now.reserved, 1);
    ck_assert_int_eq(now.n_holders, 0);
    kv_stream_close(r->stream);
    kv_engine_destroy(e);
    kv_faults_destroy(faults);
    free(r);
}
END_TEST

Suite *suite_pause_credits(void)
{
    Suite *s = suite_create("pause_credits");
    TCase *t = tcase_create("pause_credits");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, rows_that_come_back_hold_credits_once, 0, 8);
    tcase_add_loop_test(t, a_continuation_does_not_wait_for_credits_it_holds, 0, 2);
    tcase_add_test(t, who_is_paused_holds_no_credits_of_its_steps);
    tcase_add_test(t, turns_are_kept_after_a_swap_to_disk);
    suite_add_tcase(s, t);
    return s;
}
