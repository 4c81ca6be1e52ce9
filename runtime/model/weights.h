/* weights.h — a model's tensors as the transformer reads them. Immutable after kv_model_open. */
#ifndef KV_WEIGHTS_H
#define KV_WEIGHTS_H

#include "kernels/kernels.h"
#include "runtime/kvasir.h"

enum kv_arch { KV_ARCH_LLAMA, KV_ARCH_QWEN2, KV_ARCH_QWEN3, KV_ARCH_SMOLLM3, KV_ARCH_GRANITE };

struct kv_layer_weights {
    const float *attn_norm, *ffn_norm;       /* fp32 [d_model] (converted once if the file has another type) */
    struct kv_mat wq, wk, wv, wo;            /* [H_q d_h][d_model], [H_kv d_h][d_model], …, [d_model][H_q d_h] */
    const float *bq, *bk, *bv, *bo;          /* NULL where the architecture has none */
    const float *q_norm, *k_norm;            /* [d_head] or NULL (qwen3) */
    struct kv_mat gate, up, down;
    bool rope;                               /* false: a layer without positions (smollm3) */
};

struct kv_weights {
    enum kv_arch arch;
    int32_t n_layers, d_model, n_q_heads, n_kv_heads, d_head, d_ff, n_vocab, context_length;
    float norm_eps, attention_scale, embedding_scale, residual_scale, logit_scale; /* all multiply; 1/sqrt(d_head), 1, 1, 1 unless the file says so */
    enum kv_rope_layout rope_layout;
    int32_t d_rot;
    double *inv_freq;                        /* [d_rot/2], scaling (linear, NTK, YaRN, llama3) applied */
    float rope_mscale;
    enum kv_type embedding_type;
    const void *embedding;                   /* file rows [n_vocab][d_model] */
    const float *output_norm;
    struct kv_mat output;                    /* the embedding again where the file ties them */
    struct kv_layer_weights *layers;
};

const struct kv_weights *kv_model_weights(const struct kv_model *m);

#endif
