/* test_prefix.c — reuse of prefixes: the same bits, nobody else's rows, no tainted rows, room on demand; and who prefills first. */
#include "tests/unit/service/engine_runs.h"

#include "runtime/service/prefix.h"

#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

Suite *suite_prefix(void);

static struct run *runs(int n)
{
    struct run *r = calloc((size_t)n, sizeof *r);
    ck_assert_ptr_nonnull(r);
    return r;
}

/* Observed from the last prompt token on only, so that the prompt may be reused. */
static void prepare(struct run *r, uint32_t seed, int32_t n_prompt, int32_t steps, const char *tenant)
{
    run_init(r, seed, n_prompt, steps);
    r->request.observe_prompt = false;
    r->request.tenant = tenant;
}

/* The same request computed in full. */
static void fresh(struct run *r, const struct run *like)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.prefix_reuse = false;
    struct kv_engine *e = make_engine(&c);
    run_init(r, 1, like->n_prompt, like->request.max_tokens);
    memcpy(r->prompt, like->prompt, sizeof r->prompt);
    r->request.observe_prompt = false;
    run_all(e, r);
    ck_assert_int_eq(r->stats.n_reused, 0);
    kv_engine_destroy(e);
}

START_TEST(a_prefix_is_computed_once_and_gives_the_same_bits)
{
    struct run *r = runs(4);
    struct kv_engine *e = make_engine(NULL);
    prepare(&r[0], 3, 200, 70, "a");
    run_all(e, &r[0]);
    prepare(&r[1], 3, 200, 70, "a");
    run_all(e, &r[1]);
    ck_assert_int_eq(r[0].stats.n_reused, 0);
    ck_assert_int_eq(r[1].stats.n_reused, 192);
    same_runs(&r[0], &r[1]);
    prepare(&r[2], 3, 265, 8, "a"); /* the next turn: prompt, answer, and more */
    memcpy(r[2].prompt + 200, r[0].ids, 65 * sizeof *r[2].prompt);
    run_all(e, &r[2]);
    ck_assert_int_eq(r[2].stats.n_reused, 256);
    fresh(&r[3], &r[2]);
    same_runs(&r[3], &r[2]);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(no_tenant_reads_anothers_rows)
{
    struct run *r = runs(2);
    struct kv_engine *e = make_engine(NULL);
    prepare(&r[0], 3, 200, 4, "a");
    run_all(e, &r[0]);
    prepare(&r[1], 3, 200, 4, "b");
    run_all(e, &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 0);
    same_runs(&r[0], &r[1]);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(tainted_rows_never_match)
{
    struct run *r = runs(3);
    struct kv_engine *e = make_engine(NULL);
    install(e, "quest", "budget_rows", 16, false);
    prepare(&r[0], 9, 130, 140, "a");
    assign(e, &r[0], KV_APPROXIMATE);
    run_all(e, &r[0]);
    ck_assert_int_eq(r[0].stats.published, KV_APPROXIMATE);
    prepare(&r[1], 9, 260, 4, "a");
    memcpy(r[1].prompt + 130, r[0].ids, 130 * sizeof *r[1].prompt);
    run_all(e, &r[1]);
    ck_assert_int_eq(r[1].stats.n_reused, 128); /* the prompt's blocks, and none of the answer's */
    fresh(&r[2], &r[1]);
    same_runs(&r[2], &r[1]);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(equal_prompts_at_once_are_computed_once)
{
    struct run *r = runs(5);
    struct kv_engine *e = make_engine(NULL);
    for (int i = 0; i < 5; i++) {
        prepare(&r[i], 3, 700, 4, "a");
        run_begin(e, &r[i]);
    }
    int32_t reused = 0;
    for (int i = 0; i < 5; i++) {
        run_end(&r[i]);
        reused += r[i].stats.n_reused;
        same_runs(&r[0], &r[i]);
    }
    ck_assert_msg(reused >= 4 * 512, "%d rows were reused", reused);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

START_TEST(kept_blocks_make_room)
{
    struct run *r = runs(1);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 2;
    c.host_bytes = UINT64_C(2) << 20; /* few blocks: every prompt pushes an earlier one out */
    struct kv_engine *e = make_engine(&c);
    struct kv_engine_stats st;
    for (uint32_t i = 0; i < 12; i++) {
        prepare(r, i, 300, 3, "a");
        run_all(e, r);
        ck_assert_int_eq(r->stats.finish, KV_FINISH_LENGTH);
    }
    kv_engine_stats(e, &st);
    ck_assert_uint_eq(st.allocation_failures, 0);
    ck_assert_uint_gt(st.tier[1].used_bytes, 0);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

/* ---------------------------------------------------------------- identity */

static struct kv_chunk_digest digest_without(const struct kv_chunk_identity *id, int left_out)
{
    struct kv_identity_field field[32];
    int n = 0;
    for (int i = 0; i < kv_chunk_type.n_fields; i++)
        if (i != left_out) field[n++] = kv_chunk_type.field[i];
    struct kv_identity_type type = {kv_chunk_type.domain, field, n};
    uint8_t bytes[KV_IDENTITY_MAX_BYTES];
    struct kv_chunk_digest d;
    size_t len;
    ck_assert_int_eq(kv_identity_encode(&type, id, bytes, sizeof bytes, &len), KV_OK);
    kv_sha256(bytes, len, d.b);
    return d;
}

/* Every field matters: with it changed the block is not found; were it left out of the digest, another's rows would be. */
START_TEST(every_field_of_the_identity_is_needed)
{
    struct kv_arena *a;
    struct kv_prefix_index *x;
    struct kv_chunk_identity base, other;
    struct kv_prefix_digest prefix = kv_prefix_extend(NULL, (int32_t[]){1, 2, 3}, 3);
    ck_assert_int_eq(kv_arena_create(4096, 16 * 4096, &a), KV_OK);
    ck_assert_int_eq(kv_prefix_create(2, 4, &x), KV_OK);
    kv_prefix_base(demo_model(), &base);
    base.prefix = prefix;
    other = base;
    ((uint8_t *)&other)[kv_chunk_type.field[_i].offset] ^= 1;
    struct kv_chunk_digest key = kv_chunk_digest(&base), changed = kv_chunk_digest(&other);
    uint8_t *slab[2] = {kv_arena_take(a), kv_arena_take(a)};
    kv_prefix_put(x, a, &key, NULL, slab, 1);
    ck_assert_ptr_nonnull(kv_prefix_find(x, &key));
    ck_assert_msg(!kv_prefix_find(x, &changed), "%s is no part of the key", kv_chunk_type.field[_i].name);
    struct kv_chunk_digest blind = digest_without(&base, _i), confused = digest_without(&other, _i);
    ck_assert_msg(!memcmp(&blind, &confused, sizeof blind), "leaving out %s is not what confuses the two", kv_chunk_type.field[_i].name);
    kv_arena_give(a, slab[0]);
    kv_arena_give(a, slab[1]);
    kv_prefix_destroy(x, a);
    ck_assert_uint_eq(kv_arena_used_bytes(a), 0);
    kv_arena_destroy(a);
}
END_TEST

START_TEST(a_chain_is_given_up_from_its_end)
{
    struct kv_arena *a;
    struct kv_prefix_index *x;
    struct kv_chunk_digest key[4] = {{{1}}, {{2}}, {{3}}, {{4}}};
    ck_assert_int_eq(kv_arena_create(4096, 16 * 4096, &a), KV_OK);
    ck_assert_int_eq(kv_prefix_create(1, 3, &x), KV_OK);
    uint8_t *slab[4];
    for (int i = 0; i < 4; i++) {
        slab[i] = kv_arena_take(a);
        kv_prefix_put(x, a, &key[i], i ? &key[i - 1] : NULL, &slab[i], 1); /* the last finds no room: all are read */
    }
    ck_assert_int_eq(kv_prefix_blocks(x), 3);
    ck_assert(!kv_prefix_evict(x, a));
    for (int i = 0; i < 4; i++) kv_arena_give(a, slab[i]);
    ck_assert(kv_prefix_evict(x, a));
    ck_assert_ptr_null(kv_prefix_find(x, &key[2]));
    ck_assert_ptr_nonnull(kv_prefix_find(x, &key[0]));
    kv_prefix_destroy(x, a);
    ck_assert_uint_eq(kv_arena_used_bytes(a), 0);
    kv_arena_destroy(a);
}
END_TEST

START_TEST(a_shared_open_block_is_copied_before_it_is_written)
{
    struct kv_arena *a;
    struct kv_cache one, two;
    ck_assert_int_eq(kv_arena_create(kv_slab_bytes(KV_F16, 1, 8), 1 << 20, &a), KV_OK);
    ck_assert_int_eq(kv_cache_init(&one, 2, 1, 8, KV_F16, 128), KV_OK);
    ck_assert_int_eq(kv_cache_init(&two, 2, 1, 8, KV_F16, 128), KV_OK);
    ck_assert_int_eq(kv_cache_reserve(&one, a, 64), KV_OK);
    one.n_rows = 64;
    memset(one.slab[0], 7, one.slab_bytes);
    uint8_t *slabs[2] = {one.slab[0], one.slab[one.max_blocks]};
    ck_assert_int_eq(kv_cache_adopt(&two, a, slabs), KV_OK);
    ck_assert_ptr_eq(two.slab[0], one.slab[0]);
    kv_cache_truncate(&two, a, 10);
    ck_assert_int_eq(kv_cache_reserve(&two, a, 1), KV_OK);
    ck_assert_ptr_ne(two.slab[0], one.slab[0]);
    ck_assert_int_eq(two.slab[0][5], 7);
    kv_cache_free(&one, a);
    kv_cache_free(&two, a);
    ck_assert_uint_eq(kv_arena_used_bytes(a), 0);
    kv_arena_destroy(a);
}
END_TEST

/* ---------------------------------------------------------------- who goes first, and what waits */

START_TEST(a_long_prompt_holds_no_short_one_up)
{
    struct run *r = runs(2);
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = 1;
    c.prefill_chunk = 32;
    struct kv_engine *e = make_engine(&c);
    prepare(&r[0], 3, 1400, 2, "a");
    prepare(&r[1], 4, 20, 2, "a");
    run_begin(e, &r[0]);
    run_begin(e, &r[1]);
    run_end(&r[1]);
    ck_assert_int_eq(r[0].n, 0);
    run_end(&r[0]);
    ck_assert_int_lt(r[1].stats.ttft_us, r[0].stats.ttft_us);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

struct sink {
    _Atomic bool refuse;
    _Atomic int32_t n;
};

static bool emit(void *ctx, const struct kv_receipt *r)
{
    struct sink *s = ctx;
    if (atomic_load(&s->refuse)) return false;
    atomic_fetch_add(&s->n, r->kind == KV_RECEIPT_REQUEST);
    return true;
}

START_TEST(a_refused_receipt_is_held_until_it_is_taken)
{
    enum { REQUESTS = 700 };
    struct run *r = runs(1);
    struct sink sink = {.refuse = true};
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = c.max_sequences = 1;
    c.max_queue = REQUESTS;
    c.sink = (struct kv_receipt_sink){&sink, emit};
    struct kv_engine *e = make_engine(&c);
    struct kv_stream *stream[REQUESTS];
    struct kv_error err = {0};
    prepare(r, 1, 8, 100, "a");
    r->request.observe = NULL;
    for (int i = 0; i < REQUESTS; i++) ck_assert_int_eq(kv_engine_submit(e, &r->request, &stream[i], &err), KV_OK);
    for (int i = 0; i < REQUESTS; i++) kv_stream_cancel(stream[i]);
    struct kv_chunk chunk;
    enum kv_finish finish = KV_RUNNING;
    int32_t got;
    while (finish == KV_RUNNING) kv_stream_read(stream[0], &chunk, 1, 1000, &got, &finish); /* some ended while the sink refused */
    atomic_store(&sink.refuse, false);
    for (int i = 0; i < REQUESTS; i++) {
        for (finish = KV_RUNNING; finish == KV_RUNNING;) kv_stream_read(stream[i], &chunk, 1, 1000, &got, &finish);
        kv_stream_close(stream[i]);
    }
    kv_engine_destroy(e);
    ck_assert_int_eq(sink.n, REQUESTS);
    free(r);
}
END_TEST

Suite *suite_prefix(void)
{
    Suite *s = suite_create("prefix");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_prefix_is_computed_once_and_gives_the_same_bits);
    tcase_add_test(t, no_tenant_reads_anothers_rows);
    tcase_add_test(t, tainted_rows_never_match);
    tcase_add_test(t, equal_prompts_at_once_are_computed_once);
    tcase_add_test(t, kept_blocks_make_room);
    tcase_add_loop_test(t, every_field_of_the_identity_is_needed, 0, kv_chunk_type.n_fields);
    tcase_add_test(t, a_chain_is_given_up_from_its_end);
    tcase_add_test(t, a_shared_open_block_is_copied_before_it_is_written);
    tcase_add_test(t, a_long_prompt_holds_no_short_one_up);
    tcase_add_test(t, a_refused_receipt_is_held_until_it_is_taken);
    suite_add_tcase(s, t);
    return s;
}
