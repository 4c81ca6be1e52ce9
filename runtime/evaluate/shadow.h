/* shadow.h — one selected unit against the dense reference, in double precision: omitted mass, output error, identity, bound, recall.
 *
 * A unit is one (layer, K/V head, step): the query heads of a group over the same rows. No allocation; the caller owns scratch.
 * Any thread, as long as rows, query and output stay unchanged during the call. Source 0x05A, 0x09G–H. */
#ifndef KV_SHADOW_H
#define KV_SHADOW_H

#include "runtime/selection/selector.h"

#define KV_RECALL_OWN (-1) /* recall_k: as many rows as the head's support has */

struct kv_shadow_unit {
    const struct kv_rows *rows; /* authoritative rows; scale and visible count as the attention used them */
    const float *q;             /* [group][d_head] */
    const uint64_t *support;    /* [group][n_blocks] row masks; NULL: all rows */
    int32_t n_blocks;
    const float *output;        /* [group][d_head] as published, or NULL: attention over the support, computed here */
    size_t output_stride;       /* floats between its rows; 0: d_head */
    struct kv_states whole, part; /* of attention over all rows and over the support, u finished (u / l), where they are known; else m = NULL. Online only */
    bool estimator;             /* output comes from a declared estimator: the bound is not promised for it */
    int32_t recall_k;           /* 0: no recall; KV_RECALL_OWN. Top rows by dense score, ties to the lower position */
};

struct kv_shadow_head { /* one query head */
    int32_t rows;                       /* in the support */
    double retained_mass, omitted_mass; /* ρ, δ: shares of the dense softmax */
    double output_error, output_norm, output_error_relative; /* ‖o_R − o‖, ‖o‖, their quotient (0 when ‖o‖ = 0) */
    double identity_residual;           /* ‖(o_R − o) − δ (o_R − o_O)‖ of the attention over the support; 0 for δ = 0 or 1 */
    double v_max, bound;                /* max ‖v_i‖, 2 δ V_max */
    double recall;                      /* support recall of the top recall_k rows; -1 when not asked */
    int32_t recall_k;                   /* k it was taken at */
    double m, l;                        /* state over the support: maximum score and sum of exp(score − m) */
    bool bound_holds;
};

size_t kv_shadow_scratch_doubles(int32_t n_rows, int32_t d_head);
/* Fills the UNIT fields of *out that follow from the unit (maxima over the group) and leaves the rest. heads (may be NULL): [group].
 * dense, retained (may be NULL): [group][d_head] outputs of full attention and of attention over the support. BAD_ARGUMENT when
 * scratch or masks are too small. A result that is not a number counts as a bound that does not hold. */
enum kv_status kv_shadow_unit(const struct kv_shadow_unit *u, double *scratch, size_t scratch_doubles, struct kv_sample *out,
                              struct kv_shadow_head *heads, double *dense, double *retained);

/* The same of a live unit, from canonical fp32 states: as dear as reading the head once, where the reference above takes twenty times that. recall_k is not
 * answered; a bound is shown to hold by the first value that is large enough. */
size_t kv_shadow_online_doubles(int32_t n_rows, int32_t d_head, int32_t group);
enum kv_status kv_shadow_online(const struct kv_shadow_unit *u, double *scratch, size_t scratch_doubles, struct kv_sample *out);

#endif
