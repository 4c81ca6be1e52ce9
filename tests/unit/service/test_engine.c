/* test_engine.c — the engine with the demo model: the same bits in every company, typed refusals, endings, no allocation. */
#include "tests/unit/service/engine_runs.h"

#include "runtime/model/weights.h"
#include "tests/unit/model/write_gguf.h"

#include <check.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

Suite *suite_engine(void);

static struct run *runs(int n)
{
    struct run *r = calloc((size_t)n, sizeof *r);
    ck_assert_ptr_nonnull(r);
    return r;
}

/* ---------------------------------------------------------------- the same bits */

START_TEST(company_changes_no_bit)
{
    struct run *r = runs(8);
    struct kv_engine *e = make_engine(NULL);
    run_init(&r[0], 1, PROMPT, 12);
    run_all(e, &r[0]);
    for (int i = 1; i < 8; i++) {
        run_init(&r[i], i == 4 ? 1 : (uint32_t)i * 77, i == 4 ? PROMPT : 20 + 31 * i, 12 + i);
        if (i == 4) r[i].request.max_tokens = 12;
        run_begin(e, &r[i]);
    }
    for (int i = 1; i < 8; i++) run_end(&r[i]);
    same_runs(&r[0], &r[4]);
    ck_assert_int_eq(r[0].stats.finish, KV_FINISH_LENGTH);
    ck_assert_int_eq(r[0].stats.published, KV_EXACT);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(chunks_and_threads_change_no_bit)
{
    static const struct { int32_t threads, chunk; } cases[] = {{1, 1}, {2, 3}, {3, 64}, {1, 512}};
    struct run *r = runs(2);
    struct kv_engine *e = make_engine(NULL);
    run_init(&r[0], 5, PROMPT, 8);
    run_all(e, &r[0]);
    kv_engine_destroy(e);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = cases[_i].threads;
    c.prefill_chunk = cases[_i].chunk;
    e = make_engine(&c);
    run_init(&r[1], 5, PROMPT, 8);
    run_all(e, &r[1]);
    same_runs(&r[0], &r[1]);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* Deep enough that a decode step is cut into subtrees: one thread runs the whole tree, more threads fold parts of it. */
START_TEST(subtrees_change_no_bit)
{
    struct run *r = runs(2);
    for (int i = 0; i < 2; i++) {
        struct kv_engine_config c;
        kv_engine_config_default(&c);
        c.n_threads = 1 + 2 * i;
        struct kv_engine *e = make_engine(&c);
        run_init(&r[i], 12, 1300, 6);
        run_all(e, &r[i]);
        kv_engine_destroy(e);
    }
    same_runs(&r[0], &r[1]);
    free(r);
}
END_TEST

START_TEST(layerwise_publishes_the_same_bits)
{
    struct run *r = runs(4);
    struct kv_engine *e = make_engine(NULL);
    run_init(&r[0], 6, PROMPT, 10);
    run_all(e, &r[0]);
    install(e, "layerwise", NULL, 0, false);
    for (int i = 1; i < 4; i++) {
        run_init(&r[i], i == 2 ? 6 : 60 + (uint32_t)i, PROMPT, 10);
        assign(e, &r[i], KV_EXACT);
        run_begin(e, &r[i]);
    }
    for (int i = 1; i < 4; i++) run_end(&r[i]);
    same_runs(&r[0], &r[2]);
    ck_assert_uint_eq(r[2].stats.candidate, 1);
    ck_assert_int_eq(r[2].stats.published, KV_EXACT);
    struct kv_layer_timing t[64];
    ck_assert_int_eq(kv_engine_layer_timings(e, t, 64), kv_model_info(demo_model())->n_layers);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(draws_follow_the_output_index)
{
    struct run *r = runs(3);
    struct kv_engine *e = make_engine(NULL);
    for (int i = 0; i < 3; i++) {
        run_init(&r[i], 9, 40, 16);
        r[i].request.sampling = (struct kv_sampling){.temperature = 1, .top_p = 0.95f, .repetition_penalty = 1, .seed = i == 2 ? 8 : 7};
    }
    run_all(e, &r[0]);
    /* The first eight tokens forced: the ninth is drawn as if they had been drawn. */
    r[1].request.force = r[0].ids;
    r[1].request.n_force = 8;
    run_all(e, &r[1]);
    run_all(e, &r[2]);
    same_runs(&r[0], &r[1]);
    ck_assert(memcmp(r[0].ids, r[2].ids, 16 * sizeof *r[0].ids) != 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- endings and refusals */

START_TEST(a_cancelled_request_ends_and_frees_its_rows)
{
    struct run *r = runs(1);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.prefix_reuse = false; /* else the prompt's block is kept */
    struct kv_engine *e = make_engine(&c);
    run_init(r, 3, 64, 400);
    run_begin(e, r);
    run_read(r, 3);
    kv_stream_cancel(r->stream);
    run_end(r);
    ck_assert_int_eq(r->stats.finish, KV_FINISH_CANCELLED);
    ck_assert_int_lt(r->n, 400);
    kv_engine_drain(e, 5000);
    struct kv_engine_stats st;
    kv_engine_stats(e, &st);
    ck_assert_int_eq(st.active, 0);
    ck_assert_uint_eq(st.cancelled, 1);
    ck_assert_uint_eq(st.tier[1].used_bytes, 0);
    struct kv_error err;
    struct kv_stream *s;
    ck_assert_int_eq(kv_engine_submit(e, &r->request, &s, &err), KV_DRAINING);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(a_reader_that_leaves_cancels)
{
    struct run *r = runs(1);
    struct kv_engine *e = make_engine(NULL);
    run_init(r, 3, 64, 400);
    r->request.observe = NULL;
    run_begin(e, r);
    kv_stream_close(r->stream);
    kv_engine_drain(e, 10000);
    struct kv_engine_stats st;
    kv_engine_stats(e, &st);
    ck_assert_uint_eq(st.cancelled, 1);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(a_stop_string_ends_the_answer_before_it)
{
    struct kv_model *m = demo_model();
    struct run *r = runs(2);
    struct kv_engine *e = make_engine(NULL);
    run_init(&r[0], 21, 60, 24);
    run_all(e, &r[0]);
    char whole[512], piece[64];
    size_t len, part;
    ck_assert_int_eq(kv_detokenize(m, r[0].ids + 4, 3, false, piece, sizeof piece - 1, &part), KV_OK);
    piece[part] = 0;
    ck_assert_int_eq(kv_detokenize(m, r[0].ids, 24, false, whole, sizeof whole - 1, &len), KV_OK);
    whole[len] = 0;
    run_init(&r[1], 21, 60, 24);
    r[1].request.stop[0] = piece;
    run_begin(e, &r[1]);
    char text[1024] = "";
    enum kv_finish finish = KV_RUNNING;
    int32_t tokens = 0;
    while (finish == KV_RUNNING) {
        struct kv_chunk c;
        int32_t got;
        kv_stream_read(r[1].stream, &c, 1, 20000, &got, &finish);
        if (got) strncat(text, c.text, (size_t)c.n_text), tokens++;
    }
    char tail[256];
    kv_stream_tail(r[1].stream, tail, sizeof tail);
    strcat(text, tail);
    ck_assert_int_eq(finish, KV_FINISH_STOP);
    ck_assert_int_le(tokens, 8);
    ck_assert_ptr_null(strstr(text, piece));
    const char *stop = strstr(whole, piece);
    const char *body = text[0] == ' ' && whole[0] != ' ' ? text + 1 : text; /* the decoder drops a first space */
    ck_assert_msg(stop && strlen(body) == (size_t)(stop - whole) && !strncmp(body, whole, strlen(body)), "'%s' of '%s'", text, whole);
    kv_stream_close(r[1].stream);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(what_cannot_run_is_refused_with_its_reason)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 1;
    c.host_bytes = UINT64_C(4) << 20;
    c.max_queue = 1;
    c.max_sequences = 1;
    struct kv_engine *e = make_engine(&c);
    struct run *r = runs(1);
    struct kv_stream *s;
    struct kv_error err;
    run_init(r, 3, 64, 8);
    struct kv_request q = r->request;
    q.n_prompt = 0;
    ck_assert_int_eq(kv_engine_submit(e, &q, &s, &err), KV_EMPTY_PROMPT);
    q = r->request;
    q.max_tokens = 100000;
    ck_assert_int_eq(kv_engine_submit(e, &q, &s, &err), KV_CONTEXT_OVERRUN);
    q.max_tokens = 0;
    ck_assert_int_eq(kv_engine_submit(e, &q, &s, &err), KV_BAD_ARGUMENT);
    q = r->request;
    q.stop[0] = "";
    ck_assert_int_eq(kv_engine_submit(e, &q, &s, &err), KV_BAD_ARGUMENT);
    q = r->request;
    q.max_tokens = 4000;
    ck_assert_int_eq(kv_engine_submit(e, &q, &s, &err), KV_CAPACITY);
    ck_assert_ptr_null(s);
    r->prompt[5] = 1 << 20;
    ck_assert_int_eq(kv_engine_submit(e, &r->request, &s, &err), KV_TOKEN_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(err.message, "token 5"));
    struct kv_engine_stats st;
    kv_engine_stats(e, &st);
    ck_assert_uint_eq(st.rejected, 6);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

static void wait_here(struct run *r, int32_t position)
{
    (void)position;
    while (!atomic_load((_Atomic bool *)r->ctx)) usleep(100);
}

START_TEST(the_queue_is_bounded_and_deadlines_hold_in_it)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 1;
    c.max_queue = 1;
    c.max_sequences = 1;
    struct kv_engine *e = make_engine(&c);
    struct run *r = runs(3);
    _Atomic bool go = false;
    for (int i = 0; i < 3; i++) run_init(&r[i], 3, 16, 4);
    r[0].at = wait_here; /* the decode thread stands in the first request's step */
    r[0].ctx = &go;
    run_begin(e, &r[0]);
    struct kv_engine_stats st;
    do kv_engine_stats(e, &st);
    while (st.queued > 0);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    r[1].request.deadline_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + 1;
    run_begin(e, &r[1]);
    struct kv_error err;
    struct kv_stream *s;
    ck_assert_int_eq(kv_engine_submit(e, &r[2].request, &s, &err), KV_QUEUE_FULL);
    atomic_store(&go, true);
    run_end(&r[0]);
    run_end(&r[1]);
    ck_assert_int_eq(r[0].stats.finish, KV_FINISH_LENGTH);
    ck_assert_int_eq(r[1].stats.finish, KV_FINISH_ERROR);
    ck_assert_int_eq(r[1].stats.status, KV_DEADLINE);
    ck_assert_int_eq(r[1].n, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(logits_that_are_no_numbers_end_that_request_alone)
{
    enum { POISON = 310 };
    char path[64];
    random_gguf_save(&(struct random_model){.untied = true}, path);
    struct kv_model *m;
    struct kv_error err = {0};
    ck_assert_msg(kv_model_open(path, NULL, &m, &err) == KV_OK, "%s", err.message);
    unlink(path);
    const struct kv_weights *w = kv_model_weights(m);
    float *row = (float *)w->embedding + (size_t)POISON * (size_t)w->d_model;
    uintptr_t page = (uintptr_t)row & ~(uintptr_t)4095;
    ck_assert_int_eq(w->embedding_type, KV_F32);
    ck_assert_int_eq(mprotect((void *)page, (size_t)((uintptr_t)(row + 1) - page), PROT_READ | PROT_WRITE), 0);
    row[0] = NAN;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    struct kv_engine *e;
    ck_assert_int_eq(kv_engine_create(m, &c, &e, &err), KV_OK);
    struct run *r = runs(2);
    for (int i = 0; i < 2; i++) {
        run_init(&r[i], 3, 12, 6);
        for (int j = 0; j < 12; j++) r[i].prompt[j] = 3 + j;
        if (i) r[i].prompt[7] = POISON;
        run_begin(e, &r[i]);
    }
    run_end(&r[0]);
    run_end(&r[1]);
    ck_assert_int_eq(r[1].stats.status, KV_NAN_LOGITS);
    ck_assert_int_eq(r[1].n, 0);
    ck_assert_int_eq(r[0].stats.finish, KV_FINISH_LENGTH);
    kv_engine_destroy(e);
    kv_model_close(m);
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- no allocation after warm-up */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
static _Atomic bool armed;
static _Atomic int32_t allocations;
static void *counted(void *p)
{
    if (atomic_load_explicit(&armed, memory_order_relaxed)) atomic_fetch_add(&allocations, 1);
    return p;
}
void *malloc(size_t n) { return counted(__libc_malloc(n)); }
void *calloc(size_t n, size_t size) { return counted(__libc_calloc(n, size)); }
void *realloc(void *p, size_t n) { return counted(__libc_realloc(p, n)); }
void *aligned_alloc(size_t align, size_t n) { return counted(__libc_memalign(align, n)); }

static void count_between(struct run *r, int32_t position)
{
    if (position == r->n_prompt + 8) atomic_store(&armed, true);
    if (position == r->n_prompt + 40) atomic_store(&armed, false);
}

START_TEST(decoding_allocates_nothing)
{
    struct run *r = runs(1);
    struct kv_engine *e = make_engine(NULL);
    if (_i == 1) install(e, "quest", "budget_rows", 32, false);
    if (_i == 2) install(e, "layerwise", NULL, 0, false);
    run_init(r, 4, PROMPT, 48);
    if (_i == 1 || _i == 2) assign(e, r, KV_APPROXIMATE);
    /* An answer that must be a list of 64 whole numbers: constrained at every token that is counted. */
    static const struct kv_schema_node nodes[] = {{.kind = KV_SCHEMA_ARRAY, .value = 1, .min = 64, .max = -1}, {.kind = KV_SCHEMA_INTEGER}};
    static const struct kv_schema list = {.node = nodes, .n_nodes = 2};
    if (_i == 3) r->request.schema = &list;
    r->at = count_between;
    r->request.observe_prompt = false;
    run_begin(e, r);
    /* This thread sleeps in one read until the end: it would be counted too. */
    struct timespec pause = {.tv_nsec = 20000000};
    struct kv_engine_stats st;
    do nanosleep(&pause, NULL), kv_engine_stats(e, &st);
    while (st.finished == 0);
    run_end(r);
    ck_assert_int_eq(r->n, 48);
    ck_assert_int_eq(atomic_load(&allocations), 0);
    atomic_store(&armed, true);
    void *volatile probe = malloc(1);
    free(probe);
    atomic_store(&armed, false);
    ck_assert_int_gt(atomic_load(&allocations), 0); /* the counter counts */
    kv_engine_destroy(e);
    free(r);
}
END_TEST
#endif

/* However late the decode thread looks: who waits is told that it is over. */
START_TEST(what_was_submitted_before_the_end_ends)
{
    struct run *r = calloc(4, sizeof *r);
    for (int round = 0; round < 40; round++) {
        struct kv_engine *e = make_engine(NULL);
        for (uint32_t i = 0; i < 4; i++) run_init(&r[i], i, 20, 4), run_begin(e, &r[i]);
        kv_engine_destroy(e);
        for (int i = 0; i < 4; i++) run_end(&r[i]);
    }
    free(r);
}
END_TEST

Suite *suite_engine(void)
{
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("engine");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, company_changes_no_bit);
    tcase_add_loop_test(t, chunks_and_threads_change_no_bit, 0, 4);
    tcase_add_test(t, subtrees_change_no_bit);
    tcase_add_test(t, layerwise_publishes_the_same_bits);
    tcase_add_test(t, draws_follow_the_output_index);
    tcase_add_test(t, a_cancelled_request_ends_and_frees_its_rows);
    tcase_add_test(t, a_reader_that_leaves_cancels);
    tcase_add_test(t, a_stop_string_ends_the_answer_before_it);
    tcase_add_test(t, what_cannot_run_is_refused_with_its_reason);
    tcase_add_test(t, the_queue_is_bounded_and_deadlines_hold_in_it);
    tcase_add_test(t, logits_that_are_no_numbers_end_that_request_alone);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    tcase_add_loop_test(t, decoding_allocates_nothing, 0, 4);
#endif
    tcase_add_test(t, what_was_submitted_before_the_end_ends);
    suite_add_tcase(s, t);
    return s;
}
