/* infllm.c — InfLLM (0x07L): fixed units of distant rows ranked by their representatives, one support per K/V head.
 *
 * Rows after the sink form units of unit_rows as soon as local_rows lie behind them; seal closes a shorter unit in front of the window. A
 * unit's representatives are its rows of largest influence: the mean logit under the following local_rows queries where prefill
 * queries cover them, else (house) agreement with the unit's mean key. Units are ranked by Σ over the group and representatives of q·k;
 * ties, of rows too, go to the lower one. Support: sink, units whole, everything after the last unit. units ≥ all selects every
 * row. Rows keep their positions: the paper's common distant position is a declared representation of its own and not applied
 * here. No dense layers. Widening doubles units. */
#include "runtime/selection/methods.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT_ROWS, REPRESENTATIVES, UNITS, SINK_ROWS, LOCAL_ROWS, N_PARAMS };
enum { UNIT_WORK = 12 }; /* what closing a unit costs, in products for each of its values: sums in double, row by row */
const struct kv_param_spec kv_selector_infllm_params[N_PARAMS] = {
    {"unit_rows", "int", 128, 1, 65536, "rows", "paper", "rows per unit"},
    {"representatives", "int", 4, 1, 64, "rows", "paper", "rows of a unit that stand for it in the search"},
    {"units", "int", 16, 1, 65536, "units", "code: 16; paper: 32, 96", "units attended"},
    {"sink_rows", "int", 128, 0, 1048576, "rows", "paper", "first rows, always attended"},
    {"local_rows", "int", 4096, 0, 1048576, "rows", "paper", "last rows, always attended"},
};

struct kv_selector {
    int32_t d_head, group, cap, max_units, n_rows, n_units;
    int32_t unit_rows, reps, units, sink, local;
    int32_t *first;       /* [max_units + 1] unit u holds rows [first[u], first[u + 1]) */
    int32_t *n_reps;      /* [max_units] */
    uint8_t *rep;         /* [max_units][reps][d_head], copies of stored rows; room for fp32 */
    float *score;         /* [max_units] */
    float *product;       /* [group][product_stride] of queries and representatives */
    size_t product_stride;
    int32_t building;     /* rows of the build in work; 0: none */
    uint64_t *key;        /* [max(max_units, unit_rows)] */
    double *mean;         /* [d_head] */
    float *row, *influence; /* [d_head], [unit_rows] */
};

static void infllm_destroy(struct kv_selector *s)
{
    if (!s) return;
    void *const owned[] = {s->first, s->n_reps, s->rep, s->score, s->key, s->mean, s->row, s->influence, s->product};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(s);
}

static void infllm_tune(struct kv_selector *s, const struct kv_params *p) { s->units = (int32_t)p->value[UNITS]; }

static enum kv_status infllm_create(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                                    struct kv_selector **out, struct kv_error *err)
{
    (void)seed;
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    if (p->value[REPRESENTATIVES] > p->value[UNIT_ROWS])
        return kv_fail(err, KV_BAD_ARGUMENT, "representatives", "a unit of %g rows has no %g representatives", p->value[UNIT_ROWS], p->value[REPRESENTATIVES]);
    struct kv_selector *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "infllm", "no memory for a selector");
    s->d_head = d_head, s->group = group, s->cap = n_rows_max;
    s->unit_rows = (int32_t)p->value[UNIT_ROWS];
    s->reps = (int32_t)p->value[REPRESENTATIVES];
    infllm_tune(s, p);
    s->sink = (int32_t)p->value[SINK_ROWS];
    s->local = (int32_t)p->value[LOCAL_ROWS];
    s->max_units = 2 * (n_rows_max / s->unit_rows + 1); /* twice: room for units that seal cut short */
    size_t u = (size_t)s->max_units, keys = s->unit_rows > s->max_units ? (size_t)s->unit_rows : u;
    s->first = calloc(u + 1, sizeof *s->first);
    s->n_reps = calloc(u, sizeof *s->n_reps);
    s->rep = calloc(u * (size_t)s->reps * (size_t)d_head, sizeof(float));
    s->score = calloc(u, sizeof *s->score);
    s->product_stride = (u * (size_t)s->reps + 15) / 16 * 16;
    s->product = calloc((size_t)group * s->product_stride, sizeof *s->product);
    s->key = calloc(keys, sizeof *s->key);
    s->mean = calloc((size_t)d_head, sizeof *s->mean);
    s->row = calloc((size_t)d_head, sizeof *s->row);
    s->influence = calloc((size_t)s->unit_rows, sizeof *s->influence);
    if (!s->first || !s->n_reps || !s->rep || !s->score || !s->key || !s->mean || !s->row || !s->influence || !s->product) {
        infllm_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "infllm", "no memory for %d units", s->max_units);
    }
    s->first[0] = s->sink;
    *out = s;
    return KV_OK;
}

struct queries { /* the last n prefill queries, [n][group][d_head], the last one at position n_rows - 1 */
    const float *q;
    int32_t n, n_rows;
};

/* Mean logit of a row under the queries of the window that follows it; false when none covers it. */
static bool influence_of(struct kv_selector *s, const struct queries *p, int32_t row, float *out)
{
    int32_t start = p->n_rows - p->n, from = row + 1 > start ? row + 1 : start, to = row + 1 + s->local < p->n_rows ? row + 1 + s->local : p->n_rows;
    double sum = 0;
    for (int32_t i = from; i < to; i++)
        for (int32_t g = 0; g < s->group; g++)
            sum += (double)kv_kernels()->dot(p->q + ((size_t)(i - start) * (size_t)s->group + (size_t)g) * (size_t)s->d_head, s->row, s->d_head);
    *out = from < to ? (float)(sum / (to - from)) : 0;
    return from < to;
}

static void agree_with_mean(struct kv_selector *s, const struct kv_rows *rows, int32_t first, int32_t n)
{
    memset(s->mean, 0, (size_t)s->d_head * sizeof *s->mean);
    for (int32_t i = 0; i < n; i++) {
        kv_rows_key(rows, first + i, s->row);
        for (int32_t c = 0; c < s->d_head; c++) s->mean[c] += (double)s->row[c] / n;
    }
    for (int32_t i = 0; i < n; i++) {
        double dot = 0;
        kv_rows_key(rows, first + i, s->row);
        for (int32_t c = 0; c < s->d_head; c++) dot += s->mean[c] * (double)s->row[c];
        s->influence[i] = (float)dot;
    }
}

static enum kv_status close_unit(struct kv_selector *s, const struct kv_rows *rows, const struct queries *p, int32_t end)
{
    if (s->n_units == s->max_units) return KV_CAPACITY;
    int32_t u = s->n_units, first = s->first[u], n = end - first, reps = s->reps < n ? s->reps : n;
    bool covered = p->n > 0;
    for (int32_t i = 0; i < n && covered; i++) {
        kv_rows_key(rows, first + i, s->row);
        covered = influence_of(s, p, first + i, &s->influence[i]);
    }
    if (!covered) agree_with_mean(s, rows, first, n);
    for (int32_t i = 0; i < n; i++) s->key[i] = kv_rank_key(s->influence[i], (uint32_t)i);
    kv_rank_select(s->key, (size_t)n, (size_t)reps);
    kv_rank_sort(s->key, (size_t)reps);
    size_t row_bytes = kv_rows_row_bytes(rows);
    for (int32_t i = 0; i < reps; i++) {
        int32_t row = first + (int32_t)kv_rank_index(s->key[i]);
        memcpy(s->rep + ((size_t)u * (size_t)s->reps + (size_t)i) * row_bytes, (const uint8_t *)rows->k[row / KV_BLOCK_ROWS] + (size_t)(row % KV_BLOCK_ROWS) * row_bytes, row_bytes);
    }
    s->n_reps[u] = reps;
    s->first[++s->n_units] = end;
    return KV_OK;
}

/* Closes units that have left the window of the rows covered, until the products are used up; *done: there is none left. */
static enum kv_status close_units(struct kv_selector *s, const struct kv_rows *rows, const struct queries *p, int64_t products, bool *done)
{
    enum kv_status status = KV_OK;
    while (!(*done = (int64_t)s->first[s->n_units] + s->unit_rows + s->local > s->n_rows) && products > 0 && status == KV_OK) {
        status = close_unit(s, rows, p, s->first[s->n_units] + s->unit_rows);
        products -= (int64_t)UNIT_WORK * s->unit_rows * s->d_head;
    }
    return status;
}

static enum kv_status infllm_append(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    bool done;
    if (from != s->n_rows || rows->n_rows < from) return KV_STALE_INDEX;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    s->n_rows = rows->n_rows;
    return close_units(s, rows, &(struct queries){NULL, 0, 0}, INT64_MAX, &done);
}

static enum kv_status infllm_build_some(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q, int64_t products, bool *done)
{
    *done = false;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    if (!s->building || rows->n_rows < s->building) {
        s->n_rows = s->building = rows->n_rows;
        s->n_units = 0;
    }
    enum kv_status status = close_units(s, rows, &(struct queries){prefill_q, prefill_q ? n_prefill_q : 0, s->building}, products, done);
    if (*done) s->building = 0;
    return status;
}

static enum kv_status infllm_build(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    bool done;
    s->building = 0;
    return infllm_build_some(s, rows, prefill_q, n_prefill_q, INT64_MAX, &done);
}

static enum kv_status infllm_seal(struct kv_selector *s, const struct kv_rows *rows)
{
    if (rows->n_rows != s->n_rows) return KV_STALE_INDEX;
    int32_t end = s->n_rows - s->local;
    return end > s->first[s->n_units] ? close_unit(s, rows, &(struct queries){NULL, 0, 0}, end) : KV_OK;
}

/* Units that would reach into the new window go back to it, as if they had never been closed. */
static enum kv_status infllm_drop(struct kv_selector *s, int32_t to)
{
    if (to < 0) return KV_BAD_ARGUMENT;
    if (to < s->n_rows) s->n_rows = to;
    while (s->n_units && s->first[s->n_units] > s->n_rows - s->local) s->n_units--;
    return KV_OK;
}

static int32_t infllm_covered(const struct kv_selector *s) { return s->n_rows; }

static enum kv_status infllm_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                                   int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    int32_t n = rows->n_rows;
    size_t d = (size_t)s->d_head;
    enum kv_status status = kv_selection_open(rows, s->n_rows, s->group, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || n == 0) return status;
    int64_t want = (int64_t)s->units << (widen ? 1 : 0);
    int32_t take = want < s->n_units ? (int32_t)want : s->n_units;
    uint64_t reps = 0;
    struct kv_mat all = {rows->row_type, s->n_units * s->reps, s->d_head, s->rep, (size_t)s->n_units * (size_t)s->reps * kv_rows_row_bytes(rows)};
    struct kv_act heads = {.n = s->group, .cols = s->d_head, .f32 = q};
    kv_kernels()->matmul(&all, &heads, 0, all.rows, s->product, s->product_stride);
    for (int32_t u = 0; u < s->n_units; u++) {
        double sum = 0;
        for (int32_t g = 0; g < s->group; g++)
            for (int32_t r = 0; r < s->n_reps[u]; r++)
                sum += (double)s->product[(size_t)g * s->product_stride + (size_t)u * (size_t)s->reps + (size_t)r];
        s->score[u] = (float)sum;
        s->key[u] = kv_rank_key(s->score[u], (uint32_t)u);
        reps += (uint64_t)s->n_reps[u];
    }
    kv_rank_select(s->key, (size_t)s->n_units, (size_t)take);
    kv_mask_set_range(support, 0, s->sink < n ? s->sink : n);
    kv_mask_set_range(support, s->first[s->n_units] < n ? s->first[s->n_units] : n, n);
    for (int32_t i = 0; i < take; i++) {
        int32_t u = (int32_t)kv_rank_index(s->key[i]);
        kv_mask_set_range(support, s->first[u], s->first[u + 1]);
    }
    for (int32_t g = 0; g < s->group; g++) {
        if (g) memcpy(support + (size_t)g * (size_t)n_blocks, support, (size_t)n_blocks * sizeof *support);
        for (int32_t i = 0; i < take; i++) kv_trace_choose(ledger, g, (int32_t)kv_rank_index(s->key[i]));
        kv_trace_scores(ledger, g, s->score, s->n_units, s->n_units);
    }
    ledger->candidates = (uint64_t)s->n_units;
    ledger->units = (uint64_t)take;
    ledger->candidate_bytes = ledger->index_bytes = reps * kv_rows_row_bytes(rows);
    ledger->selector_macs = reps * d * (uint64_t)s->group;
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

const struct kv_selector_method kv_selector_infllm = {
    .name = "infllm", .byte_cost = 2.5, .params = kv_selector_infllm_params, .n_params = N_PARAMS, .from_queries = true, .per_q_head = false,
    .create = infllm_create, .tune = infllm_tune, .destroy = infllm_destroy, .build = infllm_build, .build_some = infllm_build_some, .append = infllm_append, .seal = infllm_seal,
    .drop = infllm_drop, .query = infllm_query, .covered = infllm_covered,
};
