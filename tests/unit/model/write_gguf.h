/* write_gguf.h — makes GGUF files for tests: any values and tensors, right or wrong, and small random models of every shape. */
#ifndef KV_WRITE_GGUF_H
#define KV_WRITE_GGUF_H

#include "kernels/kernels.h"
#include "runtime/model/gguf.h"

struct gguf_bytes { /* grows; aborts when memory ends */
    uint8_t *data;
    size_t n, cap;
};

struct gguf_writer { /* starts zeroed */
    struct gguf_bytes values, infos, data;
    uint64_t n_values, n_tensors;
    uint32_t version;   /* 0: 3 */
    uint32_t alignment; /* 0: 32, unsaid in the file */
};

void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_put_f32(struct gguf_writer *w, const char *key, float v);
void gguf_put_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_put_text(struct gguf_writer *w, const char *key, const char *v);
void gguf_put_texts(struct gguf_writer *w, const char *key, const char *const *v, uint64_t n);
void gguf_put_array(struct gguf_writer *w, const char *key, enum kv_gguf_type type, const void *v, size_t bytes, uint64_t n);
/* dims as in the file: contiguous first. data may be NULL: zeros. */
void gguf_put_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims, const void *data, size_t bytes);
/* As before, but the offset in the file is said to be `offset`. */
void gguf_put_tensor_at(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims, uint64_t offset);
/* The whole file; frees the writer's parts. The caller frees. */
uint8_t *gguf_finish(struct gguf_writer *w, size_t *n);
/* To a new temporary file, whose path is written to path[64]; aborts on failure. The caller unlinks. */
void gguf_save(const uint8_t *bytes, size_t n, char path[64]);

struct random_model { /* zero fields take the default in brackets */
    const char *architecture;                 /* ["llama"] */
    enum kv_type type;                        /* of matrices; KV_F32 is 0 */
    int32_t n_layers, d_model, n_q_heads, n_kv_heads, d_head, d_ff; /* [2, 64, 4, 2, 16, 96] */
    int32_t n_vocab, context_length;          /* [320, 512]; n_vocab at least 300 */
    bool bpe;                                 /* byte-level BPE, otherwise SentencePiece with byte fallback */
    const char *pre;                          /* ["smollm"] of BPE */
    bool untied;                              /* an output matrix of its own */
    const char *chat_template;                /* [none] */
    const char *skip;                         /* a tensor to leave out */
    void (*more)(struct gguf_writer *w);      /* puts further values or tensors */
    uint64_t seed;
};
/* A valid file whose logits are finite: biases for qwen2, head norms for qwen3, scales for granite. */
uint8_t *random_gguf(const struct random_model *r, size_t *n);
void random_gguf_save(const struct random_model *r, char path[64]);

#endif
