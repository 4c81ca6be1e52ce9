/* model.h — the inside of struct kv_model, and the parts that kv_model_open puts together. Not for callers outside runtime/model. */
#ifndef KV_MODEL_H
#define KV_MODEL_H

#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer.h"
#include "runtime/model/weights.h"

/* Shapes beyond these are refused as MODEL_MALFORMED: every size computed from them fits 63 bits with room to spare. */
#define KV_MAX_LAYERS 1024
#define KV_MAX_WIDTH (1 << 20)
#define KV_MAX_HEADS 4096
#define KV_MAX_D_HEAD 1024
#define KV_MAX_VOCAB (1 << 22)
#define KV_MAX_CONTEXT (1 << 24)

struct kv_model {
    struct kv_model_info info;
    struct kv_gguf *file;
    struct kv_weights weights;
    void *packed;           /* one mapping of packed_bytes, all quantised matrices */
    size_t packed_bytes;
    float *vectors;         /* norms and biases as fp32, one allocation */
    struct kv_tokenizer *tokenizer;
};

/* Keys of an architecture are "llama.block_count" and so on: out is "NAME.suffix". */
void kv_model_key(const char *architecture, const char *suffix, char out[160]);

/* Fills shapes and scales of w from the metadata. */
enum kv_status kv_weights_shapes(const struct kv_gguf *g, struct kv_model_info *info, struct kv_weights *w, struct kv_error *err);
/* Fills w->inv_freq, d_rot, rope_mscale, rope_layout. *factors: the tensor rope_freqs.weight when the file has one, else NULL. */
enum kv_status kv_rope_load(const struct kv_gguf *g, const char *architecture, double base, const struct kv_gguf_tensor *factors,
                            struct kv_weights *w, struct kv_error *err);
/* Binds every tensor and packs the quantised ones. */
enum kv_status kv_weights_bind(struct kv_model *m, const struct kv_model_options *opt, struct kv_error *err);

#endif
