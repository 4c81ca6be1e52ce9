/* lab.h — one method on given tensors, without a model: the production selector, the canonical attention, the dense reference.
 *
 * Allocates; for the lab, tests and benchmarks. One call at a time per result. */
#ifndef KV_LAB_H
#define KV_LAB_H

#include "runtime/evaluate/shadow.h"
#include "runtime/selection/selector.h"

#define KV_LAB_MAX_ROWS (1 << 20)
#define KV_LAB_MAX_VALUES (INT64_C(1) << 28) /* of one tensor */

enum kv_lab_op { KV_LAB_BUILD, KV_LAB_APPEND, KV_LAB_SEAL, KV_LAB_DROP };
struct kv_lab_step {
    enum kv_lab_op op;
    int32_t rows; /* BUILD: the first rows; APPEND: how many more; DROP: rows kept */
};

struct kv_lab_case {
    const struct kv_selector_method *method; /* NULL: dense */
    struct kv_params params;
    int32_t n_q_heads, n_kv_heads, d_head, n_rows;
    enum kv_type row_type;
    double scale;            /* 0: 1 / sqrt(d_head) */
    const float *q;          /* [n_q_heads][d_head] */
    const float *k, *v;      /* [n_kv_heads][n_rows][d_head] */
    const float *prefill_q;  /* [n_q_heads][n_prefill_q][d_head] or NULL */
    int32_t n_prefill_q;
    const int32_t *persistent, *resident, *cluster_seeds; /* positions */
    int32_t n_persistent, n_resident, n_cluster_seeds;
    const struct kv_lab_step *steps; /* none: build over all rows */
    int32_t n_steps, widen;
    int32_t recall_k;        /* 0: as many rows as the head's support has */
};

/* Where a head's error comes from, each stage alone (contract 7). */
struct kv_lab_stages {
    double candidate_recall; /* index representation: share of the top recall_k rows among the candidates; -1 where candidates are no rows */
    double support;          /* candidate support: ‖exact attention over the support − dense‖, both on the stored rows */
    double payload;          /* payload representation: ‖attention over the support on stored rows − on the fp32 inputs‖ */
    double estimator;        /* reduction/estimator: ‖published output − exact attention over the support‖ */
};

struct kv_lab_result { /* arrays owned by the result */
    int32_t n_rows, n_blocks, cap_units; /* rows after the steps */
    uint64_t *support;                   /* [n_q_heads][n_blocks] */
    float *output, *dense;               /* [n_q_heads][d_head] canonical attention over the support (or the method's estimator), over all rows */
    float *m, *l, *u;                    /* [n_q_heads], [n_q_heads], [n_q_heads][d_head]: canonical state over the support */
    struct kv_shadow_head *head;         /* [n_q_heads] */
    struct kv_lab_stages *stages;        /* [n_q_heads] */
    int32_t *n_units;                    /* [n_q_heads] units the method numbers; 0: it has none to show */
    float *score;                        /* [n_q_heads][cap_units]; NAN: taken unranked */
    uint8_t *chosen;                     /* [n_q_heads][cap_units] */
    double *estimated_omitted_mass;      /* [n_q_heads]; -1: none */
    struct kv_ledger ledger;             /* sum over K/V heads */
};

enum kv_status kv_lab_run(const struct kv_lab_case *c, struct kv_lab_result *out, struct kv_error *err);
void kv_lab_result_free(struct kv_lab_result *r);

/* Rows of one K/V head stored in blocks, as a sequence's cache holds them. */
struct kv_lab_rows {
    struct kv_rows rows;
    void **block; /* [2 × blocks]: keys, then values */
    int32_t n_blocks;
};
enum kv_status kv_lab_rows_create(enum kv_type row_type, int32_t d_head, int32_t group, float scale, int32_t n_rows, const float *k,
                                  const float *v, struct kv_lab_rows *out);
void kv_lab_rows_free(struct kv_lab_rows *r);
/* Canonical attention of the group over support (NULL: all rows): state and output (any may be NULL but not all). */
enum kv_status kv_lab_attend(const struct kv_rows *rows, const float *q, const uint64_t *support, int32_t n_blocks, float *m, float *l,
                             float *u, float *output);

#endif
