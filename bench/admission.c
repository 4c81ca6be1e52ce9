/* admission.c — what deciding costs: a credit taken and given back, alone and shared, and how fast a trace is replayed. */
#include "kernels/kernels.h"
#include "runtime/service/simulate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAIRS = 400000, ROUNDS = 5, REQUESTS = 100000 };

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* the machine may be shared; nothing here waits */
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void row(const char *name, double value, const char *unit, double floor)
{
    printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"floor\":", name, value, unit);
    if (floor > 0) printf("%.6g,\"ratio\":%.4g}\n", floor, floor / value);
    else printf("null,\"ratio\":null}\n");
}

/* The floor of anything that takes and gives back under a lock: the lock, twice. */
static double lock_ns(void)
{
    static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    double best = 1e18;
    for (int r = 0; r < ROUNDS; r++) {
        double began = now_ns();
        for (int i = 0; i < 2 * PAIRS; i++) {
            pthread_mutex_lock(&m);
            pthread_mutex_unlock(&m);
        }
        double ns = (now_ns() - began) / PAIRS;
        if (ns < best) best = ns;
    }
    return best;
}

static double credit_ns(bool shared)
{
    struct kv_credits *c;
    struct kv_credit_ticket held[64];
    if (kv_credits_create(&(struct kv_credit_limits){{1u << 30, 1u << 30, 1u << 30, 1000}, 512}, &c) != KV_OK) exit(1);
    struct kv_credit_ask ask = {.what = "bench", .backend_bytes = 4096, .staging_bytes = 4096, .queue_slots = 1};
    for (int i = 0; i < 64; i++) { /* the account is in use */
        ask.unit[0] = (uint8_t)(i + 1);
        ask.request = (uint64_t)i;
        kv_credits_reserve(c, &ask, 0, &held[i], NULL, NULL);
    }
    double best = 1e18;
    for (int r = 0; r < ROUNDS; r++) {
        double began = now_ns();
        for (int i = 0; i < PAIRS; i++) {
            struct kv_credit_ticket t;
            ask.unit[0] = shared ? (uint8_t)(i % 64 + 1) : (uint8_t)(100 + i % 100);
            if (kv_credits_reserve(c, &ask, i, &t, NULL, NULL) != KV_OK || kv_credits_release(c, &t) != KV_OK) exit(1);
        }
        double ns = (now_ns() - began) / PAIRS;
        if (ns < best) best = ns;
    }
    kv_credits_destroy(c);
    return best;
}

/* Conversations of growing prompts, 24 blocks a request on average. */
static double replay_us(void)
{
    struct kv_sim_trace t = {.request = calloc(REQUESTS, sizeof *t.request), .block = calloc((size_t)REQUESTS * 47, sizeof *t.block), .block_tokens = 512};
    struct kv_sim_config c;
    struct kv_sim_result r;
    unsigned seed = 1;
    if (!t.request || !t.block) exit(1);
    for (int i = 0; i < REQUESTS; i++) {
        uint64_t who = (uint64_t)rand_r(&seed) % 4000;
        uint32_t n = 1 + (uint32_t)rand_r(&seed) % 47;
        t.request[t.n_requests++] = (struct kv_sim_request){.at_us = (int64_t)i * 300000, .input_tokens = (int32_t)n * 512, .output_tokens = 300, .deadline_ms = 10000, .first_block = (uint32_t)t.n_blocks, .n_blocks = n};
        for (uint32_t k = 0; k < n; k++) t.block[t.n_blocks++] = who * 64 + k;
    }
    kv_sim_config_default(&c);
    c.disk_bytes = UINT64_C(4) << 40;
    double began = now_ns();
    if (kv_sim_run(&t, &c, &r, NULL) != KV_OK) exit(1);
    double us = (now_ns() - began) / 1e3 / REQUESTS;
    free(t.request);
    free(t.block);
    return us;
}

int main(void)
{
    double lock = lock_ns();
    row("admission/credit/own", credit_ns(false), "ns", lock);
    row("admission/credit/shared", credit_ns(true), "ns", lock);
    row("admission/simulate/request", replay_us(), "us", 0); /* 60 would be a million in a minute */
    return 0;
}
