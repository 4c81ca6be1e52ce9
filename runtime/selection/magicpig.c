/* magicpig.c — MagicPIG (0x07I): rows sampled by locality-sensitive hashing, attended with weights 1/u; one support per query head.
 *
 * build centres the rows between sink and local window by their mean (so are the static rows in the estimator), hashes them into `tables`
 * tables of `bits` signs of random projections that all layers and heads share, and lists each bucket's rows. A query samples the rows that meet it in at least
 * min_collisions tables; u is the probability of that. Static rows (sink, window, every row appended after build) have u = 1.
 * The estimator is self-normalised importance sampling: random by seed, biased on finite samples, never equal to dense, whatever
 * the budget. u = 0 for a sampled row is ZERO_INCLUSION. Layers 0, 16, 32 … stay dense. There is no wider search: fall back to exact. */
#include "runtime/selection/draw.h"
#include "runtime/selection/methods.h"
#include "runtime/selection/projections.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/scratch.h"
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

enum {
    SEGMENT_ROWS = 65536,  /* rows that share a table, so that an entry of it takes two bytes */
    TABLES_AT_ONCE = 8     /* that a pass over the keys fills */
};

struct kv_selector {
    int32_t d_head, group, cap, tables, bits, min_collisions, sink, local, n_rows, n_hashed; /* rows [sink, sink + n_hashed) are hashed */
    bool centre;
    int32_t segments, segment_rows;
    int32_t building, filled; /* rows of the build in work, 0: none; its tables so far, segment by segment */
    const float *plane;  /* [tables][bits][d_head], one copy for all indexes of a seed */
    float *offset;       /* [tables][bits] products of planes and the mean */
    int32_t *start;      /* [segments][tables][2^bits + 1] into the table's ids */
    uint16_t *id;        /* [segments][tables][segment_rows] rows of the segment, bucket by bucket, ascending in each */
    uint16_t *code;      /* [TABLES_AT_ONCE][segment_rows] while tables are filled */
    float *product;      /* [TABLES_AT_ONCE][bits][64] of planes and a block's keys */
    float *turned;       /* [group][tables][bits] of queries and planes */
    double *mean;        /* [d_head] of the hashed keys; zero without centring */
    float *norm;         /* [cap] of centred hashed keys */
    uint64_t *sampled;   /* [group][words of cap] rows sampled by the last query */
    float *row, *centred; /* [d_head] */
};

static void magicpig_destroy(struct kv_selector *s)
{
    if (!s) return;
    kv_projections_give(s->plane);
    void *const owned[] = {s->offset, s->start, s->id, s->code, s->product, s->turned, s->mean, s->norm, s->sampled, s->row, s->centred};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(s);
}

static size_t buckets(const struct kv_selector *s) { return (size_t)1 << s->bits; }

static bool allocate(struct kv_selector *s, uint64_t seed)
{
    size_t l = (size_t)s->tables, d = (size_t)s->d_head, n = (size_t)s->cap, bits = (size_t)s->bits, g = (size_t)s->group;
    size_t segments = (size_t)s->segments, rows = (size_t)s->segment_rows;
    s->plane = kv_projections_take(seed, l * bits * d);
    s->offset = calloc(l * bits, sizeof *s->offset);
    s->start = calloc(segments * l * (buckets(s) + 1), sizeof *s->start);
    s->id = kv_index_memory(segments * l * rows * sizeof *s->id);
    s->code = calloc(TABLES_AT_ONCE * rows, sizeof *s->code);
    s->product = calloc(TABLES_AT_ONCE * bits * KV_BLOCK_ROWS, sizeof *s->product);
    s->turned = calloc(g * l * bits, sizeof *s->turned);
    s->mean = calloc(d, sizeof *s->mean);
    s->norm = calloc(n, sizeof *s->norm);
    s->sampled = calloc(g * (size_t)kv_mask_words(s->cap), sizeof *s->sampled);
    s->row = calloc(d, sizeof *s->row);
    s->centred = calloc(d, sizeof *s->centred);
    return s->plane && s->offset && s->start && s->id && s->code && s->product && s->turned && s->mean && s->norm && s->sampled && s->row && s->centred;
}

static void magicpig_tune(struct kv_selector *s, const struct kv_params *p) { s->min_collisions = (int32_t)p->value[MIN_COLLISIONS]; }

static enum kv_status magicpig_create(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                                      struct kv_selector **out, struct kv_error *err)
{
    (void)seed; /* projections are shared by layers and heads */
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    if (p->value[MIN_COLLISIONS] > p->value[TABLES])
        return kv_fail(err, KV_BAD_ARGUMENT, "min_collisions", "%g collisions cannot happen in %g tables", p->value[MIN_COLLISIONS], p->value[TABLES]);
    struct kv_selector *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "magicpig", "no memory for a selector");
    s->d_head = d_head, s->group = group, s->cap = kv_mask_words(n_rows_max) * KV_BLOCK_ROWS;
    s->segments = (s->cap - 1) / SEGMENT_ROWS + 1;
    s->segment_rows = s->cap < SEGMENT_ROWS ? s->cap : SEGMENT_ROWS;
    s->tables = (int32_t)p->value[TABLES];
    s->bits = (int32_t)p->value[BITS];
    magicpig_tune(s, p);
    s->sink = (int32_t)p->value[SINK_ROWS];
    s->local = (int32_t)p->value[LOCAL_ROWS];
    s->centre = p->value[CENTRE] != 0;
    if (!allocate(s, kv_draw(0, (uint64_t)p->value[SEED]))) {
        magicpig_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "magicpig", "no memory for %d tables of %d rows", (int)p->value[TABLES], n_rows_max);
    }
    *out = s;
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

static const float *centred_key(struct kv_selector *s, const struct kv_rows *rows, int32_t row)
{
    kv_rows_key(rows, row, s->row);
    for (int32_t c = 0; c < s->d_head; c++) s->centred[c] = (float)((double)s->row[c] - s->mean[c]);
    return s->centred;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Codes of a segment's rows [first, end), counted in it, in n tables from `table` on. Signs of centred keys: a product is compared with the mean's. */
static void hash_rows(struct kv_selector *s, const struct kv_rows *rows, int32_t segment, int32_t table, int32_t n, int32_t first, int32_t end)
{
    int32_t bits = s->bits, base = segment * SEGMENT_ROWS;
    const float *offset = s->offset + (size_t)table * (size_t)bits;
    struct kv_act planes = {.n = n * bits, .cols = s->d_head, .f32 = s->plane + (size_t)table * (size_t)bits * (size_t)s->d_head};
    for (int32_t at = first / KV_BLOCK_ROWS * KV_BLOCK_ROWS; at < end; at += KV_BLOCK_ROWS) {
        int32_t here = least(KV_BLOCK_ROWS, end - at);
        struct kv_mat keys = {rows->row_type, here, s->d_head, rows->k[(base + at) / KV_BLOCK_ROWS], (size_t)here * kv_rows_row_bytes(rows)};
        kv_kernels()->matmul(&keys, &planes, 0, here, s->product, KV_BLOCK_ROWS);
        for (int32_t t = 0; t < n; t++) {
            int32_t code[KV_BLOCK_ROWS] = {0}; /* a constant length, so that the compiler keeps it in vectors */
            for (int32_t b = 0; b < bits; b++) {
                const float *p = s->product + (size_t)(t * bits + b) * KV_BLOCK_ROWS, bar = offset[t * bits + b];
                for (int32_t i = 0; i < KV_BLOCK_ROWS; i++) code[i] |= (p[i] >= bar) << b;
            }
            uint16_t *out = s->code + (size_t)t * (size_t)s->segment_rows + at;
            for (int32_t i = 0; i < KV_BLOCK_ROWS; i++) out[i] = (uint16_t)code[i];
        }
    }
}

/* Counting sort of a segment's rows [first, end) into one table's buckets. */
static void sort_rows(struct kv_selector *s, int32_t segment, int32_t table, const uint16_t *code, int32_t first, int32_t end)
{
    size_t at = (size_t)segment * (size_t)s->tables + (size_t)table;
    int32_t *start = s->start + at * (buckets(s) + 1);
    uint16_t *id = s->id + at * (size_t)s->segment_rows;
    memset(start, 0, (buckets(s) + 1) * sizeof *start);
    for (int32_t i = first; i < end; i++) start[code[i] + 1]++;
    for (size_t b = 0; b < buckets(s); b++) start[b + 1] += start[b];
    for (int32_t i = first; i < end; i++) id[start[code[i]]++] = (uint16_t)i;
    for (size_t b = buckets(s); b > 0; b--) start[b] = start[b - 1]; /* each start moved on to its end */
    start[0] = 0;
}

/* Mean, norms and the planes' products with the mean. */
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
    for (int32_t i = s->sink; i < s->sink + s->n_hashed; i++) {
        const float *key = centred_key(s, rows, i);
        s->norm[i] = (float)sqrt(product(key, key, s->d_head));
    }
    for (int32_t c = 0; c < s->d_head; c++) s->row[c] = (float)s->mean[c];
    for (size_t i = 0; i < (size_t)s->tables * (size_t)s->bits; i++) s->offset[i] = kv_kernels()->dot(s->plane + i * (size_t)s->d_head, s->row, s->d_head);
}

static enum kv_status magicpig_build_some(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q, int64_t products, bool *done)
{
    (void)prefill_q;
    (void)n_prefill_q;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    if (!s->building || rows->n_rows < s->building) begin(s, rows);
    int32_t hashed_end = s->sink + s->n_hashed;
    while (s->filled < s->tables * s->segments && products > 0) {
        int32_t segment = s->filled / s->tables, table = s->filled % s->tables, base = segment * SEGMENT_ROWS;
        int32_t first = least(s->sink > base ? s->sink - base : 0, SEGMENT_ROWS), end = hashed_end > base ? least(hashed_end - base, SEGMENT_ROWS) : 0;
        int64_t each = end > first ? (int64_t)(end - first) * s->bits * s->d_head : 1, afford = (products - 1) / each + 1;
        int32_t n = least(s->tables - table, afford < TABLES_AT_ONCE ? (int32_t)afford : TABLES_AT_ONCE);
        if (first < end) hash_rows(s, rows, segment, table, n, first, end);
        for (int32_t t = 0; t < n; t++) sort_rows(s, segment, table + t, s->code + (size_t)t * (size_t)s->segment_rows, first, end);
        s->filled += n;
        products -= n * each;
    }
    *done = s->filled == s->tables * s->segments;
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

/* The same for 64 cosines at once, as far as it keeps its digits; the rest is left under SAFE. Arc cosine: Abramowitz and Stegun, 4.4.46. */
#define SAFE 1e-6
static inline __attribute__((always_inline)) void inclusions(const struct kv_selector *s, const double *cosine, double *u)
{
    enum { B = KV_BLOCK_ROWS };
    double r[B], rest[B], power[B], base[B], term[B], sum[B] = {0}, binomial = 1;
    for (int32_t i = 0; i < B; i++) {
        double x = cosine[i] < 0 ? -cosine[i] : cosine[i];
        double p = ((((((-0.0012624911 * x + 0.0066700901) * x - 0.0170881256) * x + 0.0308918810) * x - 0.0501743046) * x + 0.0889789874) * x - 0.2145988016) * x + 1.5707963050;
        double angle = sqrt(1 - x) * p / 3.141592653589793;
        base[i] = cosine[i] < 0 ? angle : 1 - angle;
        r[i] = power[i] = term[i] = 1;
    }
    for (int32_t e = s->bits; e; e >>= 1)
        for (int32_t i = 0; i < B; i++) r[i] *= e & 1 ? base[i] : 1, base[i] *= base[i];
    for (int32_t i = 0; i < B; i++) base[i] = rest[i] = 1 - r[i];
    for (int32_t e = s->tables - s->min_collisions + 1; e; e >>= 1)
        for (int32_t i = 0; i < B; i++) power[i] *= e & 1 ? base[i] : 1, base[i] *= base[i];
    for (int32_t j = 0; j < s->min_collisions; binomial = binomial * (s->tables - j) / (j + 1), j++)
        for (int32_t i = 0; i < B; i++) sum[i] = sum[i] * rest[i] + binomial * term[i], term[i] *= r[i];
    for (int32_t i = 0; i < B; i++) u[i] = 1 - power[i] * sum[i];
}

#if defined(__x86_64__)
__attribute__((target("avx512f,prefer-vector-width=512"))) static void inclusions_avx512(const struct kv_selector *s, const double *cosine, double *u) { inclusions(s, cosine, u); }
#endif

static void inclusions_of(const struct kv_selector *s, const double *cosine, double *u)
{
#if defined(__x86_64__)
    if (!strcmp(kv_kernels()->isa, "avx512")) return inclusions_avx512(s, cosine, u);
#endif
    inclusions(s, cosine, u);
}

/* Counts meetings of a query, whose products with the planes are given, with a segment's hashed rows, which end before `end`; returns the entries read. */
static uint64_t probe(const struct kv_selector *s, int32_t segment, const float *turned, int32_t end, int16_t *met)
{
    enum { AHEAD = 6 };
    int32_t from[1024], to[1024];
    uint64_t read = 0;
    const uint16_t *id = s->id + (size_t)segment * (size_t)s->tables * (size_t)s->segment_rows;
    memset(met, 0, (size_t)s->segment_rows * sizeof *met);
    for (int32_t t = 0; t < s->tables; t++) {
        int32_t code = 0;
        for (int32_t b = 0; b < s->bits; b++) code |= (*turned++ >= 0) << b;
        const int32_t *start = s->start + ((size_t)segment * (size_t)s->tables + (size_t)t) * (buckets(s) + 1) + code;
        from[t] = start[0];
        to[t] = start[1];
    }
    for (int32_t t = 0; t < s->tables; t++, id += s->segment_rows) {
        if (t + AHEAD < s->tables) __builtin_prefetch(id + AHEAD * (size_t)s->segment_rows + from[t + AHEAD]);
        for (int32_t i = from[t]; i < to[t]; i++) {
            if (id[i] >= end) break; /* ascending: the rest was dropped */
            met[id[i]]++;
            read++;
        }
    }
    return read;
}

/* Rows met often enough; how many. */
static int32_t take_met(const int16_t *met, int32_t enough, int32_t end, uint64_t *mask)
{
    int32_t n = 0;
    for (int32_t w = 0; w < kv_mask_words(end); w++, met += 64) {
        uint8_t hit[64];
        uint64_t bits = 0, eight;
        for (int32_t i = 0; i < 64; i++) hit[i] = met[i] >= enough;
        for (int32_t i = 0; i < 64; i += 8) {
            memcpy(&eight, hit + i, 8);
            bits |= (eight * UINT64_C(0x0102040810204080) >> 56) << i;
        }
        mask[w] = bits;
        n += __builtin_popcountll(bits);
    }
    return n;
}

static enum kv_status magicpig_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                                     int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    (void)widen;
    int32_t n = rows->n_rows, hashed_end = s->sink + s->n_hashed;
    size_t d = (size_t)s->d_head, words = (size_t)kv_mask_words(s->cap);
    enum kv_status status = kv_selection_open(rows, s->n_rows, s->group, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || n == 0) return status;
    int16_t *met = kv_scratch((size_t)s->segment_rows * sizeof *met); /* tables in which a row met the query */
    if (!met) return KV_OUT_OF_MEMORY;
    memset(s->sampled, 0, (size_t)s->group * words * sizeof *s->sampled);
    struct kv_mat planes = {KV_F32, s->tables * s->bits, s->d_head, s->plane, (size_t)s->tables * (size_t)s->bits * d * sizeof *s->plane};
    struct kv_act heads = {.n = s->group, .cols = s->d_head, .f32 = q};
    kv_kernels()->matmul(&planes, &heads, 0, planes.rows, s->turned, (size_t)planes.rows);
    for (int32_t g = 0; g < s->group; g++) {
        uint64_t *mask = support + (size_t)g * (size_t)n_blocks, *sampled = s->sampled + (size_t)g * words, read = 0;
        kv_mask_set_range(mask, 0, s->sink < n ? s->sink : n);
        kv_mask_set_range(mask, hashed_end < n ? hashed_end : n, n);
        for (int32_t segment = 0; segment * SEGMENT_ROWS < hashed_end && s->n_hashed; segment++) {
            int32_t end = least(hashed_end - segment * SEGMENT_ROWS, SEGMENT_ROWS);
            uint64_t *part = sampled + segment * (SEGMENT_ROWS / 64);
            read += probe(s, segment, s->turned + (size_t)g * (size_t)planes.rows, end, met);
            ledger->units += (uint64_t)take_met(met, s->min_collisions, end, part);
        }
        for (size_t w = 0; w < (size_t)kv_mask_words(hashed_end < n ? hashed_end : n); w++) mask[w] |= sampled[w];
        kv_mask_set(mask, n - 1); /* the newest row is exact even where no window was asked for */
        ledger->candidates += read;
        ledger->candidate_bytes += read * sizeof *s->id + (uint64_t)s->segments * (uint64_t)s->tables * 2 * sizeof *s->start;
        ledger->selector_macs += (uint64_t)s->tables * (uint64_t)s->bits * d;
    }
    ledger->candidate_bytes += (uint64_t)planes.data_bytes;
    ledger->index_bytes = (uint64_t)s->tables * ((uint64_t)s->n_hashed * sizeof *s->id + (uint64_t)s->segments * (buckets(s) + 1) * sizeof *s->start + (uint64_t)s->bits * d * sizeof *s->plane) + (uint64_t)s->n_hashed * sizeof *s->norm;
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

/* Cosine of a query and a sampled row's centred key; `over`: the product of the query and the mean. */
static double cosine_of(struct kv_selector *s, const struct kv_rows *rows, const float *q, double q_norm, int32_t row, double dot, double over)
{
    double size = q_norm * (double)s->norm[row];
    dot -= over;
    if (fabs(dot) <= 1e-30) { /* fp32 may have rounded it away */
        const float *key = centred_key(s, rows, row);
        dot = 0;
        for (int32_t c = 0; c < s->d_head; c++) dot += (double)q[c] * (double)key[c];
    }
    double cosine = size > 0 ? dot / size : 0;
    return cosine > 1 ? 1 : cosine < -1 ? -1 : cosine == cosine ? cosine : 0;
}

struct rows_of_head { /* of one support, in the thread's memory */
    double *share;  /* [n] u: 1 for rows that were not sampled */
    float *weight;  /* [n] products with the query, then logits, then weights */
    int32_t *row;   /* [n] */
    int32_t n;
};

static enum kv_status share_out(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *sampled, struct rows_of_head *h)
{
    double over = 0, q_norm = sqrt(product(q, q, s->d_head)), cosine[KV_BLOCK_ROWS], u[KV_BLOCK_ROWS];
    for (int32_t c = 0; c < s->d_head; c++) over += (double)q[c] * s->mean[c];
    for (int32_t first = 0; first < h->n; first += KV_BLOCK_ROWS) {
        int32_t here = least(KV_BLOCK_ROWS, h->n - first);
        for (int32_t i = 0; i < KV_BLOCK_ROWS; i++) {
            int32_t row = i < here ? h->row[first + i] : 0;
            cosine[i] = i < here && kv_mask_has(sampled, row) ? cosine_of(s, rows, q, q_norm, row, (double)h->weight[first + i], over) : 1;
        }
        inclusions_of(s, cosine, u);
        for (int32_t i = 0; i < here; i++) {
            if (!(u[i] >= SAFE)) u[i] = inclusion(pow(1 - acos(cosine[i]) / 3.141592653589793, s->bits), s->tables, s->min_collisions);
            if (!(u[i] > 0)) return KV_ZERO_INCLUSION;
            h->share[first + i] = u[i];
        }
    }
    return KV_OK;
}

/* One head: Σ exp(logit) v / u over Σ exp(logit) / u of its support. The mean shifts all logits alike. */
static enum kv_status estimate_head(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *mask, const uint64_t *sampled, float *out)
{
    const struct kv_kernels *k = kv_kernels();
    struct rows_of_head h = {.share = kv_scratch((size_t)s->cap * (sizeof(double) + sizeof(float) + sizeof(int32_t)))};
    double sum = 0;
    if (!h.share) return KV_OUT_OF_MEMORY;
    h.weight = (float *)(h.share + s->cap);
    h.row = (int32_t *)(h.weight + s->cap);
    for (int32_t w = 0; w < kv_mask_words(rows->n_rows); w++)
        for (uint64_t bits = mask[w]; bits; bits &= bits - 1) h.row[h.n++] = w * 64 + __builtin_ctzll(bits);
    k->row_dots(rows->row_type, rows->k, h.row, h.n, q, s->d_head, h.weight);
    enum kv_status status = share_out(s, rows, q, sampled, &h);
    if (status != KV_OK) return status;
    for (int32_t i = 0; i < h.n; i++) h.weight[i] = h.weight[i] * rows->scale - (h.share[i] < SAFE ? (float)log(h.share[i]) : 0);
    float top = kv_score_top(h.weight, h.n);
    for (int32_t i = 0; i < h.n; i++) h.weight[i] -= top;
    k->exp(h.weight, h.n, h.weight);
    for (int32_t i = 0; i < h.n; i++) {
        if (h.share[i] >= SAFE) h.weight[i] = (float)((double)h.weight[i] / h.share[i]);
        sum += (double)h.weight[i];
    }
    k->row_sum(rows->row_type, rows->v, h.row, h.n, h.weight, s->d_head, out);
    for (int32_t c = 0; c < s->d_head; c++) out[c] = sum != 0 ? (float)((double)out[c] / sum) : 0;
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
    .name = "magicpig", .byte_cost = 4.8, .params = kv_selector_magicpig_params, .n_params = N_PARAMS, .dense_layers = 1, .dense_every = 16, .per_q_head = true,
    .create = magicpig_create, .tune = magicpig_tune, .destroy = magicpig_destroy, .build = magicpig_build, .build_some = magicpig_build_some, .append = magicpig_append, .drop = magicpig_drop,
    .query = magicpig_query, .covered = magicpig_covered, .estimate = magicpig_estimate,
};
