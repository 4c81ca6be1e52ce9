/* drill_engine.c — drills of an engine that serves the candidate. */
#include "controller/release/drill_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER = 48, SERVED = 12, ROUNDS = 4, CROWD = 6, READ_MS = 20000 };

struct talk { /* one request and its answer */
    struct kv_request q;
    struct kv_stream *stream;
    int32_t ids[ANSWER], n, last_candidate; /* last_candidate: index of the last token the candidate made, -1 none */
    enum kv_finish finish;
    enum kv_status refused;
    struct kv_request_stats stats;
};

static struct kv_engine *make_engine(struct drill *d, void (*change)(struct kv_engine_config *c, struct drill *d))
{
    struct kv_engine_config c;
    struct kv_engine *e = NULL;
    struct kv_error err = {0};
    kv_engine_config_default(&c);
    c.n_threads = 1;
    c.host_bytes = 256u << 20;
    c.break_even = KV_BREAK_EVEN_LEAST; /* the prompts are short, and the candidate is to select */
    if (change) change(&c, d);
    enum kv_status st = kv_engine_create(d->model, &c, &e, &err);
    kv_drill_check(d, st == KV_OK, "no engine: %.100s", err.message);
    if (e) kv_engine_set_fallback(e, &d->table, 1);
    return e;
}

static bool serve_candidate(struct drill *d, struct kv_engine *e)
{
    struct kv_candidate k = {.id = 1, .pipeline = d->manifest.pipeline, .params = d->manifest.params};
    struct kv_release_word w = kv_engine_release(e);
    struct kv_error err = {0};
    return kv_drill_check(d, kv_engine_install(e, &k, false, w.epoch, w.epoch + 1, &err) == KV_OK, "the candidate cannot be installed: %.100s", err.message);
}

/* Prompt number i. candidate: ask for the candidate's arm. */
static void talk_init(const struct drill *d, struct kv_engine *e, struct talk *t, int32_t i, bool candidate)
{
    const struct kv_heldout_item *it = &d->prompts.item[i % d->prompts.n];
    memset(t, 0, sizeof *t);
    t->last_candidate = -1;
    t->q = (struct kv_request){.prompt = it->ids, .n_prompt = it->n_prompt, .max_tokens = ANSWER, .ignore_eos = true, .tenant = "drill", .sampling = {.top_p = 1, .repetition_penalty = 1}};
    if (it->n_prompt + ANSWER > kv_model_info(d->model)->context_length) t->q.n_prompt = kv_model_info(d->model)->context_length - ANSWER;
    if (!candidate) return;
    t->q.candidate = 1;
    t->q.epoch = kv_engine_release(e).epoch;
    t->q.contract = d->manifest.contract;
}

static void talk_begin(struct kv_engine *e, struct talk *t)
{
    t->refused = kv_engine_submit(e, &t->q, &t->stream, NULL);
}

/* At least n tokens in all, or to the end. */
static void talk_read(struct talk *t, int32_t n)
{
    struct kv_chunk c[8];
    int32_t got = 1;
    while (t->stream && t->n < n && got > 0 && kv_stream_read(t->stream, c, 8, READ_MS, &got, &t->finish) == KV_OK)
        for (int32_t i = 0; i < got && t->n < ANSWER; i++, t->n++) {
            t->ids[t->n] = c[i].token;
            if (c[i].candidate) t->last_candidate = t->n;
        }
}

static void talk_end(struct talk *t)
{
    talk_read(t, ANSWER);
    if (!t->stream) return;
    struct kv_chunk c;
    int32_t got = 1;
    for (int i = 0; i < 2 && t->finish == KV_RUNNING; i++) kv_stream_read(t->stream, &c, 1, READ_MS, &got, &t->finish); /* the end comes after the last token */
    kv_stream_stats(t->stream, &t->stats);
    kv_stream_close(t->stream);
    t->stream = NULL;
}

static bool same(const struct talk *a, const struct talk *b)
{
    return a->n == b->n && !memcmp(a->ids, b->ids, sizeof *a->ids * (size_t)a->n);
}

/* ---------------------------------------------------------------- rollback */

static bool resumed(struct kv_engine *e)
{
    const struct timespec pause = {0, 1000000};
    for (int i = 0; kv_engine_recomputing(e) && i < 30000; i++) nanosleep(&pause, NULL);
    return kv_engine_recomputing(e) == 0;
}

static void rollback_round(struct drill *d, struct kv_engine *e, int round)
{
    struct talk t, fresh;
    struct kv_rollback back;
    if (!serve_candidate(d, e)) return;
    talk_init(d, e, &t, round, true);
    if (round % 2) t.q.sampling = (struct kv_sampling){.temperature = 0.9f, .top_p = 0.95f, .repetition_penalty = 1.1f, .seed = 7 + (uint64_t)round};
    talk_begin(e, &t);
    talk_read(&t, SERVED + round);
    int32_t seen = t.n;
    kv_engine_rollback(e, &back);
    kv_drill_check(d, kv_engine_release(e).latched, "the word is not latched after a rollback");
    talk_end(&t);
    int32_t of_candidate = t.last_candidate + 1;
    kv_drill_check(d, of_candidate <= seen + back.unsent_tokens, "round %d: %d tokens of the candidate, %d were out at the fence", round, (int)of_candidate, (int)(seen + back.unsent_tokens));
    kv_drill_check(d, t.n == ANSWER && t.finish == KV_FINISH_LENGTH, "round %d: the answer ended after %d tokens", round, (int)t.n);
    talk_init(d, e, &fresh, round, false);
    fresh.q.sampling = t.q.sampling;
    fresh.q.force = t.ids;
    fresh.q.n_force = of_candidate;
    talk_begin(e, &fresh);
    talk_end(&fresh);
    kv_drill_check(d, same(&t, &fresh), "round %d: the rest is not that of a fresh exact run", round);
    kv_drill_check(d, resumed(e), "round %d: sequences did not come back", round);
    struct kv_error err = {0};
    kv_drill_check(d, kv_engine_rearm(e, kv_engine_release(e).epoch + 1, &err) == KV_OK, "it cannot be armed again: %.80s", err.message);
}

void kv_drill_rollback(struct drill *d)
{
    struct kv_engine *e = make_engine(d, NULL);
    for (int i = 0; e && i < ROUNDS; i++) rollback_round(d, e, i);
    if (e) kv_engine_destroy(e);
}

/* ---------------------------------------------------------------- tenants */

void kv_drill_tenant_isolation(struct drill *d)
{
    struct kv_engine *e = make_engine(d, NULL);
    if (!e) return;
    struct talk a, b, again;
    struct talk *all[3] = {&a, &b, &again};
    const char *const tenants[3] = {"drill-a", "drill-b", "drill-a"};
    serve_candidate(d, e);
    for (int i = 0; i < 3; i++) {
        talk_init(d, e, all[i], 0, false); /* rows that may be shared are exact ones */
        all[i]->q.tenant = tenants[i];
        all[i]->q.session = "one";
        talk_begin(e, all[i]);
        talk_end(all[i]);
        kv_drill_check(d, all[i]->n == ANSWER, "a request ended after %d tokens", (int)all[i]->n);
    }
    kv_drill_check(d, b.stats.n_reused == 0, "%d rows of one tenant were reused for another", (int)b.stats.n_reused);
    kv_drill_check(d, again.stats.n_reused > 0 || a.q.n_prompt < 65, "nothing is reused at all, so the drill says nothing");
    kv_drill_check(d, same(&a, &b) && same(&a, &again), "the answers differ");
    for (int i = 0; i < 2; i++) {
        talk_init(d, e, all[i], 1, true);
        all[i]->q.tenant = tenants[i];
        talk_begin(e, all[i]);
        talk_end(all[i]);
    }
    kv_drill_check(d, b.stats.n_reused == 0 && same(&a, &b), "the candidate's arm tells tenants apart, or lets them share");
    struct kv_engine_stats s;
    kv_engine_drain(e, READ_MS);
    kv_engine_stats(e, &s);
    kv_drill_check(d, s.tenant_failures == 0, "%llu rows of one tenant were asked for under another", (unsigned long long)s.tenant_failures);
    kv_engine_destroy(e);
}

/* ---------------------------------------------------------------- memory */

static void little_memory(struct kv_engine_config *c, struct drill *d)
{
    const struct kv_model_info *m = kv_model_info(d->model);
    uint64_t row = (uint64_t)m->n_layers * (uint64_t)m->n_kv_heads * (uint64_t)m->d_head * 4;
    c->host_bytes = row * 2 * (uint64_t)(d->prompts.item[0].n_prompt + ANSWER + 128); /* two requests and some */
    if (c->host_bytes < 1u << 20) c->host_bytes = 1u << 20;
    c->max_queue = CROWD - 1;
}

static bool typed(enum kv_status st)
{
    return st == KV_CAPACITY || st == KV_QUEUE_FULL || st == KV_OUT_OF_MEMORY || st == KV_NO_SPACE;
}

static void crowd(struct drill *d, struct kv_engine *e, const struct talk *alone)
{
    struct talk *t = calloc(CROWD * 2, sizeof *t);
    if (!kv_drill_check(d, t != NULL, "no memory for the drill itself")) return;
    for (int i = 0; i < CROWD * 2; i++) {
        talk_init(d, e, &t[i], 0, i % 2);
        talk_begin(e, &t[i]);
    }
    int refused = 0;
    for (int i = 0; i < CROWD * 2; i++) {
        talk_end(&t[i]);
        refused += t[i].refused != KV_OK;
        kv_drill_check(d, t[i].refused == KV_OK || typed(t[i].refused), "a request was refused with %s", kv_status_name(t[i].refused));
        if (t[i].refused == KV_OK && t[i].finish == KV_FINISH_ERROR) kv_drill_check(d, typed(t[i].stats.status), "a request ended with %s", kv_status_name(t[i].stats.status));
        else if (t[i].refused == KV_OK && t[i].stats.candidate == 0) kv_drill_check(d, same(&t[i], alone), "an answer changed because memory was short");
    }
    kv_drill_check(d, refused > 0, "nothing was refused, so the drill says nothing");
    free(t);
}

void kv_drill_allocation_failure(struct drill *d)
{
    struct kv_engine *e = make_engine(d, little_memory);
    if (!e) return;
    struct talk alone, big;
    talk_init(d, e, &alone, 0, false);
    talk_begin(e, &alone);
    talk_end(&alone);
    if (serve_candidate(d, e)) crowd(d, e, &alone);
    talk_init(d, e, &big, 0, false);
    big.q.max_tokens = kv_model_info(d->model)->context_length - big.q.n_prompt;
    struct kv_error err = {0};
    enum kv_status st = kv_engine_submit(e, &big.q, &big.stream, &err);
    kv_drill_check(d, st != KV_OK ? typed(st) : true, "a request larger than the memory was refused with %s", kv_status_name(st));
    if (st == KV_OK) kv_stream_cancel(big.stream), kv_stream_close(big.stream);
    talk_init(d, e, &big, 0, false);
    talk_begin(e, &big);
    talk_end(&big);
    kv_drill_check(d, same(&big, &alone), "the engine does not answer as before after memory was short");
    kv_engine_destroy(e);
}

/* ---------------------------------------------------------------- a slow link */

static void slow_link(struct kv_engine_config *c, struct drill *d)
{
    (void)d;
    c->link_bytes_per_second = 50e6;
    c->link_latency_us = 500;
}

void kv_drill_stall(struct drill *d)
{
    struct talk fast, slow;
    struct talk *of[2] = {&fast, &slow};
    for (int i = 0; i < 2; i++) {
        struct kv_engine *e = make_engine(d, i ? slow_link : NULL);
        if (!e) return;
        serve_candidate(d, e);
        talk_init(d, e, of[i], 2, true);
        talk_begin(e, of[i]);
        talk_end(of[i]);
        kv_drill_check(d, of[i]->n == ANSWER && of[i]->finish == KV_FINISH_LENGTH, "an answer ended after %d tokens", (int)of[i]->n);
        if (i) {
            struct talk late, beside;
            struct timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            talk_init(d, e, &late, 3, true);
            talk_init(d, e, &beside, 2, true);
            late.q.deadline_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + 1;
            talk_begin(e, &late);
            talk_begin(e, &beside);
            talk_end(&late);
            talk_end(&beside);
            kv_drill_check(d, late.refused == KV_DEADLINE || late.stats.status == KV_DEADLINE, "a request past its deadline ended with %s", kv_status_name(late.stats.status));
            kv_drill_check(d, same(&beside, &fast), "a deadline that passed beside it changed an answer");
        }
        kv_engine_destroy(e);
    }
    kv_drill_check(d, same(&fast, &slow), "a slow link changed the answer");
}

/* ---------------------------------------------------------------- fallbacks */

void kv_drill_illegal_fallback(struct drill *d)
{
    kv_drill_check(d, d->table_status == KV_OK, "%.120s", d->table_why);
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        struct kv_fallback_state s;
        kv_fallback_state_of(i, &s);
        kv_drill_check(d, kv_fallback_legal(&s, (enum kv_fallback_action)d->table.action[i]), "case %u: %s is not legal", i, kv_fallback_action_name((enum kv_fallback_action)d->table.action[i]));
    }
    struct kv_engine *e = make_engine(d, NULL);
    if (!e) return;
    kv_engine_set_fallback(e, &d->table, -2); /* no estimate passes: every step asks the table */
    serve_candidate(d, e);
    struct talk t;
    for (int i = 0; i < 2; i++) {
        talk_init(d, e, &t, i, true);
        talk_begin(e, &t);
        talk_end(&t);
        kv_drill_check(d, t.n == ANSWER || t.stats.status != KV_OK, "a request ended after %d tokens and without a reason", (int)t.n);
    }
    struct kv_engine_stats s;
    kv_engine_drain(e, READ_MS);
    kv_engine_stats(e, &s);
    kv_drill_check(d, s.illegal_fallbacks == 0, "%llu illegal fallbacks were proposed", (unsigned long long)s.illegal_fallbacks);
    kv_engine_destroy(e);
}
