/* test_rollback.c — candidates beside and in place of the baseline: rollback and recompute by bits, the gate's actions, shadow units. */
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

Suite *suite_rollback(void);

enum { STEPS = 60, SERVED = 20 };

static void await_resumed(struct kv_engine *e)
{
    struct timespec pause = {.tv_nsec = 200000};
    for (int i = 0; kv_engine_recomputing(e) && i < 100000; i++) nanosleep(&pause, NULL);
    ck_assert_int_eq(kv_engine_recomputing(e), 0);
}

/* Holds the decode thread inside a step, before it publishes. */
struct barrier {
    _Atomic bool standing, go;
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void stand(struct run *r, int32_t position)
{
    struct barrier *b = r->ctx;
    if (position != r->n_prompt + SERVED) return;
    atomic_store(&b->standing, true);
    while (!atomic_load(&b->go)) nap();
}

/* A candidate serves for a while, is rolled back, and the answer goes on as a fresh exact run over the same tokens would. */
START_TEST(after_a_rollback_the_bits_are_the_baselines)
{
    struct run *r = calloc(3, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    struct kv_sampling sampled = {.temperature = 0.9f, .top_p = 0.9f, .top_k = 40, .repetition_penalty = 1.1f, .presence_penalty = 0.2f, .seed = 11};
    install(e, _i < 2 ? "quest" : "layerwise", _i < 2 ? "budget_rows" : NULL, 16, false);
    run_init(&r[0], 31, PROMPT, STEPS);
    run_init(&r[1], 32, 60, STEPS); /* a baseline sequence beside it never notices */
    if (_i == 1) r[0].request.sampling = sampled;
    assign(e, &r[0], KV_APPROXIMATE);
    struct barrier barrier = {0};
    r[0].at = stand;
    r[0].ctx = &barrier;
    run_begin(e, &r[0]);
    run_begin(e, &r[1]);
    run_read(&r[0], SERVED + 1);
    while (!atomic_load(&barrier.standing)) nap();
    struct kv_rollback back;
    kv_engine_rollback(e, &back);
    atomic_store(&barrier.go, true);
    ck_assert_uint_eq(back.epoch, 1);
    ck_assert(!back.already);
    ck_assert_int_eq(back.sequences, 1);
    ck_assert(kv_engine_release(e).latched);
    await_resumed(e);
    run_end(&r[0]);
    run_end(&r[1]);
    ck_assert_int_eq(r[0].n, STEPS);
    /* The step that was in flight published nothing: its token was chosen again. The first token came from the dense prefill. */
    for (int32_t i = 0; i < STEPS; i++) ck_assert_int_eq(r[0].published[i], _i < 2 && i > 0 && i <= SERVED ? KV_APPROXIMATE : KV_EXACT);
    if (_i < 2) {
        ck_assert_int_gt(r[0].stats.n_recomputed, 0);
        ck_assert_int_eq(r[0].stats.published, KV_APPROXIMATE);
    }

    kv_engine_destroy(e);
    e = make_engine(NULL);
    run_init(&r[2], 31, PROMPT, STEPS);
    r[2].request.sampling = r[0].request.sampling;
    r[2].request.force = r[0].ids;
    r[2].request.n_force = _i < 2 ? SERVED + 1 : 0;
    run_all(e, &r[2]);
    same_runs(&r[0], &r[2]); /* tokens chosen after the rollback, and the logits of every recomputed position */
    run_init(&r[2], 32, 60, STEPS);
    run_all(e, &r[2]);
    same_runs(&r[1], &r[2]);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(a_release_moves_only_from_where_it_was_seen)
{
    struct kv_engine *e = make_engine(NULL);
    struct kv_candidate c = {.id = 5, .pipeline = kv_pipeline_find("quest"), .byte_cost = 1};
    struct kv_error err;
    kv_params_default(c.pipeline, &c.params);
    ck_assert_int_eq(kv_engine_install(e, &c, true, 0, 1, &err), KV_OK);
    ck_assert_int_eq(kv_engine_install(e, &c, false, 0, 2, &err), KV_SUPERSEDED);
    struct kv_rollback back;
    kv_engine_rollback(e, &back);
    ck_assert_int_eq(kv_engine_install(e, &c, false, 1, 2, &err), KV_SUPERSEDED);
    kv_engine_rollback(e, &back);
    ck_assert(back.already);
    ck_assert_int_eq(kv_engine_rearm(e, 7, &err), KV_OK);
    ck_assert_int_eq(kv_engine_rearm(e, 8, &err), KV_ILLEGAL_TRANSITION);
    ck_assert_uint_eq(kv_engine_release(e).epoch, 7);
    c.pipeline = kv_pipeline_find("flexgen");
    ck_assert_ptr_nonnull(c.pipeline);
    ck_assert_int_eq(kv_engine_install(e, &c, false, 7, 8, &err), KV_NOT_BUILT);
    kv_engine_destroy(e);
}
END_TEST

/* What may not be served by a candidate is served by the baseline, exactly. */
START_TEST(an_assignment_that_does_not_hold_means_the_baseline)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    install(e, "quest", "budget_rows", 16, _i == 3);
    run_init(r, 8, PROMPT, 6);
    assign(e, r, _i == 0 ? KV_EXACT : KV_APPROXIMATE); /* 0: the contract forbids it; 3: it is in shadow */
    if (_i == 1) r->request.epoch++;
    if (_i == 2) r->request.candidate = 9;
    if (_i == 4) kv_engine_rollback(e, &(struct kv_rollback){0});
    run_all(e, r);
    ck_assert_uint_eq(r->stats.candidate, 0);
    for (int32_t i = 0; i < r->n; i++) ck_assert_int_eq(r->published[i], KV_EXACT);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(a_promotion_in_flight_keeps_the_answer_whole)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    install(e, "quest", "budget_rows", 32, false);
    for (int i = 0; i < 2; i++) run_init(&r[i], 41, PROMPT, STEPS);
    assign(e, &r[0], KV_APPROXIMATE);
    run_all(e, &r[0]);
    assign(e, &r[1], KV_APPROXIMATE);
    run_begin(e, &r[1]);
    for (int32_t i = 1; i < 6; i++) {
        run_read(&r[1], 8 * i);
        install(e, "quest", "budget_rows", 32, false); /* the same candidate under a new epoch: steps in flight are done again */
    }
    run_end(&r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_uint_eq(r[1].stats.candidate, 1);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* Every built pipeline: the answer depends on neither chunk nor threads nor company, and a rollback in its middle ends exact. */
START_TEST(a_pipeline_answers_alike_however_it_is_scheduled)
{
    struct run *r = calloc(3, sizeof *r);
    for (size_t p = 0; p < kv_pipeline_count(); p++) {
        const struct kv_pipeline *pipeline = kv_pipeline_at(p);
        if (!pipeline->built || !strcmp(pipeline->name, "resident")) continue;
        for (int i = 0; i < 2; i++) {
            struct kv_engine_config c;
            kv_engine_config_default(&c);
            c.n_threads = 1 + i;
            c.prefill_chunk = i ? 7 : 512;
            struct kv_engine *e = make_engine(&c);
            install(e, pipeline->name, NULL, 0, false);
            run_init(&r[i], 71, PROMPT, 10);
            assign(e, &r[i], pipeline->exactness);
            run_begin(e, &r[i]);
            if (i) {
                run_init(&r[2], 72, PROMPT, 30);
                assign(e, &r[2], pipeline->exactness);
                run_begin(e, &r[2]);
            }
            run_end(&r[i]);
            ck_assert_uint_eq(r[i].stats.candidate, 1);
            if (i) {
                kv_engine_rollback(e, &(struct kv_rollback){0});
                run_end(&r[2]);
                ck_assert_int_eq(r[2].n, 30);
                ck_assert_int_eq(kv_engine_recomputing(e), 0);
            }
            kv_engine_destroy(e);
        }
        same_runs(&r[0], &r[1]);
    }
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- the gate */

static struct kv_engine_stats gated(struct kv_fallback_table *t, double max_mass, struct run *r)
{
    struct kv_engine *e = make_engine(NULL);
    kv_engine_set_fallback(e, t, max_mass);
    install(e, "quest", "budget_rows", 16, false);
    run_init(r, 51, PROMPT, 12);
    assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    struct kv_engine_stats st;
    kv_engine_drain(e, 5000);
    kv_engine_stats(e, &st);
    kv_engine_destroy(e);
    return st;
}

static void fill(struct kv_fallback_table *t, enum kv_fallback_action a)
{
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        struct kv_fallback_state s;
        kv_fallback_state_of(i, &s);
        t->action[i] = (uint8_t)(a == KV_FALLBACK_ACTIONS ? kv_fallback_source(&s) : a);
    }
}

START_TEST(doubt_widens_once_and_then_fetches_everything)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_fallback_table t;
    fill(&t, KV_FALLBACK_ACTIONS);
    struct kv_engine_stats st = gated(&t, -2, r); /* no estimate, not even "none" (-1), passes */
    ck_assert_uint_gt(st.widened, 0);
    ck_assert_uint_eq(st.widened, st.full_fallbacks);
    ck_assert_uint_eq(st.illegal_fallbacks, 0);
    for (int32_t i = 0; i < r->n; i++) ck_assert_int_eq(r->published[i], KV_EXACT);
    free(r);
}
END_TEST

START_TEST(a_table_of_rejections_is_illegal_where_a_path_is_left)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_fallback_table t;
    fill(&t, KV_REJECT_NO_LEGAL_PATH);
    struct kv_engine_stats st = gated(&t, 1, r);
    ck_assert_uint_gt(st.illegal_fallbacks, 0);
    ck_assert_int_eq(r->stats.finish, KV_FINISH_LENGTH); /* the source's order was followed */
    ck_assert_int_eq(r->published[11], KV_APPROXIMATE);
    free(r);
}
END_TEST

START_TEST(recompute_and_postponement_lose_no_token)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    run_init(&r[1], 51, PROMPT, 12);
    run_all(e, &r[1]);
    kv_engine_destroy(e);
    struct kv_fallback_table t;
    fill(&t, _i ? KV_POSTPONE_FOR_EXACT_RETRY : KV_RECOMPUTE_EXACT);
    struct kv_engine_stats st = gated(&t, -2, &r[0]);
    ck_assert_uint_eq(st.illegal_fallbacks, 0);
    same_runs(&r[0], &r[1]); /* every token was made exactly, so it is the baseline's answer */
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- shadow */

static size_t shadowed(const char *pipeline, bool shadow, struct kv_sample *out, size_t cap, struct kv_engine_stats *st, struct run *r)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.shadow_fraction = 0.2;
    struct kv_engine *e = make_engine(&c);
    install(e, pipeline, strcmp(pipeline, "quest") ? NULL : "budget_rows", 16, shadow);
    run_init(r, 61, PROMPT, 30);
    if (!shadow) assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    kv_engine_drain(e, 5000);
    kv_engine_stats(e, st);
    size_t n = 0, got;
    struct kv_sample s[64];
    while ((got = kv_engine_samples(e, s, 64)))
        for (size_t i = 0; i < got; i++)
            if (s[i].kind == KV_SAMPLE_UNIT && n < cap) out[n++] = s[i];
    kv_engine_destroy(e);
    return n;
}

START_TEST(shadow_measures_and_serves_nothing)
{
    struct run *r = calloc(2, sizeof *r);
    static struct kv_sample a[512], b[512];
    struct kv_engine_stats st;
    size_t n = shadowed("quest", true, a, 512, &st, &r[0]);
    size_t again = shadowed("quest", true, b, 512, &st, &r[1]);
    same_runs(&r[0], &r[1]);
    ck_assert_uint_gt(n, 10);
    ck_assert_uint_eq(n, again);
    ck_assert_uint_eq(st.units_sampled, n);
    ck_assert_uint_eq(st.approximate_tokens, 0);
    double mass = 0;
    for (size_t i = 0; i < n; i++) { /* a replay samples the same units and measures the same */
        ck_assert_int_eq(a[i].layer, b[i].layer);
        ck_assert_int_eq(a[i].kv_head, b[i].kv_head);
        ck_assert(a[i].position == b[i].position && a[i].omitted_mass == b[i].omitted_mass);
        ck_assert(a[i].shadow && a[i].bound_holds && a[i].candidate == 1);
        ck_assert_int_ge(a[i].layer, 2); /* Quest leaves two layers dense */
        mass += a[i].omitted_mass;
    }
    ck_assert(mass > 0);
    free(r);
}
END_TEST

START_TEST(exact_copies_are_compared_by_bits)
{
    struct run *r = calloc(1, sizeof *r);
    static struct kv_sample a[512];
    struct kv_engine_stats st;
    size_t n = shadowed("layerwise", _i == 0, a, 512, &st, r);
    ck_assert_uint_gt(n, 10);
    for (size_t i = 0; i < n; i++) ck_assert(a[i].exact_equal && a[i].shadow == (_i == 0));
    ck_assert_uint_eq(st.exact_mismatches, 0);
    free(r);
}
END_TEST

START_TEST(served_units_are_measured_too)
{
    struct run *r = calloc(1, sizeof *r);
    static struct kv_sample a[512];
    struct kv_engine_stats st;
    size_t n = shadowed("quest", false, a, 512, &st, r);
    ck_assert_uint_gt(n, 10);
    ck_assert_uint_gt(st.approximate_tokens, 0);
    double error = 0;
    for (size_t i = 0; i < n; i++) {
        ck_assert(!a[i].shadow && a[i].bound_holds && a[i].rows_selected < a[i].rows_total);
        error += a[i].output_error;
    }
    ck_assert(error > 0);
    free(r);
}
END_TEST

Suite *suite_rollback(void)
{
    Suite *s = suite_create("rollback");
    TCase *t = tcase_create("rollback");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, after_a_rollback_the_bits_are_the_baselines, 0, 3);
    tcase_add_test(t, a_release_moves_only_from_where_it_was_seen);
    tcase_add_loop_test(t, an_assignment_that_does_not_hold_means_the_baseline, 0, 5);
    tcase_add_test(t, a_promotion_in_flight_keeps_the_answer_whole);
    tcase_add_test(t, a_pipeline_answers_alike_however_it_is_scheduled);
    tcase_add_test(t, doubt_widens_once_and_then_fetches_everything);
    tcase_add_test(t, a_table_of_rejections_is_illegal_where_a_path_is_left);
    tcase_add_loop_test(t, recompute_and_postponement_lose_no_token, 0, 2);
    tcase_add_test(t, shadow_measures_and_serves_nothing);
    tcase_add_loop_test(t, exact_copies_are_compared_by_bits, 0, 2);
    tcase_add_test(t, served_units_are_measured_too);
    suite_add_tcase(s, t);
    return s;
}
