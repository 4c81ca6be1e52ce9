/* test_omitted.c — the online estimate of the omitted mass: never far under, of use where little is left out, and no assurance from nonsense. */
#include "runtime/selection/draw.h"
#include "runtime/selection/omitted.h"
#include "tests/unit/selection/case.h"

#include <math.h>

enum { ROWS = 600, D = 16, CELL = 10, CELLS = ROWS / CELL };

struct world {
    struct test_case t;
    struct kv_lab_rows stored;
    float score[ROWS], weight[ROWS], row[D];
    int32_t size[ROWS], taken[ROWS];
    struct kv_cells c;
    struct kv_ledger ledger;
};

static int32_t row_of(const void *ctx, int32_t cell, int32_t k)
{
    (void)ctx;
    return cell * CELL + k;
}

/* Cells of ten rows scored by their largest logit, as a bound does, plus noise; the best `keep` of them are taken. */
static void open_world(struct world *w, uint64_t seed, double sharpness, double noise, int32_t keep)
{
    *w = (struct world){0};
    case_random(&w->t, "dense", 1, 1, D, ROWS, seed);
    ck_assert_int_eq(kv_lab_rows_create(KV_F32, D, 1, (float)sharpness, ROWS, w->t.k, w->t.v, &w->stored), KV_OK);
    w->t.c.scale = sharpness;
    uint64_t key[CELLS];
    for (int32_t j = 0; j < CELLS; j++) {
        double top = -INFINITY;
        for (int32_t k = 0; k < CELL; k++) top = fmax(top, case_logit(&w->t, 0, j * CELL + k));
        w->score[j] = (float)(top + noise * kv_draw_normal(seed, (uint64_t)j));
        w->size[j] = CELL;
        key[j] = kv_rank_key(w->score[j], (uint32_t)j);
    }
    kv_rank_sort(key, CELLS);
    for (int32_t j = 0; j < keep; j++) w->taken[kv_rank_index(key[j])] = CELL;
    w->c = (struct kv_cells){.n = CELLS, .score = w->score, .size = w->size, .taken = w->taken, .row = row_of};
}

static void close_world(struct world *w)
{
    kv_lab_rows_free(&w->stored);
    case_free(&w->t);
}

static double truth(const struct world *w)
{
    double out = 0, all = 0;
    for (int32_t i = 0; i < ROWS; i++) {
        double x = exp(case_logit(&w->t, 0, i));
        all += x;
        if (i % CELL >= w->taken[i / CELL] && !(i >= w->c.exact[0][0] && i < w->c.exact[0][1])) out += x;
    }
    return out / all;
}

static double estimate(struct world *w, int32_t draws) { return kv_omitted_upper(&w->c, &w->stored.rows, w->t.q, draws, w->weight, w->row, &w->ledger); }

START_TEST(its_upper_end_covers_the_truth)
{
    int covered = 0, n = 0;
    for (uint64_t seed = 1; seed <= 150; seed++)
        for (int32_t keep = 10; keep <= 40; keep += 10, n++) {
            struct world w;
            open_world(&w, seed, 0.5, 1.2, keep);
            covered += estimate(&w, 16) >= truth(&w);
            close_world(&w);
        }
    ck_assert_msg(covered >= n * 90 / 100, "%d of %d", covered, n);
    covered = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) { /* half of the rows attended unranked: chance is in what is left out alone */
        struct world w;
        open_world(&w, seed, 0.3, 0.3, 0);
        for (int32_t j = 0; j < CELLS / 2; j++) w.size[j] = 0;
        w.c.exact[0][1] = ROWS / 2;
        covered += estimate(&w, 64) >= truth(&w);
        close_world(&w);
    }
    ck_assert_msg(covered >= 130, "%d of 150", covered);
}
END_TEST

START_TEST(little_left_out_is_seen_to_be_little)
{
    int little = 0, accepted = 0, refused = 0;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct world w;
        open_world(&w, seed, 0.9, 0.2, 40);
        little += truth(&w) < 0.01;
        accepted += truth(&w) < 0.01 && estimate(&w, 64) < 0.03;
        close_world(&w);
        open_world(&w, seed, 0.2, 0.2, 20);
        ck_assert(truth(&w) > 0.4);
        refused += estimate(&w, 64) > 0.3;
        close_world(&w);
    }
    ck_assert_int_ge(little, 20);
    ck_assert_int_ge(accepted, little * 9 / 10);
    ck_assert_int_eq(refused, 50);
}
END_TEST

static int32_t one_each(const void *ctx, int32_t cell, int32_t k)
{
    (void)ctx;
    (void)k;
    return cell;
}

/* Cells of one row whose score is the logit leave nothing to chance; exact rows count as kept. */
START_TEST(true_scores_give_the_truth)
{
    struct world w;
    open_world(&w, 7, 0.5, 0, 20);
    for (int32_t i = 0; i < ROWS; i++) w.score[i] = (float)case_logit(&w.t, 0, i), w.size[i] = 1;
    for (int32_t i = 0; i < ROWS; i++) w.taken[i] = i % 3 == 0;
    double out = 0, all = 0;
    for (int32_t i = 0; i < ROWS; i++) {
        double x = exp(case_logit(&w.t, 0, i));
        all += x, out += w.taken[i] ? 0 : x;
    }
    w.c = (struct kv_cells){.n = ROWS, .score = w.score, .taken = w.taken, .row = one_each};
    ck_assert_double_eq_tol(estimate(&w, 16), out / all, 1e-4);
    ck_assert_uint_eq(w.ledger.candidate_bytes, 2 * 16 * D * sizeof(float));
    close_world(&w);
}
END_TEST

START_TEST(borders_and_damage)
{
    struct world w;
    open_world(&w, 3, 0.5, 0.2, CELLS);
    ck_assert(estimate(&w, 16) == 0);
    for (int32_t j = 0; j < CELLS; j++) w.taken[j] = 0;
    ck_assert(estimate(&w, 16) == 1);
    w.c.exact[0][0] = 0, w.c.exact[0][1] = ROWS; /* all of them attended unranked beside: half of what is counted */
    ck_assert_double_eq_tol(estimate(&w, 600), 0.5, 0.1);
    w.score[4] = NAN, w.c.exact[0][1] = 0;
    ck_assert(estimate(&w, 16) == 1);
    for (int32_t j = 0; j < CELLS; j++) w.score[j] = -INFINITY;
    ck_assert(estimate(&w, 16) == 1);
    w.c.n = 0;
    ck_assert(estimate(&w, 16) == 0);
    close_world(&w);
}
END_TEST

Suite *suite_omitted(void);
Suite *suite_omitted(void)
{
    Suite *s = suite_create("omitted");
    TCase *t = tcase_create("all");
    tcase_add_test(t, its_upper_end_covers_the_truth);
    tcase_add_test(t, little_left_out_is_seen_to_be_little);
    tcase_add_test(t, true_scores_give_the_truth);
    tcase_add_test(t, borders_and_damage);
    suite_add_tcase(s, t);
    return s;
}
