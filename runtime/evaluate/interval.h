/* interval.h — 95 % intervals for what an evaluation reports: a mean of scores, a paired difference, a mean of many values.
 *
 * Wilson's score interval; Newcombe's hybrid interval for paired proportions (Statistics in Medicine 17, 1998, method 10, with the plain
 * correlation), which for scores between 0 and 1 errs to the wide side; Student's for unbounded values. Pure functions; any thread. */
#ifndef KV_INTERVAL_H
#define KV_INTERVAL_H

#include <stdint.h>

struct kv_interval {
    double value, lower, upper; /* NAN where there are too few values */
};

struct kv_interval kv_interval_share(const double *score, int32_t n); /* scores in [0, 1] */
/* Mean of candidate − baseline over the same n tasks. */
struct kv_interval kv_interval_paired_share(const double *candidate, const double *baseline, int32_t n);
struct kv_interval kv_interval_mean(const double *value, int32_t n);

#endif
