/* draw.h — counter-based draws for seeded methods: a value is a function of (seed, index), so order never matters. */
#ifndef KV_DRAW_H
#define KV_DRAW_H

#include <math.h>
#include <stdint.h>

static inline uint64_t kv_draw(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + 0x9e3779b97f4a7c15u * (index + 1); /* SplitMix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Standard normal. */
static inline double kv_draw_normal(uint64_t seed, uint64_t index)
{
    double u = ((double)(kv_draw(seed, 2 * index) >> 11) + 0.5) * 0x1p-53, v = (double)(kv_draw(seed, 2 * index + 1) >> 11) * 0x1p-53;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

#endif
