/* test_clock_jump.c — the wall clock jumps: what is kept, in what order it goes and how long is waited do not depend on it. */
#include "tests/unit/service/turn_runs.h"
#include "tests/unit/wall_clock.h"

#include <check.h>
#include <string.h>

Suite *suite_clock_jump(void);

enum { DAY = 86400 };

static int32_t held(struct kv_engine *e, const char *session)
{
    struct kv_session_info info;
    ck_assert_int_eq(kv_engine_session(e, KV_SESSION_SHOW, "alpha", session, &info, NULL), KV_OK);
    return info.held_blocks;
}

/* Sessions are listed, and leave the disk, in the order of their use, also after a restart. */
START_TEST(sessions_keep_their_order)
{
    static const char *const names[] = {"first", "second", "third"};
    struct kv_session_info info[3];
    struct kv_engine *e = turn_engine(8 << 20, NULL);
    for (int i = 0; i < 3; i++) {
        atomic_store(&wall_clock_ahead_s, i == 1 ? DAY : i == 2 ? -DAY : 0);
        turn_say(e, 100 + (uint32_t)i, "alpha", names[i]);
        turn_await_saved(e, names[i]);
    }
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(kv_engine_sessions(e, info, 3), 3);
        for (int i = 0; i < 3; i++) ck_assert_msg(!strcmp(info[i].session, names[2 - i]), "round %d: %s comes at place %d", round, info[i].session, i);
        kv_engine_destroy(e);
        e = turn_engine(8 << 20, NULL);
    }
    for (uint32_t i = 0; held(e, "first") == 6; i++) {
        ck_assert_uint_lt(i, 30);
        atomic_store(&wall_clock_ahead_s, -(long)i * DAY);
        turn_say(e, 200 + i, "alpha", "noise");
        turn_await_saved(e, "noise");
    }
    ck_assert_int_eq(held(e, "second"), 6);
    ck_assert_int_eq(held(e, "third"), 6);
    kv_engine_destroy(e);
    atomic_store(&wall_clock_ahead_s, 0);
}
END_TEST

/* A drain waits for what runs, also when the clock was put back meanwhile. */
START_TEST(a_drain_lasts_as_long_as_was_said)
{
    static struct run r;
    struct kv_engine *e = make_engine(NULL);
    run_init(&r, 3, 20, 60);
    run_begin(e, &r);
    run_read(&r, 1);
    atomic_store(&wall_clock_ahead_s, -DAY);
    kv_engine_drain(e, 60000);
    run_end(&r);
    ck_assert_int_eq(r.stats.finish, KV_FINISH_LENGTH);
    kv_engine_destroy(e);
    atomic_store(&wall_clock_ahead_s, 0);
}
END_TEST

Suite *suite_clock_jump(void)
{
    Suite *s = suite_create("clock_jump");
    TCase *t = tcase_create("clock_jump");
    tcase_add_checked_fixture(t, turn_setup, turn_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, sessions_keep_their_order);
    tcase_add_test(t, a_drain_lasts_as_long_as_was_said);
    suite_add_tcase(s, t);
    return s;
}
