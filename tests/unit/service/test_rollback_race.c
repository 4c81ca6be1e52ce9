/* test_rollback_race.c — rollbacks that meet an engine anywhere in a step, greedy and sampled side by side. KVASIR_SOAK makes it long.
 *
 * Nothing of the candidate may be appended after the fence, and what follows has to be what a fresh exact run over the same tokens says. A case answers alike
 * each time, so a fresh run is needed once for each place where a rollback can strike. The real engine runs with yields between all numbered steps of
 * publication.h, whose functions the linker leads through here; on a model of three narrow layers a round takes about a millisecond. */
#include "runtime/service/fallback.h"
#include "runtime/service/publication.h"
#include "tests/unit/model/write_gguf.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Suite *suite_rollback_race(void);

enum { STEPS = 6, ROWS = 129 /* two blocks that are reused, and a row */, PROMPTS = 4, ARMS = 2 /* greedy, sampled */ };

static struct {
    bool there;
    int32_t ids[STEPS];
    float logprob[STEPS];
} expected[PROMPTS][ARMS][STEPS + 1]; /* by the number of tokens the candidate made */

static unsigned random_bits(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

/* ---------------------------------------------------------------- yields between the numbered steps */

static _Atomic bool racing, arrived, striking;

static void yield_sometimes(void)
{
    static _Thread_local unsigned state = 7;
    if (!racing) return;
    for (unsigned i = random_bits(&state) % 4; i; i--) sched_yield();
}

/* On the decode thread: the word is loaded, the step is run, nothing is published. The step that a rollback is to meet waits for it, or it would be over first. */
static void yield_there(struct run *r, int32_t position)
{
    const int32_t *met = r->ctx;
    if (met && position == *met) {
        arrived = true;
        while (!striking) sched_yield();
    }
    yield_sometimes();
}

void __real_kv_publication_begin(struct kv_publication *p);
void __wrap_kv_publication_begin(struct kv_publication *p);
bool __real_kv_publication_unchanged(const struct kv_publication *p, uint64_t word);
bool __wrap_kv_publication_unchanged(const struct kv_publication *p, uint64_t word);
void __real_kv_publication_end(struct kv_publication *p);
void __wrap_kv_publication_end(struct kv_publication *p);
uint64_t __real_kv_publication_fence(struct kv_publication *p);
uint64_t __wrap_kv_publication_fence(struct kv_publication *p);

void __wrap_kv_publication_begin(struct kv_publication *p)
{
    yield_sometimes(); /* sampled, not BUSY */
    __real_kv_publication_begin(p);
    yield_sometimes(); /* BUSY, the word not loaded again */
}
bool __wrap_kv_publication_unchanged(const struct kv_publication *p, uint64_t word)
{
    bool same = __real_kv_publication_unchanged(p, word);
    yield_sometimes(); /* the word loaded again, nothing appended */
    return same;
}
void __wrap_kv_publication_end(struct kv_publication *p)
{
    yield_sometimes(); /* appended, still BUSY */
    __real_kv_publication_end(p);
}
uint64_t __wrap_kv_publication_fence(struct kv_publication *p)
{
    yield_sometimes();
    uint64_t before = __real_kv_publication_fence(p);
    yield_sometimes(); /* fenced, not yet answered */
    return before;
}

/* ---------------------------------------------------------------- rounds */

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
        memcpy(expected[prompt][arm][k].logprob, fresh.logprob, sizeof expected[prompt][arm][k].logprob);
        expected[prompt][arm][k].there = true;
    }
    for (int32_t i = 0; i < STEPS; i++)
        ck_assert_msg(r->ids[i] == expected[prompt][arm][k].ids[i], "round %d, prompt %d, %s: token %d after %d of the candidate", round, prompt, arm ? "sampled" : "greedy", (int)i, (int)k);
    ck_assert_msg(!memcmp(r->logprob + k, expected[prompt][arm][k].logprob + k, sizeof(float) * (size_t)(STEPS - k)), "round %d, prompt %d, %s: a logprob after %d of the candidate", round, prompt,
                  arm ? "sampled" : "greedy", (int)k);
}

static void race(struct kv_model *m, int rounds)
{
    static struct run r[ARMS];
    unsigned state = 3;
    int struck[STEPS + 1] = {0};
    struct kv_engine_config c;
    struct kv_engine *e;
    struct kv_error err = {0};
    memset(expected, 0, sizeof expected);
    kv_engine_config_default(&c);
    c.n_threads = 1;
    c.index_share = 0; /* built at once: narrow layers are done before a share of their time made an index */
    ck_assert_msg(kv_engine_create(m, &c, &e, &err) == KV_OK, "%s", err.message);
    /* Random weights attend to everything alike: what quest leaves out of 129 rows must not make it exact. */
    struct kv_fallback_table table;
    kv_fallback_source_table(&table);
    kv_engine_set_fallback(e, &table, 1);
    racing = true;
    for (int round = 0; round < rounds; round++) {
        int prompt = round % PROMPTS;
        struct kv_rollback back;
        int32_t met = ROWS - 1 + (int32_t)(random_bits(&state) % STEPS); /* after this row */
        arrived = striking = false;
        install(e, "quest", "budget_rows", 16, false);
        for (int a = 0; a < ARMS; a++) {
            prepare(&r[a], prompt, a);
            r[a].ctx = a ? NULL : &met;
            assign(e, &r[a], KV_APPROXIMATE);
            run_begin(e, &r[a]);
        }
        run_read(&r[0], (int32_t)(random_bits(&state) % (unsigned)(met - ROWS + 2)));
        while (!arrived) sched_yield();
        striking = true;
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
    racing = false;
    kv_engine_destroy(e);
    int places = 0;
    for (int i = 0; i <= STEPS; i++) places += struck[i] > 0;
    ck_assert_int_ge(places, 4); /* before, between and after its tokens */
}

START_TEST(nothing_leaves_after_the_fence)
{
    race(demo_model(), 50);
}
END_TEST

START_TEST(nothing_leaves_after_the_fence_of_many)
{
    char path[64];
    struct kv_model *m;
    struct kv_error err = {0};
    random_gguf_save(&(struct random_model){.type = KV_Q8_0, .n_layers = 3 /* quest leaves two dense */, .untied = true, .n_vocab = VOCAB_LOW + VOCAB_SPAN, .seed = 11}, path);
    enum kv_status st = kv_model_open(path, NULL, &m, &err);
    unlink(path);
    ck_assert_msg(st == KV_OK, "%s", err.message);
    race(m, getenv("KVASIR_SOAK") ? 100000 : 1000);
    kv_model_close(m);
}
END_TEST

Suite *suite_rollback_race(void)
{
    Suite *s = suite_create("rollback_race");
    TCase *t = tcase_create("rollback_race");
    tcase_set_timeout(t, getenv("KVASIR_SOAK") ? 7200 : 120);
    tcase_add_test(t, nothing_leaves_after_the_fence);
    tcase_add_test(t, nothing_leaves_after_the_fence_of_many);
    suite_add_tcase(s, t);
    return s;
}
