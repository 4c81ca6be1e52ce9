/* kmeans.h — Lloyd's k-means over stored keys or parts of them, by distance or by cosine. No allocation; one caller at a time per memory.
 *
 * Ties go to the lower centroid. An empty cluster keeps its last centroid and has count 0: it owns no member and is never ranked. */
#ifndef KV_KMEANS_H
#define KV_KMEANS_H

#include "runtime/selection/selector.h"

enum { KV_KMEANS_TILE = 64 }; /* rows compared with all centroids at once */

struct kv_kmeans {
    const struct kv_rows *rows; /* the caller's, set before each call */
    int32_t first, n;       /* rows [first, first + n) */
    int32_t offset, width;  /* channels of each key */
    int32_t k, iterations;
    bool cosine;            /* keys normalised, centroids normalised means */
    float *centroid;        /* [k][width]: seeds in, centroids out */
    float *channel;         /* kv_kmeans_channel_floats: the same, channel-major, kept up to date by the run */
    int32_t *label, *count; /* [n], [k] */
    double *sum;            /* [k][width] */
    float *square;          /* [k] */
    float *row;             /* [d_head] */
    float *tile;            /* [KV_KMEANS_TILE][width]; with bounds, which cosine alone may have, twice as long */
    float *own, *rest;      /* [n] each, or NULL: bounds of a row's product with its centroid, from below, and with all others, from above. A row whose bounds
                             * are apart keeps its centroid without being compared; the result is the same */
    float *moved;           /* [k], with bounds: how far each centroid went in the last update, rounded up */
    double *scale;          /* [n], with bounds: what brings each row to unit length */
    float most[2];          /* the two largest of moved */
    int32_t most_at;        /* the centroid of the first */
    int32_t round, at;      /* of the run: zero to begin */
    bool changed;
};
size_t kv_kmeans_channel_floats(int32_t width, int32_t k);

/* Runs until *products multiplications are used up, which it takes off, or it is done: true then. However it is cut, the result is the same. */
bool kv_kmeans_run(struct kv_kmeans *m, int64_t *products);
/* Seeds from k distinct rows drawn by seed (fewer rows than k: k becomes n). keys: room for n. */
void kv_kmeans_draw_seeds(struct kv_kmeans *m, uint64_t seed, uint64_t *keys);
/* Seed c from the key at a position. */
void kv_kmeans_seed(struct kv_kmeans *m, int32_t c, int32_t position);
/* Nearest centroid of a vector of `width` under the model's measure, plainly: what the kernel `nearest` answers. */
int32_t kv_kmeans_nearest(const struct kv_kmeans *m, const float *x);

#endif
