/* test_schedules.c — random arrivals, pauses, resumes, cancellations, deadlines, rollbacks, resets of the transfers' account and faults through the
 * whole engine, and what must hold whatever comes: credits are conserved, no token is lost, doubled or another one than alone, no exact request is
 * answered approximately, nobody is passed by a later one once it has waited for the bound, and nothing stays reserved. */
#include "runtime/residency/faults.h"
#include "runtime/service/engine.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Suite *suite_schedules(void);

enum { STEPS = 500, LONG_STEPS = 10000, SLOTS = 12, PROMPTS = 5, LONGEST = 64, PROMPT_ROWS = 100, STARVATION_US = 200000, SLACK_US = 20000, ADMITTED = 4096, SETTLE_S = 30 };

enum state { FREE, RUNS, PAUSED };
struct slot { /* one session */
    enum state state;
    int prompt;
    bool exact, cancelled, hurried, resumed;
    int32_t want, n, ids[LONGEST];
    struct kv_stream *stream;
    struct kv_pause_view view;
    char session[16];
    int64_t asked_us, taken_us; /* around its submit */
};

static struct {
    struct kv_engine *e;
    struct kv_faults *faults;
    struct slot slot[SLOTS];
    int32_t reference[PROMPTS][LONGEST], prompt[PROMPTS][PROMPT_ROWS];
    struct { int64_t arrived_us, earliest_us, latest_us; bool resumed; } admitted[ADMITTED];
    int32_t n_admitted;
    uint64_t candidate, finished, paused, resumed, refused, resets;
    uint32_t seed;
} w;

static uint32_t draw(uint32_t n)
{
    w.seed = w.seed * 1664525u + 1013904223u;
    return (w.seed >> 8) % n;
}

/* ---------------------------------------------------------------- what must hold */

static void check_credits(void)
{
    static struct kv_credit_holder h[512];
    struct kv_credit_view v;
    uint64_t sum[KV_CREDIT_KINDS] = {0};
    kv_credits_view(kv_engine_credits(w.e), &v, h, 512, NULL, 0);
    ck_assert_int_le(v.n_holders, 512);
    for (int32_t i = 0; i < v.n_holders; i++) {
        sum[KV_CREDIT_PINNED] += h[i].backend_bytes;
        sum[KV_CREDIT_LINK] += h[i].backend_bytes;
        sum[KV_CREDIT_STAGING] += h[i].staging_bytes;
        sum[KV_CREDIT_QUEUE] += h[i].queue_slots;
    }
    for (int k = 0; k < KV_CREDIT_KINDS; k++) {
        ck_assert_uint_eq(sum[k], v.used[k]);
        ck_assert_uint_le(v.used[k], v.total[k]);
    }
    if (!w.resets) {
        ck_assert_uint_eq(v.reserved - v.released, (uint64_t)v.n_holders);
        ck_assert_uint_eq(v.stale, 0);
    }
}

static void check_tokens(const struct slot *s)
{
    for (int32_t i = 0; i < s->n && s->exact; i++)
        ck_assert_msg(s->ids[i] == w.reference[s->prompt][i], "%s: token %d of prompt %d is %d and alone it is %d", s->session, i, s->prompt, s->ids[i], w.reference[s->prompt][i]);
}

/* A later request that was admitted while an older one had waited for the bound already. */
static void check_starvation(void)
{
    for (int32_t i = 0; i < w.n_admitted; i++)
        for (int32_t j = 0; j < w.n_admitted; j++)
            ck_assert_msg(w.admitted[j].resumed || w.admitted[j].arrived_us <= w.admitted[i].arrived_us + SLACK_US || w.admitted[j].latest_us <= w.admitted[i].arrived_us + STARVATION_US + SLACK_US ||
                              w.admitted[j].latest_us >= w.admitted[i].earliest_us - SLACK_US, "request %d had waited for the bound and %d passed it", i, j);
}

/* ---------------------------------------------------------------- one request's life */

static void ended(struct slot *s, enum kv_finish finish)
{
    struct kv_request_stats st;
    kv_stream_stats(s->stream, &st);
    kv_stream_close(s->stream);
    s->stream = NULL;
    check_tokens(s);
    if (finish == KV_FINISH_LENGTH || finish == KV_FINISH_PAUSED) {
        ck_assert_int_lt(w.n_admitted, ADMITTED);
        w.admitted[w.n_admitted].arrived_us = s->taken_us;
        w.admitted[w.n_admitted].earliest_us = s->asked_us + st.queued_us;
        w.admitted[w.n_admitted].latest_us = s->taken_us + st.queued_us;
        w.admitted[w.n_admitted++].resumed = s->resumed;
    }
    if (finish == KV_FINISH_PAUSED) return;
    if (finish == KV_FINISH_LENGTH) ck_assert_int_eq(s->n, s->want);
    else if (finish == KV_FINISH_CANCELLED) ck_assert(s->cancelled);
    else ck_assert_msg(s->hurried && st.status == KV_DEADLINE, "%s ended with %s", s->session, kv_status_name(st.status));
    w.finished++;
    s->state = FREE;
}

/* As far as there is something to read; to the end when it must come. */
static enum kv_finish follow(struct slot *s, int32_t timeout_ms)
{
    struct kv_chunk c[8];
    enum kv_finish finish = KV_RUNNING;
    int32_t got = 8;
    while (got == 8 || (finish == KV_RUNNING && timeout_ms)) {
        ck_assert_int_eq(kv_stream_read(s->stream, c, 8, timeout_ms, &got, &finish), KV_OK);
        ck_assert_msg(got || finish != KV_RUNNING || !timeout_ms, "%s got no token in time", s->session);
        for (int32_t i = 0; i < got; i++) {
            ck_assert_int_lt(s->n, s->want);
            if (s->exact) ck_assert_int_eq(c[i].published, KV_EXACT);
            s->ids[s->n++] = c[i].token;
        }
    }
    return finish;
}

static void submit(struct slot *s)
{
    static int32_t all[PROMPT_ROWS + LONGEST];
    struct kv_error err = {0};
    bool goes_on = s->state == PAUSED;
    memcpy(all, w.prompt[s->prompt], sizeof w.prompt[0]);
    memcpy(all + PROMPT_ROWS, s->ids, (size_t)s->n * sizeof *all);
    struct kv_request q = {.prompt = all, .n_prompt = PROMPT_ROWS + s->n, .max_tokens = s->want - s->n, .ignore_eos = true, .sampling = {.top_p = 1, .repetition_penalty = 1},
                           .contract = s->exact ? KV_EXACT : KV_APPROXIMATE, .tenant = "acme", .session = s->session, .priority = (int32_t)draw(101)};
    if (goes_on) q.first_prompt = PROMPT_ROWS, q.n_spoken = s->n, q.resume = s->view.request, q.arrival_us = s->view.arrival_us;
    else if (draw(2)) q.candidate = w.candidate, q.epoch = kv_engine_release(w.e).epoch;
    s->asked_us = kv_engine_now_us();
    if (s->hurried) q.deadline_us = s->asked_us + 1000 + draw(60000);
    enum kv_status st = kv_engine_submit(w.e, &q, &s->stream, &err);
    s->taken_us = kv_engine_now_us();
    ck_assert_msg(st == KV_OK || st == KV_QUEUE_FULL, "%s", err.message);
    w.refused += st == KV_QUEUE_FULL;
    if (st != KV_OK) return;
    s->resumed = goes_on;
    s->state = RUNS;
    w.resumed += goes_on;
}

static void arrive(struct slot *s)
{
    int at = (int)(s - w.slot);
    *s = (struct slot){.prompt = (int)draw(PROMPTS), .exact = draw(3) != 0, .hurried = draw(10) == 0, .want = 1 + (int32_t)draw(LONGEST)};
    snprintf(s->session, sizeof s->session, "s-%d", at);
    submit(s);
}

static void interrupt(struct slot *s)
{
    struct kv_error err;
    enum kv_status st = kv_engine_pause(w.e, "acme", s->session, (enum kv_pause_action)draw(KV_PAUSE_ACTIONS), &s->view, &err);
    /* Waits in the queue; waits there to go on from an earlier pause; has published nothing yet. */
    ck_assert_msg(st == KV_OK || st == KV_NOT_FOUND || st == KV_ALREADY_PAUSED || st == KV_PAUSE_IN_PREFILL, "%s", kv_status_name(st));
    if (st != KV_OK) return;
    ck_assert_int_eq(follow(s, 20000), KV_FINISH_PAUSED);
    ck_assert_int_eq(s->n, s->view.n_spoken);
    ended(s, KV_FINISH_PAUSED);
    s->state = PAUSED;
    s->hurried = false;
    w.paused++;
}

/* ---------------------------------------------------------------- what happens to all */

static void change_release(void)
{
    static const struct { const char *pipeline, *param; double value; } candidates[] = {{"layerwise", NULL, 0}, {"quest", "budget_rows", 32}};
    struct kv_release_word r = kv_engine_release(w.e);
    struct kv_rollback b;
    struct kv_error err;
    if (r.latched) kv_engine_rearm(w.e, r.epoch + 1, &err); /* refused while some recompute */
    else if (draw(2)) kv_engine_rollback(w.e, &b);
    else {
        uint32_t i = draw(2);
        struct kv_candidate c = {.id = ++w.candidate, .pipeline = kv_pipeline_find(candidates[i].pipeline), .byte_cost = 1};
        kv_params_default(c.pipeline, &c.params);
        if (candidates[i].param) kv_params_set(c.pipeline, &c.params, candidates[i].param, candidates[i].value, &err);
        ck_assert_int_eq(kv_engine_install(w.e, &c, false, r.epoch, r.epoch + 1, &err), KV_OK);
    }
}

static void break_something(void)
{
    static const enum kv_fault faults[] = {KV_FAULT_delayed_completion, KV_FAULT_completion_after_cancel, KV_FAULT_dropped_read, KV_FAULT_bit_flip};
    struct kv_error err;
    struct kv_fault_scope scope = {.candidate = w.candidate};
    struct slot *s = &w.slot[draw(SLOTS)];
    switch (draw(4)) {
    case 0:
        if (s->state == PAUSED) kv_pauses_spoil(w.e, s->view.request);
        break;
    case 1:
        w.resets++;
        kv_credits_reset(kv_engine_credits(w.e));
        break;
    case 2:
        if (s->state == PAUSED) kv_engine_forget_paused(w.e, s->view.request); /* it is computed from its tokens then */
        break;
    default: kv_faults_arm(w.faults, faults[draw(4)], 1 + draw(3), &scope, &err); /* or is armed already */
    }
}

static void step(void)
{
    struct slot *s = &w.slot[draw(SLOTS)];
    uint32_t what = draw(100);
    if (what < 4) change_release();
    else if (what < 8) break_something();
    else if (s->state == FREE) arrive(s);
    else if (s->state == PAUSED) submit(s);
    else if (what < 40) interrupt(s);
    else if (what < 45) kv_stream_cancel(s->stream), s->cancelled = true;
    for (int i = 0; i < SLOTS; i++)
        if (w.slot[i].state == RUNS) {
            enum kv_finish f = follow(&w.slot[i], 0);
            if (f != KV_RUNNING) ended(&w.slot[i], f);
        }
    check_credits();
}

/* ---------------------------------------------------------------- begin and end */

static void learn(void)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    for (int p = 0; p < PROMPTS; p++) {
        run_init(r, (uint32_t)(100 + p), PROMPT_ROWS, LONGEST);
        memcpy(w.prompt[p], r->prompt, sizeof w.prompt[p]);
        run_all(e, r);
        memcpy(w.reference[p], r->ids, sizeof w.reference[p]);
    }
    kv_engine_destroy(e);
    free(r);
}

static void settle(void)
{
    struct kv_engine_stats st;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &w.slot[i];
        if (s->state == PAUSED) kv_engine_forget_paused(w.e, s->view.request);
        if (s->state == RUNS) ended(s, follow(s, 20000));
    }
    int64_t limit_us = kv_engine_now_us() + SETTLE_S * 1000000LL;
    do {
        kv_engine_stats(w.e, &st);
        ck_assert_msg(kv_engine_now_us() < limit_us, "%llu bytes stay reserved", (unsigned long long)st.reserved_bytes);
    } while (st.reserved_bytes || st.active);
    struct kv_credit_view v;
    kv_credits_view(kv_engine_credits(w.e), &v, NULL, 0, NULL, 0);
    for (int k = 0; k < KV_CREDIT_KINDS; k++) ck_assert_uint_eq(v.used[k], 0);
    ck_assert_int_eq(v.n_holders, 0);
    ck_assert_int_eq(v.n_waiters, 0);
    ck_assert_uint_eq(st.exact_mismatches, 0);
    ck_assert_uint_eq(st.illegal_fallbacks, 0);
    ck_assert_uint_eq(st.tenant_failures, 0);
}

/* _i 0: rows that move out lie in memory; 1: on disk. Room for five requests of twelve. */
START_TEST(whatever_comes_the_invariants_hold)
{
    const struct kv_weights *m = kv_model_weights(demo_model());
    uint64_t request = (PROMPT_ROWS + LONGEST + 63) / 64 * (uint64_t)m->n_layers * kv_slab_bytes(KV_ROW_TYPE, m->n_kv_heads, m->d_head);
    char dir[] = "/tmp/kvasir-schedules-XXXXXX", command[64];
    struct kv_engine_config c;
    memset(&w, 0, sizeof w);
    w.seed = 77 + (uint32_t)_i;
    learn();
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.max_sequences = 4;
    c.max_queue = 6;
    c.starvation_us = STARVATION_US;
    c.host_bytes = 5 * request;
    c.swap_bytes = 3 * request;
    ck_assert_int_eq(kv_faults_create(&w.faults), KV_OK);
    c.faults = w.faults;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    if (_i) c.disk_path = dir, c.disk_bytes = 64 << 20, c.disk_key[0] = 3;
    w.e = make_engine(&c);
    for (int i = 0, n = getenv("KVASIR_SOAK") ? LONG_STEPS : STEPS; i < n; i++) {
        step();
        if (w.n_admitted > ADMITTED - 2 * SLOTS) check_starvation(), w.n_admitted = 0;
    }
    settle();
    check_starvation();
    ck_assert_msg(w.finished > 20 && w.paused > 10 && w.resumed > 5 && w.refused > 0, "too little happened: %llu finished, %llu paused, %llu resumed, %llu refused", (unsigned long long)w.finished,
                  (unsigned long long)w.paused, (unsigned long long)w.resumed, (unsigned long long)w.refused);
    kv_engine_destroy(w.e);
    kv_faults_destroy(w.faults);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

Suite *suite_schedules(void)
{
    Suite *s = suite_create("schedules");
    TCase *t = tcase_create("schedules");
    tcase_set_timeout(t, 1200);
    tcase_add_loop_test(t, whatever_comes_the_invariants_hold, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
