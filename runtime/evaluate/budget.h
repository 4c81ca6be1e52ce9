/* budget.h — one budget of rows for every selecting method, so that they can be set side by side.
 *
 * A budget counts all rows a query attends, sink and window included, as near as the method's units allow; a method without a
 * budget (magicpig samples) keeps its parameters. Pure functions; any thread. */
#ifndef KV_BUDGET_H
#define KV_BUDGET_H

#include "runtime/kvasir.h"

enum { KV_BUDGET_LEAST = 64 };

/* Changes those of *params that set how many rows are attended. BAD_ARGUMENT under KV_BUDGET_LEAST rows. */
enum kv_status kv_budget_set(const struct kv_pipeline *p, int32_t rows, struct kv_params *params, struct kv_error *err);

/* The budget of a method as one number that grows with what it reads, for rung 0 (least) to n_rungs - 1 (most; rows_max, or all that a threshold lets in): changes
 * those of *params that no index depends on. Returns the name of the parameter that counts, NULL for a pipeline without a selector. */
const char *kv_budget_rung(const struct kv_pipeline *p, int32_t rung, int32_t n_rungs, int32_t rows_max, struct kv_params *params);

struct kv_ablation { /* one parameter of a method and the values its sweep takes */
    const char *method, *param;
    int32_t n;
    double value[6];
    bool of_budget; /* values are multiples of the budget */
};
size_t kv_ablation_count(void);
const struct kv_ablation *kv_ablation_at(size_t i);

#endif
