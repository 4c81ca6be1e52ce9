/* test_control.c — whole rollouts over an emulated engine, a real store and a clock that the test turns. */
#include "tests/unit/controller/control_world.h"

/* ---------------------------------------------------------------- whole rollouts */

START_TEST(a_good_candidate_reaches_full_by_itself)
{
    uint64_t id = create("quest");
    run(45, 0.01, true, 1);
    struct kv_rollout_view *v = view(id);
    ck_assert_msg(v->r.stage == KV_STAGE_FULL, "%s", kv_stage_name(v->r.stage));
    ck_assert(v->r.live);
    ck_assert_int_eq(v->r.n_transitions, 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_str_eq(v->r.transitions[i].actor, "policy:steady");
        ck_assert_uint_gt(v->r.transitions[i].receipt, 0);
        if (i) ck_assert_int_ge(v->r.transitions[i].at_us - v->r.transitions[i - 1].at_us, i > 1 || 1 ? 10000000 : 0);
    }
    ck_assert_uint_eq(engine.candidate, id);
    ck_assert(!engine.shadow);
    ck_assert_double_eq(engine.max_mass, 0.05);
    ck_assert_int_gt(events, 4);
}
END_TEST

/* Whether this machine's gates are honest is asked with the baseline as its own candidate; the arms differ in the candidate's id alone. */
START_TEST(the_baseline_may_be_its_own_candidate)
{
    uint64_t id = create("resident");
    run(45, 0, true, 1);
    struct kv_rollout_view *v = view(id);
    ck_assert_msg(v->r.stage == KV_STAGE_FULL, "%s", kv_stage_name(v->r.stage));
    ck_assert_uint_eq(engine.candidate, id);
}
END_TEST

START_TEST(a_bad_candidate_falls_back_in_shadow)
{
    uint64_t id = create("quest");
    run(5, 0.3, true, 1);
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert(!v->r.live);
    const struct kv_transition *t = &v->r.transitions[v->r.n_transitions - 1];
    ck_assert_int_eq(t->from, KV_STAGE_SHADOW);
    ck_assert_int_eq(t->reason, KV_GATE_FAILED);
    ck_assert_str_eq(t->actor, "gate:omitted_mass");
    ck_assert_uint_gt(t->receipt, 0);
    ck_assert_uint_eq(engine.candidate, 0);
    ck_assert(!(engine.word & LATCH)); /* armed again */
    struct kv_status_view s;
    kv_control_status(control, &s);
    ck_assert_int_eq(s.stage, KV_STAGE_EXACT_BASELINE);
}
END_TEST

START_TEST(rollbacks_are_counted_by_reason)
{
    struct kv_status_view s;
    create("quest");
    run(5, 0.3, true, 1);
    uint64_t next = create("quest");
    struct kv_rollback_answer a;
    struct kv_error err;
    ck_assert_int_eq(kv_control_rollback(control, next, "", "operator:me", &a, &err), KV_OK);
    ck_assert_int_eq(kv_control_rollback(control, next, "again", "operator:me", &a, &err), KV_OK); /* nothing was live any more */
    kv_control_status(control, &s);
    uint64_t all = 0;
    for (int i = 0; i < KV_ROLLBACK_CAUSES; i++) {
        all += s.rollbacks[i];
        if (kv_rollback_cause[i] == KV_GATE_FAILED || kv_rollback_cause[i] == KV_OPERATOR_ROLLBACK) ck_assert_uint_eq(s.rollbacks[i], 1);
    }
    ck_assert_uint_eq(all, 2);
}
END_TEST

START_TEST(one_different_bit_falls_back)
{
    uint64_t id = create("layerwise");
    run(3, 0, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_SHADOW);
    push(&(struct kv_sample){.kind = KV_SAMPLE_UNIT, .candidate = id, .exact_equal = false});
    kv_control_tick(control);
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert_int_eq(v->r.transitions[v->r.n_transitions - 1].reason, KV_EXACT_MISMATCH);
}
END_TEST

START_TEST(a_slow_candidate_falls_back_in_canary)
{
    uint64_t id = create("layerwise");
    run(30, 0, true, 5);
    struct kv_rollout_view *v = view(id);
    ck_assert_msg(v->r.stage == KV_STAGE_EXACT_BASELINE, "%s", kv_stage_name(v->r.stage));
    ck_assert_int_eq(v->r.transitions[v->r.n_transitions - 1].from, KV_STAGE_CANARY);
    ck_assert_str_eq(v->r.transitions[v->r.n_transitions - 1].actor, "gate:tpot_p99_ratio");
}
END_TEST

/* Time alone moves nothing: without measurements a candidate stays in SHADOW. */
START_TEST(no_data_never_advances)
{
    uint64_t id = create("quest");
    for (int i = 0; i < 600; i++) {
        now_us += 1000000;
        kv_control_tick(control);
    }
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_SHADOW);
    struct kv_error err;
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_advance, 0, 0, "", "operator:x", NULL, &err), KV_GATE_NO_DATA);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_SHADOW);
    for (int32_t i = 0; i < v->n_verbs; i++)
        if (v->verbs[i].verb == KV_VERB_advance) ck_assert_msg(!v->verbs[i].enabled && strstr(v->verbs[i].why, "NO_DATA"), "%s", v->verbs[i].why);
}
END_TEST

/* What was measured before a step waits in the engine's ring until the next tick. */
START_TEST(samples_of_the_step_before_do_not_count)
{
    uint64_t id = create("quest");
    run(3, 0.01, true, 1);
    uint64_t before = engine.word;
    for (int i = 0; i < 60 && view(id)->r.stage != KV_STAGE_CANARY; i++) run(1, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_CANARY);
    ck_assert_uint_ne(engine.word, before);
    for (int i = 0; i < 500; i++) push(&(struct kv_sample){.kind = KV_SAMPLE_UNIT, .epoch = before, .candidate = id, .omitted_mass = 0.9, .exact_equal = true, .bound_holds = true});
    kv_control_tick(control);
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_CANARY);
    for (int32_t i = 0; i < v->n_gates; i++)
        if (!strcmp(v->gates[i].metric, "omitted_mass")) ck_assert_msg(!(v->gates[i].value > 0.01), "%g of %llu", v->gates[i].value, (unsigned long long)v->gates[i].n);
}
END_TEST

/* Whoever trusts a candidate with all traffic has seen it be taken back, killed and started again. */
START_TEST(full_waits_for_the_drills)
{
    struct kv_error err = {0};
    drills_before_full = true;
    stop();
    start();
    uint64_t id = create("quest");
    run(60, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_RAMP);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_advance, 0, 0, "", "operator:x", NULL, &err), KV_GATE_NO_DATA);
    ck_assert_msg(strstr(err.message, "drill rollback") && strstr(err.hint, "kvasir rollout drill rollback"), "%s; %s", err.message, err.hint);
    for (int k = 0; k < KV_DRILLS; k++) {
        struct kv_drill_result d = {.drill = (enum kv_drill)k, .at_us = now_us, .checks = 3, .violations = k == KV_DRILL_stall}; /* one that nothing waits for */
        ck_assert_int_eq(kv_store_put_drill(store, &view(id)->r, &d, &err), KV_OK);
    }
    stop();
    start(); /* what passed is the manifest's, not this process's */
    run(60, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_FULL);
}
END_TEST

/* What a chunk is stamped with, also when the rollout has moved on since. */
START_TEST(an_epoch_keeps_its_stage)
{
    uint64_t id = create("quest");
    for (int i = 0; i < 60 && view(id)->r.stage != KV_STAGE_CANARY; i++) run(1, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_CANARY);
    uint64_t canary = engine.word, shadow = view(id)->r.transitions[0].epoch;
    run(5, 0.3, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert_int_eq(kv_control_stage_at(control, shadow), KV_STAGE_SHADOW);
    ck_assert_int_eq(kv_control_stage_at(control, canary), KV_STAGE_CANARY);
    ck_assert_int_eq(kv_control_stage_at(control, engine.word), KV_STAGE_EXACT_BASELINE);
    ck_assert_int_eq(kv_control_stage_at(control, 0), KV_STAGE_OFF);
}
END_TEST

START_TEST(full_stays_reversible)
{
    uint64_t id = create("quest");
    run(45, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_FULL);
    run(10, 0.3, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_EXACT_BASELINE);
}
END_TEST

START_TEST(the_engines_own_counts_fall_back)
{
    uint64_t id = create("quest");
    run(3, 0.01, true, 1);
    engine.stats.illegal_fallbacks++;
    kv_control_tick(control);
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert_str_eq(v->r.transitions[v->r.n_transitions - 1].actor, "gate:illegal_fallbacks");
}
END_TEST

/* ---------------------------------------------------------------- operators */

START_TEST(a_rollback_is_fenced_durable_and_recorded)
{
    uint64_t id = create("quest");
    run(15, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_CANARY);
    struct kv_rollback_answer a;
    struct kv_error err;
    engine.recomputing = 2;
    ck_assert_int_eq(kv_control_rollback(control, id, "at three in the morning", "operator:me", &a, &err), KV_OK);
    ck_assert(a.fenced && a.durable && !a.already && !a.resumed);
    ck_assert_int_eq(a.recomputing, 2);
    ck_assert_int_eq(a.unsent_tokens, 2);
    ck_assert(engine.word & LATCH);
    struct kv_rollout_view *v = view(id); /* true at once, before any tick */
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    struct kv_assignment w;
    struct kv_cohort_key k = {.tenant = "t", .session = "s", .contract = KV_APPROXIMATE};
    kv_control_assign(control, &k, &w);
    ck_assert_uint_eq(w.candidate, 0);
    ck_assert_int_eq(w.stage, KV_STAGE_EXACT_BASELINE);
    kv_control_tick(control);
    v = view(id);
    const struct kv_transition *t = &v->r.transitions[v->r.n_transitions - 1];
    ck_assert_uint_gt(t->receipt, 0);
    ck_assert_str_eq(t->detail, "at three in the morning");
    ck_assert(engine.word & LATCH); /* sequences are still being recomputed */
    struct kv_rollout_request q = {.name = "next", .pipeline = "layerwise"};
    uint64_t next;
    ck_assert_int_eq(kv_control_create_rollout(control, &q, "operator:me", &next, &err), KV_CONFLICT);
    engine.recomputing = 0;
    kv_control_tick(control);
    ck_assert(!(engine.word & LATCH));
    ck_assert_int_eq(kv_control_rollback(control, id, "again", "operator:me", &a, &err), KV_OK); /* idempotent */
    kv_control_tick(control);
    ck_assert_int_eq(kv_control_create_rollout(control, &q, "operator:me", &next, &err), KV_OK);
    ck_assert_int_eq(kv_control_rollback(control, id, "wrong one", "operator:me", &a, &err), KV_CONFLICT);
    ck_assert(!a.fenced);
    ck_assert_int_eq(kv_control_rollback(control, 999, "", "operator:me", &a, &err), KV_NOT_FOUND);
}
END_TEST

static struct kv_rollback_answer overtaking;
static void overtake(void)
{
    struct kv_error err;
    engine.in_install = NULL;
    kv_control_rollback(control, 0, "overtakes", "operator:fast", &overtaking, &err);
}

/* The advance is committed; before the engine takes it a rollback comes. It wins, and the chain tells the whole story. */
START_TEST(a_rollback_beats_a_pending_advance)
{
    uint64_t id = create("quest");
    run(9, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_SHADOW);
    engine.in_install = overtake;
    run(3, 0.01, true, 1);
    ck_assert(overtaking.fenced);
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert_uint_eq(engine.candidate, 0);
    struct kv_receipt_row rows[10];
    int32_t n;
    ck_assert_int_eq(kv_store_flush(store, NULL), KV_OK);
    struct kv_receipt_filter f = {.kind = "SUPERSEDED", .limit = 10};
    ck_assert_int_eq(kv_store_find(store, &f, rows, &n, NULL, NULL), KV_OK);
    ck_assert_int_eq(n, 1);
    stop();
    start();
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert(!view(id)->r.live);
}
END_TEST

/* A rollout moves while people look at it: what they asked holds, unless it depends on where the rollout stands, or another person was there. */
START_TEST(an_advance_in_between_takes_nobodys_click)
{
    uint64_t id = create("quest"), off = view(id)->r.version;
    struct kv_error err;
    run(2, 0.01, true, 1);
    uint64_t shadow = view(id)->r.version;
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_SHADOW);
    ck_assert_uint_gt(shadow, off);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_skip, off, 0, "", "operator:x", NULL, &err), KV_VERSION_CONFLICT);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_advance, off, 0, "", "operator:x", NULL, &err), KV_VERSION_CONFLICT);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_approve, off, 0, "", "operator:x", NULL, &err), KV_OK);
    ck_assert_str_eq(view(id)->r.approver, "operator:x");
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_approve, off, 0, "", "operator:y", NULL, &err), KV_VERSION_CONFLICT); /* somebody was there before */
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_pause, off, 0, "", "operator:y", NULL, &err), KV_OK);
    ck_assert(view(id)->r.paused);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_resume, off, 0, "", "operator:x", NULL, &err), KV_VERSION_CONFLICT);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_pause, view(id)->r.version + 1, 0, "", "operator:x", NULL, &err), KV_VERSION_CONFLICT); /* never was */
    stop();
    start(); /* who made a version is not known any more */
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_resume, shadow, 0, "", "operator:x", NULL, &err), KV_VERSION_CONFLICT);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_abort, off, 0, "", "operator:x", NULL, &err), KV_OK);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_EXACT_BASELINE);
}
END_TEST

/* Only PASS moves forward, whoever asks; backward nothing is asked. */
START_TEST(a_ramp_by_hand_waits_for_the_gates)
{
    uint64_t id = create("quest");
    struct kv_error err = {0};
    for (int i = 0; i < 60 && view(id)->r.stage != KV_STAGE_RAMP; i++) run(1, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_RAMP); /* its evidence has just begun afresh */
    double now = view(id)->r.fraction;
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_skip, 0, 0, "", "operator:x", NULL, &err), KV_OK);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_ramp, 0, 0.97, "", "operator:x", NULL, &err), KV_GATE_NO_DATA);
    ck_assert_msg(strstr(err.hint, "waits for the gates") != NULL, "%s", err.hint);
    ck_assert_double_eq(view(id)->r.fraction, now);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_ramp, 0, now / 2, "", "operator:x", NULL, &err), KV_OK);
    ck_assert_double_eq(view(id)->r.fraction, now / 2);
}
END_TEST

START_TEST(pause_skip_ramp_freeze)
{
    uint64_t id = create("quest");
    struct kv_error err;
    run(2, 0.01, true, 1);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_pause, 0, 0, "", "operator:x", NULL, &err), KV_OK);
    run(20, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_SHADOW);
    uint64_t version = view(id)->r.version;
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_resume, version - 1, 0, "", "operator:x", NULL, &err), KV_VERSION_CONFLICT);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_resume, version, 0, "", "operator:x", NULL, &err), KV_OK);
    run(1, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_CANARY);
    run(3, 0.01, true, 1);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_skip, 0, 0, "", "operator:x", NULL, &err), KV_OK);
    run(1, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_RAMP); /* the waiting time ended, the gates had passed */
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_ramp, 0, 0.7, "", "operator:x", NULL, &err), KV_CONFLICT); /* one change at a time */
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_skip, 0, 0, "", "operator:x", NULL, &err), KV_OK);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_ramp, 0, 1, "", "operator:x", NULL, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_ramp, 0, 0.1, "", "operator:x", NULL, &err), KV_OK);
    ck_assert_double_eq(view(id)->r.fraction, 0.1);
    ck_assert_int_eq(kv_control_freeze(control, true, "exam", "operator:x", &err), KV_OK);
    run(20, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_RAMP);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_advance, 0, 0, "", "operator:x", NULL, &err), KV_FROZEN);
    stop();
    start(); /* a freeze is no property of one process */
    struct kv_status_view s;
    kv_control_status(control, &s);
    ck_assert(s.frozen);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_abort, 0, 0, "enough", "operator:x", NULL, &err), KV_OK);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert_int_eq(kv_control_freeze(control, false, "", "operator:x", &err), KV_OK);
    kv_control_tick(control);
    uint64_t again = 0;
    ck_assert_msg(kv_control_verb(control, id, KV_VERB_retry, 0, 0, "", "operator:x", &again, &err) == KV_OK, "%s", err.message);
    ck_assert_uint_eq(again, id + 1);
    ck_assert_int_eq(view(again)->r.stage, KV_STAGE_OFF);
    ck_assert_mem_eq(view(again)->r.manifest.digest, view(id)->r.manifest.digest, 32);
}
END_TEST

START_TEST(one_rollout_is_live_and_full_makes_room)
{
    uint64_t id = create("quest"), next;
    struct kv_rollout_request q = {.name = "other", .pipeline = "layerwise"};
    struct kv_error err;
    run(2, 0.01, true, 1);
    ck_assert_int_eq(kv_control_create_rollout(control, &q, "operator:x", &next, &err), KV_CONFLICT);
    run(45, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_FULL);
    ck_assert_int_eq(kv_control_create_rollout(control, &q, "operator:x", &next, &err), KV_OK);
    ck_assert(!view(id)->r.live);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_FULL);
    ck_assert_int_eq(view(next)->r.stage, KV_STAGE_OFF);
    ck_assert_uint_eq(engine.candidate, 0);
}
END_TEST

/* ---------------------------------------------------------------- policies */

START_TEST(policies_change_and_faults_hold)
{
    struct kv_policy_view p[KV_POLICY_KINDS];
    struct kv_error err;
    kv_control_policies(control, p);
    ck_assert_str_eq(p[KV_POLICY_RELEASE].name, "steady");
    static const char hold[] = "return {api=1,name='holder',release=function() return {action='HOLD'} end}";
    ck_assert_int_eq(kv_control_activate(control, KV_POLICY_RELEASE, hold, sizeof hold - 1, "operator:x", &err), KV_OK);
    uint64_t id = create("quest");
    run(15, 0.01, true, 1);
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_OFF);
    static const char bad[] = "return {api=1,name='bad',release=function() return nil end}";
    ck_assert_int_eq(kv_control_activate(control, KV_POLICY_RELEASE, bad, sizeof bad - 1, "operator:x", &err), KV_POLICY_SHAPE);
    static const char late[] = "return {api=1,name='late',release=function(s, g, h) if h.seconds_in_step > 1000 then while true do end end return {action='HOLD'} end}";
    ck_assert_int_eq(kv_control_activate(control, KV_POLICY_RELEASE, late, sizeof late - 1, "operator:x", &err), KV_OK);
    now_us += 2000000000LL;
    for (int i = 0; i < 2; i++) kv_control_tick(control); /* a third fault would bring the version before it back */
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_OFF); /* a stopped policy holds */
    kv_control_policies(control, p);
    ck_assert_uint_gt(p[KV_POLICY_RELEASE].faults, 0);
    struct kv_receipt_row rows[4];
    int32_t n;
    struct kv_receipt_filter f = {.kind = "POLICY_FAULT", .limit = 4};
    ck_assert_int_eq(kv_store_find(store, &f, rows, &n, NULL, NULL), KV_OK);
    ck_assert_int_ge(n, 1);
    ck_assert_int_eq(rows[0].r.reason, KV_POLICY_BUDGET);
    stop();
    start(); /* the active version is the stored one */
    kv_control_policies(control, p);
    ck_assert_str_eq(p[KV_POLICY_RELEASE].name, "late");
}
END_TEST

START_TEST(a_policy_may_roll_back_and_never_advance_alone)
{
    struct kv_error err;
    static const char eager[] = "return {api=1,name='eager',release=function() return {action='ADVANCE'} end}";
    ck_assert_int_eq(kv_control_activate(control, KV_POLICY_RELEASE, eager, sizeof eager - 1, "operator:x", &err), KV_OK);
    uint64_t id = create("quest");
    for (int i = 0; i < 100; i++) {
        now_us += 1000000;
        kv_control_tick(control);
    }
    ck_assert_int_eq(view(id)->r.stage, KV_STAGE_SHADOW);
    static const char timid[] = "return {api=1,name='timid',release=function() return {action='ROLLBACK', reason='I am afraid'} end}";
    ck_assert_int_eq(kv_control_activate(control, KV_POLICY_RELEASE, timid, sizeof timid - 1, "operator:x", &err), KV_OK);
    kv_control_tick(control);
    struct kv_rollout_view *v = view(id);
    ck_assert_int_eq(v->r.stage, KV_STAGE_EXACT_BASELINE);
    ck_assert_int_eq(v->r.transitions[v->r.n_transitions - 1].reason, KV_POLICY_ROLLBACK);
}
END_TEST

/* ---------------------------------------------------------------- threads */

static _Atomic bool over;
static void *reader(void *arg)
{
    struct kv_rollout_view *v = malloc(4 * sizeof *v);
    struct kv_status_view *s = malloc(sizeof *s);
    (void)arg;
    for (uint64_t i = 0; !over; i++) {
        int32_t n = 4;
        struct kv_assignment a;
        char session[16];
        snprintf(session, sizeof session, "s%d", (int)(i % 100));
        struct kv_cohort_key k = {.tenant = "t", .session = session, .contract = KV_APPROXIMATE};
        struct kv_admission_request r = {.slack_ms = -1, .backend_bytes = 1, .staging_bytes = 1};
        struct kv_admission_credits c = {1, 1, 1, 1};
        struct kv_admission_answer d;
        kv_control_rollouts(control, v, &n);
        kv_control_status(control, s);
        kv_control_assign(control, &k, &a);
        kv_control_started(control, i, a.arm);
        kv_control_admission(control, &r, &c, &d);
    }
    free(v);
    free(s);
    return NULL;
}

START_TEST(readers_and_operators_beside_the_thread)
{
    stop();
    struct kv_error err = {0};
    memset(&engine, 0, sizeof engine);
    struct kv_release_port port = {NULL, install, rearm, word, rollback, recomputing, set_fallback, samples, stats};
    ck_assert_int_eq(kv_store_open(&(struct kv_store_config){.dir = dir}, &store, NULL), KV_OK);
    struct kv_control_config c = {.tick_ms = 1, .model_artifact = {1}};
    ck_assert_msg(kv_control_create(port, store, &c, &control, &err) == KV_OK, "%s", err.message);
    pthread_t t[2];
    over = false;
    for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, reader, NULL);
    for (int round = 0; round < 10; round++) {
        struct kv_rollout_request q = {.name = "candidate", .pipeline = "quest", .contract = KV_APPROXIMATE};
        uint64_t id;
        kv_params_default(kv_pipeline_find("quest"), &q.params);
        enum kv_status s;
        while ((s = kv_control_create_rollout(control, &q, "operator:t", &id, &err)) == KV_CONFLICT) usleep(500); /* the last rollback is being recorded */
        ck_assert_msg(s == KV_OK, "%s", err.message);
        struct kv_rollback_answer a;
        ck_assert_int_eq(kv_control_rollback(control, id, "round", "operator:t", &a, &err), KV_OK);
        ck_assert(a.fenced && a.durable);
    }
    over = true;
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
}
END_TEST

Suite *suite_control(void);
Suite *suite_control(void)
{
    Suite *s = suite_create("control");
    TCase *t = tcase_create("control");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_good_candidate_reaches_full_by_itself);
    tcase_add_test(t, the_baseline_may_be_its_own_candidate);
    tcase_add_test(t, a_bad_candidate_falls_back_in_shadow);
    tcase_add_test(t, rollbacks_are_counted_by_reason);
    tcase_add_test(t, one_different_bit_falls_back);
    tcase_add_test(t, a_slow_candidate_falls_back_in_canary);
    tcase_add_test(t, no_data_never_advances);
    tcase_add_test(t, samples_of_the_step_before_do_not_count);
    tcase_add_test(t, full_waits_for_the_drills);
    tcase_add_test(t, an_epoch_keeps_its_stage);
    tcase_add_test(t, full_stays_reversible);
    tcase_add_test(t, the_engines_own_counts_fall_back);
    tcase_add_test(t, a_rollback_is_fenced_durable_and_recorded);
    tcase_add_test(t, a_rollback_beats_a_pending_advance);
    tcase_add_test(t, an_advance_in_between_takes_nobodys_click);
    tcase_add_test(t, a_ramp_by_hand_waits_for_the_gates);
    tcase_add_test(t, pause_skip_ramp_freeze);
    tcase_add_test(t, one_rollout_is_live_and_full_makes_room);
    tcase_add_test(t, policies_change_and_faults_hold);
    tcase_add_test(t, a_policy_may_roll_back_and_never_advance_alone);
    tcase_add_test(t, readers_and_operators_beside_the_thread);
    suite_add_tcase(s, t);
    return s;
}
