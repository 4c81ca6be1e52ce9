/* rope_table.c — sine, cosine, exponential and logarithm in double precision for tables made once; no libm, so that the
 * bits are the same everywhere. */
#include "kernels/kernels.h"
#include "kernels/scalar/real.h"

#define MAGIC 0x1.8p52 /* adding and subtracting rounds to an integer */
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
/* π/2 and ln 2 in pieces short enough that their products with n are exact. */
#define HALF_PI_1 0x1.921fb544p0
#define HALF_PI_2 0x1.0b4611a6p-34
#define HALF_PI_3 0x1.3198a2e037073p-69
#define LN2_1 0x1.62e42feep-1
#define LN2_2 0x1.a39ef35793c76p-33

/* |r| ≤ π/4: Taylor series, whose next term is below the last bit. */
static double sin_near(double r)
{
    static const double c[] = {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800.0,
                               -1.0 / 1307674368000.0, 1.0 / 355687428096000.0};
    double z = r * r, p = c[7];
    for (int i = 6; i >= 0; i--) p = p * z + c[i];
    return r + r * z * p;
}

static double cos_near(double r)
{
    static const double c[] = {1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200.0,
                               1.0 / 20922789888000.0};
    double z = r * r, p = c[6];
    for (int i = 5; i >= 0; i--) p = p * z + c[i];
    return 1.0 - z / 2 + z * z * p;
}

static void sin_cos(double x, double *s, double *c)
{
    double n = (x * TWO_OVER_PI + MAGIC) - MAGIC;
    double r = ((x - n * HALF_PI_1) - n * HALF_PI_2) - n * HALF_PI_3;
    double sr = sin_near(r), cr = cos_near(r);
    switch ((int64_t)n & 3) {
    case 0: *s = sr, *c = cr; break;
    case 1: *s = cr, *c = -sr; break;
    case 2: *s = -sr, *c = -cr; break;
    default: *s = -cr, *c = sr; break;
    }
}

void kv_rope_table(const double *inv_freq, int32_t d_rot, int64_t first_position, int32_t n_positions, float mscale, float *cos_sin)
{
    for (int32_t p = 0; p < n_positions; p++)
        for (int32_t i = 0; i < d_rot / 2; i++, cos_sin += 2) {
            double s, c;
            sin_cos((double)(first_position + p) * inv_freq[i], &s, &c);
            cos_sin[0] = (float)(c * (double)mscale);
            cos_sin[1] = (float)(s * (double)mscale);
        }
}

/* x > 0 and normal. x = 2^e·m with m near 1; ln m = 2 artanh((m − 1)/(m + 1)). */
double kv_log(double x)
{
    uint64_t u = kv_bits64(x);
    int64_t e = (int64_t)(u >> 52) - 1023;
    double m = kv_double((u & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp0) m /= 2, e++;
    double s = (m - 1) / (m + 1), z = s * s, p = 0;
    for (int k = 25; k >= 3; k -= 2) p = (p + 1.0 / k) * z;
    return ((double)e * LN2_1) + (2 * s + (2 * s * p + (double)e * LN2_2));
}

static double exp_double(double x)
{
    double n = (x * 0x1.71547652b82fep0 + MAGIC) - MAGIC, r = (x - n * LN2_1) - n * LN2_2, p = 1;
    for (int k = 14; k >= 1; k--) p = 1 + p * r / k;
    return p * kv_double((uint64_t)((int64_t)n + 1023) << 52);
}

double kv_pow(double base, double exponent)
{
    return exp_double(exponent * kv_log(base));
}
