/* metric_switchback.h — p99 of work per token, candidate against control, without comparing tokens of one batch.
 *
 * Sequences of a batch advance in lockstep, so a slow candidate slows its neighbours and tokens measured together hide the difference. Time is
 * cut into pairs of windows. One window of a pair counts 16 tokens of the candidate arm, the other 16 of the control arm, in an order drawn
 * by a hash of (seed, pair). The more frequent arm is thinned to the rate of the rarer one, so that both windows last about as long and meet
 * a burst of noise equally often. If the arms are alike, which of the two windows has the larger tail is a fair coin whatever the noise does, so
 *     d = 1 when the candidate window's p80 > threshold × the control window's p80
 * has P(d = 1) ≤ ½ for threshold ≥ 1, and bets on d give a test valid at any time. PASS: capital against P(d) ≥ ½ reaches 1/α, and the p99
 * over all tokens is not over the threshold with 95 % confidence (order statistic). FAIL: a restarting capital against P(d) ≤ ½ reaches 1/α_alarm, and the p99 ratio is over it.
 * (The p99 of 16 tokens is their maximum and says more about the machine than about the arm. A candidate whose tail alone is longer is
 * neither passed nor failed: it holds.) */
#ifndef KV_METRIC_SWITCHBACK_H
#define KV_METRIC_SWITCHBACK_H

#include "controller/release/cohort.h"

#include <stdbool.h>
#include <stdint.h>

#define KV_SWITCHBACK_WINDOW 16
#define KV_SWITCHBACK_BINS 1024       /* of 2 % from 1 µs on */
#define KV_SWITCHBACK_ALPHA 0.05
#define KV_SWITCHBACK_ALARM_ALPHA 1e-3

struct kv_switchback {
    uint64_t seed;
    double threshold;
    uint64_t n[2];                    /* [0] control, [1] candidate: tokens of all windows */
    uint32_t bins[2][KV_SWITCHBACK_BINS];
    uint64_t pairs, over;             /* over: pairs with d = 1 */
    double under, alarm;              /* ln capital; alarm restarts at 0 */
    int32_t in_window;
    double credit;                    /* of the thinning: a token of the frequent arm is taken when it reaches 1 */
    bool second;                      /* the pair's first window is full */
    double window_p80[2], largest[4]; /* largest: of the open window, descending */
};
void kv_switchback_init(struct kv_switchback *s, uint64_t seed, double threshold);
void kv_switchback_add(struct kv_switchback *s, enum kv_arm arm, double us);
double kv_switchback_p99(const struct kv_switchback *s, enum kv_arm arm); /* NAN without tokens */
double kv_switchback_p99_lower(const struct kv_switchback *s); /* of candidate over control: at least this, with 95 % confidence */
bool kv_switchback_under(const struct kv_switchback *s);
bool kv_switchback_alarm(const struct kv_switchback *s);

#endif
