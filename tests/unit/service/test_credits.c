/* test_credits.c — the account of credits: all or nothing, once by generation, shared reads; and random schedules against a plain ledger. */
#include "runtime/service/credits.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kv_credits *create(uint64_t pinned, uint64_t staging, uint64_t link, uint64_t queue, int32_t tickets)
{
    struct kv_credits *c;
    ck_assert_int_eq(kv_credits_create(&(struct kv_credit_limits){{pinned, staging, link, queue}, tickets}, &c), KV_OK);
    return c;
}

static struct kv_credit_ask ask(uint64_t request, uint8_t unit, uint64_t backend, uint64_t staging)
{
    return (struct kv_credit_ask){.request = request, .what = "test", .unit = {unit}, .backend_bytes = backend, .staging_bytes = staging, .queue_slots = 1};
}

static struct kv_credit_view view(struct kv_credits *c)
{
    struct kv_credit_view v;
    kv_credits_view(c, &v, NULL, 0, NULL, 0);
    return v;
}

static void expect_used(struct kv_credits *c, uint64_t pinned, uint64_t staging, uint64_t link, uint64_t queue)
{
    struct kv_credit_view v = view(c);
    ck_assert_uint_eq(v.used[KV_CREDIT_PINNED], pinned);
    ck_assert_uint_eq(v.used[KV_CREDIT_STAGING], staging);
    ck_assert_uint_eq(v.used[KV_CREDIT_LINK], link);
    ck_assert_uint_eq(v.used[KV_CREDIT_QUEUE], queue);
}

START_TEST(each_credit_is_named_when_it_lacks)
{
    struct kv_credits *c = create(100, 100, 80, 2, 8);
    struct kv_credit_ticket a, b;
    enum kv_credit lacks;
    struct kv_credit_ask first = ask(1, 1, 50, 60);
    ck_assert_int_eq(kv_credits_reserve(c, &first, 0, &a, NULL, NULL), KV_OK);
    const struct { uint64_t backend, staging; uint32_t slots; enum kv_credit lacks; enum kv_status s; } cases[] = {
        {40, 10, 1, KV_CREDIT_LINK, KV_CREDIT_PRESSURE}, {60, 10, 1, KV_CREDIT_PINNED, KV_CREDIT_PRESSURE}, {10, 50, 1, KV_CREDIT_STAGING, KV_CREDIT_PRESSURE},
        {10, 10, 2, KV_CREDIT_QUEUE, KV_CREDIT_PRESSURE}, {101, 1, 1, KV_CREDIT_PINNED, KV_CAPACITY}, {1, 1, 3, KV_CREDIT_QUEUE, KV_CAPACITY}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_credit_ask x = ask(2, 2, cases[i].backend, cases[i].staging);
        x.queue_slots = cases[i].slots;
        ck_assert_int_eq(kv_credits_reserve(c, &x, 0, &b, &lacks, NULL), cases[i].s);
        ck_assert_int_eq(lacks, cases[i].lacks);
        ck_assert_uint_eq(b.generation, 0);
        expect_used(c, 50, 60, 50, 1); /* nothing of a refused one stays */
    }
    ck_assert_int_eq(kv_credits_release(c, &a), KV_OK);
    expect_used(c, 0, 0, 0, 0);
    kv_credits_destroy(c);
}
END_TEST

START_TEST(a_ticket_is_released_once)
{
    struct kv_credits *c = create(100, 100, 100, 4, 4);
    struct kv_credit_ticket a, copy, b;
    struct kv_credit_ask x = ask(1, 0, 10, 20);
    ck_assert_int_eq(kv_credits_reserve(c, &x, 0, &a, NULL, NULL), KV_OK);
    copy = a;
    ck_assert_int_eq(kv_credits_release(c, &a), KV_OK);
    ck_assert_int_eq(kv_credits_release(c, &a), KV_STALE_CREDIT);
    ck_assert_int_eq(kv_credits_reserve(c, &x, 0, &b, NULL, NULL), KV_OK);
    ck_assert_uint_eq(b.slot, copy.slot); /* the slot is another's by now */
    ck_assert_int_eq(kv_credits_release(c, &copy), KV_STALE_CREDIT);
    expect_used(c, 10, 20, 10, 1);
    kv_credits_reset(c);
    expect_used(c, 0, 0, 0, 0);
    ck_assert_int_eq(kv_credits_release(c, &b), KV_STALE_CREDIT);
    ck_assert_uint_eq(view(c).stale, 3);
    struct kv_credit_ticket nowhere = {.slot = 4000000000u, .generation = 1};
    ck_assert_int_eq(kv_credits_release(c, &nowhere), KV_STALE_CREDIT);
    kv_credits_destroy(c);
}
END_TEST

START_TEST(a_shared_read_is_charged_once_and_staging_for_each)
{
    struct kv_credits *c = create(100, 100, 100, 4, 4);
    struct kv_credit_ticket a, b, d;
    bool shared;
    struct kv_credit_ask x = ask(1, 7, 60, 30), y = ask(2, 7, 60, 30), other = ask(3, 7, 61, 1);
    ck_assert_int_eq(kv_credits_reserve(c, &x, 5, &a, NULL, &shared), KV_OK);
    ck_assert(!shared);
    ck_assert_int_eq(kv_credits_reserve(c, &y, 6, &b, NULL, &shared), KV_OK);
    ck_assert(shared);
    expect_used(c, 60, 60, 60, 2);
    ck_assert_uint_eq(view(c).coalesced_bytes, 60);
    ck_assert_int_eq(kv_credits_reserve(c, &other, 6, &d, NULL, NULL), KV_IDENTITY_MISMATCH);
    struct kv_credit_holder h[4];
    struct kv_credit_view v;
    kv_credits_view(c, &v, h, 4, NULL, 0);
    ck_assert_int_eq(v.n_holders, 2);
    ck_assert_uint_eq(h[0].unit_waiters, 2);
    ck_assert_int_eq(h[0].since_us, 5);
    ck_assert_int_eq(kv_credits_release(c, &a), KV_OK); /* cancelling one waiter leaves the read to the other */
    expect_used(c, 60, 30, 60, 1);
    ck_assert_int_eq(kv_credits_release(c, &b), KV_OK);
    expect_used(c, 0, 0, 0, 0);
    struct kv_credit_ask alone = ask(1, 0, 60, 1);
    ck_assert_int_eq(kv_credits_reserve(c, &alone, 0, &a, NULL, NULL), KV_OK);
    ck_assert_int_eq(kv_credits_reserve(c, &alone, 0, &b, NULL, NULL), KV_CREDIT_PRESSURE); /* no identity, no sharing */
    kv_credits_destroy(c);
}
END_TEST

START_TEST(waiters_keep_their_time_and_end_with_a_reserve)
{
    struct kv_credits *c = create(10, 10, 10, 1, 4);
    struct kv_credit_holder w[4];
    struct kv_credit_view v;
    kv_credits_wait(c, 9, "load", KV_CREDIT_QUEUE, 100);
    kv_credits_wait(c, 9, "load", KV_CREDIT_LINK, 200);
    kv_credits_wait(c, 8, "load", KV_CREDIT_LINK, 300);
    kv_credits_view(c, &v, NULL, 0, w, 4);
    ck_assert_int_eq(v.n_waiters, 2);
    ck_assert_int_eq(w[0].since_us, 100);
    ck_assert_int_eq(w[0].lacks, KV_CREDIT_LINK);
    struct kv_credit_ticket t;
    struct kv_credit_ask x = ask(9, 0, 1, 1);
    ck_assert_int_eq(kv_credits_reserve(c, &x, 0, &t, NULL, NULL), KV_OK);
    kv_credits_forget(c, 8);
    ck_assert_int_eq(view(c).n_waiters, 0);
    kv_credits_destroy(c);
}
END_TEST

START_TEST(exact_offload_needs_all_seven)
{
    const struct kv_offload_demand free = {true, 100, 100, 100, 1e9, 1e9, 4}, fits = {true, 100, 100, 100, 1e9, 1e9, 4};
    struct kv_error err;
    ck_assert_int_eq(kv_offload_admit(&fits, &free, &err), KV_OK);
    struct kv_offload_demand d[7] = {fits, fits, fits, fits, fits, fits, fits};
    const enum kv_status reason[7] = {KV_SUPPORT_NOT_RECOVERABLE, KV_DEVICE_BUDGET, KV_HOST_BUDGET, KV_PINNED_BUDGET, KV_H2D_BUDGET, KV_D2H_BUDGET, KV_QUEUE_FULL};
    d[0].recoverable = false;
    d[1].device_bytes++, d[2].host_bytes++, d[3].pinned_bytes++;
    d[4].h2d_bytes_per_s *= 2, d[5].d2h_bytes_per_s *= 2;
    d[6].transfer_jobs++;
    for (int i = 0; i < 7; i++) ck_assert_int_eq(kv_offload_admit(&d[i], &free, &err), reason[i]);
    ck_assert_str_eq(err.hint, "1 slots more would make it legal");
}
END_TEST

/* ---------------------------------------------------------------- random schedules */

enum { REQUESTS = 64, UNITS = 6, STEPS = 60000 };

struct plain { /* the same account, summed anew each time */
    bool live;
    uint8_t unit;
    uint64_t backend, staging;
    struct kv_credit_ticket ticket, stale;
};

static void sum(const struct plain *p, uint64_t used[KV_CREDIT_KINDS])
{
    bool counted[UNITS + 1] = {false};
    memset(used, 0, KV_CREDIT_KINDS * sizeof *used);
    for (int i = 0; i < REQUESTS; i++) {
        if (!p[i].live) continue;
        used[KV_CREDIT_STAGING] += p[i].staging;
        used[KV_CREDIT_QUEUE]++;
        if (p[i].unit && counted[p[i].unit]) continue;
        counted[p[i].unit] = true;
        used[KV_CREDIT_PINNED] += p[i].backend;
    }
    used[KV_CREDIT_LINK] = used[KV_CREDIT_PINNED];
}

START_TEST(random_schedules_conserve_credits)
{
    struct kv_credits *c = create(4000, 3000, 3500, 24, 32);
    static struct plain p[REQUESTS];
    memset(p, 0, sizeof p);
    unsigned seed = 17;
    uint64_t used[KV_CREDIT_KINDS], admitted = 0, refused = 0;
    for (int step = 0; step < STEPS; step++) {
        int i = rand_r(&seed) % REQUESTS, act = rand_r(&seed) % 100;
        struct plain *q = &p[i];
        if (act == 0) { /* the transfers' engine is reset: what is in flight completes late */
            kv_credits_reset(c);
            for (int k = 0; k < REQUESTS; k++) {
                if (p[k].live) p[k].stale = p[k].ticket;
                p[k].live = false;
            }
        } else if (act < 8 && q->stale.generation) { /* a completion that comes again, or from before */
            struct kv_credit_ticket t = q->stale;
            ck_assert_int_eq(kv_credits_release(c, &t), KV_STALE_CREDIT);
        } else if (q->live) { /* completed or cancelled */
            q->stale = q->ticket;
            ck_assert_int_eq(kv_credits_release(c, &q->ticket), KV_OK);
            q->live = false;
        } else {
            uint8_t unit = (uint8_t)(rand_r(&seed) % (UNITS + 1));
            uint64_t backend = unit ? 100u * unit : (uint64_t)(rand_r(&seed) % 900), staging = (uint64_t)(rand_r(&seed) % 500);
            struct kv_credit_ask x = ask((uint64_t)i + 1, unit, backend, staging);
            sum(p, used);
            uint64_t before = used[KV_CREDIT_PINNED];
            q->live = true, q->unit = unit, q->backend = backend, q->staging = staging;
            sum(p, used);
            bool fits = used[KV_CREDIT_PINNED] <= 3500 && used[KV_CREDIT_STAGING] <= 3000 && used[KV_CREDIT_QUEUE] <= 24;
            bool shared;
            q->live = kv_credits_reserve(c, &x, step, &q->ticket, NULL, &shared) == KV_OK;
            ck_assert_int_eq(q->live, fits);
            if (q->live) ck_assert_int_eq(shared, unit && before == used[KV_CREDIT_PINNED]);
            admitted += q->live;
            refused += !q->live;
        }
        sum(p, used);
        expect_used(c, used[KV_CREDIT_PINNED], used[KV_CREDIT_STAGING], used[KV_CREDIT_LINK], used[KV_CREDIT_QUEUE]);
    }
    ck_assert_uint_gt(admitted, 1000);
    ck_assert_uint_gt(refused, 1000);
    ck_assert_uint_eq(view(c).reserved, admitted);
    kv_credits_destroy(c);
}
END_TEST

static void *pound(void *arg)
{
    struct kv_credits *c = arg;
    for (int i = 0; i < 20000; i++) {
        struct kv_credit_ticket t;
        struct kv_credit_ask x = ask((uint64_t)i, (uint8_t)(i % 3), (uint64_t)(1 + i % 3), 1);
        if (kv_credits_reserve(c, &x, i, &t, NULL, NULL) == KV_OK) kv_credits_release(c, &t);
    }
    return NULL;
}

START_TEST(threads_leave_nothing_behind)
{
    struct kv_credits *c = create(8, 3, 8, 3, 8);
    pthread_t t[3];
    for (int i = 0; i < 3; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, pound, c), 0);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    struct kv_credit_view v = view(c);
    expect_used(c, 0, 0, 0, 0);
    ck_assert_uint_eq(v.reserved, v.released);
    ck_assert_uint_eq(v.reserved + v.refused, 60000);
    kv_credits_destroy(c);
}
END_TEST

Suite *suite_credits(void);
Suite *suite_credits(void)
{
    Suite *s = suite_create("credits");
    TCase *t = tcase_create("credits");
    tcase_add_test(t, each_credit_is_named_when_it_lacks);
    tcase_add_test(t, a_ticket_is_released_once);
    tcase_add_test(t, a_shared_read_is_charged_once_and_staging_for_each);
    tcase_add_test(t, waiters_keep_their_time_and_end_with_a_reserve);
    tcase_add_test(t, exact_offload_needs_all_seven);
    tcase_add_test(t, random_schedules_conserve_credits);
    tcase_add_test(t, threads_leave_nothing_behind);
    suite_add_tcase(s, t);
    return s;
}
