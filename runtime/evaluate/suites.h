/* suites.h — evaluation tasks: a context, a question put after it, and the answer that is right; made from a seed.
 *
 * The wordings are those the demo model was trained on (models/recipe), kept general enough for any model: the question ends in the words
 * that stand before the fact. Allocates; pure functions of (suite, seed, length, model); any thread. */
#ifndef KV_SUITES_H
#define KV_SUITES_H

#include "runtime/kvasir.h"

enum kv_suite_kind {
    KV_SUITE_FACT, /* right or wrong: the continuation begins with the answer */
    KV_SUITE_LIST, /* share of the answer's words that the continuation holds */
    KV_SUITE_TEXT  /* mean negative log-likelihood of the forced continuation, nats per token */
};

struct kv_writing; /* a task while it is written, private to suites.c */

struct kv_suite {
    const char *name, *title;
    enum kv_suite_kind kind;
    double chance; /* score of one who knows the form and not the context */
    void (*write)(struct kv_writing *w); /* NULL for texts */
};

size_t kv_suite_count(void);
const struct kv_suite *kv_suite_at(size_t i);
const struct kv_suite *kv_suite_find(const char *name);

#define KV_TASK_ANSWER 256
struct kv_task {
    int32_t *ids;                   /* [n_context + n_question] BOS first where the model wants one */
    int32_t n_context, n_question;  /* the question is fed token by token, so that selection serves it */
    int32_t n_answer;               /* tokens to generate; 0 for texts */
    char answer[KV_TASK_ANSWER];
};

/* A task whose context and question hold at most `length` tokens, and nearly as many. prose: plain text, one paragraph a line. CAPACITY when the
 * length cannot hold the smallest task of the suite. */
enum kv_status kv_task_make(const struct kv_suite *s, const struct kv_model *m, const char *prose, size_t prose_bytes, int32_t length,
                            uint64_t seed, struct kv_task *out, struct kv_error *err);
void kv_task_free(struct kv_task *t);

/* Score of the text generated after the question: 0 to 1. Not for texts. */
double kv_task_score(const struct kv_suite *s, const struct kv_task *t, const char *generated);

/* Nats per token of the text under its own token frequencies: what a model must beat to have read any context. */
double kv_text_unigram_nats(const int32_t *ids, int32_t n);

#endif
