/* interval.c — see interval.h. */
#include "runtime/evaluate/interval.h"

#include <math.h>

#define Z 1.959963984540054 /* 97.5 % of the standard normal */

static double mean_of(const double *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += x[i];
    return n > 0 ? sum / n : NAN;
}

struct kv_interval kv_interval_share(const double *score, int32_t n)
{
    if (n < 1) return (struct kv_interval){NAN, NAN, NAN};
    double p = mean_of(score, n), z2 = Z * Z, centre = (p + z2 / (2 * n)) / (1 + z2 / n);
    double half = Z / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * (double)n * n));
    return (struct kv_interval){p, fmax(0, centre - half), fmin(1, centre + half)};
}

struct kv_interval kv_interval_paired_share(const double *candidate, const double *baseline, int32_t n)
{
    struct kv_interval a = kv_interval_share(candidate, n), b = kv_interval_share(baseline, n);
    double ab = 0, aa = 0, bb = 0;
    for (int32_t i = 0; i < n; i++) {
        double x = candidate[i] - a.value, y = baseline[i] - b.value;
        ab += x * y, aa += x * x, bb += y * y;
    }
    double phi = aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0, d = a.value - b.value;
    double al = a.value - a.lower, au = a.upper - a.value, bl = b.value - b.lower, bu = b.upper - b.value;
    double down = sqrt(fmax(0, al * al - 2 * phi * al * bu + bu * bu)), up = sqrt(fmax(0, au * au - 2 * phi * au * bl + bl * bl));
    return (struct kv_interval){d, d - down, d + up};
}

/* 97.5 % of Student's distribution: the expansion about the normal, exact values where that is too coarse. */
static double student(int32_t freedom)
{
    static const double small[] = {0, 12.706204736, 4.302652730, 3.182446305, 2.776445105, 2.570581836};
    if (freedom < (int32_t)(sizeof small / sizeof *small)) return small[freedom];
    double z = Z, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z, v = freedom;
    return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) + (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v);
}

struct kv_interval kv_interval_mean(const double *value, int32_t n)
{
    double m = mean_of(value, n), squares = 0;
    if (n < 2) return (struct kv_interval){m, NAN, NAN};
    for (int32_t i = 0; i < n; i++) squares += (value[i] - m) * (value[i] - m);
    double half = student(n - 1) * sqrt(squares / (n - 1) / n);
    return (struct kv_interval){m, m - half, m + half};
}

struct kv_interval kv_interval_sequence(double mean, double sum_squares, uint64_t n, double alpha)
{
    if (n < 2) return (struct kv_interval){mean, -INFINITY, INFINITY};
    double narrowest = 256, l = -2 * log(alpha), rho2 = (l + log(l) + 1) / narrowest, t = (double)n * rho2 + 1;
    double half = sqrt(sum_squares / (double)(n - 1) * 2 * t / ((double)n * (double)n * rho2) * log(sqrt(t) / alpha));
    return (struct kv_interval){mean, mean - half, mean + half};
}
