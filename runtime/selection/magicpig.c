/* magicpig.c — MagicPIG (0x07I): rows sampled by locality-sensitive hashing, attended with weights 1/u; one support per query head.
 *
 * build centres the rows between sink and local window by their mean (so are the static rows in the estimator), hashes them into `tables`
 * tables of `bits` signs of shared random projections, and lists each bucket's rows. A query samples the rows that meet it in at least
 * min_collisions tables; u is the probability of that. Static rows (sink, window, every row appended after build) have u = 1.
 * The estimator is self-normalised importance sampling: random by seed, biased on finite samples, never equal to dense, whatever
 * the budget. u = 0 for a sampled row is ZERO_INCLUSION. The first layer stays dense (the paper: every sixteenth). There is no wider search: fall back to exact. */
#include "runtime/selection/draw.h"
#include "runtime/selection/methods.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES, BITS, MIN_COLLISIONS, SINK_ROWS, LOCAL_ROWS, CENTRE, SEED, N_PARAMS };
const struct kv_param_spec kv_selector_magicpig_params[N_PARAMS] = {
    {"tables", "int", 150, 1, 1024, "tables", "paper: (K, L) = (10, 150)", "hash tables L"},
    {"bits", "int", 10, 1, 14, "bits", "paper: (K, L) = (10, 150)", "signs K per table"},
    {"min_collisions", "int", 2, 1, 1024, "tables", "paper", "tables a row must share with the query; at most tables"},
    {"sink_rows", "int", 4, 0, 1048576, "rows", "paper", "first rows, always attended"},
    {"local_rows", "int", 64, 0, 1048576, "rows", "paper", "last rows at build, always attended"},
    {"centre", "bool", 1, 0, 1, "", "paper", "subtract the mean of the hashed keys from every key"},
    {"seed", "int", 0, 0, 9007199254740991, "", "house", "draws the projections"},
};

struct kv_selector {
    int32_t d_head, group, cap, tables, bits, min_collisions, sink, local, n_rows, n_hashed; /* rows [sink, sink + n_hashed) are hashed */
    bool centre;
    int32_t building, filled; /* rows of the build in work, 0: none; its tables so far */
    float *plane;        /* [tables][bits][d_head] */
    int32_t *start;      /* [tables][2^bits + 1] into id */
    int32_t *id;         /* [tables][cap] rows, bucket by bucket, ascending in each */
    uint16_t *code;      /* [cap] of one table while it is built */
    uint16_t *met;       /* [cap] tables in which a row met the query */
    double *mean;        /* [d_head] of the hashed keys; zero without centring */
    uint64_t *sampled;   /* [group][words of cap] rows sampled by the last query */
    float *row, *centred; /* [d_head] */
    double *weight;      /* [cap] logits of estimate */
};

static void magicpig_destroy(struct kv_selector *s)
{
    if (!s) return;
    void *const owned[] = {s->plane, s->start, s->id, s->code, s->met, s->mean, s->sampled, s->row, s->centred, s->weight};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(s);
}

static size_t buckets(const struct kv_selector *s) { return (size_t)1 << s->bits; }

static bool allocate(struct kv_selector *s)
{
    size_t l = (size_t)s->tables, d = (size_t)s->d_head, n = (size_t)s->cap;
    s->plane = calloc(l * (size_t)s->bits * d, sizeof *s->plane);
    s->start = calloc(l * (buckets(s) + 1), sizeof *s->start);
    s->id = calloc(l * n, sizeof *s->id);
    s->code = calloc(n, sizeof *s->code);
    s->met = calloc(n, sizeof *s->met);
    s->mean = calloc(d, sizeof *s->mean);
    s->sampled = calloc((size_t)s->group * (size_t)kv_mask_words(s->cap), sizeof *s->sampled);
    s->row = calloc(d, sizeof *s->row);
    s->centred = calloc(d, sizeof *s->centred);
    s->weight = calloc(n, sizeof *s->weight);
    return s->plane && s->start && s->id && s->code && s->met && s->mean && s->sampled && s->row && s->centred && s->weight;
}

static void magicpig_tune(struct kv_selector *s, const struct kv_params *p) { s->min_collisions = (int32_t)p->value[MIN_COLLISIONS]; }

static enum kv_status magicpig_create(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                                      struct kv_selector **out, struct kv_error *err)
{
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    if (p->value[MIN_COLLISIONS] > p->value[TABLES])
        return kv_fail(err, KV_BAD_ARGUMENT, "min_collisions", "%g collisions cannot happen in %g tables", p->value[MIN_COLLISIONS], p->value[TABLES]);
    struct kv_selector *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "magicpig", "no memory for a selector");
    s->d_head = d_head, s->group = group, s->cap = n_rows_max;
    s->tables = (int32_t)p->value[TABLES];
    s->bits = (int32_t)p->value[BITS];
    magicpig_tune(s, p);
    s->sink = (int32_t)p->value[SINK_ROWS];
    s->local = (int32_t)p->value[LOCAL_ROWS];
    s->centre = p->value[CENTRE] != 0;
    if (!allocate(s)) {
        magicpig_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "magicpig", "no memory for %d tables of %d rows", (int)p->value[TABLES], n_rows_max);
    }
    uint64_t draw = kv_draw(seed, (uint64_t)p->value[SEED]);
    size_t n = (size_t)s->tables * (size_t)s->bits * (size_t)d_head;
    for (size_t i = 0; i < n; i++) s->plane[i] = (float)kv_draw_normal(draw, i);
    *out = s;
    return KV_OK;
}

static uint16_t hash(const struct kv_selector *s, int32_t table, const float *x)
{
    uint16_t code = 0;
    const float *plane = s->plane + (size_t)table * (size_t)s->bits * (size_t)s->d_head;
    for (int32_t b = 0; b < s->bits; b++)
        if (kv_kernels()->dot(plane + (size_t)b * (size_t)s->d_head, x, s->d_head) >= 0) code |= (uint16_t)(1 << b);
    return code;
}

static const float *centred_key(struct kv_selector *s, const struct kv_rows *rows, int32_t row)
{
    kv_rows_key(rows, row, s->row);
    for (int32_t c = 0; c < s->d_head; c++) s->centred[c] = (float)((double)s->row[c] - s->mean[c]);
    return s->centred;
}

/* Counting sort of the hashed rows into one table's buckets. */
static void fill_table(struct kv_selector *s, const struct kv_rows *rows, int32_t table)
{
    int32_t *start = s->start + (size_t)table * (buckets(s) + 1), *id = s->id + (size_t)table * (size_t)s->cap;
    memset(start, 0, (buckets(s) + 1) * sizeof *start);
    for (int32_t i = 0; i < s->n_hashed; i++) {
        s->code[i] = hash(s, table, centred_key(s, rows, s->sink + i));
        start[s->code[i] + 1]++;
    }
    for (size_t b = 0; b < buckets(s); b++) start[b + 1] += start[b];
    for (int32_t i = 0; i < s->n_hashed; i++) id[start[s->code[i]]++] = s->sink + i;
    for (size_t b = buckets(s); b > 0; b--) start[b] = start[b - 1]; /* each start moved on to its end */
    start[0] = 0;
}

static void begin(struct kv_selector *s, const struct kv_rows *rows)
{
    s->n_rows = s->building = rows->n_rows;
    s->n_hashed = s->n_rows - s->local - s->sink > 0 ? s->n_rows - s->local - s->sink : 0;
    s->filled = 0;
    memset(s->mean, 0, (size_t)s->d_head * sizeof *s->mean);
    for (int32_t i = 0; s->centre && i < s->n_hashed; i++) {
        kv_rows_key(rows, s->sink + i, s->row);
        for (int32_t c = 0; c < s->d_head; c++) s->mean[c] += (double)s->row[c];
    }
    for (int32_t c = 0; s->n_hashed && c < s->d_head; c++) s->mean[c] /= s->n_hashed;
}

static enum kv_status magicpig_build_some(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q, int64_t products, bool *done)
{
    (void)prefill_q;
    (void)n_prefill_q;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    if (!s->building || rows->n_rows < s->building) begin(s, rows);
    for (; s->filled < s->tables && products > 0; s->filled++) {
        fill_table(s, rows, s->filled);
        products -= (int64_t)s->n_hashed * s->bits * s->d_head;
    }
    *done = s->filled == s->tables;
    if (*done) s->building = 0;
    return KV_OK;
}

static enum kv_status magicpig_build(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    bool done;
    s->building = 0;
    return magicpig_build_some(s, rows, prefill_q, n_prefill_q, INT64_MAX, &done);
}

static enum kv_status magicpig_append(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    if (from != s->n_rows || rows->n_rows < from) return KV_STALE_INDEX;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    s->n_rows = rows->n_rows;
    return KV_OK;
}

/* Forgotten rows stay in their buckets and are passed over, until rows come in their place: then the table is of other rows, and
 * hashing ends where the drop did. The mean and the projections stay, so u keeps its meaning. */
static enum kv_status magicpig_drop(struct kv_selector *s, int32_t to)
{
    if (to < 0) return KV_BAD_ARGUMENT;
    if (to < s->n_rows) s->n_rows = to;
    int32_t left = to > s->sink ? to - s->sink : 0;
    if (left < s->n_hashed) s->n_hashed = left;
    return KV_OK;
}

static int32_t magicpig_covered(const struct kv_selector *s) { return s->n_rows; }

/* Probability of at least `least` matches in n tables that each match with r: the upper tail of the binomial, summed from below so
 * that small ones keep their digits. */
static double inclusion(double r, int32_t n, int32_t least)
{
    if (r >= 1) return 1;
    double term = 1, sum = 0;
    for (int32_t i = 1; i <= least; i++) term *= (double)(n - i + 1) / i * r;
    term *= pow(1 - r, n - least);
    for (int32_t i = least; i <= n; i++) {
        sum += term;
        if (i > n * r && term < sum * 1e-18) break; /* past the mode each term is smaller than the last: none left to see */
        term *= (double)(n - i) / (i + 1) * (r / (1 - r));
    }
    return sum < 1 ? sum : 1;
}

/* u of a row for a query, from their products: how likely the tables were to bring them together. */
static double row_inclusion(const struct kv_selector *s, double dot, double qq, double kk)
{
    double cosine = qq > 0 && kk > 0 ? dot / sqrt(qq * kk) : 0;
    double p = 1 - acos(cosine > 1 ? 1 : cosine < -1 ? -1 : cosine) / 3.141592653589793;
    return inclusion(pow(p, s->bits), s->tables, s->min_collisions);
}

/* Counts meetings of one head's query with the hashed rows; returns the bucket entries read. */
static uint64_t probe(struct kv_selector *s, const float *q)
{
    uint64_t read = 0;
    if (!s->n_hashed) return 0;
    memset(s->met, 0, (size_t)(s->sink + s->n_hashed) * sizeof *s->met);
    for (int32_t t = 0; t < s->tables; t++) {
        const int32_t *start = s->start + (size_t)t * (buckets(s) + 1), *id = s->id + (size_t)t * (size_t)s->cap;
        uint16_t code = hash(s, t, q);
        for (int32_t i = start[code]; i < start[code + 1]; i++) {
            if (id[i] - s->sink >= s->n_hashed) break; /* ascending: the rest was dropped */
            s->met[id[i]]++;
            read++;
        }
    }
    return read;
}

static enum kv_status magicpig_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                                     int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    (void)widen;
    int32_t n = rows->n_rows, hashed_end = s->sink + s->n_hashed;
    size_t d = (size_t)s->d_head, words = (size_t)kv_mask_words(s->cap);
    enum kv_status status = kv_selection_open(rows, s->n_rows, s->group, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || n == 0) return status;
    memset(s->sampled, 0, (size_t)s->group * words * sizeof *s->sampled);
    for (int32_t g = 0; g < s->group; g++) {
        uint64_t *mask = support + (size_t)g * (size_t)n_blocks, *sampled = s->sampled + (size_t)g * words;
        kv_mask_set_range(mask, 0, s->sink < n ? s->sink : n);
        kv_mask_set_range(mask, hashed_end < n ? hashed_end : n, n);
        uint64_t read = probe(s, q + (size_t)g * d);
        for (int32_t i = s->sink; i < hashed_end; i++) {
            if (s->met[i] < s->min_collisions) continue;
            kv_mask_set(sampled, i);
            kv_mask_set(mask, i);
            ledger->units++;
        }
        kv_mask_set(mask, n - 1); /* the newest row is exact even where no window was asked for */
        ledger->candidates += read;
        ledger->candidate_bytes += read * sizeof *s->id + (uint64_t)s->tables * 2 * sizeof *s->start;
        ledger->selector_macs += (uint64_t)s->tables * (uint64_t)s->bits * d;
    }
    ledger->index_bytes = (uint64_t)s->tables * ((uint64_t)s->n_hashed * sizeof *s->id + (buckets(s) + 1) * sizeof *s->start + (uint64_t)s->bits * d * sizeof *s->plane);
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

/* In fp32; again in double where that rounds away. */
static double product(const float *a, const float *b, int32_t n)
{
    double sum = (double)kv_kernels()->dot(a, b, n);
    if (fabs(sum) > 1e-30) return sum;
    sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* One head: Σ exp(logit − log u) v / Σ exp(logit − log u) over its support; products in fp32, sums in double. */
static enum kv_status estimate_head(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *mask, const uint64_t *sampled, float *out)
{
    int32_t d = s->d_head, words = kv_mask_words(rows->n_rows);
    double top = -INFINITY, sum = 0, qq = product(q, q, d), mean[1024];
    for (int32_t w = 0; w < words; w++)
        for (uint64_t bits = mask[w]; bits; bits &= bits - 1) {
            int32_t i = w * 64 + __builtin_ctzll(bits);
            const float *key = centred_key(s, rows, i);
            double dot = product(q, key, d), u = kv_mask_has(sampled, i) ? row_inclusion(s, dot, qq, product(key, key, d)) : 1;
            if (!(u > 0)) return KV_ZERO_INCLUSION;
            s->weight[i] = dot * (double)rows->scale - (u < 1 ? log(u) : 0);
            if (!(s->weight[i] <= top)) top = s->weight[i];
        }
    memset(out, 0, (size_t)d * sizeof *out);
    memset(mean, 0, (size_t)d * sizeof *mean);
    for (int32_t w = 0; w < words; w++)
        for (uint64_t bits = mask[w]; bits; bits &= bits - 1) {
            int32_t i = w * 64 + __builtin_ctzll(bits);
            double weight = exp(s->weight[i] - top);
            kv_rows_value(rows, i, s->row);
            for (int32_t c = 0; c < d; c++) mean[c] += weight * (double)s->row[c];
            sum += weight;
        }
    for (int32_t c = 0; c < s->d_head && sum != 0; c++) out[c] = (float)(mean[c] / sum);
    return KV_OK;
}

static enum kv_status magicpig_estimate(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *support,
                                        int32_t n_blocks, float *out)
{
    size_t d = (size_t)s->d_head, words = (size_t)kv_mask_words(s->cap);
    for (int32_t g = 0; g < s->group; g++) {
        enum kv_status status = estimate_head(s, rows, q + (size_t)g * d, support + (size_t)g * (size_t)n_blocks, s->sampled + (size_t)g * words, out + (size_t)g * d);
        if (status != KV_OK) return status;
    }
    return KV_OK;
}

const struct kv_selector_method kv_selector_magicpig = {
    .name = "magicpig", .params = kv_selector_magicpig_params, .n_params = N_PARAMS, .dense_layers = 1, .per_q_head = true,
    .create = magicpig_create, .tune = magicpig_tune, .destroy = magicpig_destroy, .build = magicpig_build, .build_some = magicpig_build_some, .append = magicpig_append, .drop = magicpig_drop,
    .query = magicpig_query, .covered = magicpig_covered, .estimate = magicpig_estimate,
};
