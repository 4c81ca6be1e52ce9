/* fixture_error.c — validator of contract-7-error-fallback: sets, masses, errors, ledgers and the seven prepublication actions.
 *
 * Four supports over one query and its rows are measured by kv_shadow_unit and must be what the document says; gate cases are turned into
 * the finite state and decided by kv_fallback_source. Source 0x05A–C, 0x09G–K. */
#include "runtime/evaluate/fixture.h"
#include "runtime/evaluate/lab.h"
#include "runtime/selection/rank.h"
#include "runtime/service/fallback.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_D = 16, MAX_UNITS = 64, MAX_SUPPORTS = 8, MAX_CASES = 32 };

struct check {
    struct kv_fixture_reader read;
    struct kv_error *err;
    enum kv_status status;
    int32_t n_rows, d, top_k;
    float q[MAX_D], k[MAX_ROWS * MAX_D], v[MAX_ROWS * MAX_D];
    double map[MAX_D * MAX_D]; /* the declared downstream map */
    uint64_t resident;
    int64_t row_bytes, candidate_bytes, descriptor_bytes;
    struct kv_lab_rows stored;
};

struct support { /* one entry of supports, under its path */
    char at[32];
    int32_t n_units, n_candidates, n_selected;
    uint64_t unit[MAX_UNITS], persistent, rows, expanded;
    int32_t candidate[MAX_UNITS], selected[MAX_UNITS];
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

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * (1 + fabs(b)); }

/* ---------------------------------------------------------------- reading */

static int32_t read_matrix(struct check *c, float *out, const char *path, int32_t d)
{
    int32_t n = kv_fixture_count(&c->read, MAX_ROWS, "%s", path);
    for (int32_t i = 0; i < n; i++) {
        if (kv_fixture_count(&c->read, MAX_D, "%s.%d", path, i) != d) fail(c, KV_SOURCE_SHAPE_MISMATCH, path, "a row has another width than the query");
        for (int32_t j = 0; j < d; j++) out[i * d + j] = (float)kv_fixture_number(&c->read, "%s.%d.%d", path, i, j);
    }
    return n;
}

/* Positions, ascending and distinct, as a mask of at most 64 rows. */
static uint64_t read_rows(struct check *c, const char *path)
{
    uint64_t mask = 0;
    int32_t n = kv_fixture_count(&c->read, MAX_ROWS, "%s", path);
    for (int32_t i = 0, last = -1; i < n; i++) {
        int64_t p = kv_fixture_integer(&c->read, "%s.%d", path, i);
        if (p < 0 || p >= c->n_rows) fail(c, KV_CANDIDATE_OUT_OF_RANGE, path, "a position lies beyond the frontier");
        else if (p <= last) fail(c, KV_CANDIDATE_DUPLICATE, path, "positions are not ascending and distinct");
        else mask |= UINT64_C(1) << p, last = (int32_t)p;
    }
    return mask;
}

static int32_t read_units(struct check *c, int32_t *out, const char *path, int32_t n_units)
{
    int32_t n = kv_fixture_count(&c->read, MAX_UNITS, "%s", path);
    for (int32_t i = 0; i < n; i++) {
        out[i] = (int32_t)kv_fixture_integer(&c->read, "%s.%d", path, i);
        if (out[i] < 0 || out[i] >= n_units) fail(c, KV_CANDIDATE_OUT_OF_RANGE, path, "a unit id names no unit");
        if (i && out[i] <= out[i - 1]) fail(c, KV_CANDIDATE_DUPLICATE, path, "unit ids are not ascending and distinct");
    }
    return n;
}

static void read_dense(struct check *c)
{
    struct kv_fixture_reader *r = &c->read;
    c->d = kv_fixture_count(r, MAX_D, "dense.query");
    for (int32_t i = 0; i < c->d; i++) c->q[i] = (float)kv_fixture_number(r, "dense.query.%d", i);
    c->n_rows = read_matrix(c, c->k, "dense.keys", c->d);
    EXPECT(c, read_matrix(c, c->v, "dense.values", c->d) == c->n_rows && c->n_rows > 0, KV_SOURCE_SHAPE_MISMATCH, "dense.values", "keys and values have different rows");
    EXPECT(c, kv_fixture_integer(r, "dense.rows") == c->n_rows, KV_SOURCE_SHAPE_MISMATCH, "dense.rows", "the dense support is not the rows given");
    EXPECT(c, !strcmp(kv_fixture_text(r, "dense.representation"), "f16"), KV_REPRESENTATION_MISMATCH, "dense.representation", "rows are compared in the stored representation");
    EXPECT(c, near(kv_fixture_number(r, "dense.scale"), 1 / sqrt(c->d)), KV_SCORE_SCALE_MISMATCH, "dense.scale", "it is not 1 / √d");
    c->resident = read_rows(c, "dense.resident");
    c->top_k = (int32_t)kv_fixture_integer(r, "dense.top_k");
    EXPECT(c, c->top_k >= 1 && c->top_k <= c->n_rows, KV_BAD_ARGUMENT, "dense.top_k", "k is not a number of rows");
    EXPECT(c, !strcmp(kv_fixture_text(r, "dense.ties"), "lower position"), KV_RECALL_MISMATCH, "dense.ties", "the tie rule is not the one recall was taken with");
    c->row_bytes = kv_fixture_integer(r, "costs.row_bytes");
    c->candidate_bytes = kv_fixture_integer(r, "costs.candidate_bytes");
    c->descriptor_bytes = kv_fixture_integer(r, "costs.descriptor_bytes");
    EXPECT(c, c->row_bytes == (int64_t)(2 * kv_type_row_bytes(KV_F16, c->d)), KV_LEDGER_MISMATCH, "costs.row_bytes", "a row of K and V is 2 d b bytes");
    EXPECT(c, c->candidate_bytes > 0 && c->descriptor_bytes > 0, KV_LEDGER_MISMATCH, "costs", "candidates and descriptors cost bytes");
    EXPECT(c, kv_fixture_count(r, MAX_D, "downstream.matrix") == c->d, KV_SOURCE_SHAPE_MISMATCH, "downstream.matrix", "the declared map has another width");
    for (int32_t i = 0; i < c->d * c->d; i++) c->map[i] = kv_fixture_number(r, "downstream.matrix.%d.%d", i / c->d, i % c->d);
    c->status = c->status != KV_OK ? c->status : kv_lab_rows_create(KV_F16, c->d, 1, (float)(1 / sqrt(c->d)), c->n_rows, c->k, c->v, &c->stored);
}

static void check_binding(struct check *c, const char *at)
{
    static const struct {
        const char *field;
        enum kv_status reason;
    } bound[] = {{"request_generation", KV_STALE_REQUEST_GENERATION}, {"cache_generation", KV_STALE_CACHE_GENERATION}, {"index_generation", KV_STALE_INDEX_GENERATION}};
    struct kv_fixture_reader *r = &c->read;
    for (int i = 0; i < 3; i++)
        EXPECT(c, kv_fixture_integer(r, "%s.%s", at, bound[i].field) == kv_fixture_integer(r, "binding.%s", bound[i].field), bound[i].reason, bound[i].field, "the receipt is of another generation");
    EXPECT(c, !strcmp(kv_fixture_text(r, "%s.query_digest", at), kv_fixture_text(r, "binding.query_digest")), KV_QUERY_MISMATCH, at, "the receipt answers another query");
}

/* ---------------------------------------------------------------- sets */

static void read_sets(struct check *c, struct support *s)
{
    char path[64];
    uint64_t seen = 0, all = c->n_rows == 64 ? ~UINT64_C(0) : (UINT64_C(1) << c->n_rows) - 1;
    s->n_units = kv_fixture_count(&c->read, MAX_UNITS, "%s.units", s->at);
    for (int32_t u = 0; u < s->n_units; u++) {
        snprintf(path, sizeof path, "%s.units.%d", s->at, u);
        s->unit[u] = read_rows(c, path);
        EXPECT(c, s->unit[u] && !(s->unit[u] & seen), KV_UNIT_MAP, path, "units are empty or overlap");
        seen |= s->unit[u];
    }
    EXPECT(c, seen == all, KV_UNIT_MAP, s->at, "units do not cover the dense support");
    snprintf(path, sizeof path, "%s.candidates", s->at);
    s->n_candidates = read_units(c, s->candidate, path, s->n_units);
    snprintf(path, sizeof path, "%s.selected", s->at);
    s->n_selected = read_units(c, s->selected, path, s->n_units);
    snprintf(path, sizeof path, "%s.persistent", s->at);
    s->persistent = read_rows(c, path);
    snprintf(path, sizeof path, "%s.support", s->at);
    s->rows = read_rows(c, path);
    for (int32_t i = 0; i < s->n_selected; i++) {
        int32_t j = 0;
        while (j < s->n_candidates && s->candidate[j] != s->selected[i]) j++;
        EXPECT(c, j < s->n_candidates, KV_SELECTION_MISMATCH, s->at, "a selected unit was no candidate");
        s->expanded |= s->unit[s->selected[i]];
    }
    EXPECT(c, s->rows == (s->expanded | s->persistent), KV_SUPPORT_MISMATCH, s->at, "the support is not dedup(E(U) ∪ P)");
}

static void check_ledger(struct check *c, const struct support *s)
{
    const struct {
        const char *field;
        int64_t bytes;
    } ledger[] = {{"candidate_bytes", s->n_candidates * c->candidate_bytes}, {"descriptor_bytes", s->n_selected * c->descriptor_bytes},
                  {"support_bytes", __builtin_popcountll(s->rows) * c->row_bytes}, {"transfer_bytes", __builtin_popcountll(s->rows & ~c->resident) * c->row_bytes}};
    for (int i = 0; i < 4; i++)
        EXPECT(c, kv_fixture_integer(&c->read, "%s.%s", s->at, ledger[i].field) == ledger[i].bytes, KV_LEDGER_MISMATCH, ledger[i].field, "it is not what the sets cost");
    EXPECT(c, near(kv_fixture_number(&c->read, "%s.unit_expansion", s->at), (double)__builtin_popcountll(s->expanded) / s->n_selected), KV_LEDGER_MISMATCH, "unit_expansion", "it is not |E(U)| / |U|");
}

/* Candidate recall is defined for row ids alone. */
static void check_candidate_recall(struct check *c, const struct support *s)
{
    const struct kv_fixture_field *f = kv_fixture_find(c->read.fixture, "%s.candidate_recall", s->at);
    bool rows = !strcmp(kv_fixture_text(&c->read, "%s.namespace", s->at), "row");
    EXPECT(c, f && (f->kind == KV_FIXTURE_NUMBER) == rows, KV_RECALL_NAMESPACE, s->at, "unit ids were intersected with row ids");
    for (int32_t u = 0; rows && u < s->n_units; u++) EXPECT(c, s->unit[u] == UINT64_C(1) << u, KV_RECALL_NAMESPACE, s->at, "units called rows are not the rows");
    if (!rows) return;
    uint64_t candidates = 0;
    for (int32_t i = 0; i < s->n_candidates; i++) candidates |= s->unit[s->candidate[i]];
    struct kv_shadow_unit unit = {.rows = &c->stored.rows, .q = c->q, .support = &candidates, .n_blocks = 1, .recall_k = c->top_k};
    struct kv_sample sample = {0};
    struct kv_shadow_head head;
    double scratch[2 * MAX_ROWS + 4 * MAX_D];
    enum kv_status status = kv_shadow_unit(&unit, scratch, sizeof scratch / sizeof *scratch, &sample, &head, NULL, NULL);
    EXPECT(c, status == KV_OK && near(f->number, head.recall), KV_RECALL_MISMATCH, s->at, "candidate recall is not |C ∩ T_k| / |T_k|");
}

/* ---------------------------------------------------------------- error */

static void check_downstream(struct check *c, const struct support *s, const double *dense, const double *retained, double error)
{
    double frobenius = 0, moved = 0;
    for (int32_t i = 0; i < c->d; i++) {
        double sum = 0;
        for (int32_t j = 0; j < c->d; j++) {
            sum += c->map[i * c->d + j] * (retained[j] - dense[j]);
            frobenius += c->map[i * c->d + j] * c->map[i * c->d + j];
        }
        moved += sum * sum;
    }
    EXPECT(c, near(kv_fixture_number(&c->read, "%s.downstream_error", s->at), sqrt(moved)), KV_ERROR_MISMATCH, s->at, "the mapped error is not ‖A e‖");
    EXPECT(c, near(kv_fixture_number(&c->read, "%s.downstream_bound", s->at), sqrt(frobenius) * error), KV_BOUND_VIOLATED, s->at, "the downstream bound is not ‖A‖_F ‖e‖");
}

static void check_error(struct check *c, const struct support *s)
{
    struct kv_shadow_unit unit = {.rows = &c->stored.rows, .q = c->q, .support = &s->rows, .n_blocks = 1, .recall_k = c->top_k};
    struct kv_sample sample = {0};
    struct kv_shadow_head h;
    double scratch[2 * MAX_ROWS + 4 * MAX_D], dense[MAX_D], retained[MAX_D];
    struct kv_fixture_reader *r = &c->read;
    EXPECT(c, kv_shadow_unit(&unit, scratch, sizeof scratch / sizeof *scratch, &sample, &h, dense, retained) == KV_OK, KV_INTERNAL, s->at, "the reference failed");
    double rho = kv_fixture_number(r, "%s.retained_mass", s->at), delta = kv_fixture_number(r, "%s.omitted_mass", s->at);
    EXPECT(c, near(rho, h.retained_mass) && near(delta, h.omitted_mass), KV_MASS_MISMATCH, s->at, "masses are not those of the dense softmax");
    EXPECT(c, near(kv_fixture_number(r, "%s.support_recall", s->at), h.recall), KV_RECALL_MISMATCH, s->at, "support recall is not |R ∩ T_k| / |T_k|");
    EXPECT(c, kv_fixture_count(r, MAX_D, "%s.output", s->at) == c->d, KV_SOURCE_SHAPE_MISMATCH, s->at, "the output has another width");
    for (int32_t i = 0; i < c->d; i++) EXPECT(c, near(kv_fixture_number(r, "%s.output.%d", s->at, i), retained[i]), KV_ERROR_MISMATCH, s->at, "the output is not attention over the support");
    EXPECT(c, near(kv_fixture_number(r, "%s.dense_norm", s->at), h.output_norm), KV_ERROR_MISMATCH, s->at, "‖o‖ is not the dense norm");
    EXPECT(c, near(kv_fixture_number(r, "%s.output_error", s->at), h.output_error) && near(kv_fixture_number(r, "%s.output_error_relative", s->at), h.output_error_relative),
           KV_ERROR_MISMATCH, s->at, "the error is not ‖o_R − o‖");
    EXPECT(c, near(kv_fixture_number(r, "%s.bound", s->at), h.bound) && h.bound_holds && h.identity_residual < 1e-9, KV_BOUND_VIOLATED, s->at, "the bound is not 2 δ V_max");
    bool whole = !strcmp(kv_fixture_text(r, "%s.exactness", s->at), "exact");
    EXPECT(c, whole == (h.omitted_mass == 0), KV_CONTRACT_FORBIDS, s->at, "only the whole dense support is exact");
    check_downstream(c, s, dense, retained, h.output_error);
}

static void check_support(struct check *c, int32_t i)
{
    struct support s = {0};
    snprintf(s.at, sizeof s.at, "supports.%d", i);
    check_binding(c, s.at);
    if (c->status == KV_OK) read_sets(c, &s);
    if (c->status == KV_OK) check_ledger(c, &s);
    if (c->status == KV_OK) check_candidate_recall(c, &s);
    if (c->status == KV_OK) check_error(c, &s);
}

/* ---------------------------------------------------------------- fallback */

static void check_case(struct check *c, int32_t i, double max_mass, double min_confidence, bool seen[KV_FALLBACK_ACTIONS])
{
    struct kv_fixture_reader *r = &c->read;
    char at[32];
    snprintf(at, sizeof at, "cases.%d", i);
    const char *phase = kv_fixture_text(r, "%s.phase", at), *action = kv_fixture_text(r, "%s.action", at), *estimator = kv_fixture_text(r, "%s.estimator", at);
    double mass = kv_fixture_number(r, "%s.estimated_omitted_mass", at), confidence = kv_fixture_number(r, "%s.confidence", at), slack = kv_fixture_number(r, "%s.deadline_slack_ms", at);
    EXPECT(c, !strcmp(phase, "initial") || !strcmp(phase, "post_widen"), KV_BAD_ARGUMENT, at, "the phase is neither initial nor post_widen");
    EXPECT(c, *estimator && strcmp(estimator, "dense_reference"), KV_ESTIMATOR_UNDECLARED, at, "an online gate consumes a declared estimator, never the reference");
    EXPECT(c, mass >= 0 && mass <= 1 && confidence >= 0 && confidence <= 1, KV_ESTIMATE_MISMATCH, at, "an estimate or a confidence lies outside 0 to 1");
    struct kv_fallback_state s = {.force_exact = kv_fixture_bool(r, "%s.force_exact", at), .uncertain = mass > max_mass || confidence < min_confidence,
                                  .post_widen = !strcmp(phase, "post_widen"), .can_widen = kv_fixture_bool(r, "%s.can_widen", at),
                                  .fetch_fits = kv_fixture_number(r, "%s.exact_fetch_ms", at) <= slack, .recompute_fits = kv_fixture_number(r, "%s.exact_recompute_ms", at) <= slack,
                                  .retryable = kv_fixture_bool(r, "%s.retryable", at) && kv_fixture_number(r, "%s.retry_window_ms", at) <= slack,
                                  .approximation_allowed = kv_fixture_bool(r, "%s.approximation_allowed", at)};
    int32_t a = 0;
    while (a < KV_FALLBACK_ACTIONS && strcmp(action, kv_fallback_action_name((enum kv_fallback_action)a))) a++;
    EXPECT(c, a < KV_FALLBACK_ACTIONS, KV_FALLBACK_UNDECLARED, at, "it is not one of the seven actions");
    EXPECT(c, kv_fallback_legal(&s, (enum kv_fallback_action)a), KV_ILLEGAL_FALLBACK, at, "the contract forbids this action here");
    EXPECT(c, kv_fallback_source(&s) == (enum kv_fallback_action)a, KV_FALLBACK_ORDER, at, "an earlier predicate holds");
    seen[a] = true;
}

static void check_cases(struct check *c)
{
    bool seen[KV_FALLBACK_ACTIONS] = {false};
    double mass = kv_fixture_number(&c->read, "gate.max_estimated_omitted_mass"), confidence = kv_fixture_number(&c->read, "gate.min_confidence");
    EXPECT(c, mass >= 0 && mass < 1 && confidence > 0 && confidence <= 1, KV_BAD_ARGUMENT, "gate", "a gate that lets everything or nothing pass is none");
    int32_t n = kv_fixture_count(&c->read, MAX_CASES, "cases");
    for (int32_t i = 0; i < n && c->status == KV_OK; i++) check_case(c, i, mass, confidence, seen);
    for (int32_t a = 0; a < KV_FALLBACK_ACTIONS; a++) EXPECT(c, seen[a], KV_FALLBACK_UNDECLARED, "cases", "an action of the seven is never taken");
}

enum kv_status kv_fixture_error(const struct kv_fixture *f, struct kv_error *err)
{
    struct check *c = calloc(1, sizeof *c);
    if (!c) return kv_fail(err, KV_OUT_OF_MEMORY, "", "no memory for the fixture");
    c->read = (struct kv_fixture_reader){f, err, KV_OK};
    c->err = err;
    int64_t q = kv_fixture_integer(&c->read, "binding.q_heads"), kv = kv_fixture_integer(&c->read, "binding.kv_heads");
    if (q < 1 || kv < 1 || q % kv || kv_fixture_integer(&c->read, "binding.q_head") / (q / kv) != kv_fixture_integer(&c->read, "binding.kv_head"))
        fail(c, KV_KV_HEAD_MISMATCH, "binding.kv_head", "it does not own the query head");
    kv_numerics_enter();
    if (c->status == KV_OK) read_dense(c);
    int32_t n = c->status == KV_OK ? kv_fixture_count(&c->read, MAX_SUPPORTS, "supports") : 0;
    for (int32_t i = 0; i < n && c->status == KV_OK && c->read.status == KV_OK; i++) check_support(c, i);
    if (c->status == KV_OK && c->read.status == KV_OK) check_cases(c);
    enum kv_status status = c->status != KV_OK ? c->status : c->read.status;
    kv_lab_rows_free(&c->stored);
    free(c);
    return status;
}
