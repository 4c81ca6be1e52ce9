/* test_directory_random.c — the directory at random with faults, and with copies on other threads; invariants checked throughout. */
#include "tests/unit/residency/directory_runs.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>

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
    struct kv_transfer_done done = dir_copied(&w->move[i]), again;
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
    struct kv_chunk_identity id = dir_chunk(n);
    struct kv_transfer t;
    uint8_t p[BYTES];
    bool pending;
    uint32_t move = draw(w, MOVES);
    switch (draw(w, 12)) {
    case 0:
    case 1:
        dir_payload(n, p);
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
                struct kv_chunk_identity k = dir_chunk(i);
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
    dir_open(6, 10, 30, eviction);
    for (long i = 0; i < operations; i++) {
        one_operation(&w);
        dir_invariants();
        if (i % 97) continue;
        for (int n = 0; n < CHUNKS; n++) {
            struct kv_chunk_identity id = dir_chunk(n);
            int tier = kv_directory_nearest(dir, &id);
            ck_assert_msg((tier >= 0) == w.alive[n], "operation %ld: chunk %d", i, n);
            if (tier >= 0) dir_holds(n, (enum kv_tier_id)tier);
        }
    }
    ck_assert_uint_gt(w.completed, (uint64_t)operations / 100);
    ck_assert_uint_gt(w.refused, 0);
    dir_close();
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
        struct kv_transfer_done done = dir_copied(&t);
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
    dir_open(6, 12, 0, KV_VICTIM_LRU);
    for (int n = 0; n < 12; n++) dir_publish(n, KV_TIER_HOST);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, copier, NULL), 0);
    int running = 0, landed = 0;
    for (int n = 0; landed < 60;) {
        struct kv_chunk_identity id = dir_chunk(n % 12);
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
        dir_invariants();
    }
    pthread_mutex_lock(&queue.lock);
    queue.stop = true;
    pthread_cond_broadcast(&queue.change);
    pthread_mutex_unlock(&queue.lock);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    while (queue.n_done) ck_assert_int_eq(kv_transfer_complete(dir, &queue.done[--queue.n_done]), KV_OK);
    for (int n = 0; n < 12; n++) dir_holds(n, KV_TIER_HOST);
    dir_invariants();
    dir_close();
}
END_TEST

Suite *suite_directory_random(void);
Suite *suite_directory_random(void)
{
    Suite *s = suite_create("directory_random");
    TCase *t = tcase_create("directory_random");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, random_operations, 0, KV_VICTIMS);
    tcase_add_test(t, transfer_threads);
    suite_add_tcase(s, t);
    return s;
}
