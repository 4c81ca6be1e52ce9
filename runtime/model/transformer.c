/* transformer.c — see transformer.h. The forward pass reads top to bottom in kv_transformer_step. */
#include "runtime/model/transformer.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_PER_JOB = 8, LOGIT_ROWS = 16, JOBS_PER_WORKER = 8, MIN_MATRIX_ROWS = 32, FEW_TOKENS = 8 };

/* Activations of all rows in the two forms products read. */
struct activations {
    float *f32;
    int8_t *q;
    float *d;
    int32_t *sum;
};

struct kv_transformer {
    const struct kv_weights *w;
    const struct kv_kernels *k;
    struct kv_workers *workers;
    struct kv_placement_ctx *placements;
    struct kv_attention_runner *attention;
    const struct kv_placement *resident;
    int32_t max_rows, max_items, max_logits;
    float *x;              /* [rows][d_model] the residual stream */
    struct activations in; /* [rows][d_model], [H_q d_h] or [d_ff]: what the next products read */
    float *q, *key, *value; /* [rows][H_q d_h], [rows][H_kv d_h] twice */
    float *gate, *up;      /* [rows][d_ff] */
    float *out;            /* [rows][d_model] a product to be added to x */
    float *cos_sin;        /* [rows][d_rot] */
    float *logits, *every; /* [max_logits][n_vocab], [LOGIT_ROWS][n_vocab] */
    int32_t *item_of;      /* [rows] */
    int32_t *picked;       /* [rows] rows whose logits are wanted */
    struct kv_step_item **batch; /* [max_items] */
    float *foretold[2];    /* [max_items][H_q d_h] queries of even and of odd layers */
    int32_t *rehearsing;   /* [max_items] rows */
    /* The step in work. */
    struct kv_step_item *items;
    int32_t n_rows, n_items, n_rehearsing;
};

/* ---------------------------------------------------------------- buffers */

static void *zeroed(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - 64) return NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, bytes ? bytes : 64);
    if (p) memset(p, 0, bytes);
    return p;
}

static int32_t widest_input(const struct kv_weights *w)
{
    int32_t d = w->d_model > w->d_ff ? w->d_model : w->d_ff, q = w->n_q_heads * w->d_head;
    return ((d > q ? d : q) + 31) & ~31;
}

enum kv_status kv_transformer_create(const struct kv_weights *w, struct kv_workers *workers, struct kv_placement_ctx *placements,
                                     int32_t max_rows, int32_t max_items, int32_t max_context, struct kv_transformer **out)
{
    *out = NULL;
    if (w->d_head > KV_MAX_D_HEAD || w->n_q_heads % w->n_kv_heads) return KV_UNSUPPORTED;
    struct kv_transformer *t = calloc(1, sizeof *t);
    if (!t) return KV_OUT_OF_MEMORY;
    *t = (struct kv_transformer){.w = w, .k = kv_kernels(), .workers = workers, .placements = placements, .max_rows = max_rows,
                                 .max_items = max_items, .max_logits = max_items, .resident = kv_placement_find("resident")};
    size_t rows = (size_t)max_rows, d = (size_t)w->d_model, wide = (size_t)widest_input(w), vocab = (size_t)w->n_vocab;
    size_t hq = (size_t)w->n_q_heads * (size_t)w->d_head, hkv = (size_t)w->n_kv_heads * (size_t)w->d_head;
    t->x = zeroed(rows * d, sizeof(float));
    t->out = zeroed(rows * d, sizeof(float));
    t->in = (struct activations){zeroed(rows * wide, sizeof(float)), zeroed(rows * wide, 1), zeroed(rows * wide / 32, sizeof(float)),
                                 zeroed(rows * wide / 32, sizeof(int32_t))};
    t->q = zeroed(rows * hq, sizeof(float));
    t->key = zeroed(rows * hkv, sizeof(float));
    t->value = zeroed(rows * hkv, sizeof(float));
    t->gate = zeroed(rows * (size_t)w->d_ff, sizeof(float));
    t->up = zeroed(rows * (size_t)w->d_ff, sizeof(float));
    t->cos_sin = zeroed(rows * (size_t)w->d_rot, sizeof(float));
    t->logits = zeroed((size_t)max_items * vocab, sizeof(float));
    t->every = zeroed(LOGIT_ROWS * vocab, sizeof(float));
    t->item_of = zeroed(rows, sizeof *t->item_of);
    t->picked = zeroed(rows, sizeof *t->picked);
    t->batch = zeroed((size_t)max_items, sizeof *t->batch);
    for (int i = 0; i < 2; i++) t->foretold[i] = zeroed((size_t)max_items * hq, sizeof(float));
    t->rehearsing = zeroed((size_t)max_items, sizeof *t->rehearsing);
    struct kv_attention_shape shape = {.n_q_heads = w->n_q_heads, .n_kv_heads = w->n_kv_heads, .d_head = w->d_head,
                                       .scale = w->attention_scale, .max_rows = max_rows, .max_items = max_items,
                                       .max_blocks = (max_context + KV_BLOCK_ROWS - 1) / KV_BLOCK_ROWS};
    enum kv_status s = kv_attention_create(&shape, workers, &t->attention);
    bool ok = t->x && t->out && t->in.f32 && t->in.q && t->in.d && t->in.sum && t->q && t->key && t->value && t->gate && t->up &&
              t->cos_sin && t->logits && t->every && t->item_of && t->picked && t->batch && t->resident && t->foretold[0] && t->foretold[1] && t->rehearsing;
    if (s != KV_OK || !ok) return kv_transformer_destroy(t), KV_OUT_OF_MEMORY;
    *out = t;
    return KV_OK;
}

void kv_transformer_destroy(struct kv_transformer *t)
{
    if (!t) return;
    kv_attention_destroy(t->attention);
    void *all[] = {t->x, t->out, t->in.f32, t->in.q, t->in.d, t->in.sum, t->q, t->key, t->value, t->gate, t->up, t->cos_sin,
                   t->logits, t->every, t->item_of, t->picked, t->batch, t->foretold[0], t->foretold[1], t->rehearsing};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(t);
}

float *kv_transformer_logits(struct kv_transformer *t, int32_t logits_row)
{
    return t->logits + (size_t)logits_row * (size_t)t->w->n_vocab;
}

struct kv_attention_runner *kv_transformer_attention(struct kv_transformer *t)
{
    return t->attention;
}

/* ---------------------------------------------------------------- rows in parallel */

typedef void row_fn(struct kv_transformer *t, const void *arg, int32_t row);
struct row_span {
    struct kv_transformer *t;
    row_fn *fn;
    const void *arg;
    int32_t n;
};

static void run_rows(void *ctx, int32_t worker, int32_t job)
{
    (void)worker;
    struct row_span *s = ctx;
    for (int32_t r = job * ROWS_PER_JOB; r < s->n && r < (job + 1) * ROWS_PER_JOB; r++) s->fn(s->t, s->arg, r);
}

static void each_row(struct kv_transformer *t, int32_t n, row_fn *fn, const void *arg)
{
    struct row_span s = {t, fn, arg, n};
    kv_workers_run(t->workers, run_rows, &s, (n + ROWS_PER_JOB - 1) / ROWS_PER_JOB);
}

/* ---------------------------------------------------------------- products in parallel */

/* Rows [row, row + n) of f32 [rows][cols], and where their quantised form lies. */
static struct kv_act act_rows(const struct activations *a, const float *f32, int32_t cols, int32_t row, int32_t n)
{
    size_t wide = ((size_t)cols + 31) & ~(size_t)31, r = (size_t)row;
    return (struct kv_act){.n = n, .cols = cols, .f32 = f32 + r * (size_t)cols, .q = a->q + r * wide, .d = a->d + r * (wide / 32),
                           .sum = a->sum + r * (wide / 32)};
}

struct product {
    const struct kv_mat *w;
    float *y; /* [rows][w->rows] */
};
struct products {
    struct kv_transformer *t;
    const struct product *p;
    const float *f32;
    int32_t n_products, n_rows, rows_per_job;
};

static void run_product(void *ctx, int32_t worker, int32_t job)
{
    (void)worker;
    struct products *s = ctx;
    for (int32_t i = 0; i < s->n_products; i++) {
        const struct kv_mat *w = s->p[i].w;
        int32_t jobs = (w->rows + s->rows_per_job - 1) / s->rows_per_job;
        if (job >= jobs) {
            job -= jobs;
            continue;
        }
        int32_t from = job * s->rows_per_job, to = from + s->rows_per_job < w->rows ? from + s->rows_per_job : w->rows;
        struct kv_act a = act_rows(&s->t->in, s->f32, w->cols, 0, s->n_rows);
        s->t->k->matmul(w, &a, from, to, s->p[i].y, (size_t)w->rows);
        return;
    }
}

/* Products of the same n input rows with several matrices of one width. */
static void multiply(struct kv_transformer *t, const float *f32, int32_t n, const struct product *p, int32_t n_products)
{
    int32_t total = 0, jobs = 0;
    for (int32_t i = 0; i < n_products; i++) total += p[i].w->rows;
    int32_t per = total / (kv_workers_count(t->workers) * JOBS_PER_WORKER);
    /* Of many tokens kernels take rows by 32: a job that ends on half of that computes the other half in vain. */
    per = per < MIN_MATRIX_ROWS ? MIN_MATRIX_ROWS : n > FEW_TOKENS ? per / 32 * 32 : (per + 15) / 16 * 16;
    for (int32_t i = 0; i < n_products; i++) jobs += (p[i].w->rows + per - 1) / per;
    struct products s = {t, p, f32, n_products, n, per};
    kv_workers_run(t->workers, run_product, &s, jobs);
}

static void quantise_row(struct kv_transformer *t, const float *f32, int32_t cols, int32_t row)
{
    struct kv_act a = act_rows(&t->in, f32, cols, row, 1);
    t->k->quantise(&a);
}

/* ---------------------------------------------------------------- traces */

const char *kv_operation_name(enum kv_operation o)
{
    static const char *const names[] = {
#define KV_OPERATION(name) #name,
        KV_OPERATIONS(KV_OPERATION)
#undef KV_OPERATION
    };
    return names[o];
}

static void trace(struct kv_transformer *t, const struct kv_step_hooks *hooks, int32_t layer, enum kv_operation o, float *x, int32_t cols)
{
    for (int32_t row = 0; hooks->trace && row < t->n_rows; row++) {
        const struct kv_step_item *it = &t->items[t->item_of[row]];
        hooks->trace(hooks->ctx, it, row - it->row, layer, o, x + (size_t)row * (size_t)cols, cols);
    }
}

/* ---------------------------------------------------------------- what happens to each row */

static void embed(struct kv_transformer *t, const void *arg, int32_t row)
{
    (void)arg;
    const struct kv_weights *w = t->w;
    const struct kv_step_item *it = &t->items[t->item_of[row]];
    size_t row_bytes = kv_type_row_bytes(w->embedding_type, w->d_model);
    float *x = t->x + (size_t)row * (size_t)w->d_model;
    kv_dequantise_row(w->embedding_type, (const uint8_t *)w->embedding + (size_t)it->tokens[row - it->row] * row_bytes, w->d_model, x);
    if (w->embedding_scale != 1.0f)
        for (int32_t i = 0; i < w->d_model; i++) x[i] *= w->embedding_scale;
    kv_rope_table(w->inv_freq, w->d_rot, it->position + (row - it->row), 1, w->rope_mscale, t->cos_sin + (size_t)row * (size_t)w->d_rot);
}

struct norm {
    const float *weight;
    bool quantise;
};

static void normalise(struct kv_transformer *t, const void *arg, int32_t row)
{
    const struct norm *n = arg;
    size_t d = (size_t)t->w->d_model;
    t->k->rmsnorm(t->x + (size_t)row * d, n->weight, t->w->d_model, t->w->norm_eps, t->in.f32 + (size_t)row * d);
    if (n->quantise) quantise_row(t, t->in.f32, t->w->d_model, row);
}

/* Bias, norm per head and rotation of `heads` heads at x. */
static void shape_heads(struct kv_transformer *t, float *x, int32_t heads, const float *bias, const float *norm, bool rope,
                        const float *cos_sin)
{
    int32_t d = t->w->d_head;
    if (bias) t->k->add(x, bias, heads * d, x);
    for (int32_t h = 0; norm && h < heads; h++) {
        float normed[KV_MAX_D_HEAD];
        t->k->rmsnorm(x + (size_t)h * (size_t)d, norm, d, t->w->norm_eps, normed);
        memcpy(x + (size_t)h * (size_t)d, normed, (size_t)d * sizeof *x);
    }
    if (rope) t->k->rope(x, heads, d, t->w->d_rot, cos_sin, t->w->rope_layout);
}

/* ---------------------------------------------------------------- queries foretold (InfiniGen, 0x06) */

static void gather_rehearsing(struct kv_transformer *t, const void *arg, int32_t i)
{
    const struct norm *n = arg;
    size_t d = (size_t)t->w->d_model;
    t->k->rmsnorm(t->x + (size_t)t->rehearsing[i] * d, n->weight, t->w->d_model, t->w->norm_eps, t->in.f32 + (size_t)i * d);
    if (n->quantise) quantise_row(t, t->in.f32, t->w->d_model, i);
}

/* A layer's queries from the input of the layer before it: the layer's own norm, product and rotation, of rows that lack what the layer in between adds. */
static void rehearse(struct kv_transformer *t, int32_t layer)
{
    const struct kv_weights *w = t->w;
    const struct kv_layer_weights *l = &w->layers[layer];
    size_t hq = (size_t)w->n_q_heads * (size_t)w->d_head;
    float *to = t->foretold[layer & 1];
    struct norm n = {l->attn_norm, kv_type_is_quantised(l->wq.type)};
    each_row(t, t->n_rehearsing, gather_rehearsing, &n);
    multiply(t, t->in.f32, t->n_rehearsing, &(struct product){&l->wq, to}, 1);
    for (int32_t i = 0; i < t->n_rehearsing; i++)
        shape_heads(t, to + (size_t)i * hq, w->n_q_heads, l->bq, l->q_norm, l->rope, t->cos_sin + (size_t)t->rehearsing[i] * (size_t)w->d_rot);
}

static void hand_out_rehearsed(struct kv_transformer *t, int32_t layer)
{
    size_t hq = (size_t)t->w->n_q_heads * (size_t)t->w->d_head;
    for (int32_t i = 0, k = 0; i < t->n_items; i++)
        t->items[i].rehearsed = t->items[i].rehearses && layer > 0 ? t->foretold[layer & 1] + (size_t)k++ * hq : NULL;
}

struct layer_arg {
    const struct kv_layer_weights *w;
    int32_t layer;
};

/* Finishes q, k, v of a row: q goes where attention reads it, k and v into the row's slab. */
static void place_row(struct kv_transformer *t, const void *arg, int32_t row)
{
    const struct layer_arg *l = arg;
    const struct kv_weights *w = t->w;
    struct kv_step_item *it = &t->items[t->item_of[row]];
    size_t d = (size_t)w->d_head, hq = (size_t)w->n_q_heads, hkv = (size_t)w->n_kv_heads, g = hq / hkv, r = (size_t)row;
    float *q = t->q + r * hq * d, *k = t->key + r * hkv * d, *v = t->value + r * hkv * d;
    const float *cos_sin = t->cos_sin + r * (size_t)w->d_rot;
    shape_heads(t, q, w->n_q_heads, l->w->bq, l->w->q_norm, l->w->rope, cos_sin);
    shape_heads(t, k, w->n_kv_heads, l->w->bk, l->w->k_norm, l->w->rope, cos_sin);
    shape_heads(t, v, w->n_kv_heads, l->w->bv, NULL, false, cos_sin);

    int32_t token = row - it->row, position = it->position + token;
    struct kv_cache *c = it->cache;
    uint8_t *slab = c->slab[(size_t)l->layer * (size_t)c->max_blocks + (size_t)(position / KV_BLOCK_ROWS)];
    size_t row_bytes = kv_row_bytes(c->row_type, c->d_head), at = (size_t)(position % KV_BLOCK_ROWS) * row_bytes;
    float *to = kv_attention_queries(t->attention) + (size_t)it->row * hq * d;
    for (size_t h = 0; h < hkv; h++) {
        memcpy(to + (h * (size_t)it->n + (size_t)token) * g * d, q + h * g * d, g * d * sizeof *q);
        t->k->to_rows(c->row_type, k + h * d, c->d_head, (uint8_t *)kv_slab_k(c, slab, (int32_t)h) + at);
        t->k->to_rows(c->row_type, v + h * d, c->d_head, (uint8_t *)kv_slab_v(c, slab, (int32_t)h) + at);
    }
}

static void quantise_attention(struct kv_transformer *t, const void *arg, int32_t row)
{
    quantise_row(t, arg, t->w->n_q_heads * t->w->d_head, row);
}

/* x += residual_scale × (out + bias) */
static void add_out(struct kv_transformer *t, const float *bias, int32_t row)
{
    size_t d = (size_t)t->w->d_model;
    float *x = t->x + (size_t)row * d, *o = t->out + (size_t)row * d;
    if (bias) t->k->add(o, bias, t->w->d_model, o);
    if (t->w->residual_scale != 1.0f)
        for (size_t i = 0; i < d; i++) o[i] *= t->w->residual_scale;
    t->k->add(x, o, t->w->d_model, x);
}

static void after_attention(struct kv_transformer *t, const void *arg, int32_t row)
{
    const struct kv_layer_weights *l = arg;
    add_out(t, l->bo, row);
    struct norm n = {l->ffn_norm, kv_type_is_quantised(l->gate.type) || kv_type_is_quantised(l->up.type)};
    normalise(t, &n, row);
}

static void activate(struct kv_transformer *t, const void *arg, int32_t row)
{
    size_t f = (size_t)t->w->d_ff;
    t->k->swiglu(t->gate + (size_t)row * f, t->up + (size_t)row * f, t->w->d_ff, t->in.f32 + (size_t)row * f);
    if (*(const bool *)arg) quantise_row(t, t->in.f32, t->w->d_ff, row);
}

static void after_ffn(struct kv_transformer *t, const void *arg, int32_t row)
{
    (void)arg;
    add_out(t, NULL, row);
}

/* ---------------------------------------------------------------- attention with placements */

static void acquire(struct kv_transformer *t, struct kv_step_item *it, int32_t layer)
{
    enum kv_status s = it->placement->acquire(t->placements, it->cache, layer);
    if (s == KV_OK) return;
    /* The authoritative rows are always there: a placement that fails costs time, never bits. */
    if (it->placement_status == KV_OK) it->placement_status = s;
    t->resident->acquire(t->placements, it->cache, layer);
}

static bool staged(const struct kv_step_item *it)
{
    return it->placement->prefetch != NULL;
}

/* Starts the transfer of the pair after (item from - 1, layer) in the order of use. */
static void prefetch_next(struct kv_transformer *t, int32_t from, int32_t layer)
{
    for (int32_t i = from; i < t->n_items; i++)
        if (staged(&t->items[i])) {
            t->items[i].placement->prefetch(t->placements, t->items[i].cache, layer);
            return;
        }
    if (from > 0 && layer + 1 < t->w->n_layers) prefetch_next(t, 0, layer + 1);
}

static void attend_batch(struct kv_transformer *t, int32_t n, int32_t layer, const struct kv_step_hooks *hooks)
{
    kv_attention_run(t->attention, t->batch, n, layer, hooks->plan, hooks->ctx);
    if (hooks->attended) hooks->attended(hooks->ctx, t->batch, n, layer);
    for (int32_t i = 0; i < n; i++) t->batch[i]->placement->release(t->placements, t->batch[i]->cache, layer);
}

static void attention(struct kv_transformer *t, int32_t layer, const struct kv_step_hooks *hooks)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_items; i++)
        if (!staged(&t->items[i])) acquire(t, t->batch[n++] = &t->items[i], layer);
    if (n) attend_batch(t, n, layer, hooks);
    /* Staging holds few pairs: one sequence at a time, the next pair on its way meanwhile. */
    for (int32_t i = 0; i < t->n_items; i++)
        if (staged(&t->items[i])) {
            int64_t began = kv_now_ns();
            acquire(t, t->batch[0] = &t->items[i], layer);
            atomic_fetch_add_explicit(&t->items[i].own_ns, (kv_now_ns() - began) * kv_workers_count(t->workers), memory_order_relaxed);
            prefetch_next(t, i + 1, layer);
            attend_batch(t, 1, layer, hooks);
        }
}

/* ---------------------------------------------------------------- logits */

/* Gathers the picked rows through the output norm and multiplies: y [n][n_vocab]. */
static void gather_output_row(struct kv_transformer *t, const void *arg, int32_t i)
{
    size_t d = (size_t)t->w->d_model;
    const int32_t *rows = arg;
    t->k->rmsnorm(t->x + (size_t)rows[i] * d, t->w->output_norm, t->w->d_model, t->w->norm_eps, t->in.f32 + (size_t)i * d);
    if (kv_type_is_quantised(t->w->output.type)) quantise_row(t, t->in.f32, t->w->d_model, i);
}

static void output(struct kv_transformer *t, const int32_t *rows, int32_t n, float *y)
{
    each_row(t, n, gather_output_row, rows);
    multiply(t, t->in.f32, n, &(struct product){&t->w->output, y}, 1);
    if (t->w->logit_scale != 1.0f)
        for (size_t i = 0; i < (size_t)n * (size_t)t->w->n_vocab; i++) y[i] *= t->w->logit_scale;
}

static void all_logits(struct kv_transformer *t, const struct kv_step_hooks *hooks)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_items; i++) {
        struct kv_step_item *it = &t->items[i];
        it->logits_row = n;
        if (it->sample) t->picked[n++] = it->row + it->n - 1;
    }
    if (n) output(t, t->picked, n, t->logits);
    for (int32_t i = 0; i < t->n_items; i++) {
        struct kv_step_item *it = &t->items[i];
        int32_t count = it->every_logits && hooks->logits ? it->n - it->sample : 0;
        for (int32_t from = 0; from < count; from += LOGIT_ROWS) {
            int32_t m = count - from < LOGIT_ROWS ? count - from : LOGIT_ROWS;
            for (int32_t r = 0; r < m; r++) t->picked[r] = it->row + from + r;
            output(t, t->picked, m, t->every);
            for (int32_t r = 0; r < m; r++) hooks->logits(hooks->ctx, it, from + r, t->every + (size_t)r * (size_t)t->w->n_vocab);
        }
    }
}

/* ---------------------------------------------------------------- the step */

static void lay_out(struct kv_transformer *t, struct kv_step_item *items, int32_t n_items)
{
    t->items = items;
    t->n_items = n_items;
    t->n_rows = t->n_rehearsing = 0;
    for (int32_t i = 0; i < n_items; i++) {
        struct kv_step_item *it = &items[i];
        it->row = t->n_rows;
        it->index = i;
        it->placement_status = KV_OK;
        it->shared_us = 0;
        atomic_store_explicit(&it->own_ns, 0, memory_order_relaxed);
        it->cache->n_sealed = it->position / KV_BLOCK_ROWS;
        if (it->rehearses) t->rehearsing[t->n_rehearsing++] = it->row;
        for (int32_t j = 0; j < it->n; j++) t->item_of[t->n_rows++] = i;
    }
}

static void feed_forward(struct kv_transformer *t, int32_t layer, const struct kv_layer_weights *l, const struct kv_step_hooks *hooks)
{
    struct product gate_up[] = {{&l->gate, t->gate}, {&l->up, t->up}};
    multiply(t, t->in.f32, t->n_rows, gate_up, 2);
    trace(t, hooks, layer, KV_OP_gate, t->gate, t->w->d_ff);
    trace(t, hooks, layer, KV_OP_up, t->up, t->w->d_ff);
    bool quantise = kv_type_is_quantised(l->down.type);
    each_row(t, t->n_rows, activate, &quantise);
    trace(t, hooks, layer, KV_OP_swiglu, t->in.f32, t->w->d_ff);
    multiply(t, t->in.f32, t->n_rows, &(struct product){&l->down, t->out}, 1);
    trace(t, hooks, layer, KV_OP_down, t->out, t->w->d_model);
    each_row(t, t->n_rows, after_ffn, NULL);
    trace(t, hooks, layer, KV_OP_residual, t->x, t->w->d_model);
}

void kv_transformer_step(struct kv_transformer *t, struct kv_step_item *items, int32_t n_items, const struct kv_step_hooks *hooks)
{
    const struct kv_weights *w = t->w;
    int64_t began = kv_now_ns(), attention_ns = 0;
    lay_out(t, items, n_items);
    if (t->n_rows == 0) return;
    prefetch_next(t, 0, 0);
    each_row(t, t->n_rows, embed, NULL);
    trace(t, hooks, -1, KV_OP_embedding, t->x, w->d_model);
    for (int32_t layer = 0; layer < w->n_layers; layer++) {
        const struct kv_layer_weights *l = &w->layers[layer];
        if (t->n_rehearsing && layer + 1 < w->n_layers) rehearse(t, layer + 1);
        hand_out_rehearsed(t, layer);
        struct norm n = {l->attn_norm, kv_type_is_quantised(l->wq.type) || kv_type_is_quantised(l->wk.type) || kv_type_is_quantised(l->wv.type)};
        each_row(t, t->n_rows, normalise, &n);
        trace(t, hooks, layer, KV_OP_attention_norm, t->in.f32, w->d_model);
        struct product qkv[] = {{&l->wq, t->q}, {&l->wk, t->key}, {&l->wv, t->value}};
        multiply(t, t->in.f32, t->n_rows, qkv, 3);
        trace(t, hooks, layer, KV_OP_query, t->q, w->n_q_heads * w->d_head);
        trace(t, hooks, layer, KV_OP_key, t->key, w->n_kv_heads * w->d_head);
        trace(t, hooks, layer, KV_OP_value, t->value, w->n_kv_heads * w->d_head);
        each_row(t, t->n_rows, place_row, &(struct layer_arg){l, layer});

        int64_t at = kv_now_ns();
        attention(t, layer, hooks);
        int64_t end = kv_now_ns();
        attention_ns += end - at;
        if (t->placements) kv_placement_compute(t->placements, layer, (double)at / 1e3, (double)end / 1e3);

        float *attended = kv_attention_output(t->attention);
        if (kv_type_is_quantised(l->wo.type)) each_row(t, t->n_rows, quantise_attention, attended);
        trace(t, hooks, layer, KV_OP_attention, attended, w->n_q_heads * w->d_head);
        multiply(t, attended, t->n_rows, &(struct product){&l->wo, t->out}, 1);
        trace(t, hooks, layer, KV_OP_attention_output, t->out, w->d_model);
        each_row(t, t->n_rows, after_attention, l);
        trace(t, hooks, layer, KV_OP_attention_residual, t->x, w->d_model);
        trace(t, hooks, layer, KV_OP_ffn_norm, t->in.f32, w->d_model);
        feed_forward(t, layer, l, hooks);
    }
    all_logits(t, hooks);
    double shared_us = (double)(kv_now_ns() - began - attention_ns) / 1e3;
    for (int32_t i = 0; i < n_items; i++) items[i].shared_us = shared_us * items[i].n / t->n_rows;
}
