/* fixture_units.c — validator of contract-6-recall-units: fixed units, events and clusters that are recalled whole.
 *
 * InfLLM's and ClusterKV's receipts are compared with the selectors that serve; EM-LLM's boundaries, events and two buffers with the
 * rules of 0x07M. Three methods, three unit maps over authoritative rows that keep their positions. Source 0x07K–N. */
#include "runtime/evaluate/fixture.h"
#include "runtime/evaluate/lab.h"
#include "runtime/selection/params.h"
#include "runtime/selection/rank.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_D = 8, MAX_UNITS = 32 };

struct check {
    struct kv_fixture_reader read;
    struct kv_error *err;
    enum kv_status status;
};

struct pool {
    int32_t n, d;
    float q[MAX_D], k[MAX_ROWS * MAX_D], v[MAX_ROWS * MAX_D];
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

static bool near(double a, double b) { return fabs(a - b) <= 1e-4 * (1 + fabs(b)); }

/* ---------------------------------------------------------------- reading */

static void read_pool(struct check *c, struct pool *p, const char *at)
{
    static const char *const names[] = {"keys", "values"};
    memset(p, 0, sizeof *p);
    p->d = kv_fixture_count(&c->read, MAX_D, "%s.query", at);
    for (int32_t j = 0; j < p->d; j++) p->q[j] = (float)kv_fixture_number(&c->read, "%s.query.%d", at, j);
    p->n = kv_fixture_count(&c->read, MAX_ROWS, "%s.keys", at);
    for (int t = 0; t < 2; t++) {
        float *out = t ? p->v : p->k;
        EXPECT(c, kv_fixture_count(&c->read, MAX_ROWS, "%s.%s", at, names[t]) == p->n, KV_SOURCE_SHAPE_MISMATCH, at, "keys and values have different rows");
        for (int32_t i = 0; i < p->n; i++) {
            EXPECT(c, kv_fixture_count(&c->read, MAX_D, "%s.%s.%d", at, names[t], i) == p->d, KV_SOURCE_SHAPE_MISMATCH, at, "a row has another width than the query");
            for (int32_t j = 0; j < p->d; j++) out[i * p->d + j] = (float)kv_fixture_number(&c->read, "%s.%s.%d.%d", at, names[t], i, j);
        }
    }
    EXPECT(c, p->n > 0 && kv_fixture_integer(&c->read, "%s.committed_rows", at) == p->n, KV_STALE_INDEX, at, "the rows are not the committed frontier");
}

static int32_t read_ids(struct check *c, int32_t *out, int32_t limit, const char *at, const char *name)
{
    int32_t n = kv_fixture_count(&c->read, MAX_ROWS, "%s.%s", at, name);
    for (int32_t i = 0; i < n; i++) {
        out[i] = (int32_t)kv_fixture_integer(&c->read, "%s.%s.%d", at, name, i);
        if (out[i] < 0 || out[i] >= limit) fail(c, KV_CANDIDATE_OUT_OF_RANGE, name, "an id lies beyond the frontier");
        else if (i && out[i] <= out[i - 1]) fail(c, KV_CANDIDATE_DUPLICATE, name, "ids are not ascending and distinct");
    }
    return n;
}

static uint64_t read_mask(struct check *c, int32_t limit, const char *at, const char *name)
{
    int32_t ids[MAX_ROWS], n = read_ids(c, ids, limit, at, name);
    uint64_t mask = 0;
    for (int32_t i = 0; i < n && c->status == KV_OK && c->read.status == KV_OK; i++) mask |= UINT64_C(1) << ids[i];
    return mask;
}

/* What all three owe: current generations, full rows, original positions, no claim of exactness. */
static void check_owed(struct check *c, const char *at, uint64_t support, int32_t n)
{
    static const struct {
        const char *field;
        enum kv_status reason;
    } bound[] = {{"request_generation", KV_STALE_REQUEST_GENERATION}, {"cache_generation", KV_STALE_CACHE_GENERATION},
                 {"index_generation", KV_STALE_INDEX_GENERATION}, {"pool_generation", KV_STALE_REPLICA_GENERATION}};
    struct kv_fixture_reader *r = &c->read;
    for (int i = 0; i < 4; i++)
        EXPECT(c, kv_fixture_integer(r, "%s.%s", at, bound[i].field) == kv_fixture_integer(r, "binding.%s", bound[i].field), bound[i].reason, at, "the receipt is of another generation");
    EXPECT(c, !strcmp(kv_fixture_text(r, "%s.tenant", at), kv_fixture_text(r, "binding.tenant")), KV_TENANT_MISMATCH, at, "units of another tenant");
    EXPECT(c, !strcmp(kv_fixture_text(r, "%s.payload", at), "full"), KV_PROXY_NOT_AUTHORITY, at, "recall restores full rows, not their search surface");
    EXPECT(c, !strcmp(kv_fixture_text(r, "%s.exactness", at), "approximate"), KV_CONTRACT_FORBIDS, at, "recalled units are not the dense support");
    EXPECT(c, read_mask(c, n, at, "positions") == support, KV_POSITION_CONTRACT_MISMATCH, at, "rows lost their original positions");
}

static bool run(struct check *c, const char *method, const struct pool *p, const char *const *names, int32_t n, const char *at, const int32_t *seeds, int32_t n_seeds,
                struct kv_lab_result *out)
{
    struct kv_lab_case lab = {.method = kv_selector_find(method), .n_q_heads = 1, .n_kv_heads = 1, .d_head = p->d, .n_rows = p->n, .row_type = KV_F32, .q = p->q, .k = p->k,
                              .v = p->v, .cluster_seeds = seeds, .n_cluster_seeds = n_seeds};
    kv_specs_default(lab.method->params, lab.method->n_params, &lab.params);
    for (int32_t i = 0; i < n && c->status == KV_OK; i++)
        c->status = kv_specs_set(lab.method->params, lab.method->n_params, method, &lab.params, names[i], kv_fixture_number(&c->read, "%s.%s", at, names[i]), c->err);
    if (c->status == KV_OK && c->read.status != KV_OK) c->status = c->read.status;
    if (c->status == KV_OK) c->status = kv_lab_run(&lab, out, c->err);
    return c->status == KV_OK;
}

/* ---------------------------------------------------------------- InfLLM */

static void check_unit_map(struct check *c, const struct pool *p, int32_t sink, int32_t unit, int32_t n_units)
{
    char name[32];
    EXPECT(c, kv_fixture_count(&c->read, MAX_UNITS, "infllm.unit_map") == n_units, KV_UNIT_MAP, "infllm.unit_map", "units are not those behind the window");
    for (int32_t u = 0; u < n_units; u++) {
        uint64_t mask = 0;
        snprintf(name, sizeof name, "unit_map.%d", u);
        kv_mask_set_range(&mask, sink + u * unit, sink + (u + 1) * unit);
        EXPECT(c, read_mask(c, p->n, "infllm", name) == mask, KV_UNIT_MAP, "infllm.unit_map", "a unit is not its contiguous rows");
        int64_t rep = kv_fixture_integer(&c->read, "infllm.representatives_of.%d", u);
        EXPECT(c, rep >= 0 && rep < p->n && mask >> rep & 1, KV_SELECTION_MISMATCH, "infllm.representatives_of", "a representative lies outside its unit");
    }
}

static void check_infllm(struct check *c)
{
    static const char *const names[] = {"unit_rows", "representatives", "units", "sink_rows", "local_rows"};
    struct pool p;
    struct kv_lab_result r;
    int32_t selected[MAX_UNITS];
    read_pool(c, &p, "infllm");
    uint64_t support = read_mask(c, p.n, "infllm", "support");
    check_owed(c, "infllm", support, p.n);
    EXPECT(c, !strcmp(kv_fixture_text(&c->read, "infllm.score"), "sum"), KV_SELECTOR_SCORE, "infllm.score", "units are ranked by the sum over representatives");
    EXPECT(c, kv_fixture_integer(&c->read, "infllm.representatives") == 1, KV_BAD_ARGUMENT, "infllm.representatives", "this fixture names one representative a unit");
    if (!run(c, "infllm", &p, names, 5, "infllm", NULL, 0, &r)) return;
    uint64_t served = r.support[0];
    int32_t n_units = r.n_units[0];
    float score[MAX_UNITS];
    uint8_t chosen[MAX_UNITS];
    for (int32_t u = 0; u < n_units && u < MAX_UNITS; u++) score[u] = r.score[u], chosen[u] = r.chosen[u];
    kv_lab_result_free(&r);
    check_unit_map(c, &p, (int32_t)kv_fixture_integer(&c->read, "infllm.sink_rows"), (int32_t)kv_fixture_integer(&c->read, "infllm.unit_rows"), n_units);
    int32_t n = read_ids(c, selected, n_units, "infllm", "selected");
    EXPECT(c, kv_fixture_count(&c->read, MAX_UNITS, "infllm.scores") == n_units, KV_CANDIDATE_SCORE_MISSING, "infllm.scores", "every unit has one score");
    for (int32_t u = 0; u < n_units; u++) {
        double dot = 0;
        for (int32_t j = 0; j < p.d; j++) dot += (double)p.q[j] * (double)p.k[kv_fixture_integer(&c->read, "infllm.representatives_of.%d", u) * p.d + j];
        EXPECT(c, near(dot, (double)score[u]), KV_SELECTION_MISMATCH, "infllm.representatives_of", "the named row is not the one the unit is searched by");
        EXPECT(c, near(kv_fixture_number(&c->read, "infllm.scores.%d", u), dot), KV_SELECTOR_SCORE, "infllm.scores", "a score is not that of the representatives");
    }
    EXPECT(c, n <= kv_fixture_integer(&c->read, "infllm.units"), KV_BUDGET_EXCEEDED, "infllm.selected", "more units than the budget");
    for (int32_t i = 0; i < n; i++) EXPECT(c, chosen[selected[i]], KV_SELECTION_MISMATCH, "infllm.selected", "a unit was recalled that the method did not choose");
    EXPECT(c, support == served, KV_SUPPORT_MISMATCH, "infllm.support", "the support is not sink, whole units and window");
}

/* ---------------------------------------------------------------- EM-LLM */

/* Candidate boundaries: surprise over mean + γ deviations of the window before it. */
static void check_surprise(struct check *c, int32_t n, const int32_t *cuts, int32_t n_cuts)
{
    double s[MAX_ROWS], gamma = kv_fixture_number(&c->read, "em.gamma");
    int32_t window = (int32_t)kv_fixture_integer(&c->read, "em.window");
    EXPECT(c, window >= 1 && kv_fixture_count(&c->read, MAX_ROWS, "em.surprise") == n, KV_SOURCE_SHAPE_MISMATCH, "em.surprise", "every distant row has one surprise");
    for (int32_t i = 0; i < n; i++) s[i] = kv_fixture_number(&c->read, "em.surprise.%d", i);
    for (int32_t i = 1, next = 0; i < n; i++) {
        int32_t from = i > window ? i - window : 0;
        double mean = 0, variance = 0;
        for (int32_t j = from; j < i; j++) mean += s[j] / (i - from);
        for (int32_t j = from; j < i; j++) variance += (s[j] - mean) * (s[j] - mean) / (i - from);
        bool cut = i >= window && s[i] > mean + gamma * sqrt(variance), said = next < n_cuts && cuts[next] == i;
        next += said;
        EXPECT(c, cut == said, KV_EVENT_BOUNDARY, "em.candidate_cuts", "a boundary is not where surprise exceeds its window");
    }
}

/* Each boundary moves to the best score of its own search window; the order stays. */
static void check_refinement(struct check *c, const int32_t *candidate, const int32_t *refined, int32_t n)
{
    EXPECT(c, kv_fixture_count(&c->read, MAX_UNITS, "em.search") == n, KV_EVENT_BOUNDARY, "em.search", "a boundary has no search window");
    for (int32_t b = 0; b < n; b++) {
        int64_t first = kv_fixture_integer(&c->read, "em.search.%d.first", b), best = 0;
        int32_t width = kv_fixture_count(&c->read, MAX_ROWS, "em.search.%d.score", b);
        for (int32_t i = 1; i < width; i++)
            if (kv_fixture_number(&c->read, "em.search.%d.score.%d", b, i) > kv_fixture_number(&c->read, "em.search.%d.score.%d", b, (int32_t)best)) best = i;
        EXPECT(c, width > 0 && candidate[b] >= first && candidate[b] < first + width, KV_EVENT_BOUNDARY, "em.search", "a window does not hold its candidate");
        EXPECT(c, refined[b] == first + best, KV_EVENT_BOUNDARY, "em.refined_cuts", "a boundary is not the best of its window");
    }
}

/* Event e holds rows [cut[e-1], cut[e]). */
static uint64_t event_rows(const int32_t *cuts, int32_t n_cuts, int32_t n, int32_t e)
{
    uint64_t mask = 0;
    kv_mask_set_range(&mask, e ? cuts[e - 1] : 0, e < n_cuts ? cuts[e] : n);
    return mask;
}

static void check_events(struct check *c, const struct pool *p, const int32_t *cuts, int32_t n_cuts, int32_t n, double *score)
{
    char name[32];
    EXPECT(c, kv_fixture_count(&c->read, MAX_UNITS, "em.events") == n_cuts + 1 && kv_fixture_count(&c->read, MAX_UNITS, "em.scores") == n_cuts + 1, KV_UNIT_MAP, "em.events",
           "events are not the spans between cuts");
    for (int32_t e = 0; e <= n_cuts; e++) {
        uint64_t rows = event_rows(cuts, n_cuts, n, e);
        snprintf(name, sizeof name, "events.%d", e);
        EXPECT(c, read_mask(c, n, "em", name) == rows, KV_UNIT_MAP, "em.events", "an event is not the rows between its cuts");
        EXPECT(c, kv_fixture_count(&c->read, MAX_D, "em.vectors.%d", e) == p->d, KV_SOURCE_SHAPE_MISMATCH, "em.vectors", "an event vector has another width");
        score[e] = 0;
        for (int32_t j = 0; j < p->d; j++) {
            double mean = 0;
            for (int32_t i = 0; i < n; i++) mean += rows >> i & 1 ? (double)p->k[i * p->d + j] / __builtin_popcountll(rows) : 0;
            EXPECT(c, near(kv_fixture_number(&c->read, "em.vectors.%d.%d", e, j), mean), KV_CENTROID_MISMATCH, "em.vectors", "an event vector is not the mean of its keys");
            score[e] += mean * (double)p->q[j];
        }
        EXPECT(c, near(kv_fixture_number(&c->read, "em.scores.%d", e), score[e]), KV_SELECTOR_SCORE, "em.scores", "a score is not that of the event vector");
    }
}

static void check_em(struct check *c)
{
    struct pool p;
    int32_t candidate[MAX_UNITS + 32], refined[MAX_UNITS + 32], local = (int32_t)kv_fixture_integer(&c->read, "em.local_rows");
    double score[MAX_UNITS + 33];
    read_pool(c, &p, "em");
    uint64_t support = read_mask(c, p.n, "em", "support"), rows = 0, window = 0;
    check_owed(c, "em", support, p.n);
    EXPECT(c, !strcmp(kv_fixture_text(&c->read, "em.representation"), "unrotated"), KV_REPRESENTATION_MISMATCH, "em.representation", "the unrotated form is declared, never silent");
    EXPECT(c, local >= 1 && local < p.n, KV_BAD_ARGUMENT, "em.local_rows", "the window does not fit the rows");
    int32_t n = p.n - local, n_candidate = read_ids(c, candidate, n, "em", "candidate_cuts"), n_refined = read_ids(c, refined, n, "em", "refined_cuts");
    EXPECT(c, n_candidate == n_refined && n_refined < MAX_UNITS, KV_EVENT_BOUNDARY, "em.refined_cuts", "refinement moves boundaries and makes or drops none");
    check_surprise(c, n, candidate, n_candidate);
    if (c->status == KV_OK) check_refinement(c, candidate, refined, n_refined);
    if (c->status == KV_OK) check_events(c, &p, refined, n_refined, n, score);
    uint64_t semantic = read_mask(c, n_refined + 1, "em", "semantic"), temporal = read_mask(c, n_refined + 1, "em", "temporal");
    EXPECT(c, !(semantic & temporal), KV_SUPPORT_MISMATCH, "em.temporal", "an event sits in both buffers");
    EXPECT(c, !(temporal & ~(semantic << 1 | semantic >> 1)), KV_SELECTION_MISMATCH, "em.temporal", "a temporal event is no neighbour of a semantic one");
    for (int32_t e = 0; e <= n_refined; e++)
        for (int32_t o = 0; o <= n_refined; o++)
            EXPECT(c, !(semantic >> e & 1) || semantic >> o & 1 || score[o] <= score[e], KV_SELECTION_MISMATCH, "em.semantic", "a more similar event was left out");
    for (int32_t e = 0; e <= n_refined; e++)
        if ((semantic | temporal) >> e & 1) rows |= event_rows(refined, n_refined, n, e);
    EXPECT(c, __builtin_popcountll(rows) <= kv_fixture_integer(&c->read, "em.memory_rows"), KV_BUDGET_EXCEEDED, "em.memory_rows", "recalled events exceed the token cap");
    kv_mask_set_range(&window, n, p.n);
    EXPECT(c, support == (rows | window), KV_SUPPORT_MISMATCH, "em.support", "the support is not both buffers and the window");
}

/* ---------------------------------------------------------------- ClusterKV */

static void check_publication(struct check *c)
{
    static const char *const parts[] = {"centroids", "sizes", "members", "prefix_sums", "cache_map"};
    int64_t published = kv_fixture_integer(&c->read, "binding.cluster_generation");
    for (int i = 0; i < 5; i++)
        EXPECT(c, kv_fixture_integer(&c->read, "clusterkv.generation.%s", parts[i]) == published, KV_STALE_SELECTOR_GENERATION, parts[i], "parts of two generations are mixed");
    int64_t window = kv_fixture_integer(&c->read, "clusterkv.window_rows"), sealed = kv_fixture_integer(&c->read, "clusterkv.sealed_rows");
    EXPECT(c, window == 320 && sealed % window == 0, KV_UNIT_MAP, "clusterkv.sealed_rows", "a window was sealed before it was full");
    EXPECT(c, kv_fixture_integer(&c->read, "clusterkv.appended_clusters") == sealed / window * 4, KV_UNIT_MAP, "clusterkv.appended_clusters", "a window of 320 rows seals into four clusters");
}

static void check_clusters(struct check *c, const struct pool *p, const struct kv_lab_result *r, int32_t sink)
{
    char name[32];
    uint64_t seen = 0, all = 0;
    int64_t sum = 0;
    int32_t k = kv_fixture_count(&c->read, MAX_UNITS, "clusterkv.members");
    EXPECT(c, k == r->n_units[0] && kv_fixture_count(&c->read, MAX_UNITS, "clusterkv.centroids") == k, KV_UNIT_MAP, "clusterkv.members", "there is not one centroid per cluster");
    for (int32_t u = 0; u < k; u++) {
        double mean[MAX_D] = {0}, squares = 0, score = 0;
        snprintf(name, sizeof name, "members.%d", u);
        uint64_t rows = read_mask(c, p->n, "clusterkv", name);
        EXPECT(c, rows, KV_EMPTY_UNIT, "clusterkv.members", "an empty cluster carries a centroid");
        EXPECT(c, !(rows & seen), KV_UNIT_MAP, "clusterkv.members", "a row belongs to two clusters");
        seen |= rows;
        sum += __builtin_popcountll(rows);
        EXPECT(c, kv_fixture_integer(&c->read, "clusterkv.sizes.%d", u) == __builtin_popcountll(rows), KV_UNIT_MAP, "clusterkv.sizes", "a size is not its members");
        EXPECT(c, kv_fixture_integer(&c->read, "clusterkv.prefix_sums.%d", u) == sum, KV_UNIT_MAP, "clusterkv.prefix_sums", "a prefix sum is not that of the sizes");
        for (int32_t i = 0; i < p->n; i++) {
            double norm = 0;
            for (int32_t j = 0; j < p->d; j++) norm += (double)p->k[i * p->d + j] * (double)p->k[i * p->d + j];
            for (int32_t j = 0; rows >> i & 1 && j < p->d; j++) mean[j] += (double)p->k[i * p->d + j] / sqrt(norm);
        }
        for (int32_t j = 0; j < p->d; j++) squares += mean[j] * mean[j];
        for (int32_t j = 0; j < p->d; j++) {
            EXPECT(c, near(kv_fixture_number(&c->read, "clusterkv.centroids.%d.%d", u, j), mean[j] / sqrt(squares)), KV_CENTROID_MISMATCH, "clusterkv.centroids",
                   "a centroid is not the normalised mean of normalised keys");
            score += mean[j] / sqrt(squares) * (double)p->q[j];
        }
        EXPECT(c, near(kv_fixture_number(&c->read, "clusterkv.scores.%d", u), score) && near(score, (double)r->score[u]), KV_SELECTOR_SCORE, "clusterkv.scores", "a score is not q · μ");
    }
    kv_mask_set_range(&all, sink, p->n);
    EXPECT(c, seen == all, KV_UNIT_MAP, "clusterkv.members", "a row after the sink has no cluster");
}

static void check_clusterkv(struct check *c)
{
    static const char *const names[] = {"sink_rows", "budget_rows", "iterations"};
    struct pool p;
    struct kv_lab_result r;
    int32_t seeds[MAX_ROWS], order[MAX_UNITS];
    read_pool(c, &p, "clusterkv");
    uint64_t support = read_mask(c, p.n, "clusterkv", "support");
    check_owed(c, "clusterkv", support, p.n);
    if (c->status == KV_OK) check_publication(c);
    int32_t n_seeds = read_ids(c, seeds, p.n, "clusterkv", "seeds");
    if (c->status != KV_OK || !run(c, "clusterkv", &p, names, 3, "clusterkv", seeds, n_seeds, &r)) return;
    check_clusters(c, &p, &r, (int32_t)kv_fixture_integer(&c->read, "clusterkv.sink_rows"));
    uint64_t served = r.support[0], keys[MAX_ROWS];
    int32_t k = r.n_units[0] < MAX_UNITS ? r.n_units[0] : MAX_UNITS;
    for (int32_t u = 0; u < k; u++) keys[u] = kv_rank_key(r.score[u], (uint32_t)u);
    kv_lab_result_free(&r);
    kv_rank_sort(keys, (size_t)k);
    EXPECT(c, kv_fixture_count(&c->read, MAX_UNITS, "clusterkv.order") == k, KV_CANDIDATE_SCORE_MISSING, "clusterkv.order", "every cluster has its place in the order");
    int64_t left = kv_fixture_integer(&c->read, "clusterkv.budget_rows"), taken = 0;
    for (int32_t i = 0; i < k; i++) {
        order[i] = (int32_t)kv_fixture_integer(&c->read, "clusterkv.order.%d", i);
        EXPECT(c, order[i] == (int32_t)kv_rank_index(keys[i]), KV_SELECTION_MISMATCH, "clusterkv.order", "clusters are not in the order of their scores");
        int64_t size = kv_fixture_integer(&c->read, "clusterkv.sizes.%d", order[i]), take = size < left - taken ? size : left - taken;
        EXPECT(c, kv_fixture_integer(&c->read, "clusterkv.taken.%d", i) == take, KV_BUDGET_EXCEEDED, "clusterkv.taken", "the last cluster is cut where the budget ends");
        taken += take;
    }
    EXPECT(c, support == served, KV_SUPPORT_MISMATCH, "clusterkv.support", "the support is not sink and clusters, the last one in member order");
}

enum kv_status kv_fixture_units(const struct kv_fixture *f, struct kv_error *err)
{
    struct check c = {{f, err, KV_OK}, err, KV_OK};
    static void (*const parts[])(struct check *) = {check_infllm, check_em, check_clusterkv};
    for (size_t i = 0; i < 3 && c.status == KV_OK && c.read.status == KV_OK; i++) parts[i](&c);
    return c.status != KV_OK ? c.status : c.read.status;
}
