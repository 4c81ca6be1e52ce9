/* select.c — every selecting method in one decode step: 135M or 1B shape at Q8_0, depth 32,768, a budget of 2,048 rows, two threads, beside the floor
 * that memory sets in the same run. Selector cost, index build, break-even depth and the price of a shadow apart. One JSON line a figure.
 *
 * A step is the weights read once (a matrix of their bytes, or a part of it as often as it takes) and the layers' attention. Two layers' rows are
 * made; before each is measured the weights pass through the caches, as they do between two uses of a layer in a real step; the other layers take
 * the same time. Selection and attention run through the engine's own code. usage: select [--shape 135m|1b] [METHOD]… [--quick] */
#include "runtime/evaluate/budget.h"
#include "runtime/evaluate/shadow.h"
#include "runtime/execution/attention.h"
#include "runtime/service/sequence.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 2, D = 64, MADE = 2, SETS = 4, DEPTH = 32768, BUDGET = 2048, REPEATS = 7, TOPICS = 256, KEPT = 32, SWEEP_BYTES = 128 << 20, BUILD_SHARE = 3 };

static const struct shape {
    const char *name, *prefix; /* of the figures */
    int32_t layers, q_heads, kv_heads;
    int32_t weight_rows, weight_cols, weight_parts; /* of a matrix that is read weight_parts times */
} shapes[] = {{"135m", "", 30, 9, 3, 233472, 576, 1}, {"1b", "1b/", 16, 32, 8, 65536, 2048, 8}}, *shape = shapes;
static int32_t group_of(void) { return shape->q_heads / shape->kv_heads; }

static double now_us(void) { return (double)kv_now_ns() / 1e3; }

static uint64_t random_state = 1;
static float random_unit(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

static void *need(void *p)
{
    if (p) return p;
    fprintf(stderr, "select: no memory\n");
    exit(1);
}

static void check(enum kv_status s, const char *what)
{
    if (s == KV_OK) return;
    fprintf(stderr, "select: %s: %s\n", what, kv_status_name(s));
    exit(1);
}

static void print(const char *method, const char *what, double value, const char *unit, double floor)
{
    printf("{\"name\":\"select/%s%s/%s\",\"value\":%.3f,\"unit\":\"%s\"", shape->prefix, method, what, value, unit);
    if (floor > 0) printf(",\"floor\":%.3f,\"ratio\":%.3f}\n", floor, floor / value);
    else puts(",\"floor\":null,\"ratio\":null}");
    fflush(stdout);
}

/* ---------------------------------------------------------------- weights and the read rate */

static struct kv_workers *workers;
static struct kv_mat weights;
static struct kv_act act;
static float *product;
static const uint64_t *swept;
static _Atomic uint64_t sink;

static void multiply_part(void *ctx, int32_t worker, int32_t i)
{
    (void)ctx, (void)worker;
    enum { PARTS = 64 };
    int32_t groups = shape->weight_rows / 16;
    kv_kernels()->matmul(&weights, &act, groups * i / PARTS * 16, groups * (i + 1) / PARTS * 16, product, shape->weight_rows);
}

/* Also empties the caches of everything else. */
static double read_weights_us(void)
{
    double began = now_us();
    kv_workers_run(workers, multiply_part, NULL, 64);
    return now_us() - began;
}

static void sweep_part(void *ctx, int32_t worker, int32_t i)
{
    (void)ctx, (void)worker;
    size_t n = SWEEP_BYTES / 8 / 16;
    const uint64_t *p = swept + (size_t)i * n;
    uint64_t s[32] = {0};
    for (size_t k = 0; k + 32 <= n; k += 32)
        for (size_t l = 0; l < 32; l++) s[l] += p[k + l];
    for (int l = 1; l < 32; l++) s[0] += s[l];
    atomic_fetch_add(&sink, s[0]);
}

/* The best rate seen so far, measured once more beside the figure it is compared with. Attention over all rows may be what reads fastest. */
static double best_rate;
static double bytes_per_us(void)
{
    for (int i = 0; i < 5; i++) {
        double began = now_us();
        kv_workers_run(workers, sweep_part, NULL, 16);
        double rate = SWEEP_BYTES / (now_us() - began);
        if (rate > best_rate) best_rate = rate;
    }
    return best_rate;
}

static void make_weights(void)
{
    size_t bytes = kv_type_row_bytes(KV_Q8_0, shape->weight_cols) * (size_t)shape->weight_rows;
    uint8_t *file = need(malloc(bytes));
    for (size_t i = 0; i < bytes; i++) file[i] = (uint8_t)(i * 2654435761u >> 16 & 0x3b);
    kv_mat_pack(&weights, KV_Q8_0, file, shape->weight_rows, shape->weight_cols, need(aligned_alloc(64, (kv_mat_packed_bytes(KV_Q8_0, shape->weight_rows, shape->weight_cols) + 63) / 64 * 64)));
    free(file);
    float *x = need(calloc(shape->weight_cols, sizeof *x));
    for (int i = 0; i < shape->weight_cols; i++) x[i] = random_unit();
    act = (struct kv_act){1, shape->weight_cols, x, need(calloc(shape->weight_cols, 1)), need(calloc(shape->weight_cols / 32, 4)), need(calloc(shape->weight_cols / 32, 4))};
    kv_kernels()->quantise(&act);
    product = need(calloc(shape->weight_rows, sizeof *product));
    uint64_t *m = need(aligned_alloc(4096, SWEEP_BYTES));
    memset(m, 1, SWEEP_BYTES);
    swept = m;
}

/* ---------------------------------------------------------------- rows */

static struct kv_cache cache;
static struct kv_attention_runner *runner;
static float *topic; /* [TOPICS][D] */
static float *kept; /* [kv_heads][KEPT][group][D] */

/* Keys lie about topics, as keys of a text do; queries look for one. */
static void make_rows(void)
{
    struct kv_arena *arena;
    int32_t rows = DEPTH + KV_BLOCK_ROWS;
    check(kv_arena_create(kv_slab_bytes(KV_F16, shape->kv_heads, D), UINT64_C(4) << 30, &arena), "arena");
    check(kv_cache_init(&cache, MADE, shape->kv_heads, D, KV_F16, rows), "cache");
    check(kv_cache_reserve(&cache, arena, rows), "rows");
    topic = need(malloc(TOPICS * D * sizeof *topic));
    for (int i = 0; i < TOPICS * D; i++) topic[i] = random_unit() * 2;
    float x[D];
    size_t row_bytes = kv_row_bytes(KV_F16, D);
    for (int32_t l = 0; l < MADE; l++)
        for (int32_t i = 0; i < rows; i++)
            for (int32_t h = 0; h < shape->kv_heads; h++) {
                uint8_t *slab = cache.slab[l * cache.max_blocks + i / KV_BLOCK_ROWS];
                const float *t = topic + (size_t)(((uint32_t)(i / 24) * 2654435761u >> 8) % TOPICS) * D;
                for (int c = 0; c < D; c++) x[c] = t[c] + random_unit();
                kv_kernels()->to_rows(KV_F16, x, D, (uint8_t *)(uintptr_t)kv_slab_k(&cache, slab, h) + (size_t)(i % KV_BLOCK_ROWS) * row_bytes);
                for (int c = 0; c < D; c++) x[c] = random_unit();
                kv_kernels()->to_rows(KV_F16, x, D, (uint8_t *)(uintptr_t)kv_slab_v(&cache, slab, h) + (size_t)(i % KV_BLOCK_ROWS) * row_bytes);
            }
    struct kv_attention_shape heads = {shape->q_heads, shape->kv_heads, D, 0.125f, 1, 1, cache.max_blocks};
    check(kv_attention_create(&heads, workers, &runner), "attention");
    size_t n = (size_t)shape->q_heads * KEPT * D;
    kept = need(malloc(n * sizeof *kept));
    for (size_t i = 0; i < n; i++) kept[i] = topic[i % (TOPICS * D)] * 1.5f + random_unit();
}

static void new_queries(void)
{
    float *q = kv_attention_queries(runner);
    for (int h = 0; h < shape->q_heads; h++) {
        const float *t = topic + (size_t)((uint32_t)(random_unit() * TOPICS / 2 + TOPICS / 2) % TOPICS) * D;
        for (int c = 0; c < D; c++) q[h * D + c] = t[c] * 1.5f + random_unit();
    }
}

/* ---------------------------------------------------------------- one layer */

static void plan(void *ctx, int32_t worker, struct kv_step_item *item, int32_t layer, int32_t kv_head, const struct kv_attention *a, struct kv_head_plan *out)
{
    (void)worker, (void)item;
    struct kv_selection *s = ctx;
    double mass;
    int64_t omitted;
    check(kv_selection_query(s, layer, kv_head, a, a->visible[0], 0, &mass, &omitted), s->method->name);
    if (omitted == 0) return;
    out->support = s->support + (size_t)kv_head * (size_t)group_of() * (size_t)s->max_blocks;
    if (!s->estimates) return;
    struct kv_rows rows = kv_selection_rows(s, a, a->visible[0]);
    float *estimate = s->estimate + (size_t)kv_head * (size_t)group_of() * D;
    check(s->method->estimate(s->selector[layer * shape->kv_heads + kv_head], &rows, a->q, out->support, a->n_blocks, estimate), s->method->name);
    out->output = estimate;
}

/* Attention of made layer l with `depth` rows before the query's own; s NULL: dense. */
static double layer_us(struct kv_selection *s, int32_t l, int32_t position)
{
    struct kv_step_item item = {.cache = &cache, .n = 1, .position = position, .selects = s != NULL};
    struct kv_step_item *items[] = {&item};
    for (int32_t b = 0; b < cache.n_blocks; b++) cache.read[b] = cache.slab[l * cache.max_blocks + b];
    double began = now_us();
    kv_attention_run(runner, items, 1, s ? s->method->dense_layers + l : l, plan, s);
    return now_us() - began;
}

static struct kv_selection *make_selection(const struct kv_pipeline *p)
{
    struct kv_selection *s;
    struct kv_params params;
    struct kv_error err = {0};
    const struct kv_selector_method *m = kv_selector_find(p->selector);
    struct kv_sequence_shape of = {m->dense_layers + MADE, shape->q_heads, shape->kv_heads, D};
    kv_params_default(p, &params);
    if (kv_budget_set(p, BUDGET, &params, &err) != KV_OK || kv_selection_create(m, &params, &of, DEPTH + KV_BLOCK_ROWS, KEPT, true, &s, &err) != KV_OK) {
        fprintf(stderr, "select: %s: %s\n", p->name, err.message);
        exit(1);
    }
    s->byte_cost = 0; /* it selects at every depth */
    for (int32_t l = 0; l < MADE; l++) kv_selection_keep_queries(s, m->dense_layers + l, KEPT, 0, KEPT, kept);
    return s;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *v, int n, double share)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
    return v[(int)(share * (n - 1))];
}

struct build { /* an index in the making: steps until every head has one; a layer's time in them; processor time of a head's index */
    double steps, median_us, p99_us, head_ms;
};

static struct build build_indexes(struct kv_selection *s, int32_t depth)
{
    enum { MOST = 100000 };
    double *us = need(malloc(MOST * sizeof *us));
    struct build b = {0};
    int n = 0;
    s->build_share = BUILD_SHARE;
    for (int32_t l = 0; l < MADE; l++)
        for (bool waits = true; waits && n < MOST;) {
            uint64_t before = s->waits;
            new_queries();
            us[n++] = layer_us(s, l, depth);
            waits = s->waits != before;
        }
    b.steps = (double)n / MADE;
    b.median_us = quantile(us, n, 0.5);
    b.p99_us = quantile(us, n, 0.99);
    b.head_ms = (double)atomic_exchange(&s->build_ns, 0) / 1e6 / (MADE * shape->kv_heads);
    free(us);
    return b;
}

struct layer_cost {
    double us, query_us, bytes, rows; /* of a layer: best of each set of queries, their mean; mean of a head; of a layer; of a head */
    struct build build;
};

static int32_t dense_layers(const struct kv_selector_method *m)
{
    int32_t n = 0;
    for (int32_t l = 0; l < shape->layers; l++) n += kv_selector_dense(m, l);
    return n;
}

static struct layer_cost measure(const struct kv_pipeline *p, int32_t depth, int repeats)
{
    struct layer_cost c = {0};
    bytes_per_us();
    struct kv_selection *s = p ? make_selection(p) : NULL;
    double row_bytes = 2.0 * D * 2;
    if (s) {
        c.build = build_indexes(s, depth);
        atomic_store(&s->queries, 0), atomic_store(&s->query_ns, 0), atomic_store(&s->rows, 0), atomic_store(&s->ranked_bytes, 0);
    }
    for (int set = 0; set < SETS; set++)
        for (int32_t l = 0; l < MADE; l++) {
            double best = 1e12;
            new_queries();
            for (int i = 0; i < repeats; i++) {
                read_weights_us();
                double us = layer_us(s, l, depth + 1 + i);
                if (us < best) best = us;
            }
            c.us += best / (SETS * MADE);
        }
    c.rows = s ? (double)s->rows / (double)s->queries : depth;
    c.query_us = s ? (double)s->query_ns / 1e3 / (double)s->queries : 0;
    c.bytes = shape->kv_heads * (c.rows * row_bytes + (s ? (double)s->ranked_bytes / (double)s->queries : 0));
    kv_selection_destroy(s);
    return c;
}

/* ---------------------------------------------------------------- a method */

static double weights_us = 1e12, dense_us[16]; /* of all weights; of a layer, by depth */
static double weight_bytes(void) { return (double)weights.data_bytes * shape->weight_parts; }
static const int32_t depths[] = {2048, 4096, 8192, 16384, DEPTH};
enum { N_DEPTHS = sizeof depths / sizeof *depths };

/* The depth at which a cost beside that of all rows falls below 1 for good, between the measured ones by its logarithm; 0: never. */
static double crossing(const double *cost)
{
    int i = N_DEPTHS;
    while (i > 0 && cost[i - 1] < 1) i--;
    if (i == N_DEPTHS) return 0;
    if (i == 0) return depths[0];
    double share = log(cost[i - 1]) / (log(cost[i - 1]) - log(cost[i]));
    return depths[i - 1] * pow((double)depths[i] / depths[i - 1], share);
}

/* From which depth the method pays by the clock and by what it declares; and what it would have to declare for both to be one. */
static void bench_break_even(const struct kv_pipeline *p)
{
    double byte_cost = kv_selector_find(p->selector)->byte_cost, time[N_DEPTHS], bytes[N_DEPTHS], declared[N_DEPTHS];
    for (int i = 0; i < N_DEPTHS; i++) {
        struct layer_cost c = measure(p, depths[i], 5);
        time[i] = c.us / dense_us[i];
        bytes[i] = c.bytes / (shape->kv_heads * (double)depths[i] * 4 * D);
        declared[i] = bytes[i] * byte_cost;
    }
    double even = crossing(time), at = even > 0 ? even : DEPTH;
    int i = 1;
    while (i < N_DEPTHS - 1 && depths[i] < at) i++;
    double share = log(at / depths[i - 1]) / log((double)depths[i] / depths[i - 1]);
    double here = exp((1 - share) * log(bytes[i - 1]) + share * log(bytes[i])), slow = even > 0 ? 1 : time[N_DEPTHS - 1];
    print(p->name, "break-even", even > 0 ? even : -1, "rows", 0);
    print(p->name, "break-even-declared", crossing(declared) > 0 ? crossing(declared) : -1, "rows", 0);
    print(p->name, "byte-cost-declared", byte_cost, "times a dense one", 0);
    print(p->name, "byte-cost-at-break-even", slow / here, "times a dense one", 0);
}

static void bench_method(const struct kv_pipeline *p, bool quick)
{
    const struct kv_selector_method *m = kv_selector_find(p->selector);
    struct layer_cost c = measure(p, DEPTH, REPEATS);
    double exact_us = weights_us + shape->layers * dense_us[N_DEPTHS - 1], selecting = shape->layers - dense_layers(m);
    double step_us = weights_us + dense_layers(m) * dense_us[N_DEPTHS - 1] + selecting * c.us, rate = bytes_per_us();
    double floor_us = (weight_bytes() + dense_layers(m) * shape->kv_heads * (double)DEPTH * 4 * D + selecting * c.bytes) / rate;
    print(p->name, "depth-32768", step_us / 1e3, "ms", floor_us / 1e3);
    print(p->name, "speedup-over-exact", exact_us / step_us, "times", 0);
    print(p->name, "byte-cost", c.us / c.bytes / (dense_us[N_DEPTHS - 1] / (shape->kv_heads * (double)DEPTH * 4 * D)), "times a dense one", 0);
    print(p->name, "selector", c.query_us, "us", 0);
    print(p->name, "rows", c.rows, "rows", 0);
    print(p->name, "index-build", c.build.head_ms, "ms", 0);
    /* Of all heads on all threads, beside the prompt's last token; and how many tokens it takes to win that back. */
    double exposed_us = selecting * shape->kv_heads * c.build.head_ms * 1e3 / THREADS;
    print(p->name, "index-exposed", exposed_us / 1e6, "s", 0);
    print(p->name, "index-payback", exact_us > step_us ? exposed_us / (exact_us - step_us) : -1, "tokens", 0);
    print(p->name, "index-steps", c.build.steps, "steps", 0);
    if (c.build.steps > 1) {
        print(p->name, "layer-while-building", c.build.median_us / dense_us[N_DEPTHS - 1], "times a dense one", 0);
        print(p->name, "p99-while-building", c.build.p99_us / c.build.median_us, "times the median", 0);
    }
    if (quick) return;
    bench_break_even(p);
}

/* One unit of the layer beside the baseline, as the engine measures it. */
static void shadow_unit(struct kv_selection *s, int32_t layer, const struct kv_step_item *item, double *scratch, size_t scratch_doubles)
{
    struct kv_attention a = kv_attention_view(runner, item, 0);
    struct kv_sample sample = {0};
    double mass;
    int64_t omitted;
    check(kv_selection_query(s, layer, 0, &a, item->position + 1, 0, &mass, &omitted), "shadow");
    struct kv_rows rows = kv_selection_rows(s, &a, item->position + 1);
    struct kv_shadow_unit u = {.rows = &rows, .q = a.q, .support = s->support, .n_blocks = a.n_blocks, .whole = kv_attention_state(runner, item, 0)};
    check(kv_shadow_online(&u, scratch, scratch_doubles, &sample), "shadow");
}

/* Layers with and without a unit in turn. Rarely two units fall into one layer: a unit holds up both threads. */
static void bench_shadow(void)
{
    enum { TURNS = 60 };
    struct kv_selection *s = make_selection(kv_pipeline_find("quest"));
    int32_t layer = s->method->dense_layers;
    double us[2][TURNS], exact_us = weights_us + shape->layers * dense_us[N_DEPTHS - 1];
    size_t scratch_doubles = kv_shadow_online_doubles(DEPTH + KV_BLOCK_ROWS, D, group_of());
    double *scratch = need(malloc(scratch_doubles * sizeof *scratch));
    build_indexes(s, DEPTH);
    for (int i = 0; i < 2 * TURNS; i++) {
        struct kv_step_item item = {.cache = &cache, .n = 1, .position = DEPTH + 1 + i / 2};
        new_queries();
        read_weights_us();
        double began = now_us();
        layer_us(NULL, 0, item.position);
        if (i % 2) shadow_unit(s, layer, &item, scratch, scratch_doubles);
        us[i % 2][i / 2] = now_us() - began;
    }
    double unit_us = quantile(us[1], TURNS, 0.5) - quantile(us[0], TURNS, 0.5);
    print("shadow", "unit", unit_us / 1e3, "ms", 0);
    print("shadow", "share-at-1-percent", 100 * (0.01 * shape->layers * shape->kv_heads * unit_us) / exact_us, "% of decode", 2);
    free(scratch);
    kv_selection_destroy(s);
}

/* Whether a flag, or the value of one, stands at i. */
static bool flag_at(int argc, char **argv, int i, bool *quick)
{
    if (!strcmp(argv[i], "--quick")) return *quick = true;
    if (!strcmp(argv[i - 1], "--shape")) return true;
    if (strcmp(argv[i], "--shape")) return false;
    for (size_t k = 0; i + 1 < argc && k < sizeof shapes / sizeof *shapes; k++)
        if (!strcmp(argv[i + 1], shapes[k].name)) return shape = &shapes[k], true;
    fprintf(stderr, "select: --shape is one of 135m, 1b\n");
    exit(2);
}

int main(int argc, char **argv)
{
    bool quick = false;
    int named = 0;
    for (int i = 1; i < argc; i++) named += !flag_at(argc, argv, i, &quick);
    kv_numerics_enter();
    check(kv_workers_create(THREADS, &workers), "workers");
    make_weights();
    make_rows();
    new_queries();
    for (int i = 0; i < REPEATS; i++) {
        double us = 0;
        for (int32_t part = 0; part < shape->weight_parts; part++) us += read_weights_us();
        if (us < weights_us) weights_us = us;
    }
    for (int i = 0; i < N_DEPTHS; i++) dense_us[i] = measure(NULL, depths[i], REPEATS).us;
    double exact_us = weights_us + shape->layers * dense_us[N_DEPTHS - 1], attention_rate = shape->kv_heads * (double)DEPTH * 4 * D / dense_us[N_DEPTHS - 1];
    if (attention_rate > best_rate) best_rate = attention_rate;
    double exact_floor = (weight_bytes() + shape->layers * shape->kv_heads * (double)DEPTH * 4 * D) / bytes_per_us();
    print("exact", "depth-32768", exact_us / 1e3, "ms", exact_floor / 1e3);
    for (size_t i = 0; i < kv_pipeline_count(); i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        bool wanted = p->built && p->selector && !named;
        for (int k = 1; k < argc; k++) wanted |= p->built && p->selector && !strcmp(argv[k], p->name);
        if (wanted) bench_method(p, quick);
    }
    if (!named) bench_shadow();
    return 0;
}
