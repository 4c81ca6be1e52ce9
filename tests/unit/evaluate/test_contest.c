/* test_contest.c — bytes at equal mass: who is set apart and who is not, however often one looks, and what a unit says of real selectors. */
#include "runtime/evaluate/contest.h"
#include "runtime/evaluate/budget.h"
#include "runtime/evaluate/shadow.h"
#include "runtime/selection/draw.h"
#include "tests/unit/selection/case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct kv_tournament_config config_of(const char *const *names, int32_t n)
{
    struct kv_tournament_config c = {.n = n, .mass = 0.9, .fraction = 0.01, .units = 1000};
    for (int32_t i = 0; i < n; i++) {
        c.pipeline[i] = kv_pipeline_find(names[i]);
        kv_params_default(c.pipeline[i], &c.params[i]);
    }
    return c;
}

static struct kv_contest *contest_of(const char *const *names, int32_t n)
{
    struct kv_tournament_config c = config_of(names, n);
    struct kv_contest *out;
    struct kv_error err = {0};
    ck_assert_msg(kv_contest_create(&c, 16, 2, 512, &out, &err) == KV_OK, "%s", err.message);
    return out;
}

/* A made-up unit: entry i reads cost[i] times as much as the first for the same mass; noise moves its mass and its bytes, each entry's its own. */
static void made_up(struct kv_contest_unit *u, uint64_t seed, const double *cost, int32_t n, double noise)
{
    u->dense_bytes = 1000;
    for (int32_t i = 0; i < n; i++) {
        double shift = noise * kv_draw_normal(seed, 2 * (uint64_t)i), scale = exp(noise * kv_draw_normal(seed, 2 * (uint64_t)i + 1));
        for (int32_t r = 0; r < KV_CONTEST_RUNGS; r++) {
            double share = pow(2, r - KV_CONTEST_RUNGS + 1), mass = 1 - 0.5 * exp(-8 * share) * (1 + shift);
            u->point[i][r] = (struct kv_contest_point){fmin(1, mass), fmin(1, share * cost[i] * scale), 100 * share};
        }
    }
}

START_TEST(half_the_bytes_is_half)
{
    const double cost[] = {0.4, 0.2, 0.8};
    struct kv_contest *c = contest_of((const char *const[]){"quest", "sparq", "pqcache"}, 3);
    struct kv_tournament_view v;
    struct kv_contest_unit u;
    kv_contest_view(c, &v);
    for (int i = 0; i < 3; i++) ck_assert(v.entry[i].verdict == KV_TOURNAMENT_NO_DATA && isnan(v.entry[i].bytes));
    for (uint64_t i = 0; i < 400; i++) made_up(&u, i, cost, 3, 0.1), kv_contest_add(c, &u);
    kv_contest_view(c, &v);
    const int32_t rank[] = {2, 1, 3};
    for (int i = 0; i < 3; i++) {
        const struct kv_tournament_entry *e = &v.entry[i];
        ck_assert(e->verdict == KV_TOURNAMENT_RANKED);
        ck_assert_int_eq(e->rank, rank[i]);
        ck_assert_double_eq_tol(e->mass, 0.9, 0.01);
        ck_assert(e->mass_low < 0.9 && e->mass_high > 0.9 && e->bytes_low < e->bytes && e->bytes < e->bytes_high);
    }
    ck_assert_double_eq_tol(v.entry[1].bytes / v.entry[0].bytes, 0.5, 0.03);
    ck_assert_double_eq_tol(v.entry[2].bytes / v.entry[0].bytes, 2, 0.12);
    kv_contest_destroy(c);
}
END_TEST

START_TEST(two_copies_are_never_apart)
{
    struct kv_contest *c = contest_of((const char *const[]){"quest", "quest", "sparq"}, 3);
    struct kv_tournament_view v;
    struct kv_contest_unit u;
    const double cost[] = {0.4, 0.4, 0.1};
    for (uint64_t i = 0; i < 300; i++) {
        made_up(&u, i, cost, 3, 0.2);
        memcpy(u.point[1], u.point[0], sizeof u.point[0]);
        kv_contest_add(c, &u);
    }
    kv_contest_view(c, &v);
    ck_assert(v.entry[0].verdict == KV_TOURNAMENT_TIE && v.entry[1].verdict == KV_TOURNAMENT_TIE && v.entry[2].verdict == KV_TOURNAMENT_RANKED);
    ck_assert(v.entry[0].rank == 0 && v.entry[1].rank == 0 && v.entry[2].rank == 1);
    kv_contest_destroy(c);
}
END_TEST

/* Equally good methods with noise of their own, looked at after every unit: one in twenty may be set apart, no more. */
START_TEST(looking_often_sets_no_equals_apart)
{
    enum { TRIALS = 60 };
    const double cost[] = {0.4, 0.4};
    int apart = 0;
    for (uint64_t t = 0; t < TRIALS; t++) {
        struct kv_contest *c = contest_of((const char *const[]){"quest", "sparq"}, 2);
        struct kv_tournament_view v;
        struct kv_contest_unit u;
        bool ever = false;
        for (uint64_t i = 0; i < 400; i++) {
            made_up(&u, (t + 1) << 32 | i, cost, 2, 0.3);
            kv_contest_add(c, &u);
            kv_contest_view(c, &v);
            ever |= v.entry[0].rank != 0;
        }
        apart += ever;
        kv_contest_destroy(c);
    }
    ck_assert_int_le(apart, 6);
}
END_TEST

START_TEST(what_never_holds_the_mass_is_short)
{
    struct kv_contest *c = contest_of((const char *const[]){"quest", "magicpig"}, 2);
    struct kv_tournament_view v;
    struct kv_contest_unit u;
    const double cost[] = {0.4, 0.4};
    for (uint64_t i = 0; i < 100; i++) {
        made_up(&u, i, cost, 2, 0.1);
        for (int32_t r = 0; r < KV_CONTEST_RUNGS; r++) u.point[1][r].mass = 0.5;
        kv_contest_add(c, &u);
    }
    kv_contest_view(c, &v);
    ck_assert(v.entry[1].verdict == KV_TOURNAMENT_SHORT && v.entry[1].rank == 0);
    ck_assert_double_eq_tol(v.entry[1].mass, 0.5, 1e-9);
    ck_assert(v.entry[0].verdict == KV_TOURNAMENT_RANKED && v.entry[0].rank == 1);
    kv_contest_destroy(c);
}
END_TEST

/* The mass of the head that keeps least, and the bytes, of one rung of quest asked directly. */
static void expect_rung(const struct kv_contest_unit *u, const struct kv_pipeline *p, int rung)
{
    struct kv_params params;
    struct kv_selector *s;
    struct kv_ledger ledger = {0};
    uint64_t support[2 * 8];
    kv_params_default(p, &params);
    kv_budget_rung(p, rung, KV_CONTEST_RUNGS, 512, &params);
    const struct kv_selector_method *m = kv_selector_find("quest");
    ck_assert_int_eq(m->create(&params, 16, 2, 512, 0, &s, NULL), KV_OK);
    ck_assert_int_eq(m->build(s, u->rows, NULL, 0), KV_OK);
    ck_assert_int_eq(m->query(s, u->rows, u->q, 0, support, 8, NULL, &ledger), KV_OK);
    double least = 1, scratch[2 * 500 + 4 * 16 + 16];
    struct kv_shadow_head heads[2];
    struct kv_sample sample = {0};
    struct kv_shadow_unit unit = {.rows = u->rows, .q = u->q, .support = support, .n_blocks = 8};
    ck_assert_int_eq(kv_shadow_unit(&unit, scratch, sizeof scratch / sizeof *scratch, &sample, heads, NULL, NULL), KV_OK);
    for (int g = 0; g < 2; g++) least = fmin(least, heads[g].retained_mass);
    ck_assert(least < 0.95);
    ck_assert_double_eq_tol(u->point[0][rung].mass, least, 1e-5);
    ck_assert_double_eq_tol(u->point[0][rung].share, (double)(ledger.candidate_bytes + ledger.transfer_bytes) / u->dense_bytes, 1e-12);
    m->destroy(s);
}

/* Every method climbs: mass never falls by much, the widest rung holds nearly all, and layers its rule keeps dense are read whole. */
START_TEST(a_unit_climbs_every_ladder)
{
    static const char *const names[] = {"quest", "sparq", "infinigen", "pqcache", "infllm", "clusterkv", "magicpig"};
    enum { ROWS = 500, D = 16, GROUP = 2 };
    struct kv_tournament_config config = config_of(names, 7);
    struct kv_contest *c;
    struct test_case t;
    struct kv_lab_rows stored;
    struct kv_contest_unit u;
    struct kv_error err = {0};
    ck_assert_int_eq(kv_params_set(config.pipeline[4], &config.params[4], "local_rows", 32, &err), KV_OK);
    ck_assert_int_eq(kv_params_set(config.pipeline[4], &config.params[4], "unit_rows", 8, &err), KV_OK);
    /* few of MagicPIG's projections, or reading them costs more than these few rows */
    ck_assert_int_eq(kv_params_set(config.pipeline[6], &config.params[6], "tables", 20, &err), KV_OK);
    ck_assert_int_eq(kv_params_set(config.pipeline[6], &config.params[6], "bits", 4, &err), KV_OK);
    ck_assert_int_eq(kv_contest_create(&config, D, GROUP, 512, &c, &err), KV_OK);
    case_random(&t, "dense", GROUP, 1, D, ROWS, 5);
    ck_assert_int_eq(kv_lab_rows_create(KV_F16, D, GROUP, 0.5f, ROWS, t.k, t.v, &stored), KV_OK);
    u = (struct kv_contest_unit){.rows = &stored.rows, .q = t.q, .layer = 5, .n_prompt = 300};
    ck_assert_int_eq(kv_contest_measure(c, &u, NULL), KV_OK);
    ck_assert_double_eq(u.dense_bytes, ROWS * 2.0 * D * 2);
    for (int i = 0; i < 7; i++) {
        for (int r = 0; r < KV_CONTEST_RUNGS; r++) {
            ck_assert_msg(u.point[i][r].mass > 0 && u.point[i][r].mass <= 1 && u.point[i][r].share > 0 && u.point[i][r].share <= 1, "%s rung %d", names[i], r);
            if (r) ck_assert_msg(u.point[i][r].mass >= u.point[i][r - 1].mass - 0.02, "%s rung %d: mass %g after %g", names[i], r, u.point[i][r].mass, u.point[i][r - 1].mass);
        }
        ck_assert_msg(u.point[i][0].mass < u.point[i][KV_CONTEST_RUNGS - 1].mass, "%s does not climb", names[i]);
        if (i < 6) ck_assert_msg(u.point[i][KV_CONTEST_RUNGS - 1].mass > 0.999, "%s: %g", names[i], u.point[i][KV_CONTEST_RUNGS - 1].mass);
    }
    expect_rung(&u, config.pipeline[0], 3);
    u.layer = 0;
    ck_assert_int_eq(kv_contest_measure(c, &u, NULL), KV_OK);
    ck_assert(u.point[0][0].mass == 1 && u.point[0][0].share == 1 && u.point[6][0].mass == 1 && u.point[1][0].mass < 1);
    _Atomic bool stop = true;
    ck_assert_int_eq(kv_contest_measure(c, &u, &stop), KV_CANCELLED);
    kv_lab_rows_free(&stored);
    case_free(&t);
    kv_contest_destroy(c);
}
END_TEST

START_TEST(nonsense_is_refused_by_name)
{
    struct kv_contest *c;
    struct kv_error err;
    const struct { const char *a, *b; double mass, fraction; uint64_t units; int32_t n; enum kv_status status; const char *where; } cases[] = {
        {"quest", "sparq", 0.9, 0.01, 100, 1, KV_BAD_ARGUMENT, "pipelines"}, {"quest", "sparq", 0.4, 0.01, 100, 2, KV_BAD_ARGUMENT, "mass"},
        {"quest", "sparq", 1.0, 0.01, 100, 2, KV_BAD_ARGUMENT, "mass"},      {"quest", "sparq", NAN, 0.01, 100, 2, KV_BAD_ARGUMENT, "mass"},
        {"quest", "sparq", 0.9, 0, 100, 2, KV_BAD_ARGUMENT, "fraction"},     {"quest", "sparq", 0.9, 0.06, 100, 2, KV_BAD_ARGUMENT, "fraction"},
        {"quest", "sparq", 0.9, 0.01, 10, 2, KV_BAD_ARGUMENT, "units"},      {"quest", "em-llm", 0.9, 0.01, 100, 2, KV_BAD_ARGUMENT, "pipelines"},
        {"layerwise", "sparq", 0.9, 0.01, 100, 2, KV_BAD_ARGUMENT, "pipelines"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_tournament_config config = config_of((const char *const[]){cases[i].a, cases[i].b}, 2);
        config.mass = cases[i].mass, config.fraction = cases[i].fraction, config.units = cases[i].units, config.n = cases[i].n;
        enum kv_status want = strcmp(cases[i].b, "em-llm") ? cases[i].status : KV_NOT_BUILT;
        ck_assert_msg(kv_contest_create(&config, 16, 2, 512, &c, &err) == want, "case %zu", i);
        ck_assert_str_eq(err.where, cases[i].where);
    }
    struct kv_tournament_config odd = config_of((const char *const[]){"pqcache", "quest"}, 2);
    ck_assert_int_eq(kv_params_set(odd.pipeline[0], &odd.params[0], "subspaces", 3, &err), KV_OK);
    ck_assert_int_eq(kv_contest_create(&odd, 16, 2, 512, &c, &err), KV_BAD_ARGUMENT);
    ck_assert_str_eq(err.where, "subspaces");
}
END_TEST

Suite *suite_contest(void);
Suite *suite_contest(void)
{
    Suite *s = suite_create("contest");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, half_the_bytes_is_half);
    tcase_add_test(t, two_copies_are_never_apart);
    tcase_add_test(t, looking_often_sets_no_equals_apart);
    tcase_add_test(t, what_never_holds_the_mass_is_short);
    tcase_add_test(t, a_unit_climbs_every_ladder);
    tcase_add_test(t, nonsense_is_refused_by_name);
    suite_add_tcase(s, t);
    return s;
}
