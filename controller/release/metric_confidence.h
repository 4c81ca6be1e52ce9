/* metric_confidence.h — a confidence sequence for the mean of bounded measurements, valid at any time it is looked at.
 *
 * Hedged betting (I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", J. R. Stat. Soc. B 86, 2024,
 * section 4). With x in [0, 1] and a bet λ_t that depends on x_1 … x_{t-1} alone,
 *     K⁻_t(m) = Π (1 − λ_t (x_t − m)),  λ_t ≤ ¾ / (1 − m)      grows when the mean lies under m
 *     K⁺_t(m) = Π (1 + λ_t (x_t − m)),  λ_t ≤ ¾ / m            grows when it lies above
 *     λ_t = sqrt(2 ln(2/α) / (σ̂²_{t-1} h)),  h = min(t, 400),   σ̂² = (¼ + Σ (x − μ̂)²) / (t + 1)
 * Under mean ≥ m, P(ever K⁻ ≥ 1/α) ≤ α (Ville); alike for K⁺. The interval at 1 − α keeps each m with both under 2/α.
 * The alarm that the mean lies above the threshold restarts its capital at 1 whenever it falls below, so that a late change is seen as
 * fast as an early one (an e-detector: J. Shin, A. Ramdas, A. Rinaldo, 2024); its average run length to a false alarm is at least 1/α_alarm.
 * Where no late change can come — the same prompts, the same candidate — the alarm does not restart, and P(ever false) ≤ α_alarm.
 * What it assumes: each measurement's mean given the past is the mean in question. Units of one sequence are not fully so. */
#ifndef KV_METRIC_CONFIDENCE_H
#define KV_METRIC_CONFIDENCE_H

#include <stdbool.h>
#include <stdint.h>

#define KV_CONFIDENCE_GRID 96
#define KV_CONFIDENCE_ALPHA 0.05        /* of PASS and of the interval */
#define KV_CONFIDENCE_ALARM_ALPHA 1e-6  /* of FAIL */
#define KV_CONFIDENCE_FIXED_ALPHA 1e-2  /* of FAIL where nothing can change */

struct kv_confidence {
    double lowest, highest;             /* of a measurement; outside counts as the border */
    double threshold;                   /* scaled to [0, 1] */
    bool fixed;                         /* nothing can change; set after init */
    uint64_t n;
    double sum, sum_squares;            /* of scaled measurements and of their deviations */
    double below, above;                /* ln capital: mean under, mean over the threshold (restarting) */
    double grid_below[KV_CONFIDENCE_GRID], grid_above[KV_CONFIDENCE_GRID];
};
void kv_confidence_init(struct kv_confidence *c, double lowest, double highest, double threshold);
void kv_confidence_add(struct kv_confidence *c, double value);
double kv_confidence_mean(const struct kv_confidence *c);
void kv_confidence_interval(const struct kv_confidence *c, double *lower, double *upper);
bool kv_confidence_under(const struct kv_confidence *c); /* the mean lies under the threshold, at 1 − α */
bool kv_confidence_alarm(const struct kv_confidence *c); /* the mean lies, or came to lie, over it */

#endif
