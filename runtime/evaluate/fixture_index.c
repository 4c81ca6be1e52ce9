/* fixture_index.c — validator of contract-6-index: product quantisation, query-bridged graph, centroid hierarchy, hashing.
 *
 * Four indexes over one authoritative pool. What each receipt says of codes, edges, centroids, collisions, scores and support is
 * recomputed from the pool; attention states come from the kernels that serve. Source 0x07A, 0x07F–I. */
#include "runtime/evaluate/fixture.h"
#include "runtime/evaluate/lab.h"
#include "runtime/kvasir.h"
#include "runtime/selection/kmeans.h"
#include "runtime/selection/rank.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_D = 8, MAX_UNITS = 64, MAX_EDGES = 256, MAX_TABLES = 64 };

struct check {
    struct kv_fixture_reader read;
    struct kv_error *err;
    enum kv_status status;
    int32_t n, d;
    float q[MAX_D], k[MAX_ROWS * MAX_D], v[MAX_ROWS * MAX_D];
    double scale;
    struct kv_lab_rows stored;
};

static void fail(struct check *c, enum kv_status s, const char *where, const char *what)
{
    if (c->status == KV_OK) c->status = c->read.status != KV_OK ? c->read.status : kv_fail(c->err, s, where, "%s", what);
}

#define EXPECT(c, condition, reason, where, what)                                                                         \
    if ((c)->status != KV_OK || (c)->read.status != KV_OK || !(condition)) {                                               \
        fail(c, reason, where, what);                                                                                      \
        return;                                                                                                            \
    }

static bool near(double a, double b) { return fabs(a - b) <= 1e-5 * (1 + fabs(b)); }

/* ---------------------------------------------------------------- reading */

static int32_t read_vector(struct check *c, float *out, int32_t max, const char *path)
{
    int32_t n = kv_fixture_count(&c->read, max, "%s", path);
    for (int32_t i = 0; i < n; i++) out[i] = (float)kv_fixture_number(&c->read, "%s.%d", path, i);
    return n;
}

static int32_t read_matrix(struct check *c, float *out, int32_t max, int32_t d, const char *path)
{
    char row[96];
    int32_t n = kv_fixture_count(&c->read, max, "%s", path);
    for (int32_t i = 0; i < n; i++) {
        snprintf(row, sizeof row, "%s.%d", path, i);
        if (read_vector(c, out + i * d, d, row) != d) fail(c, KV_SOURCE_SHAPE_MISMATCH, path, "a row has another width");
    }
    return n;
}

static int32_t read_ids(struct check *c, int32_t *out, int32_t limit, const char *path)
{
    int32_t n = kv_fixture_count(&c->read, MAX_ROWS, "%s", path);
    for (int32_t i = 0; i < n; i++) {
        out[i] = (int32_t)kv_fixture_integer(&c->read, "%s.%d", path, i);
        if (out[i] < 0 || out[i] >= limit) fail(c, KV_CANDIDATE_OUT_OF_RANGE, path, "an id dangles beyond the pool");
        else if (i && out[i] <= out[i - 1]) fail(c, KV_CANDIDATE_DUPLICATE, path, "ids are not ascending and distinct");
    }
    return n;
}

static uint64_t read_mask(struct check *c, const char *path)
{
    int32_t ids[MAX_ROWS], n = read_ids(c, ids, c->n, path);
    uint64_t mask = 0;
    for (int32_t i = 0; i < n && c->status == KV_OK && c->read.status == KV_OK; i++) mask |= UINT64_C(1) << ids[i];
    return mask;
}

static uint64_t range(int32_t from, int32_t to)
{
    uint64_t mask = 0;
    if (from < to) kv_mask_set_range(&mask, from, to);
    return mask;
}

static double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static void check_binding(struct check *c, const char *at)
{
    static const struct {
        const char *field;
        enum kv_status reason;
    } bound[] = {{"cache_generation", KV_STALE_CACHE_GENERATION}, {"index_generation", KV_STALE_INDEX_GENERATION}, {"pool_generation", KV_STALE_REPLICA_GENERATION}};
    for (int i = 0; i < 3; i++)
        EXPECT(c, kv_fixture_integer(&c->read, "%s.%s", at, bound[i].field) == kv_fixture_integer(&c->read, "binding.%s", bound[i].field), bound[i].reason, at, "the index is of another generation");
    EXPECT(c, !strcmp(kv_fixture_text(&c->read, "%s.payload", at), "full"), KV_PROXY_NOT_AUTHORITY, at, "attention reads full rows of the pool, never the index");
}

static void read_pool(struct check *c)
{
    c->d = read_vector(c, c->q, MAX_D, "pool.query");
    c->n = read_matrix(c, c->k, MAX_ROWS, c->d, "pool.keys");
    EXPECT(c, c->d > 0 && c->n > 0 && read_matrix(c, c->v, MAX_ROWS, c->d, "pool.values") == c->n, KV_SOURCE_SHAPE_MISMATCH, "pool", "keys and values have different rows");
    EXPECT(c, kv_fixture_integer(&c->read, "binding.committed_rows") == c->n, KV_STALE_INDEX, "binding.committed_rows", "the pool is not the committed frontier");
    c->scale = 1 / sqrt(c->d);
    if (kv_lab_rows_create(KV_F32, c->d, 1, (float)c->scale, c->n, c->k, c->v, &c->stored) != KV_OK) fail(c, KV_OUT_OF_MEMORY, "pool", "no memory for the pool");
}

/* ---------------------------------------------------------------- product quantisation */

static void check_codes(struct check *c, int32_t m, int32_t k, int32_t first, int32_t end, const float *books, int32_t codes[MAX_ROWS][MAX_D])
{
    int32_t w = c->d / m;
    float square[MAX_UNITS];
    for (int32_t j = 0; j < m; j++) {
        struct kv_kmeans part = {.width = w, .k = k, .centroid = (float *)(uintptr_t)(books + j * k * w), .square = square};
        for (int32_t x = 0; x < k; x++) square[x] = (float)dot(part.centroid + x * w, part.centroid + x * w, w);
        for (int32_t i = first; i < end; i++) {
            codes[i][j] = (int32_t)kv_fixture_integer(&c->read, "pq.codes.%d.%d", i - first, j);
            EXPECT(c, codes[i][j] >= 0 && codes[i][j] < k, KV_CANDIDATE_OUT_OF_RANGE, "pq.codes", "a code names no centroid");
            EXPECT(c, codes[i][j] == kv_kmeans_nearest(&part, c->k + i * c->d + j * w), KV_CODE_NOT_NEAREST, "pq.codes", "a code is not the nearest centroid's");
        }
    }
}

static void check_pq(struct check *c)
{
    struct kv_fixture_reader *r = &c->read;
    float books[MAX_UNITS * MAX_D];
    int32_t codes[MAX_ROWS][MAX_D];
    char path[48];
    check_binding(c, "pq");
    int32_t m = (int32_t)kv_fixture_integer(r, "pq.subspaces"), bits = (int32_t)kv_fixture_integer(r, "pq.bits"), sink = (int32_t)kv_fixture_integer(r, "pq.sink_rows");
    int32_t local = (int32_t)kv_fixture_integer(r, "pq.local_rows"), top = (int32_t)kv_fixture_integer(r, "pq.top_rows");
    EXPECT(c, m >= 1 && m <= c->d && c->d % m == 0 && bits >= 1 && bits <= 4, KV_INDEX_GEOMETRY, "pq", "subspaces do not divide the width, or bits lie outside 1 to 4");
    EXPECT(c, sink >= 0 && local >= 0 && sink + local < c->n && top >= 1, KV_INDEX_GEOMETRY, "pq", "the regions do not fit the pool");
    int32_t k = 1 << bits, w = c->d / m, end = c->n - local;
    EXPECT(c, kv_fixture_count(r, MAX_D, "pq.codebooks") == m, KV_INDEX_GEOMETRY, "pq.codebooks", "there is not one codebook per subspace");
    for (int32_t j = 0; j < m; j++) {
        snprintf(path, sizeof path, "pq.codebooks.%d", j);
        EXPECT(c, read_matrix(c, books + j * k * w, k, w, path) == k, KV_INDEX_GEOMETRY, path, "a codebook has not 2^bits centroids");
    }
    EXPECT(c, kv_fixture_count(r, MAX_ROWS, "pq.codes") == end - sink, KV_STALE_INDEX, "pq.codes", "not every row that left the window has its codes");
    check_codes(c, m, k, sink, end, books, codes);
    uint64_t keys[MAX_ROWS], support = range(0, sink) | range(end, c->n), wanted = read_mask(c, "pq.support");
    EXPECT(c, kv_fixture_count(r, MAX_ROWS, "pq.scores") == end - sink, KV_CANDIDATE_SCORE_MISSING, "pq.scores", "every coded row has one score");
    for (int32_t i = sink; i < end; i++) {
        double score = 0;
        for (int32_t j = 0; j < m; j++) score += dot(c->q + j * w, books + (j * k + codes[i][j]) * w, w);
        EXPECT(c, near(kv_fixture_number(r, "pq.scores.%d", i - sink), score), KV_SELECTOR_SCORE, "pq.scores", "a score is not the sum of its table entries");
        keys[i - sink] = kv_rank_key((float)score, (uint32_t)i);
    }
    kv_rank_sort(keys, (size_t)(end - sink));
    for (int32_t i = 0; i < top && i < end - sink; i++) support |= UINT64_C(1) << kv_rank_index(keys[i]);
    EXPECT(c, wanted == support, KV_SUPPORT_MISMATCH, "pq.support", "the support is not sink, window and the best by codes");
}

/* ---------------------------------------------------------------- graph */

/* The exact k nearest keys of a prefill query by inner product, as a mask. */
static uint64_t neighbours(const struct check *c, const float *query, int32_t k)
{
    uint64_t keys[MAX_ROWS], mask = 0;
    for (int32_t i = 0; i < c->n; i++) keys[i] = kv_rank_key((float)dot(query, c->k + i * c->d, c->d), (uint32_t)i);
    kv_rank_sort(keys, (size_t)c->n);
    for (int32_t i = 0; i < k; i++) mask |= UINT64_C(1) << kv_rank_index(keys[i]);
    return mask;
}

static void check_edges(struct check *c)
{
    struct kv_fixture_reader *r = &c->read;
    uint64_t near_row[MAX_ROWS] = {0}, said[MAX_ROWS] = {0};
    char path[48];
    int32_t k = (int32_t)kv_fixture_integer(r, "graph.neighbour_rows"), n_queries = kv_fixture_count(r, MAX_ROWS, "graph.prefill_queries");
    EXPECT(c, k >= 1 && k <= c->n && n_queries == kv_fixture_count(r, MAX_ROWS, "graph.neighbours"), KV_INDEX_GEOMETRY, "graph", "neighbours do not fit queries or pool");
    for (int32_t i = 0; i < n_queries; i++) {
        float query[MAX_D];
        snprintf(path, sizeof path, "graph.prefill_queries.%d", i);
        EXPECT(c, read_vector(c, query, MAX_D, path) == c->d, KV_SOURCE_SHAPE_MISMATCH, path, "a prefill query has another width");
        snprintf(path, sizeof path, "graph.neighbours.%d", i);
        uint64_t mask = read_mask(c, path);
        EXPECT(c, mask == neighbours(c, query, k), KV_GRAPH_EDGE, path, "they are not the query's nearest keys");
        for (int32_t x = 0; x < c->n; x++)
            if (mask >> x & 1) near_row[x] |= mask & ~(UINT64_C(1) << x);
    }
    int32_t n_edges = kv_fixture_count(r, MAX_EDGES, "graph.edges");
    for (int32_t i = 0; i < n_edges; i++) {
        int64_t a = kv_fixture_integer(r, "graph.edges.%d.0", i), b = kv_fixture_integer(r, "graph.edges.%d.1", i);
        EXPECT(c, a >= 0 && a < b && b < c->n, KV_CANDIDATE_OUT_OF_RANGE, "graph.edges", "an edge dangles or is not ascending");
        said[a] |= UINT64_C(1) << b, said[b] |= UINT64_C(1) << a;
    }
    for (int32_t x = 0; x < c->n; x++) EXPECT(c, said[x] == near_row[x], KV_GRAPH_EDGE, "graph.edges", "edges do not join the keys that share a query");
}

struct state {
    float m, l, u[MAX_D];
};

static void read_state(struct check *c, struct state *s, const char *at)
{
    char path[48];
    snprintf(path, sizeof path, "%s.u", at);
    const struct kv_fixture_field *l = kv_fixture_find(c->read.fixture, "%s.l", at);
    EXPECT(c, l && l->kind == KV_FIXTURE_NUMBER, KV_MASS_MISSING, at, "a partial output came without its mass");
    s->m = (float)kv_fixture_number(&c->read, "%s.m", at);
    s->l = (float)kv_fixture_number(&c->read, "%s.l", at);
    EXPECT(c, read_vector(c, s->u, MAX_D, path) == c->d, KV_SOURCE_SHAPE_MISMATCH, at, "the state has another width");
}

static void check_state(struct check *c, uint64_t mask, const char *at)
{
    struct state said, is;
    read_state(c, &said, at);
    EXPECT(c, kv_lab_attend(&c->stored.rows, c->q, &mask, 1, &is.m, &is.l, is.u, NULL) == KV_OK, KV_OUT_OF_MEMORY, at, "no memory for the state");
    bool same = near((double)said.m, (double)is.m) && near((double)said.l, (double)is.l);
    for (int32_t i = 0; i < c->d; i++) same = same && near((double)said.u[i], (double)is.u[i]);
    EXPECT(c, same, KV_STATE_MISMATCH, at, "the state is not that of its rows");
}

static void check_graph(struct check *c)
{
    check_binding(c, "graph");
    if (c->status == KV_OK) check_edges(c);
    uint64_t fixed = read_mask(c, "graph.persistent"), found = read_mask(c, "graph.retrieved"), support = read_mask(c, "graph.support");
    EXPECT(c, !(fixed & found), KV_SUPPORT_MISMATCH, "graph", "a persistent row was counted again as retrieved");
    EXPECT(c, support == (fixed | found), KV_SUPPORT_MISMATCH, "graph.support", "the support is not the union");
    EXPECT(c, !strcmp(kv_fixture_text(&c->read, "graph.state_schema"), "fp32-m-l-u-v1"), KV_STATE_SCHEMA, "graph", "states of another schema do not merge");
    check_state(c, fixed, "graph.persistent_state");
    if (c->status == KV_OK) check_state(c, found, "graph.retrieved_state");
    if (c->status == KV_OK) check_state(c, support, "graph.merged_state");
}

/* ---------------------------------------------------------------- centroid hierarchy */

static void check_prefix(struct check *c, int32_t prefix)
{
    uint8_t bytes[MAX_ROWS * 4], digest[32];
    char hex[65];
    int32_t n = kv_fixture_count(&c->read, MAX_ROWS, "centroids.prefix_tokens");
    EXPECT(c, prefix >= 1 && prefix <= c->n && n == prefix, KV_PREFIX_MISMATCH, "centroids.prefix_rows", "the prefix is not the rows that were clustered");
    for (int32_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)kv_fixture_integer(&c->read, "centroids.prefix_tokens.%d", i);
        for (int b = 0; b < 4; b++) bytes[4 * i + b] = (uint8_t)(id >> 8 * b);
    }
    kv_sha256(bytes, (size_t)n * 4, digest);
    kv_hex(digest, 32, hex);
    EXPECT(c, !strcmp(hex, kv_fixture_text(&c->read, "centroids.prefix_digest")), KV_PREFIX_MISMATCH, "centroids.prefix_digest", "the prefix was edited after it was clustered");
    EXPECT(c, !strcmp(kv_fixture_text(&c->read, "centroids.calibration_set"), kv_fixture_text(&c->read, "binding.calibration_set")), KV_CALIBRATION_MISMATCH, "centroids", "thresholds were calibrated on another set");
}

/* Checks that centroids are the means of the members that labels give them, and sizes their counts. weight: members behind each point. */
static void check_means(struct check *c, const float *points, const double *weight, int32_t n, int32_t k, const char *labels, const char *centroids, float *out, double *size)
{
    double sum[MAX_UNITS * MAX_D] = {0};
    int32_t label[MAX_ROWS];
    EXPECT(c, kv_fixture_count(&c->read, MAX_ROWS, "%s", labels) == n, KV_UNIT_MAP, labels, "labels do not cover what was clustered");
    EXPECT(c, read_matrix(c, out, MAX_UNITS, c->d, centroids) == k, KV_UNIT_MAP, centroids, "there is not one centroid per cluster");
    for (int32_t u = 0; u < k; u++) size[u] = 0;
    for (int32_t i = 0; i < n; i++) {
        label[i] = (int32_t)kv_fixture_integer(&c->read, "%s.%d", labels, i);
        EXPECT(c, label[i] >= 0 && label[i] < k, KV_UNIT_MAP, labels, "a label names no cluster");
        size[label[i]] += weight ? weight[i] : 1;
        for (int32_t j = 0; j < c->d; j++) sum[label[i] * c->d + j] += (weight ? weight[i] : 1) * (double)points[i * c->d + j];
    }
    for (int32_t u = 0; u < k; u++) EXPECT(c, size[u] > 0, KV_EMPTY_UNIT, centroids, "an empty cluster carries a centroid");
    for (int32_t u = 0; u < k; u++) {
        for (int32_t j = 0; j < c->d; j++) EXPECT(c, near((double)out[u * c->d + j], sum[u * c->d + j] / size[u]), KV_CENTROID_MISMATCH, centroids, "a centroid is not the mean of its raw keys");
    }
}

static void check_centroids(struct check *c)
{
    struct kv_fixture_reader *r = &c->read;
    float fine[MAX_UNITS * MAX_D], coarse[MAX_UNITS * MAX_D];
    double size[MAX_UNITS], mass[MAX_UNITS], total = 0;
    bool kept[MAX_UNITS];
    check_binding(c, "centroids");
    int32_t prefix = (int32_t)kv_fixture_integer(r, "centroids.prefix_rows"), k = kv_fixture_count(r, MAX_UNITS, "centroids.sizes"), g = kv_fixture_count(r, MAX_UNITS, "centroids.coarse_centroids");
    if (c->status == KV_OK) check_prefix(c, prefix);
    if (c->status == KV_OK) check_means(c, c->k, NULL, prefix, k, "centroids.labels", "centroids.centroids", fine, size);
    for (int32_t u = 0; u < k && c->status == KV_OK; u++) EXPECT(c, kv_fixture_integer(r, "centroids.sizes.%d", u) == (int64_t)size[u], KV_UNIT_MAP, "centroids.sizes", "a size is not its members");
    if (c->status == KV_OK) check_means(c, fine, size, k, g, "centroids.coarse_labels", "centroids.coarse_centroids", coarse, mass);
    if (c->status != KV_OK || r->status != KV_OK) return;
    for (int32_t u = 0; u < g; u++) total += mass[u] * exp(dot(c->q, coarse + u * c->d, c->d) * c->scale);
    for (int32_t u = 0; u < g; u++) kept[u] = exp(dot(c->q, coarse + u * c->d, c->d) * c->scale) / total > kv_fixture_number(r, "centroids.coarse_threshold");
    double below = 0, threshold = kv_fixture_number(r, "centroids.threshold");
    for (int32_t u = 0; u < k; u++)
        if (kept[kv_fixture_integer(r, "centroids.coarse_labels.%d", u)]) below += size[u] * exp(dot(c->q, fine + u * c->d, c->d) * c->scale);
    uint64_t support = range(prefix, c->n), wanted = read_mask(c, "centroids.support");
    EXPECT(c, kv_fixture_count(r, MAX_UNITS, "centroids.scores") == k, KV_CANDIDATE_SCORE_MISSING, "centroids.scores", "every cluster has one score");
    for (int32_t u = 0; u < k; u++) {
        bool searched = kept[kv_fixture_integer(r, "centroids.coarse_labels.%d", u)];
        double score = searched ? exp(dot(c->q, fine + u * c->d, c->d) * c->scale) / below : 0;
        EXPECT(c, near(kv_fixture_number(r, "centroids.scores.%d", u), score), KV_SELECTOR_SCORE, "centroids.scores", "a score is not its share of the N-weighted denominator");
        for (int32_t i = 0; i < prefix; i++)
            if (score > threshold && kv_fixture_integer(r, "centroids.labels.%d", i) == u) support |= UINT64_C(1) << i;
    }
    EXPECT(c, wanted == support, KV_SUPPORT_MISMATCH, "centroids.support", "the support is not the clusters over the threshold and the open part");
}

/* ---------------------------------------------------------------- hashing */

static int32_t meetings(const struct check *c, const float *planes, int32_t tables, int32_t bits, const float *key)
{
    int32_t met = 0;
    for (int32_t t = 0; t < tables; t++) {
        bool same = true;
        for (int32_t b = 0; b < bits; b++) {
            const float *plane = planes + (t * bits + b) * c->d;
            same = same && (dot(plane, c->q, c->d) >= 0) == (dot(plane, key, c->d) >= 0);
        }
        met += same;
    }
    return met;
}

static void check_estimate(struct check *c, const double *u, uint64_t support, const float *centred)
{
    double out[MAX_D] = {0}, sum = 0;
    for (int32_t i = 0; i < c->n; i++) {
        if (!(support >> i & 1)) continue;
        double w = exp(dot(c->q, centred + i * c->d, c->d) * c->scale) / u[i];
        for (int32_t j = 0; j < c->d; j++) out[j] += w * (double)c->v[i * c->d + j];
        sum += w;
    }
    for (int32_t j = 0; j < c->d; j++)
        EXPECT(c, near(kv_fixture_number(&c->read, "lsh.output.%d", j), out[j] / sum), KV_ESTIMATE_MISMATCH, "lsh.output", "it is not the self-normalised estimate with weights 1 / u");
}

static void check_lsh(struct check *c)
{
    struct kv_fixture_reader *r = &c->read;
    float planes[MAX_TABLES * MAX_D], mean[MAX_D], centred[MAX_ROWS * MAX_D];
    double u[MAX_ROWS];
    char path[48];
    check_binding(c, "lsh");
    EXPECT(c, kv_fixture_integer(r, "lsh.projector_generation") == kv_fixture_integer(r, "binding.projector_generation"), KV_STALE_SELECTOR_GENERATION, "lsh", "tables were hashed by another projector");
    int32_t tables = (int32_t)kv_fixture_integer(r, "lsh.tables"), bits = (int32_t)kv_fixture_integer(r, "lsh.bits");
    EXPECT(c, tables >= 1 && bits >= 1 && tables * bits <= MAX_TABLES && kv_fixture_count(r, MAX_TABLES, "lsh.planes") == tables * bits, KV_INDEX_GEOMETRY, "lsh", "planes are not tables × bits");
    EXPECT(c, kv_fixture_integer(r, "lsh.min_collisions") == 2, KV_COLLISION_RULE, "lsh.min_collisions", "u is that of at least two tables");
    for (int32_t p = 0; p < tables * bits; p++) {
        snprintf(path, sizeof path, "lsh.planes.%d", p);
        EXPECT(c, read_vector(c, planes + p * c->d, MAX_D, path) == c->d, KV_SOURCE_SHAPE_MISMATCH, path, "a plane has another width");
    }
    uint64_t fixed = read_mask(c, "lsh.static"), sampled = read_mask(c, "lsh.sampled"), all = range(0, c->n);
    EXPECT(c, fixed && fixed != all && !(fixed & sampled), KV_SUPPORT_MISMATCH, "lsh.static", "static rows are sampled too, or leave nothing to sample");
    EXPECT(c, read_vector(c, mean, MAX_D, "lsh.mean") == c->d && kv_fixture_bool(r, "lsh.static_centred"), KV_CENTRE_MISMATCH, "lsh", "static and sampled keys do not share one mean");
    for (int32_t j = 0; j < c->d; j++) {
        double sum = 0;
        for (int32_t i = 0; i < c->n; i++) sum += fixed >> i & 1 ? 0 : (double)c->k[i * c->d + j];
        EXPECT(c, near((double)mean[j], sum / __builtin_popcountll(all & ~fixed)), KV_CENTRE_MISMATCH, "lsh.mean", "it is not the mean of the hashed keys");
    }
    EXPECT(c, kv_fixture_count(r, MAX_ROWS, "lsh.inclusion") == c->n, KV_CANDIDATE_SCORE_MISSING, "lsh.inclusion", "every row has one inclusion probability");
    for (int32_t i = 0; i < c->n; i++) {
        const float *x = centred + i * c->d;
        for (int32_t j = 0; j < c->d; j++) centred[i * c->d + j] = c->k[i * c->d + j] - mean[j];
        double cosine = dot(c->q, x, c->d) / sqrt(dot(c->q, c->q, c->d) * dot(x, x, c->d)), p = pow(1 - acos(fmax(-1, fmin(1, cosine))) / 3.141592653589793, bits);
        u[i] = kv_fixture_number(r, "lsh.inclusion.%d", i);
        EXPECT(c, u[i] > 0, KV_ZERO_INCLUSION, "lsh.inclusion", "a row cannot be weighted by 1 / 0");
        EXPECT(c, near(u[i], fixed >> i & 1 ? 1 : 1 - pow(1 - p, tables) - tables * p * pow(1 - p, tables - 1)), KV_INCLUSION_MISMATCH, "lsh.inclusion", "it is not that of two meetings in the tables");
        bool met = !(fixed >> i & 1) && meetings(c, planes, tables, bits, x) >= 2;
        EXPECT(c, met == (sampled >> i & 1), KV_SELECTION_MISMATCH, "lsh.sampled", "the sample is not the rows that met the query");
    }
    check_estimate(c, u, fixed | sampled, centred);
}

enum kv_status kv_fixture_index(const struct kv_fixture *f, struct kv_error *err)
{
    struct check *c = calloc(1, sizeof *c);
    if (!c) return kv_fail(err, KV_OUT_OF_MEMORY, "", "no memory for the fixture");
    static void (*const parts[])(struct check *) = {read_pool, check_pq, check_graph, check_centroids, check_lsh};
    c->read = (struct kv_fixture_reader){f, err, KV_OK};
    c->err = err;
    kv_numerics_enter();
    for (size_t i = 0; i < sizeof parts / sizeof *parts && c->status == KV_OK && c->read.status == KV_OK; i++) parts[i](c);
    enum kv_status status = c->status != KV_OK ? c->status : c->read.status;
    kv_lab_rows_free(&c->stored);
    free(c);
    return status;
}
