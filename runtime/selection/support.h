/* support.h — what every query shares: opening checks, the part of the ledger that follows from the support, and the trace. */
#ifndef KV_SUPPORT_H
#define KV_SUPPORT_H

#include "runtime/selection/selector.h"

/* Sizes every create checks. */
enum kv_status kv_selection_check(int32_t d_head, int32_t group, int32_t n_rows_max, struct kv_error *err);
/* Levels of the tree over n_blocks. */
static inline int32_t kv_tree_level(int32_t n_blocks)
{
    int32_t level = 0;
    while (INT64_C(1) << level < n_blocks) level++;
    return level;
}

/* Clears support, estimates (to -1) and the ledger but its trace. STALE_INDEX when the index covers other than rows->n_rows,
 * BAD_ARGUMENT when the masks cannot hold the rows. covered: rows the index covers. */
enum kv_status kv_selection_open(const struct kv_rows *rows, int32_t covered, int32_t group, uint64_t *support, int32_t n_blocks,
                                 double *estimated_omitted_mass, struct kv_ledger *ledger);
/* Sets rows, payload, descriptors (64 bytes per touched block) and transfer bytes from the union of the group's masks; rows set in
 * resident [n_blocks] (may be NULL) cost no transfer. */
void kv_ledger_support(struct kv_ledger *ledger, const struct kv_rows *rows, const uint64_t *support, int32_t n_blocks,
                       const uint64_t *resident);
void kv_trace_choose(struct kv_ledger *ledger, int32_t g, int32_t unit);
/* Copies n_ranked scores; units from there to n_units were not ranked. */
void kv_trace_scores(struct kv_ledger *ledger, int32_t g, const float *score, int32_t n_ranked, int32_t n_units);

void kv_trace_unranked(struct kv_ledger *ledger, int32_t g, int32_t unit);

enum { KV_RUN_ROWS = 2048 }; /* of a channel: a page of them in two-byte rows, which no foresight of the processor passes over into channels not wanted */
/* Puts n stored rows of d values, which share a block, at place `at` of columns [runs][d][KV_RUN_ROWS], as kv_kernels()->column_dots reads them. */
void kv_columns_put(enum kv_type row_type, const void *rows, int32_t n, int32_t d, int32_t at, void *columns);
static inline size_t kv_run_rows(int32_t n_rows) { return ((size_t)n_rows + KV_RUN_ROWS - 1) / KV_RUN_ROWS * KV_RUN_ROWS; }
float kv_score_top(const float *x, int32_t n); /* the largest that is a number; -INFINITY: none */

/* Ranking by the sum of a group's softmaxes. */
struct kv_group_score { /* arrays [n], owned by the caller */
    float *total; /* sum of softmaxes */
    float *best;  /* largest logit below its head's maximum, of heads whose logits lie wide apart */
    bool added, kept, wide; /* there was a head; one whose logits do not, so that no sum is rounded away; one whose logits do */
};
void kv_group_score_open(struct kv_group_score *s);
/* Turns one head's logits into their softmax and adds it. */
void kv_group_score_add(struct kv_group_score *s, float *logit, int32_t n);
/* The same where entry i stands for times[i] rows. */
void kv_group_score_add_times(struct kv_group_score *s, float *logit, const int32_t *times, int32_t n);
/* kv_group_score_at of all rows; replaces best. Valid until the next head. */
const float *kv_group_score_all(struct kv_group_score *s, int32_t n);
/* The sum; for rows whose sum fp32 rounds away, what keeps them in order below all others. */
static inline float kv_group_score_at(const struct kv_group_score *s, int32_t i)
{
    return s->total[i] < 1e-30f ? s->best[i] : s->total[i];
}

/* One key row as fp32; out has room for d_head. */
void kv_rows_key(const struct kv_rows *rows, int32_t row, float *out);
void kv_rows_value(const struct kv_rows *rows, int32_t row, float *out);
size_t kv_rows_row_bytes(const struct kv_rows *rows); /* of one K row */

#endif
