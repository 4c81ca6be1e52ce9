/* test_simulate.c — pools against plain ones, and the virtual clock on traces whose times can be worked out by hand. */
#include "runtime/service/simulate.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 };
static struct kv_sim_request request[MOST];
static uint64_t block[MOST * 8];
static struct kv_sim_trace trace;

static void start_trace(void)
{
    trace = (struct kv_sim_trace){.request = request, .block = block, .block_tokens = 10};
}

static void add(int64_t at_ms, int32_t output, const uint64_t *ids, uint32_t n)
{
    request[trace.n_requests++] = (struct kv_sim_request){.at_us = at_ms * 1000, .input_tokens = (int32_t)n * 10, .output_tokens = output, .first_block = (uint32_t)trace.n_blocks, .n_blocks = n};
    memcpy(block + trace.n_blocks, ids, n * sizeof *ids);
    trace.n_blocks += n;
}
#define ADD(at_ms, output, ...) add(at_ms, output, (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* Three blocks fit. Under lfu, 4 pushes out 3 and everything asked for again is there. */
START_TEST(pools_hit_what_was_worked_out_by_hand)
{
    start_trace();
    ADD(0, 1, 1, 2); /* lru 1 2; nothing hits */
    ADD(1, 1, 1, 3); /* 1 hits → 2 1 3 */
    ADD(2, 1, 2, 4); /* 2 hits; 4 pushes out 1 (lru: 1 3 2 → 3 2 4), fifo order 1 2 3: pushes out 1 too */
    ADD(3, 1, 1, 2); /* lru: 1 pushes out 3, 2 is there but behind a miss; fifo: 1 pushes out 2, 2 pushes out 3 */
    ADD(4, 1, 2, 1); /* both: both hit */
    const struct { enum kv_eviction e; uint64_t hits; } want[] = {{KV_EVICT_LRU, 4}, {KV_EVICT_FIFO, 4}, {KV_EVICT_LFU, 6}};
    for (size_t i = 0; i < 3; i++) {
        struct kv_pool_result r;
        ck_assert_int_eq(kv_pool_run(&trace, 3, want[i].e, &r), KV_OK);
        ck_assert_uint_eq(r.block_hits, want[i].hits);
        ck_assert_uint_eq(r.blocks, 10);
    }
    struct kv_pool_result all;
    ck_assert_int_eq(kv_pool_run(&trace, 0, KV_EVICT_LRU, &all), KV_OK);
    ck_assert_uint_eq(all.block_hits, 6);
    ck_assert_uint_eq(all.hit_tokens, 60);
}
END_TEST

/* The same rules over arrays, searched through. */
static uint64_t plain_hits(size_t capacity, enum kv_eviction e)
{
    static struct { uint64_t id, touched, born, touches; } pool[64];
    size_t n = 0;
    uint64_t clock = 0, hits = 0;
    for (size_t r = 0; r < trace.n_requests; r++) {
        bool whole = true;
        for (uint32_t i = 0; i < trace.request[r].n_blocks; i++) {
            uint64_t id = trace.block[trace.request[r].first_block + i];
            size_t at = 0;
            while (at < n && pool[at].id != id) at++;
            bool hit = at < n;
            if (!hit) {
                if (n == capacity) {
                    at = 0;
                    for (size_t k = 1; k < n; k++) {
                        bool less = e == KV_EVICT_FIFO ? pool[k].born < pool[at].born : e == KV_EVICT_LRU ? pool[k].touched < pool[at].touched
                                  : pool[k].touches < pool[at].touches || (pool[k].touches == pool[at].touches && pool[k].touched < pool[at].touched);
                        if (less) at = k;
                    }
                } else n++;
                pool[at].id = id, pool[at].born = clock, pool[at].touches = 0;
            }
            pool[at].touched = ++clock;
            pool[at].touches++;
            whole = whole && hit;
            hits += whole;
        }
    }
    return hits;
}

START_TEST(pools_equal_plain_ones_on_random_traces)
{
    unsigned seed = 3;
    for (int round = 0; round < 30; round++) {
        start_trace();
        while (trace.n_requests < 200) {
            uint64_t ids[5];
            uint32_t n = 1 + (uint32_t)rand_r(&seed) % 5;
            for (uint32_t i = 0; i < n; i++) ids[i] = (uint64_t)rand_r(&seed) % 40;
            add((int64_t)trace.n_requests, 1, ids, n);
        }
        size_t capacity = 1 + (size_t)rand_r(&seed) % 50;
        for (int e = KV_EVICT_LRU; e <= KV_EVICT_LFU; e++) {
            struct kv_pool_result r;
            ck_assert_int_eq(kv_pool_run(&trace, capacity, (enum kv_eviction)e, &r), KV_OK);
            ck_assert_uint_eq(r.block_hits, plain_hits(capacity, (enum kv_eviction)e));
        }
    }
}
END_TEST

START_TEST(sizing_finds_the_least_capacity)
{
    start_trace();
    for (int i = 0; i < 20; i++) {
        ADD(2 * i, 1, 1, 2, 3);
        ADD(2 * i + 1, 1, 11, 12);
    }
    size_t capacity;
    double best;
    ck_assert_int_eq(kv_pool_size_for(&trace, 0.9, &capacity, &best), KV_OK);
    ck_assert_uint_eq(capacity, 5); /* four blocks lose the last of three before it comes again */
    ck_assert_int_eq(kv_pool_size_for(&trace, 0.99, &capacity, &best), KV_NOT_FOUND);
    ck_assert_double_eq_tol(best, 0.95, 1e-12);
}
END_TEST

static struct kv_sim_config config(void)
{
    struct kv_sim_config c;
    kv_sim_config_default(&c);
    c.bytes_per_token = 100;
    c.n_layers = 2;
    c.device_bytes = 1000000;
    c.host_bytes = 100000;
    c.link_bytes_per_s = 1e6; /* 1000 B/ms */
    c.link_latency_us = 1000;
    c.disk_bytes_per_s = 5e5;
    c.disk_latency_us = 2000;
    c.prefill_tokens_per_s = 1000; /* 1 token/ms */
    c.decode_base_us = 2000;
    c.decode_sequence_us = 1000;
    c.credits = (struct kv_credit_limits){{100000, 100000, 100000, 8}, 16};
    return c;
}

START_TEST(one_request_takes_its_prefill_and_its_steps)
{
    start_trace();
    ADD(5, 4, 1, 2, 3);
    struct kv_sim_config c = config();
    struct kv_sim_result r;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, NULL), KV_OK);
    ck_assert_uint_eq(r.finished, 1);
    ck_assert_double_eq_tol(r.ttft_ms.p50, 30, 1e-4);
    ck_assert_double_eq_tol(r.tpot_ms.p50, 3, 1e-4);
    ck_assert_double_eq_tol(r.seconds, 0.044, 1e-9);
    ck_assert_uint_eq(r.recomputed_tokens, 30);
}
END_TEST

START_TEST(a_second_request_loads_what_the_first_left)
{
    start_trace();
    ADD(0, 1, 1, 2);
    ADD(100, 1, 1, 2, 3);
    struct kv_sim_config c = config();
    struct kv_sim_result r;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, NULL), KV_OK);
    ck_assert_uint_eq(r.host_hits, 2);
    ck_assert_uint_eq(r.link_bytes, 2000);
    /* 1 ms latency and 2 ms bytes, then ten tokens; the first took twenty. */
    ck_assert_double_eq_tol(r.ttft_ms.p50, 13, 1e-3);
    ck_assert_double_eq_tol(r.ttft_ms.mean, 16.5, 1e-3);
    c.host_bytes = 1000; /* one block: both of the first leave for the disk in turn, or for nowhere */
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, NULL), KV_OK);
    ck_assert_uint_eq(r.host_hits + r.disk_hits, 0);
    c.disk_bytes = 10000;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, NULL), KV_OK);
    ck_assert_uint_eq(r.disk_hits, 1);
    ck_assert_uint_eq(r.host_hits, 1);
    ck_assert_uint_eq(r.disk_read_bytes, 1000);
    ck_assert_uint_eq(r.credits.used[KV_CREDIT_LINK] + r.credits.used[KV_CREDIT_STAGING] + r.credits.used[KV_CREDIT_QUEUE], 0);
    c.credits.total[KV_CREDIT_QUEUE] = 0; /* without a slot everything is computed again */
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, NULL), KV_OK);
    ck_assert_uint_eq(r.fallback_credit, 1);
    ck_assert_uint_eq(r.recomputed_tokens, 50);
}
END_TEST

START_TEST(host_and_disk_under_lru_are_one_pool)
{
    unsigned seed = 11;
    start_trace();
    while (trace.n_requests < 1500) {
        uint64_t ids[4], family = (uint64_t)rand_r(&seed) % 60;
        uint32_t n = 1 + (uint32_t)rand_r(&seed) % 4;
        for (uint32_t i = 0; i < n; i++) ids[i] = family * 10 + i;
        add((int64_t)trace.n_requests * 1000, 1, ids, n); /* far apart: one at a time */
    }
    struct kv_sim_config c = config();
    c.link_bytes_per_s = c.disk_bytes_per_s = 1e9;
    c.credits = (struct kv_credit_limits){{1000000, 1000000, 1000000, 8}, 16};
    for (uint64_t host = 10; host <= 50; host += 20) {
        struct kv_pool_result pool;
        struct kv_sim_result r;
        c.host_bytes = host * 1000;
        c.disk_bytes = (80 - host) * 1000;
        ck_assert_int_eq(kv_sim_run(&trace, &c, &r, NULL), KV_OK);
        ck_assert_int_eq(kv_pool_run(&trace, 80, KV_EVICT_LRU, &pool), KV_OK);
        ck_assert_uint_eq(r.host_hits + r.disk_hits, pool.block_hits);
        ck_assert_uint_eq(r.finished, trace.n_requests);
    }
}
END_TEST

START_TEST(requests_at_once_share_one_read)
{
    start_trace();
    ADD(0, 1, 1, 2);
    ADD(100, 1, 1, 2, 3);
    ADD(100, 1, 1, 2, 4);
    struct kv_sim_config c = config();
    struct kv_sim_result r;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, NULL), KV_OK);
    ck_assert_uint_eq(r.coalesced_bytes, 2000);
    ck_assert_uint_eq(r.link_bytes, 2000);
    ck_assert_uint_eq(r.host_hits, 4);
}
END_TEST

static void approximate_last(void *ctx, const struct kv_sim_question *q, struct kv_sim_answer *out)
{
    (void)ctx;
    *out = (struct kv_sim_answer){.transfer = true, .priority = q->request->approximate ? 0 : 90};
}

START_TEST(overload_is_refused_and_nobody_starves)
{
    start_trace();
    for (int i = 0; i < 2000; i++) {
        ADD(i, 5, (uint64_t)(i % 7));
        request[i].approximate = i % 10 == 0;
        request[i].deadline_ms = i % 10 ? 60 : 0; /* none: may wait for ever */
    }
    struct kv_sim_config c = config();
    c.decide = approximate_last;
    c.max_queue = 32;
    c.max_sequences = 4;
    c.starvation_ms = 200;
    struct kv_sim_result r;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, NULL), KV_OK);
    ck_assert_uint_eq(r.finished + r.refused_queue + r.refused_deadline + r.refused_capacity, 2000);
    ck_assert_uint_gt(r.refused_queue, 100);
    ck_assert_uint_gt(r.refused_deadline, 10);
    ck_assert_uint_le(r.peak_live, 4);
    ck_assert_double_lt(r.max_wait_ms, 200 + 32 * 30.0); /* the bound, and the aged ones in front */
    c.starvation_ms = 1000000;
    struct kv_sim_result starved;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &starved, NULL), KV_OK);
    ck_assert_double_gt(starved.max_wait_ms, r.max_wait_ms);
}
END_TEST

START_TEST(what_cannot_be_simulated_is_refused)
{
    struct kv_sim_config c = config();
    struct kv_sim_result r;
    struct kv_error err;
    start_trace();
    ADD(5, 1, 1);
    ADD(4, 1, 1);
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, &err), KV_BAD_ARGUMENT);
    trace.n_requests = 1;
    request[0].output_tokens = 0;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, &err), KV_BAD_ARGUMENT);
    request[0].output_tokens = 1;
    c.link_bytes_per_s = NAN;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, &err), KV_BAD_ARGUMENT);
    c = config();
    c.device_bytes = 100;
    ck_assert_int_eq(kv_sim_run(&trace, &c, &r, &err), KV_OK);
    ck_assert_uint_eq(r.refused_capacity, 1);
}
END_TEST

Suite *suite_simulate(void);
Suite *suite_simulate(void)
{
    Suite *s = suite_create("simulate");
    TCase *t = tcase_create("simulate");
    tcase_add_test(t, pools_hit_what_was_worked_out_by_hand);
    tcase_add_test(t, pools_equal_plain_ones_on_random_traces);
    tcase_add_test(t, sizing_finds_the_least_capacity);
    tcase_add_test(t, one_request_takes_its_prefill_and_its_steps);
    tcase_add_test(t, a_second_request_loads_what_the_first_left);
    tcase_add_test(t, host_and_disk_under_lru_are_one_pool);
    tcase_add_test(t, requests_at_once_share_one_read);
    tcase_add_test(t, overload_is_refused_and_nobody_starves);
    tcase_add_test(t, what_cannot_be_simulated_is_refused);
    suite_add_tcase(s, t);
    return s;
}
