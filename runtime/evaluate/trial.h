/* trial.h — one pipeline over one suite's tasks, through the serving engine itself: scores, and what they cost.
 *
 * A context is prefilled, its question is fed token by token under the pipeline's selection, then the answer is generated greedily (or, for
 * texts, the continuation is fed and its likelihood taken). Runs an engine of its own; one call at a time. */
#ifndef KV_TRIAL_H
#define KV_TRIAL_H

#include "runtime/evaluate/suites.h"

struct kv_trial_setup {
    const struct kv_pipeline *pipeline; /* NULL: the exact baseline */
    struct kv_params params;
    int32_t n_threads;
    double sampled;        /* share of units set beside the dense reference */
    double max_omitted_mass; /* the gate's; > 1: everything is accepted */
    bool serial;           /* of an exact offload: nothing overlaps */
    int32_t window_rows;   /* of an exact offload: the newest rows are never moved */
    double link_bytes_per_second; /* > 0: emulated link */
    bool cold;             /* the context's rows are gone when the question comes: they are computed again */
};

struct kv_trial {
    int32_t n;             /* tasks */
    double *score;         /* [n] 0 to 1, or nats per token of texts */
    uint64_t units;        /* sampled */
    double mass_sum, mass_most, error_sum, error_most; /* omitted mass, relative output error */
    uint64_t unit_bytes, bounds_broken;
    double *token_us;      /* [n_token_us] work of each token decoded */
    int32_t n_token_us, cap_token_us;
    double ttft_us_sum;
    double cold_us_sum;    /* until the context's rows can be read: moved (sum of a step's fetches), or computed again */
    double stall_us_sum;   /* exposed transfer waits, of n_stalls steps */
    int32_t n_stalls;
    struct kv_engine_stats stats;
};

enum kv_status kv_trial_run(struct kv_model *m, const struct kv_trial_setup *setup, const struct kv_suite *suite, const struct kv_task *tasks,
                            int32_t n, void (*progress)(void *ctx, int32_t done), void *ctx, struct kv_trial *out, struct kv_error *err);
void kv_trial_free(struct kv_trial *t);
double kv_trial_token_us(const struct kv_trial *t, double quantile); /* NAN without tokens; sorts */

/* Whether the exact baseline does well enough on a suite for a candidate's loss to show. NULL: it does; else why not, in one phrase. */
#define KV_SANE_SHARE 0.2
const char *kv_trial_insane(const struct kv_suite *s, const struct kv_trial *baseline, const struct kv_task *tasks);

#endif
