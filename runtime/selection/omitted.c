/* omitted.c — see omitted.h. */
#include "runtime/selection/omitted.h"

#include "runtime/selection/support.h"

#include <math.h>

#define Z 1.6448536269514722 /* 95 % of the standard normal */

struct part { /* of Σ exp(logit − top) */
    double sum, error; /* error: standard deviation of the estimate */
};

static double logit(const struct kv_rows *rows, const float *q, int32_t row, float *key, struct kv_ledger *ledger)
{
    kv_rows_key(rows, row, key);
    ledger->candidate_bytes += kv_rows_row_bytes(rows);
    ledger->selector_macs += (uint64_t)rows->d_head;
    return (double)kv_kernels()->dot(q, key, rows->d_head) * (double)rows->scale;
}

/* Rows of a cell that belong to the stratum, and the first of them. */
static int32_t members(const struct kv_cells *c, int32_t cell, bool out, int32_t *first)
{
    *first = out ? c->taken[cell] : 0;
    return out ? (c->size ? c->size[cell] : 1) - c->taken[cell] : c->taken[cell];
}

/* weight holds exp(score − top). */
static struct part draw(const struct kv_cells *c, const struct kv_rows *rows, const float *q, int32_t draws, bool out, double top, const float *weight, float *key,
                        struct kv_ledger *ledger)
{
    double whole = 0, passed = 0, sum = 0, squares = 0;
    int32_t first, k = 0;
    for (int32_t j = 0; j < c->n; j++) whole += (double)weight[j] * members(c, j, out, &first);
    if (whole == 0) return (struct part){0, 0};
    if (!isfinite(whole)) return (struct part){NAN, 0};
    for (int32_t j = 0; j < c->n && k < draws; j++) {
        int32_t n = members(c, j, out, &first);
        double own = (double)weight[j] * n;
        for (; k < draws && (k + 0.5) * whole / draws < passed + own; k++) {
            int32_t at = (int32_t)(((k + 0.5) * whole / draws - passed) / (double)weight[j]);
            double x = whole * exp(logit(rows, q, c->row(c->ctx, j, first + (at < n ? at : n - 1)), key, ledger) - top) / (double)weight[j];
            sum += x, squares += x * x;
        }
        passed += own;
    }
    double mean = k ? sum / k : 0, variance = k > 1 ? (squares - k * mean * mean) / (k - 1) : 0;
    return (struct part){mean, variance > 0 ? sqrt(variance / k) : 0};
}

double kv_omitted_upper(const struct kv_cells *c, const struct kv_rows *rows, const float *q, int32_t draws, float *weight, float *key, struct kv_ledger *ledger)
{
    float top = -INFINITY;
    for (int32_t j = 0; j < c->n; j++) top = c->score[j] > top ? c->score[j] : top;
    if (!isfinite(top)) return c->n ? 1 : 0; /* nothing can be said */
    for (int32_t j = 0; j < c->n; j++) weight[j] = c->score[j] - top;
    kv_kernels()->exp(weight, c->n, weight);
    struct part out = draw(c, rows, q, draws, true, (double)top, weight, key, ledger), in = draw(c, rows, q, draws, false, (double)top, weight, key, ledger);
    double exact = 0;
    for (int r = 0; r < 2; r++)
        for (int32_t i = c->exact[r][0]; i < c->exact[r][1]; i++) exact += exp(logit(rows, q, i, key, ledger) - (double)top);
    double left = out.sum + Z * out.error, kept = exact + fmax(0, in.sum - Z * in.error), upper = left / (left + kept);
    return left == 0 ? 0 : upper >= 0 && upper <= 1 ? upper : 1; /* what is no number is no assurance */
}
