/* metric_switchback.c — see metric_switchback.h. */
#include "controller/release/metric_switchback.h"

#include <math.h>
#include <string.h>

static const double bin_ratio = 1.02;

void kv_switchback_init(struct kv_switchback *s, uint64_t seed, double threshold)
{
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->threshold = threshold;
}

/* splitmix64 finaliser: the order of a pair's windows, unknown to whoever shapes the traffic. */
static bool candidate_first(const struct kv_switchback *s)
{
    uint64_t x = s->seed + s->pairs * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) & 1;
}

static void close_pair(struct kv_switchback *s)
{
    bool over = s->window_p80[1] > s->threshold * s->window_p80[0];
    double wins = (double)(s->pairs - s->over);
    double lambda = fmin(fmax(2 * (wins + 1.5) / ((double)s->pairs + 2) - 1, 0), 0.95);
    s->under += log1p(over ? -lambda : lambda);
    s->alarm = fmax(s->alarm, 0) + log1p(over ? 0.6 : -0.6);
    s->pairs++;
    s->over += over;
}

static void keep_largest(double top[4], double v)
{
    for (int i = 0; i < 4; i++)
        if (v > top[i]) {
            double pushed = top[i];
            top[i] = v;
            v = pushed;
        }
}

void kv_switchback_add(struct kv_switchback *s, enum kv_arm arm, double us)
{
    if (arm == KV_ARM_OUTSIDE || !(us > 0)) return;
    int a = arm == KV_ARM_CANDIDATE;
    double bin = log(us) / log(bin_ratio);
    s->bins[a][bin < 0 ? 0 : bin < KV_SWITCHBACK_BINS ? (int)bin : KV_SWITCHBACK_BINS - 1]++;
    s->n[a]++;
    if (a != (candidate_first(s) != s->second)) return; /* the other arm's window is open */
    s->credit += fmin(1, (double)s->n[!a] / (double)s->n[a]);
    if (s->credit < 1) return;
    s->credit -= 1;
    keep_largest(s->largest, us);
    if (++s->in_window < KV_SWITCHBACK_WINDOW) return;
    s->window_p80[a] = s->largest[3]; /* nearest rank: the 13th of 16 */
    s->in_window = 0;
    memset(s->largest, 0, sizeof s->largest);
    if (s->second) close_pair(s);
    s->second = !s->second;
}

/* The value of rank 0.99 n − z·sqrt(0.99·0.01·n), at least 1, from the bins. */
static double quantile(const struct kv_switchback *s, int a, double z)
{
    if (!s->n[a]) return NAN;
    double n = (double)s->n[a], rank = fmax(1, ceil(0.99 * n - z * sqrt(0.0099 * n)));
    double seen = 0;
    int i = 0;
    while (i < KV_SWITCHBACK_BINS - 1 && (seen += s->bins[a][i]) < rank) i++;
    return pow(bin_ratio, i + 0.5);
}

double kv_switchback_p99(const struct kv_switchback *s, enum kv_arm arm)
{
    return quantile(s, arm == KV_ARM_CANDIDATE, 0);
}

double kv_switchback_p99_lower(const struct kv_switchback *s)
{
    return quantile(s, 1, 1.645) / quantile(s, 0, 0);
}

bool kv_switchback_under(const struct kv_switchback *s)
{
    return s->under >= log(1 / KV_SWITCHBACK_ALPHA) && kv_switchback_p99_lower(s) <= s->threshold;
}

bool kv_switchback_alarm(const struct kv_switchback *s)
{
    return s->alarm >= log(1 / KV_SWITCHBACK_ALARM_ALPHA) && quantile(s, 1, 0) > s->threshold * quantile(s, 0, 0);
}
