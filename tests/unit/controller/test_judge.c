/* test_judge.c — a verdict takes a moment to act on: it must meet the rollout it is about, and a stage only its own evidence. */
#include "tests/unit/controller/emulated_engine.h"

#include "controller/store/store.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

Suite *suite_judge(void);

static char dir[64];
static struct kv_store *store;
static struct kv_control *control;
static uint64_t first, second;
static _Atomic uint64_t failures, looks; /* looks: how often measurements were asked for */
static _Atomic bool armed;
static pthread_t mover;

static size_t count_looks(void *ctx, struct kv_sample *out, size_t cap)
{
    looks++;
    return emulated_samples(ctx, out, cap);
}

static void looked(uint64_t times, int most_ms)
{
    uint64_t upto = looks + times;
    for (int i = 0; i < most_ms && looks < upto; i++) usleep(1000);
}

static enum kv_status install(void *ctx, const struct kv_candidate *c, bool shadow, uint64_t expected, uint64_t epoch, struct kv_error *err)
{
    if (c && armed) {
        mover = pthread_self();
        failures = 1; /* while nothing was served: of the step that ends */
    }
    return emulated_install(ctx, c, shadow, expected, epoch, err);
}

/* Whoever has just moved the rollout lets the judge go first, if the judge may. */
static void stats(void *ctx, struct kv_engine_stats *out)
{
    if (armed && failures && pthread_equal(mover, pthread_self())) {
        armed = false;
        looked(4, 300);
    }
    emulated_stats(ctx, out);
    out->tenant_failures = failures;
}

static uint64_t create(void)
{
    struct kv_error err = {0};
    uint64_t id = 0;
    struct kv_rollout_request q = {.name = "candidate", .pipeline = "layerwise", .contract = KV_EXACT};
    kv_params_default(kv_pipeline_find("layerwise"), &q.params);
    ck_assert_msg(kv_control_create_rollout(control, &q, "operator:test", &id, &err) == KV_OK, "%s", err.message);
    return id;
}

static enum kv_stage stage_of(uint64_t id)
{
    struct kv_rollout_view v;
    ck_assert_int_eq(kv_control_rollout(control, id, &v, NULL), KV_OK);
    return v.r.stage;
}

/* The gate has spoken and nothing is latched yet: an operator rolls the candidate back by hand, and starts the next one. */
static void overtake(void *ctx, enum kv_control_step at)
{
    (void)ctx;
    struct kv_rollback_answer a;
    if (at != KV_AT_ROLLBACK_BEGIN || !first || second) return;
    second = UINT64_MAX;
    ck_assert_int_eq(kv_control_rollback(control, first, "by hand", "operator:test", &a, NULL), KV_OK);
    kv_control_tick(control);
    second = create();
    kv_control_tick(control);
    ck_assert_int_eq(stage_of(second), KV_STAGE_SHADOW);
}

static void begin(bool manual)
{
    struct kv_error err = {0};
    strcpy(dir, "/tmp/kvasir-judge-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    emulated_reset();
    first = second = failures = looks = 0;
    armed = false;
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = dir}, &store, &err) == KV_OK, "%s", err.message);
    struct kv_release_port port = emulated_port();
    port.install = install;
    port.stats = stats;
    port.samples = count_looks;
    struct kv_control_config c = {.tick_ms = 5, .manual = manual, .probe = manual ? overtake : NULL};
    ck_assert_msg(kv_control_create(port, store, &c, &control, &err) == KV_OK, "%s", err.message);
}

static void tear_down(void)
{
    kv_control_destroy(control);
    kv_store_close(store);
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(a_verdict_on_one_rollout_rolls_no_other_back)
{
    begin(true);
    first = create();
    kv_control_tick(control);
    ck_assert_int_eq(stage_of(first), KV_STAGE_SHADOW);
    failures = 1;
    kv_control_tick(control);
    ck_assert_uint_ne(second, 0);
    ck_assert_int_eq(stage_of(first), KV_STAGE_EXACT_BASELINE);
    ck_assert_int_eq(stage_of(second), KV_STAGE_SHADOW);
    ck_assert(!(emulated.word & EMULATED_LATCH));
    kv_control_tick(control);
    ck_assert_int_eq(stage_of(second), KV_STAGE_SHADOW);
}
END_TEST

START_TEST(a_stage_is_not_judged_by_what_the_one_before_has_left)
{
    begin(false);
    armed = true;
    first = create();
    for (int i = 0; i < 30000 && stage_of(first) == KV_STAGE_OFF; i++) usleep(1000);
    looked(6, 30000); /* judged at least once more */
    ck_assert_int_eq(stage_of(first), KV_STAGE_SHADOW);
    ck_assert_uint_eq(failures, 1);
    ck_assert(!armed);
}
END_TEST

Suite *suite_judge(void)
{
    Suite *s = suite_create("judge");
    TCase *t = tcase_create("races");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, NULL, tear_down);
    tcase_add_test(t, a_verdict_on_one_rollout_rolls_no_other_back);
    tcase_add_test(t, a_stage_is_not_judged_by_what_the_one_before_has_left);
    suite_add_tcase(s, t);
    return s;
}
