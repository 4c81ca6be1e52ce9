/* attention.h — attention of one layer over the sequences of a step: cut into aligned subtrees × K/V heads, run on the workers,
 * folded on the one tree. The cut follows load and threads; the bits do not depend on it. Decode thread only. */
#ifndef KV_ATTENTION_H
#define KV_ATTENTION_H

#include "runtime/execution/placement.h"
#include "runtime/execution/workers.h"

/* Tokens of one sequence in one step: rows [position, position + n) are appended, the rows before them are committed. */
struct kv_step_item {
    struct kv_cache *cache;
    const struct kv_placement *placement;
    const int32_t *tokens;   /* [n] */
    int32_t n, position;
    bool selects;            /* ask the plan hook for every K/V head; n = 1 then */
    bool rehearses;          /* n = 1: the next layer's queries are foretold from each layer's input */
    bool sample;             /* logits of the last token are kept in kv_transformer_logits */
    bool every_logits;       /* logits of every token pass through the logits hook */
    void *owner;
    /* Filled by the step. */
    const float *rehearsed;  /* [H_q][d_head] of the layer in work, as the layer before it foretold them; NULL: nothing was */
    int32_t row, index;      /* first row in the step's arrays; place in the item list */
    int32_t logits_row;      /* of kv_transformer_logits, where sample is set */
    enum kv_status placement_status; /* first failure of the placement; rows were then read where they are authoritative */
    _Atomic int64_t own_ns;  /* work of all threads spent on this sequence alone */
    double shared_us;        /* its share of the work done for all rows together */
};

struct kv_head_plan { /* of one (item, K/V head), filled by the plan hook */
    const uint64_t *support; /* [group][blocks of the attention given], or NULL: all visible rows */
    const float *output;     /* [group][d_head] by a method's own estimator instead of attention, or NULL */
};

/* Worker thread. a: the head's rows and queries, support NULL. */
typedef void kv_plan_fn(void *ctx, int32_t worker, struct kv_step_item *item, int32_t layer, int32_t kv_head,
                        const struct kv_attention *a, struct kv_head_plan *out);

struct kv_attention_shape {
    int32_t n_q_heads, n_kv_heads, d_head;
    float scale;
    int32_t max_rows, max_items, max_blocks; /* of a step, of a step, of a sequence */
};

struct kv_attention_runner;
enum kv_status kv_attention_create(const struct kv_attention_shape *shape, struct kv_workers *workers, struct kv_attention_runner **out);
void kv_attention_destroy(struct kv_attention_runner *r);

/* Queries of the step as attention reads them: for an item at `row`, [H_kv][n][group][d_head] from row × H_q × d_head on. */
float *kv_attention_queries(struct kv_attention_runner *r);
float *kv_attention_output(const struct kv_attention_runner *r); /* [rows][H_q × d_head] */
/* Attention of the items given, whose caches were acquired for this layer. */
void kv_attention_run(struct kv_attention_runner *r, struct kv_step_item *const *items, int32_t n_items, int32_t layer,
                      kv_plan_fn *plan, void *plan_ctx);
/* The description of one head after kv_attention_run, for evaluation: same pointers, support as planned. n = 1 items only. */
struct kv_attention kv_attention_view(const struct kv_attention_runner *r, const struct kv_step_item *item, int32_t kv_head);
/* Its state: m and l of the group, and as u the finished output, u / l. Of no meaning where the plan had an output of its own. */
struct kv_states kv_attention_state(const struct kv_attention_runner *r, const struct kv_step_item *item, int32_t kv_head);
/* One head of an n = 1 item computed again over `blocks` ([n_blocks] slabs), all on the calling thread: out [group][d_head]. */
void kv_attention_once(struct kv_attention_runner *r, int32_t worker, const struct kv_step_item *item, int32_t kv_head,
                       const uint8_t *const *blocks, float *out);

int64_t kv_now_ns(void); /* CLOCK_MONOTONIC */

#endif
