/* test_tournament.c — a tournament beside a running engine: what is served keeps its bits, what does not fit is dropped, and it starts and stops at any time. */
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct kv_tournament_config of(const char *a, const char *b, uint64_t units)
{
    struct kv_tournament_config c = {.pipeline = {kv_pipeline_find(a), kv_pipeline_find(b)}, .n = 2, .mass = 0.9, .fraction = 0.05, .units = units};
    for (int i = 0; i < 2; i++) kv_params_default(c.pipeline[i], &c.params[i]);
    return c;
}

START_TEST(what_is_served_keeps_its_bits)
{
    struct run *alone = calloc(1, sizeof *alone), *beside = calloc(1, sizeof *beside);
    struct kv_engine *e = make_engine(NULL);
    struct kv_tournament_view v;
    struct kv_error err = {0};
    run_init(alone, 5, PROMPT, 60);
    run_all(e, alone);
    ck_assert(!kv_engine_tournament(e, &v));
    ck_assert_int_eq(kv_engine_tournament_stop(e), KV_NOT_FOUND);
    struct kv_tournament_config c = of("quest", "pqcache", 64);
    ck_assert_int_eq(kv_engine_tournament_start(e, &c, &err), KV_OK);
    ck_assert_int_eq(kv_engine_tournament_start(e, &c, &err), KV_CONFLICT);
    for (int rounds = 0; rounds < 1000; rounds++) { /* more units than it wants: it ends by itself, however little time its thread gets */
        run_init(beside, 5, PROMPT, 60);
        run_all(e, beside);
        same_runs(alone, beside);
        ck_assert(kv_engine_tournament(e, &v));
        if (!v.running) break;
    }
    ck_assert(!v.running && v.units == 64 && v.limit == 64);
    ck_assert_uint_gt(v.units + v.dropped, 64 - 1);
    ck_assert_int_eq(kv_engine_tournament_start(e, &c, &err), KV_OK); /* the next one forgets the last */
    ck_assert(kv_engine_tournament(e, &v) && v.units < 64);
    kv_engine_destroy(e); /* while it runs */
    free(alone);
    free(beside);
}
END_TEST

static void *meddle(void *arg)
{
    struct kv_engine *e = arg;
    struct kv_tournament_view v;
    for (int i = 0; i < 12; i++) {
        struct kv_tournament_config c = of(i % 2 ? "sparq" : "quest", "clusterkv", 1000);
        kv_engine_tournament_start(e, &c, NULL);
        for (int k = 0; k < 20; k++) kv_engine_tournament(e, &v);
        kv_engine_tournament_stop(e);
    }
    return NULL;
}

START_TEST(it_starts_and_stops_under_traffic)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, meddle, e), 0);
    for (int i = 0; i < 4; i++) {
        run_init(r, 7, PROMPT, 40);
        run_all(e, r);
    }
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* The tournament's own draw, so that it can be said how many units there were. */
static bool is_sampled(uint64_t request, int32_t layer, int32_t kv_head, int32_t position, double fraction)
{
    uint64_t x[3] = {request + 0x746f7572, (uint32_t)position, (uint64_t)(uint32_t)layer << 32 | (uint32_t)kv_head}, h = 0;
    for (int i = 0; i < 3; i++) {
        h ^= x[i];
        h = (h ^ (h >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        h = (h ^ (h >> 27)) * UINT64_C(0x94d049bb133111eb);
        h ^= h >> 31;
    }
    return (double)(h >> 11) < fraction * 0x1p53;
}

static _Atomic bool looking;

static void *look(void *arg)
{
    struct kv_tournament_view v;
    while (looking) kv_engine_tournament(arg, &v);
    return NULL;
}

/* Every unit of every step is measured or said to be dropped, also those that came while somebody read the standings. */
START_TEST(no_sampled_unit_goes_uncounted)
{
    enum { TOKENS = 200 };
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    struct kv_tournament_config c = of("quest", "sparq", 1000000);
    const struct kv_model_info *m = kv_model_info(demo_model());
    struct kv_tournament_view v;
    struct kv_error err = {0};
    pthread_t thread;
    ck_assert_msg(kv_engine_tournament_start(e, &c, &err) == KV_OK, "%s", err.message);
    looking = true;
    ck_assert_int_eq(pthread_create(&thread, NULL, look, e), 0);
    run_init(r, 11, PROMPT, TOKENS);
    run_all(e, r);
    uint64_t all = 0;
    for (int32_t at = PROMPT; at < PROMPT + TOKENS - 1; at++) /* the prompt's last row gave the first token */
        for (int32_t l = 0; l < m->n_layers; l++)
            for (int32_t h = 0; h < m->n_kv_heads; h++) all += is_sampled(1, l, h, at, c.fraction);
    ck_assert_uint_gt(all, 5);
    do ck_assert(kv_engine_tournament(e, &v));
    while (v.running && v.units + v.dropped < all); /* what waits is measured yet */
    ck_assert_uint_eq(v.units + v.dropped, all);
    looking = false;
    pthread_join(thread, NULL);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* Rows that a candidate computed, or that follow such rows, are nobody's reference. */
START_TEST(candidates_are_never_sampled)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    struct kv_tournament_view v;
    struct kv_tournament_config c = of("quest", "sparq", 1000);
    struct kv_error err = {0};
    install(e, "quest", "budget_rows", 32, false);
    ck_assert_int_eq(kv_engine_tournament_start(e, &c, &err), KV_OK);
    for (int i = 0; i < 3; i++) {
        run_init(r, 9, PROMPT, 60);
        assign(e, r, KV_APPROXIMATE);
        run_all(e, r);
    }
    ck_assert(kv_engine_tournament(e, &v));
    ck_assert_uint_eq(v.units + v.dropped, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

Suite *suite_tournament(void);
Suite *suite_tournament(void)
{
    Suite *s = suite_create("tournament");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 90);
    tcase_add_test(t, what_is_served_keeps_its_bits);
    tcase_add_test(t, it_starts_and_stops_under_traffic);
    tcase_add_test(t, no_sampled_unit_goes_uncounted);
    tcase_add_test(t, candidates_are_never_sampled);
    suite_add_tcase(s, t);
    return s;
}
