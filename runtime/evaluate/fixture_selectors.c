/* fixture_selectors.c — validator of contract-6-sparq-quest-infinigen: three proxies' receipts against the selectors that serve.
 *
 * Each method's rows, query and parameters run through kv_lab_run; what the receipt says of channels, extrema, bounds, bases, counts
 * and support must be what came out. Generations, heads and layers are compared with the document's binding. */
#include "runtime/evaluate/fixture.h"
#include "runtime/evaluate/lab.h"
#include "runtime/selection/params.h"
#include "runtime/selection/rank.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_D = 16, MAX_PAGES = 64, MAX_QUERIES = 32 };

struct check {
    struct kv_fixture_reader read;
    struct kv_error *err;
    enum kv_status status;
};

static bool fail(struct check *c, enum kv_status s, const char *where, const char *what)
{
    if (c->status == KV_OK && c->read.status != KV_OK) c->status = c->read.status;
    if (c->status == KV_OK) c->status = kv_fail(c->err, s, where, "%s", what);
    return false;
}

#define EXPECT(c, condition, reason, where, what)                                                                         \
    if ((c)->status != KV_OK || (c)->read.status != KV_OK || !(condition)) {                                               \
        fail(c, reason, where, what);                                                                                      \
        return;                                                                                                            \
    }

static bool near(double a, double b) { return fabs(a - b) <= 1e-5 * (1 + fabs(b)); }

/* ---------------------------------------------------------------- reading */

struct tensors {
    int32_t n_rows, d, n_prefill;
    float q[MAX_D], k[MAX_ROWS * MAX_D], v[MAX_ROWS * MAX_D], prefill[MAX_QUERIES * MAX_D];
};

static int32_t read_vector(struct check *c, float *out, int32_t max, const char *path)
{
    int32_t n = kv_fixture_count(&c->read, max, "%s", path);
    for (int32_t i = 0; i < n; i++) out[i] = (float)kv_fixture_number(&c->read, "%s.%d", path, i);
    return n;
}

static int32_t read_rows(struct check *c, float *out, int32_t max, int32_t d, const char *section, const char *name)
{
    int32_t n = kv_fixture_count(&c->read, max, "%s.%s", section, name);
    for (int32_t i = 0; i < n; i++) {
        if (kv_fixture_count(&c->read, MAX_D, "%s.%s.%d", section, name, i) != d) fail(c, KV_SOURCE_SHAPE_MISMATCH, name, "a row has another width than the query");
        for (int32_t j = 0; j < d; j++) out[i * d + j] = (float)kv_fixture_number(&c->read, "%s.%s.%d.%d", section, name, i, j);
    }
    return n;
}

static void read_tensors(struct check *c, struct tensors *t, const char *section)
{
    char path[64];
    memset(t, 0, sizeof *t);
    snprintf(path, sizeof path, "%s.query", section);
    t->d = read_vector(c, t->q, MAX_D, path);
    t->n_rows = read_rows(c, t->k, MAX_ROWS, t->d, section, "keys");
    int32_t n_values = read_rows(c, t->v, MAX_ROWS, t->d, section, "values");
    EXPECT(c, n_values == t->n_rows && t->n_rows > 0 && t->d > 0, KV_SOURCE_SHAPE_MISMATCH, section, "keys and values have different rows");
    EXPECT(c, kv_fixture_integer(&c->read, "%s.committed_rows", section) == t->n_rows, KV_SOURCE_SHAPE_MISMATCH, "committed_rows", "the frontier is not the rows given");
}

/* Ids of an ascending list without repetition, all under limit. */
static int32_t read_ids(struct check *c, int32_t *out, int32_t max, int32_t limit, const char *section, const char *name)
{
    int32_t n = kv_fixture_count(&c->read, max, "%s.%s", section, name);
    for (int32_t i = 0; i < n; i++) {
        out[i] = (int32_t)kv_fixture_integer(&c->read, "%s.%s.%d", section, name, i);
        if (out[i] < 0 || out[i] >= limit) fail(c, KV_CANDIDATE_OUT_OF_RANGE, name, "an id lies beyond the frontier");
        if (i && out[i] <= out[i - 1]) fail(c, KV_CANDIDATE_DUPLICATE, name, "ids are not ascending and distinct");
    }
    return n;
}

static void check_binding(struct check *c, const char *section)
{
    struct kv_fixture_reader *r = &c->read;
    EXPECT(c, kv_fixture_integer(r, "%s.cache_generation", section) == kv_fixture_integer(r, "binding.cache_generation"), KV_STALE_CACHE_GENERATION, section,
           "the snapshot binds another cache generation");
    EXPECT(c, !strcmp(kv_fixture_text(r, "%s.exactness", section), "approximate"), KV_CONTRACT_FORBIDS, section, "a finite support is never exact");
    EXPECT(c, !strcmp(kv_fixture_text(r, "%s.payload", section), "full"), KV_PROXY_NOT_AUTHORITY, section, "attention reads full rows, never the proxy");
    EXPECT(c, kv_fixture_integer(r, "%s.indexed_rows", section) == kv_fixture_integer(r, "%s.committed_rows", section), KV_STALE_INDEX, section,
           "the snapshot covers less than the frontier");
}

/* ---------------------------------------------------------------- running */

static bool run(struct check *c, const char *method, const struct tensors *t, const char *const *names, const double *values, int32_t n, struct kv_lab_result *out)
{
    struct kv_lab_case lab = {.method = kv_selector_find(method), .n_q_heads = 1, .n_kv_heads = 1, .d_head = t->d, .n_rows = t->n_rows, .row_type = KV_F32,
                              .q = t->q, .k = t->k, .v = t->v, .prefill_q = t->n_prefill ? t->prefill : NULL, .n_prefill_q = t->n_prefill};
    if (c->status != KV_OK || c->read.status != KV_OK) return fail(c, c->read.status, method, "a field is missing");
    kv_specs_default(lab.method->params, lab.method->n_params, &lab.params);
    for (int32_t i = 0; i < n; i++)
        if ((c->status = kv_specs_set(lab.method->params, lab.method->n_params, method, &lab.params, names[i], values[i], c->err)) != KV_OK) return false;
    c->status = kv_lab_run(&lab, out, c->err);
    return c->status == KV_OK;
}

static bool same_support(const struct kv_lab_result *r, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (!kv_mask_has(r->support, ids[i])) return false;
    return kv_mask_count(r->support, r->n_blocks) == n;
}

/* ---------------------------------------------------------------- SparQ */

static void check_sparq_result(struct check *c, const struct tensors *t, const struct kv_lab_result *r, const int32_t *support, int32_t n_support, int32_t local)
{
    int32_t scores = kv_fixture_count(&c->read, MAX_ROWS, "sparq.proxy");
    EXPECT(c, scores == t->n_rows, KV_CANDIDATE_SCORE_MISSING, "sparq.proxy", "every committed row has one proxy score");
    for (int32_t i = 0; i < scores; i++)
        EXPECT(c, near(kv_fixture_number(&c->read, "sparq.proxy.%d", i), (double)r->score[i]), KV_SELECTOR_SCORE, "sparq.proxy", "a proxy score is not the selector's");
    for (int32_t i = t->n_rows - local; i < t->n_rows; i++) {
        int32_t j = 0;
        while (j < n_support && support[j] != i) j++;
        EXPECT(c, j < n_support, KV_LOCAL_WINDOW_MISSING, "sparq.support", "a row of the local window is missing");
    }
    EXPECT(c, same_support(r, support, n_support), KV_SUPPORT_MISMATCH, "sparq.support", "the support is not the selector's");
    EXPECT(c, near(kv_fixture_number(&c->read, "sparq.estimated_mass"), 1 - r->estimated_omitted_mass[0]), KV_ESTIMATE_MISMATCH, "sparq.estimated_mass",
           "the retained mass is not the proxy's");
}

static void check_sparq(struct check *c)
{
    static const char *const names[] = {"r", "k", "local_rows"};
    struct tensors t;
    struct kv_lab_result result;
    int32_t channels[MAX_D], support[MAX_ROWS];
    read_tensors(c, &t, "sparq");
    check_binding(c, "sparq");
    double p[3];
    for (int i = 0; i < 3; i++) p[i] = kv_fixture_number(&c->read, "sparq.%s", names[i]);
    int32_t n_channels = read_ids(c, channels, MAX_D, t.d, "sparq", "channels"), n_support = read_ids(c, support, MAX_ROWS, t.n_rows, "sparq", "support");
    EXPECT(c, n_channels == (int32_t)p[0], KV_SELECTOR_CHANNELS, "sparq.channels", "there are not r channels");
    double whole = 0, part = 0;
    for (int32_t i = 0; i < t.d; i++) whole += fabs((double)t.q[i]);
    for (int32_t i = 0; i < n_channels; i++) {
        part += fabs((double)t.q[channels[i]]);
        for (int32_t j = 0, taken = 0; j < t.d; j++, taken = 0) {
            for (int32_t m = 0; m < n_channels; m++) taken |= channels[m] == j;
            EXPECT(c, taken || fabsf(t.q[j]) <= fabsf(t.q[channels[i]]), KV_SELECTOR_CHANNELS, "sparq.channels", "a larger query channel was left out");
        }
    }
    EXPECT(c, near(kv_fixture_number(&c->read, "sparq.temperature"), sqrt(t.d * part / whole)), KV_SELECTOR_TEMPERATURE, "sparq.temperature", "it is not √(d · coverage)");
    EXPECT(c, kv_fixture_integer(&c->read, "sparq.mean_rows") == t.n_rows, KV_MEAN_STALE, "sparq.mean_rows", "the running mean covers other rows than the frontier");
    EXPECT(c, kv_fixture_integer(&c->read, "sparq.traffic_elements") == t.n_rows * (int64_t)p[0] + 2 * (int64_t)p[1] * t.d + 4 * t.d, KV_LEDGER_MISMATCH,
           "sparq.traffic_elements", "it is not T r + 2 k d + 4 d");
    if (!run(c, "sparq", &t, names, p, 3, &result)) return;
    check_sparq_result(c, &t, &result, support, n_support, (int32_t)p[2]);
    kv_lab_result_free(&result);
}

/* ---------------------------------------------------------------- Quest */

static void check_page(struct check *c, const struct tensors *t, int32_t page, int32_t page_rows)
{
    int32_t first = page * page_rows, end = first + page_rows < t->n_rows ? first + page_rows : t->n_rows;
    EXPECT(c, kv_fixture_integer(&c->read, "quest.pages.%d.first", page) == first && kv_fixture_integer(&c->read, "quest.pages.%d.rows", page) == end - first, KV_UNIT_MAP,
           "quest.pages", "pages leave a gap, overlap or have another size");
    for (int32_t j = 0; j < t->d; j++) {
        float lo = INFINITY, hi = -INFINITY;
        for (int32_t i = first; i < end; i++) lo = fminf(lo, t->k[i * t->d + j]), hi = fmaxf(hi, t->k[i * t->d + j]);
        EXPECT(c, near(kv_fixture_number(&c->read, "quest.pages.%d.min.%d", page, j), (double)lo) && near(kv_fixture_number(&c->read, "quest.pages.%d.max.%d", page, j), (double)hi),
               KV_EXTREMA_MISMATCH, "quest.pages", "extrema are not those of the page's rows");
    }
}

static void check_bound(struct check *c, const struct tensors *t, const struct kv_lab_result *r, int32_t page, int32_t page_rows)
{
    double bound = kv_fixture_number(&c->read, "quest.bounds.%d", page);
    for (int32_t i = page * page_rows; i < (page + 1) * page_rows; i++) {
        double dot = 0;
        for (int32_t j = 0; j < t->d; j++) dot += (double)t->q[j] * (double)t->k[i * t->d + j];
        EXPECT(c, dot <= bound + 1e-5, KV_BOUND_VIOLATED, "quest.bounds", "a row's logit exceeds its page's bound");
    }
    EXPECT(c, near(bound, (double)r->score[page]), KV_SELECTOR_SCORE, "quest.bounds", "the bound is not that of the extrema");
}

static void check_quest(struct check *c)
{
    static const char *const names[] = {"page_rows", "budget_rows"};
    struct tensors t;
    struct kv_lab_result result;
    int32_t pages[MAX_PAGES], support[MAX_ROWS];
    read_tensors(c, &t, "quest");
    check_binding(c, "quest");
    double p[2];
    for (int i = 0; i < 2; i++) p[i] = kv_fixture_number(&c->read, "quest.%s", names[i]);
    EXPECT(c, p[0] >= 1 && p[0] <= MAX_ROWS, KV_BAD_ARGUMENT, "quest.page_rows", "a page has at least one row");
    EXPECT(c, kv_fixture_integer(&c->read, "quest.metadata_generation") == kv_fixture_integer(&c->read, "binding.selector_generation"), KV_STALE_SELECTOR_GENERATION, "quest",
           "the extrema are of another generation");
    int32_t page_rows = (int32_t)p[0], n_pages = (t.n_rows + page_rows - 1) / page_rows;
    EXPECT(c, kv_fixture_count(&c->read, MAX_PAGES, "quest.pages") == n_pages, KV_UNIT_MAP, "quest.pages", "pages do not cover the frontier");
    for (int32_t i = 0; i < n_pages; i++) check_page(c, &t, i, page_rows);
    int32_t n_selected = read_ids(c, pages, MAX_PAGES, n_pages, "quest", "selected_pages"), n_support = read_ids(c, support, MAX_ROWS, t.n_rows, "quest", "support");
    EXPECT(c, n_selected * p[0] <= p[1], KV_BUDGET_EXCEEDED, "quest.selected_pages", "more pages than the budget holds");
    EXPECT(c, n_selected && pages[n_selected - 1] == n_pages - 1, KV_TAIL_PAGE_MISSING, "quest.selected_pages", "the mutable tail page takes one slot");
    EXPECT(c, kv_fixture_count(&c->read, MAX_PAGES, "quest.bounds") == n_pages - 1, KV_CANDIDATE_SCORE_MISSING, "quest.bounds", "every page but the tail has one bound");
    if (!run(c, "quest", &t, names, p, 2, &result)) return;
    for (int32_t i = 0; i < n_pages - 1; i++) check_bound(c, &t, &result, i, page_rows);
    for (int32_t i = 0; i < n_selected; i++)
        if (!result.chosen[pages[i]]) fail(c, KV_SELECTION_MISMATCH, "quest.selected_pages", "a page was taken that the selector did not choose");
    if (!same_support(&result, support, n_support)) fail(c, KV_SUPPORT_MISMATCH, "quest.support", "the support is not the selected pages' rows");
    kv_lab_result_free(&result);
}

/* ---------------------------------------------------------------- InfiniGen */

/* Orthogonal, and diagonal on the samples: what SVD of the sampled queries gives. */
static void check_basis(struct check *c, const struct tensors *t, const float *a)
{
    int32_t d = t->d;
    for (int32_t x = 0; x < d; x++)
        for (int32_t y = 0; y < d; y++) {
            double dot = 0, gram = 0;
            for (int32_t i = 0; i < d; i++) dot += (double)a[i * d + x] * (double)a[i * d + y];
            for (int32_t n = 0; n < t->n_prefill; n++) {
                double p = 0, q = 0;
                for (int32_t i = 0; i < d; i++) p += (double)t->prefill[n * d + i] * (double)a[i * d + x], q += (double)t->prefill[n * d + i] * (double)a[i * d + y];
                gram += p * q;
            }
            EXPECT(c, fabs(dot - (x == y)) < 1e-4, KV_BASIS_NOT_ORTHOGONAL, "infinigen.basis", "the skewing would change full scores");
            EXPECT(c, x == y || fabs(gram) < 1e-3, KV_BASIS_NOT_SKEWED, "infinigen.basis", "it is not the sampled queries' singular basis");
        }
}

static void check_columns(struct check *c, const struct tensors *t, const float *a, const int32_t *columns, int32_t n)
{
    double evidence[MAX_D] = {0};
    int32_t d = t->d;
    for (int32_t row = 0; row < t->n_prefill + t->n_rows; row++) {
        const float *x = row < t->n_prefill ? t->prefill + row * d : t->k + (row - t->n_prefill) * d;
        for (int32_t j = 0; j < d; j++) {
            double turned = 0;
            for (int32_t i = 0; i < d; i++) turned += (double)x[i] * (double)a[i * d + j];
            evidence[j] += fabs(turned);
        }
    }
    double least = INFINITY;
    for (int32_t i = 0; i < n; i++) least = fmin(least, evidence[columns[i]]);
    for (int32_t j = 0; j < d; j++) {
        int32_t i = 0;
        while (i < n && columns[i] != j) i++;
        EXPECT(c, i < n || evidence[j] <= least, KV_SELECTOR_CHANNELS, "infinigen.columns", "a column of more evidence was left out");
    }
}

static void check_infinigen_result(struct check *c, const struct kv_lab_result *r, const int32_t *selected, int32_t n_selected, int32_t cap)
{
    struct kv_fixture_reader *f = &c->read;
    int64_t counted = kv_fixture_integer(f, "infinigen.uncapped_count");
    EXPECT(c, counted == (int64_t)r->ledger.candidates, KV_SELECTOR_SCORE, "infinigen.uncapped_count", "it is not the rows within alpha of the best");
    EXPECT(c, kv_fixture_integer(f, "infinigen.capped_count") == (counted < cap ? counted : cap), KV_LEDGER_MISMATCH, "infinigen.capped_count", "the receipt hides the cut");
    EXPECT(c, same_support(r, selected, n_selected), KV_SUPPORT_MISMATCH, "infinigen.support", "the support is not the selector's");
}

static void check_infinigen(struct check *c)
{
    static const char *const names[] = {"partial_ratio", "alpha", "cap_rows"};
    struct kv_fixture_reader *f = &c->read;
    struct tensors t;
    struct kv_lab_result result;
    float basis[MAX_D * MAX_D];
    int32_t columns[MAX_D], selected[MAX_ROWS];
    read_tensors(c, &t, "infinigen");
    check_binding(c, "infinigen");
    t.n_prefill = read_rows(c, t.prefill, MAX_QUERIES, t.d, "infinigen", "prefill_queries");
    EXPECT(c, read_rows(c, basis, MAX_D, t.d, "infinigen", "basis") == t.d, KV_SOURCE_SHAPE_MISMATCH, "infinigen.basis", "it is not square");
    EXPECT(c, kv_fixture_integer(f, "infinigen.partial_generation") == kv_fixture_integer(f, "binding.selector_generation"), KV_STALE_SELECTOR_GENERATION, "infinigen",
           "the partial keys are of another generation");
    EXPECT(c, kv_fixture_integer(f, "infinigen.pool_generation") == kv_fixture_integer(f, "binding.pool_generation"), KV_STALE_REPLICA_GENERATION, "infinigen",
           "the host pool moved on");
    EXPECT(c, kv_fixture_integer(f, "infinigen.rehearsed_layer") + 1 == kv_fixture_integer(f, "infinigen.target_layer"), KV_LAYER_MISMATCH, "infinigen",
           "the rehearsal comes from the layer before");
    EXPECT(c, kv_fixture_integer(f, "infinigen.target_layer") == kv_fixture_integer(f, "binding.layer"), KV_LAYER_MISMATCH, "infinigen", "another layer's rows");
    EXPECT(c, kv_fixture_bool(f, "infinigen.prefetch_complete"), KV_NOT_VISIBLE, "infinigen", "rows were used before their prefetch completed");
    check_basis(c, &t, basis);
    int32_t n = read_ids(c, columns, MAX_D, t.d, "infinigen", "columns"), n_selected = read_ids(c, selected, MAX_ROWS, t.n_rows, "infinigen", "support");
    int32_t n_query = kv_fixture_count(f, MAX_D, "infinigen.query_columns");
    for (int32_t i = 0; i < n; i++)
        EXPECT(c, n_query == n && kv_fixture_integer(f, "infinigen.query_columns.%d", i) == columns[i], KV_COLUMNS_NOT_SHARED, "infinigen.query_columns",
               "query and keys use different columns");
    double p[3];
    for (int i = 0; i < 3; i++) p[i] = kv_fixture_number(f, "infinigen.%s", names[i]);
    EXPECT(c, n == (int32_t)(p[0] * t.d), KV_SELECTOR_CHANNELS, "infinigen.columns", "there are not ρ d columns");
    check_columns(c, &t, basis, columns, n);
    if (!run(c, "infinigen", &t, names, p, 3, &result)) return;
    check_infinigen_result(c, &result, selected, n_selected, (int32_t)p[2]);
    kv_lab_result_free(&result);
}

enum kv_status kv_fixture_selectors(const struct kv_fixture *f, struct kv_error *err)
{
    struct check c = {{f, err, KV_OK}, err, KV_OK};
    struct kv_fixture_reader *r = &c.read;
    int64_t q = kv_fixture_integer(r, "binding.q_heads"), kv = kv_fixture_integer(r, "binding.kv_heads");
    if (q < 1 || kv < 1 || q % kv || kv_fixture_integer(r, "binding.q_head") / (q / kv) != kv_fixture_integer(r, "binding.kv_head"))
        fail(&c, KV_KV_HEAD_MISMATCH, "binding.kv_head", "it does not own the query head");
    if (c.status == KV_OK && r->status == KV_OK) check_sparq(&c);
    if (c.status == KV_OK && r->status == KV_OK) check_quest(&c);
    if (c.status == KV_OK && r->status == KV_OK) check_infinigen(&c);
    return c.status != KV_OK ? c.status : r->status;
}
