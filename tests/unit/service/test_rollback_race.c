/* test_rollback_race.c — rollbacks that meet an engine anywhere in a step, greedy and sampled side by side. KVASIR_SOAK makes it long.
 *
 * Nothing of the candidate may be appended after the fence, and what follows has to be what a fresh exact run over the same tokens says. A case answers alike
 * each time, so a fresh run is needed once for each place where a rollback can strike. */
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

Suite *suite_rollback_race(void);

enum { STEPS = 6, ROWS = 129 /* two blocks that are reused, and a row */, PROMPTS = 4, ARMS = 2 /* greedy, sampled */ };

static struct {
    bool there;
    int32_t ids[STEPS];
} expected[PROMPTS][ARMS][STEPS + 1]; /* by the number of tokens the candidate made */

static unsigned random_bits(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

/* On the decode thread, between a step and its publication. */
static void yield_there(struct run *r, int32_t position)
{
    static unsigned state = 7;
    (void)r, (void)position;
    for (unsigned i = random_bits(&state) % 4; i; i--) sched_yield();
}

static void prepare(struct run *r, int prompt, int arm)
{
    run_init(r, 91 + (uint32_t)prompt, ROWS, STEPS);
    r->request.observe_prompt = false;
    r->at = yield_there;
    if (arm) r->request.sampling = (struct kv_sampling){.temperature = 0.9f, .top_p = 0.95f, .top_k = 40, .repetition_penalty = 1.1f, .seed = 5};
}

static int32_t of_candidate(const struct run *r)
{
    int32_t n = r->n;
    while (n && r->published[n - 1] == KV_EXACT) n--;
    return n;
}

static void check_rest(struct kv_engine *e, const struct run *r, int prompt, int arm, int round)
{
    static struct run fresh;
    int32_t k = of_candidate(r);
    ck_assert_msg(r->n == STEPS, "round %d: %d tokens", round, (int)r->n);
    if (!expected[prompt][arm][k].there) {
        prepare(&fresh, prompt, arm);
        fresh.request.force = r->ids;
        fresh.request.n_force = k;
        run_all(e, &fresh);
        memcpy(expected[prompt][arm][k].ids, fresh.ids, sizeof expected[prompt][arm][k].ids);
        expected[prompt][arm][k].there = true;
    }
    for (int32_t i = 0; i < STEPS; i++)
        ck_assert_msg(r->ids[i] == expected[prompt][arm][k].ids[i], "round %d, prompt %d, %s: token %d after %d of the candidate", round, prompt, arm ? "sampled" : "greedy", (int)i, (int)k);
}

START_TEST(nothing_leaves_after_the_fence)
{
    static struct run r[ARMS];
    int rounds = getenv("KVASIR_SOAK") ? 100000 : 150;
    unsigned state = 3;
    int struck[STEPS + 1] = {0};
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 1;
    struct kv_engine *e = make_engine(&c);
    struct kv_error err = {0};
    for (int round = 0; round < rounds; round++) {
        int prompt = round % PROMPTS;
        struct kv_rollback back;
        install(e, "quest", "budget_rows", 16, false);
        for (int a = 0; a < ARMS; a++) {
            prepare(&r[a], prompt, a);
            assign(e, &r[a], KV_APPROXIMATE);
            run_begin(e, &r[a]);
        }
        run_read(&r[0], (int32_t)(random_bits(&state) % STEPS));
        for (unsigned i = random_bits(&state) % 8; i; i--) sched_yield();
        int32_t seen = r[0].n + r[1].n;
        kv_engine_rollback(e, &back);
        int32_t out = seen + back.unsent_tokens;
        for (int a = 0; a < ARMS; a++) run_end(&r[a]);
        int32_t made = of_candidate(&r[0]) + of_candidate(&r[1]);
        ck_assert_msg(made <= out, "round %d: %d tokens of the candidate, %d were out at the fence", round, (int)made, (int)out);
        for (int a = 0; a < ARMS; a++) struck[of_candidate(&r[a])]++;
        ck_assert_int_eq(kv_engine_recomputing(e), 0);
        ck_assert_int_eq(kv_engine_rearm(e, kv_engine_release(e).epoch + 1, &err), KV_OK);
        for (int a = 0; a < ARMS; a++) check_rest(e, &r[a], prompt, a, round);
    }
    kv_engine_destroy(e);
    int places = 0;
    for (int i = 0; i <= STEPS; i++) places += struck[i] > 0;
    ck_assert_int_ge(places, 4); /* before, between and after its tokens */
}
END_TEST

Suite *suite_rollback_race(void)
{
    Suite *s = suite_create("rollback_race");
    TCase *t = tcase_create("rollback_race");
    tcase_set_timeout(t, getenv("KVASIR_SOAK") ? 7200 : 120);
    tcase_add_test(t, nothing_leaves_after_the_fence);
    suite_add_tcase(s, t);
    return s;
}
