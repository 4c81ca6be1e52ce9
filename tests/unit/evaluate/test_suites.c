/* test_suites.c — evaluation tasks by seed and length, their scores, budgets, and the intervals that are reported. */
#include "runtime/evaluate/budget.h"
#include "runtime/evaluate/interval.h"
#include "runtime/evaluate/suites.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <math.h>
#include <string.h>

Suite *suite_suites(void);

static const char prose[] = "One sentence stands here. Another one follows it, and is longer. A third!\nA paragraph of its own. It ends? It does.\nAnd so on, for ever. The end is near.\n";

static void make(const char *suite, int32_t length, uint64_t seed, struct kv_task *t)
{
    struct kv_error err = {0};
    ck_assert_msg(kv_task_make(kv_suite_find(suite), demo_model(), prose, sizeof prose - 1, length, seed, t, &err) == KV_OK, "%s: %s", suite, err.message);
}

static bool holds(const int32_t *ids, int32_t n, const char *what)
{
    static char text[1 << 16];
    size_t len;
    kv_detokenize(demo_model(), ids, (size_t)n, false, text, sizeof text - 1, &len);
    text[len < sizeof text ? len : sizeof text - 1] = 0;
    return strstr(text, what) != NULL;
}

START_TEST(tasks_fit_their_length_and_follow_their_seed)
{
    const struct kv_suite *s = kv_suite_at((size_t)_i);
    struct kv_task a, b, c;
    for (int32_t length = 640; length <= 1280; length += 320) {
        make(s->name, length, 7, &a);
        make(s->name, length, 7, &b);
        make(s->name, length, 8, &c);
        int32_t n = a.n_context + a.n_question;
        ck_assert_int_le(n, length);
        ck_assert_int_ge(n, length - length / 8 - 60);
        ck_assert_int_eq(n, b.n_context + b.n_question);
        ck_assert_mem_eq(a.ids, b.ids, (size_t)n * sizeof *a.ids);
        /* A text begins at one of three paragraphs here. */
        ck_assert(s->kind == KV_SUITE_TEXT || n != c.n_context + c.n_question || memcmp(a.ids, c.ids, (size_t)n * sizeof *a.ids));
        if (s->kind == KV_SUITE_FACT) { /* the answer stands in the context and not in the question */
            ck_assert(holds(a.ids, a.n_context, a.answer));
            ck_assert(!holds(a.ids + a.n_context, a.n_question, a.answer));
            ck_assert_double_eq(kv_task_score(s, &a, a.answer), 1);
            ck_assert_double_eq(kv_task_score(s, &a, "12 no"), 0);
        }
        kv_task_free(&a);
        kv_task_free(&b);
        kv_task_free(&c);
    }
    struct kv_error err = {0};
    ck_assert_int_eq(kv_task_make(s, demo_model(), prose, sizeof prose - 1, 12, 7, &a, &err), KV_CAPACITY);
}
END_TEST

START_TEST(scores_are_of_whole_words)
{
    struct kv_task t = {.answer = "4711"};
    const struct kv_suite *fact = kv_suite_find("passkey"), *list = kv_suite_find("cwe");
    ck_assert_double_eq(kv_task_score(fact, &t, " 4711.\n"), 1);
    ck_assert_double_eq(kv_task_score(fact, &t, "47110"), 0);
    ck_assert_double_eq(kv_task_score(fact, &t, "471"), 0);
    ck_assert_double_eq(kv_task_score(fact, &t, "is 4711"), 0);
    strcpy(t.answer, "river anchor hammer");
    ck_assert_double_eq_tol(kv_task_score(list, &t, "hammer, rivers and an anchor"), 2.0 / 3, 1e-12);
    ck_assert_double_eq(kv_task_score(list, &t, ""), 0);
}
END_TEST

/* Wilson at 16 of 20, a difference that is there and one that is not, and Student at three degrees of freedom. */
START_TEST(intervals_hold_what_they_should)
{
    double a[20], b[20];
    for (int i = 0; i < 20; i++) a[i] = i < 16, b[i] = i < 8;
    struct kv_interval w = kv_interval_share(a, 20);
    ck_assert_double_eq_tol(w.lower, 0.5840, 1e-3);
    ck_assert_double_eq_tol(w.upper, 0.9193, 1e-3);
    struct kv_interval none = kv_interval_paired_share(a, a, 20), d = kv_interval_paired_share(a, b, 20);
    ck_assert_double_eq(none.value, 0);
    ck_assert(none.lower < 0 && none.upper > 0);
    ck_assert_double_eq_tol(d.value, 0.4, 1e-12);
    ck_assert(d.lower > 0 && d.lower < 0.4 && d.upper > 0.4 && d.upper < 1);
    double x[] = {1, 2, 3, 4};
    struct kv_interval m = kv_interval_mean(x, 4); /* 2.5 ± 3.182 × 1.291 / 2 */
    ck_assert_double_eq_tol(m.upper - m.value, 2.0542, 1e-3);
    ck_assert(isnan(kv_interval_mean(x, 1).lower));
    double same[] = {1, 1, 1};
    ck_assert(isnan(kv_interval_share(same, 0).value));
}
END_TEST

START_TEST(unigrams_are_their_own_entropy)
{
    int32_t ids[] = {5, 9, 5, 9}, one[] = {3, 3, 3};
    ck_assert_double_eq_tol(kv_text_unigram_nats(ids, 4), log(2), 1e-12);
    ck_assert_double_eq(kv_text_unigram_nats(one, 3), 0);
}
END_TEST

START_TEST(every_method_takes_a_budget_and_has_ablations)
{
    struct kv_error err = {0};
    for (size_t i = 0; i < kv_pipeline_count(); i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        struct kv_params params;
        if (!p->built || !p->selector) continue;
        kv_params_default(p, &params);
        for (int32_t rows = KV_BUDGET_LEAST; rows <= 4096; rows *= 2) ck_assert_msg(kv_budget_set(p, rows, &params, &err) == KV_OK, "%s: %s", p->name, err.message);
        ck_assert_int_eq(kv_budget_set(p, KV_BUDGET_LEAST - 1, &params, &err), KV_BAD_ARGUMENT);
        int32_t n = 0;
        for (size_t k = 0; k < kv_ablation_count(); k++) {
            const struct kv_ablation *a = kv_ablation_at(k);
            if (strcmp(a->method, p->selector)) continue;
            n++;
            for (int32_t v = 0; v < a->n; v++)
                ck_assert_msg(kv_params_set(p, &params, a->param, a->of_budget ? a->value[v] * 256 : a->value[v], &err) == KV_OK, "%s", err.message);
        }
        ck_assert_int_ge(n, 2);
    }
}
END_TEST

Suite *suite_suites(void)
{
    Suite *s = suite_create("suites");
    TCase *c = tcase_create("suites");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, tasks_fit_their_length_and_follow_their_seed, 0, (int)kv_suite_count());
    tcase_add_test(c, scores_are_of_whole_words);
    tcase_add_test(c, intervals_hold_what_they_should);
    tcase_add_test(c, unigrams_are_their_own_entropy);
    tcase_add_test(c, every_method_takes_a_budget_and_has_ablations);
    suite_add_tcase(s, c);
    return s;
}
