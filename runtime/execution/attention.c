/* attention.c — see attention.h. A decode item is cut into subtrees of one level; a prefill item into tiles of tokens, each a
 * whole tree. */
#include "runtime/execution/attention.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TILE_QUERIES = 48, MIN_JOB_BLOCKS = 8, JOBS_PER_WORKER = 4, MAX_LEVEL = 26, SPINS = 4000,
       INLINE_POINTERS = 1024 /* below this, waking the workers costs more than filling the pointers */ };

struct job {
    struct kv_step_item *item;
    int32_t head, token, n_tokens; /* query tokens [token, token + n_tokens) of the item */
    int32_t level, index;          /* subtree */
    int32_t state;                 /* place in `states`, or -1: the whole tree, finished by the job itself */
    int32_t fold;                  /* the fold that takes the state */
};
struct fold {
    struct kv_step_item *item;
    int32_t head, state, n;
    _Atomic int32_t left; /* jobs to come: the last one folds */
};

struct worker {
    float *state, *scratch; /* of one tile */
    int32_t *visible;       /* [tile queries] */
    const void **k, **v;    /* [max_blocks] for kv_attention_once */
};

struct kv_attention_runner {
    struct kv_attention_shape s;
    const struct kv_kernels *kernels;
    struct kv_workers *workers;
    int32_t group, tile_tokens, max_jobs, max_folds, max_states;
    float *queries, *output;
    float *m, *l;               /* [max_rows][H_q] of the states that output comes from */
    const void **k, **v;        /* [max_items][H_kv][max_blocks] */
    struct kv_head_plan *plans; /* [max_items][H_kv] */
    _Atomic uint8_t *planned;   /* likewise: in the call in work */
    struct job *jobs;
    struct fold *folds;
    float *state_floats;        /* [max_states] of one decode query group */
    size_t state_stride;        /* floats */
    struct kv_states *states;   /* [max_states] */
    struct worker *worker;
    int32_t n_jobs, n_folds, n_states;
    /* The call in work. */
    struct kv_step_item *const *items;
    int32_t n_items, layer, n_plans; /* n_plans: left to the workers */
    kv_plan_fn *plan;
    void *plan_ctx;
};

int64_t kv_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static size_t padded(size_t floats)
{
    return (floats + 15) & ~(size_t)15;
}

static size_t state_floats(int32_t n_q, int32_t d_head)
{
    return 2 * padded((size_t)n_q) + padded((size_t)n_q * (size_t)d_head);
}

static struct kv_states state_at(float *base, int32_t n_q)
{
    size_t n = padded((size_t)n_q);
    return (struct kv_states){.m = base, .l = base + n, .u = base + 2 * n};
}

static int32_t blocks_for(int32_t rows)
{
    return rows / KV_BLOCK_ROWS + (rows % KV_BLOCK_ROWS != 0);
}

static int32_t level_over(int32_t n_blocks)
{
    int32_t level = 0;
    while (level < MAX_LEVEL && (1 << level) < n_blocks) level++;
    return level;
}

static void *aligned(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - 64) return NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, bytes ? bytes : 64);
    if (p) memset(p, 0, bytes);
    return p;
}

enum kv_status kv_attention_create(const struct kv_attention_shape *s, struct kv_workers *workers, struct kv_attention_runner **out)
{
    *out = NULL;
    struct kv_attention_runner *r = calloc(1, sizeof *r);
    if (!r) return KV_OUT_OF_MEMORY;
    int32_t n_workers = kv_workers_count(workers);
    size_t items = (size_t)s->max_items, heads = (size_t)s->n_kv_heads, rows = (size_t)s->max_rows;
    r->s = *s;
    r->kernels = kv_kernels();
    r->workers = workers;
    r->group = s->n_q_heads / s->n_kv_heads;
    r->tile_tokens = r->group < TILE_QUERIES ? TILE_QUERIES / r->group : 1;
    /* Every item has a last, shorter tile or subtree; rounding a level down at most doubles the jobs. */
    r->max_states = 4 * JOBS_PER_WORKER * n_workers + 2 * s->max_items * s->n_kv_heads;
    r->max_jobs = r->max_states + (s->max_rows / r->tile_tokens + s->max_items) * s->n_kv_heads;
    r->max_folds = s->max_items * s->n_kv_heads;
    r->state_stride = state_floats(r->group, s->d_head);
    r->queries = aligned(rows * (size_t)s->n_q_heads * (size_t)s->d_head, sizeof(float));
    r->output = aligned(rows * (size_t)s->n_q_heads * (size_t)s->d_head, sizeof(float));
    r->m = aligned(rows * (size_t)s->n_q_heads, sizeof(float));
    r->l = aligned(rows * (size_t)s->n_q_heads, sizeof(float));
    r->k = aligned(items * heads * (size_t)s->max_blocks, sizeof *r->k);
    r->v = aligned(items * heads * (size_t)s->max_blocks, sizeof *r->v);
    r->plans = aligned(items * heads, sizeof *r->plans);
    r->planned = aligned(items * heads, sizeof *r->planned);
    r->jobs = aligned((size_t)r->max_jobs, sizeof *r->jobs);
    r->folds = aligned((size_t)r->max_folds, sizeof *r->folds);
    r->state_floats = aligned((size_t)r->max_states * r->state_stride, sizeof(float));
    r->states = aligned((size_t)r->max_states, sizeof *r->states);
    r->worker = aligned((size_t)n_workers, sizeof *r->worker);
    bool ok = r->queries && r->output && r->m && r->l && r->k && r->v && r->plans && r->planned && r->jobs && r->folds && r->state_floats && r->states && r->worker;
    int32_t n_q = r->tile_tokens * r->group, top = level_over(s->max_blocks);
    for (int32_t i = 0; ok && i < n_workers; i++) {
        struct worker *w = &r->worker[i];
        w->state = aligned(state_floats(n_q, s->d_head), sizeof(float));
        w->scratch = aligned(kv_attend_scratch_floats(n_q, s->d_head, top), sizeof(float));
        w->visible = aligned((size_t)n_q, sizeof *w->visible);
        w->k = aligned((size_t)s->max_blocks, sizeof *w->k);
        w->v = aligned((size_t)s->max_blocks, sizeof *w->v);
        ok = w->state && w->scratch && w->visible && w->k && w->v;
    }
    if (!ok) return kv_attention_destroy(r), KV_OUT_OF_MEMORY;
    for (int32_t i = 0; i < r->max_states; i++) r->states[i] = state_at(r->state_floats + (size_t)i * r->state_stride, r->group);
    *out = r;
    return KV_OK;
}

void kv_attention_destroy(struct kv_attention_runner *r)
{
    if (!r) return;
    for (int32_t i = 0; r->worker && i < kv_workers_count(r->workers); i++) {
        struct worker *w = &r->worker[i];
        free(w->state);
        free(w->scratch);
        free(w->visible);
        free(w->k);
        free(w->v);
    }
    free(r->queries);
    free(r->output);
    free(r->m);
    free(r->l);
    free(r->k);
    free(r->v);
    free(r->plans);
    free(r->planned);
    free(r->jobs);
    free(r->folds);
    free(r->state_floats);
    free(r->states);
    free(r->worker);
    free(r);
}

float *kv_attention_queries(struct kv_attention_runner *r)
{
    return r->queries;
}

float *kv_attention_output(const struct kv_attention_runner *r)
{
    return r->output;
}

/* ---------------------------------------------------------------- one head of one item */

static size_t head_index(const struct kv_attention_runner *r, const struct kv_step_item *it, int32_t head)
{
    return (size_t)it->index * (size_t)r->s.n_kv_heads + (size_t)head;
}

/* Queries of tokens [token, token + n): visible is filled for them. */
static struct kv_attention describe(const struct kv_attention_runner *r, const struct kv_step_item *it, int32_t head, int32_t token,
                                    int32_t n, int32_t *visible)
{
    size_t d = (size_t)r->s.d_head, g = (size_t)r->group, h = head_index(r, it, head);
    for (int32_t t = 0; t < n; t++)
        for (int32_t j = 0; j < r->group; j++) visible[t * r->group + j] = it->position + token + t + 1;
    return (struct kv_attention){
        .d_head = r->s.d_head, .n_q = n * r->group, .q_stride = d, .row_type = it->cache->row_type, .scale = r->s.scale,
        .q = r->queries + (size_t)it->row * (size_t)r->s.n_q_heads * d + ((size_t)head * (size_t)it->n + (size_t)token) * g * d,
        .n_blocks = blocks_for(it->position + token + n),
        .k = r->k + h * (size_t)r->s.max_blocks, .v = r->v + h * (size_t)r->s.max_blocks, .visible = visible};
}

static void finish(const struct kv_attention_runner *r, const struct kv_step_item *it, int32_t head, int32_t token, int32_t n,
                   struct kv_states s)
{
    size_t d = (size_t)r->s.d_head, g = (size_t)r->group;
    for (int32_t t = 0; t < n; t++) {
        size_t q = (size_t)t * g;
        struct kv_states one = {.m = s.m + q, .l = s.l + q, .u = s.u + q * d};
        size_t at = (size_t)(it->row + token + t) * (size_t)r->s.n_q_heads + (size_t)head * g;
        r->kernels->finish(r->group, r->s.d_head, one, r->output + at * d, d);
        memcpy(r->m + at, one.m, g * sizeof *one.m);
        memcpy(r->l + at, one.l, g * sizeof *one.l);
    }
}

static void plan_head(struct kv_attention_runner *r, int32_t worker, int32_t i)
{
    struct kv_step_item *it = r->items[i / r->s.n_kv_heads];
    int32_t head = i % r->s.n_kv_heads;
    int64_t began = kv_now_ns();
    struct kv_head_plan *p = &r->plans[head_index(r, it, head)];
    *p = (struct kv_head_plan){0};
    int32_t *visible = r->worker[worker].visible;
    struct kv_attention a = describe(r, it, head, 0, it->n == 1, visible);
    a.n_blocks = blocks_for(it->position + it->n);
    const void **k = r->k + head_index(r, it, head) * (size_t)r->s.max_blocks, **v = r->v + (k - r->k);
    for (int32_t b = 0; b < a.n_blocks; b++) {
        k[b] = kv_slab_k(it->cache, it->cache->read[b], head);
        v[b] = kv_slab_v(it->cache, it->cache->read[b], head);
    }
    if (it->selects && r->plan) r->plan(r->plan_ctx, worker, it, r->layer, head, &a, p);
    atomic_store_explicit(&r->planned[head_index(r, it, head)], 1, memory_order_release);
    if (p->output)
        memcpy(r->output + ((size_t)it->row * (size_t)r->s.n_q_heads + (size_t)head * (size_t)r->group) * (size_t)r->s.d_head,
               p->output, (size_t)r->group * (size_t)r->s.d_head * sizeof(float));
    atomic_fetch_add_explicit(&it->own_ns, kv_now_ns() - began, memory_order_relaxed);
}

/* Plans are claimed before all jobs, so that whoever makes this one is running, or will be. */
static const struct kv_head_plan *plan_of(struct kv_attention_runner *r, const struct job *j)
{
    size_t h = head_index(r, j->item, j->head);
    for (int32_t spins = 0; !atomic_load_explicit(&r->planned[h], memory_order_acquire); spins++)
        if (spins >= SPINS) sched_yield();
    return &r->plans[h];
}

static void attend(struct kv_attention_runner *r, int32_t worker, struct job *j)
{
    const struct kv_head_plan *p = plan_of(r, j);
    if (p->output) return;
    struct worker *w = &r->worker[worker];
    int64_t began = kv_now_ns();
    struct kv_attention a = describe(r, j->item, j->head, j->token, j->n_tokens, w->visible);
    a.support = p->support;
    struct kv_states s = j->state < 0 ? state_at(w->state, a.n_q) : r->states[j->state];
    kv_attend_subtree(r->kernels, &a, j->level, j->index, s, w->scratch);
    if (j->state < 0) finish(r, j->item, j->head, j->token, j->n_tokens, s);
    else {
        struct fold *f = &r->folds[j->fold];
        if (atomic_fetch_sub_explicit(&f->left, 1, memory_order_acq_rel) == 1) {
            kv_fold_subtrees(r->kernels, r->group, r->s.d_head, r->states + f->state, f->n);
            finish(r, f->item, f->head, 0, 1, r->states[f->state]);
        }
    }
    atomic_fetch_add_explicit(&j->item->own_ns, kv_now_ns() - began, memory_order_relaxed);
}

static void plan_or_attend(void *ctx, int32_t worker, int32_t i)
{
    struct kv_attention_runner *r = ctx;
    if (i < r->n_plans) plan_head(r, worker, i);
    else attend(r, worker, &r->jobs[i - r->n_plans]);
}

/* ---------------------------------------------------------------- cutting */

static void cut_decode(struct kv_attention_runner *r, struct kv_step_item *it, int32_t head, int32_t level)
{
    int32_t blocks = blocks_for(it->position + 1);
    int32_t n = (int32_t)(((int64_t)blocks + (1 << level) - 1) >> level);
    if (n > 1 && n <= r->max_states - r->n_states) {
        for (int32_t i = 0; i < n; i++) r->jobs[r->n_jobs++] = (struct job){it, head, 0, 1, level, i, r->n_states + i, r->n_folds};
        r->folds[r->n_folds++] = (struct fold){it, head, r->n_states, n, n};
        r->n_states += n;
    } else {
        r->jobs[r->n_jobs++] = (struct job){it, head, 0, 1, level_over(blocks), 0, -1, -1};
    }
}

/* selects: which subtrees hold the rows is not known yet, so that equal ones are cut smaller. */
static void cut(struct kv_attention_runner *r, bool selects)
{
    int64_t blocks = 0;
    for (int32_t i = 0; i < r->n_items; i++)
        if (r->items[i]->n == 1) blocks += (int64_t)blocks_for(r->items[i]->position + 1) * r->s.n_kv_heads;
    int64_t wanted = blocks / ((selects ? 2 : 1) * JOBS_PER_WORKER * kv_workers_count(r->workers));
    int32_t level = level_over((int32_t)(wanted < MIN_JOB_BLOCKS ? MIN_JOB_BLOCKS : wanted));
    if (kv_workers_count(r->workers) == 1) level = MAX_LEVEL;
    r->n_jobs = r->n_folds = r->n_states = 0;
    for (int32_t i = 0; i < r->n_items; i++)
        for (int32_t h = 0; h < r->s.n_kv_heads; h++) {
            struct kv_step_item *it = r->items[i];
            if (it->n == 1) {
                cut_decode(r, it, h, level);
                continue;
            }
            for (int32_t t = 0; t < it->n; t += r->tile_tokens) {
                int32_t n = it->n - t < r->tile_tokens ? it->n - t : r->tile_tokens;
                r->jobs[r->n_jobs++] = (struct job){it, h, t, n, level_over(blocks_for(it->position + t + n)), 0, -1, -1};
            }
        }
}

void kv_attention_run(struct kv_attention_runner *r, struct kv_step_item *const *items, int32_t n_items, int32_t layer,
                      kv_plan_fn *plan, void *plan_ctx)
{
    r->items = items;
    r->n_items = n_items;
    r->layer = layer;
    r->plan = plan;
    r->plan_ctx = plan_ctx;
    bool selects = false;
    int64_t pointers = 0;
    for (int32_t i = 0; i < n_items; i++) {
        selects |= items[i]->selects;
        pointers += (int64_t)blocks_for(items[i]->position + items[i]->n) * r->s.n_kv_heads;
    }
    int32_t n_heads = n_items * r->s.n_kv_heads;
    cut(r, selects);
    for (int32_t i = 0; i < n_heads; i++) atomic_store_explicit(&r->planned[head_index(r, items[i / r->s.n_kv_heads], i % r->s.n_kv_heads)], 0, memory_order_relaxed);
    r->n_plans = selects || pointers > INLINE_POINTERS ? n_heads : 0;
    for (int32_t i = 0; !r->n_plans && i < n_heads; i++) plan_head(r, 0, i);
    kv_workers_run(r->workers, plan_or_attend, r, r->n_plans + r->n_jobs);
}

/* ---------------------------------------------------------------- for evaluation */

struct kv_attention kv_attention_view(const struct kv_attention_runner *r, const struct kv_step_item *it, int32_t head)
{
    struct kv_attention a = describe(r, it, head, 0, 0, NULL);
    a.n_q = r->group;
    a.n_blocks = blocks_for(it->position + it->n);
    a.support = r->plans[head_index(r, it, head)].support;
    return a;
}

struct kv_states kv_attention_state(const struct kv_attention_runner *r, const struct kv_step_item *it, int32_t head)
{
    size_t at = (size_t)it->row * (size_t)r->s.n_q_heads + (size_t)head * (size_t)r->group;
    return (struct kv_states){.m = r->m + at, .l = r->l + at, .u = r->output + at * (size_t)r->s.d_head};
}

void kv_attention_once(struct kv_attention_runner *r, int32_t worker, const struct kv_step_item *it, int32_t head,
                       const uint8_t *const *blocks, float *out)
{
    struct worker *w = &r->worker[worker];
    struct kv_attention a = describe(r, it, head, 0, 1, w->visible);
    for (int32_t b = 0; b < a.n_blocks; b++) {
        w->k[b] = kv_slab_k(it->cache, blocks[b], head);
        w->v[b] = kv_slab_v(it->cache, blocks[b], head);
    }
    a.k = w->k;
    a.v = w->v;
    struct kv_states s = state_at(w->state, a.n_q);
    kv_attend_subtree(r->kernels, &a, level_over(a.n_blocks), 0, s, w->scratch);
    r->kernels->finish(r->group, r->s.d_head, s, out, (size_t)r->s.d_head);
}
