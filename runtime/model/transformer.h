/* transformer.h — one step of a decoder over a batch: decode tokens of many sequences and prefill chunks together.
 *
 * A row's result depends on its own sequence alone, never on the batch, the chunk, the thread count or the placement; kernels.h gives
 * the order of every sum. All buffers are allocated at create. Decode thread only. */
#ifndef KV_TRANSFORMER_H
#define KV_TRANSFORMER_H

#include "runtime/execution/attention.h"
#include "runtime/model/weights.h"

/* What a step computes of one row, in order; of one layer but for the first and the last. */
#define KV_OPERATIONS(X)                                                                                                          \
    X(embedding) X(attention_norm) X(query) X(key) X(value) X(attention) X(attention_output) X(attention_residual) X(ffn_norm)   \
    X(gate) X(up) X(swiglu) X(down) X(residual)
enum kv_operation {
#define KV_OPERATION(name) KV_OP_##name,
    KV_OPERATIONS(KV_OPERATION)
#undef KV_OPERATION
    KV_OPERATION_COUNT
};
const char *kv_operation_name(enum kv_operation o);

struct kv_step_hooks {
    void *ctx;
    /* Decode thread: the result x [n] of an operation on one row, which may be changed. layer -1: embedding. NULL: nobody looks. */
    void (*trace)(void *ctx, const struct kv_step_item *item, int32_t token, int32_t layer, enum kv_operation o, float *x, int32_t n);
    kv_plan_fn *plan; /* worker thread; NULL: no item selects */
    /* Decode thread: attention of these items in this layer is done, their rows are still acquired. May be NULL. */
    void (*attended)(void *ctx, struct kv_step_item *const *items, int32_t n_items, int32_t layer);
    /* Decode thread: logits of one token of an item with every_logits, but for the last where sample is set. May be NULL. */
    void (*logits)(void *ctx, const struct kv_step_item *item, int32_t token, const float *logits);
};

struct kv_transformer;
/* max_rows: tokens of a step; max_items: sequences of a step; max_context: rows of a sequence. placements may be NULL when every
 * item is resident. */
enum kv_status kv_transformer_create(const struct kv_weights *w, struct kv_workers *workers, struct kv_placement_ctx *placements,
                                     int32_t max_rows, int32_t max_items, int32_t max_context, struct kv_transformer **out);
void kv_transformer_destroy(struct kv_transformer *t);

/* Appends the rows of every item to its cache, which was reserved for them, and leaves cache->n_rows alone: the caller commits by
 * raising it. Tokens are in range, Σ n ≤ max_rows. */
void kv_transformer_step(struct kv_transformer *t, struct kv_step_item *items, int32_t n_items, const struct kv_step_hooks *hooks);
float *kv_transformer_logits(struct kv_transformer *t, int32_t logits_row); /* [n_vocab], until the next step */
struct kv_attention_runner *kv_transformer_attention(struct kv_transformer *t);

#define KV_MAX_D_HEAD 512 /* widest head the step accepts; wider models are refused at create */
/* The type K/V rows are stored in. */
#define KV_ROW_TYPE KV_F16

#endif
