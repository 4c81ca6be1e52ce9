/* pqcache.c — PQCache (0x07F): rows ranked by product-quantised keys, one support per K/V head.
 *
 * build fits 2^bits centroids per subspace on all rows after the sink, once; a row gets its codes when it leaves the local window,
 * and codebooks are never fitted again. Support: sink, local window, and the top_rows between them by Σ over the group of the softmaxes of
 * table scores; ties go to the lower row. No dense layers. When no more rows than centroids lie between sink and window, all are taken; so
 * are they when top_rows covers them. Codes rank only: attention reads full rows. Widening doubles top_rows. */
#include "runtime/selection/draw.h"
#include "runtime/selection/kmeans.h"
#include "runtime/selection/methods.h"
#include "runtime/selection/omitted.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"
#include "runtime/selection/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SUBSPACES, BITS, ITERATIONS, SINK_ROWS, LOCAL_ROWS, TOP_ROWS, SEED, ESTIMATE_ROWS, N_PARAMS };
const struct kv_param_spec kv_selector_pqcache_params[N_PARAMS] = {
    {"subspaces", "int", 2, 1, 64, "parts", "paper: m = 2", "parts a key is split into; divides the head's width"},
    {"bits", "int", 6, 1, 8, "bits", "paper: b = 6", "2^bits centroids per part"},
    {"iterations", "int", 10, 1, 300, "rounds", "house; code: 3 to 300 by fit", "k-means rounds at build"},
    {"sink_rows", "int", 32, 0, 1048576, "rows", "code", "first rows, always attended"},
    {"local_rows", "int", 64, 0, 1048576, "rows", "house; code: a share of the prompt", "last rows, always attended"},
    {"top_rows", "int", 128, 1, 1048576, "rows", "house; code: a share of the prompt", "rows taken by their codes"},
    {"seed", "int", 4321, 0, 9007199254740991, "", "code: 4321", "draws the first centroids; shared by layers and heads"},
    {"estimate_rows", "int", 0, 0, 1024, "rows", "house", "left-out rows, and taken ones, drawn to estimate the omitted mass; 0: no estimate"},
};

struct kv_selector {
    int32_t d_head, group, subspaces, width, cap, n_rows, n_coded;
    int32_t sink, local, top, estimate_rows;
    uint64_t seed;
    struct kv_kmeans *part; /* [subspaces] codebook and its measure */
    bool fitted;            /* there are codebooks */
    int32_t fitting, next;  /* rows of the fit in work, 0: none; the part it is at */
    uint8_t *code;          /* [subspaces][cap] */
    int32_t *label;         /* [cap] of the fit */
    float *table;           /* [subspaces][256] */
    float *logit;           /* [cap] */
    struct kv_group_score score; /* [cap] */
    double *sum;            /* [256][width] */
    float *tile;            /* [KV_KMEANS_TILE][width] */
    float *channel;         /* [subspaces][kv_kmeans_channel_floats] */
    uint64_t *key;          /* [cap] */
    float *weight;          /* [cap] of an estimate; NULL without */
    int32_t *taken;         /* [cap] alike */
    float *row;             /* [d_head] */
    float *centroid, *square; /* [subspaces][256][width], [subspaces][256] */
    int32_t *count;         /* [256] */
    int32_t centroids, iterations, bits;
    struct kv_words words;  /* of the rows between sink and window; n = 0 where there are too many words to rank them */
};

static void pqcache_destroy(struct kv_selector *s)
{
    if (!s) return;
    void *const owned[] = {s->part, s->code, s->label, s->table, s->logit, s->score.total, s->score.best, s->sum, s->key, s->row, s->centroid, s->square, s->count, s->tile, s->channel, s->weight, s->taken};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    kv_words_free(&s->words);
    free(s);
}

static bool allocate(struct kv_selector *s)
{
    size_t m = (size_t)s->subspaces, n = (size_t)s->cap, w = (size_t)s->width, c = (size_t)s->centroids;
    s->part = calloc(m, sizeof *s->part);
    s->code = calloc(m * n, 1);
    s->label = calloc(n, sizeof *s->label);
    s->table = calloc(m * c, sizeof *s->table);
    s->logit = calloc(n, sizeof *s->logit);
    s->score.total = calloc(n, sizeof *s->score.total);
    s->score.best = calloc(n, sizeof *s->score.best);
    s->sum = calloc(c * w, sizeof *s->sum);
    s->tile = calloc(KV_KMEANS_TILE * w, sizeof *s->tile);
    s->channel = calloc(m * kv_kmeans_channel_floats(s->width, s->centroids), sizeof *s->channel);
    s->key = calloc(n, sizeof *s->key);
    s->row = calloc((size_t)s->d_head, sizeof *s->row);
    s->centroid = calloc(m * c * w, sizeof *s->centroid);
    s->square = calloc(m * c, sizeof *s->square);
    s->count = calloc(c, sizeof *s->count);
    s->weight = s->estimate_rows ? calloc(n, sizeof *s->weight) : NULL;
    s->taken = s->estimate_rows ? calloc(n, sizeof *s->taken) : NULL;
    if (s->estimate_rows && (!s->weight || !s->taken)) return false;
    if (s->subspaces * s->bits <= KV_WORDS_BITS && !kv_words_create(&s->words, 1 << s->subspaces * s->bits, s->cap)) return false;
    return s->part && s->code && s->label && s->table && s->logit && s->score.total && s->score.best && s->sum && s->key && s->row && s->centroid && s->square && s->count && s->tile && s->channel;
}

static void pqcache_tune(struct kv_selector *s, const struct kv_params *p) { s->top = (int32_t)p->value[TOP_ROWS]; }

static enum kv_status pqcache_create(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                                     struct kv_selector **out, struct kv_error *err)
{
    (void)seed; /* the method shares one seed between layers and heads */
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    if (d_head % (int32_t)p->value[SUBSPACES])
        return kv_fail(err, KV_BAD_ARGUMENT, "subspaces", "%g subspaces do not divide the width %d", p->value[SUBSPACES], d_head);
    struct kv_selector *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "pqcache", "no memory for a selector");
    s->d_head = d_head, s->group = group, s->cap = n_rows_max;
    s->subspaces = (int32_t)p->value[SUBSPACES];
    s->width = d_head / s->subspaces;
    s->bits = (int32_t)p->value[BITS];
    s->centroids = 1 << s->bits;
    s->iterations = (int32_t)p->value[ITERATIONS];
    s->sink = (int32_t)p->value[SINK_ROWS];
    s->local = (int32_t)p->value[LOCAL_ROWS];
    pqcache_tune(s, p);
    s->seed = (uint64_t)p->value[SEED];
    s->estimate_rows = (int32_t)p->value[ESTIMATE_ROWS];
    if (!allocate(s)) {
        pqcache_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "pqcache", "no memory for the codes of %d rows", n_rows_max);
    }
    *out = s;
    return KV_OK;
}

static void begin_part(struct kv_selector *s, const struct kv_rows *rows, int32_t j)
{
    size_t at = (size_t)j * (size_t)s->centroids;
    struct kv_kmeans *m = &s->part[j];
    *m = (struct kv_kmeans){.rows = rows, .first = s->sink, .n = s->fitting - s->sink, .offset = j * s->width, .width = s->width, .k = s->centroids,
                            .iterations = s->iterations, .centroid = s->centroid + at * (size_t)s->width,
                            .channel = s->channel + (size_t)j * kv_kmeans_channel_floats(s->width, s->centroids), .label = s->label,
                            .count = s->count, .sum = s->sum, .square = s->square + at, .row = s->row, .tile = s->tile};
    kv_kmeans_draw_seeds(m, s->seed + (uint64_t)j, s->key);
}

/* Fits part after part to rows [sink, fitting); a row's label in the fit is its code. True when all parts are fitted. */
static bool fit_some(struct kv_selector *s, const struct kv_rows *rows, int64_t products)
{
    for (; s->next < s->subspaces; s->next++) {
        struct kv_kmeans *m = &s->part[s->next];
        if (!m->n) begin_part(s, rows, s->next);
        m->rows = rows;
        bool done = kv_kmeans_run(m, &products);
        m->rows = NULL; /* the caller's, not ours to keep */
        if (!done) return false;
        uint8_t *code = s->code + (size_t)s->next * (size_t)s->cap;
        for (int32_t i = 0; i < m->n; i++) code[m->first + i] = (uint8_t)s->label[i];
    }
    s->fitting = 0;
    return s->fitted = true;
}

static void begin_fit(struct kv_selector *s, int32_t n_rows)
{
    s->fitting = n_rows;
    s->next = 0;
    kv_words_reset(&s->words, s->sink);
    for (int32_t j = 0; j < s->subspaces; j++) s->part[j].n = 0;
}

/* Codes for rows that have left the local window. */
static enum kv_status pqcache_append(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    if (from != s->n_rows || rows->n_rows < from) return KV_STALE_INDEX;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    s->n_rows = rows->n_rows;
    /* Rows appended to an unfitted index stay exact until there is more than a codebook of them. */
    if (!s->fitted && s->n_rows - s->local - s->sink > s->centroids) {
        begin_fit(s, s->n_rows);
        fit_some(s, rows, INT64_MAX);
        s->n_coded = s->n_rows - s->local;
    }
    if (!s->fitted) return KV_OK;
    if (s->n_coded < s->sink) s->n_coded = s->sink;
    for (; s->n_coded < s->n_rows - s->local; s->n_coded++) {
        kv_rows_key(rows, s->n_coded, s->row);
        for (int32_t j = 0; j < s->subspaces; j++) {
            const struct kv_kmeans *m = &s->part[j];
            int32_t label;
            kv_kernels()->nearest(s->row + m->offset, 1, (size_t)m->width, m->channel, m->square, m->k, m->width, &label);
            s->code[(size_t)j * (size_t)s->cap + (size_t)s->n_coded] = (uint8_t)label;
        }
    }
    return KV_OK;
}

static enum kv_status pqcache_build_some(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q, int64_t products, bool *done)
{
    (void)prefill_q;
    (void)n_prefill_q;
    if (rows->n_rows > s->cap) return KV_CAPACITY;
    if (!s->fitting || rows->n_rows < s->fitting) {
        s->n_rows = rows->n_rows;
        s->n_coded = 0;
        s->fitted = false;
        begin_fit(s, rows->n_rows);
    }
    *done = s->n_rows - s->local - s->sink <= s->centroids;
    if (*done) s->fitting = 0;
    else if ((*done = fit_some(s, rows, products))) s->n_coded = s->n_rows - s->local;
    return KV_OK;
}

static enum kv_status pqcache_build(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    bool done;
    s->fitting = 0;
    return pqcache_build_some(s, rows, prefill_q, n_prefill_q, INT64_MAX, &done);
}

static enum kv_status pqcache_drop(struct kv_selector *s, int32_t to)
{
    if (to < 0) return KV_BAD_ARGUMENT;
    if (to < s->n_rows) s->n_rows = to;
    if (to < s->n_coded) s->n_coded = to;
    kv_words_cut(&s->words, to);
    return KV_OK;
}

static int32_t pqcache_covered(const struct kv_selector *s) { return s->n_rows; }

static void fill_table(struct kv_selector *s, const float *q)
{
    for (int32_t j = 0; j < s->subspaces; j++)
        for (int32_t c = 0; c < s->part[j].k; c++)
            s->table[j * s->centroids + c] = kv_kernels()->dot(q + j * s->width, s->part[j].centroid + (size_t)c * (size_t)s->width, s->width);
}

/* Row by row, what take_words does word by word: the head's logits by the codes of rows [first, end), which count from first. */
static void score_head(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t first, int32_t end)
{
    fill_table(s, q);
    for (int32_t t = first; t < end; t++) {
        float sum = 0;
        for (int32_t j = 0; j < s->subspaces; j++) sum += s->table[j * s->centroids + s->code[(size_t)j * (size_t)s->cap + (size_t)t]];
        s->logit[t - first] = sum * rows->scale;
    }
}

/* The top rows of [sink, end) by the words they are listed under; returns how many words were ranked. */
static int32_t take_words(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t end, int32_t top, uint64_t *mask)
{
    struct kv_words *w = &s->words;
    kv_words_cut(w, end);
    while (w->end < end) {
        uint32_t word = 0;
        for (int32_t j = 0; j < s->subspaces; j++) word |= (uint32_t)s->code[(size_t)j * (size_t)s->cap + (size_t)w->end] << j * s->bits;
        kv_words_add(w, (uint16_t)word);
    }
    int32_t n = kv_words_live(w);
    kv_group_score_open(&s->score);
    for (int32_t g = 0; g < s->group; g++) {
        fill_table(s, q + (size_t)g * (size_t)s->d_head);
        for (int32_t i = 0; i < n; i++) {
            float sum = 0;
            for (int32_t j = 0; j < s->subspaces; j++) sum += s->table[j * s->centroids + (w->live[i] >> j * s->bits & (s->centroids - 1))];
            s->logit[i] = sum * rows->scale;
        }
        kv_group_score_add_times(&s->score, s->logit, w->size, n);
    }
    for (int32_t i = 0; i < n; i++) s->key[i] = kv_rank_key(kv_group_score_at(&s->score, i), (uint32_t)i);
    kv_words_take(w, s->key, n, top, mask);
    return n;
}

static void take_rows(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t first, int32_t end, int32_t top, uint64_t *mask)
{
    int32_t between = end - first;
    kv_group_score_open(&s->score);
    for (int32_t g = 0; g < s->group; g++) {
        score_head(s, rows, q + (size_t)g * (size_t)s->d_head, first, end);
        kv_group_score_add(&s->score, s->logit, between);
    }
    for (int32_t i = 0; i < between; i++) s->key[i] = kv_rank_key(kv_group_score_at(&s->score, i), (uint32_t)(first + i));
    kv_rank_select(s->key, (size_t)between, (size_t)top);
    for (int32_t i = 0; i < top; i++) kv_mask_set(mask, (int32_t)kv_rank_index(s->key[i]));
}

static int32_t row_of_code(const void *ctx, int32_t cell, int32_t k)
{
    (void)k;
    return *(const int32_t *)ctx + cell;
}

/* Rows are drawn by their codes; sink and local window enter exactly. */
static double estimate_omitted(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *mask, int32_t first, int32_t end,
                               struct kv_ledger *ledger)
{
    score_head(s, rows, q, first, end);
    for (int32_t t = first; t < end; t++) s->taken[t - first] = kv_mask_has(mask, t);
    struct kv_cells c = {.n = end - first, .score = s->logit, .taken = s->taken, .row = row_of_code, .ctx = &first, .exact = {{0, first}, {end, rows->n_rows}}};
    return kv_omitted_upper(&c, rows, q, s->estimate_rows, s->weight, s->row, ledger);
}

static enum kv_status pqcache_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                                    int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    int32_t n = rows->n_rows;
    enum kv_status status = kv_selection_open(rows, s->n_rows, s->group, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || n == 0) return status;
    int32_t first = s->sink < n ? s->sink : n, end = n - s->local > first ? n - s->local : first, between = end - first;
    int64_t want = (int64_t)s->top << (widen ? 1 : 0);
    int32_t top = want < between ? (int32_t)want : between;
    bool all = top == between || between <= s->centroids || !s->fitted;
    int32_t words = 0;
    kv_mask_set_range(support, 0, all ? n : first);
    kv_mask_set_range(support, end, n);
    if (!all && s->words.n && !ledger->trace) words = take_words(s, rows, q, end, top, support); /* a trace shows rows */
    else if (!all) take_rows(s, rows, q, first, end, top, support);
    for (int32_t g = 0; g < s->group; g++) {
        if (g) memcpy(support + (size_t)g * (size_t)n_blocks, support, (size_t)n_blocks * sizeof *support);
        for (int32_t t = 0; ledger->trace && t < n; t++) {
            s->logit[t] = t < first || t >= end || all ? NAN : s->score.total[t - first];
            if (kv_mask_has(support, t)) kv_trace_choose(ledger, g, t);
        }
        kv_trace_scores(ledger, g, s->logit, n, n);
    }
    uint64_t codebooks = (uint64_t)s->centroids * (uint64_t)s->d_head * sizeof(float);
    if (!all) {
        ledger->candidates = (uint64_t)between;
        uint64_t read = words ? (uint64_t)s->words.n * sizeof *s->words.count + (uint64_t)top * sizeof *s->words.before : (uint64_t)between * (uint64_t)s->subspaces;
        ledger->candidate_bytes = read + codebooks;
        ledger->selector_macs = (uint64_t)s->group * ((uint64_t)s->centroids * (uint64_t)s->d_head + (uint64_t)(words ? words : between) * (uint64_t)s->subspaces);
    }
    for (int32_t g = 0; estimated_omitted_mass && s->estimate_rows && g < s->group; g++)
        estimated_omitted_mass[g] = all ? 0 : estimate_omitted(s, rows, q + (size_t)g * (size_t)s->d_head, support, first, end, ledger);
    ledger->units = (uint64_t)(all ? between : top);
    ledger->index_bytes = (uint64_t)s->n_coded * (uint64_t)s->subspaces + codebooks;
    if (words) ledger->index_bytes += (uint64_t)(s->words.end - s->words.first) * (sizeof *s->words.before + sizeof *s->words.word) + (uint64_t)s->words.n * 4 * sizeof(int32_t);
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

const struct kv_selector_method kv_selector_pqcache = {
    .name = "pqcache", .byte_cost = 4.4, .params = kv_selector_pqcache_params, .n_params = N_PARAMS, .online_estimate = "drawn rows, upper end at 95 %", .per_q_head = false,
    .create = pqcache_create, .tune = pqcache_tune, .destroy = pqcache_destroy, .build = pqcache_build, .build_some = pqcache_build_some, .append = pqcache_append, .drop = pqcache_drop,
    .query = pqcache_query, .covered = pqcache_covered,
};
