/* test_store_pauses.c — pauses and results in the store: one result, once, whatever comes in between; a process killed after every step. */
#include "controller/interruptions.h"
#include "tests/unit/wall_clock.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

Suite *suite_store_pauses(void);

static char dir[64];
static const int32_t suffix[] = {7, 8, 9};

static void setup(void)
{
    strcpy(dir, "/tmp/kvasir-pauses-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static struct kv_store *open_store(void)
{
    struct kv_store *s;
    struct kv_error err = {0};
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err) == KV_OK, "%s", err.message);
    return s;
}

static enum kv_status put(struct kv_store *s, const char *session, const char *call, uint64_t *epoch)
{
    int32_t tokens[] = {1, 2, 3, 4};
    struct kv_stored_pause p = {.manifest = "{}", .tokens = tokens, .n_tokens = 4, .paused_us = 5};
    struct kv_error err;
    strcpy(p.tenant, "acme");
    strcpy(p.session, session);
    strcpy(p.result.call_id, call);
    enum kv_status st = kv_store_put_pause(s, &p, &err);
    *epoch = p.epoch;
    return st;
}

static struct kv_result_key key(const char *result)
{
    struct kv_result_key k = {.pause_epoch = 1, .call_id = "call"};
    strcpy(k.result_id, result);
    kv_sha256(result, strlen(result), k.digest);
    return k;
}

static const enum kv_result_state steps[] = {KV_RESULT_RESERVED, KV_RESULT_CACHE_READY_AND_VALIDATED, KV_RESULT_RESULT_APPEND_COMMITTED, KV_RESULT_APPLIED};

static enum kv_status step(struct kv_store *s, const char *result, enum kv_result_state to, enum kv_result_answer *a)
{
    struct kv_result_key k = key(result);
    struct kv_error err;
    bool commits = to == KV_RESULT_RESULT_APPEND_COMMITTED;
    return kv_store_move_result(s, "acme", "s", &k, to, commits ? suffix : NULL, commits ? 3 : 0, a, &err);
}

/* The caller's whole way, as the HTTP handler goes it. */
static enum kv_status apply(struct kv_store *s, const char *result)
{
    enum kv_result_answer a;
    enum kv_status st = step(s, result, KV_RESULT_RESERVED, &a);
    if (st || a == KV_RESULT_NOOP) return st;
    if (a == KV_RESULT_GO_ON) st = step(s, result, KV_RESULT_CACHE_READY_AND_VALIDATED, &a);
    if (!st && a == KV_RESULT_GO_ON) st = step(s, result, KV_RESULT_RESULT_APPEND_COMMITTED, &a);
    return st ? st : step(s, result, KV_RESULT_APPLIED, &a);
}

static void expect_last(struct kv_store *s, enum kv_result_state state, int32_t n, bool resumed)
{
    struct kv_stored_pause p;
    ck_assert_int_eq(kv_store_last_pause(s, "acme", "s", &p, NULL), KV_OK);
    ck_assert_int_eq(p.result_state, state);
    ck_assert_int_eq(p.n_result_tokens, n);
    ck_assert_int_eq(p.resumed, resumed);
    ck_assert_int_eq(p.n_tokens, 4);
    if (n) ck_assert_int_eq(memcmp(p.result_tokens, suffix, sizeof suffix), 0);
    kv_stored_pause_free(&p);
}

/* _i steps are taken, each acknowledged, and the process is killed. */
START_TEST(a_kill_after_every_step_loses_and_doubles_nothing)
{
    pid_t child = fork();
    if (child == 0) {
        uint64_t epoch;
        enum kv_result_answer a;
        struct kv_store *s = open_store();
        bool ok = put(s, "s", "call", &epoch) == KV_OK && epoch == 1;
        for (int i = 0; i < _i && ok; i++) ok = step(s, "r-1", steps[i], &a) == KV_OK;
        raise(ok ? SIGKILL : SIGABRT);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    struct kv_store *s = open_store();
    expect_last(s, _i ? steps[_i - 1] : KV_RESULT_UNSEEN, _i > 2 ? 3 : 0, false);
    if (_i) ck_assert_int_eq(apply(s, "r-2"), KV_COMPETING_RESULT);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, NULL), _i == 4 ? KV_OK : KV_RESULT_MISSING);
    ck_assert_int_eq(apply(s, "r-1"), KV_OK);
    ck_assert_int_eq(apply(s, "r-1"), KV_OK);
    expect_last(s, KV_RESULT_APPLIED, 3, _i == 4);
    struct kv_verify_result v;
    ck_assert_int_eq(kv_store_verify(s, &v, NULL), KV_OK);
    ck_assert(v.verified);
    kv_store_close(s);
}
END_TEST

START_TEST(epochs_pair_pauses_with_resumes)
{
    struct kv_store *s = open_store();
    uint64_t epoch;
    struct kv_error err;
    ck_assert_int_eq(put(s, "s", "", &epoch), KV_OK);
    ck_assert_uint_eq(epoch, 1);
    ck_assert_int_eq(put(s, "s", "", &epoch), KV_ALREADY_PAUSED);
    ck_assert_uint_eq(epoch, 1);
    ck_assert_int_eq(apply(s, "r-1"), KV_NOT_FOUND); /* nobody was called */
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 3, &err), KV_STALE_PAUSE_EPOCH);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, &err), KV_OK);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, &err), KV_NOT_PAUSED);
    ck_assert_int_eq(kv_store_unresume(s, "acme", "s", 1, &err), KV_OK);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, &err), KV_OK);
    ck_assert_int_eq(put(s, "s", "", &epoch), KV_OK);
    ck_assert_uint_eq(epoch, 3);
    ck_assert_int_eq(kv_store_resume(s, "other", "s", 3, &err), KV_NOT_PAUSED); /* another tenant's */
    struct kv_pause_row rows[4];
    int32_t n = 4, total;
    ck_assert_int_eq(kv_store_open_pauses(s, rows, &n, &total, &err), KV_OK);
    ck_assert_int_eq(n, 1);
    ck_assert_uint_eq(rows[0].epoch, 3);
    ck_assert_int_eq(rows[0].n_tokens, 4);
    ck_assert_int_eq(put(s, "t", "", &epoch), KV_OK);
    n = 1;
    ck_assert_int_eq(kv_store_open_pauses(s, rows, &n, &total, &err), KV_OK);
    ck_assert(n == 1 && total == 2);
    kv_store_close(s);
}
END_TEST

START_TEST(a_late_pause_is_given_up_with_its_call)
{
    struct kv_store *s = open_store();
    uint64_t epoch;
    struct kv_error err;
    int32_t n = 0;
    struct kv_stored_pause p;
    ck_assert_int_eq(put(s, "s", "call", &epoch), KV_OK); /* at 5 us after 1970 */
    ck_assert_int_eq(kv_store_expire_pauses(s, 5, &n, &err), KV_OK);
    ck_assert_int_eq(n, 0);
    ck_assert_int_eq(kv_store_expire_pauses(s, 6, &n, &err), KV_OK);
    ck_assert_int_eq(n, 1);
    kv_store_close(s);
    s = open_store(); /* it is so after a restart too */
    ck_assert_int_eq(apply(s, "r-1"), KV_PAUSE_EXPIRED);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, &err), KV_PAUSE_EXPIRED);
    ck_assert(err.hint[0]);
    ck_assert_int_eq(kv_store_last_pause(s, "acme", "s", &p, NULL), KV_OK);
    ck_assert(p.expired && p.resumed);
    ck_assert_int_eq(p.result_state, KV_RESULT_UNSEEN); /* nothing was applied */
    kv_stored_pause_free(&p);
    ck_assert_int_eq(put(s, "s", "call", &epoch), KV_OK); /* the session goes on */
    ck_assert_uint_eq(epoch, 3);
    kv_store_close(s);
}
END_TEST

/* Whether the database's files hold these bytes. */
static bool on_disk(const void *bytes, size_t n)
{
    static const char *const names[] = {"kvasir.db", "kvasir.db-wal"};
    bool found = false;
    for (int i = 0; i < 2; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        FILE *f = fopen(path, "rb");
        if (!f) continue;
        char *text = malloc(1 << 22);
        size_t have = fread(text, 1, 1 << 22, f);
        found = found || memmem(text, have, bytes, n);
        free(text);
        fclose(f);
    }
    return found;
}

/* _i 0: it is resumed, and its continuation ends. 1: killed before that; it is paused again, resumed and ends. 2: nobody came for it. 3: its session is dropped. */
START_TEST(what_nobody_can_ask_for_again_is_on_no_disk)
{
    enum { LONG = 3000 };
    static const int32_t secret[] = {0x5ec2e71, 0x1e7e5ec, 0x2e75ec1, 0x71e7ec5};
    int32_t tokens[LONG] = {0}, n = 0;
    bool was = false;
    struct kv_store *s = open_store();
    enum kv_result_answer a;
    struct kv_error err = {0};
    memcpy(tokens + LONG - 8, secret, sizeof secret); /* on a page of its own, far from the row */
    struct kv_stored_pause p = {.manifest = "{}", .tokens = tokens, .n_tokens = LONG, .paused_us = 5, .tenant = "acme", .session = "s", .result.call_id = "call"};
    ck_assert_int_eq(kv_store_put_pause(s, &p, &err), KV_OK);
    struct kv_result_key k = key("r-1");
    for (int i = 0; i < 4; i++) ck_assert_int_eq(kv_store_move_result(s, "acme", "s", &k, steps[i], secret, 4, &a, &err), KV_OK);
    ck_assert(on_disk(secret, sizeof secret));
    if (_i == 2) ck_assert_int_eq(kv_store_expire_pauses(s, 6, &n, &err), KV_OK);
    else if (_i == 3) ck_assert_int_eq(kv_store_drop_pause(s, "acme", "s", &was, &err), KV_OK);
    else ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, &err), KV_OK);
    if (_i == 0) ck_assert_msg(kv_store_forget_resumed(s, "acme", "s", 1, &err) == KV_OK, "%s", err.message);
    if (_i == 1) ck_assert_int_eq(kv_store_forget_resumed(s, "acme", "another", 1, &err), KV_OK);
    kv_store_close(s);
    ck_assert_int_eq(on_disk(secret, sizeof secret), _i == 1);
    s = open_store();
    ck_assert_int_eq(kv_store_reopen_resumed(s, &n, &err), KV_OK);
    ck_assert_int_eq(n, _i == 1);
    if (_i == 1) {
        ck_assert_int_eq(kv_store_last_pause(s, "acme", "s", &p, NULL), KV_OK);
        ck_assert(!p.resumed && p.n_tokens == LONG && !memcmp(p.result_tokens, secret, sizeof secret));
        kv_stored_pause_free(&p);
        ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, &err), KV_OK);
        ck_assert_int_eq(kv_store_forget_resumed(s, "acme", "s", 1, &err), KV_OK);
    }
    ck_assert_int_eq(kv_store_last_pause(s, "acme", "s", &p, NULL), KV_OK);
    ck_assert_int_eq(was, _i == 3);
    ck_assert_int_eq(kv_store_drop_pause(s, "acme", "s", &was, &err), KV_OK);
    ck_assert(!was); /* nothing of it is left */
    ck_assert(p.resumed && p.n_tokens == 0 && p.n_result_tokens == 4); /* the same result, late, gets the same answer */
    ck_assert_int_eq(memcmp(p.result.digest, k.digest, 32), 0); /* that it was applied, and what, stays */
    kv_stored_pause_free(&p);
    ck_assert_int_eq(kv_store_move_result(s, "acme", "s", &k, KV_RESULT_RESERVED, NULL, 0, &a, &err), KV_OK);
    ck_assert_int_eq(a, KV_RESULT_NOOP);
    kv_store_close(s);
    ck_assert(!on_disk(secret, sizeof secret));
}
END_TEST

/* An older continuation that ran when its session paused anew has a pause after it: only the last one can be open. */
START_TEST(only_the_last_pause_of_a_session_is_open_again)
{
    struct kv_store *s = open_store();
    struct kv_error err = {0};
    uint64_t epoch;
    int32_t n;
    ck_assert_int_eq(put(s, "s", "", &epoch), KV_OK);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, &err), KV_OK);
    ck_assert_int_eq(put(s, "s", "", &epoch), KV_OK);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 3, &err), KV_OK);
    ck_assert_int_eq(put(s, "other", "", &epoch), KV_OK);
    kv_store_close(s);
    s = open_store();
    ck_assert_msg(kv_store_reopen_resumed(s, &n, &err) == KV_OK, "%s", err.message);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 1, &err), KV_STALE_PAUSE_EPOCH);
    ck_assert_int_eq(kv_store_resume(s, "acme", "s", 3, &err), KV_OK);
    kv_store_close(s);
}
END_TEST

START_TEST(a_failure_before_the_commit_is_retryable_and_none_after)
{
    struct kv_store *s = open_store();
    uint64_t epoch;
    enum kv_result_answer a;
    ck_assert_int_eq(put(s, "s", "call", &epoch), KV_OK);
    ck_assert_int_eq(step(s, "r-1", KV_RESULT_RESULT_APPEND_COMMITTED, &a), KV_ILLEGAL_TRANSITION);
    ck_assert_int_eq(step(s, "r-1", KV_RESULT_RESERVED, &a), KV_OK);
    ck_assert_int_eq(step(s, "r-1", KV_RESULT_RETRYABLE, &a), KV_OK);
    ck_assert_int_eq(apply(s, "r-2"), KV_COMPETING_RESULT); /* the reservation stays bound */
    ck_assert_int_eq(apply(s, "r-1"), KV_OK);
    ck_assert_int_eq(step(s, "r-1", KV_RESULT_RETRYABLE, &a), KV_OK);
    ck_assert_int_eq(a, KV_RESULT_NOOP);
    expect_last(s, KV_RESULT_APPLIED, 3, false);
    kv_store_close(s);
}
END_TEST

/* What pauses and arrivals are dated by, as long as the process lives. */
START_TEST(no_pause_gets_older_by_the_clock)
{
    enum { DAY = 86400 };
    struct kv_interruptions *t = kv_interruptions_create();
    int64_t before_us = kv_interruptions_now_us(t);
    for (int i = -1; i <= 1; i++) {
        atomic_store(&wall_clock_ahead_s, i * DAY);
        int64_t now_us = kv_interruptions_now_us(t);
        ck_assert_int_ge(now_us, before_us);
        ck_assert_int_lt(now_us - before_us, DAY / 2 * INT64_C(1000000));
    }
    atomic_store(&wall_clock_ahead_s, 0);
    kv_interruptions_free(t);
}
END_TEST

Suite *suite_store_pauses(void)
{
    Suite *s = suite_create("store_pauses");
    TCase *t = tcase_create("store_pauses");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, a_kill_after_every_step_loses_and_doubles_nothing, 0, 5);
    tcase_add_loop_test(t, what_nobody_can_ask_for_again_is_on_no_disk, 0, 4);
    tcase_add_test(t, only_the_last_pause_of_a_session_is_open_again);
    tcase_add_test(t, epochs_pair_pauses_with_resumes);
    tcase_add_test(t, a_late_pause_is_given_up_with_its_call);
    tcase_add_test(t, a_failure_before_the_commit_is_retryable_and_none_after);
    tcase_add_test(t, no_pause_gets_older_by_the_clock);
    suite_add_tcase(s, t);
    return s;
}
