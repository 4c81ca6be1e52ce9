/* test_pauses.c — waste and joint decisions, results exactly once, and requests of the engine that pause, move, go on, and lose no bit by it. */
#include "runtime/residency/disk.h"
#include "runtime/service/pauses_internal.h"
#include "tests/unit/service/pause_runs.h"

#include <check.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Suite *suite_pauses(void);

#define GIB 1073741824.0

/* ---------------------------------------------------------------- decisions */

/* The contract's worked case: 2048 of 6144 tokens, 32 MiB, 20 GiB/s and 0.1 ms. */
static struct kv_pause_costs worked(void)
{
    return (struct kv_pause_costs){.bytes_per_token = 16384, .swap_bytes_per_s = 20 * GIB, .swap_fixed_us = 100, .other_tokens = 4096, .us_per_row = 1.7, .chunk_rows = 2048};
}

START_TEST(waste_is_the_contracts)
{
    struct kv_pause_costs c = worked();
    struct kv_pause_waste w;
    kv_pause_waste_of(&c, 2048, 0, &w);
    ck_assert_double_eq_tol(w.swap, 334705459.2, 0.1);
    ck_assert_double_eq(w.preserve, 0);
    kv_pause_waste_of(&c, 2048, 10000, &w);
    ck_assert_double_eq_tol(w.preserve, 10 * 2048 * 16384.0, 1e-3);
    /* T_INT* makes both equal, whatever the chunks. */
    for (int32_t chunk = 1; chunk < 4096; chunk = chunk * 3 + 1) {
        c.chunk_rows = chunk;
        kv_pause_waste_of(&c, 2048, (int64_t)kv_pause_crossing_us(&c, 2048), &w);
        ck_assert_double_eq_tol(w.preserve / w.discard, 1, 1e-3);
    }
    /* 0.58 ms a row gives the crossing of 8.7 ms: half of T_fwd, and all of it for twice the context. */
    c.us_per_row = 8700.0 / 2.5 / 2048;
    ck_assert_double_eq_tol(kv_pause_crossing_us(&c, 2048), 8700, 1e-6);
    ck_assert_int_eq(kv_swap_tokens(800, 20 * GIB, 0, 16384), 1048);
    ck_assert_int_eq(kv_recompute_rows(6144, 4096), 2048);
    ck_assert_int_eq(kv_recompute_rows(4096, 6144), 0);
}
END_TEST

START_TEST(a_pause_is_preserved_until_it_ages)
{
    struct kv_pause_costs c = worked();
    c.hidden_share = 0.9;
    struct kv_pause_choice p = {.tokens = 2048, .elapsed_us = 100, .can_swap = true};
    kv_pause_decide(&c, &p, 1, UINT64_MAX);
    ck_assert_int_eq(p.action, KV_PAUSE_PRESERVE);
    p.elapsed_us = 60000000;
    kv_pause_decide(&c, &p, 1, UINT64_MAX);
    ck_assert_int_eq(p.action, KV_PAUSE_SWAP);
    kv_pause_decide(&c, &p, 1, 2048 * 16384 - 1); /* the budget does not hold it */
    ck_assert_int_eq(p.action, KV_PAUSE_DISCARD);
    p.can_swap = false;
    kv_pause_decide(&c, &p, 1, UINT64_MAX);
    ck_assert_int_eq(p.action, KV_PAUSE_DISCARD);
}
END_TEST

START_TEST(the_budget_goes_to_the_greatest_potential)
{
    struct kv_pause_costs c = worked();
    c.us_per_row = 500; /* computing again is dear */
    c.hidden_share = 0.95;
    struct kv_pause_choice p[4];
    for (int i = 0; i < 4; i++) p[i] = (struct kv_pause_choice){.tokens = 1000 + 500 * i, .elapsed_us = 5000000, .can_swap = true};
    kv_pause_decide(&c, p, 4, (uint64_t)(2500 + 2000) * 16384);
    ck_assert_int_eq(p[3].action, KV_PAUSE_SWAP);
    ck_assert_int_eq(p[2].action, KV_PAUSE_SWAP);
    ck_assert_int_ne(p[1].action, KV_PAUSE_SWAP);
    ck_assert_int_ne(p[0].action, KV_PAUSE_SWAP);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(p[i].action, p[i].waste.preserve <= p[i].waste.discard ? KV_PAUSE_PRESERVE : KV_PAUSE_DISCARD);
}
END_TEST

/* ---------------------------------------------------------------- results */

START_TEST(results_move_along_the_drawing_only)
{
    int moves = 0;
    for (int a = 0; a < KV_RESULT_STATE_COUNT; a++)
        for (int b = 0; b < KV_RESULT_STATE_COUNT; b++) {
            enum kv_result_state s = (enum kv_result_state)a;
            bool may = kv_result_move(&s, (enum kv_result_state)b) == KV_OK;
            ck_assert_int_eq(s, may ? b : a);
            moves += may;
        }
    ck_assert_int_eq(moves, 7);
    enum kv_result_state s = KV_RESULT_RESULT_APPEND_COMMITTED;
    ck_assert_int_eq(kv_result_move(&s, KV_RESULT_RETRYABLE), KV_ILLEGAL_TRANSITION); /* what is committed stays so */
}
END_TEST

START_TEST(an_offer_is_applied_once_or_refused_by_name)
{
    struct kv_result_key bound = {"call-1", "r-1", 4, {1}}, same = bound, other = bound, late = bound, digest = bound;
    struct kv_error err;
    enum kv_result_answer a;
    for (int s = 0; s < KV_RESULT_STATE_COUNT; s++) {
        enum kv_result_state state = (enum kv_result_state)s;
        strcpy(other.result_id, "r-2");
        digest.digest[0] = 2;
        late.pause_epoch = 3;
        ck_assert_int_eq(kv_result_offer(&bound, state, &same, &a, &err), KV_OK);
        ck_assert_int_eq(a, state == KV_RESULT_APPLIED ? KV_RESULT_NOOP : state == KV_RESULT_RESULT_APPEND_COMMITTED ? KV_RESULT_FINALIZE : KV_RESULT_GO_ON);
        ck_assert_int_eq(kv_result_offer(&bound, state, &late, &a, &err), KV_STALE_PAUSE_EPOCH);
        ck_assert_int_eq(kv_result_offer(&bound, state, &other, &a, &err), state == KV_RESULT_UNSEEN ? KV_OK : KV_COMPETING_RESULT);
        ck_assert_int_eq(kv_result_offer(&bound, state, &digest, &a, &err), state == KV_RESULT_UNSEEN ? KV_OK : KV_COMPETING_RESULT);
    }
    struct kv_result_key elsewhere = bound;
    strcpy(elsewhere.call_id, "call-2");
    ck_assert_int_eq(kv_result_offer(&bound, KV_RESULT_UNSEEN, &elsewhere, &a, &err), KV_NOT_FOUND);
}
END_TEST

/* ---------------------------------------------------------------- the engine */

static void text_of(struct kv_stream *s, struct run *r, char *text, size_t cap)
{
    enum kv_finish finish = KV_RUNNING;
    while (finish == KV_RUNNING) {
        struct kv_chunk c[8];
        int32_t got;
        ck_assert_int_eq(kv_stream_read(s, c, 8, 20000, &got, &finish), KV_OK);
        for (int32_t i = 0; i < got; i++) {
            r->ids[r->n++] = c[i].token;
            strncat(text, c[i].text, cap - strlen(text) - 1);
        }
        if (got == 8 && finish != KV_RUNNING) finish = KV_RUNNING;
    }
    char tail[256];
    kv_stream_tail(s, tail, sizeof tail);
    strncat(text, tail, cap - strlen(text) - 1);
    kv_stream_stats(s, &r->stats);
    kv_stream_close(s);
}

START_TEST(a_pause_changes_no_bit)
{
    static const enum kv_pause_action actions[] = {KV_PAUSE_AUTO, KV_PAUSE_PRESERVE, KV_PAUSE_SWAP, KV_PAUSE_DISCARD};
    static const enum kv_session_state at_once[] = {KV_SESSION_PAUSED_GPU, KV_SESSION_PAUSED_GPU, KV_SESSION_SWAPPING_OUT, KV_SESSION_TOKEN_ONLY};
    int sampled = _i / 4;
    struct run *r = calloc(4, sizeof *r);
    static char whole[65536], first[65536], second[65536];
    *whole = *first = *second = 0;
    struct kv_engine *e = make_engine(NULL);
    pause_prepare(&r[0], sampled);
    run_begin(e, &r[0]);
    text_of(r[0].stream, &r[0], whole, sizeof whole);
    ck_assert_int_eq(r[0].n, STEPS);

    struct kv_pause_view v;
    struct kv_error err = {0};
    pause_prepare(&r[1], sampled);
    pause_stand(e, &r[1], 5);
    struct kv_request_stats st;
    do kv_stream_stats(r[1].stream, &st);
    while (st.n_published < 5);
    ck_assert_msg(kv_engine_pause(e, "acme", "s-1", actions[_i % 4], &v, &err) == KV_OK, "%s", err.message);
    ck_assert_int_eq(v.state, at_once[_i % 4]);
    ck_assert_int_eq(kv_engine_pause(e, "acme", "s-1", KV_PAUSE_AUTO, &(struct kv_pause_view){0}, &err), KV_ALREADY_PAUSED);
    text_of(r[1].stream, &r[1], first, sizeof first);
    ck_assert_int_eq(r[1].stats.finish, KV_FINISH_PAUSED);
    ck_assert_int_eq(r[1].n, v.n_spoken);
    ck_assert_int_lt(r[1].n, STEPS);
    if (actions[_i % 4] == KV_PAUSE_SWAP)
        while (v.state != KV_SESSION_PAUSED_HOST) ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    ck_assert_int_eq(v.held_bytes == 0, actions[_i % 4] == KV_PAUSE_SWAP || actions[_i % 4] == KV_PAUSE_DISCARD);

    static int32_t all[RUN_MAX];
    pause_prepare(&r[2], sampled);
    struct kv_request q;
    pause_continue(e, &r[2], &v, all, &q);
    struct kv_stream *s;
    ck_assert_msg(kv_engine_submit(e, &q, &s, &err) == KV_OK, "%s", err.message);
    text_of(s, &r[2], second, sizeof second);
    ck_assert_int_eq(r[1].n + r[2].n, STEPS);
    for (int32_t i = 0; i < STEPS; i++) ck_assert_msg(r[0].ids[i] == (i < r[1].n ? r[1].ids[i] : r[2].ids[i - r[1].n]), "token %d differs after %d", i, r[1].n);
    strcat(first, second);
    ck_assert_str_eq(first, whole);
    ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_NOT_FOUND);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(rows_changed_while_out_are_computed_again)
{
    struct run *r = calloc(3, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    pause_prepare(&r[0], 0);
    run_all(e, &r[0]);
    pause_prepare(&r[1], 0);
    struct kv_pause_view v;
    pause_after(e, &r[1], 5, KV_PAUSE_SWAP, &v);
    while (v.state != KV_SESSION_PAUSED_HOST) ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    kv_pauses_spoil(e, v.request);
    static int32_t all[RUN_MAX];
    struct kv_request q;
    pause_continue(e, &r[1], &v, all, &q);
    kv_stream_close(r[1].stream);
    r[2] = r[1];
    r[2].n = 0;
    r[2].request = q;
    run_all(e, &r[2]);
    for (int32_t i = 0; i < r[2].n; i++) ck_assert_int_eq(r[2].ids[i], r[0].ids[v.n_spoken + i]);
    ck_assert_int_eq(r[2].n, STEPS - v.n_spoken);
    struct kv_sample samples[64];
    size_t n, failures = 0;
    while ((n = kv_engine_samples(e, samples, 64)))
        for (size_t i = 0; i < n; i++) failures += samples[i].kind == KV_SAMPLE_FAILURE && samples[i].status == KV_CHECKSUM_MISMATCH;
    ck_assert_uint_eq(failures, 1);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- what an iteration moves */

static struct {
    uint64_t moved_bytes, iterations, slab_bytes;
    bool slowly, called_back; /* slowly: a slab an iteration, as where copies are slow; called back: on the way out, which waits for it */
    _Atomic bool over, submitted;
} watched;

/* Decode thread, once an iteration: a mate that decodes in each. */
static void watch_cap(struct run *r, int32_t position)
{
    (void)position;
    struct kv_pauses *ps = ((struct kv_engine *)r->ctx)->pauses;
    uint64_t most = ps->cap_bytes > watched.slab_bytes ? ps->cap_bytes : watched.slab_bytes;
    if (watched.slowly) ps->bytes_per_s = 1;
    if (ps->n == 0) return;
    watched.iterations++;
    watched.moved_bytes += ps->moved_bytes;
    if (ps->moved_bytes > most) atomic_store(&watched.over, true);
    while (watched.called_back && !atomic_load(&watched.submitted)) sched_yield();
}

/* Out in parts no larger than the cap, and back so too, at the speed of this machine and slab by slab; or called back on the way out, when nothing is
 * copied twice. */
START_TEST(a_movement_keeps_to_its_cap)
{
    struct run *r = calloc(3, sizeof *r);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.prefix_reuse = false;
    struct kv_engine *e = make_engine(&c);
    const struct kv_weights *w = kv_model_weights(demo_model());
    memset(&watched, 0, sizeof watched);
    watched.slowly = _i > 0;
    watched.called_back = _i == 2;
    watched.slab_bytes = kv_slab_bytes(KV_ROW_TYPE, w->n_kv_heads, w->d_head);
    run_init(&r[0], 3, 20, RUN_MAX - 100);
    r[0].at = watch_cap;
    r[0].ctx = e;
    run_begin(e, &r[0]);
    run_read(&r[0], 2);
    run_init(&r[1], 9, 900, STEPS);
    r[1].request.tenant = "acme";
    r[1].request.session = "s-1";
    struct kv_pause_view v;
    pause_after(e, &r[1], 5, KV_PAUSE_SWAP, &v);
    ck_assert_int_eq(v.state, KV_SESSION_SWAPPING_OUT);
    while (!watched.called_back && v.state != KV_SESSION_PAUSED_HOST) ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    static int32_t all[RUN_MAX];
    struct kv_request q;
    pause_continue(e, &r[1], &v, all, &q);
    kv_stream_close(r[1].stream);
    r[2].request = q;
    run_begin(e, &r[2]);
    atomic_store(&watched.submitted, true);
    run_read(&r[2], 1);
    ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_NOT_FOUND);
    kv_stream_cancel(r[2].stream);
    kv_stream_cancel(r[0].stream);
    run_end(&r[2]);
    run_end(&r[0]);
    kv_engine_destroy(e);
    uint64_t session = watched.slab_bytes * (uint64_t)w->n_layers * (uint64_t)((v.rows + KV_BLOCK_ROWS - 1) / KV_BLOCK_ROWS);
    ck_assert(!atomic_load(&watched.over));
    if (watched.slowly) ck_assert_uint_gt(watched.iterations, session / watched.slab_bytes / 2);
    ck_assert_uint_le(watched.moved_bytes, watched.called_back ? session : 2 * session);
    ck_assert_uint_gt(watched.moved_bytes, 0);
    free(r);
}
END_TEST

static struct {
    struct kv_disk_io io;
    pthread_t decode;
    _Atomic int calls, on_decode;
} disk;

static void count_call(void)
{
    atomic_fetch_add(&disk.calls, 1);
    if (pthread_equal(pthread_self(), disk.decode)) atomic_fetch_add(&disk.on_decode, 1);
}

static ssize_t counted_read(int fd, void *buf, size_t n, off_t at)
{
    count_call();
    return kv_disk_io_system.pread(fd, buf, n, at);
}

static ssize_t counted_write(int fd, const void *buf, size_t n, off_t at)
{
    count_call();
    return kv_disk_io_system.pwrite(fd, buf, n, at);
}

static int counted_sync(int fd)
{
    count_call();
    return kv_disk_io_system.sync(fd);
}

/* To disk, and back in the same engine or in another one, as after a crash: nothing of the pause is left there but tokens and blocks. */
START_TEST(rows_come_back_from_disk)
{
    struct run *r = calloc(3, sizeof *r);
    char dir[] = "/tmp/kvasir-pauses-XXXXXX", command[64];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.prefix_reuse = false; /* or the rows would be found in the arena */
    struct kv_engine *e = make_engine(&c);
    pause_prepare(&r[0], 1);
    run_all(e, &r[0]);
    kv_engine_destroy(e);
    c.disk_path = dir;
    c.disk_bytes = 64 << 20;
    c.disk_key[3] = 9;
    disk.io = kv_disk_io_system;
    disk.io.pread = counted_read, disk.io.pwrite = counted_write, disk.io.sync = counted_sync;
    c.disk_io = &disk.io;
    e = make_engine(&c);
    disk.decode = e->thread;
    struct kv_pause_view v;
    pause_prepare(&r[1], 1);
    pause_after(e, &r[1], 5, KV_PAUSE_SWAP, &v);
    while (v.state != KV_SESSION_PAUSED_HOST) ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    ck_assert_uint_eq(v.held_bytes, 0);
    ck_assert_int_eq(v.rows % 64, 0);
    static int32_t all[RUN_MAX];
    struct kv_request q;
    pause_continue(e, &r[1], &v, all, &q);
    kv_stream_close(r[1].stream);
    if (_i) {
        kv_engine_destroy(e);
        e = make_engine(&c);
        disk.decode = e->thread;
    }
    r[2].request = q;
    run_all(e, &r[2]);
    ck_assert_int_eq(r[2].n, STEPS - v.n_spoken);
    for (int32_t i = 0; i < r[2].n; i++) ck_assert_msg(r[2].ids[i] == r[0].ids[v.n_spoken + i], "token %d differs", i);
    ck_assert_int_eq(r[2].stats.n_reused, v.rows);
    kv_engine_destroy(e);
    ck_assert_int_gt(atomic_load(&disk.calls), 2);
    ck_assert_int_eq(atomic_load(&disk.on_decode), 0); /* the decode thread waits for no disk */
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
    free(r);
}
END_TEST

static struct {
    int32_t at;
    _Atomic bool there, gone;
} reader;

static void wait_until_gone(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    (void)ctx, (void)logits, (void)n_vocab;
    if (position != reader.at) return;
    atomic_store(&reader.there, true);
    while (!atomic_load(&reader.gone)) sched_yield();
}

/* The reader goes in the iteration whose token completes the text that pauses. */
START_TEST(a_pause_that_nobody_hears_of_keeps_nothing)
{
    struct run *r = calloc(2, sizeof *r);
    char text[4096] = "", marker[16];
    int32_t n = 0;
    struct kv_engine *e = make_engine(NULL);
    pause_prepare(&r[0], 1);
    run_begin(e, &r[0]);
    for (enum kv_finish finish = KV_RUNNING; finish == KV_RUNNING && n < 100;) {
        struct kv_chunk c;
        int32_t got;
        ck_assert_int_eq(kv_stream_read(r[0].stream, &c, 1, 20000, &got, &finish), KV_OK);
        strncat(text, c.text, sizeof text - strlen(text) - 1);
        n += got;
        size_t len = strlen(text);
        if (n < 20 || len < 12) continue;
        strcpy(marker, text + len - 8);
        if (c.n_text > 0 && strstr(text, marker) == text + len - 8) break; /* this token completes it for the first time */
    }
    ck_assert_int_lt(n, 100);
    kv_stream_close(r[0].stream);
    pause_prepare(&r[1], 1);
    reader.at = PROMPT + n - 2;
    atomic_store(&reader.there, false);
    atomic_store(&reader.gone, false);
    r[1].request.observe = wait_until_gone;
    r[1].request.observe_prompt = false;
    r[1].request.stop[0] = marker;
    r[1].request.pause_at_stop = true;
    run_begin(e, &r[1]);
    while (!atomic_load(&reader.there)) sched_yield();
    kv_stream_close(r[1].stream);
    atomic_store(&reader.gone, true);
    struct kv_engine_stats st;
    do kv_engine_stats(e, &st);
    while (st.reserved_bytes || st.active || st.queued);
    struct kv_pause_view v;
    ck_assert_int_eq(kv_engine_paused_list(e, &v, 1), 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* Nobody else runs, and nobody asks: the engine looks at the pause again by itself. */
START_TEST(a_pause_ages_in_an_idle_engine)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    struct kv_pause_view v;
    pause_prepare(r, 0);
    pause_after(e, r, 5, KV_PAUSE_AUTO, &v);
    ck_assert_int_eq(v.state, KV_SESSION_PAUSED_GPU);
    while (v.state == KV_SESSION_PAUSED_GPU || v.state == KV_SESSION_SWAPPING_OUT) ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    ck_assert_uint_eq(v.held_bytes, 0);
    ck_assert_uint_ge(v.revisions, 1);
    kv_stream_close(r->stream);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* Refused, and the request goes on as if nobody had asked. */
START_TEST(a_prompt_in_work_is_not_paused)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.prefill_chunk = 16;
    c.prefix_reuse = false;
    struct kv_engine *e = make_engine(&c);
    struct kv_pause_view v;
    struct kv_error err;
    enum kv_status st;
    for (int i = 0; i < 2; i++) {
        run_init(&r[i], 4, 1400, 20);
        r[i].request.observe = NULL;
        r[i].request.tenant = "acme";
        r[i].request.session = "s-1";
    }
    run_all(e, &r[0]);
    pause_stand_at(e, &r[1], 100);
    run_begin(e, &r[1]);
    while ((st = kv_engine_pause(e, "acme", "s-1", KV_PAUSE_SWAP, &v, &err)) == KV_NOT_FOUND) continue; /* it waits in the queue */
    pause_go(); /* it may have been asked before it stood */
    ck_assert_int_eq(st, KV_PAUSE_IN_PREFILL);
    ck_assert_int_eq(kv_engine_paused_list(e, &v, 1), 0);
    run_end(&r[1]);
    ck_assert_int_eq(r[1].stats.finish, KV_FINISH_LENGTH);
    for (int32_t i = 0; i < 20; i++) ck_assert_int_eq(r[1].ids[i], r[0].ids[i]);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(a_pause_that_lasts_too_long_is_given_up)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.max_pause_us = 100000;
    struct kv_engine *e = make_engine(&c);
    struct kv_pause_view v;
    pause_prepare(r, 0);
    pause_after(e, r, 5, _i ? KV_PAUSE_SWAP : KV_PAUSE_PRESERVE, &v);
    int64_t paused_us = v.paused_us;
    while (kv_engine_paused(e, v.request, &v) == KV_OK) continue;
    ck_assert_int_ge(kv_engine_now_us() - paused_us, 100000);
    struct kv_engine_stats s;
    kv_stream_close(r->stream);
    do kv_engine_stats(e, &s);
    while (s.reserved_bytes);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(what_cannot_be_paused_is_refused_by_name)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    struct kv_pause_view v;
    struct kv_error err;
    ck_assert_int_eq(kv_engine_pause(e, "acme", "s-1", KV_PAUSE_AUTO, &v, &err), KV_NOT_FOUND);
    ck_assert_int_eq(kv_engine_pause(e, "acme", "", KV_PAUSE_AUTO, &v, &err), KV_BAD_ARGUMENT);
    pause_prepare(r, 0);
    pause_after(e, r, 2, KV_PAUSE_AUTO, &v);
    ck_assert_int_eq(kv_engine_pause(e, "other", "s-1", KV_PAUSE_AUTO, &v, &err), KV_NOT_FOUND); /* another tenant's */
    ck_assert_int_eq(kv_engine_forget_paused(e, v.request), KV_OK);
    while (kv_engine_paused(e, v.request, &v) == KV_OK) continue;
    ck_assert_int_eq(kv_engine_forget_paused(e, v.request), KV_NOT_FOUND);
    kv_stream_close(r->stream);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* An arena that holds one request: a preserved pause must give way to the next, and still resume. */
START_TEST(pauses_give_way_to_those_who_wait)
{
    struct run *r = calloc(4, sizeof *r);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    struct kv_engine *e = make_engine(&c);
    pause_prepare(&r[0], 0);
    run_all(e, &r[0]);
    uint64_t blocks = (PROMPT + STEPS + 63) / 64;
    struct kv_engine_stats st;
    kv_engine_stats(e, &st);
    kv_engine_destroy(e);
    const struct kv_weights *w = kv_model_weights(demo_model());
    c.host_bytes = (blocks + 1) * (uint64_t)w->n_layers * kv_slab_bytes(KV_ROW_TYPE, w->n_kv_heads, w->d_head);
    e = make_engine(&c);
    struct kv_pause_view v;
    pause_prepare(&r[1], 0);
    pause_after(e, &r[1], 5, KV_PAUSE_PRESERVE, &v);
    ck_assert_int_eq(v.state, KV_SESSION_PAUSED_GPU);
    pause_prepare(&r[2], 0);
    r[2].request.session = "s-2";
    run_all(e, &r[2]); /* does not fit beside it */
    ck_assert_int_eq(r[2].n, STEPS);
    ck_assert_int_eq(kv_engine_paused(e, v.request, &v), KV_OK);
    ck_assert_int_eq(v.state, KV_SESSION_PAUSED_HOST);
    ck_assert_uint_ge(v.revisions, 1);
    static int32_t all[RUN_MAX];
    struct kv_request q;
    pause_continue(e, &r[1], &v, all, &q);
    kv_stream_close(r[1].stream);
    r[3] = r[1];
    r[3].n = 0;
    r[3].request = q;
    run_all(e, &r[3]);
    for (int32_t i = 0; i < r[3].n; i++) ck_assert_int_eq(r[3].ids[i], r[0].ids[v.n_spoken + i]);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

Suite *suite_pauses(void)
{
    Suite *s = suite_create("pauses");
    TCase *t = tcase_create("pauses");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, waste_is_the_contracts);
    tcase_add_test(t, a_pause_is_preserved_until_it_ages);
    tcase_add_test(t, the_budget_goes_to_the_greatest_potential);
    tcase_add_test(t, results_move_along_the_drawing_only);
    tcase_add_test(t, an_offer_is_applied_once_or_refused_by_name);
    tcase_add_loop_test(t, a_pause_changes_no_bit, 0, 8);
    tcase_add_test(t, rows_changed_while_out_are_computed_again);
    tcase_add_loop_test(t, a_movement_keeps_to_its_cap, 0, 3);
    tcase_add_loop_test(t, rows_come_back_from_disk, 0, 2);
    tcase_add_test(t, a_pause_that_nobody_hears_of_keeps_nothing);
    tcase_add_test(t, a_pause_ages_in_an_idle_engine);
    tcase_add_test(t, a_prompt_in_work_is_not_paused);
    tcase_add_loop_test(t, a_pause_that_lasts_too_long_is_given_up, 0, 2);
    tcase_add_test(t, what_cannot_be_paused_is_refused_by_name);
    tcase_add_test(t, pauses_give_way_to_those_who_wait);
    suite_add_tcase(s, t);
    return s;
}
