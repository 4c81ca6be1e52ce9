/* tournament.c — see tournament.h. */
#include "runtime/service/engine.h"

#include "runtime/evaluate/contest.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST_SLOTS = 32, LEAST_SLOTS = 2, SALT = 0x746f7572, NICE = 19 };
#define SLOT_BYTES (UINT64_C(64) << 20) /* of all together, where more than the least fit */

struct slot {
    uint8_t *keys;  /* [blocks of max_rows][64][d_head] */
    float *q;       /* [group][d_head] */
    int32_t n_rows, n_prompt, layer;
    float scale;
};

struct kv_tournament {
    struct kv_sequence_shape shape;
    int32_t max_rows, group;
    size_t block_bytes;        /* of 64 keys of one head */
    pthread_mutex_t control;   /* one start or stop at a time; taken before lock */
    pthread_mutex_t lock;      /* all below, what is _Atomic excepted */
    pthread_cond_t wake;
    struct kv_contest *contest; /* NULL: there was none */
    _Atomic double fraction;
    _Atomic uint64_t missed;   /* sampled while somebody else held lock, for whom the decode thread does not wait */
    uint64_t limit, units, dropped;
    struct slot slot[MOST_SLOTS];
    int32_t slots, head, waiting; /* ring */
    pthread_t thread;
    bool threaded;
    _Atomic bool on, stop;     /* on: the decode thread may offer */
    const void **table;        /* [blocks of max_rows], of the thread */
};

static int32_t blocks_of(int32_t rows) { return (rows + KV_BLOCK_ROWS - 1) / KV_BLOCK_ROWS; }

enum kv_status kv_tournament_create(const struct kv_sequence_shape *shape, int32_t max_rows, struct kv_tournament **out, struct kv_error *err)
{
    struct kv_tournament *t = calloc(1, sizeof *t);
    if (!t) return kv_fail(err, KV_OUT_OF_MEMORY, "tournament", "no memory for its queue");
    t->shape = *shape;
    t->max_rows = max_rows;
    t->group = shape->n_q_heads / shape->n_kv_heads;
    t->block_bytes = (size_t)KV_BLOCK_ROWS * kv_type_row_bytes(KV_ROW_TYPE, shape->d_head);
    pthread_mutex_init(&t->control, NULL);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    *out = t;
    return KV_OK;
}

/* ---------------------------------------------------------------- offering: decode thread */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static bool sampled(const struct kv_tournament *t, uint64_t request, int32_t layer, int32_t kv_head, int32_t position)
{
    uint64_t h = mix(mix(mix(request + SALT) ^ (uint32_t)position) ^ ((uint64_t)(uint32_t)layer << 32 | (uint32_t)kv_head));
    return (double)(h >> 11) < t->fraction * 0x1p53;
}

static void copy(struct kv_tournament *t, struct slot *s, const struct kv_attention *a, const struct kv_step_item *it, int32_t layer)
{
    const struct kv_sequence *seq = it->owner;
    s->n_rows = it->position + 1;
    s->n_prompt = seq->n_prompt;
    s->layer = layer;
    s->scale = a->scale;
    memcpy(s->q, a->q, (size_t)t->group * (size_t)t->shape.d_head * sizeof *s->q);
    size_t row_bytes = t->block_bytes / KV_BLOCK_ROWS;
    for (int32_t b = 0; b < blocks_of(s->n_rows); b++) {
        int32_t rows = s->n_rows - b * KV_BLOCK_ROWS < KV_BLOCK_ROWS ? s->n_rows - b * KV_BLOCK_ROWS : KV_BLOCK_ROWS;
        memcpy(s->keys + (size_t)b * t->block_bytes, a->k[b], (size_t)rows * row_bytes);
    }
}

static void offer(struct kv_engine *e, struct kv_step_item *it, int32_t layer, int32_t kv_head)
{
    struct kv_tournament *t = e->tournament;
    struct slot *s = &t->slot[(t->head + t->waiting) % t->slots];
    if (t->waiting == t->slots || it->position >= t->max_rows) {
        t->dropped++;
        return;
    }
    struct kv_attention a = kv_attention_view(kv_transformer_attention(e->transformer), it, kv_head);
    copy(t, s, &a, it, layer);
    t->waiting++;
    pthread_cond_signal(&t->wake);
}

void kv_tournament_offer(struct kv_engine *e, struct kv_step_item *const *items, int32_t n_items, int32_t layer)
{
    struct kv_tournament *t = e->tournament;
    if (!atomic_load_explicit(&t->on, memory_order_relaxed)) return;
    bool mine = !pthread_mutex_trylock(&t->lock);
    for (int32_t i = 0; atomic_load(&t->on) && i < n_items; i++) {
        const struct kv_sequence *s = items[i]->owner;
        if (items[i]->n != 1 || items[i]->position < s->n_prompt || s->candidate || s->probe || s->recomputing || s->frontier != KV_UNTAINTED) continue;
        for (int32_t h = 0; h < t->shape.n_kv_heads; h++)
            if (sampled(t, s->id, layer, h, items[i]->position)) {
                if (mine) offer(e, items[i], layer, h);
                else t->missed++;
            }
    }
    if (mine) pthread_mutex_unlock(&t->lock);
}

/* ---------------------------------------------------------------- measuring: the tournament's thread */

static enum kv_status measure(struct kv_tournament *t, struct slot *s, struct kv_contest_unit *u)
{
    for (int32_t b = 0; b < blocks_of(s->n_rows); b++) t->table[b] = s->keys + (size_t)b * t->block_bytes;
    /* No selector's ranking reads values. */
    struct kv_rows rows = {.d_head = t->shape.d_head, .group = t->group, .n_rows = s->n_rows, .row_type = KV_ROW_TYPE, .k = t->table, .v = t->table, .scale = s->scale};
    *u = (struct kv_contest_unit){.rows = &rows, .q = s->q, .layer = s->layer, .n_prompt = s->n_prompt};
    return kv_contest_measure(t->contest, u, &t->stop);
}

static void *run(void *arg)
{
    struct kv_tournament *t = arg;
    struct kv_contest_unit u;
    kv_numerics_enter();
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* of this thread alone; a busy core gives it about a seventieth */
    pthread_mutex_lock(&t->lock);
    while (!atomic_load(&t->stop) && t->units < t->limit) {
        if (!t->waiting) {
            pthread_cond_wait(&t->wake, &t->lock);
            continue;
        }
        struct slot *s = &t->slot[t->head];
        pthread_mutex_unlock(&t->lock); /* a waiting slot is nobody else's */
        enum kv_status status = measure(t, s, &u);
        pthread_mutex_lock(&t->lock);
        t->head = (t->head + 1) % t->slots;
        t->waiting--;
        if (status == KV_OK) kv_contest_add(t->contest, &u), t->units++;
        else if (status != KV_CANCELLED) t->dropped++;
    }
    atomic_store(&t->on, false);
    pthread_mutex_unlock(&t->lock);
    kv_contest_rest(t->contest); /* indexes over the longest context are large */
    return NULL;
}

/* ---------------------------------------------------------------- start and stop: any thread */

static void free_slots(struct kv_tournament *t)
{
    for (int i = 0; i < MOST_SLOTS; i++) {
        free(t->slot[i].keys);
        free(t->slot[i].q);
        t->slot[i] = (struct slot){0};
    }
    free(t->table);
    t->table = NULL;
}

static bool make_slots(struct kv_tournament *t)
{
    size_t blocks = (size_t)blocks_of(t->max_rows);
    t->table = calloc(blocks, sizeof *t->table);
    bool ok = t->table != NULL;
    uint64_t fit = SLOT_BYTES / (blocks * t->block_bytes);
    t->slots = fit < LEAST_SLOTS ? LEAST_SLOTS : fit > MOST_SLOTS ? MOST_SLOTS : (int32_t)fit;
    for (int i = 0; ok && i < t->slots; i++) {
        t->slot[i].keys = malloc(blocks * t->block_bytes);
        t->slot[i].q = calloc((size_t)t->group * (size_t)t->shape.d_head, sizeof(float));
        ok = t->slot[i].keys && t->slot[i].q;
    }
    return ok;
}

/* Whoever holds control. */
static void halt(struct kv_tournament *t)
{
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->on, false);
    atomic_store(&t->stop, true);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    if (t->threaded) pthread_join(t->thread, NULL);
    t->threaded = false;
    free_slots(t);
}

static bool start_thread(struct kv_tournament *t)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a rollback's signal is for others */
    t->threaded = pthread_create(&t->thread, NULL, run, t) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return t->threaded;
}

enum kv_status kv_engine_tournament_start(struct kv_engine *e, const struct kv_tournament_config *c, struct kv_error *err)
{
    struct kv_tournament *t = e->tournament;
    struct kv_contest *contest = NULL;
    pthread_mutex_lock(&t->control);
    enum kv_status s = atomic_load(&t->on) ? kv_fail(err, KV_CONFLICT, "tournament", "a tournament is running already") : KV_OK;
    if (s == KV_CONFLICT) kv_hint(err, "stop it first; what it found is lost then");
    if (s == KV_OK) s = kv_contest_create(c, t->shape.d_head, t->group, t->max_rows, &contest, err);
    if (s == KV_OK) {
        halt(t);
        kv_contest_destroy(t->contest);
        t->contest = contest;
        t->fraction = c->fraction;
        t->limit = c->units;
        t->units = t->dropped = t->missed = 0;
        t->head = t->waiting = 0;
        atomic_store(&t->stop, false);
        bool ok = make_slots(t) && start_thread(t);
        if (!ok) free_slots(t), s = kv_fail(err, KV_OUT_OF_MEMORY, "tournament", "no memory for units of %d rows", t->max_rows);
        atomic_store(&t->on, ok);
    }
    pthread_mutex_unlock(&t->control);
    return s;
}

enum kv_status kv_engine_tournament_stop(struct kv_engine *e)
{
    struct kv_tournament *t = e->tournament;
    pthread_mutex_lock(&t->control);
    halt(t);
    enum kv_status s = t->contest ? KV_OK : KV_NOT_FOUND;
    pthread_mutex_unlock(&t->control);
    return s;
}

bool kv_engine_tournament(struct kv_engine *e, struct kv_tournament_view *out)
{
    struct kv_tournament *t = e->tournament;
    pthread_mutex_lock(&t->control); /* no contest is ended meanwhile */
    pthread_mutex_lock(&t->lock);
    bool any = t->contest != NULL;
    if (any) {
        kv_contest_view(t->contest, out);
        out->running = atomic_load(&t->on);
        out->dropped = t->dropped + t->missed;
    }
    pthread_mutex_unlock(&t->lock);
    pthread_mutex_unlock(&t->control);
    return any;
}

void kv_tournament_destroy(struct kv_tournament *t)
{
    if (!t) return;
    halt(t);
    kv_contest_destroy(t->contest);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->control);
    free(t);
}
