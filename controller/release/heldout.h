/* heldout.h — held-out prompts with the answers that are right, as tokens of one model. Immutable after loading; any thread. */
#ifndef KV_HELDOUT_H
#define KV_HELDOUT_H

#include "runtime/kvasir.h"

#define KV_HELDOUT_PROMPTS 4096
#define KV_HELDOUT_LINE_BYTES (64 * 1024)

struct kv_heldout_item {
    int32_t *ids;                /* [n_prompt + n_answer] */
    int32_t n_prompt, n_answer;
    bool exact;                  /* score: 1 when every token of the answer is the likeliest one, else 0; not exact: geometric mean of their probabilities */
};
struct kv_heldout {
    struct kv_heldout_item *item;
    int32_t n;
};

/* path: JSONL of {"prompt", "answer", "score": "likelihood"|"exact"}; NULL or "": passages of the prose that ships. FILE_UNREADABLE, BAD_JSON,
 * BAD_ARGUMENT, CONTEXT_OVERRUN, each with the line. */
enum kv_status kv_heldout_load(const char *path, const struct kv_model *m, int32_t context_length, struct kv_heldout *out, struct kv_error *err);
void kv_heldout_free(struct kv_heldout *h);

#endif
