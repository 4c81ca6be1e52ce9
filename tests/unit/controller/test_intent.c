/* test_intent.c — the rollback record under torn writes and kill -9. */
#include "controller/release/intent.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], path[96];

static void set_up(void)
{
    strcpy(dir, "/tmp/kvasir-intent-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/rollback.intent", dir);
}

static void tear_down(void)
{
    unlink(path);
    rmdir(dir);
}

static void write_one(uint64_t rollout)
{
    struct kv_intent *i;
    struct kv_intent_record last, r = {.rollout = rollout, .epoch = 10 * rollout, .reason = KV_GATE_FAILED, .actor = "gate:x", .detail = "why"};
    ck_assert_int_eq(kv_intent_open(path, &i, &last, NULL), KV_OK);
    ck_assert_int_eq(kv_intent_write(i, &r), KV_OK);
    kv_intent_close(i);
}

static struct kv_intent_record read_last(void)
{
    struct kv_intent *i;
    struct kv_intent_record last;
    ck_assert_int_eq(kv_intent_open(path, &i, &last, NULL), KV_OK);
    kv_intent_close(i);
    return last;
}

START_TEST(a_record_reads_back)
{
    ck_assert_uint_eq(read_last().sequence, 0);
    for (uint64_t n = 1; n <= 5; n++) {
        write_one(n);
        struct kv_intent_record r = read_last();
        ck_assert_uint_eq(r.sequence, n);
        ck_assert_uint_eq(r.rollout, n);
        ck_assert_uint_eq(r.epoch, 10 * n);
        ck_assert_int_eq(r.reason, KV_GATE_FAILED);
        ck_assert_str_eq(r.actor, "gate:x");
        ck_assert_str_eq(r.detail, "why");
    }
}
END_TEST

/* Any prefix of the newest slot may have reached the disk: the older record then still reads. */
START_TEST(a_torn_write_leaves_the_record_before)
{
    write_one(1);
    write_one(2);
    write_one(3); /* slot 1, over record 1 */
    char file[4096];
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(read(fd, file, sizeof file), 4096);
    for (int cut = 0; cut < 300; cut++) {
        char slot[512];
        memcpy(slot, file + 512, 512);
        memset(slot + cut, 0xee, (size_t)(512 - cut));
        ck_assert_int_eq(pwrite(fd, slot, 512, 512), 512);
        ck_assert_uint_eq(read_last().rollout, 2);
    }
    ck_assert_int_eq(pwrite(fd, file, 4096, 0), 4096);
    ck_assert_uint_eq(read_last().rollout, 3);
    close(fd);
    write_one(4);
    ck_assert_uint_eq(read_last().sequence, 4);
}
END_TEST

/* A child acknowledges on a pipe after each durable write and is killed at some moment: no acknowledged record is ever lost. */
START_TEST(an_acknowledged_record_survives_kill)
{
    for (int round = 0; round < 20; round++) {
        int p[2];
        ck_assert_int_eq(pipe(p), 0);
        pid_t child = fork();
        if (child == 0) {
            struct kv_intent *i;
            struct kv_intent_record last;
            if (kv_intent_open(path, &i, &last, NULL) != KV_OK) _exit(1);
            for (;;) {
                struct kv_intent_record r = {.rollout = last.sequence + 1, .reason = KV_OPERATOR_ROLLBACK};
                if (kv_intent_write(i, &r) != KV_OK || write(p[1], &r.sequence, sizeof r.sequence) != sizeof r.sequence) _exit(1);
                last = r;
            }
        }
        uint64_t acknowledged = 0, next;
        close(p[1]);
        for (int n = 0; n <= round && read(p[0], &next, sizeof next) == sizeof next; n++) acknowledged = next;
        kill(child, SIGKILL);
        while (read(p[0], &next, sizeof next) == sizeof next) acknowledged = next;
        waitpid(child, NULL, 0);
        close(p[0]);
        struct kv_intent_record r = read_last();
        ck_assert_uint_gt(acknowledged, 0);
        ck_assert_uint_ge(r.sequence, acknowledged);
        ck_assert_uint_eq(r.rollout, r.sequence);
    }
}
END_TEST

START_TEST(a_place_without_access_is_refused)
{
    struct kv_intent *i;
    struct kv_intent_record last;
    struct kv_error err;
    ck_assert_int_eq(kv_intent_open("/nonexistent/rollback.intent", &i, &last, &err), KV_FILE_UNREADABLE);
    ck_assert(err.hint[0]);
}
END_TEST

Suite *suite_intent(void);
Suite *suite_intent(void)
{
    Suite *s = suite_create("intent");
    TCase *t = tcase_create("intent");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 30);
    tcase_add_test(t, a_record_reads_back);
    tcase_add_test(t, a_torn_write_leaves_the_record_before);
    tcase_add_test(t, an_acknowledged_record_survives_kill);
    tcase_add_test(t, a_place_without_access_is_refused);
    suite_add_tcase(s, t);
    return s;
}
