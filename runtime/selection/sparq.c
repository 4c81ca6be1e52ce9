/* sparq.c — SparQ (0x05E–I): rows ranked by logits over the query's r largest channels, one support per K/V head.
 *
 * Channels by Σ|q| over the group, rows by Σ of the group's proxy softmaxes at temperature √(d · coverage). The last local_rows
 * are among the k by an explicit union (the source's "+1"), ties go to the lower index. No dense layers, no sink. k ≥ T selects every
 * row. The index is a second copy of the keys as they are stored, channel-major in runs of rows, so that of every run r channels are read, for
 * all heads of the group at once; appended as rows are committed.
 * mean_term mixes in the running mean of values (the paper leaves it out under grouped queries). Widening doubles k. */
#include "runtime/selection/methods.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/scratch.h"
#include "runtime/selection/support.h"
#include "runtime/selection/top.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { R, K, LOCAL_ROWS, MEAN_TERM, N_PARAMS };
const struct kv_param_spec kv_selector_sparq_params[N_PARAMS] = {
    {"r", "int", 32, 1, 1024, "channels", "paper: d = 128", "query channels read for every row; at most the head's width"},
    {"k", "int", 128, 1, 1048576, "rows", "paper", "rows attended"},
    {"local_rows", "int", 32, 0, 1048576, "rows", "house: k / 4", "last rows, always among the k; at most k"},
    {"mean_term", "bool", 0, 0, 1, "", "paper: omitted for grouped queries", "give the estimated omitted mass to the mean value"},
};

struct kv_selector {
    int32_t d_head, group, r, k, local_rows, cap_rows, n_rows;
    bool mean_term;
    void *column;         /* [runs][d_head][KV_RUN_ROWS] keys; room for fp32 */
    double *value_sum;    /* [d_head] over rows 0 … n_rows-1 */
    float *row;           /* [d_head] */
    uint64_t *key;        /* [d_head] */
    int32_t *chosen;      /* [d_head] channels of the last query, ascending */
    float *weight;        /* [group][d_head] the heads' scaled values in them */
    double *alpha;        /* [group] share of the head's proxy softmax on the last support */
    float *attend;        /* states and scratch of estimate */
    int32_t *visible;     /* [group] */
    bool dropped;         /* value_sum holds rows that are gone; the next append sums again */
};

static void sparq_destroy(struct kv_selector *s)
{
    if (!s) return;
    void *const owned[] = {s->column, s->value_sum, s->row, s->key, s->chosen, s->weight, s->alpha, s->attend, s->visible};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(s);
}

static void sparq_tune(struct kv_selector *s, const struct kv_params *p)
{
    s->r = p->value[R] < s->d_head ? (int32_t)p->value[R] : s->d_head;
    s->k = (int32_t)p->value[K];
    s->local_rows = (int32_t)p->value[LOCAL_ROWS];
}

static enum kv_status sparq_create(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                                   struct kv_selector **out, struct kv_error *err)
{
    (void)seed;
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    if (p->value[LOCAL_ROWS] > p->value[K])
        return kv_fail(err, KV_BAD_ARGUMENT, "local_rows", "local_rows %g must not exceed k %g", p->value[LOCAL_ROWS], p->value[K]);
    struct kv_selector *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "sparq", "no memory for a selector");
    s->d_head = d_head, s->group = group, s->cap_rows = kv_mask_words(n_rows_max) * 64;
    size_t d = (size_t)d_head, g = (size_t)group;
    sparq_tune(s, p);
    s->mean_term = p->value[MEAN_TERM] != 0;
    size_t scratch = g * (d + 2) + kv_attend_scratch_floats(group, d_head, kv_tree_level(kv_mask_words(n_rows_max)));
    s->column = kv_index_memory(d * kv_run_rows(n_rows_max) * sizeof(float)); /* of half as wide rows only the first half is ever touched */
    s->value_sum = calloc(d, sizeof *s->value_sum);
    s->row = calloc(d, sizeof *s->row);
    s->key = calloc(d, sizeof *s->key);
    s->chosen = calloc(d, sizeof *s->chosen);
    s->weight = calloc(g * d, sizeof *s->weight);
    s->alpha = calloc(g, sizeof *s->alpha);
    s->attend = calloc(scratch, sizeof *s->attend);
    s->visible = calloc(g, sizeof *s->visible);
    if (!s->column || !s->value_sum || !s->row || !s->key || !s->chosen || !s->weight || !s->alpha || !s->attend || !s->visible) {
        sparq_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "sparq", "no memory for the channels of %d rows", n_rows_max);
    }
    *out = s;
    return KV_OK;
}

static void add_value(struct kv_selector *s, const struct kv_rows *rows, int32_t row)
{
    kv_rows_value(rows, row, s->row);
    for (int32_t c = 0; c < s->d_head; c++) s->value_sum[c] += (double)s->row[c];
}

static enum kv_status sparq_append(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    if (from != s->n_rows || rows->n_rows < from) return KV_STALE_INDEX;
    if (rows->n_rows > s->cap_rows) return KV_CAPACITY;
    if (s->mean_term && (s->dropped || from == 0)) {
        memset(s->value_sum, 0, (size_t)s->d_head * sizeof *s->value_sum);
        for (int32_t i = 0; i < from; i++) add_value(s, rows, i);
    }
    s->dropped = false;
    size_t row_bytes = kv_rows_row_bytes(rows);
    for (int32_t i = from, n; i < rows->n_rows; i += n) {
        n = KV_BLOCK_ROWS - i % KV_BLOCK_ROWS < rows->n_rows - i ? KV_BLOCK_ROWS - i % KV_BLOCK_ROWS : rows->n_rows - i;
        const uint8_t *keys = (const uint8_t *)rows->k[i / KV_BLOCK_ROWS] + (size_t)(i % KV_BLOCK_ROWS) * row_bytes;
        kv_columns_put(rows->row_type, keys, n, s->d_head, i, s->column);
    }
    for (int32_t i = from; s->mean_term && i < rows->n_rows; i++) add_value(s, rows, i);
    s->n_rows = rows->n_rows;
    return KV_OK;
}

static enum kv_status sparq_build(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    (void)prefill_q;
    (void)n_prefill_q;
    s->n_rows = 0;
    return sparq_append(s, rows, 0);
}

static enum kv_status sparq_drop(struct kv_selector *s, int32_t to)
{
    if (to < 0) return KV_BAD_ARGUMENT;
    if (to < s->n_rows) {
        s->n_rows = to;
        s->dropped = true;
    }
    return KV_OK;
}

static int32_t sparq_covered(const struct kv_selector *s) { return s->n_rows; }

static void choose_channels(struct kv_selector *s, const float *q)
{
    uint64_t taken[1024 / 64] = {0};
    for (int32_t c = 0; c < s->d_head; c++) {
        float sum = 0;
        for (int32_t g = 0; g < s->group; g++) sum += fabsf(q[(size_t)g * (size_t)s->d_head + (size_t)c]);
        s->key[c] = kv_rank_key(sum, (uint32_t)c);
    }
    kv_rank_select(s->key, (size_t)s->d_head, (size_t)s->r);
    for (int32_t i = 0; i < s->r; i++) kv_mask_set(taken, (int32_t)kv_rank_index(s->key[i]));
    for (int32_t c = 0, i = 0; c < s->d_head; c++)
        if (kv_mask_has(taken, c)) s->chosen[i++] = c;
}

struct work { /* of a query, in the thread's memory */
    uint64_t *key;               /* [cap_rows] */
    float *own;                  /* [group][cap_rows] proxy softmaxes */
    struct kv_group_score score; /* [cap_rows] */
};

static bool open_work(const struct kv_selector *s, struct work *w)
{
    size_t n = (size_t)s->cap_rows;
    w->key = kv_scratch(n * (sizeof *w->key + ((size_t)s->group + 2) * sizeof(float)));
    if (!w->key) return false;
    w->own = (float *)(w->key + n);
    w->score.total = w->own + (size_t)s->group * n;
    w->score.best = w->score.total + n;
    return true;
}

/* The heads' proxy logits over the committed rows. The scale of attention stands for 1/√d at full coverage. */
static void proxy_logits(struct kv_selector *s, const struct kv_rows *rows, const float *q, float *out)
{
    for (int32_t g = 0; g < s->group; g++, q += s->d_head) {
        double whole = 0, part = 0;
        for (int32_t c = 0; c < s->d_head; c++) whole += fabs((double)q[c]);
        for (int32_t i = 0; i < s->r; i++) part += fabs((double)q[s->chosen[i]]);
        /* A head without energy in the group's channels says nothing about rows. */
        float scale = part > 0 ? (float)((double)rows->scale / sqrt(part / whole)) : 0;
        for (int32_t i = 0; i < s->r; i++) s->weight[(size_t)g * (size_t)s->r + (size_t)i] = q[s->chosen[i]] * scale;
    }
    kv_kernels()->column_dots(rows->row_type, s->column, s->d_head, KV_RUN_ROWS, s->chosen, s->weight, s->group, s->r, kv_mask_words(rows->n_rows), out, (size_t)s->cap_rows);
}

/* α: the share of the head's proxy softmax that lies on the mask's rows; 1 when they are all rows. */
static double proxy_mass(const struct kv_selector *s, const float *own, const uint64_t *mask)
{
    double alpha = 0;
    int32_t in = 0, words = kv_mask_words(s->n_rows);
    for (int32_t w = 0; w < words; w++)
        for (uint64_t rows = mask[w]; rows; rows &= rows - 1) alpha += (double)own[w * 64 + __builtin_ctzll(rows)], in++;
    return in == s->n_rows || alpha > 1 ? 1 : alpha;
}

static enum kv_status sparq_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                                  int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    int32_t n = rows->n_rows;
    enum kv_status status = kv_selection_open(rows, s->n_rows, s->group, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || n == 0) return status;
    int64_t want = (int64_t)s->k << (widen ? 1 : 0);
    int32_t k = want < n ? (int32_t)want : n, local = s->local_rows < k ? s->local_rows : k, far = n - local;
    size_t d = (size_t)s->d_head, stride = (size_t)s->cap_rows;
    struct work w;
    if (!open_work(s, &w)) return KV_OUT_OF_MEMORY;
    choose_channels(s, q);
    proxy_logits(s, rows, q, w.own);
    kv_group_score_open(&w.score);
    for (int32_t g = 0; g < s->group; g++) kv_group_score_add(&w.score, w.own + (size_t)g * stride, n);
    kv_top_rows(kv_group_score_all(&w.score, n), far, k - local, w.key, support);
    kv_mask_set_range(support, far, n);
    for (int32_t g = 0; g < s->group; g++) {
        uint64_t *mask = support + (size_t)g * (size_t)n_blocks;
        if (g) memcpy(mask, support, (size_t)n_blocks * sizeof *mask);
        for (int32_t t = 0; ledger->trace && t < n; t++)
            if (kv_mask_has(support, t)) kv_trace_choose(ledger, g, t);
        s->alpha[g] = proxy_mass(s, w.own + (size_t)g * stride, mask);
        if (estimated_omitted_mass) estimated_omitted_mass[g] = 1 - s->alpha[g];
        kv_trace_scores(ledger, g, w.score.total, n, n);
    }
    ledger->candidates = (uint64_t)n;
    ledger->candidate_bytes = (uint64_t)n * (uint64_t)s->r * kv_rows_row_bytes(rows) / d;
    ledger->selector_macs = (uint64_t)n * (uint64_t)s->r * (uint64_t)s->group;
    ledger->units = (uint64_t)k;
    ledger->index_bytes = (uint64_t)n * kv_rows_row_bytes(rows);
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

/* α · attention over the support + (1 − α) · mean value, by the proxy of the last query. Without the mean term: canonical attention. */
static enum kv_status sparq_estimate(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *support,
                                     int32_t n_blocks, float *out)
{
    int32_t group = s->group, d = s->d_head;
    struct kv_states state = {s->attend, s->attend + group, s->attend + 2 * group};
    for (int32_t g = 0; g < group; g++) s->visible[g] = rows->n_rows;
    struct kv_attention a = {d, group, q, (size_t)d, rows->row_type, rows->scale, n_blocks, rows->k, rows->v, s->visible, support};
    kv_attend_subtree(kv_kernels(), &a, kv_tree_level(n_blocks), 0, state, s->attend + (size_t)group * ((size_t)d + 2));
    kv_kernels()->finish(group, d, state, out, (size_t)d);
    for (int32_t g = 0; s->mean_term && g < group; g++) {
        double alpha = s->alpha[g];
        if (alpha >= 1) continue;
        for (int32_t c = 0; c < d; c++) {
            float *o = &out[(size_t)g * (size_t)d + (size_t)c];
            *o = (float)(alpha * (double)*o + (1 - alpha) * s->value_sum[c] / s->n_rows);
        }
    }
    return KV_OK;
}

const struct kv_selector_method kv_selector_sparq = {
    .name = "sparq", .byte_cost = 2.8, .params = kv_selector_sparq_params, .n_params = N_PARAMS, .online_estimate = "share of its own proxy softmax, without an interval", .per_q_head = false,
    .create = sparq_create, .tune = sparq_tune, .destroy = sparq_destroy, .build = sparq_build, .append = sparq_append, .drop = sparq_drop,
    .query = sparq_query, .covered = sparq_covered, .estimates = "mean_term", .estimate = sparq_estimate,
};
