/* quest.c — Quest (0x05J–M): pages ranked by an upper bound of their logits from channelwise extrema.
 *
 * One support per query head. A bound is the query's product with one extremum of each channel, the upper one where the query is not below 0.
 * Extrema of 64 pages lie side by side, channel by channel. Tail page: the page being filled is mutable,
 * so it is never ranked and always takes one slot of the budget. Ties go to the lower page. The first two layers stay dense. budget_rows ≥ T selects every row. Widening doubles
 * the pages. The omitted mass is estimated from rows drawn by the pages' bounds. */
#include "runtime/selection/methods.h"
#include "runtime/selection/omitted.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/scratch.h"
#include "runtime/selection/support.h"
#include "runtime/selection/top.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct kv_param_spec kv_selector_quest_params[3] = {
    {"page_rows", "int", 16, 1, 1024, "rows", "paper", "rows per page"},
    {"budget_rows", "int", 1024, 1, 1048576, "rows", "paper: 1K on LongBench", "rows attended; whole pages, the tail page one of them"},
    {"estimate_rows", "int", 0, 0, 1024, "rows", "house", "left-out rows, and taken ones, drawn to estimate the omitted mass; 0: no estimate"},
};

struct kv_selector {
    int32_t d_head, group, page_rows, budget_rows, estimate_rows, max_pages, n_rows;
    bool cut;            /* the tail page lost rows in a drop and is read again by the next append */
    size_t room;         /* max_pages, rounded up to whole blocks of KV_BLOCK_ROWS pages */
    uint8_t *columns;    /* [room / 64][d_head][2][64] lo, then hi, in the type of the rows: rows hold no other values. Room for fp32 */
    float *lo, *hi;      /* [d_head] of the tail page */
    float *stored;       /* [d_head] room for a stored row */
    float *bound;        /* [group][room] */
    uint64_t *key;       /* [max_pages] */
    uint64_t *first;     /* [room / 64] mask of pages */
    float *score, *weight, *row; /* [max_pages], [max_pages], [d_head] of an estimate */
    int32_t *size, *taken; /* [max_pages] */
};

static void quest_destroy(struct kv_selector *s)
{
    if (!s) return;
    void *const owned[] = {s->columns, s->lo, s->hi, s->stored, s->bound, s->key, s->first, s->score, s->weight, s->row, s->size, s->taken};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(s);
}

static void quest_tune(struct kv_selector *s, const struct kv_params *p) { s->budget_rows = (int32_t)p->value[1]; }

static enum kv_status quest_create(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                                   struct kv_selector **out, struct kv_error *err)
{
    (void)seed;
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    struct kv_selector *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "quest", "no memory for a selector");
    s->d_head = d_head;
    s->group = group;
    s->page_rows = (int32_t)p->value[0];
    quest_tune(s, p);
    s->estimate_rows = (int32_t)p->value[2];
    s->max_pages = (int32_t)(((int64_t)n_rows_max + s->page_rows - 1) / s->page_rows);
    size_t pages = (size_t)s->max_pages, d = (size_t)d_head;
    s->room = (pages + KV_BLOCK_ROWS - 1) / KV_BLOCK_ROWS * KV_BLOCK_ROWS;
    s->columns = kv_index_memory(s->room * 2 * d * sizeof(float));
    s->lo = calloc(d, sizeof *s->lo);
    s->hi = calloc(d, sizeof *s->hi);
    s->stored = calloc(d, sizeof *s->stored);
    s->bound = calloc(s->room * (size_t)group, sizeof *s->bound);
    s->key = calloc(pages, sizeof *s->key);
    s->first = calloc(s->room / KV_BLOCK_ROWS, sizeof *s->first);
    s->score = calloc(pages, sizeof *s->score);
    s->weight = calloc(pages, sizeof *s->weight);
    s->row = calloc(d, sizeof *s->row);
    s->size = calloc(pages, sizeof *s->size);
    s->taken = calloc(pages, sizeof *s->taken);
    if (!s->columns || !s->lo || !s->hi || !s->stored || !s->bound || !s->key || !s->first || !s->score || !s->weight || !s->row || !s->size || !s->taken) {
        quest_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "quest", "no memory for extrema of %d pages", (int)pages);
    }
    *out = s;
    return KV_OK;
}

static void store_column(struct kv_selector *s, enum kv_type type, const float *extremum, uint8_t *at)
{
    size_t width = kv_type_row_bytes(type, 1);
    kv_kernels()->to_rows(type, extremum, s->d_head, s->stored);
    for (size_t c = 0; c < (size_t)s->d_head; c++) memcpy(at + 2 * c * KV_BLOCK_ROWS * width, (const uint8_t *)s->stored + c * width, width);
}

/* The tail page is whole. Pages behind it that are not there yet are read, but not ranked. */
static void store_page(struct kv_selector *s, enum kv_type type, int32_t page)
{
    size_t column = KV_BLOCK_ROWS * kv_type_row_bytes(type, 1), block_bytes = 2 * (size_t)s->d_head * column;
    uint8_t *block = s->columns + (size_t)(page / KV_BLOCK_ROWS) * block_bytes, *at = block + (size_t)(page % KV_BLOCK_ROWS) * (column / KV_BLOCK_ROWS);
    if (page % KV_BLOCK_ROWS == 0) memset(block, 0, block_bytes);
    store_column(s, type, s->lo, at);
    store_column(s, type, s->hi, at + column);
}

/* Extrema of rows [from, to), which lie in one page. */
static void extend_page(struct kv_selector *s, const struct kv_rows *rows, int32_t page, int32_t from, int32_t to)
{
    bool whole = to == (page + 1) * s->page_rows;
    for (int32_t c = 0; from == page * s->page_rows && c < s->d_head; c++) s->lo[c] = INFINITY, s->hi[c] = -INFINITY;
    while (from < to) {
        int32_t block = from / KV_BLOCK_ROWS, first = from % KV_BLOCK_ROWS;
        int32_t end = to - block * KV_BLOCK_ROWS < KV_BLOCK_ROWS ? to - block * KV_BLOCK_ROWS : KV_BLOCK_ROWS;
        kv_kernels()->extrema(rows->row_type, rows->k[block], first, end, s->d_head, s->lo, s->hi);
        from += end - first;
    }
    if (whole) store_page(s, rows->row_type, page);
}

static enum kv_status quest_append(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    if (from != s->n_rows || rows->n_rows < from) return KV_STALE_INDEX;
    if (rows->n_rows > (int64_t)s->max_pages * s->page_rows) return KV_CAPACITY;
    if (s->cut) from -= from % s->page_rows;
    s->cut = false;
    while (from < rows->n_rows) {
        int32_t page = from / s->page_rows, end = (page + 1) * s->page_rows;
        if (end > rows->n_rows) end = rows->n_rows;
        extend_page(s, rows, page, from, end);
        from = end;
    }
    s->n_rows = rows->n_rows;
    return KV_OK;
}

static enum kv_status quest_build(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    (void)prefill_q;
    (void)n_prefill_q;
    s->n_rows = 0;
    s->cut = false;
    return quest_append(s, rows, 0);
}

/* A cut page keeps extrema of rows it lost until the next append reads it again. No query uses them: it is the tail page. */
static enum kv_status quest_drop(struct kv_selector *s, int32_t to)
{
    if (to < 0) return KV_BAD_ARGUMENT;
    if (to < s->n_rows) {
        s->n_rows = to;
        s->cut = to % s->page_rows != 0;
    }
    return KV_OK;
}

static int32_t quest_covered(const struct kv_selector *s) { return s->n_rows; }

static int32_t row_of_page(const void *ctx, int32_t page, int32_t k) { return page * ((const struct kv_selector *)ctx)->page_rows + k; }

/* Pages are drawn by their bounds: no row weighs more than its page says. */
static void estimate_omitted(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *support, int32_t n_blocks, double *estimate,
                             struct kv_ledger *ledger)
{
    int32_t tail = (rows->n_rows - 1) / s->page_rows * s->page_rows, pages = tail / s->page_rows;
    struct kv_cells c = {.n = pages, .score = s->score, .size = s->size, .taken = s->taken, .row = row_of_page, .ctx = s, .exact = {{tail, rows->n_rows}}};
    for (int32_t g = 0; g < s->group; g++) {
        const uint64_t *mask = support + (size_t)g * (size_t)n_blocks;
        for (int32_t p = 0; p < pages; p++) {
            s->score[p] = s->bound[(size_t)g * s->room + (size_t)p] * rows->scale;
            s->size[p] = s->page_rows;
            s->taken[p] = kv_mask_has(mask, p * s->page_rows) ? s->page_rows : 0;
        }
        estimate[g] = kv_omitted_upper(&c, rows, q + (size_t)g * (size_t)s->d_head, s->estimate_rows, s->weight, s->row, ledger);
    }
}

static enum kv_status quest_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                                  int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    int32_t n = rows->n_rows;
    enum kv_status status = kv_selection_open(rows, s->n_rows, s->group, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || n == 0) return status;
    int64_t budget = (int64_t)s->budget_rows << (widen ? 1 : 0);
    int32_t n_pages = (n + s->page_rows - 1) / s->page_rows;
    int64_t pages = budget / s->page_rows < 1 ? 1 : budget / s->page_rows;
    int32_t budget_pages = budget >= n || pages > n_pages ? n_pages : (int32_t)pages;
    size_t page_bytes = 2 * kv_rows_row_bytes(rows);
    bool all = budget_pages == n_pages, rank = !all || ledger->trace;
    int32_t take = rank ? budget_pages - 1 : 0;
    if (rank) kv_kernels()->page_bounds(rows->row_type, q, s->group, (size_t)s->d_head, s->columns, (n_pages - 1 + KV_BLOCK_ROWS - 1) / KV_BLOCK_ROWS, s->d_head, s->bound, s->room);
    for (int32_t g = 0; g < s->group; g++) {
        uint64_t *mask = support + (size_t)g * (size_t)n_blocks;
        const float *bound = s->bound + (size_t)g * s->room;
        memset(s->first, 0, s->room / KV_BLOCK_ROWS * sizeof *s->first);
        kv_top_rows(bound, rank ? n_pages - 1 : 0, take, s->key, s->first);
        if (all) kv_mask_set_range(mask, 0, n);
        for (int32_t i = 0; i < take; i++) {
            int32_t page = (int32_t)kv_rank_index(s->key[i]);
            kv_mask_set_range(mask, page * s->page_rows, (page + 1) * s->page_rows);
            kv_trace_choose(ledger, g, page);
        }
        kv_mask_set_range(mask, (n_pages - 1) * s->page_rows, n);
        kv_trace_choose(ledger, g, n_pages - 1);
        kv_trace_scores(ledger, g, bound, n_pages - 1, n_pages);
    }
    if (!all) {
        ledger->candidates = (uint64_t)(n_pages - 1) * (uint64_t)s->group;
        ledger->candidate_bytes = (uint64_t)(n_pages - 1) * page_bytes;
        ledger->selector_macs = (uint64_t)(n_pages - 1) * (uint64_t)s->d_head * (uint64_t)s->group;
    }
    if (estimated_omitted_mass && s->estimate_rows) {
        for (int32_t g = 0; g < s->group; g++) estimated_omitted_mass[g] = 0;
        if (!all) estimate_omitted(s, rows, q, support, n_blocks, estimated_omitted_mass, ledger);
    }
    ledger->units = (uint64_t)budget_pages * (uint64_t)s->group;
    ledger->index_bytes = (uint64_t)n_pages * page_bytes;
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

const struct kv_selector_method kv_selector_quest = {
    .name = "quest", .byte_cost = 2.6, .params = kv_selector_quest_params, .n_params = 3, .online_estimate = "drawn rows, upper end at 95 %", .dense_layers = 2, .per_q_head = true,
    .create = quest_create, .tune = quest_tune, .destroy = quest_destroy, .build = quest_build, .append = quest_append, .drop = quest_drop,
    .query = quest_query, .covered = quest_covered,
};
