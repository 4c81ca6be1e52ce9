/* test_hung_store.c — a disk that hangs: no write fails and none returns. Gates are judged all the same, and what stops a candidate does not wait. */
#include "tests/unit/controller/emulated_engine.h"

#include "controller/store/store_internal.h"

#include <check.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

Suite *suite_hung_store(void);

static char dir[64];
static struct kv_store *store;
static struct kv_control *control;
static uint64_t id;
static sem_t hung, go_on;
static pthread_t writer;
static _Atomic uint64_t illegal;
static _Atomic int told;

static void stats(void *ctx, struct kv_engine_stats *out)
{
    emulated_stats(ctx, out);
    out->illegal_fallbacks = illegal;
}

static void on_event(void *ctx, enum kv_control_event what, uint64_t rollout, const char *line)
{
    (void)ctx, (void)rollout;
    if (what == KV_EVENT_LOG && strstr(line, "back on the exact baseline by")) told++;
}

static enum kv_status hang(struct kv_store *s, void *arg, struct kv_error *err)
{
    (void)s, (void)arg, (void)err;
    sem_post(&hung);
    sem_wait(&go_on);
    return KV_OK;
}

static void *write_something(void *arg)
{
    (void)arg;
    kv_store_run(store, hang, NULL, NULL);
    return NULL;
}

static bool latched(void)
{
    return emulated.word & EMULATED_LATCH;
}

/* Until it is so, or half a minute is over. */
static bool comes(bool (*so)(void))
{
    for (int i = 0; i < 6000 && !so(); i++) usleep(5000);
    return so();
}

static bool in_shadow(void)
{
    struct kv_rollout_view v;
    return kv_control_rollout(control, id, &v, NULL) == KV_OK && v.r.stage == KV_STAGE_SHADOW;
}

static void set_up(void)
{
    struct kv_error err = {0};
    strcpy(dir, "/tmp/kvasir-hung-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    emulated_reset();
    illegal = 0;
    told = 0;
    sem_init(&hung, 0, 0);
    sem_init(&go_on, 0, 0);
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = dir}, &store, &err) == KV_OK, "%s", err.message);
    struct kv_release_port port = emulated_port();
    port.stats = stats;
    struct kv_control_config c = {.tick_ms = 5, .store_patience_ms = 50, .on_event = on_event};
    ck_assert_msg(kv_control_create(port, store, &c, &control, &err) == KV_OK, "%s", err.message);
    struct kv_rollout_request q = {.name = "candidate", .pipeline = "layerwise", .contract = KV_EXACT};
    kv_params_default(kv_pipeline_find("layerwise"), &q.params);
    ck_assert_msg(kv_control_create_rollout(control, &q, "operator:test", &id, &err) == KV_OK, "%s", err.message);
    ck_assert(comes(in_shadow));
    ck_assert_int_eq(pthread_create(&writer, NULL, write_something, NULL), 0);
    sem_wait(&hung);
}

static void tear_down(void)
{
    sem_post(&go_on);
    pthread_join(writer, NULL);
    kv_control_destroy(control);
    kv_store_close(store);
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(a_gate_that_fails_falls_back)
{
    illegal = 1;
    ck_assert(comes(latched));
    struct kv_status_view v;
    kv_control_status(control, &v);
    ck_assert_int_eq(v.stage, KV_STAGE_EXACT_BASELINE);
    for (int i = 0; i < 6000 && !told; i++) usleep(5000);
    ck_assert_int_eq(told, 1); /* before anything is recorded */
}
END_TEST

START_TEST(an_abort_takes_effect)
{
    struct kv_error err = {0};
    ck_assert_msg(kv_control_verb(control, id, KV_VERB_abort, 0, 0, "", "operator:test", NULL, &err) == KV_OK, "%s", err.message);
    ck_assert(latched());
}
END_TEST

/* The thread that records is, or soon will be, waiting for the disk with the mutex of all other verbs. */
START_TEST(a_freeze_takes_effect)
{
    struct kv_error err = {0};
    struct kv_status_view v;
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_freeze, 0, 0, "the disk hangs", "operator:test", NULL, &err), KV_STORE_UNAVAILABLE);
    ck_assert_str_eq(err.where, "freeze");
    kv_control_status(control, &v);
    ck_assert(v.frozen);
    int64_t frozen = 0;
    ck_assert_int_eq(kv_store_load_setting(store, "frozen", &frozen, &err), KV_OK);
    ck_assert_int_eq(frozen, 0);
    sem_post(&go_on); /* written down as soon as that can be */
    for (int i = 0; i < 6000 && !frozen; i++) {
        ck_assert_int_eq(kv_store_load_setting(store, "frozen", &frozen, &err), KV_OK);
        usleep(5000);
    }
    ck_assert_int_eq(frozen, 1);
    ck_assert_int_eq(kv_control_freeze(control, false, "", "operator:test", &err), KV_OK);
    kv_control_status(control, &v);
    ck_assert(!v.frozen);
}
END_TEST

/* Nothing is wrong with the candidate: what it does cannot be written down any more. */
START_TEST(patience_ends)
{
    struct kv_status_view v;
    ck_assert(comes(latched));
    for (int i = 0; i < 6000; i++) { /* told a moment after it acts */
        kv_control_status(control, &v);
        if (!v.store.ok) break;
        usleep(5000);
    }
    ck_assert(!v.store.ok);
    ck_assert_int_gt(v.store.failing_since_us, 0);
    sem_post(&go_on); /* one that comes back is well again, and the rollback is recorded */
    struct kv_rollout_view r;
    for (int i = 0; i < 6000; i++) {
        ck_assert_int_eq(kv_control_rollout(control, id, &r, NULL), KV_OK);
        if (r.r.transitions[r.r.n_transitions - 1].receipt) break;
        usleep(5000);
    }
    ck_assert_uint_gt(r.r.transitions[r.r.n_transitions - 1].receipt, 0);
    ck_assert_int_eq(r.r.transitions[r.r.n_transitions - 1].reason, KV_STORE_UNAVAILABLE);
    struct kv_store_health h;
    kv_store_health(store, &h);
    ck_assert_int_eq(h.failing_since_us, 0);
}
END_TEST

Suite *suite_hung_store(void)
{
    Suite *s = suite_create("hung_store");
    TCase *t = tcase_create("hung");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, a_gate_that_fails_falls_back);
    tcase_add_test(t, an_abort_takes_effect);
    tcase_add_test(t, a_freeze_takes_effect);
    tcase_add_test(t, patience_ends);
    suite_add_tcase(s, t);
    return s;
}
