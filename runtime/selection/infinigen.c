/* infinigen.c — InfiniGen (0x06): rows ranked by partial logits in a skewed basis, one support per query head.
 *
 * build takes the right singular vectors of the sampled queries (the group's prefill queries; without any, keys at even distances) as the basis A,
 * then int(ρ d) shared columns by Σ (|QA| + |KA|), and keeps those columns of every key, stored as keys are. A row is wanted when its partial logit is
 * over max − alpha; equalise gives every head of the group the mean count; cap_rows is the paper's declared cut, and the
 * ledger's candidates keep the count before it. The newest row is always attended. Ties go to the lower row. The first two layers stay
 * dense. alpha and cap_rows large enough select every row. Widening doubles alpha and cap_rows. While serving, the query is the one that
 * the preceding layer's input foretells (rehearse); rotation lies between W_q and the keys, so W_q cannot be skewed beforehand as the paper does
 * for unrotated models: all of it is multiplied, and the partial channels are taken after. */
#include "runtime/selection/methods.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/scratch.h"
#include "runtime/selection/support.h"
#include "runtime/selection/top.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BASIS_KEYS = 1024 }; /* that the basis is taken from where there are no queries */
enum { PARTIAL_RATIO, ALPHA, CAP_ROWS, EQUALISE, REHEARSE, N_PARAMS };
const struct kv_param_spec kv_selector_infinigen_params[N_PARAMS] = {
    {"partial_ratio", "float", 0.3, 0.01, 1, "share", "paper: 0.3; code: 0.2", "share of the skewed channels that are rehearsed"},
    {"alpha", "float", 4, 0, 1e9, "logits", "paper: 4 OPT, 5 LLaMA", "rows within alpha of the best partial logit are wanted"},
    {"cap_rows", "int", 400, 1, 1048576, "rows", "code: 400 of 2048", "most rows a head takes"},
    {"equalise", "bool", 1, 0, 1, "", "paper", "every head of the group takes the mean count"},
    {"rehearse", "bool", 1, 0, 1, "", "paper", "rank by the query that the layer before foretells, so that rows can be fetched while that layer computes"},
};

struct kv_selector {
    int32_t d_head, group, n_part, cap, cap_rows, n_rows;
    double alpha;
    bool equalise, based; /* based: the basis was taken */
    double *basis, *gram; /* [d][d] columns are directions; [d][d] */
    float *direction;     /* [d][d] all directions, one a row */
    float *column;        /* [n_part][d] chosen directions */
    void *part;           /* [blocks][n_part][64] partial keys, all read in order; room for fp32 */
    float *product;       /* [d][64] of a block's keys and directions */
    uint64_t *key;        /* [d] */
    double *evidence;     /* [d] */
    float *row, *turned;  /* [d], [group][n_part] */
    int32_t *count;       /* [group] */
};

static void infinigen_destroy(struct kv_selector *s)
{
    if (!s) return;
    void *const owned[] = {s->basis, s->gram, s->direction, s->column, s->part, s->product, s->key, s->evidence, s->row, s->turned, s->count};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(s);
}

static void infinigen_tune(struct kv_selector *s, const struct kv_params *p)
{
    s->alpha = p->value[ALPHA];
    s->cap_rows = (int32_t)p->value[CAP_ROWS];
}

static enum kv_status infinigen_create(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                                       struct kv_selector **out, struct kv_error *err)
{
    (void)seed;
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    struct kv_selector *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "infinigen", "no memory for a selector");
    s->d_head = d_head, s->group = group, s->cap = kv_mask_words(n_rows_max) * 64;
    size_t d = (size_t)d_head;
    s->n_part = (int32_t)(p->value[PARTIAL_RATIO] * d_head);
    if (s->n_part < 1) s->n_part = 1;
    infinigen_tune(s, p);
    s->equalise = p->value[EQUALISE] != 0;
    size_t part = (size_t)s->n_part;
    s->basis = calloc(d * d, sizeof *s->basis);
    s->gram = calloc(d * d, sizeof *s->gram);
    s->direction = calloc(d * d, sizeof *s->direction);
    s->column = calloc(part * d, sizeof *s->column);
    s->part = kv_index_memory(part * (size_t)s->cap * sizeof(float));
    s->product = calloc(d * KV_BLOCK_ROWS, sizeof *s->product);
    s->key = calloc(d, sizeof *s->key);
    s->evidence = calloc(d, sizeof *s->evidence);
    s->row = calloc(d, sizeof *s->row);
    s->turned = calloc((size_t)group * part, sizeof *s->turned);
    s->count = calloc((size_t)group, sizeof *s->count);
    if (!s->basis || !s->gram || !s->direction || !s->column || !s->part || !s->product || !s->key || !s->evidence || !s->row || !s->turned || !s->count) {
        infinigen_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "infinigen", "no memory for the partial keys of %d rows", n_rows_max);
    }
    *out = s;
    return KV_OK;
}

/* One Jacobi rotation of the symmetric gram that clears (p, r), carried into the basis. */
static void rotate(double *a, double *v, size_t d, size_t p, size_t r)
{
    double apr = a[p * d + r];
    if (apr == 0) return;
    double theta = (a[r * d + r] - a[p * d + p]) / (2 * apr);
    double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1)), c = 1 / sqrt(t * t + 1), w = t * c;
    for (size_t i = 0; i < d; i++) {
        double x = a[i * d + p], y = a[i * d + r];
        a[i * d + p] = c * x - w * y;
        a[i * d + r] = w * x + c * y;
    }
    for (size_t i = 0; i < d; i++) {
        double x = a[p * d + i], y = a[r * d + i];
        a[p * d + i] = c * x - w * y;
        a[r * d + i] = w * x + c * y;
        x = v[i * d + p], y = v[i * d + r];
        v[i * d + p] = c * x - w * y;
        v[i * d + r] = w * x + c * y;
    }
}

/* Eigenvectors of the gram are the right singular vectors of the samples it was summed from. */
static void take_basis(struct kv_selector *s)
{
    size_t d = (size_t)s->d_head;
    double trace = 0;
    for (size_t i = 0; i < d * d; i++) s->basis[i] = 0;
    for (size_t i = 0; i < d; i++) s->basis[i * d + i] = 1, trace += s->gram[i * d + i];
    if (!isfinite(trace)) return; /* damaged samples: the plain channels serve */
    for (int sweep = 0; sweep < 30; sweep++) {
        double off = 0;
        for (size_t p = 0; p < d; p++)
            for (size_t r = p + 1; r < d; r++) off += fabs(s->gram[p * d + r]);
        if (off <= 1e-13 * trace) return;
        for (size_t p = 0; p < d; p++)
            for (size_t r = p + 1; r < d; r++) rotate(s->gram, s->basis, d, p, r);
    }
}

static void add_gram(struct kv_selector *s, const float *x)
{
    size_t d = (size_t)s->d_head;
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) s->gram[i * d + j] += (double)x[i] * (double)x[j];
}

static void add_evidence(struct kv_selector *s, const float *x)
{
    size_t d = (size_t)s->d_head;
    for (size_t j = 0; j < d; j++) s->evidence[j] += fabs((double)kv_kernels()->dot(x, s->direction + j * d, s->d_head));
}

/* Products of rows [from, to) of block b with n directions: product[direction][row]. */
static void turn_rows(const struct kv_selector *s, const struct kv_rows *rows, int32_t b, int32_t from, int32_t to, const float *direction, int32_t n)
{
    struct kv_mat keys = {rows->row_type, to, s->d_head, rows->k[b], (size_t)to * kv_rows_row_bytes(rows)};
    struct kv_act act = {.n = n, .cols = s->d_head, .f32 = direction};
    kv_kernels()->matmul(&keys, &act, from / 16 * 16, to, s->product, KV_BLOCK_ROWS);
}

static int32_t rows_of_block(const struct kv_rows *rows, int32_t b)
{
    int32_t left = rows->n_rows - b * KV_BLOCK_ROWS;
    return left < KV_BLOCK_ROWS ? left : KV_BLOCK_ROWS;
}

static void choose_columns(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    size_t d = (size_t)s->d_head;
    int64_t n_q = prefill_q ? (int64_t)n_prefill_q * s->group : 0;
    memset(s->gram, 0, d * d * sizeof *s->gram);
    memset(s->evidence, 0, d * sizeof *s->evidence);
    for (int64_t i = 0; i < n_q; i++) add_gram(s, prefill_q + (size_t)i * d);
    for (int32_t i = 0; n_q == 0 && i < rows->n_rows; i += (rows->n_rows - 1) / BASIS_KEYS + 1) {
        kv_rows_key(rows, i, s->row);
        add_gram(s, s->row);
    }
    take_basis(s);
    for (size_t j = 0; j < d; j++)
        for (size_t i = 0; i < d; i++) s->direction[j * d + i] = (float)s->basis[i * d + j];
    for (int64_t i = 0; i < n_q; i++) add_evidence(s, prefill_q + (size_t)i * d);
    for (int32_t b = 0; b < kv_mask_words(rows->n_rows); b++) {
        int32_t n = rows_of_block(rows, b);
        turn_rows(s, rows, b, 0, n, s->direction, s->d_head);
        for (size_t j = 0; j < d; j++)
            for (int32_t t = 0; t < n; t++) s->evidence[j] += fabs((double)s->product[j * KV_BLOCK_ROWS + (size_t)t]);
    }
    for (size_t j = 0; j < d; j++) s->key[j] = kv_rank_key((float)s->evidence[j], (uint32_t)j);
    kv_rank_sort(s->key, d);
    for (int32_t c = 0; c < s->n_part; c++)
        memcpy(s->column + (size_t)c * d, s->direction + (size_t)kv_rank_index(s->key[c]) * d, d * sizeof *s->column);
    s->based = true;
}

static enum kv_status index_rows(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    size_t width = kv_rows_row_bytes(rows) / (size_t)s->d_head;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    for (int32_t b = from / KV_BLOCK_ROWS; b < kv_mask_words(rows->n_rows); b++) {
        int32_t to = rows_of_block(rows, b), first = from > b * KV_BLOCK_ROWS ? from - b * KV_BLOCK_ROWS : 0;
        turn_rows(s, rows, b, first, to, s->column, s->n_part);
        for (int32_t c = 0; c < s->n_part; c++) {
            size_t at = ((size_t)b * (size_t)s->n_part + (size_t)c) * KV_BLOCK_ROWS + (size_t)first;
            kv_kernels()->to_rows(rows->row_type, s->product + c * KV_BLOCK_ROWS + first, to - first, (uint8_t *)s->part + at * width);
        }
    }
    s->n_rows = rows->n_rows;
    return KV_OK;
}

static enum kv_status infinigen_build(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    s->based = false;
    s->n_rows = 0;
    if (rows->n_rows == 0) return KV_OK; /* the first rows appended will give the basis */
    choose_columns(s, rows, prefill_q, n_prefill_q);
    return index_rows(s, rows, 0);
}

static enum kv_status infinigen_append(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    if (from != s->n_rows || rows->n_rows < from) return KV_STALE_INDEX;
    if (!s->based) return infinigen_build(s, rows, NULL, 0);
    return index_rows(s, rows, from);
}

static enum kv_status infinigen_drop(struct kv_selector *s, int32_t to)
{
    if (to < 0) return KV_BAD_ARGUMENT;
    if (to < s->n_rows) s->n_rows = to;
    return KV_OK;
}

static int32_t infinigen_covered(const struct kv_selector *s) { return s->n_rows; }

/* The heads' partial logits. */
static void rehearse(struct kv_selector *s, const struct kv_rows *rows, const float *q, float *out)
{
    for (int32_t g = 0; g < s->group; g++)
        for (int32_t c = 0; c < s->n_part; c++)
            s->turned[g * s->n_part + c] = rows->scale * kv_kernels()->dot(q + (size_t)g * (size_t)s->d_head, s->column + (size_t)c * (size_t)s->d_head, s->d_head);
    kv_kernels()->column_dots(rows->row_type, s->part, s->n_part, KV_BLOCK_ROWS, NULL, s->turned, s->group, s->n_part, kv_mask_words(rows->n_rows), out, (size_t)s->cap);
}

/* Rows over max − alpha; at least one. What is not a number is wanted. */
static int32_t count_wanted(const float *score, int32_t n, double alpha)
{
    uint64_t bits[KV_BLOCK_ROWS];
    double bar = (double)kv_score_top(score, n) - alpha;
    float under = (float)bar; /* the largest that is not over the bar */
    if ((double)under > bar) under = nextafterf(under, -INFINITY);
    int32_t count = 0, part = KV_BLOCK_ROWS * KV_BLOCK_ROWS;
    for (int32_t i = 0; i < n; i += part) count += kv_kernels()->outrank(score + i, n - i < part ? n - i : part, under, bits);
    return count > 0 ? count : 1;
}

static enum kv_status infinigen_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                                      int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    int32_t n = rows->n_rows;
    enum kv_status status = kv_selection_open(rows, s->n_rows, s->group, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || n == 0) return status;
    int64_t cap = (int64_t)s->cap_rows << (widen ? 1 : 0), total = 0;
    double alpha = widen ? 2 * s->alpha : s->alpha;
    uint64_t *key = kv_scratch((size_t)s->cap * (sizeof *key + (size_t)s->group * sizeof(float)));
    if (!key) return KV_OUT_OF_MEMORY;
    float *scores = (float *)(key + s->cap);
    rehearse(s, rows, q, scores);
    for (int32_t g = 0; g < s->group; g++) {
        s->count[g] = count_wanted(scores + (size_t)g * (size_t)s->cap, n, alpha);
        total += s->count[g];
    }
    for (int32_t g = 0; g < s->group; g++) {
        uint64_t *mask = support + (size_t)g * (size_t)n_blocks;
        const float *score = scores + (size_t)g * (size_t)s->cap;
        int64_t want = s->equalise ? total / s->group : s->count[g];
        if (want > cap) want = cap;
        kv_top_rows(score, n, (int32_t)want, key, mask);
        for (int64_t i = 0; ledger->trace && i < want; i++) kv_trace_choose(ledger, g, (int32_t)kv_rank_index(key[i]));
        kv_mask_set(mask, n - 1);
        kv_trace_scores(ledger, g, score, n, n);
        ledger->units += (uint64_t)want;
    }
    ledger->candidates = (uint64_t)total;
    ledger->candidate_bytes = (uint64_t)n * (uint64_t)s->n_part * kv_rows_row_bytes(rows) / (uint64_t)s->d_head;
    ledger->selector_macs = (uint64_t)n * (uint64_t)s->n_part * (uint64_t)s->group + (uint64_t)s->group * (uint64_t)s->n_part * (uint64_t)s->d_head;
    ledger->index_bytes = ledger->candidate_bytes + (uint64_t)s->n_part * (uint64_t)s->d_head * sizeof(float);
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

const struct kv_selector_method kv_selector_infinigen = {
    .name = "infinigen", .byte_cost = 2.8, .params = kv_selector_infinigen_params, .n_params = N_PARAMS, .from_queries = true, .rehearse = "rehearse", .dense_layers = 2, .per_q_head = true,
    .create = infinigen_create, .tune = infinigen_tune, .destroy = infinigen_destroy, .build = infinigen_build, .append = infinigen_append, .drop = infinigen_drop,
    .query = infinigen_query, .covered = infinigen_covered,
};
