/* test_control_resume.c — restarts: a stage is resumed, a rollback stays one, and a state that cannot be trusted leads to the exact baseline. */
#include "tests/unit/controller/control_world.h"

#include "runtime/selection/selector.h"

START_TEST(a_restart_resumes_the_stage)
{
    uint64_t id = create("quest");
    run(15, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_CANARY);
    stop();
    start();
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_CANARY);
    ck_assert(v->r.live);
    ck_assert_uint_eq(engine.candidate, id);
    for (int32_t i = 0; i < v->n_gates; i++) ck_assert_int_ne(v->gates[i].verdict, KV_PASS); /* evidence starts again */
    run(2, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_CANARY);
    run(40, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_FULL);
}
END_TEST

/* From which row and from which token on a rollout selects was settled when it was made: other settings after a restart hold for new ones. */
START_TEST(a_rollout_keeps_what_decides_when_it_selects)
{
    double declared = kv_selector_find("quest")->byte_cost;
    break_even = 0.5;
    index_share = 7;
    stop();
    start();
    create("quest");
    run(15, 0.01, true, 1);
    ck_assert_double_eq(engine.byte_cost, declared * 0.5);
    ck_assert_double_eq(engine.index_share, 7);
    break_even = 3;
    index_share = 0;
    stop();
    start();
    ck_assert_double_eq(engine.byte_cost, declared * 0.5);
    ck_assert_double_eq(engine.index_share, 7);
    break_even = 0;
}
END_TEST

/* One that was made before either was kept goes on as it was approved: bytes alike, and the engine's share. */
START_TEST(a_rollout_of_before_costs_goes_on_as_it_was)
{
    struct kv_rollout r = {.id = 1, .epoch = 1, .version = 1, .stage = KV_STAGE_OFF, .step = -1, .live = true, .stage_since_us = now_us, .created_us = now_us};
    struct kv_error err = {0};
    struct kv_manifest *m = &r.manifest;
    uint64_t receipt;
    break_even = 3;
    index_share = 7;
    stop();
    strcpy(m->name, "old");
    m->pipeline = kv_pipeline_find("quest");
    m->contract = KV_APPROXIMATE;
    m->model_artifact[0] = 1;
    m->index_share = -1;
    kv_params_default(m->pipeline, &m->params);
    ck_assert_msg(kv_manifest_seal(m, &err) == KV_OK, "%s", err.message);
    ck_assert_int_eq(kv_store_open(&(struct kv_store_config){.dir = dir}, &store, &err), KV_OK);
    ck_assert_msg(kv_store_put_rollout(store, &r, "test", "old", &receipt, &err) == KV_OK, "%s", err.message);
    kv_store_close(store);
    start();
    ck_assert_mem_eq(view(1)->r.manifest.digest, m->digest, 32);
    run(15, 0.01, true, 1);
    ck_assert_msg(engine.candidate == 1, "it is at %s", kv_stage_name(view(1)->r.stage));
    ck_assert_double_eq(engine.byte_cost, 1);
    ck_assert_double_eq(engine.index_share, -1);
    break_even = index_share = 0;
}
END_TEST

START_TEST(another_model_is_not_resumed)
{
    uint64_t id = create("quest");
    run(15, 0.01, true, 1);
    stop();
    start_with(2);
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert_int_eq(v->r.transitions[v->r.n_transitions - 1].reason, KV_IDENTITY_MISMATCH);
    ck_assert_uint_eq(engine.candidate, 0);
}
END_TEST

START_TEST(a_forged_database_is_not_resumed)
{
    uint64_t id = create("quest");
    run(15, 0.01, true, 1);
    stop();
    char command[256];
    snprintf(command, sizeof command, "python3 -c \"import sqlite3; c = sqlite3.connect('%s/kvasir.db'); c.execute(\\\"UPDATE rollouts SET stage='FULL', step=3, fraction=1\\\"); c.commit()\"", dir);
    ck_assert_int_eq(system(command), 0);
    start();
    struct kv_rollout_view *v = view(id);
    ck_assert(!v->r.live);
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert_uint_eq(engine.candidate, 0);
}
END_TEST

/* The child dies where `how` says; the parent starts on what is left. */
static pid_t child_until_death(void (*how)(void))
{
    stop();
    pid_t child = fork();
    if (child) {
        int status;
        waitpid(child, &status, 0);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        return child;
    }
    start();
    how();
    kill(getpid(), SIGKILL);
    return 0;
}

static void dies_between_commit_and_act(void)
{
    create("quest");
    run(5, 0.01, true, 1);
    engine.die_in_install = 1;
    run(20, 0.01, true, 1);
    _exit(1);
}
START_TEST(a_committed_advance_is_resumed_at_its_stage)
{
    child_until_death(dies_between_commit_and_act);
    start();
    ck_assert_int_eq(view(1)->r.stage, KV_STAGE_CANARY);
    ck_assert_uint_eq(engine.candidate, 1);
    struct kv_verify_result v;
    ck_assert_int_eq(kv_store_verify(store, &v, NULL), KV_OK);
    ck_assert(v.verified);
}
END_TEST

static void dies_after_the_answer(void)
{
    struct kv_rollback_answer a;
    struct kv_error err;
    create("quest");
    run(15, 0.01, true, 1);
    if (view(1)->r.stage != KV_STAGE_CANARY) _exit(1);
    for (int i = 0; i < 2; i++) /* a second one, too, that finds nothing live */
        if (kv_control_rollback(control, 1, "acknowledged", "operator:me", &a, &err) != KV_OK || !a.durable) _exit(1);
    kill(getpid(), SIGKILL); /* before any tick could record it */
}
START_TEST(an_acknowledged_rollback_survives_kill)
{
    child_until_death(dies_after_the_answer);
    start();
    struct kv_rollout_view *v = view(1);
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    const struct kv_transition *t = &v->r.transitions[v->r.n_transitions - 1];
    ck_assert_int_eq(t->reason, KV_OPERATOR_ROLLBACK);
    ck_assert_str_eq(t->actor, "operator:me");
    ck_assert_uint_gt(t->receipt, 0);
    ck_assert_uint_eq(engine.candidate, 0);
    stop();
    start(); /* and is applied once */
    ck_assert_int_eq(view(1)->r.n_transitions, v->r.n_transitions);
    uint64_t next = create("quest"); /* the record does not touch a later rollout */
    stop();
    start();
    ck_assert_int_eq(view(next)->r.stage, KV_STAGE_OFF);
    ck_assert(view(next)->r.live);
}
END_TEST

static void dies_before_the_answer(void)
{
    struct kv_rollback_answer a;
    struct kv_error err;
    create("quest");
    run(15, 0.01, true, 1);
    engine.die_in_rollback = 1;
    kv_control_rollback(control, 1, "not acknowledged", "operator:me", &a, &err);
    _exit(1);
}
START_TEST(an_unacknowledged_rollback_leaves_a_sound_state)
{
    child_until_death(dies_before_the_answer);
    start();
    ck_assert_int_eq(view(1)->r.stage, KV_STAGE_CANARY); /* nobody was told otherwise */
    ck_assert(kv_store_trusted(store, NULL));
}
END_TEST

Suite *suite_control_resume(void);
Suite *suite_control_resume(void)
{
    Suite *s = suite_create("control_resume");
    TCase *t = tcase_create("control_resume");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_restart_resumes_the_stage);
    tcase_add_test(t, a_rollout_keeps_what_decides_when_it_selects);
    tcase_add_test(t, a_rollout_of_before_costs_goes_on_as_it_was);
    tcase_add_test(t, another_model_is_not_resumed);
    tcase_add_test(t, a_forged_database_is_not_resumed);
    tcase_add_test(t, a_committed_advance_is_resumed_at_its_stage);
    tcase_add_test(t, an_acknowledged_rollback_survives_kill);
    tcase_add_test(t, an_unacknowledged_rollback_leaves_a_sound_state);
    suite_add_tcase(s, t);
    return s;
}
