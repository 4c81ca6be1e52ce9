/* test_turn_sessions.c — sessions over completed turns: caps, pins, drops, what is known after a restart, and of which model. */
#include "runtime/service/lifecycle.h"
#include "tests/unit/service/turn_runs.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

Suite *suite_turn_sessions(void);

START_TEST(the_cap_holds_and_the_oldest_go)
{
    enum { CAP = 8 << 20 };
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = turn_engine(CAP, NULL);
    char session[16];
    for (int i = 0; i < 24; i++) {
        run_init(r, 100 + (uint32_t)i, 400, 2);
        snprintf(session, sizeof session, "s%d", i);
        r->request.tenant = "alpha";
        r->request.session = session;
        r->request.observe_prompt = false;
        run_all(e, r);
        (void)turn_stats(e);
    }
    struct kv_session_info first, last;
    turn_await_saved(e, "s23");
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s23", &last, NULL), KV_OK);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s0", &first, NULL), KV_OK);
    ck_assert_int_eq(last.held_blocks, 6);
    ck_assert_int_eq(first.held_blocks, 0);
    kv_engine_destroy(e);
    DIR *d = opendir(tier_folder);
    off_t all = 0;
    for (struct dirent *f; (f = readdir(d));) {
        char name[400];
        struct stat st;
        snprintf(name, sizeof name, "%s/%s", tier_folder, f->d_name);
        if (stat(name, &st) == 0 && S_ISREG(st.st_mode)) all += st.st_blocks * 512;
    }
    closedir(d);
    ck_assert_int_le(all, CAP);
    free(r);
}
END_TEST

/* Whatever the policy would rather let go of: at the cap the oldest conversation can grow, and others make room for it. */
START_TEST(an_old_conversation_grows_at_the_cap)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_session_info info;
    struct kv_engine_config c;
    char session[16];
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.prefix_reuse = false;
    c.disk_path = tier_folder;
    c.disk_bytes = 8 << 20;
    c.eviction = kv_victim_name((enum kv_victim)_i);
    struct kv_engine *e = make_engine(&c);
    turn_say(e, 100, "alpha", "old");
    turn_await_saved(e, "old");
    for (uint32_t i = 0; i < 6; i++) {
        snprintf(session, sizeof session, "s%u", i);
        turn_say(e, 101 + i, "alpha", session);
        turn_await_saved(e, session);
    }
    for (int32_t n = 800; n <= 1550; n += 250) {
        run_init(r, 100, n, 2);
        r->request.tenant = "alpha";
        r->request.session = "old";
        r->request.observe_prompt = false;
        run_all(e, r);
        turn_await_saved(e, "old");
    }
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "old", &info, NULL), KV_OK);
    ck_assert_int_eq(info.failures, 0);
    ck_assert_int_eq(info.held_blocks, 1550 / KV_BLOCK_ROWS);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(pinned_sessions_stay_and_dropped_ones_go)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = turn_engine(8 << 20, NULL);
    struct kv_session_info info;
    struct kv_error err;
    char session[16];
    for (int i = 0; i < 16; i++) {
        run_init(r, 100 + (uint32_t)i, 400, 2);
        snprintf(session, sizeof session, "s%d", i);
        r->request.tenant = "alpha";
        r->request.session = session;
        r->request.observe_prompt = false;
        run_all(e, r);
        if (i) continue;
        turn_await_saved(e, "s0");
        ck_assert_int_eq(kv_engine_session(e, KV_SESSION_PIN, "alpha", "s0", &info, NULL), KV_OK);
        ck_assert(info.pinned);
    }
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s0", &info, NULL), KV_OK);
    ck_assert_int_eq(info.held_blocks, 6);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s0", NULL, &err), KV_CONFLICT);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_UNPIN, "alpha", "s0", NULL, NULL), KV_OK);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "s0", NULL, &err), KV_OK);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s0", NULL, &err), KV_NOT_FOUND);
    kv_engine_destroy(e);
    e = turn_engine(8 << 20, NULL);
    run_init(r, 100, 420, 2);
    r->request.tenant = "alpha";
    r->request.session = "s0";
    r->request.observe_prompt = false;
    run_all(e, r);
    ck_assert_int_eq(r->stats.n_reused, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* Names, counts and pins are there again, pins hold, and what was dropped stays away. */
START_TEST(sessions_are_known_after_a_restart)
{
    struct kv_session_info info[4], before;
    struct kv_error err;
    struct kv_engine *e = turn_engine(8 << 20, NULL);
    turn_say(e, 100, "alpha", "kept");
    turn_say(e, 101, "beta", "other");
    turn_await_saved(e, "kept");
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_PIN, "alpha", "kept", &before, NULL), KV_OK);
    kv_engine_destroy(e);
    for (int round = 0; round < 2; round++) {
        e = turn_engine(8 << 20, NULL);
        ck_assert_int_eq(kv_engine_sessions(e, info, 4), 2);
        const struct kv_session_info *kept = !strcmp(info[0].session, "kept") ? &info[0] : &info[1];
        ck_assert_str_eq(kept->tenant, "alpha");
        ck_assert(kept->pinned);
        ck_assert_int_eq(kept->state, KV_SESSION_PAUSED_HOST);
        ck_assert_int_eq(kept->tokens, before.tokens);
        ck_assert_int_eq(kept->blocks, 6);
        ck_assert_int_eq(kept->held_blocks, 6);
        ck_assert_uint_eq(kept->saves, 1);
        ck_assert_int_eq(kept->used_us, before.used_us);
        ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "kept", NULL, &err), KV_CONFLICT);
        kv_engine_destroy(e);
    }
    e = turn_engine(8 << 20, NULL);
    for (uint32_t i = 0; i < 16; i++) turn_say(e, 200 + i, "alpha", "noise"); /* more than fits beside the pinned one */
    kv_engine_destroy(e); /* finishes the saves */
    e = turn_engine(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "kept", &info[0], NULL), KV_OK);
    ck_assert_int_eq(info[0].held_blocks, 6);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_UNPIN, "alpha", "kept", NULL, NULL), KV_OK);
    kv_engine_destroy(e);
    e = turn_engine(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "beta", "other", NULL, &err), KV_NOT_FOUND); /* its blocks had to go */
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "kept", &info[0], NULL), KV_OK);
    ck_assert(!info[0].pinned);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "kept", NULL, &err), KV_OK);
    kv_engine_destroy(e);
    e = turn_engine(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "kept", NULL, &err), KV_NOT_FOUND);
    kv_engine_destroy(e);
}
END_TEST

static int slow_sync(int fd)
{
    nanosleep(&(struct timespec){0, 200000000}, NULL); /* as a busy disk: the next save waits behind this one */
    return kv_disk_io_system.sync(fd);
}

/* What was dropped does not come back with a save that was on its way. */
START_TEST(a_session_dropped_before_it_was_saved_stays_away)
{
    struct kv_error err;
    struct kv_disk_io io = kv_disk_io_system;
    io.sync = slow_sync;
    struct kv_engine *e = turn_engine(8 << 20, &io);
    turn_say(e, 100, "alpha", "first");
    turn_say(e, 101, "alpha", "gone");
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "gone", NULL, &err), KV_OK);
    kv_engine_destroy(e); /* finishes the saves */
    e = turn_engine(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "first", NULL, &err), KV_OK);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "gone", NULL, &err), KV_NOT_FOUND);
    kv_engine_destroy(e);
}
END_TEST

/* Nor with what was running as it was dropped, be it swapped out and resumed (_i 1); what comes after is kept again. */
START_TEST(a_session_dropped_while_it_answers_stays_away)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_error err;
    struct kv_session_info info;
    struct kv_engine *e = turn_engine(8 << 20, NULL);
    turn_say(e, 100, "alpha", "gone");
    turn_await_saved(e, "gone");
    run_init(r, 100, 420, 200);
    r->request.tenant = "alpha";
    r->request.session = "gone";
    r->request.observe_prompt = false;
    run_begin(e, r);
    run_read(r, 1);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_DROP, "alpha", "gone", NULL, &err), KV_OK);
    struct kv_pause_view v;
    if (_i) ck_assert_msg(kv_engine_pause(e, "alpha", "gone", KV_PAUSE_SWAP, &v, &err) == KV_OK, "%s", err.message);
    run_end(r);
    if (_i) {
        struct run *rest = calloc(1, sizeof *rest);
        *rest = (struct run){.request = r->request};
        ck_assert_int_eq(kv_engine_paused_tokens(e, v.request, rest->prompt, v.n_tokens, &rest->request.n_prompt), KV_OK);
        rest->request.prompt = rest->prompt;
        rest->request.resume = v.request;
        rest->request.max_tokens = 8;
        run_all(e, rest);
        ck_assert_int_eq(rest->stats.finish, KV_FINISH_LENGTH);
        free(rest);
    }
    kv_engine_destroy(e); /* finishes the saves */
    e = turn_engine(8 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "gone", NULL, &err), KV_NOT_FOUND);
    turn_say(e, 100, "alpha", "gone");
    turn_await_saved(e, "gone");
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "gone", &info, &err), KV_OK);
    ck_assert_uint_eq(info.restores, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* With what host memory keeps, nothing is read: the states and the count of turns are those of any session. */
START_TEST(turns_from_host_memory_have_all_states)
{
    struct kv_engine_config c;
    struct run *r = calloc(1, sizeof *r);
    struct kv_error err;
    struct kv_session_info info;
    struct kv_engine_stats stats;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.disk_path = tier_folder;
    c.disk_bytes = 64 << 20;
    struct kv_engine *e = make_engine(&c);
    for (int turn = 0; turn < 4; turn++) {
        run_init(r, 100, 400 + 4 * turn, 400);
        r->request.tenant = "alpha";
        r->request.session = "s";
        r->request.observe_prompt = false;
        run_begin(e, r);
        run_read(r, 2);
        ck_assert_int_eq(kv_engine_sessions(e, &info, 1), 1); /* waits for no thread, while hundreds of tokens are to come */
        ck_assert_int_eq(info.state, KV_SESSION_RUNNING);
        run_end(r);
        turn_await_saved(e, "s");
        ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s", &info, &err), KV_OK);
        ck_assert_uint_eq(info.turns, (uint64_t)turn + 1);
    }
    kv_engine_stats(e, &stats);
    ck_assert_uint_eq(stats.turns.illegal_moves, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

static void no_event(void *ctx)
{
    (void)ctx;
}

/* Saves two blocks under a base when `save`; then says how many sessions are known and how many blocks a look finds. */
static void with_base(struct kv_turns_config *c, bool save, int32_t *sessions, int32_t *blocks)
{
    enum { TOKENS = 2 * KV_BLOCK_ROWS };
    struct kv_turns *t;
    struct kv_error err;
    struct kv_arena *a;
    struct kv_cache cache;
    int32_t tokens[TOKENS];
    struct kv_session_info info[4];
    for (int i = 0; i < TOKENS; i++) tokens[i] = i * 3;
    ck_assert_int_eq(kv_arena_create(c->slab_bytes, 64 * c->slab_bytes, &a), KV_OK);
    ck_assert_int_eq(kv_turns_create(c, &t, &err), KV_OK);
    if (save) {
        ck_assert_int_eq(kv_cache_init(&cache, 2, 2, 16, KV_F16, TOKENS), KV_OK);
        ck_assert_int_eq(kv_cache_reserve(&cache, a, TOKENS), KV_OK);
        cache.n_rows = TOKENS;
        cache.n_sealed = 2;
        ck_assert(kv_turns_save(t, &(struct kv_turn_rows){.tenant = "alpha", .session = "s", .tokens = tokens, .cache = &cache, .blocks = 2, .us_per_row = 1}));
        struct kv_turn *j;
        while (!(j = kv_turns_saved(t))) continue;
        ck_assert_int_eq(j->status, KV_OK);
        kv_cache_free(&j->own, a);
        kv_turns_let_go(t, j);
    }
    struct kv_turn *j = kv_turns_look(t, "alpha", "", tokens, TOKENS, 0, 0, false, (struct kv_fault_marks){0});
    while (atomic_load(&j->phase) == KV_TURN_LOOKING) continue;
    *blocks = j->end;
    kv_turns_let_go(t, j);
    *sessions = kv_turns_sessions(t, info, 4);
    (void)kv_turns_stop(t, 0);
    kv_turns_destroy(t);
    kv_arena_destroy(a);
}

/* Segments of another model, adapter set, numerics, position contract or representation: neither blocks nor names are found, and both are there again
 * when their own model is. */
START_TEST(another_model_in_the_same_folder)
{
    int32_t sessions, blocks;
    struct kv_turns_config own = {.n_layers = 2, .n_kv_heads = 2, .slab_bytes = kv_slab_bytes(KV_F16, 2, 16), .path = tier_folder, .capacity_bytes = 32 << 20, .victim = KV_VICTIM_LRU,
                                  .event = no_event};
    memset(own.base.model.b, 1, sizeof own.base.model.b);
    strcpy(own.base.representation, "kv-f16-post-rope-v1");
    strcpy(own.base.support, "exact");
    with_base(&own, true, &sessions, &blocks);
    ck_assert(sessions == 1 && blocks == 2);
    for (int field = 0; field < 6; field++) {
        struct kv_turns_config other = own;
        if (field == 0) other.base.model.b[31] ^= 1;
        if (field == 1) other.base.adapters.b[0] ^= 1;
        if (field == 2) other.base.numerics.b[7] ^= 1;
        if (field == 3) other.base.cache_abi.b[7] ^= 1;
        if (field == 4) other.base.position_contract.b[0] ^= 1;
        if (field == 5) strcpy(other.base.representation, "kv-f16-post-rope-v2");
        with_base(&other, false, &sessions, &blocks);
        ck_assert_msg(sessions == 0 && blocks == 0, "field %d: %d sessions, %d blocks", field, (int)sessions, (int)blocks);
    }
    with_base(&own, false, &sessions, &blocks);
    ck_assert(sessions == 1 && blocks == 2);
}
END_TEST

/* The disk fails while a pin is recorded: the answer says so and the session is as before. */
START_TEST(a_pin_that_cannot_be_kept_is_refused)
{
    struct kv_disk_io io = kv_disk_io_system;
    struct kv_session_info info;
    struct kv_error err;
    io.pwrite = failing_pwrite;
    atomic_store(&writes_left, 1 << 30);
    struct kv_engine *e = turn_engine(256 << 20, &io);
    turn_say(e, 100, "alpha", "s");
    turn_await_saved(e, "s");
    atomic_store(&writes_left, 0);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_PIN, "alpha", "s", NULL, &err), KV_NO_SPACE);
    atomic_store(&writes_left, 1 << 30);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s", &info, NULL), KV_OK);
    ck_assert(!info.pinned);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_PIN, "alpha", "s", NULL, &err), KV_OK);
    kv_engine_destroy(e);
    e = turn_engine(256 << 20, NULL);
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", "s", &info, NULL), KV_OK);
    ck_assert(info.pinned);
    kv_engine_destroy(e);
}
END_TEST

START_TEST(states_follow_the_table)
{
    enum kv_session_state s = KV_SESSION_RUNNING;
    static const enum kv_session_state path[] = {KV_SESSION_QUIESCING, KV_SESSION_SAVING, KV_SESSION_PAUSED_HOST, KV_SESSION_RESTORING, KV_SESSION_RESUME_READY,
                                                 KV_SESSION_PREFILL_NEW_TURN, KV_SESSION_RUNNING};
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        for (int to = 0; to < KV_SESSION_STATE_COUNT; to++) {
            enum kv_session_state copy = s;
            enum kv_status r = kv_lifecycle_move(&copy, (enum kv_session_state)to);
            ck_assert_int_eq(copy, r == KV_OK ? (enum kv_session_state)to : s);
        }
        ck_assert_int_eq(kv_lifecycle_move(&s, path[i]), KV_OK);
    }
    ck_assert_int_eq(kv_lifecycle_move(&s, KV_SESSION_RESTORING), KV_ILLEGAL_TRANSITION);
    ck_assert_int_eq(kv_lifecycle_state_find("PAUSED_HOST"), KV_SESSION_PAUSED_HOST);
    ck_assert_int_eq(kv_lifecycle_state_find("paused"), -1);
}
END_TEST

Suite *suite_turn_sessions(void)
{
    Suite *s = suite_create("turn_sessions");
    TCase *t = tcase_create("turn_sessions");
    tcase_add_checked_fixture(t, turn_setup, turn_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, the_cap_holds_and_the_oldest_go);
    tcase_add_loop_test(t, an_old_conversation_grows_at_the_cap, 0, KV_VICTIMS);
    tcase_add_test(t, pinned_sessions_stay_and_dropped_ones_go);
    tcase_add_test(t, sessions_are_known_after_a_restart);
    tcase_add_test(t, a_session_dropped_before_it_was_saved_stays_away);
    tcase_add_loop_test(t, a_session_dropped_while_it_answers_stays_away, 0, 2);
    tcase_add_test(t, turns_from_host_memory_have_all_states);
    tcase_add_test(t, another_model_in_the_same_folder);
    tcase_add_test(t, a_pin_that_cannot_be_kept_is_refused);
    tcase_add_test(t, states_follow_the_table);
    suite_add_tcase(s, t);
    return s;
}
