/* metric_confidence.c — see metric_confidence.h for the formulas. */
#include "controller/release/metric_confidence.h"

#include <math.h>
#include <string.h>

static double grid_point(int i)
{
    double x = (i + 1) / (double)(KV_CONFIDENCE_GRID + 1); /* cubic: most thresholds are small */
    return x * x * x;
}

void kv_confidence_init(struct kv_confidence *c, double lowest, double highest, double threshold)
{
    memset(c, 0, sizeof *c);
    c->lowest = lowest;
    c->highest = highest;
    c->threshold = (threshold - lowest) / (highest - lowest);
}

static double bet(double lambda, double limit)
{
    return fmin(lambda, 0.75 / limit);
}

void kv_confidence_add(struct kv_confidence *c, double value)
{
    double x = (value - c->lowest) / (c->highest - c->lowest);
    x = x > 0 ? fmin(x, 1) : (x == x ? 0 : 1); /* what is no number counts as the worst */
    double variance = (0.25 + c->sum_squares) / (double)(c->n + 1), h = fmin(fmax((double)c->n, 8), 400);
    double lambda = sqrt(2 * log(2 / KV_CONFIDENCE_ALPHA) / (variance * h));
    for (int i = 0; i < KV_CONFIDENCE_GRID; i++) {
        double m = grid_point(i);
        c->grid_below[i] += log1p(-bet(lambda, 1 - m) * (x - m));
        c->grid_above[i] += log1p(bet(lambda, m) * (x - m));
    }
    double m = c->threshold;
    if (m < 1) c->below += log1p(-bet(lambda, 1 - m) * (x - m));
    if (m > 0) c->above = (c->fixed ? c->above : fmax(c->above, 0)) + log1p(bet(lambda, m) * (x - m));
    c->n++;
    c->sum += x;
    double mean = (0.5 + c->sum) / (double)(c->n + 1);
    c->sum_squares += (x - mean) * (x - mean);
}

double kv_confidence_mean(const struct kv_confidence *c)
{
    return c->n ? c->lowest + (c->highest - c->lowest) * c->sum / (double)c->n : NAN;
}

void kv_confidence_interval(const struct kv_confidence *c, double *lower, double *upper)
{
    double limit = log(2 / KV_CONFIDENCE_ALPHA), lo = 0, hi = 1;
    for (int i = 0; i < KV_CONFIDENCE_GRID && c->grid_above[i] >= limit; i++) lo = grid_point(i);
    for (int i = KV_CONFIDENCE_GRID - 1; i >= 0 && c->grid_below[i] >= limit; i--) hi = grid_point(i);
    /* The grid is coarse: what was decided at the threshold itself must show in the bounds. */
    hi = kv_confidence_under(c) ? fmin(hi, c->threshold) : fmax(hi, c->threshold);
    double mean = c->n ? c->sum / (double)c->n : 0.5;
    lo = fmin(lo, mean);
    hi = fmax(hi, mean);
    *lower = c->lowest + (c->highest - c->lowest) * lo;
    *upper = c->lowest + (c->highest - c->lowest) * hi;
}

bool kv_confidence_under(const struct kv_confidence *c)
{
    return c->n && c->below >= log(1 / KV_CONFIDENCE_ALPHA);
}

bool kv_confidence_alarm(const struct kv_confidence *c)
{
    return c->n && c->above >= log(1 / (c->fixed ? KV_CONFIDENCE_FIXED_ALPHA : KV_CONFIDENCE_ALARM_ALPHA));
}
