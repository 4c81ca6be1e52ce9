/* clusterkv.c — ClusterKV (0x07N): rows clustered by cosine, clusters ranked by q·μ, the last one trimmed; one support per query head.
 *
 * build clusters all rows after the sink; later rows stay exact until window_rows of them lie behind the newest and are sealed into
 * window_clusters, published with their members as one; seal does so at once, the newest row included. Clusters are taken by descending q·μ (ties to the lower cluster) until budget_rows rows, the last one
 * cut in member order, which is ascending position; sink and open window come beside the budget. Empty clusters are never ranked. The first
 * two layers stay dense. budget_rows ≥ T selects every row. drop keeps centroids and forgets members. Widening doubles the budget. */
#include "runtime/selection/draw.h"
#include "runtime/selection/kmeans.h"
#include "runtime/selection/methods.h"
#include "runtime/selection/omitted.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CLUSTERS, ROWS_PER_CLUSTER, ITERATIONS, SINK_ROWS, BUDGET_ROWS, WINDOW_ROWS, WINDOW_CLUSTERS, SEED, ESTIMATE_ROWS, N_PARAMS };
const struct kv_param_spec kv_selector_clusterkv_params[N_PARAMS] = {
    {"clusters", "int", 0, 0, 65536, "clusters", "house", "clusters at build; 0: by rows_per_cluster"},
    {"rows_per_cluster", "int", 80, 1, 65536, "rows", "paper: L / 80", "rows a cluster holds on average at build"},
    {"iterations", "int", 20, 1, 300, "rounds", "code", "k-means rounds"},
    {"sink_rows", "int", 16, 0, 1048576, "rows", "paper", "first rows, always attended"},
    {"budget_rows", "int", 512, 1, 1048576, "rows", "code; paper: 1K to 2K", "rows taken from clusters per query head"},
    {"window_rows", "int", 320, 1, 1048576, "rows", "paper", "appended rows that are sealed together"},
    {"window_clusters", "int", 4, 1, 1024, "clusters", "paper; bench: 8", "clusters a sealed window forms"},
    {"seed", "int", 0, 0, 9007199254740991, "", "house", "draws the first centroids"},
    {"estimate_rows", "int", 0, 0, 1024, "rows", "house", "left-out rows, and taken ones, drawn to estimate the omitted mass; 0: no estimate"},
};

struct kv_selector {
    int32_t d_head, group, cap, max_clusters, n_rows, n_clusters, clustered; /* clustered: rows [sink, clustered) have a cluster */
    int32_t clusters, per_cluster, iterations, sink, budget, window, window_clusters, estimate_rows;
    uint64_t seed;
    int32_t *seeds, n_seeds;        /* given positions for the next build */
    float *centroid;                /* [max_clusters][d_head] */
    int32_t *first, *size, *member; /* [max_clusters], [max_clusters], [cap]: positions, cluster by cluster, ascending in each */
    int32_t *label;                 /* [cap] */
    double *sum;                    /* [max build or window clusters][d_head] */
    float *tile, *channel, *own, *rest, *moved; /* of k-means */
    double *scale;                  /* [cap] alike */
    struct kv_kmeans run;           /* of a build in parts; rows NULL between them */
    int32_t building;               /* rows it covers; 0: none is going on */
    float *square, *row;            /* [max_clusters], [d_head] */
    float *score;                   /* [group][score_stride] */
    size_t score_stride;            /* max_clusters, rounded up to 16 */
    uint64_t *key;                  /* [max(cap, max_clusters)] */
    float *logit, *weight;          /* [max_clusters] of an estimate */
    int32_t *taken;                 /* [max_clusters] alike */
};

static void clusterkv_destroy(struct kv_selector *s)
{
    if (!s) return;
    void *const owned[] = {s->seeds, s->centroid, s->first, s->size, s->member, s->label, s->sum, s->square, s->row, s->score, s->key, s->tile, s->channel, s->own, s->rest, s->moved, s->scale, s->logit, s->weight, s->taken};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(s);
}

static bool allocate(struct kv_selector *s)
{
    size_t c = (size_t)s->max_clusters, d = (size_t)s->d_head, n = (size_t)s->cap;
    s->seeds = calloc(n, sizeof *s->seeds);
    s->centroid = calloc(c * d, sizeof *s->centroid);
    s->first = calloc(c, sizeof *s->first);
    s->size = calloc(c, sizeof *s->size);
    s->member = calloc(n, sizeof *s->member);
    s->label = calloc(n, sizeof *s->label);
    s->sum = calloc(c * d, sizeof *s->sum);
    s->tile = calloc(2 * KV_KMEANS_TILE * d, sizeof *s->tile);
    s->own = calloc(n, sizeof *s->own);
    s->rest = calloc(n, sizeof *s->rest);
    s->moved = calloc(c, sizeof *s->moved);
    s->scale = calloc(n, sizeof *s->scale);
    s->channel = calloc(kv_kmeans_channel_floats(s->d_head, s->max_clusters), sizeof *s->channel);
    s->square = calloc(c, sizeof *s->square);
    s->row = calloc(d, sizeof *s->row);
    s->score_stride = (c + 15) / 16 * 16;
    s->score = calloc((size_t)s->group * s->score_stride, sizeof *s->score);
    s->key = calloc(n > c ? n : c, sizeof *s->key);
    s->logit = calloc(c, sizeof *s->logit);
    s->weight = calloc(c, sizeof *s->weight);
    s->taken = calloc(c, sizeof *s->taken);
    return s->seeds && s->centroid && s->first && s->size && s->member && s->label && s->sum && s->square && s->row && s->score && s->key && s->tile && s->channel && s->own && s->rest && s->moved && s->scale && s->logit && s->weight && s->taken;
}

static void clusterkv_tune(struct kv_selector *s, const struct kv_params *p) { s->budget = (int32_t)p->value[BUDGET_ROWS]; }

static enum kv_status clusterkv_create(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                                       struct kv_selector **out, struct kv_error *err)
{
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    struct kv_selector *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "clusterkv", "no memory for a selector");
    s->d_head = d_head, s->group = group, s->cap = n_rows_max;
    s->clusters = (int32_t)p->value[CLUSTERS];
    s->per_cluster = (int32_t)p->value[ROWS_PER_CLUSTER];
    s->iterations = (int32_t)p->value[ITERATIONS];
    s->sink = (int32_t)p->value[SINK_ROWS];
    clusterkv_tune(s, p);
    s->window = (int32_t)p->value[WINDOW_ROWS];
    s->window_clusters = (int32_t)p->value[WINDOW_CLUSTERS];
    s->estimate_rows = (int32_t)p->value[ESTIMATE_ROWS];
    s->seed = kv_draw(seed, (uint64_t)p->value[SEED]);
    int64_t built = s->clusters ? s->clusters : n_rows_max / s->per_cluster + 1;
    if (built > n_rows_max) built = n_rows_max;
    int64_t windows = (int64_t)(n_rows_max / s->window + 2) * (s->window_clusters < s->window ? s->window_clusters : s->window);
    if (built + windows > 1 << 24) {
        clusterkv_destroy(s);
        return kv_fail(err, KV_BAD_ARGUMENT, "window_rows", "%lld clusters are more than the limit of 16777216", (long long)(built + windows));
    }
    s->max_clusters = (int32_t)(built + windows);
    if (!allocate(s)) {
        clusterkv_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "clusterkv", "no memory for %d clusters", (int)(built + windows));
    }
    *out = s;
    return KV_OK;
}

static enum kv_status clusterkv_seed_rows(struct kv_selector *s, const int32_t *positions, int32_t n, struct kv_error *err)
{
    if (n < 0 || n > s->cap || (s->clusters && n != s->clusters))
        return kv_fail(err, KV_BAD_ARGUMENT, "seeds", "%d seed positions do not fit the number of clusters or of rows", n);
    memcpy(s->seeds, positions, (size_t)n * sizeof *positions);
    s->n_seeds = n;
    return KV_OK;
}

/* Lists the members of clusters [base, base + k), which own the rows [from, to) by s->label, ascending in each. */
static void list_members(struct kv_selector *s, int32_t base, int32_t k, int32_t from, int32_t to)
{
    int32_t at = from - s->sink;
    for (int32_t c = 0; c < k; c++) {
        s->first[base + c] = at;
        at += s->size[base + c];
        s->size[base + c] = 0;
    }
    for (int32_t i = from; i < to; i++) {
        int32_t c = base + s->label[i - from];
        s->member[s->first[c] + s->size[c]++] = i;
    }
}

/* A run that clusters rows [from, to) into k new clusters. */
static enum kv_status begin(struct kv_selector *s, const struct kv_rows *rows, int32_t from, int32_t to, int32_t k, bool seeded, struct kv_kmeans *m)
{
    if (k < 1) k = 1;
    if (k > to - from && !seeded) k = to - from;
    if (k > s->max_clusters - s->n_clusters) return KV_CAPACITY;
    int32_t base = s->n_clusters;
    *m = (struct kv_kmeans){.rows = rows, .first = from, .n = to - from, .width = s->d_head, .k = k, .iterations = s->iterations, .cosine = true,
                            .centroid = s->centroid + (size_t)base * (size_t)s->d_head, .channel = s->channel, .label = s->label,
                            .count = s->size + base, .sum = s->sum, .square = s->square + base, .row = s->row, .tile = s->tile,
                            .own = s->own, .rest = s->rest, .moved = s->moved, .scale = s->scale};
    if (seeded)
        for (int32_t c = 0; c < k; c++) kv_kmeans_seed(m, c, s->seeds[c]);
    else kv_kmeans_draw_seeds(m, kv_draw(s->seed, (uint64_t)base), s->key);
    return KV_OK;
}

/* Publishes the clusters of a finished run whole, with their members. */
static void publish(struct kv_selector *s, const struct kv_kmeans *m)
{
    list_members(s, s->n_clusters, m->k, m->first, m->first + m->n);
    s->n_clusters += m->k;
    s->clustered = m->first + m->n;
}

static enum kv_status cluster_rows(struct kv_selector *s, const struct kv_rows *rows, int32_t from, int32_t to, int32_t k)
{
    struct kv_kmeans m;
    if (from >= to) return KV_OK;
    enum kv_status status = begin(s, rows, from, to, k, false, &m);
    if (status != KV_OK) return status;
    int64_t all = INT64_MAX;
    kv_kmeans_run(&m, &all);
    publish(s, &m);
    return KV_OK;
}

static enum kv_status clusterkv_build_some(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q, int64_t products, bool *done)
{
    (void)prefill_q;
    (void)n_prefill_q;
    *done = rows->n_rows <= s->sink;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    if (!s->building || rows->n_rows < s->building) {
        for (int32_t i = 0; i < s->n_seeds; i++)
            if (s->seeds[i] < s->sink || s->seeds[i] >= rows->n_rows) return KV_BAD_ARGUMENT;
        int32_t n = rows->n_rows - s->sink;
        s->n_clusters = s->building = 0;
        s->clustered = s->sink;
        s->n_rows = rows->n_rows;
        if (*done) return KV_OK;
        enum kv_status status = begin(s, rows, s->sink, rows->n_rows, s->n_seeds ? s->n_seeds : s->clusters ? s->clusters : n / s->per_cluster, s->n_seeds > 0, &s->run);
        if (status != KV_OK) return status;
        s->building = rows->n_rows;
    }
    s->run.rows = rows;
    *done = kv_kmeans_run(&s->run, &products);
    s->run.rows = NULL;
    if (!*done) return KV_OK;
    publish(s, &s->run);
    s->building = 0;
    return KV_OK;
}

static enum kv_status clusterkv_build(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    bool done;
    s->building = 0;
    return clusterkv_build_some(s, rows, prefill_q, n_prefill_q, INT64_MAX, &done);
}

static enum kv_status clusterkv_append(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    enum kv_status status = KV_OK;
    if (from != s->n_rows || rows->n_rows < from) return KV_STALE_INDEX;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    s->n_rows = rows->n_rows;
    if (s->clustered < s->sink) s->clustered = s->sink;
    while (status == KV_OK && s->n_rows - s->clustered > s->window) /* the newest row stays exact while decoding */
        status = cluster_rows(s, rows, s->clustered, s->clustered + s->window, s->window_clusters);
    return status;
}

static enum kv_status clusterkv_seal(struct kv_selector *s, const struct kv_rows *rows)
{
    if (rows->n_rows != s->n_rows) return KV_STALE_INDEX;
    int32_t from = s->clustered < s->sink ? s->sink : s->clustered;
    int64_t share = ((int64_t)(s->n_rows - from) * s->window_clusters + s->window - 1) / s->window;
    return cluster_rows(s, rows, from, s->n_rows, (int32_t)share);
}

/* Survivors move up so that the slots of forgotten rows are free for those that come; clusters left empty at the end go too. */
static enum kv_status clusterkv_drop(struct kv_selector *s, int32_t to)
{
    if (to < 0) return KV_BAD_ARGUMENT;
    if (to < s->n_rows) s->n_rows = to;
    if (to >= s->clustered) return KV_OK;
    int32_t at = 0;
    for (int32_t c = 0; c < s->n_clusters; c++) {
        int32_t kept = 0;
        for (int32_t i = 0; i < s->size[c]; i++) {
            int32_t row = s->member[s->first[c] + i];
            if (row < to) s->member[at + kept++] = row;
        }
        s->first[c] = at;
        s->size[c] = kept;
        at += kept;
    }
    while (s->n_clusters && !s->size[s->n_clusters - 1]) s->n_clusters--;
    s->clustered = to < s->sink ? s->sink : to;
    return KV_OK;
}

static int32_t clusterkv_covered(const struct kv_selector *s) { return s->n_rows; }

/* q·μ of every cluster for every query head at once. */
static void score_clusters(struct kv_selector *s, const float *q)
{
    struct kv_mat centroids = {KV_F32, s->n_clusters, s->d_head, s->centroid, (size_t)s->n_clusters * (size_t)s->d_head * sizeof(float)};
    struct kv_act heads = {.n = s->group, .cols = s->d_head, .f32 = q};
    kv_kernels()->matmul(&centroids, &heads, 0, s->n_clusters, s->score, s->score_stride);
}

/* Sets members [0, n), which ascend: those of one word go into it at once, instead of each waiting for the one before to be stored. */
static void set_members(uint64_t *mask, const int32_t *member, int32_t n)
{
    for (int32_t j = 0; j < n;) {
        int32_t word = member[j] >> 6;
        uint64_t bits = 0;
        for (; j < n && member[j] >> 6 == word; j++) bits |= UINT64_C(1) << (member[j] & 63);
        mask[word] |= bits;
    }
}

/* Takes clusters in ranking order until they hold `budget` rows; *ranked: how many have members. */
static int32_t take_clusters(struct kv_selector *s, const float *score, int64_t budget, uint64_t *mask, int32_t *ranked)
{
    int32_t n = 0;
    for (int32_t c = 0; c < s->n_clusters; c++)
        if (s->size[c]) s->key[n++] = kv_rank_key(score[c], (uint32_t)c);
    int32_t taken = (int32_t)kv_rank_cover(s->key, (size_t)n, s->size, budget);
    for (int32_t i = 0; i < taken; i++) { /* the lists of members lie where nothing looks ahead */
        const int32_t c = (int32_t)kv_rank_index(s->key[i]), *member = s->member + s->first[c];
        for (int32_t j = 0; j < s->size[c]; j += 16) __builtin_prefetch(member + j);
    }
    for (int32_t i = 0; i < taken; i++) {
        int32_t c = (int32_t)kv_rank_index(s->key[i]), take = s->size[c] < budget ? s->size[c] : (int32_t)budget;
        set_members(mask, s->member + s->first[c], take);
        budget -= take;
    }
    *ranked = n;
    return taken;
}

static int32_t row_of_cluster(const void *ctx, int32_t cluster, int32_t k)
{
    const struct kv_selector *s = ctx;
    return s->member[s->first[cluster] + k];
}

/* Clusters are drawn by their centroids; sink and open window enter exactly. The first `taken` of the ranking hold the budget. */
static double estimate_omitted(struct kv_selector *s, const struct kv_rows *rows, const float *q, const float *score, int32_t taken, int64_t budget, int32_t tail,
                               struct kv_ledger *drawn)
{
    for (int32_t c = 0; c < s->n_clusters; c++) {
        s->logit[c] = s->size[c] ? score[c] * rows->scale : -INFINITY;
        s->taken[c] = 0;
    }
    for (int32_t i = 0; i < taken; i++) {
        int32_t c = (int32_t)kv_rank_index(s->key[i]);
        s->taken[c] = s->size[c] < budget ? s->size[c] : (int32_t)budget;
        budget -= s->taken[c];
    }
    int32_t n = rows->n_rows;
    struct kv_cells c = {.n = s->n_clusters, .score = s->logit, .size = s->size, .taken = s->taken, .row = row_of_cluster, .ctx = s,
                         .exact = {{0, s->sink < n ? s->sink : n}, {tail < n ? tail : n, n}}};
    return kv_omitted_upper(&c, rows, q, s->estimate_rows, s->weight, s->row, drawn);
}

static enum kv_status clusterkv_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                                      int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    int32_t n = rows->n_rows, tail = s->clustered < s->sink ? s->sink : s->clustered;
    size_t d = (size_t)s->d_head;
    enum kv_status status = kv_selection_open(rows, s->n_rows, s->group, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || n == 0) return status;
    int64_t budget = (int64_t)s->budget << (widen ? 1 : 0);
    struct kv_ledger drawn = {0};
    score_clusters(s, q);
    for (int32_t g = 0; g < s->group; g++) {
        uint64_t *mask = support + (size_t)g * (size_t)n_blocks;
        kv_mask_set_range(mask, 0, s->sink < n ? s->sink : n);
        kv_mask_set_range(mask, tail < n ? tail : n, n);
        const float *score = s->score + (size_t)g * s->score_stride;
        int32_t ranked, taken = take_clusters(s, score, budget, mask, &ranked);
        for (int32_t i = 0; i < taken; i++) kv_trace_choose(ledger, g, (int32_t)kv_rank_index(s->key[i]));
        kv_trace_scores(ledger, g, score, s->n_clusters, s->n_clusters);
        ledger->units += (uint64_t)taken;
        if (estimated_omitted_mass && s->estimate_rows)
            estimated_omitted_mass[g] = estimate_omitted(s, rows, q + (size_t)g * d, score, taken, budget, tail, &drawn);
        for (int32_t c = 0; ledger->trace && c < s->n_clusters; c++)
            if (!s->size[c]) kv_trace_unranked(ledger, g, c);
        ledger->candidates += (uint64_t)ranked;
        ledger->candidate_bytes = (uint64_t)ranked * d * sizeof(float);
        ledger->selector_macs += (uint64_t)ranked * d;
    }
    ledger->candidate_bytes += drawn.candidate_bytes;
    ledger->selector_macs += drawn.selector_macs;
    ledger->index_bytes = (uint64_t)s->n_clusters * (d * sizeof(float) + 2 * sizeof(int32_t)) + (uint64_t)(tail - s->sink) * sizeof(int32_t);
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

const struct kv_selector_method kv_selector_clusterkv = {
    .name = "clusterkv", .byte_cost = 2.1, .params = kv_selector_clusterkv_params, .n_params = N_PARAMS, .online_estimate = "drawn rows, upper end at 95 %", .dense_layers = 2, .per_q_head = true,
    .create = clusterkv_create, .tune = clusterkv_tune, .destroy = clusterkv_destroy, .build = clusterkv_build, .build_some = clusterkv_build_some, .append = clusterkv_append, .seal = clusterkv_seal,
    .drop = clusterkv_drop, .query = clusterkv_query, .covered = clusterkv_covered, .seed_rows = clusterkv_seed_rows,
};
