/* sampler.h — one token from one row of logits: greedy, temperature, top-k, top-p, penalties; and its log-probabilities.
 *
 * A draw is a function of (seed, output index) alone: a step that is thrown away and done again draws the same number. exp and
 * log are the kernels' own, so that equal logits give equal tokens on every machine. A sampler is scratch memory for one thread at a
 * time, which has called kv_numerics_enter(); kv_sample allocates nothing. */
#ifndef KV_SAMPLER_H
#define KV_SAMPLER_H

#include "runtime/kvasir.h"

struct kv_sampler;

enum kv_status kv_sampler_create(int32_t n_vocab, struct kv_sampler **out);
void kv_sampler_destroy(struct kv_sampler *s);

struct kv_history { /* ids[0, n_prompt) the prompt, ids[n_prompt, n) what was generated; repetition looks at all, presence and frequency at the latter */
    const int32_t *ids;
    int32_t n_prompt, n;
};

struct kv_sampled {
    int32_t id;
    float logprob; /* of the model: before penalties, temperature and cuts; 0 with n_top = 0 */
    int32_t n_top;
    int32_t top_id[KV_MAX_LOGPROBS]; /* best first; equal ones by id */
    float top_logprob[KV_MAX_LOGPROBS];
};

/* NAN_LOGITS when a logit is not a number or none is finite; BAD_ARGUMENT when a parameter lies outside its range; TOKEN_OUT_OF_RANGE
 * for a history id outside the vocabulary. allowed: [n_vocab], 0 where a token must not be drawn, at least one other; NULL: all may be. n_top ≤ KV_MAX_LOGPROBS. */
enum kv_status kv_sample(struct kv_sampler *s, const struct kv_sampling *p, const float *logits, struct kv_history history,
                         uint64_t output_index, int32_t n_top, const uint8_t *allowed, struct kv_sampled *out);
/* Room for a mask [n_vocab] that goes to kv_sample. */
uint8_t *kv_sampler_mask(struct kv_sampler *s);
/* Log-probability of one token, for a forced one. */
enum kv_status kv_logprob(struct kv_sampler *s, const float *logits, int32_t id, double *out);

/* The draw in [0, 1) of (seed, output index). */
double kv_draw(uint64_t seed, uint64_t output_index);

#endif
