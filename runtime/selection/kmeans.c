/* kmeans.c — Lloyd's k-means over stored keys or parts of them, by distance or by cosine. */
#include "runtime/selection/kmeans.h"

#include "runtime/selection/draw.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <string.h>

enum { ROW_WORK = 16 * KV_KMEANS_TILE /* of a tile beside the comparisons, in products per channel: converting, normalising, adding up */ };

/* Sixteen at a time here and below, a constant length that the compiler keeps in vectors; each element is its own, so that wider ones change no bit. */
static inline __attribute__((always_inline)) void scale_by(float *restrict x, int32_t n, double scale)
{
    int32_t whole = n / 16 * 16;
    for (int32_t i = 0; i < whole; i += 16)
        for (int32_t t = 0; t < 16; t++) x[i + t] = (float)((double)x[i + t] * scale);
    for (int32_t i = whole; i < n; i++) x[i] = (float)((double)x[i] * scale);
}

static inline __attribute__((always_inline)) void add_to(double *restrict sum, const float *restrict x, int32_t n)
{
    int32_t whole = n / 16 * 16;
    for (int32_t i = 0; i < whole; i += 16)
        for (int32_t t = 0; t < 16; t++) sum[i + t] += (double)x[i + t];
    for (int32_t i = whole; i < n; i++) sum[i] += (double)x[i];
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512dq,prefer-vector-width=512"))) static void scale_by_avx512(float *x, int32_t n, double scale) { scale_by(x, n, scale); }
__attribute__((target("avx512f,avx512dq,prefer-vector-width=512"))) static void add_to_avx512(double *sum, const float *x, int32_t n) { add_to(sum, x, n); }
static bool wide(void) { return !strcmp(kv_kernels()->isa, "avx512"); }
#endif

static void scale_row(float *x, int32_t n, double scale)
{
#if defined(__x86_64__)
    if (wide()) {
        scale_by_avx512(x, n, scale);
        return;
    }
#endif
    scale_by(x, n, scale);
}

static void add_row(double *sum, const float *x, int32_t n)
{
#if defined(__x86_64__)
    if (wide()) {
        add_to_avx512(sum, x, n);
        return;
    }
#endif
    add_to(sum, x, n);
}

/* What brings a vector to unit length; 1 where it has no direction: a zero key stays zero and ties to the first centroid. */
static double unit_scale(const float *x, int32_t n)
{
    double squares = 0;
    for (int32_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    return squares > 0 && isfinite(squares) ? 1 / sqrt(squares) : 1;
}

static const float *point(struct kv_kmeans *m, int32_t row)
{
    kv_rows_key(m->rows, row, m->row);
    float *x = m->row + m->offset;
    if (m->cosine) scale_row(x, m->width, unit_scale(x, m->width));
    return x;
}

/* The same for a row of the run, whose scale is kept from round to round. */
static const float *point_of_run(struct kv_kmeans *m, int32_t i)
{
    if (!m->scale) return point(m, m->first + i);
    kv_rows_key(m->rows, m->first + i, m->row);
    float *x = m->row + m->offset;
    if (m->round == 0) m->scale[i] = unit_scale(x, m->width);
    scale_row(x, m->width, m->scale[i]);
    return x;
}

void kv_kmeans_seed(struct kv_kmeans *m, int32_t c, int32_t position)
{
    memcpy(m->centroid + (size_t)c * (size_t)m->width, point(m, position), (size_t)m->width * sizeof *m->centroid);
}

void kv_kmeans_draw_seeds(struct kv_kmeans *m, uint64_t seed, uint64_t *keys)
{
    if (m->k > m->n) m->k = m->n;
    for (int32_t i = 0; i < m->n; i++) keys[i] = kv_draw(seed, (uint64_t)i) << 32 | (uint32_t)i;
    kv_rank_select(keys, (size_t)m->n, (size_t)m->k);
    kv_rank_sort(keys, (size_t)m->k);
    for (int32_t c = 0; c < m->k; c++) kv_kmeans_seed(m, c, m->first + (int32_t)kv_rank_index(keys[c]));
}

/* |c|² and the channel-major copy. Under cosine centroids are unit vectors and the squares are left out. */
static void measure_centroids(struct kv_kmeans *m)
{
    size_t stride = ((size_t)m->k + 15) / 16 * 16;
    for (int32_t c = 0; c < m->k; c++) {
        const float *x = m->centroid + (size_t)c * (size_t)m->width;
        m->square[c] = m->cosine ? 0 : kv_kernels()->dot(x, x, m->width);
        for (int32_t j = 0; j < m->width; j++) m->channel[(size_t)j * stride + (size_t)c] = x[j];
    }
}

/* Least |c|² − 2 x·c. */
int32_t kv_kmeans_nearest(const struct kv_kmeans *m, const float *x)
{
    int32_t best = 0;
    float least = INFINITY;
    for (int32_t c = 0; c < m->k; c++) {
        float product = 0;
        for (int32_t j = 0; j < m->width; j++) product = fmaf(x[j], m->centroid[(size_t)c * (size_t)m->width + (size_t)j], product);
        float distance = m->square[c] - 2 * product;
        if (distance < least) least = distance, best = c;
    }
    return best;
}

size_t kv_kmeans_channel_floats(int32_t width, int32_t k) { return (size_t)width * (((size_t)k + 15) / 16 * 16); }

/* Whether a row surely stays with its centroid: no product changes by more than its centroid moved, since rows are unit vectors. Where the bounds
 * do not tell, the one with its own centroid is taken anew. The margin is the rounding of four products and of the bounds, of which each round adds two. */
static bool stays(struct kv_kmeans *m, int32_t i, const float *x)
{
    const float margin = (float)(4 * m->width + (m->round < 32 ? 64 : 2 * m->round)) * 0x1p-24f;
    int32_t c = m->label[i];
    m->own[i] -= m->moved[c];
    m->rest[i] += m->most[c == m->most_at];
    if (m->own[i] - m->rest[i] > margin) return true;
    m->own[i] = kv_kernels()->dot(x, m->centroid + (size_t)c * (size_t)m->width, m->width);
    return m->own[i] - m->rest[i] > margin;
}

/* Of the n rows in the tile, those whose centroid is in doubt are compared with all; returns how many that were. */
static int32_t compare_doubtful(struct kv_kmeans *m, int32_t n, int32_t *label)
{
    size_t width = (size_t)m->width;
    float *packed = m->tile + KV_KMEANS_TILE * width, least[KV_KMEANS_TILE], second[KV_KMEANS_TILE];
    int32_t doubtful = 0, row[KV_KMEANS_TILE], to[KV_KMEANS_TILE];
    for (int32_t i = 0; i < n; i++) {
        const float *x = m->tile + (size_t)i * width;
        label[i] = m->label[m->at + i];
        if (m->round && stays(m, m->at + i, x)) continue;
        memcpy(packed + (size_t)doubtful * width, x, width * sizeof *x);
        row[doubtful++] = i;
    }
    kv_kernels()->nearest_two(packed, doubtful, width, m->channel, m->square, m->k, m->width, to, least, second);
    for (int32_t j = 0; j < doubtful; j++) {
        label[row[j]] = to[j];
        m->own[m->at + row[j]] = -least[j] / 2; /* squares are zero under cosine: what was compared is twice the product, negated */
        m->rest[m->at + row[j]] = -second[j] / 2;
    }
    return doubtful;
}

/* The next tile of rows to its centroids; how many were compared with all. */
static int32_t assign(struct kv_kmeans *m)
{
    size_t width = (size_t)m->width;
    int32_t n = m->n - m->at < KV_KMEANS_TILE ? m->n - m->at : KV_KMEANS_TILE, compared = n, label[KV_KMEANS_TILE];
    for (int32_t i = 0; i < n; i++) memcpy(m->tile + (size_t)i * width, point_of_run(m, m->at + i), width * sizeof *m->tile);
    if (m->own) compared = compare_doubtful(m, n, label);
    else kv_kernels()->nearest(m->tile, n, width, m->channel, m->square, m->k, m->width, label);
    for (int32_t i = 0; i < n; i++) {
        const float *x = m->tile + (size_t)i * width;
        m->changed |= m->label[m->at + i] != label[i];
        m->label[m->at + i] = label[i];
        m->count[label[i]]++;
        add_row(m->sum + (size_t)label[i] * width, x, m->width);
    }
    m->at += n;
    return compared;
}

/* A centroid went from `before` to x. */
static void measure_move(struct kv_kmeans *m, int32_t c, const float *before, const float *x)
{
    double squares = 0;
    for (int32_t j = 0; j < m->width; j++) squares += ((double)x[j] - (double)before[j]) * ((double)x[j] - (double)before[j]);
    float moved = (float)(sqrt(squares) * 1.00001); /* rows and rounding are within that of unit length */
    m->moved[c] = moved <= 4 ? moved : INFINITY;    /* what is not a number bounds nothing */
    if (m->moved[c] > m->most[0]) m->most[1] = m->most[0], m->most[0] = m->moved[c], m->most_at = c;
    else if (m->moved[c] > m->most[1]) m->most[1] = m->moved[c];
}

static void update(struct kv_kmeans *m)
{
    float *before = m->tile; /* of no use between rounds */
    m->most[0] = m->most[1] = 0;
    m->most_at = 0;
    for (int32_t c = 0; c < m->k; c++) {
        float *x = m->centroid + (size_t)c * (size_t)m->width;
        memcpy(before, x, (size_t)m->width * sizeof *x);
        for (int32_t j = 0; m->count[c] && j < m->width; j++) x[j] = (float)(m->sum[(size_t)c * (size_t)m->width + (size_t)j] / m->count[c]);
        if (m->count[c] && m->cosine) scale_row(x, m->width, unit_scale(x, m->width));
        if (m->own) measure_move(m, c, before, x);
    }
    measure_centroids(m);
}

bool kv_kmeans_run(struct kv_kmeans *m, int64_t *products)
{
    if (m->round == 0 && m->at == 0) measure_centroids(m);
    while (m->round <= m->iterations) { /* the round after the last gives members to the last centroids */
        if (m->at == 0) {
            m->changed = m->round == 0;
            memset(m->sum, 0, (size_t)m->k * (size_t)m->width * sizeof *m->sum);
            memset(m->count, 0, (size_t)m->k * sizeof *m->count);
        }
        while (m->at < m->n) {
            if (*products <= 0) return false;
            *products -= ((int64_t)assign(m) * m->k + ROW_WORK) * m->width;
        }
        if (!m->changed || m->round == m->iterations) return true;
        update(m);
        m->at = 0;
        m->round++;
    }
    return true;
}
