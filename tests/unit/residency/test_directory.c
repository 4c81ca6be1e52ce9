/* test_directory.c — promotions, demotions, leases and eviction, one by one. */
#include "tests/unit/residency/directory_runs.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(transition_table)
{
    enum kv_residency_state s = KV_AT_GPU_VISIBLE;
    static const enum kv_residency_state out[] = {KV_AT_DEMOTE_RESERVED, KV_AT_COPY_OUT, KV_AT_HOST_VALID, KV_AT_GPU_RELEASED};
    static const enum kv_residency_state in[] = {KV_AT_PROMOTE_RESERVED, KV_AT_COPY_IN, KV_AT_GPU_STAGED, KV_AT_GPU_VISIBLE};
    for (int i = 0; i < 4; i++) ck_assert_int_eq(kv_residency_move(&s, out[i]), KV_OK);
    s = KV_AT_HOST_VALID;
    for (int i = 0; i < 4; i++) ck_assert_int_eq(kv_residency_move(&s, in[i]), KV_OK);
    int legal = 0;
    for (int a = 0; a < KV_RESIDENCY_STATE_COUNT; a++)
        for (int b = 0; b < KV_RESIDENCY_STATE_COUNT; b++) {
            enum kv_residency_state x = (enum kv_residency_state)a;
            bool may = kv_residency_may_move(x, (enum kv_residency_state)b);
            legal += may;
            ck_assert_int_eq(kv_residency_move(&x, (enum kv_residency_state)b), may ? KV_OK : KV_ILLEGAL_TRANSITION);
            ck_assert_int_eq(x, may ? b : a);
        }
    ck_assert_int_eq(legal, 20);
    s = KV_AT_COPY_IN; /* completion is not publication */
    ck_assert_int_eq(kv_residency_move(&s, KV_AT_GPU_VISIBLE), KV_ILLEGAL_TRANSITION);
    s = KV_AT_COPY_OUT; /* and the source never goes before the copy is valid */
    ck_assert_int_eq(kv_residency_move(&s, KV_AT_GPU_RELEASED), KV_ILLEGAL_TRANSITION);
    ck_assert_str_eq(kv_residency_state_name(KV_AT_DEMOTION_FAILED), "DEMOTION_FAILED");
}
END_TEST

START_TEST(demote_and_promote)
{
    struct kv_transfer t;
    struct kv_waiter w;
    bool join;
    uint8_t own[BYTES], want[BYTES];
    dir_open(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = dir_chunk(1);
    dir_publish(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_demote_begin(dir, &id, KV_TIER_DEVICE, KV_TIER_HOST, &t), KV_OK);
    dir_holds(1, KV_TIER_DEVICE); /* both sides until the copy is valid */
    dir_invariants();
    struct kv_transfer_done done = dir_copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, NULL), KV_ANSWER_MISS);
    dir_holds(1, KV_TIER_HOST);
    ck_assert_uint_eq(dir_device.used_bytes(dir_device.ctx), 0);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, own, &w, &join, &t), KV_OK);
    ck_assert(!join);
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, NULL), KV_ANSWER_WAIT);
    ck_assert_int_eq(kv_waiter_result(dir, &w), KV_CONFLICT);
    done = dir_copied(&t);
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, NULL), KV_ANSWER_WAIT); /* bytes arrived, nothing is published */
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    ck_assert_int_eq(kv_waiter_result(dir, &w), KV_OK);
    ck_assert_int_eq(kv_waiter_result(dir, &w), KV_NOT_FOUND);
    dir_payload(1, want);
    ck_assert_mem_eq(own, want, BYTES);
    dir_holds(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_RECYCLED_DESTINATION); /* the same completion again */
    dir_invariants();
    dir_close();
}
END_TEST

START_TEST(disk_to_device_goes_through_host)
{
    struct kv_transfer t;
    struct kv_waiter w;
    bool join;
    dir_open(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = dir_chunk(1);
    dir_publish(1, KV_TIER_DISK);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, NULL, &w, &join, &t), KV_UNSUPPORTED);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_HOST, NULL, &w, &join, &t), KV_OK);
    struct kv_transfer_done done = dir_copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    ck_assert_int_eq(kv_waiter_result(dir, &w), KV_OK);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, NULL, &w, &join, &t), KV_OK);
    ck_assert_ptr_eq(t.from, &dir_host);
    done = dir_copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    dir_holds(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_directory_nearest(dir, &id), KV_TIER_DEVICE);
    dir_invariants();
    dir_close();
}
END_TEST

/* Each way a completion can be wrong has its own answer; nothing is published and the destination goes back once. */
START_TEST(completions_are_refused_by_reason)
{
    static const enum kv_status expected[] = {KV_SHORT_COPY, KV_CHECKSUM_MISMATCH, KV_IO_ERROR, KV_STALE_CACHE_GENERATION, KV_IDENTITY_MISMATCH, KV_STALE_AUTHORITY_EPOCH,
                                              KV_TRANSFER_CANCELLED, KV_RECYCLED_DESTINATION, KV_RECYCLED_DESTINATION};
    for (size_t kind = 0; kind < sizeof expected / sizeof *expected; kind++) {
        struct kv_transfer t;
        struct kv_waiter w;
        bool join;
        dir_open(4, 4, 4, KV_VICTIM_LRU);
        struct kv_chunk_identity id = dir_chunk(1);
        dir_publish(1, KV_TIER_HOST);
        ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, NULL, &w, &join, &t), KV_OK);
        struct kv_transfer_done done = dir_copied(&t);
        if (kind == 0) done.bytes--;
        if (kind == 1) done.status = KV_CHECKSUM_MISMATCH;
        if (kind == 2) done.status = KV_IO_ERROR;
        if (kind == 3) kv_directory_set_cache_generation(dir, &id, (struct kv_cache_generation){2});
        if (kind == 4) done.transfer.identity.layer++;
        if (kind == 5) kv_directory_fence(dir);
        if (kind == 6) ck_assert_int_eq(kv_waiter_cancel(dir, &w), KV_OK);
        if (kind == 7) done.transfer.generation.n++;
        if (kind == 8) done.transfer.destination.allocation.n++;
        ck_assert_int_eq(kv_transfer_complete(dir, &done), expected[kind]);
        if (kind >= 7) { /* a foreign completion changes nothing; the true one still lands */
            done.transfer = t;
            ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
        } else {
            ck_assert_uint_eq(dir_device.used_bytes(dir_device.ctx), 0);
            ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, NULL), KV_ANSWER_MISS);
            if (kind != 6) ck_assert_int_eq(kv_waiter_result(dir, &w), expected[kind]);
        }
        if (kind == 5) {
            ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_HOST, NULL), KV_ANSWER_MISS);
            ck_assert_int_eq(kv_directory_reauthorise(dir, &id, KV_TIER_HOST), KV_OK);
        }
        dir_holds(1, KV_TIER_HOST);
        dir_invariants();
        dir_close();
    }
}
END_TEST

/* A cancelled promotion's block goes to another chunk; the late completion must not touch it. */
START_TEST(aba)
{
    struct kv_transfer t, t2;
    struct kv_waiter w, w2;
    bool join;
    dir_open(1, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity a = dir_chunk(1), b = dir_chunk(2);
    dir_publish(1, KV_TIER_HOST);
    dir_publish(2, KV_TIER_HOST);
    ck_assert_int_eq(kv_promote_begin(dir, &a, KV_TIER_DEVICE, NULL, &w, &join, &t), KV_OK);
    struct kv_transfer_done late = dir_copied(&t), done;
    kv_waiter_cancel(dir, &w);
    done = late;
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_TRANSFER_CANCELLED);
    ck_assert_int_eq(kv_promote_begin(dir, &b, KV_TIER_DEVICE, NULL, &w2, &join, &t2), KV_OK);
    ck_assert_uint_eq(t2.destination.place, t.destination.place);
    ck_assert_int_eq(kv_transfer_complete(dir, &late), KV_RECYCLED_DESTINATION);
    kv_transfer_copy(&t, &late); /* even a copy that runs late finds the allocation gone */
    ck_assert_int_eq(late.status, KV_RECYCLED_DESTINATION);
    done = dir_copied(&t2);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    dir_holds(2, KV_TIER_DEVICE);
    dir_invariants();
    dir_close();
}
END_TEST

START_TEST(coalescing)
{
    struct kv_transfer t, same;
    struct kv_waiter w[3];
    bool join;
    uint8_t own[3][BYTES], want[BYTES];
    struct kv_directory_stats st;
    dir_open(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = dir_chunk(3), other = dir_chunk(3);
    dir_publish(3, KV_TIER_HOST);
    strcpy(other.tenant, "beta"); /* the same tokens under another tenant are another chunk */
    memset(own, 0, sizeof own);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, own[0], &w[0], &join, &t), KV_OK);
    ck_assert(!join);
    for (int i = 1; i < 3; i++) {
        ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, own[i], &w[i], &join, &same), KV_OK);
        ck_assert(join);
        ck_assert_uint_eq(same.generation.n, t.generation.n);
    }
    ck_assert_int_eq(kv_promote_begin(dir, &other, KV_TIER_DEVICE, NULL, &w[0], &join, &same), KV_NOT_FOUND);
    w[0] = (struct kv_waiter){w[1].transaction, 0, w[1].generation};
    ck_assert_int_eq(kv_waiter_cancel(dir, &w[0]), KV_OK); /* the one that started it leaves; the read goes on */
    struct kv_transfer_done done = dir_copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    dir_payload(3, want);
    for (int i = 1; i < 3; i++) {
        ck_assert_int_eq(kv_waiter_result(dir, &w[i]), KV_OK);
        ck_assert_mem_eq(own[i], want, BYTES);
    }
    ck_assert_uint_eq(own[0][1], 0);
    kv_directory_stats(dir, &st);
    ck_assert_uint_eq(st.coalesced_bytes, 2 * BYTES);
    ck_assert_uint_eq(st.promotions_begun, 1);
    ck_assert_uint_eq(st.replicas[KV_TIER_DEVICE], 1);
    dir_close();
}
END_TEST

START_TEST(leases_hold_the_source)
{
    struct kv_transfer t;
    struct kv_lease l, l2;
    dir_open(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = dir_chunk(1);
    dir_publish(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, &l), KV_ANSWER_READY);
    ck_assert_int_eq(kv_demote_begin(dir, &id, KV_TIER_DEVICE, KV_TIER_HOST, &t), KV_OK);
    struct kv_transfer_done done = dir_copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    ck_assert(dir_device.current(dir_device.ctx, l.block)); /* a reader still has it */
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, &l2), KV_ANSWER_MISS);
    ck_assert_int_eq(kv_directory_remove(dir, &id), KV_CONFLICT);
    dir_invariants();
    ck_assert_int_eq(kv_directory_release(dir, &l), KV_OK);
    ck_assert_int_eq(kv_directory_release(dir, &l), KV_STALE_REPLICA_GENERATION);
    ck_assert(!dir_device.current(dir_device.ctx, l.block));
    dir_invariants();
    ck_assert_int_eq(kv_directory_remove(dir, &id), KV_OK);
    ck_assert_int_eq(kv_directory_nearest(dir, &id), -1);
    dir_close();
}
END_TEST

START_TEST(failed_demotion_keeps_the_source)
{
    struct kv_transfer t;
    dir_open(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = dir_chunk(1);
    dir_publish(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_demote_begin(dir, &id, KV_TIER_DEVICE, KV_TIER_HOST, &t), KV_OK);
    struct kv_transfer_done done = dir_copied(&t);
    done.status = KV_NO_SPACE;
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_DEMOTION_FAILED);
    dir_holds(1, KV_TIER_DEVICE);
    ck_assert_uint_eq(dir_host.used_bytes(dir_host.ctx), 0);
    dir_invariants();
    dir_close();
}
END_TEST

START_TEST(last_replica_is_never_evicted)
{
    struct kv_transfer t;
    bool pending;
    dir_open(2, 1, 0, KV_VICTIM_FIFO);
    dir_publish(1, KV_TIER_DEVICE);
    dir_publish(2, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_DEVICE, &pending, &t), KV_OK);
    ck_assert(pending); /* eviction of a last replica is a demotion */
    struct kv_transfer_done done = dir_copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    dir_holds(1, KV_TIER_HOST);
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_DEVICE, &pending, &t), KV_LAST_REPLICA); /* the host is full, there is no disk */
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_HOST, &pending, &t), KV_LAST_REPLICA);
    dir_holds(2, KV_TIER_DEVICE);
    dir_invariants();
    dir_close();
}
END_TEST

START_TEST(a_tenant_is_removed_whole)
{
    uint8_t p[BYTES];
    uint64_t removed;
    struct kv_lease l;
    dir_open(4, 8, 4, KV_VICTIM_LRU);
    dir_payload(0, p);
    for (int n = 0; n < 6; n++) {
        struct kv_chunk_identity id = dir_chunk(n);
        if (n % 2) strcpy(id.tenant, "beta");
        id.ns.n = n < 4 ? 1 : 2;
        ck_assert_int_eq(kv_directory_publish(dir, &id, (struct kv_cache_generation){1}, n < 3 ? KV_TIER_DEVICE : KV_TIER_HOST, p, BYTES, 1), KV_OK);
    }
    struct kv_chunk_identity held = dir_chunk(0);
    held.ns.n = 1;
    ck_assert_int_eq(kv_directory_lookup(dir, &held, KV_TIER_DEVICE, &l), KV_ANSWER_READY);
    ck_assert_int_eq(kv_directory_remove_tenant(dir, "alpha", (struct kv_ns_generation){1}, &removed), KV_CONFLICT); /* a reader holds one */
    ck_assert_uint_eq(removed, 1);
    kv_directory_release(dir, &l);
    ck_assert_int_eq(kv_directory_remove_tenant(dir, "alpha", (struct kv_ns_generation){2}, &removed), KV_OK);
    ck_assert_uint_eq(removed, 2);
    ck_assert_int_eq(kv_directory_remove_tenant(dir, "alpha", (struct kv_ns_generation){2}, &removed), KV_OK);
    ck_assert_uint_eq(removed, 0);
    struct kv_directory_stats st;
    kv_directory_stats(dir, &st);
    ck_assert_uint_eq(st.chunks, 3); /* beta's are untouched */
    dir_invariants();
    dir_close();
}
END_TEST

static int evicted(enum kv_victim policy)
{
    struct kv_transfer t;
    bool pending;
    dir_open(3, 8, 0, policy);
    /* 1 is oldest, used twice, dear to recompute; 2 is never used; 3 is used once and last, cheap. */
    for (int n = 1; n <= 3; n++) dir_publish(n, KV_TIER_DEVICE);
    if (policy == KV_VICTIM_LRU) dir_holds(1, KV_TIER_DEVICE), dir_holds(3, KV_TIER_DEVICE);
    else dir_holds(1, KV_TIER_DEVICE), dir_holds(1, KV_TIER_DEVICE), dir_holds(2, KV_TIER_DEVICE), dir_holds(2, KV_TIER_DEVICE), dir_holds(3, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_DEVICE, &pending, &t), KV_OK);
    int n = t.identity.layer;
    dir_close();
    return n;
}

/* What an earlier process left has no cost of its own; used often, it does not go before what nobody uses. */
START_TEST(found_blocks_have_a_value)
{
    struct kv_transfer t;
    bool pending;
    dir_open(3, 8, 0, KV_VICTIM_VALUE);
    dir_publish(1, KV_TIER_DEVICE);
    struct kv_chunk_identity old = dir_chunk(2);
    struct kv_block b;
    ck_assert_int_eq(dir_device.reserve(dir_device.ctx, BYTES, &old, &b), KV_OK);
    ck_assert_int_eq(kv_directory_adopt(dir, &old, KV_TIER_DEVICE, b, BYTES), KV_OK);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(kv_directory_lookup(dir, &old, KV_TIER_DEVICE, NULL), KV_ANSWER_READY);
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_DEVICE, &pending, &t), KV_OK);
    ck_assert_int_eq(t.identity.layer, 1);
    dir_close();
}
END_TEST

START_TEST(policies_choose_differently)
{
    ck_assert_int_eq(evicted(KV_VICTIM_FIFO), 1);
    ck_assert_int_eq(evicted(KV_VICTIM_LRU), 2);
    ck_assert_int_eq(evicted(KV_VICTIM_LFU), 3);
    ck_assert_int_eq(evicted(KV_VICTIM_VALUE), 1); /* 100 µs to recompute: cheaper than 2 and 3, though used more */
}
END_TEST

Suite *suite_directory(void);
Suite *suite_directory(void)
{
    Suite *s = suite_create("directory");
    TCase *t = tcase_create("directory");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, transition_table);
    tcase_add_test(t, demote_and_promote);
    tcase_add_test(t, disk_to_device_goes_through_host);
    tcase_add_test(t, completions_are_refused_by_reason);
    tcase_add_test(t, aba);
    tcase_add_test(t, coalescing);
    tcase_add_test(t, leases_hold_the_source);
    tcase_add_test(t, failed_demotion_keeps_the_source);
    tcase_add_test(t, last_replica_is_never_evicted);
    tcase_add_test(t, a_tenant_is_removed_whole);
    tcase_add_test(t, found_blocks_have_a_value);
    tcase_add_test(t, policies_choose_differently);
    suite_add_tcase(s, t);
    return s;
}
