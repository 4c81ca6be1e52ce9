/* kmeans.c — Lloyd's k-means over stored keys or parts of them, by distance or by cosine. */
#include "runtime/selection/kmeans.h"

#include "runtime/selection/draw.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <string.h>

static void normalise(float *x, int32_t n)
{
    double squares = 0;
    for (int32_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    if (!(squares > 0) || !isfinite(squares)) return; /* a zero key has no direction: it stays zero and ties to the first centroid */
    double scale = 1 / sqrt(squares);
    for (int32_t i = 0; i < n; i++) x[i] = (float)((double)x[i] * scale);
}

static const float *point(struct kv_kmeans *m, int32_t row)
{
    kv_rows_key(m->rows, row, m->row);
    float *x = m->row + m->offset;
    if (m->cosine) normalise(x, m->width);
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

/* The next tile of rows to its centroids. */
static void assign(struct kv_kmeans *m)
{
    size_t width = (size_t)m->width;
    int32_t n = m->n - m->at < KV_KMEANS_TILE ? m->n - m->at : KV_KMEANS_TILE, label[KV_KMEANS_TILE];
    for (int32_t i = 0; i < n; i++) memcpy(m->tile + (size_t)i * width, point(m, m->first + m->at + i), width * sizeof *m->tile);
    kv_kernels()->nearest(m->tile, n, width, m->channel, m->square, m->k, m->width, label);
    for (int32_t i = 0; i < n; i++) {
        const float *x = m->tile + (size_t)i * width;
        double *sum = m->sum + (size_t)label[i] * width;
        m->changed |= m->label[m->at + i] != label[i];
        m->label[m->at + i] = label[i];
        m->count[label[i]]++;
        for (size_t j = 0; j < width; j++) sum[j] += (double)x[j];
    }
    m->at += n;
}

static void update(struct kv_kmeans *m)
{
    for (int32_t c = 0; c < m->k; c++) {
        float *x = m->centroid + (size_t)c * (size_t)m->width;
        for (int32_t j = 0; m->count[c] && j < m->width; j++) x[j] = (float)(m->sum[(size_t)c * (size_t)m->width + (size_t)j] / m->count[c]);
        if (m->count[c] && m->cosine) normalise(x, m->width);
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
            assign(m);
            *products -= (int64_t)KV_KMEANS_TILE * m->k * m->width;
        }
        if (!m->changed || m->round == m->iterations) return true;
        update(m);
        m->at = 0;
        m->round++;
    }
    return true;
}
