/* test_sampler.c — choices, cuts, penalties and the draws behind them. */
#include "runtime/model/sampler.h"

#include "kernels/kernels.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { N = 1000 };
static float logits[N];
static struct kv_sampler *sampler;
static const struct kv_sampling greedy = {.top_p = 1, .repetition_penalty = 1};

static void set_up(void)
{
    kv_numerics_enter();
    ck_assert_int_eq(kv_sampler_create(N, &sampler), KV_OK);
    for (int i = 0; i < N; i++) logits[i] = (float)(kv_draw(3, (uint64_t)i) * 12 - 8);
}

static void tear_down(void)
{
    kv_sampler_destroy(sampler);
}

static struct kv_sampled sample(struct kv_sampling p, struct kv_history h, uint64_t index, int32_t n_top)
{
    struct kv_sampled out = {0};
    ck_assert_int_eq(kv_sample(sampler, &p, logits, h, index, n_top, NULL, &out), KV_OK);
    return out;
}

START_TEST(greedy_takes_the_lowest_of_equals)
{
    logits[700] = logits[300] = logits[301] = 20;
    struct kv_sampled s = sample(greedy, (struct kv_history){0}, 0, 4);
    ck_assert_int_eq(s.id, 300);
    ck_assert(s.top_id[0] == 300 && s.top_id[1] == 301 && s.top_id[2] == 700);
    ck_assert_int_eq(s.n_top, 4);
    double sum = 0;
    for (int i = 0; i < N; i++) sum += exp((double)logits[i] - 20);
    ck_assert_float_eq_tol(s.logprob, (float)-log(sum), 1e-6f);
    ck_assert_float_eq_tol(s.top_logprob[3], (float)(logits[s.top_id[3]] - 20 - log(sum)), 1e-6f);
    double forced;
    ck_assert_int_eq(kv_logprob(sampler, logits, 17, &forced), KV_OK);
    ck_assert_double_eq_tol(forced, logits[17] - 20 - log(sum), 1e-6);
}
END_TEST

START_TEST(the_top_list_is_sorted)
{
    struct kv_sampled s = sample(greedy, (struct kv_history){0}, 0, KV_MAX_LOGPROBS);
    ck_assert_int_eq(s.n_top, KV_MAX_LOGPROBS);
    for (int i = 1; i < s.n_top; i++) ck_assert(s.top_logprob[i] <= s.top_logprob[i - 1]);
    int above = 0;
    for (int i = 0; i < N; i++) above += logits[i] > logits[s.top_id[KV_MAX_LOGPROBS - 1]];
    ck_assert_int_eq(above, KV_MAX_LOGPROBS - 1);
}
END_TEST

/* The first words of Philox 4x32-10 for counter and key zero, as published with it. */
START_TEST(draws_are_a_function_of_seed_and_index)
{
    ck_assert_double_eq(kv_draw(0, 0), (double)(0xe169c58d6627e8d5u >> 11) * 0x1p-53);
    ck_assert_double_eq(kv_draw(5, 9), kv_draw(5, 9));
    ck_assert(kv_draw(5, 9) != kv_draw(5, 10) && kv_draw(5, 9) != kv_draw(6, 9) && kv_draw(1, 0) != kv_draw(0, 1));
    double sum = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        double u = kv_draw(42, i);
        ck_assert(u >= 0 && u < 1);
        sum += u;
    }
    ck_assert_double_eq_tol(sum / 20000, 0.5, 0.01);
    struct kv_sampling p = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 11};
    int32_t at_7 = sample(p, (struct kv_history){0}, 7, 0).id;
    for (uint64_t i = 0; i < 7; i++) sample(p, (struct kv_history){0}, i, 0); /* steps in between do not shift it */
    ck_assert_int_eq(sample(p, (struct kv_history){0}, 7, 0).id, at_7);
}
END_TEST

START_TEST(frequencies_follow_the_temperature)
{
    for (int i = 0; i < N; i++) logits[i] = -INFINITY;
    logits[5] = 1;
    logits[6] = 0;
    logits[7] = -1;
    for (int cut = 0; cut < 3; cut++) {
        struct kv_sampling p = {.temperature = 2, .top_p = cut == 1 ? 0.999999f : 1, .top_k = cut == 2 ? 3 : 0, .repetition_penalty = 1, .seed = 1};
        int count[3] = {0};
        for (uint64_t i = 0; i < 20000; i++) {
            int32_t id = sample(p, (struct kv_history){0}, i, 0).id;
            ck_assert(id >= 5 && id <= 7);
            count[id - 5]++;
        }
        double z = exp(0.5) + 1 + exp(-0.5);
        ck_assert_double_eq_tol(count[0] / 20000.0, exp(0.5) / z, 0.015);
        ck_assert_double_eq_tol(count[2] / 20000.0, exp(-0.5) / z, 0.015);
    }
}
END_TEST

/* Which ids ever come out, against a plain definition: sorted, cut, no cleverness. */
static int by_logit(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return logits[x] != logits[y] ? (logits[x] < logits[y] ? 1 : -1) : (x > y) - (x < y);
}

START_TEST(cuts_keep_what_the_definition_keeps)
{
    static const struct {
        int32_t k;
        float p;
    } rows[] = {{1, 1}, {7, 1}, {0, 0.3f}, {0, 0.9f}, {40, 0.5f}, {0, 0}, {N, 1}, {5000, 0.1f}};
    int32_t order[N];
    for (int32_t i = 0; i < N; i++) order[i] = i;
    logits[10] = logits[11] = logits[12] = 3.5f; /* ties at a border */
    qsort(order, N, sizeof *order, by_logit);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int32_t k = rows[r].k && rows[r].k < N ? rows[r].k : N, keep = 0;
        double total = 0, sum = 0;
        bool allowed[N] = {false}, seen[N] = {false};
        for (int32_t i = 0; i < k; i++) total += exp((double)logits[order[i]]);
        while (keep < k && (!keep || sum < (double)rows[r].p * total)) {
            allowed[order[keep]] = true;
            sum += exp((double)logits[order[keep++]]);
        }
        struct kv_sampling p = {.temperature = 1, .top_p = rows[r].p, .top_k = rows[r].k, .repetition_penalty = 1, .seed = r};
        int n_seen = 0;
        for (uint64_t i = 0; i < 4000; i++) {
            int32_t id = sample(p, (struct kv_history){0}, i, 0).id;
            ck_assert_msg(allowed[id], "row %zu: id %d was cut", r, id);
            n_seen += !seen[id];
            seen[id] = true;
        }
        if (keep <= 20) ck_assert_int_eq(n_seen, keep);
    }
}
END_TEST

START_TEST(cuts_at_equal_weights)
{
    for (int i = 0; i < N; i++) logits[i] = 0;
    struct kv_sampling k = {.temperature = 1, .top_p = 1, .top_k = 3, .repetition_penalty = 1}, p = {.temperature = 1, .top_p = 0.5f, .repetition_penalty = 1};
    for (uint64_t i = 0; i < 200; i++) ck_assert_int_lt(sample(k, (struct kv_history){0}, i, 0).id, 3); /* the lowest ids of equals */
    for (int i = 4; i < N; i++) logits[i] = -INFINITY;
    for (uint64_t i = 0; i < 200; i++) ck_assert_int_lt(sample(p, (struct kv_history){0}, i, 0).id, 2); /* exactly one half */
}
END_TEST

START_TEST(penalties)
{
    for (int i = 0; i < N; i++) logits[i] = 0;
    logits[1] = 2.0f;
    logits[2] = 1.5f;
    logits[3] = -1;
    int32_t ids[] = {1, 1, 1};
    struct kv_sampling p = greedy;
    p.presence_penalty = 0.4f;
    ck_assert_int_eq(sample(p, (struct kv_history){ids, 3, 3}, 0, 0).id, 1); /* the prompt does not count */
    ck_assert_int_eq(sample(p, (struct kv_history){ids, 2, 3}, 0, 0).id, 1);
    p.frequency_penalty = 0.1f;
    ck_assert_int_eq(sample(p, (struct kv_history){ids, 2, 3}, 0, 0).id, 1); /* 2 - 0.4 - 0.1: level with the other, the lower id */
    ck_assert_int_eq(sample(p, (struct kv_history){ids, 0, 3}, 0, 0).id, 2); /* 2 - 0.4 - 0.3 */
    p = greedy;
    p.repetition_penalty = 1.5f;
    struct kv_sampled s = sample(p, (struct kv_history){ids, 3, 3}, 0, 1);
    ck_assert_int_eq(s.id, 2); /* once for any number of times, the prompt counts: 2 / 1.5 */
    ck_assert_int_eq(s.top_id[0], 1); /* log-probabilities are the model's own */
    logits[2] = 1;
    ck_assert_int_eq(sample(p, (struct kv_history){ids, 3, 3}, 0, 1).id, 1); /* 2 / 1.5 three times over would be less than 1 */
    for (int i = 0; i < N; i++) logits[i] = -1;
    logits[3] = -0.9f;
    ck_assert_int_eq(sample(p, (struct kv_history){(int32_t[]){3}, 1, 1}, 0, 0).id, 0); /* a negative logit moves down */
}
END_TEST

START_TEST(refusals)
{
    struct kv_sampled out;
    struct kv_history none = {0};
    struct kv_sampling bad = greedy;
    bad.top_p = 1.5f;
    ck_assert_int_eq(kv_sample(sampler, &bad, logits, none, 0, 0, NULL, &out), KV_BAD_ARGUMENT);
    bad = greedy;
    bad.temperature = NAN;
    ck_assert_int_eq(kv_sample(sampler, &bad, logits, none, 0, 0, NULL, &out), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_sample(sampler, &greedy, logits, none, 0, KV_MAX_LOGPROBS + 1, NULL, &out), KV_BAD_ARGUMENT);
    bad = greedy;
    bad.presence_penalty = 1;
    ck_assert_int_eq(kv_sample(sampler, &bad, logits, (struct kv_history){(int32_t[]){N}, 0, 1}, 0, 0, NULL, &out), KV_TOKEN_OUT_OF_RANGE);
    logits[999] = NAN;
    ck_assert_int_eq(kv_sample(sampler, &greedy, logits, none, 0, 0, NULL, &out), KV_NAN_LOGITS);
    logits[999] = INFINITY;
    ck_assert_int_eq(kv_sample(sampler, &greedy, logits, none, 0, 0, NULL, &out), KV_NAN_LOGITS);
    for (int i = 0; i < N; i++) logits[i] = -INFINITY;
    ck_assert_int_eq(kv_sample(sampler, &greedy, logits, none, 0, 0, NULL, &out), KV_NAN_LOGITS);
}
END_TEST

Suite *suite_sampler(void);
Suite *suite_sampler(void)
{
    Suite *s = suite_create("sampler");
    TCase *c = tcase_create("choices");
    tcase_add_checked_fixture(c, set_up, tear_down);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, greedy_takes_the_lowest_of_equals);
    tcase_add_test(c, the_top_list_is_sorted);
    tcase_add_test(c, draws_are_a_function_of_seed_and_index);
    tcase_add_test(c, frequencies_follow_the_temperature);
    tcase_add_test(c, cuts_keep_what_the_definition_keeps);
    tcase_add_test(c, cuts_at_equal_weights);
    tcase_add_test(c, penalties);
    tcase_add_test(c, refusals);
    suite_add_tcase(s, c);
    return s;
}
