/* selector.h — the one interface of every row-selecting method: build, append, seal, query, drop.
 *
 * A selector instance serves one (sequence, layer, K/V head). It reads the authoritative rows through kv_rows, keeps only its own
 * index or metadata, and answers with row masks on the 64-row block grid: one mask row per query head of the group. It never
 * returns rows, and a row it names is not yet gathered. Called from kernel workers; an instance is used by one thread at a time.
 * No allocation in query or append after reserve. */
#ifndef KV_SELECTOR_H
#define KV_SELECTOR_H

#include "kernels/kernels.h"
#include "runtime/kvasir.h"

struct kv_rows { /* authoritative rows of one (sequence, layer, K/V head) */
    int32_t d_head, group, n_rows;   /* group = H_q / H_kv; n_rows = committed rows visible to the query */
    enum kv_type row_type;
    const void *const *k, *const *v; /* [blocks] → [64][d_head] */
    float scale;
};

/* What a query ranked, for receipts and the lab; the serving path asks for none. Units are numbered by the method. */
struct kv_trace {
    int32_t cap_units, n_units;
    float *score;    /* [group][cap_units]; NAN where a unit was taken without being ranked */
    uint8_t *chosen; /* [group][cap_units] */
};

struct kv_ledger { /* of one query, overwritten by it; counted from what the code read, not from formulas */
    uint64_t candidate_bytes, index_bytes, descriptor_bytes, payload_bytes, transfer_bytes, selector_macs;
    uint64_t candidates, units, rows; /* rows: the union over the group */
    struct kv_trace *trace; /* NULL: none wanted; kept by query */
};

struct kv_selector; /* instance, opaque to callers */

struct kv_selector_method {
    const char *name;
    const struct kv_param_spec *params;
    int32_t n_params;
    const char *online_estimate; /* what query answers as estimated_omitted_mass; NULL: nothing */
    const char *rehearse;  /* parameter that, unless 0, has a query ranked by what the layer before foretells of it; NULL: never */
    double byte_cost;      /* what a byte that it ranks by or attends to counts beside one of all rows in order, in time; measured (docs/operators/pipelines.md) */
    bool from_queries;     /* build makes something of prefill_q */
    int32_t dense_layers, dense_every; /* layers that stay dense by the method's rule: the first ones; each whose number this divides, 0: no others */
    bool per_q_head;       /* false: one support for the whole group */
    /* Room for n_rows_max rows; the only place that allocates. layer/kv_head/seed feed seeded methods. */
    enum kv_status (*create)(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,
                             struct kv_selector **out, struct kv_error *err);
    void (*destroy)(struct kv_selector *s);
    /* Index rows [0, rows->n_rows) after a prefill. prefill_q: [n_q][group][d_head] of the last prefill queries or NULL. */
    enum kv_status (*build)(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q);
    /* The same cut into parts of about `products` multiplications, for methods whose build takes longer than a step may; NULL for others. Once
     * *done, the index covers the rows of the first part, and is what build makes of them; fewer rows than then begin it anew. Nothing else but
     * destroy may be called in between. */
    enum kv_status (*build_some)(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q, int64_t products,
                                 bool *done);
    /* Rows [from, rows->n_rows) were committed. */
    enum kv_status (*append)(struct kv_selector *s, const struct kv_rows *rows, int32_t from);
    /* Close the open unit where a method has one (block, window, event). May be NULL. */
    enum kv_status (*seal)(struct kv_selector *s, const struct kv_rows *rows);
    /* Forget rows from position `to` on (rollback). Rows [0, to) stay indexed. */
    enum kv_status (*drop)(struct kv_selector *s, int32_t to);
    /* q: [group][d_head]. support: [group][n_blocks] row masks, overwritten. widen: 0, or 1 to search wider by the method's rule.
     * estimated_omitted_mass (may be NULL): [group] the method's own online estimate, or -1 where it has none. ledger (not NULL):
     * set its trace, or NULL, before the call. STALE_INDEX when the index does not cover rows->n_rows. */
    enum kv_status (*query)(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support,
                            int32_t n_blocks, double *estimated_omitted_mass, struct kv_ledger *ledger);
    /* Takes from p what no index depends on, which is the budget; the next query uses it. p is of the instance's own creation but for these. */
    void (*tune)(struct kv_selector *s, const struct kv_params *p);
    /* Committed rows this index covers (F_c of its snapshot). */
    int32_t (*covered)(const struct kv_selector *s);
    /* Rows whose keys start the clusters of the next build, instead of drawn ones; NULL for methods without. */
    enum kv_status (*seed_rows)(struct kv_selector *s, const int32_t *positions, int32_t n, struct kv_error *err);
    /* Methods with a declared estimator replace plain attention over the support; NULL for all others. Where `estimates` names a parameter that
     * is 0, it would only repeat plain attention. */
    const char *estimates;
    enum kv_status (*estimate)(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *support,
                               int32_t n_blocks, float *out /* [group][d_head] */);
};

static inline bool kv_selector_dense(const struct kv_selector_method *m, int32_t layer)
{
    return layer < m->dense_layers || (m->dense_every && layer % m->dense_every == 0);
}

const struct kv_selector_method *kv_selector_find(const char *name); /* NULL: none of that name */
size_t kv_selector_count(void);
const struct kv_selector_method *kv_selector_at(size_t i);

#endif
