/* support.c — what every query shares: opening checks, the part of the ledger that follows from the support, and the trace. */
#include "runtime/selection/support.h"

#include "runtime/selection/rank.h"

#include <math.h>
#include <string.h>

enum { DESCRIPTOR_BYTES = 64 };

enum kv_status kv_selection_check(int32_t d_head, int32_t group, int32_t n_rows_max, struct kv_error *err)
{
    if (d_head >= 1 && d_head <= 1024 && group >= 1 && group <= 4096 && n_rows_max >= 1 && n_rows_max <= 1 << 26) return KV_OK;
    return kv_fail(err, KV_BAD_ARGUMENT, "selector", "width %d, group %d or rows %d lies outside 1 to 1024, 4096 and 67108864", d_head, group, n_rows_max);
}

enum kv_status kv_selection_open(const struct kv_rows *rows, int32_t covered, int32_t group, uint64_t *support, int32_t n_blocks,
                                 double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    if (rows->group != group || n_blocks < kv_mask_words(rows->n_rows)) return KV_BAD_ARGUMENT;
    if (covered != rows->n_rows) return KV_STALE_INDEX;
    memset(support, 0, (size_t)group * (size_t)n_blocks * sizeof *support);
    for (int32_t g = 0; estimated_omitted_mass && g < group; g++) estimated_omitted_mass[g] = -1;
    *ledger = (struct kv_ledger){.trace = ledger->trace};
    if (ledger->trace) {
        ledger->trace->n_units = 0;
        memset(ledger->trace->chosen, 0, (size_t)group * (size_t)ledger->trace->cap_units);
    }
    return KV_OK;
}

size_t kv_rows_row_bytes(const struct kv_rows *rows) { return kv_type_row_bytes(rows->row_type, rows->d_head); }

struct touched {
    uint64_t rows, moved, blocks;
};

/* Compiled twice: what the oldest x86-64 counts bit by bit is one instruction wherever AVX2 is. */
static inline __attribute__((always_inline)) struct touched touch(const uint64_t *support, int32_t group, int32_t n_blocks, const uint64_t *resident)
{
    struct touched t = {0};
    for (int32_t b = 0; b < n_blocks; b++) {
        uint64_t any = 0;
        for (int32_t g = 0; g < group; g++) any |= support[(size_t)g * (size_t)n_blocks + (size_t)b];
        uint64_t away = resident ? any & ~resident[b] : any;
        t.rows += (uint64_t)__builtin_popcountll(any);
        t.moved += (uint64_t)__builtin_popcountll(away);
        t.blocks += away != 0;
    }
    return t;
}

#if defined(__x86_64__)
__attribute__((target("avx2,popcnt"))) static struct touched touch_avx2(const uint64_t *support, int32_t group, int32_t n_blocks, const uint64_t *resident)
{
    return touch(support, group, n_blocks, resident);
}
#endif

void kv_ledger_support(struct kv_ledger *ledger, const struct kv_rows *rows, const uint64_t *support, int32_t n_blocks,
                       const uint64_t *resident)
{
    uint64_t row_bytes = 2 * (uint64_t)kv_rows_row_bytes(rows);
#if defined(__x86_64__)
    struct touched t = strcmp(kv_kernels()->isa, "scalar") ? touch_avx2(support, rows->group, n_blocks, resident) : touch(support, rows->group, n_blocks, resident);
#else
    struct touched t = touch(support, rows->group, n_blocks, resident);
#endif
    ledger->rows = t.rows;
    ledger->payload_bytes = t.rows * row_bytes;
    ledger->transfer_bytes = t.moved * row_bytes;
    ledger->descriptor_bytes = t.blocks * DESCRIPTOR_BYTES;
}

void kv_trace_choose(struct kv_ledger *ledger, int32_t g, int32_t unit)
{
    struct kv_trace *t = ledger->trace;
    if (t && unit < t->cap_units) t->chosen[(size_t)g * (size_t)t->cap_units + (size_t)unit] = 1;
}

void kv_trace_scores(struct kv_ledger *ledger, int32_t g, const float *score, int32_t n_ranked, int32_t n_units)
{
    struct kv_trace *t = ledger->trace;
    if (!t) return;
    t->n_units = n_units < t->cap_units ? n_units : t->cap_units;
    for (int32_t u = 0; u < t->n_units; u++) t->score[(size_t)g * (size_t)t->cap_units + (size_t)u] = u < n_ranked ? score[u] : NAN;
}

void kv_trace_unranked(struct kv_ledger *ledger, int32_t g, int32_t unit)
{
    struct kv_trace *t = ledger->trace;
    if (t && unit < t->cap_units) t->score[(size_t)g * (size_t)t->cap_units + (size_t)unit] = NAN;
}

void kv_columns_put(enum kv_type row_type, const void *rows, int32_t n, int32_t d, int32_t at, void *columns)
{
    size_t run = (size_t)(at / KV_RUN_ROWS) * (size_t)d * KV_RUN_ROWS + (size_t)(at % KV_RUN_ROWS);
    for (int32_t c = 0; c < d; c++, run += KV_RUN_ROWS) /* channels lie a page apart: as many of a channel at once as there are */
        for (int32_t i = 0; i < n; i++) {
            size_t from = (size_t)i * (size_t)d + (size_t)c;
            if (row_type == KV_F32) ((float *)columns)[run + (size_t)i] = ((const float *)rows)[from];
            else ((uint16_t *)columns)[run + (size_t)i] = ((const uint16_t *)rows)[from];
        }
}

struct extent {
    float least, top;
};

/* Whole blocks of 64 rows here and below, whose constant length the compiler keeps in vectors. What is not a number is passed over. */
static inline __attribute__((always_inline)) struct extent extent_of(const float *x, int32_t n)
{
    enum { B = KV_BLOCK_ROWS };
    int32_t whole = n / B * B;
    float most[B], fewest[B];
    struct extent e = {INFINITY, -INFINITY};
    for (int32_t t = 0; t < B; t++) most[t] = -INFINITY, fewest[t] = INFINITY;
    for (int32_t i = 0; i < whole; i += B)
        for (int32_t t = 0; t < B; t++) most[t] = x[i + t] > most[t] ? x[i + t] : most[t], fewest[t] = x[i + t] < fewest[t] ? x[i + t] : fewest[t];
    for (int32_t i = whole; i < n; i++) most[i - whole] = x[i] > most[i - whole] ? x[i] : most[i - whole], fewest[i - whole] = x[i] < fewest[i - whole] ? x[i] : fewest[i - whole];
    for (int32_t t = 0; t < B; t++) e.top = most[t] > e.top ? most[t] : e.top, e.least = fewest[t] < e.least ? fewest[t] : e.least;
    return e;
}

void kv_group_score_open(struct kv_group_score *s) { s->added = s->kept = s->wide = false; }

/* Sums in 64 chains, added in order; the part in work stays in the nearest cache. */
static inline __attribute__((always_inline)) void score_add(struct kv_group_score *s, float *logit, const int32_t *times, int32_t n, void (*exponential)(const float *, int32_t, float *))
{
    enum { B = KV_BLOCK_ROWS, PART = 16 * B };
    const struct extent e = extent_of(logit, n);
    const float top = e.top, narrow = 50; /* logits no wider apart leave none of 2^26 rows a share under 1e-30 */
    const bool kept = top - e.least <= narrow, added = s->added, wide = s->wide;
    double chain[B] = {0}, sum = 0;
    float part[B];
    for (int32_t first = 0; first < n; first += PART) {
        int32_t rows = n - first < PART ? n - first : PART, whole = rows / B * B;
        float *x = logit + first, *best = s->best + first;
        for (int32_t i = 0; i < whole; i += B)
            for (int32_t t = 0; t < B; t++) x[i + t] -= top;
        for (int32_t i = whole; i < rows; i++) x[i] -= top;
        for (int32_t i = 0; i < whole && !kept; i += B) { /* each loop writes one array: the compiler need not ask whether two overlap */
            for (int32_t t = 0; t < B; t++) part[t] = x[i + t];
            if (wide)
                for (int32_t t = 0; t < B; t++) part[t] = part[t] > best[i + t] ? part[t] : best[i + t];
            for (int32_t t = 0; t < B; t++) best[i + t] = part[t];
        }
        for (int32_t i = whole; i < rows && !kept; i++) best[i] = !wide || x[i] > best[i] ? x[i] : best[i];
        exponential(x, rows, x);
        const int32_t *of = times ? times + first : NULL;
        for (int32_t i = 0; i < whole && !times; i += B)
            for (int32_t t = 0; t < B; t++) chain[t] += (double)x[i + t];
        for (int32_t i = 0; i < whole && times; i += B)
            for (int32_t t = 0; t < B; t++) chain[t] += (double)of[i + t] * (double)x[i + t];
        for (int32_t i = whole; i < rows; i++) chain[i - whole] += times ? (double)of[i] * (double)x[i] : (double)x[i];
    }
    for (int32_t t = 0; t < B; t++) sum += chain[t];
    float share = (float)(1 / sum), *total = s->total;
    int32_t whole = n / B * B;
    for (int32_t i = 0; i < whole; i += B) {
        for (int32_t t = 0; t < B; t++) part[t] = logit[i + t] * share;
        for (int32_t t = 0; t < B; t++) logit[i + t] = part[t];
        if (added)
            for (int32_t t = 0; t < B; t++) part[t] += total[i + t];
        for (int32_t t = 0; t < B; t++) total[i + t] = part[t];
    }
    for (int32_t i = whole; i < n; i++) logit[i] *= share, total[i] = added ? total[i] + logit[i] : logit[i];
    s->added = true;
    s->kept |= kept;
    s->wide |= !kept;
}

#if defined(__x86_64__)
__attribute__((target("avx512f,prefer-vector-width=512"))) static void score_add_avx512(struct kv_group_score *s, float *logit, const int32_t *times, int32_t n, void (*exponential)(const float *, int32_t, float *))
{
    score_add(s, logit, times, n, exponential);
}

__attribute__((target("avx512f,prefer-vector-width=512"))) static struct extent extent_avx512(const float *x, int32_t n) { return extent_of(x, n); }
#endif

void kv_group_score_add_times(struct kv_group_score *s, float *logit, const int32_t *times, int32_t n)
{
#if defined(__x86_64__)
    if (!strcmp(kv_kernels()->isa, "avx512")) return score_add_avx512(s, logit, times, n, kv_kernels()->exp);
#endif
    score_add(s, logit, times, n, kv_kernels()->exp);
}

void kv_group_score_add(struct kv_group_score *s, float *logit, int32_t n) { kv_group_score_add_times(s, logit, NULL, n); }

const float *kv_group_score_all(struct kv_group_score *s, int32_t n)
{
    if (s->kept) return s->total;
    for (int32_t i = 0; i < n; i++) s->best[i] = kv_group_score_at(s, i);
    return s->best;
}

float kv_score_top(const float *x, int32_t n)
{
#if defined(__x86_64__)
    if (!strcmp(kv_kernels()->isa, "avx512")) return extent_avx512(x, n).top;
#endif
    return extent_of(x, n).top;
}

static void row_of(const struct kv_rows *rows, const void *const *blocks, int32_t row, float *out)
{
    const uint8_t *block = blocks[row / KV_BLOCK_ROWS];
    kv_kernels()->from_rows(rows->row_type, block + (size_t)(row % KV_BLOCK_ROWS) * kv_rows_row_bytes(rows), rows->d_head, out);
}

void kv_rows_key(const struct kv_rows *rows, int32_t row, float *out) { row_of(rows, rows->k, row, out); }
void kv_rows_value(const struct kv_rows *rows, int32_t row, float *out) { row_of(rows, rows->v, row, out); }
