/* test_faults.c — faults that can be armed: who meets them, how often they strike, what is refused. */
#include "runtime/residency/disk.h"
#include "runtime/residency/faults.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Suite *suite_faults(void);

static struct kv_faults *faults;
static struct kv_error err;

static void setup(void) { ck_assert_int_eq(kv_faults_create(&faults), KV_OK); }
static void teardown(void) { kv_faults_destroy(faults); }

static bool meets(enum kv_fault k, const char *tenant, const char *session, uint64_t candidate)
{
    struct kv_fault_marks m = kv_faults_match(faults, tenant, session, candidate);
    ck_assert(!m.mask == !m.from);
    return m.mask >> k & 1;
}

START_TEST(only_those_who_were_named_meet_it)
{
    ck_assert(!meets(KV_FAULT_bit_flip, "acme", "s", 7));
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_bit_flip, 1, &(struct kv_fault_scope){.tenant = "acme", .session = "s"}, &err), KV_OK);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_kill, 1, &(struct kv_fault_scope){.candidate = 7}, &err), KV_OK);
    ck_assert(meets(KV_FAULT_bit_flip, "acme", "s", 0));
    ck_assert(!meets(KV_FAULT_bit_flip, "acme", "t", 0));
    ck_assert(!meets(KV_FAULT_bit_flip, "acme", NULL, 0));
    ck_assert(!meets(KV_FAULT_bit_flip, "globex", "s", 0));
    ck_assert(meets(KV_FAULT_kill, "globex", NULL, 7));
    ck_assert(!meets(KV_FAULT_kill, "globex", NULL, 8));
    ck_assert(!meets(KV_FAULT_kill, "acme", "s", 0)); /* the baseline */
    ck_assert_uint_eq(kv_fault_sites(kv_faults_match(faults, "acme", "s", 7).mask), 1u << KV_FAULT_DISK_READ | 1u << KV_FAULT_PROCESS);
    ck_assert_uint_eq(kv_faults_match(NULL, "acme", "s", 7).mask, 0);
}
END_TEST

START_TEST(refusals_leave_nothing_armed)
{
    const struct kv_fault_scope acme = {.tenant = "acme"}, nobody = {.session = "s"};
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_bit_flip, 1, &nobody, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_bit_flip, 0, &acme, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_remote_timeout, 1, &acme, &err), KV_UNSUPPORTED);
    ck_assert_uint_eq(kv_faults_match(faults, "acme", "s", 0).mask, 0);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_bit_flip, 1, &acme, &err), KV_OK);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_bit_flip, 1, &acme, &err), KV_CONFLICT);
    struct kv_fault_marks m = kv_faults_match(faults, "acme", NULL, 0);
    ck_assert(kv_faults_disarm(faults, KV_FAULT_bit_flip));
    ck_assert(!kv_faults_disarm(faults, KV_FAULT_bit_flip));
    ck_assert(!kv_fault_strikes(&m, KV_FAULT_bit_flip)); /* also for a request that was admitted before */
    ck_assert_int_eq(kv_fault_from_name("bit_flip"), KV_FAULT_bit_flip);
    ck_assert_int_eq(kv_fault_from_name("bit_flop"), KV_FAULTS);
}
END_TEST

/* Who was named once and still runs is not struck by what is armed on somebody else since. */
START_TEST(an_arming_ends_with_its_scope)
{
    const struct kv_fault_scope acme = {.tenant = "acme"}, globex = {.tenant = "globex"};
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_bit_flip, 5, &acme, &err), KV_OK);
    struct kv_fault_marks old = kv_faults_match(faults, "acme", NULL, 0);
    ck_assert(kv_fault_strikes(&old, KV_FAULT_bit_flip));
    ck_assert(kv_faults_disarm(faults, KV_FAULT_bit_flip));
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_bit_flip, 1, &globex, &err), KV_OK);
    ck_assert(!kv_fault_strikes(&old, KV_FAULT_bit_flip));
    struct kv_fault_marks m = kv_faults_match(faults, "globex", NULL, 0);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_kill, 1, &acme, &err), KV_OK); /* another fault's arming changes nothing */
    ck_assert(kv_fault_strikes(&m, KV_FAULT_bit_flip));
    ck_assert(!kv_fault_strikes(&m, KV_FAULT_bit_flip));
}
END_TEST

/* The ten typed failure actions of the release fixture: each can be provoked. */
START_TEST(every_failure_action_has_its_fault)
{
    static const char *const actions[] = {
#define KV_FAILURE_ACTION(fault, reason, action, meaning) #action,
#include "controller/failure_actions.def"
#undef KV_FAILURE_ACTION
    };
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        int k = 0;
        while (k < KV_FAULTS && strcmp(kv_fault_info((enum kv_fault)k)->action, actions[i])) k++;
        ck_assert_msg(k < KV_FAULTS, "no fault leads to %s", actions[i]);
    }
}
END_TEST

static struct kv_fault_marks shared;
static _Atomic int taken;
static void *take(void *arg)
{
    (void)arg;
    for (int i = 0; i < 5000; i++) atomic_fetch_add(&taken, kv_fault_strikes(&shared, KV_FAULT_forced_candidate_cap));
    return NULL;
}

START_TEST(it_strikes_as_often_as_was_said_however_many_ask)
{
    pthread_t t[4];
    struct kv_fault_view v;
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_forced_candidate_cap, 7000, &(struct kv_fault_scope){.tenant = "acme"}, &err), KV_OK);
    shared = kv_faults_match(faults, "acme", NULL, 0);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, take, NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    kv_faults_view(faults, KV_FAULT_forced_candidate_cap, &v);
    ck_assert_int_eq(atomic_load(&taken), 7000);
    ck_assert_uint_eq(v.hits, 7000);
    ck_assert(!v.armed);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_forced_candidate_cap, KV_FAULT_EVERY, &(struct kv_fault_scope){.tenant = "acme"}, &err), KV_OK);
    ck_assert(!kv_fault_strikes(&shared, KV_FAULT_forced_candidate_cap)); /* admitted under the arming before */
    shared = kv_faults_match(faults, "acme", NULL, 0);
    for (int i = 0; i < 100; i++) ck_assert(kv_fault_strikes(&shared, KV_FAULT_forced_candidate_cap));
    kv_faults_view(faults, KV_FAULT_forced_candidate_cap, &v);
    ck_assert(v.armed && v.left == KV_FAULT_EVERY);
}
END_TEST

/* The disk fails for the request that was named on this thread, and for no other. */
START_TEST(the_disk_fails_for_the_marked_request_alone)
{
    uint8_t page[4096] = {1};
    char path[] = "/tmp/kvasir-faults-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    unlink(path);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_disk_full, 1, &(struct kv_fault_scope){.tenant = "acme"}, &err), KV_OK);
    ck_assert_int_eq(kv_faults_arm(faults, KV_FAULT_sync_failure, 1, &(struct kv_fault_scope){.tenant = "acme"}, &err), KV_OK);
    struct kv_fault_marks m = kv_faults_match(faults, "acme", NULL, 0);
    ck_assert_int_eq(kv_disk_io_faulty.pwrite(fd, page, sizeof page, 0), (ssize_t)sizeof page);
    kv_faults_at_disk(&m);
    ck_assert_int_eq(kv_disk_io_faulty.pwrite(fd, page, sizeof page, 0), -1);
    ck_assert_int_eq(kv_disk_io_faulty.sync(fd), -1);
    ck_assert_int_eq(kv_disk_io_faulty.sync(fd), 0);
    ck_assert_int_eq(kv_disk_io_faulty.pwrite(fd, page, sizeof page, 0), (ssize_t)sizeof page);
    kv_faults_at_disk(NULL);
    close(fd);
}
END_TEST

Suite *suite_faults(void)
{
    Suite *s = suite_create("faults");
    TCase *t = tcase_create("faults");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, only_those_who_were_named_meet_it);
    tcase_add_test(t, refusals_leave_nothing_armed);
    tcase_add_test(t, an_arming_ends_with_its_scope);
    tcase_add_test(t, every_failure_action_has_its_fault);
    tcase_add_test(t, it_strikes_as_often_as_was_said_however_many_ask);
    tcase_add_test(t, the_disk_fails_for_the_marked_request_alone);
    suite_add_tcase(s, t);
    return s;
}
