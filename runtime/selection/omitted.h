/* omitted.h — how much of the softmax a support leaves out, from a few rows drawn where the method's own scores say the mass is.
 *
 * A method divides the rows it ranked into cells (pages, clusters, rows), each with a score a_j that stands for the logits in it. From the left-out rows and from
 * the taken ones, `draws` rows each are drawn with probability proportional to exp(a_j), systematically; their true logits l give
 *     Z ≈ W · mean(exp(l − a_j)),  W = Σ exp(a_j) over the rows of the stratum
 * without bias, whatever the scores are worth; bad scores widen the interval. Rows that are attended without being ranked enter exactly. The answer is the upper
 * end of a one-sided 95 % interval (normal approximation) of Z_out / (Z_out + Z_in): a gate accepts what is small with confidence. Few draws by scores
 * that are far from the logits cover less than that: 64 draws are advised. */
#ifndef KV_OMITTED_H
#define KV_OMITTED_H

#include "runtime/selection/selector.h"

struct kv_cells {
    int32_t n;
    const float *score;   /* [n] as the logit: scaled */
    const int32_t *size;  /* [n] rows; NULL: one each */
    const int32_t *taken; /* [n] of them, the first ones, are in the support */
    int32_t (*row)(const void *ctx, int32_t cell, int32_t k); /* position of a cell's k-th row */
    const void *ctx;
    int32_t exact[2][2];  /* ranges [from, to) that are attended without being ranked */
};

/* One query head. weight: scratch [n]; row: scratch [d_head]. Adds what it reads to the ledger. */
double kv_omitted_upper(const struct kv_cells *c, const struct kv_rows *rows, const float *q, int32_t draws, float *weight, float *row,
                        struct kv_ledger *ledger);

#endif
