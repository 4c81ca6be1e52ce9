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
/* Holds for the mean at every n at once, so that it may be looked at any time: the asymptotic confidence sequence of I. Waudby-Smith, D. Arbour,
 * R. Sinha, E. Kennedy, A. Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences" (Ann. Statist. 52, 2024, theorem 2.2), narrowest near
 * n = 256. sum_squares: of deviations from the mean. Infinite under 2 values. */
struct kv_interval kv_interval_sequence(double mean, double sum_squares, uint64_t n, double alpha);
struct kv_interval kv_interval_mean(const double *value, int32_t n);

#endif
