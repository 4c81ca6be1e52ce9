/* tokenizer_split.h — cuts text into the words within which byte-pair merges happen. */
#ifndef KV_TOKENIZER_SPLIT_H
#define KV_TOKENIZER_SPLIT_H

#include "runtime/status.h"

#include <stddef.h>

/* Named after tokenizer.ggml.pre. */
enum kv_split { KV_SPLIT_DEFAULT, KV_SPLIT_GPT2, KV_SPLIT_SMOLLM, KV_SPLIT_LLAMA3, KV_SPLIT_QWEN2, KV_SPLITS };

/* Calls word(ctx, text + from, length) for consecutive words that make up the text; stops at the first status but OK. */
enum kv_status kv_split_words(enum kv_split split, const char *text, size_t len,
                              enum kv_status (*word)(void *ctx, const char *text, size_t len), void *ctx);

#endif
