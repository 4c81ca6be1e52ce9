/* test_release.c — the stage machine, manifests and which verbs are legal when. */
#include "controller/release/release.h"

#include <check.h>
#include <math.h>
#include <string.h>

static struct kv_manifest quest(void)
{
    struct kv_manifest m;
    memset(&m, 0, sizeof m);
    strcpy(m.name, "quest-64");
    m.pipeline = kv_pipeline_find("quest");
    ck_assert_ptr_nonnull(m.pipeline);
    kv_params_default(m.pipeline, &m.params);
    m.contract = KV_APPROXIMATE;
    return m;
}

static struct kv_rollout fresh(void)
{
    struct kv_rollout r;
    memset(&r, 0, sizeof r);
    r.manifest = quest();
    ck_assert_int_eq(kv_manifest_seal(&r.manifest, NULL), KV_OK);
    r.id = 3;
    r.step = -1;
    r.live = true;
    r.version = 1;
    return r;
}

static enum kv_status advance(struct kv_rollout *r, uint64_t epoch)
{
    struct kv_transition t = {.epoch = epoch, .at_us = (int64_t)epoch * 1000000};
    int32_t step;
    if (!kv_release_next(r, &t.to, &step, &t.fraction)) return KV_ILLEGAL_TRANSITION;
    return kv_release_move(r, &t, step, NULL);
}

START_TEST(walks_every_stage_in_order)
{
    struct kv_rollout r = fresh();
    static const enum kv_stage order[] = {KV_STAGE_SHADOW, KV_STAGE_CANARY, KV_STAGE_RAMP, KV_STAGE_FULL};
    for (uint64_t i = 0; i < 4; i++) {
        ck_assert_int_eq(advance(&r, i + 1), KV_OK);
        ck_assert_int_eq(r.stage, order[i]);
        ck_assert_uint_eq(r.epoch, i + 1);
        ck_assert_uint_eq(r.version, i + 2);
    }
    ck_assert_double_eq(r.fraction, 1);
    ck_assert_int_eq(advance(&r, 9), KV_ILLEGAL_TRANSITION);
    ck_assert_int_eq(r.n_transitions, 4);
    ck_assert_int_eq(r.transitions[2].from, KV_STAGE_CANARY);
}
END_TEST

/* Every pair of stages: what is not in the drawing is refused and changes nothing. */
START_TEST(only_the_drawn_transitions_exist)
{
    static const char *const drawn[] = {"OS", "SC", "CC", "CR", "RR", "RF", "OB", "SB", "CB", "RB", "FB"};
    for (int from = 0; from < KV_STAGES; from++)
        for (int to = 0; to < KV_STAGES; to++) {
            bool want = false;
            for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
                want |= drawn[i][0] == kv_stage_letter((enum kv_stage)from) && drawn[i][1] == kv_stage_letter((enum kv_stage)to);
            bool got = false;
            for (int32_t step = -1; step < 4; step++)
                for (int f = 0; f < 5; f++) {
                    static const double fractions[] = {0, 0.1, 0.3, 0.5, 1};
                    struct kv_rollout r = fresh();
                    static const double at[] = {0, 0, 0.1, 0.5, 1, 0};
                    static const int32_t where[] = {-1, 0, 1, 2, 3, 1};
                    r.stage = (enum kv_stage)from;
                    r.step = where[from];
                    r.fraction = at[from];
                    if (from == to && from == KV_STAGE_CANARY) { /* a second canary step */
                        r.manifest.steps[4] = r.manifest.steps[3];
                        r.manifest.steps[3] = r.manifest.steps[2];
                        r.manifest.steps[2] = (struct kv_step){KV_STAGE_CANARY, 0.3, 10, 0};
                        r.manifest.n_steps = 5;
                    }
                    struct kv_rollout before = r;
                    struct kv_transition t = {.to = (enum kv_stage)to, .fraction = fractions[f], .epoch = 7};
                    if (kv_release_move(&r, &t, step, NULL) == KV_OK) got = true;
                    else ck_assert_mem_eq(&r, &before, sizeof r);
                }
            ck_assert_msg(got == want, "%s to %s: %d", kv_stage_name((enum kv_stage)from), kv_stage_name((enum kv_stage)to), got);
        }
}
END_TEST

START_TEST(the_baseline_is_final)
{
    struct kv_rollout r = fresh();
    ck_assert_int_eq(advance(&r, 1), KV_OK);
    struct kv_transition t = {.to = KV_STAGE_EXACT_BASELINE, .epoch = 2, .at_us = 5};
    ck_assert_int_eq(kv_release_move(&r, &t, 0, NULL), KV_OK);
    ck_assert(!r.live);
    ck_assert_int_eq(r.ended_us, 5);
    ck_assert_int_eq(advance(&r, 3), KV_ILLEGAL_TRANSITION);
    struct kv_transition off = {.to = KV_STAGE_OFF, .epoch = 3};
    ck_assert_int_eq(kv_release_move(&r, &off, -1, NULL), KV_ILLEGAL_TRANSITION);
    ck_assert_int_eq(r.stage, KV_STAGE_EXACT_BASELINE);
}
END_TEST

START_TEST(epochs_only_grow)
{
    struct kv_rollout r = fresh();
    ck_assert_int_eq(advance(&r, 5), KV_OK);
    ck_assert_int_eq(advance(&r, 5), KV_ILLEGAL_TRANSITION);
    ck_assert_int_eq(advance(&r, 6), KV_OK);
}
END_TEST

START_TEST(a_ramp_by_hand_is_not_undone_by_the_next_step)
{
    struct kv_rollout r = fresh();
    r.manifest.steps[3] = (struct kv_step){KV_STAGE_RAMP, 0.7, 5, 0};
    r.manifest.steps[4] = (struct kv_step){KV_STAGE_FULL, 1, 0, 0};
    r.manifest.n_steps = 5;
    for (uint64_t i = 1; i <= 3; i++) ck_assert_int_eq(advance(&r, i), KV_OK);
    struct kv_transition t = {.to = KV_STAGE_RAMP, .fraction = 0.8, .epoch = 4};
    ck_assert_int_eq(kv_release_move(&r, &t, 2, NULL), KV_OK);
    enum kv_stage to;
    int32_t step;
    double fraction;
    ck_assert(kv_release_next(&r, &to, &step, &fraction));
    ck_assert_int_eq(to, KV_STAGE_FULL);
    ck_assert_double_eq(fraction, 1);
}
END_TEST

START_TEST(steps_are_checked)
{
    static const struct {
        struct kv_step s[4];
        int n;
        bool ok;
    } cases[] = {
        {{{KV_STAGE_SHADOW, 0, 1, 0}, {KV_STAGE_CANARY, 0.1, 1, 0}, {KV_STAGE_RAMP, 0.5, 1, 0}, {KV_STAGE_FULL, 1, 0, 0}}, 4, true},
        {{{KV_STAGE_CANARY, 0.1, 1, 0}, {KV_STAGE_RAMP, 0.5, 1, 0}, {KV_STAGE_FULL, 1, 0, 0}}, 3, false},                             /* no shadow */
        {{{KV_STAGE_SHADOW, 0, 1, 0}, {KV_STAGE_CANARY, 0.1, 1, 0}, {KV_STAGE_FULL, 1, 0, 0}}, 3, false},                             /* no ramp */
        {{{KV_STAGE_SHADOW, 0, 1, 0}, {KV_STAGE_CANARY, 0.5, 1, 0}, {KV_STAGE_RAMP, 0.1, 1, 0}, {KV_STAGE_FULL, 1, 0, 0}}, 4, false}, /* shrinks */
        {{{KV_STAGE_SHADOW, 0.1, 1, 0}, {KV_STAGE_CANARY, 0.2, 1, 0}, {KV_STAGE_RAMP, 0.5, 1, 0}, {KV_STAGE_FULL, 1, 0, 0}}, 4, false},
        {{{KV_STAGE_SHADOW, 0, 1, 0}, {KV_STAGE_CANARY, 0.1, 1, 0}, {KV_STAGE_RAMP, 0.5, 1, 0}, {KV_STAGE_FULL, 0.9, 0, 0}}, 4, false},
        {{{KV_STAGE_SHADOW, 0, 1, 0}, {KV_STAGE_CANARY, 0.1, 1, 0}, {KV_STAGE_RAMP, 1, 1, 0}, {KV_STAGE_FULL, 1, 0, 0}}, 4, false},
        {{{KV_STAGE_SHADOW, 0, -1, 0}, {KV_STAGE_CANARY, 0.1, 1, 0}, {KV_STAGE_RAMP, 0.5, 1, 0}, {KV_STAGE_FULL, 1, 0, 0}}, 4, false},
        {{{KV_STAGE_SHADOW, 0, 1, 0}, {KV_STAGE_CANARY, NAN, 1, 0}, {KV_STAGE_RAMP, 0.5, 1, 0}, {KV_STAGE_FULL, 1, 0, 0}}, 4, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_manifest m = quest();
        struct kv_error err = {0};
        memcpy(m.steps, cases[i].s, sizeof cases[i].s);
        m.n_steps = cases[i].n;
        enum kv_status s = kv_manifest_seal(&m, &err);
        ck_assert_msg((s == KV_OK) == cases[i].ok, "case %zu: %s", i, err.message);
        if (s != KV_OK) ck_assert(err.hint[0]);
    }
}
END_TEST

START_TEST(a_manifest_refuses_what_it_cannot_mean)
{
    struct kv_error err;
    struct kv_manifest m = quest();
    m.contract = KV_EXACT;
    ck_assert_int_eq(kv_manifest_seal(&m, &err), KV_CONTRACT_FORBIDS);
    m = quest();
    m.params.value[0] = 1e9;
    ck_assert_int_eq(kv_manifest_seal(&m, &err), KV_BAD_ARGUMENT);
    m = quest();
    strcpy(m.gates[0].metric, "ommitted_mass");
    m.gates[0].threshold = NAN;
    m.n_gates = 1;
    ck_assert_int_eq(kv_manifest_seal(&m, &err), KV_UNKNOWN_METRIC);
    ck_assert_ptr_nonnull(strstr(err.hint, "omitted_mass"));
    for (size_t i = 0; i < kv_pipeline_count(); i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        if (p->built) continue;
        m = quest();
        m.pipeline = p;
        m.contract = p->exactness;
        ck_assert_int_eq(kv_manifest_seal(&m, &err), KV_NOT_BUILT);
        break;
    }
}
END_TEST

/* Each field changes the digest; the bytes read back give the same manifest. */
START_TEST(the_digest_covers_every_field)
{
    struct kv_manifest a = quest();
    ck_assert_int_eq(kv_manifest_seal(&a, NULL), KV_OK);
    struct kv_manifest v[14];
    int n = 0;
    for (int i = 0; i < 14; i++) v[i] = quest();
    v[n].index_share = -1;
    v[n++].byte_cost = 2.5; /* form 3 */
    v[n].byte_cost = 2.5;
    v[n++].index_share = 0;
    v[n].byte_cost = 2.5;
    v[n++].index_share = 3;
    strcpy(v[n++].name, "quest-65");
    ck_assert_int_eq(kv_params_set(v[n].pipeline, &v[n].params, "budget_rows", 128 + (kv_params_get(v[n].pipeline, &v[n].params, "budget_rows") == 128) * 64, NULL), KV_OK);
    n++;
    v[n++].model_artifact[31] ^= 1;
    v[n++].adapter_set[0] ^= 1;
    v[n++].numerics_id[0] ^= 1;
    strcpy(v[n].cohort.tenants[0], "alpha");
    v[n++].cohort.n_tenants = 1;
    strcpy(v[n].cohort.classes[0], "alpha");
    v[n++].cohort.n_classes = 1;
    v[n].n_steps = 4;
    memcpy(v[n].steps, a.steps, sizeof a.steps);
    v[n++].steps[1].min_seconds++;
    v[n].n_gates = a.n_gates;
    memcpy(v[n].gates, a.gates, sizeof a.gates);
    v[n++].gates[0].min_n++;
    for (int i = 0; i < n; i++) {
        struct kv_error err;
        ck_assert_msg(kv_manifest_seal(&v[i], &err) == KV_OK, "%d: %s", i, err.message);
        ck_assert_mem_ne(v[i].digest, a.digest, 32);
        for (int j = 0; j < i; j++) ck_assert_mem_ne(v[i].digest, v[j].digest, 32);
        uint8_t bytes[16384];
        size_t size;
        struct kv_manifest back;
        ck_assert_int_eq(kv_manifest_bytes(&v[i], bytes, sizeof bytes, &size), KV_OK);
        ck_assert_msg(kv_manifest_parse(bytes, size, &back, &err) == KV_OK, "%s", err.message);
        ck_assert_mem_eq(back.digest, v[i].digest, 32);
        ck_assert_int_eq(back.n_steps, v[i].n_steps);
        ck_assert_double_eq(back.byte_cost, v[i].byte_cost);
        ck_assert_double_eq(back.index_share, v[i].byte_cost > 0 ? v[i].index_share : -1);
        for (size_t cut = 0; cut < size; cut += 7) ck_assert_int_ne(kv_manifest_parse(bytes, cut, &back, NULL), KV_OK);
        bytes[size / 2] ^= 1;
        ck_assert_int_ne(kv_manifest_parse(bytes, size, &back, NULL), KV_OK);
    }
}
END_TEST

static struct kv_release_facts facts(void)
{
    return (struct kv_release_facts){.store_ok = true, .now_us = 100 * 1000000};
}

static void expect(const struct kv_rollout *r, enum kv_verb v, const struct kv_release_facts *f, enum kv_status want)
{
    struct kv_error err = {0};
    enum kv_status s = kv_release_may(r, v, f, &err);
    ck_assert_msg(s == want, "%s at %s: %s (%s), wanted %s", kv_verb_name(v), kv_stage_name(r->stage), kv_status_name(s), err.message, kv_status_name(want));
    if (s != KV_OK) ck_assert_msg(err.message[0] != 0, "no reason given");
}

START_TEST(verbs_follow_the_table_and_say_why_not)
{
    struct kv_gate_result pass = {.metric = "omitted_mass", .judged = true, .verdict = KV_PASS}, none = pass, fail = pass;
    none.verdict = KV_NO_DATA;
    fail.verdict = KV_FAILED;
    struct kv_rollout r = fresh();
    struct kv_release_facts f = facts();
    expect(&r, KV_VERB_advance, &f, KV_OK); /* at OFF nothing is judged */
    expect(&r, KV_VERB_ramp, &f, KV_ILLEGAL_TRANSITION);
    expect(&r, KV_VERB_retry, &f, KV_ILLEGAL_TRANSITION);
    expect(&r, KV_VERB_skip, &f, KV_CONFLICT);
    ck_assert_int_eq(advance(&r, 1), KV_OK);
    r.stage_since_us = f.now_us - 3 * 1000000;
    expect(&r, KV_VERB_advance, &f, KV_CONFLICT); /* 7 s are left */
    expect(&r, KV_VERB_skip, &f, KV_OK);
    r.waited = true;
    expect(&r, KV_VERB_skip, &f, KV_CONFLICT);
    expect(&r, KV_VERB_advance, &f, KV_GATE_NO_DATA); /* no gate was evaluated: no data never advances */
    f.n_gates = 1;
    f.gates = &none;
    expect(&r, KV_VERB_advance, &f, KV_GATE_NO_DATA);
    f.gates = &fail;
    expect(&r, KV_VERB_advance, &f, KV_GATE_FAILED);
    f.gates = &pass;
    expect(&r, KV_VERB_advance, &f, KV_OK);
    r.manifest.steps[0].min_samples = 10;
    expect(&r, KV_VERB_advance, &f, KV_GATE_NO_DATA);
    f.samples = 10;
    expect(&r, KV_VERB_advance, &f, KV_OK);
    f.frozen = true;
    expect(&r, KV_VERB_advance, &f, KV_FROZEN);
    expect(&r, KV_VERB_rollback, &f, KV_OK);
    expect(&r, KV_VERB_abort, &f, KV_OK);
    f = facts();
    f.store_ok = false;
    expect(&r, KV_VERB_advance, &f, KV_STORE_UNAVAILABLE);
    expect(&r, KV_VERB_rollback, &f, KV_OK);
    f = facts();
    f.latched = true;
    expect(&r, KV_VERB_advance, &f, KV_SUPERSEDED);
    r.paused = true;
    f = facts();
    f.gates = &pass, f.n_gates = 1, f.samples = 10;
    expect(&r, KV_VERB_advance, &f, KV_CONFLICT);
    expect(&r, KV_VERB_pause, &f, KV_CONFLICT);
    expect(&r, KV_VERB_resume, &f, KV_OK);
    r.live = false;
    r.stage = KV_STAGE_EXACT_BASELINE;
    expect(&r, KV_VERB_retry, &f, KV_OK);
    f.other_live = true;
    expect(&r, KV_VERB_retry, &f, KV_CONFLICT);
    expect(&r, KV_VERB_rollback, &f, KV_CONFLICT);
    expect(&r, KV_VERB_show, &f, KV_OK);
}
END_TEST

START_TEST(ids_read_back)
{
    char text[24];
    uint64_t id;
    kv_rollout_id_format(3, text);
    ck_assert_str_eq(text, "r_000003");
    ck_assert(kv_rollout_id_parse(text, &id) && id == 3);
    static const char *const bad[] = {"", "r_", "r_0", "3", "r_-1", "r_3x", "r_ 3", "r_99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_msg(!kv_rollout_id_parse(bad[i], &id), "%s", bad[i]);
}
END_TEST

Suite *suite_release(void);
Suite *suite_release(void)
{
    Suite *s = suite_create("release");
    TCase *t = tcase_create("release");
    tcase_add_test(t, walks_every_stage_in_order);
    tcase_add_test(t, only_the_drawn_transitions_exist);
    tcase_add_test(t, the_baseline_is_final);
    tcase_add_test(t, epochs_only_grow);
    tcase_add_test(t, a_ramp_by_hand_is_not_undone_by_the_next_step);
    tcase_add_test(t, steps_are_checked);
    tcase_add_test(t, a_manifest_refuses_what_it_cannot_mean);
    tcase_add_test(t, the_digest_covers_every_field);
    tcase_add_test(t, verbs_follow_the_table_and_say_why_not);
    tcase_add_test(t, ids_read_back);
    suite_add_tcase(s, t);
    return s;
}
