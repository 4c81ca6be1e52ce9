/* test_directory.c — promotions, demotions, leases and eviction, one by one and then at random with faults, invariants checked throughout. */
#include "runtime/residency/directory.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLAB = 4096, BYTES = 3000 };

static struct kv_tier device, host, disk;
static struct kv_directory *dir;
static struct kv_error err;

static void open_dir(int device_slabs, int host_slabs, int disk_slabs, enum kv_victim eviction)
{
    ck_assert_int_eq(kv_tier_memory_create("device", "device", true, SLAB, (uint64_t)device_slabs * SLAB, &device), KV_OK);
    ck_assert_int_eq(kv_tier_memory_create("host", "host", false, SLAB, (uint64_t)host_slabs * SLAB, &host), KV_OK);
    ck_assert_int_eq(kv_tier_memory_create("disk", "file", true, SLAB, (uint64_t)disk_slabs * SLAB, &disk), KV_OK);
    struct kv_directory_config c = {.tier = {&device, &host, &disk}, .max_chunks = 64, .max_transactions = 8, .max_payload_bytes = SLAB, .victim = eviction,
                                    .promote_us = {0, 10, 1000}, .capacity_us_per_mib = {1, 1, 1}};
    ck_assert_int_eq(kv_directory_create(&c, &dir), KV_OK);
}

static void close_dir(void)
{
    kv_directory_destroy(dir);
    ck_assert_uint_eq(device.used_bytes(device.ctx), 0);
    ck_assert_uint_eq(host.used_bytes(host.ctx), 0);
    kv_tier_memory_destroy(&device);
    kv_tier_memory_destroy(&host);
    kv_tier_memory_destroy(&disk);
}

static struct kv_chunk_identity identity(int n)
{
    struct kv_chunk_identity id;
    memset(&id, 0, sizeof id);
    id.layer = n;
    strcpy(id.tenant, "alpha");
    strcpy(id.support, "exact");
    return id;
}

static void payload(int n, uint8_t *out)
{
    for (int i = 0; i < BYTES; i++) out[i] = (uint8_t)(n * 37 + i * 3);
}

static void publish(int n, enum kv_tier_id tier)
{
    uint8_t p[BYTES];
    struct kv_chunk_identity id = identity(n);
    payload(n, p);
    ck_assert_int_eq(kv_directory_publish(dir, &id, (struct kv_cache_generation){1}, tier, p, BYTES, 100 * n), KV_OK);
}

static void holds(int n, enum kv_tier_id tier)
{
    uint8_t want[BYTES], have[BYTES];
    struct kv_lease l;
    struct kv_chunk_identity id = identity(n);
    struct kv_tier *t = tier == KV_TIER_DEVICE ? &device : tier == KV_TIER_HOST ? &host : &disk;
    ck_assert_int_eq(kv_directory_lookup(dir, &id, tier, &l), KV_ANSWER_READY);
    ck_assert_int_eq(t->read(t->ctx, l.block, &id, have, BYTES), KV_OK);
    payload(n, want);
    ck_assert_mem_eq(have, want, BYTES);
    ck_assert_int_eq(kv_directory_release(dir, &l), KV_OK);
}

static void invariants(void)
{
    ck_assert_msg(kv_directory_check(dir, &err) == KV_OK, "%s", err.message);
}

static struct kv_transfer_done copied(const struct kv_transfer *t)
{
    struct kv_transfer_done done;
    kv_transfer_copy(t, &done);
    return done;
}

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
    open_dir(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = identity(1);
    publish(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_demote_begin(dir, &id, KV_TIER_DEVICE, KV_TIER_HOST, &t), KV_OK);
    holds(1, KV_TIER_DEVICE); /* both sides until the copy is valid */
    invariants();
    struct kv_transfer_done done = copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, NULL), KV_ANSWER_MISS);
    holds(1, KV_TIER_HOST);
    ck_assert_uint_eq(device.used_bytes(device.ctx), 0);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, own, &w, &join, &t), KV_OK);
    ck_assert(!join);
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, NULL), KV_ANSWER_WAIT);
    ck_assert_int_eq(kv_waiter_result(dir, &w), KV_CONFLICT);
    done = copied(&t);
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, NULL), KV_ANSWER_WAIT); /* bytes arrived, nothing is published */
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    ck_assert_int_eq(kv_waiter_result(dir, &w), KV_OK);
    ck_assert_int_eq(kv_waiter_result(dir, &w), KV_NOT_FOUND);
    payload(1, want);
    ck_assert_mem_eq(own, want, BYTES);
    holds(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_RECYCLED_DESTINATION); /* the same completion again */
    invariants();
    close_dir();
}
END_TEST

START_TEST(disk_to_device_goes_through_host)
{
    struct kv_transfer t;
    struct kv_waiter w;
    bool join;
    open_dir(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = identity(1);
    publish(1, KV_TIER_DISK);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, NULL, &w, &join, &t), KV_UNSUPPORTED);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_HOST, NULL, &w, &join, &t), KV_OK);
    struct kv_transfer_done done = copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    ck_assert_int_eq(kv_waiter_result(dir, &w), KV_OK);
    ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, NULL, &w, &join, &t), KV_OK);
    ck_assert_ptr_eq(t.from, &host);
    done = copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    holds(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_directory_nearest(dir, &id), KV_TIER_DEVICE);
    invariants();
    close_dir();
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
        open_dir(4, 4, 4, KV_VICTIM_LRU);
        struct kv_chunk_identity id = identity(1);
        publish(1, KV_TIER_HOST);
        ck_assert_int_eq(kv_promote_begin(dir, &id, KV_TIER_DEVICE, NULL, &w, &join, &t), KV_OK);
        struct kv_transfer_done done = copied(&t);
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
            ck_assert_uint_eq(device.used_bytes(device.ctx), 0);
            ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, NULL), KV_ANSWER_MISS);
            if (kind != 6) ck_assert_int_eq(kv_waiter_result(dir, &w), expected[kind]);
        }
        if (kind == 5) {
            ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_HOST, NULL), KV_ANSWER_MISS);
            ck_assert_int_eq(kv_directory_reauthorise(dir, &id, KV_TIER_HOST), KV_OK);
        }
        holds(1, KV_TIER_HOST);
        invariants();
        close_dir();
    }
}
END_TEST

/* A cancelled promotion's block goes to another chunk; the late completion must not touch it. */
START_TEST(aba)
{
    struct kv_transfer t, t2;
    struct kv_waiter w, w2;
    bool join;
    open_dir(1, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity a = identity(1), b = identity(2);
    publish(1, KV_TIER_HOST);
    publish(2, KV_TIER_HOST);
    ck_assert_int_eq(kv_promote_begin(dir, &a, KV_TIER_DEVICE, NULL, &w, &join, &t), KV_OK);
    struct kv_transfer_done late = copied(&t), done;
    kv_waiter_cancel(dir, &w);
    done = late;
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_TRANSFER_CANCELLED);
    ck_assert_int_eq(kv_promote_begin(dir, &b, KV_TIER_DEVICE, NULL, &w2, &join, &t2), KV_OK);
    ck_assert_uint_eq(t2.destination.place, t.destination.place);
    ck_assert_int_eq(kv_transfer_complete(dir, &late), KV_RECYCLED_DESTINATION);
    kv_transfer_copy(&t, &late); /* even a copy that runs late finds the allocation gone */
    ck_assert_int_eq(late.status, KV_RECYCLED_DESTINATION);
    done = copied(&t2);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    holds(2, KV_TIER_DEVICE);
    invariants();
    close_dir();
}
END_TEST

START_TEST(coalescing)
{
    struct kv_transfer t, same;
    struct kv_waiter w[3];
    bool join;
    uint8_t own[3][BYTES], want[BYTES];
    struct kv_directory_stats st;
    open_dir(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = identity(3), other = identity(3);
    publish(3, KV_TIER_HOST);
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
    struct kv_transfer_done done = copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    payload(3, want);
    for (int i = 1; i < 3; i++) {
        ck_assert_int_eq(kv_waiter_result(dir, &w[i]), KV_OK);
        ck_assert_mem_eq(own[i], want, BYTES);
    }
    ck_assert_uint_eq(own[0][1], 0);
    kv_directory_stats(dir, &st);
    ck_assert_uint_eq(st.coalesced_bytes, 2 * BYTES);
    ck_assert_uint_eq(st.promotions_begun, 1);
    ck_assert_uint_eq(st.replicas[KV_TIER_DEVICE], 1);
    close_dir();
}
END_TEST

START_TEST(leases_hold_the_source)
{
    struct kv_transfer t;
    struct kv_lease l, l2;
    open_dir(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = identity(1);
    publish(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, &l), KV_ANSWER_READY);
    ck_assert_int_eq(kv_demote_begin(dir, &id, KV_TIER_DEVICE, KV_TIER_HOST, &t), KV_OK);
    struct kv_transfer_done done = copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    ck_assert(device.current(device.ctx, l.block)); /* a reader still has it */
    ck_assert_int_eq(kv_directory_lookup(dir, &id, KV_TIER_DEVICE, &l2), KV_ANSWER_MISS);
    ck_assert_int_eq(kv_directory_remove(dir, &id), KV_CONFLICT);
    invariants();
    ck_assert_int_eq(kv_directory_release(dir, &l), KV_OK);
    ck_assert_int_eq(kv_directory_release(dir, &l), KV_STALE_REPLICA_GENERATION);
    ck_assert(!device.current(device.ctx, l.block));
    invariants();
    ck_assert_int_eq(kv_directory_remove(dir, &id), KV_OK);
    ck_assert_int_eq(kv_directory_nearest(dir, &id), -1);
    close_dir();
}
END_TEST

START_TEST(failed_demotion_keeps_the_source)
{
    struct kv_transfer t;
    open_dir(4, 4, 4, KV_VICTIM_LRU);
    struct kv_chunk_identity id = identity(1);
    publish(1, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_demote_begin(dir, &id, KV_TIER_DEVICE, KV_TIER_HOST, &t), KV_OK);
    struct kv_transfer_done done = copied(&t);
    done.status = KV_NO_SPACE;
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_DEMOTION_FAILED);
    holds(1, KV_TIER_DEVICE);
    ck_assert_uint_eq(host.used_bytes(host.ctx), 0);
    invariants();
    close_dir();
}
END_TEST

START_TEST(last_replica_is_never_evicted)
{
    struct kv_transfer t;
    bool pending;
    open_dir(2, 1, 0, KV_VICTIM_FIFO);
    publish(1, KV_TIER_DEVICE);
    publish(2, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_DEVICE, &pending, &t), KV_OK);
    ck_assert(pending); /* eviction of a last replica is a demotion */
    struct kv_transfer_done done = copied(&t);
    ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
    holds(1, KV_TIER_HOST);
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_DEVICE, &pending, &t), KV_LAST_REPLICA); /* the host is full, there is no disk */
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_HOST, &pending, &t), KV_LAST_REPLICA);
    holds(2, KV_TIER_DEVICE);
    invariants();
    close_dir();
}
END_TEST

START_TEST(a_tenant_is_removed_whole)
{
    uint8_t p[BYTES];
    uint64_t removed;
    struct kv_lease l;
    open_dir(4, 8, 4, KV_VICTIM_LRU);
    payload(0, p);
    for (int n = 0; n < 6; n++) {
        struct kv_chunk_identity id = identity(n);
        if (n % 2) strcpy(id.tenant, "beta");
        id.ns.n = n < 4 ? 1 : 2;
        ck_assert_int_eq(kv_directory_publish(dir, &id, (struct kv_cache_generation){1}, n < 3 ? KV_TIER_DEVICE : KV_TIER_HOST, p, BYTES, 1), KV_OK);
    }
    struct kv_chunk_identity held = identity(0);
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
    invariants();
    close_dir();
}
END_TEST

static int evicted(enum kv_victim policy)
{
    struct kv_transfer t;
    bool pending;
    open_dir(3, 8, 0, policy);
    /* 1 is oldest, used twice, dear to recompute; 2 is never used; 3 is used once and last, cheap. */
    for (int n = 1; n <= 3; n++) publish(n, KV_TIER_DEVICE);
    if (policy == KV_VICTIM_LRU) holds(1, KV_TIER_DEVICE), holds(3, KV_TIER_DEVICE);
    else holds(1, KV_TIER_DEVICE), holds(1, KV_TIER_DEVICE), holds(2, KV_TIER_DEVICE), holds(2, KV_TIER_DEVICE), holds(3, KV_TIER_DEVICE);
    ck_assert_int_eq(kv_evict_one(dir, KV_TIER_DEVICE, &pending, &t), KV_OK);
    int n = t.identity.layer;
    close_dir();
    return n;
}

START_TEST(policies_choose_differently)
{
    ck_assert_int_eq(evicted(KV_VICTIM_FIFO), 1);
    ck_assert_int_eq(evicted(KV_VICTIM_LRU), 2);
    ck_assert_int_eq(evicted(KV_VICTIM_LFU), 3);
    ck_assert_int_eq(evicted(KV_VICTIM_VALUE), 1); /* 100 µs to recompute: cheaper than 2 and 3, though used more */
}
END_TEST

/* ---------------------------------------------------------------- at random */

enum { CHUNKS = 40, LEASES = 16, MOVES = 8, WAITERS = 24 };

struct world {
    bool alive[CHUNKS];
    struct kv_lease lease[LEASES];
    bool leased[LEASES];
    struct kv_transfer move[MOVES];
    bool moving[MOVES];
    struct kv_waiter waiter[WAITERS];
    bool waiting[WAITERS];
    uint64_t seed, completed, refused;
};

static uint32_t draw(struct world *w, uint32_t n)
{
    w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->seed >> 33) % n;
}

static int keep_move(struct world *w, const struct kv_transfer *t)
{
    for (int i = 0; i < MOVES; i++)
        if (!w->moving[i]) return w->move[i] = *t, w->moving[i] = true, i;
    ck_abort_msg("more movements than transactions");
}

static void finish_move(struct world *w, int i)
{
    struct kv_transfer_done done = copied(&w->move[i]), again;
    uint32_t fault = draw(w, 10);
    if (fault == 0) done.bytes /= 2;
    if (fault == 1) done.status = KV_IO_ERROR;
    if (fault == 2) {
        again = done;
        again.transfer.generation.n += 1000000;
        ck_assert_int_eq(kv_transfer_complete(dir, &again), KV_RECYCLED_DESTINATION);
    }
    enum kv_status s = kv_transfer_complete(dir, &done);
    s == KV_OK ? w->completed++ : w->refused++;
    w->moving[i] = false;
    if (fault == 3) ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_RECYCLED_DESTINATION);
}

static void take_lease(struct world *w, const struct kv_chunk_identity *id)
{
    uint32_t i = draw(w, LEASES);
    if (w->leased[i]) {
        ck_assert_int_eq(kv_directory_release(dir, &w->lease[i]), KV_OK);
        w->leased[i] = false;
    } else {
        w->leased[i] = kv_directory_lookup(dir, id, (enum kv_tier_id)draw(w, 3), &w->lease[i]) == KV_ANSWER_READY;
    }
}

static void start_promotion(struct world *w, const struct kv_chunk_identity *id)
{
    uint32_t slot = draw(w, WAITERS);
    struct kv_transfer t;
    bool join;
    if (w->waiting[slot]) {
        if (draw(w, 2)) ck_assert_int_eq(kv_waiter_cancel(dir, &w->waiter[slot]), KV_OK);
        else if (kv_waiter_result(dir, &w->waiter[slot]) == KV_CONFLICT) return;
        w->waiting[slot] = false;
        return;
    }
    enum kv_status s = kv_promote_begin(dir, id, draw(w, 2) ? KV_TIER_DEVICE : KV_TIER_HOST, NULL, &w->waiter[slot], &join, &t);
    if (s != KV_OK) return;
    w->waiting[slot] = true;
    if (!join) keep_move(w, &t);
}

static void one_operation(struct world *w)
{
    int n = (int)draw(w, CHUNKS);
    struct kv_chunk_identity id = identity(n);
    struct kv_transfer t;
    uint8_t p[BYTES];
    bool pending;
    uint32_t move = draw(w, MOVES);
    switch (draw(w, 12)) {
    case 0:
    case 1:
        payload(n, p);
        if (kv_directory_publish(dir, &id, (struct kv_cache_generation){1}, (enum kv_tier_id)draw(w, 3), p, BYTES, 50) == KV_OK) w->alive[n] = true;
        break;
    case 2:
    case 3: take_lease(w, &id); break;
    case 4:
    case 5: start_promotion(w, &id); break;
    case 6:
        if (kv_demote_begin(dir, &id, (enum kv_tier_id)draw(w, 2), (enum kv_tier_id)(1 + draw(w, 2)), &t) == KV_OK) keep_move(w, &t);
        break;
    case 7:
        if (kv_evict_one(dir, (enum kv_tier_id)draw(w, 3), &pending, &t) == KV_OK && pending) keep_move(w, &t);
        break;
    case 8:
        if (draw(w, 8) == 0 && kv_directory_remove(dir, &id) == KV_OK) w->alive[n] = false;
        break;
    case 9:
        if (draw(w, 50) == 0) {
            kv_directory_fence(dir);
            for (int i = 0; i < CHUNKS; i++) {
                struct kv_chunk_identity k = identity(i);
                for (int tier = 0; tier < 3; tier++) (void)kv_directory_reauthorise(dir, &k, (enum kv_tier_id)tier);
            }
        } else if (draw(w, 20) == 0) {
            kv_directory_set_cache_generation(dir, &id, (struct kv_cache_generation){draw(w, 3)});
        }
        break;
    default:
        if (w->moving[move]) finish_move(w, (int)move);
    }
}

static void random_run(enum kv_victim eviction, long operations, uint64_t seed)
{
    struct world w = {.seed = seed};
    open_dir(6, 10, 30, eviction);
    for (long i = 0; i < operations; i++) {
        one_operation(&w);
        invariants();
        if (i % 97) continue;
        for (int n = 0; n < CHUNKS; n++) {
            struct kv_chunk_identity id = identity(n);
            int tier = kv_directory_nearest(dir, &id);
            ck_assert_msg((tier >= 0) == w.alive[n], "operation %ld: chunk %d", i, n);
            if (tier >= 0) holds(n, (enum kv_tier_id)tier);
        }
    }
    ck_assert_uint_gt(w.completed, (uint64_t)operations / 100);
    ck_assert_uint_gt(w.refused, 0);
    close_dir();
}

START_TEST(random_operations)
{
    /* 5,000 a policy in the suite; KVASIR_SOAK asks for a hundred thousand. */
    random_run((enum kv_victim)_i, getenv("KVASIR_SOAK") ? 100000 : 5000, 12345 + (uint64_t)_i);
}
END_TEST

/* ---------------------------------------------------------------- copies on other threads */

static struct {
    pthread_mutex_t lock;
    struct kv_transfer todo[8];
    struct kv_transfer_done done[8];
    int n_todo, n_done;
    bool stop;
    pthread_cond_t change;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void *copier(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&queue.lock);
    for (;;) {
        while (!queue.n_todo && !queue.stop) pthread_cond_wait(&queue.change, &queue.lock);
        if (!queue.n_todo) break;
        struct kv_transfer t = queue.todo[--queue.n_todo];
        pthread_mutex_unlock(&queue.lock);
        struct kv_transfer_done done = copied(&t);
        pthread_mutex_lock(&queue.lock);
        queue.done[queue.n_done++] = done;
        pthread_cond_broadcast(&queue.change);
    }
    pthread_mutex_unlock(&queue.lock);
    return NULL;
}

START_TEST(transfer_threads)
{
    pthread_t thread[2];
    open_dir(6, 12, 0, KV_VICTIM_LRU);
    for (int n = 0; n < 12; n++) publish(n, KV_TIER_HOST);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, copier, NULL), 0);
    int running = 0, landed = 0;
    for (int n = 0; landed < 60;) {
        struct kv_chunk_identity id = identity(n % 12);
        struct kv_transfer t;
        struct kv_waiter w;
        bool join, pending;
        pthread_mutex_lock(&queue.lock);
        while (running == 4 && !queue.n_done) pthread_cond_wait(&queue.change, &queue.lock);
        while (queue.n_done) {
            struct kv_transfer_done done = queue.done[--queue.n_done];
            ck_assert_int_eq(kv_transfer_complete(dir, &done), KV_OK);
            running--, landed++;
        }
        pthread_mutex_unlock(&queue.lock);
        enum kv_status s = kv_promote_begin(dir, &id, KV_TIER_DEVICE, NULL, &w, &join, &t);
        if (s == KV_CAPACITY) {
            s = kv_evict_one(dir, KV_TIER_DEVICE, &pending, &t);
            ck_assert(s == KV_OK || s == KV_CAPACITY);
            ck_assert(!pending);
            continue;
        }
        n++;
        if (s != KV_OK || join) {
            if (s == KV_OK) kv_waiter_cancel(dir, &w);
            continue;
        }
        pthread_mutex_lock(&queue.lock);
        queue.todo[queue.n_todo++] = t;
        running++;
        pthread_cond_broadcast(&queue.change);
        pthread_mutex_unlock(&queue.lock);
        invariants();
    }
    pthread_mutex_lock(&queue.lock);
    queue.stop = true;
    pthread_cond_broadcast(&queue.change);
    pthread_mutex_unlock(&queue.lock);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    while (queue.n_done) ck_assert_int_eq(kv_transfer_complete(dir, &queue.done[--queue.n_done]), KV_OK);
    for (int n = 0; n < 12; n++) holds(n, KV_TIER_HOST);
    invariants();
    close_dir();
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
    tcase_add_test(t, policies_choose_differently);
    tcase_add_loop_test(t, random_operations, 0, KV_VICTIMS);
    tcase_add_test(t, transfer_threads);
    suite_add_tcase(s, t);
    return s;
}
