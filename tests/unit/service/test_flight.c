/* test_flight.c — what the runtime keeps of every selection, and that an index of other rows, parameters or fewer rows, or an output that is no number,
 * never reaches what is published. */
#include "runtime/residency/faults.h"
#include "runtime/selection/selector.h"
#include "runtime/service/engine.h"
#include "runtime/service/fallback.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 16, RECEIPTS = 4096, HURT = PROMPT + 5 };

static struct {
    struct kv_receipt receipt[RECEIPTS];
    int n;
} sink;

static bool emit(void *ctx, const struct kv_receipt *r)
{
    (void)ctx;
    if (sink.n < RECEIPTS) sink.receipt[sink.n++] = *r;
    return true;
}

static const struct { const char *name; double value; } small[] = {{"page_rows", 8}, {"budget_rows", 24}, {"k", 16}, {"local_rows", 8}, {"cap_rows", 16}, {"sink_rows", 4}, {"top_rows", 8}, {"bits", 4},
                                                                   {"unit_rows", 8}, {"units", 1}, {"rows_per_cluster", 12}, {"tables", 4}};

static struct kv_engine *serving(const char *name, struct kv_faults *faults)
{
    struct kv_engine_config c;
    struct kv_error err = {0};
    struct kv_candidate k = {.id = 1, .pipeline = kv_pipeline_find(name), .byte_cost = KV_BREAK_EVEN_LEAST};
    kv_params_default(k.pipeline, &k.params);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) kv_params_set(k.pipeline, &k.params, small[i].name, small[i].value, NULL); /* those it has */
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.index_share = 0;
    c.shadow_fraction = 0;
    c.faults = faults;
    c.sink = (struct kv_receipt_sink){NULL, emit};
    sink.n = 0;
    struct kv_engine *e = make_engine(&c);
    struct kv_release_word w = kv_engine_release(e);
    ck_assert_msg(kv_engine_install(e, &k, false, w.epoch, w.epoch + 1, &err) == KV_OK, "%s", err.message);
    struct kv_fallback_table t;
    kv_fallback_source_table(&t);
    kv_engine_set_fallback(e, &t, 1); /* no omitted mass is too much */
    return e;
}

static struct kv_engine_stats ended(struct kv_engine *e)
{
    struct kv_engine_stats st;
    kv_engine_drain(e, 5000);
    kv_engine_stats(e, &st);
    return st;
}

static int approximate(const struct run *r)
{
    int n = 0;
    for (int32_t i = 0; i < r->n; i++) n += r->published[i] == KV_APPROXIMATE;
    return n;
}

/* Every head of every step that selects leaves a record that names its operation, and a replay leaves the same supports. */
START_TEST(every_selection_leaves_a_record)
{
    struct run *r = calloc(2, sizeof *r);
    struct kv_flight *f = calloc(2 * 4096, sizeof *f);
    int32_t n[2], layers = kv_model_info(demo_model())->n_layers, heads = kv_model_info(demo_model())->n_kv_heads;
    for (int k = 0; k < 2; k++) {
        struct kv_engine *e = serving("quest", NULL);
        run_init(&r[k], 5, PROMPT, STEPS);
        assign(e, &r[k], KV_APPROXIMATE);
        run_all(e, &r[k]);
        ck_assert_int_gt(approximate(&r[k]), 0);
        n[k] = kv_engine_flight(e, r[k].stats.id, f + k * 4096, 4096);
        ck_assert_int_eq(kv_engine_flight(e, r[k].stats.id + 1, f + k * 4096 + n[k], 4096 - n[k]), 0);
        kv_engine_destroy(e);
    }
    ck_assert_int_eq(n[0], (STEPS - 1) * (layers - kv_selector_find("quest")->dense_layers) * heads);
    ck_assert_int_eq(n[1], n[0]);
    uint64_t last = 0;
    for (int32_t i = 0; i < n[0]; i++) {
        const struct kv_flight *a = &f[i];
        ck_assert_uint_gt(a->order, last);
        last = a->order;
        ck_assert(a->request == r[0].stats.id && a->candidate == 1 && a->status == KV_OK && a->action == KV_ACCEPT_APPROXIMATE);
        ck_assert(a->frontier == a->position + 1 && a->covered == a->frontier && a->index >= 2 && a->rows > 0 && a->rows < a->frontier && a->support);
        bool met = false;
        for (int32_t j = 0; j < n[1] && !met; j++) {
            const struct kv_flight *b = &f[4096 + j];
            met = a->position == b->position && a->layer == b->layer && a->kv_head == b->kv_head && a->support == b->support && a->rows == b->rows && a->index == b->index;
        }
        ck_assert_msg(met, "nothing of the replay is as position %d layer %d head %d", a->position, a->layer, a->kv_head);
    }
    ck_assert_int_eq(sink.n > 0, 1);
    free(f);
    free(r);
}
END_TEST

static const struct { enum kv_fault fault; enum kv_status reason; } harms[] = {{KV_FAULT_swapped_index, KV_IDENTITY_MISMATCH}, {KV_FAULT_aged_index, KV_STALE_SELECTOR_GENERATION},
                                                                               {KV_FAULT_index_before_row, KV_STALE_INDEX}, {KV_FAULT_forced_candidate_cap, KV_BUDGET_EXCEEDED}};

/* What is published is what every row gives; the fallback is typed, counted, receipted, and the receipt names a copy of the records that show it. */
START_TEST(an_index_that_may_not_answer_is_never_served)
{
    const char *name = kv_selector_at((size_t)_i / 4)->name;
    enum kv_status reason = harms[_i % 4].reason;
    struct run *r = calloc(2, sizeof *r);
    struct kv_faults *faults;
    struct kv_error err = {0};
    ck_assert_int_eq(kv_faults_create(&faults), KV_OK);
    struct kv_engine *e = serving(name, faults);
    ck_assert_msg(kv_faults_arm(faults, harms[_i % 4].fault, KV_FAULT_EVERY, &(struct kv_fault_scope){.tenant = "acme"}, &err) == KV_OK, "%s", err.message);
    run_init(&r[0], 7, PROMPT, STEPS);
    run_init(&r[1], 7, PROMPT, STEPS);
    r[0].request.tenant = "acme";
    assign(e, &r[0], KV_APPROXIMATE);
    run_all(e, &r[0]);
    run_all(e, &r[1]);
    struct kv_engine_stats st = ended(e);
    same_runs(&r[0], &r[1]);
    ck_assert_int_eq(approximate(&r[0]), 0);
    ck_assert_msg(st.full_fallbacks > 0 && (reason == KV_BUDGET_EXCEEDED ? st.budget_exceeded : st.index_stale) == st.full_fallbacks && !st.index_missed && !st.not_finite,
                  "%s: %llu full fallbacks, %llu stale, %llu over budget", name, (unsigned long long)st.full_fallbacks, (unsigned long long)st.index_stale, (unsigned long long)st.budget_exceeded);
    struct kv_flight_copy *copy = calloc(1, sizeof *copy);
    uint64_t kept = 0;
    while (kv_engine_flight_copy(e, copy)) {
        int named = 0;
        uint8_t digest[32];
        kv_sha256(copy->record, (size_t)copy->n * sizeof *copy->record, digest);
        ck_assert_mem_eq(digest, copy->digest, 32);
        for (int i = 0; i < sink.n; i++) named += sink.receipt[i].kind == KV_RECEIPT_FALLBACK && sink.receipt[i].reason == reason && !memcmp(sink.receipt[i].digest, digest, 32);
        ck_assert_int_eq(named, 1);
        const struct kv_flight *f = &copy->record[copy->n - 1];
        ck_assert(f->request == r[0].stats.id && f->status == reason && f->action == KV_FULL_EXACT_FETCH && f->rows == f->frontier && !f->support);
        kept++;
    }
    ck_assert_uint_gt(kept, 0);
    ck_assert_uint_eq(kept, st.flights_kept);
    ck_assert_uint_le(kept, 8); /* however often it strikes */
    kv_engine_destroy(e);
    kv_faults_destroy(faults);
    free(copy);
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- what is not a number */

static int32_t hurt_layer;
static int visits;

static void hurt_once(void *ctx, int32_t position, int32_t layer, int operation, float *x, int32_t n)
{
    (void)ctx;
    if (position != HURT || layer != hurt_layer || operation != KV_OP_value || visits++) return;
    for (int32_t i = 0; i < n; i++) x[i] = NAN;
}

/* A value that is no number in a row that is attended: the step is found out before it is published and run again over every row. */
START_TEST(what_is_not_a_number_is_computed_again)
{
    const char *name = kv_selector_at((size_t)_i)->name;
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = serving(name, NULL);
    hurt_layer = kv_model_info(demo_model())->n_layers - 1;
    visits = 0;
    run_init(r, 9, PROMPT, STEPS);
    r->request.trace = hurt_once;
    assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    struct kv_engine_stats st = ended(e);
    ck_assert_int_eq(visits, 2);
    ck_assert_uint_eq(st.not_finite, 1);
    ck_assert_int_eq(r->n, STEPS);
    ck_assert_int_eq(r->stats.finish, KV_FINISH_LENGTH);
    ck_assert_uint_eq(r->stats.candidate, 1);
    int told = 0;
    for (int i = 0; i < sink.n; i++) told += sink.receipt[i].kind == KV_RECEIPT_FALLBACK && sink.receipt[i].reason == KV_NAN_ATTENTION && !strcmp(sink.receipt[i].detail, "POSTPONE_FOR_EXACT_RETRY");
    ck_assert_int_eq(told, 1);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

static struct kv_engine *hurt_engine;
static bool hurt_key;

static void hurt_row(struct run *r, int32_t position) /* on the decode thread, between two steps */
{
    (void)r;
    if (position != HURT) return;
    struct kv_cache *c = &hurt_engine->live[0]->cache;
    for (int32_t l = 2; l < c->n_layers; l++)
        for (int32_t h = 0; h < c->n_kv_heads; h++) {
            uint8_t *slab = c->slab[l * c->max_blocks + 1];
            const void *half = hurt_key ? kv_slab_k(c, slab, h) : kv_slab_v(c, slab, h);
            ((uint16_t *)(uintptr_t)half)[10 * c->d_head + c->d_head / 2] = 0x7e00; /* one channel of row 74 */
        }
}

/* One damaged channel of one row, for good. A method that leaves the row out may go on without it; whoever reads it publishes nothing that came of it. */
START_TEST(a_damaged_row_publishes_nothing)
{
    const char *name = kv_selector_at((size_t)_i / 2)->name;
    struct run *r = calloc(1, sizeof *r);
    hurt_engine = serving(name, NULL);
    hurt_key = _i % 2;
    run_init(r, 11, PROMPT, STEPS);
    r->at = hurt_row;
    assign(hurt_engine, r, KV_APPROXIMATE);
    run_all(hurt_engine, r);
    struct kv_engine_stats st = ended(hurt_engine);
    if (st.not_finite) {
        ck_assert_int_eq(r->stats.status, KV_NAN_LOGITS);
        ck_assert_int_lt(r->n, STEPS);
    } else {
        ck_assert_int_eq(r->stats.finish, KV_FINISH_LENGTH);
        int32_t n = kv_engine_flight(hurt_engine, r->stats.id, (struct kv_flight[1]){{0}}, 1);
        ck_assert_int_eq(n, 1);
    }
    kv_engine_destroy(hurt_engine);
    free(r);
}
END_TEST

static void hurt_new_key(void *ctx, int32_t position, int32_t layer, int operation, float *x, int32_t n)
{
    (void)ctx;
    for (int32_t i = 0; i < n && position == HURT && layer == hurt_layer && operation == KV_OP_key; i++) x[i] = NAN;
}

/* An estimate over a damaged key is no number, and nothing compares with that: not that it is too large either. */
START_TEST(an_estimate_that_is_no_number_accepts_nothing)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_flight *f = calloc(4096, sizeof *f);
    struct kv_engine *e = serving("sparq", NULL);
    hurt_layer = kv_model_info(demo_model())->n_layers - 1;
    run_init(r, 11, PROMPT, STEPS);
    r->request.trace = hurt_new_key;
    assign(e, r, KV_APPROXIMATE);
    run_all(e, r);
    (void)ended(e);
    int32_t n = kv_engine_flight(e, r->stats.id, f, 4096), accepted = 0, refused = 0;
    for (int32_t i = 0; i < n; i++) {
        if (f[i].layer != hurt_layer) continue;
        *(f[i].action == KV_ACCEPT_APPROXIMATE ? &accepted : &refused) += 1;
        ck_assert_msg(f[i].position < HURT || f[i].action != KV_ACCEPT_APPROXIMATE, "accepted at position %d", f[i].position);
    }
    ck_assert(accepted > 0 && refused > 0);
    kv_engine_destroy(e);
    free(f);
    free(r);
}
END_TEST

static void omit_once(void *ctx, int32_t position, int32_t layer, int operation, float *x, int32_t n)
{
    (void)ctx, (void)layer, (void)x, (void)n;
    if (position == HURT && operation == KV_OP_value && !visits++) atomic_fetch_or(&hurt_engine->live[0]->verdict, KV_STEP_OMITTED);
}

/* _i 0: on the baseline. 1: with a candidate, which it loses. Whatever left a row out of an exact request's step, its tokens are those of the baseline. */
START_TEST(an_exact_request_publishes_no_step_that_left_rows_out)
{
    struct run *r = calloc(2, sizeof *r);
    hurt_engine = serving("quest", NULL);
    visits = 0;
    for (int k = 0; k < 2; k++) run_init(&r[k], 13, PROMPT, STEPS);
    run_all(hurt_engine, &r[0]);
    r[1].request.trace = omit_once;
    if (_i) assign(hurt_engine, &r[1], KV_APPROXIMATE), r[1].request.contract = KV_EXACT;
    run_all(hurt_engine, &r[1]);
    struct kv_engine_stats st = ended(hurt_engine);
    ck_assert_int_gt(visits, 1);
    ck_assert_uint_eq(st.exact_mismatches, 1);
    same_runs(&r[0], &r[1]);
    for (int32_t i = 0; i < r[1].n; i++) ck_assert_int_eq(r[1].published[i], KV_EXACT);
    int told = 0;
    for (int i = 0; i < sink.n; i++) told += sink.receipt[i].kind == KV_RECEIPT_FAILURE && sink.receipt[i].reason == KV_CONTRACT_FORBIDS;
    ck_assert_int_eq(told, 1);
    kv_engine_destroy(hurt_engine);
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- the ring by itself */

START_TEST(the_ring_keeps_the_newest)
{
    struct kv_flight_recorder *f;
    struct kv_flight *out = calloc(20000, sizeof *out);
    uint8_t digest[32];
    ck_assert_int_eq(kv_flight_create(&f), KV_OK);
    ck_assert(!kv_flight_keep(f, 1, 1000000000, digest));
    for (int32_t i = 0; i < 20000; i++) kv_flight_put(f, &(struct kv_flight){.request = (uint64_t)(i % 2), .position = i});
    ck_assert_int_eq(kv_flight_read(f, 0, out, 20000), 16384);
    for (int32_t i = 0; i < 16384; i++) ck_assert_int_eq(out[i].position, 20000 - 16384 + i);
    ck_assert_int_eq(kv_flight_read(f, 1, out, 3), 3);
    ck_assert_int_eq(out[0].position, 19995);
    ck_assert_int_eq(out[2].position, 19999);
    int kept = 0;
    int64_t now = 1000000000;
    struct kv_flight_copy *c = calloc(1, sizeof *c);
    for (uint64_t i = 0; i < 100; i++) kv_flight_put(f, &(struct kv_flight){.request = 2 + i % 50});
    for (int i = 0; i < 100; i++) kept += kv_flight_keep(f, 1, now, digest);
    ck_assert_int_eq(kept, 1); /* of one request */
    for (uint64_t i = 2; i < 52; i++) kept += kv_flight_keep(f, i, now, digest);
    ck_assert_int_eq(kept, 8); /* of all at once, */
    for (int n = 0; kv_flight_take(f, c); n++) ck_assert_int_eq(c->n, n ? 2 : KV_FLIGHT_COPY);
    ck_assert(!kv_flight_keep(f, 1, now + 500000, digest));
    ck_assert(kv_flight_keep(f, 1, now + 1000000, digest)); /* and then one a second */
    kv_flight_destroy(f);
    free(out);
    free(c);
}
END_TEST

Suite *suite_flight(void);
Suite *suite_flight(void)
{
    Suite *s = suite_create("flight");
    TCase *t = tcase_create("all");
    int methods = (int)kv_selector_count();
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_selection_leaves_a_record);
    tcase_add_loop_test(t, an_index_that_may_not_answer_is_never_served, 0, 4 * methods);
    tcase_add_loop_test(t, what_is_not_a_number_is_computed_again, 0, methods);
    tcase_add_loop_test(t, a_damaged_row_publishes_nothing, 0, 2 * methods);
    tcase_add_test(t, an_estimate_that_is_no_number_accepts_nothing);
    tcase_add_loop_test(t, an_exact_request_publishes_no_step_that_left_rows_out, 0, 2);
    tcase_add_test(t, the_ring_keeps_the_newest);
    suite_add_tcase(s, t);
    return s;
}
