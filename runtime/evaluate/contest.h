/* contest.h — several selecting methods on the same units, each at a ladder of budgets: how many bytes each reads where all hold the same mass.
 *
 * A unit is a (layer, K/V head, step). On it a method gives, for every rung of its ladder, the retained mass (the least over the group, as the omitted_mass gate
 * counts it) and the bytes read, ranking and rows, as a share of all rows. Where that is no less than all rows, or the layer is dense by the method's rule, both are 1: its
 * pipeline reads all rows there. The rungs whose mean masses enclose the reference, and the exchange rate λ = Δshare / Δmass between them, follow from the
 * units before; a unit then counts as
 *     L = share − λ (mass − reference)
 * whose mean is the share at equal mass and, to first order, does not depend on how well the rungs were chosen. Methods are set apart by the confidence
 * sequence of their paired differences of L (interval.h), so two copies of one method never are. Units of one sequence resemble each other more than the
 * sequence assumes. A method that has a declared estimator is judged by the mass of the rows it samples.
 *
 * No thread safety of its own: measure is for one thread; add and view exclude each other. Source 0x09E. */
#ifndef KV_CONTEST_H
#define KV_CONTEST_H

#include "runtime/selection/selector.h"

enum { KV_CONTEST_RUNGS = 12, KV_CONTEST_WARM = 16, KV_CONTEST_LEAST = 32 }; /* units that only place the rungs; scored units before anything is ranked */

struct kv_contest;
struct kv_contest_point { /* of one rung */
    double mass, share, rows;
};
struct kv_contest_unit {
    const struct kv_rows *rows;
    const float *q;           /* [group][d_head] */
    int32_t layer, n_prompt;  /* indexes are built over the prompt's rows, the others are appended */
    double dense_bytes;       /* filled by measure */
    struct kv_contest_point point[KV_TOURNAMENT_MAX][KV_CONTEST_RUNGS]; /* filled by measure */
};

/* BAD_ARGUMENT where a configuration, or a parameter for heads of this shape, makes no sense. max_rows: longest sequence. */
enum kv_status kv_contest_create(const struct kv_tournament_config *config, int32_t d_head, int32_t group, int32_t max_rows, struct kv_contest **out,
                                 struct kv_error *err);
void kv_contest_destroy(struct kv_contest *c);
void kv_contest_rest(struct kv_contest *c); /* gives up what measuring needs; view goes on */
/* stop (may be NULL): looked at between parts of an index and between rungs; then CANCELLED, and nothing more is measured. */
enum kv_status kv_contest_measure(struct kv_contest *c, struct kv_contest_unit *u, const _Atomic bool *stop);
void kv_contest_add(struct kv_contest *c, const struct kv_contest_unit *u);
/* Fills all but what the owner counts: running, dropped. */
void kv_contest_view(const struct kv_contest *c, struct kv_tournament_view *out);

#endif
