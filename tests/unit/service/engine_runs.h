/* engine_runs.h — what the engine tests share: the demo model, prompts, runs to their end, and digests of logits by position. */
#ifndef KV_ENGINE_RUNS_H
#define KV_ENGINE_RUNS_H

#include "runtime/kvasir.h"

enum { RUN_MAX = 1600, PROMPT = 150, VOCAB_LOW = 300, VOCAB_SPAN = 600 };

struct run {
    int32_t prompt[RUN_MAX], n_prompt;
    int32_t ids[RUN_MAX], n;               /* published */
    int32_t top_id[RUN_MAX];
    float logprob[RUN_MAX];
    uint8_t published[RUN_MAX];            /* enum kv_contract */
    uint64_t logits[RUN_MAX];              /* hash of the logits after a position; the last computed wins */
    struct kv_request_stats stats;
    struct kv_stream *stream;
    struct kv_request request;
    /* Called by observe before it hashes, on the decode thread; may be NULL. */
    void (*at)(struct run *r, int32_t position);
    void *ctx;
};

struct kv_model *demo_model(void);         /* opened once a process */
struct kv_engine *make_engine(const struct kv_engine_config *c); /* NULL: defaults, two threads */
void run_init(struct run *r, uint32_t seed, int32_t n_prompt, int32_t steps);
void run_begin(struct kv_engine *e, struct run *r);
void run_read(struct run *r, int32_t n);   /* at least n tokens in all, or to the end */
void run_end(struct run *r);               /* reads to the end, closes */
void run_all(struct kv_engine *e, struct run *r);
void same_runs(const struct run *a, const struct run *b); /* ids and logits */
/* Installs PIPELINE with parameter values set by name as candidate 1; epoch moves by one. */
void install(struct kv_engine *e, const char *pipeline, const char *param, double value, bool shadow);
void assign(struct kv_engine *e, struct run *r, enum kv_contract contract); /* to candidate 1 at the present epoch */

#endif
