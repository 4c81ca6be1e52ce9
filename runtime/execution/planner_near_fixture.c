/* planner_near_fixture.c — the near-data fixture: traffic, partial states of one query over disjoint supports, the papers' placements, and the
 * choice between them (source 0x04R–Z). States are recomputed here in double precision from the rows the fixture gives. */
#include "runtime/evaluate/fixture.h"
#include "runtime/execution/planner.h"
#include "runtime/identity/receipt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 32, MAX_D = 8, MAX_PARTS = 4, MAX_CANDIDATES = 8 };

#define REFUSE(reason, where, ...) return kv_fail(r->err, reason, where, __VA_ARGS__)

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-6 * (1 + fabs(b));
}

/* ---------------------------------------------------------------- traffic */

static const struct {
    const struct kv_plan_model *model;
    const char *at, *term;
    enum kv_status reason;
} figures[] = {
    {&kv_plan_near_data, "near", "full_kv_bytes", KV_FULL_KV_BYTES_MISMATCH},
    {&kv_plan_near_data, "near", "append_bytes", KV_APPEND_BYTES_MISMATCH},
    {&kv_plan_near_data, "near", "move_bytes", KV_MOVE_BYTES_MISMATCH},
    {&kv_plan_near_data, "near", "query_bytes", KV_QUERY_BYTES_MISMATCH},
    {&kv_plan_near_data, "near", "output_bytes", KV_OUTPUT_BYTES_MISMATCH},
    {&kv_plan_near_data, "near", "near_bytes", KV_NEAR_BYTES_MISMATCH},
    {&kv_plan_near_data, "near", "near_transfer_ms", KV_NEAR_TIME_MISMATCH},
    {&kv_plan_headwise, "headwise", "group_bytes", KV_GROUP_BYTES_MISMATCH},
    {&kv_plan_headwise, "headwise", "groups", KV_GROUP_COUNT_MISMATCH},
    {&kv_plan_headwise, "headwise", "staging_bytes", KV_GROUP_STAGING_MISMATCH},
    {&kv_plan_headwise, "headwise", "layer_bytes", KV_HISTORY_BYTES_REDUCED},
    {&kv_plan_partial_state, "state", "state_bytes_one", KV_STATE_BYTES_MISMATCH},
    {&kv_plan_partial_state, "state", "state_bytes_return", KV_PRODUCER_OMITTED},
    {&kv_plan_neo, "neo", "stage_0_ms", KV_STAGE_TIME_MISMATCH},
    {&kv_plan_neo, "neo", "hidden_0", KV_STAGE_NOT_HIDDEN},
    {&kv_plan_neo, "neo", "total_ms", KV_TOTAL_TIME_MISMATCH},
};

static enum kv_status check_figures(struct kv_fixture_reader *r)
{
    static _Thread_local struct kv_plan_inputs in;
    static _Thread_local struct kv_plan_report report;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (i == 0 || figures[i].model != figures[i - 1].model) {
            kv_plan_example(figures[i].model, &in);
            for (int32_t k = 0; k < figures[i].model->n_specs; k++) {
                const char *name = figures[i].model->spec[k].name;
                double value = kv_fixture_number(r, "%s.%s", figures[i].at, name);
                if (r->status != KV_OK) return r->status;
                enum kv_status s = kv_plan_set(&in, name, &value, 1, r->err);
                if (s != KV_OK) return s;
            }
            enum kv_status s = kv_plan_run(&in, &report, r->err);
            if (s != KV_OK) return s;
        }
        double published = kv_fixture_number(r, "published.%s", figures[i].term), planned = kv_plan_term_find(&report, figures[i].term)->value;
        if (r->status != KV_OK) return r->status;
        if (!close_to(published, planned)) REFUSE(figures[i].reason, figures[i].term, "%s is published as %.9g and planned as %.9g", figures[i].term, published, planned);
    }
    const char *type = kv_fixture_text(r, "near.dtype");
    double bytes = kv_fixture_number(r, "near.kv_bytes");
    if (r->status != KV_OK) return r->status;
    double expected = !strcmp(type, "bf16") || !strcmp(type, "f16") ? 2 : !strcmp(type, "f32") ? 4 : 0;
    if (bytes != expected) REFUSE(KV_DTYPE_MISMATCH, "near.dtype", "'%s' is not stored in %g bytes", type, bytes);
    return KV_OK;
}

/* ---------------------------------------------------------------- partial states */

struct query {
    char tenant[64], request[64], mapping[64], mask[64], schema[64], state[64];
    int64_t request_generation, checkpoint, layer, q_head, kv_head, position, producer;
    double scale, deadline_ms;
    int32_t n_rows, d;
    double q[MAX_D], k[MAX_ROWS][MAX_D], v[MAX_ROWS][MAX_D];
};

struct state {
    double m, l, u[MAX_D];
};

static void read_name(char out[64], const char *text)
{
    snprintf(out, 64, "%s", text);
}

static void read_query(struct kv_fixture_reader *r, struct query *q)
{
    read_name(q->tenant, kv_fixture_text(r, "query.tenant"));
    read_name(q->request, kv_fixture_text(r, "query.request_id"));
    read_name(q->mapping, kv_fixture_text(r, "query.mapping_id"));
    read_name(q->mask, kv_fixture_text(r, "query.mask_id"));
    read_name(q->schema, kv_fixture_text(r, "query.position_schema_id"));
    read_name(q->state, kv_fixture_text(r, "query.state_schema"));
    q->request_generation = kv_fixture_integer(r, "query.request_generation");
    q->checkpoint = kv_fixture_integer(r, "query.checkpoint_generation");
    q->layer = kv_fixture_integer(r, "query.layer");
    q->q_head = kv_fixture_integer(r, "query.query_head");
    q->kv_head = kv_fixture_integer(r, "query.kv_head");
    q->position = kv_fixture_integer(r, "query.query_position");
    q->producer = kv_fixture_integer(r, "query.producer_generation");
    q->scale = kv_fixture_number(r, "query.score_scale");
    q->deadline_ms = kv_fixture_number(r, "query.deadline_ms");
    q->d = kv_fixture_count(r, MAX_D, "rows.q");
    q->n_rows = kv_fixture_count(r, MAX_ROWS, "rows.k");
    for (int32_t c = 0; c < q->d; c++) q->q[c] = kv_fixture_number(r, "rows.q.%d", (int)c);
    for (int32_t i = 0; i < q->n_rows; i++)
        for (int32_t c = 0; c < q->d; c++) {
            q->k[i][c] = kv_fixture_number(r, "rows.k.%d.%d", (int)i, (int)c);
            q->v[i][c] = kv_fixture_number(r, "rows.v.%d.%d", (int)i, (int)c);
        }
}

static struct state attend(const struct query *q, const int32_t *rows, int32_t n)
{
    struct state s = {.m = -INFINITY};
    double score[MAX_ROWS];
    for (int32_t i = 0; i < n; i++) {
        score[i] = 0;
        for (int32_t c = 0; c < q->d; c++) score[i] += q->q[c] * q->k[rows[i]][c];
        score[i] *= q->scale;
        if (score[i] > s.m) s.m = score[i];
    }
    for (int32_t i = 0; i < n; i++) {
        double w = exp(score[i] - s.m);
        s.l += w;
        for (int32_t c = 0; c < q->d; c++) s.u[c] += w * q->v[rows[i]][c];
    }
    return s;
}

/* Text fields that must equal the query's, each with its reason; then the integers. */
static enum kv_status check_identity(struct kv_fixture_reader *r, const struct query *q, int p)
{
    const struct { const char *field, *want; enum kv_status reason; } texts[] = {
        {"tenant", q->tenant, KV_TENANT_MISMATCH},           {"request_id", q->request, KV_REQUEST_MISMATCH}, {"mapping_id", q->mapping, KV_MAPPING_MISMATCH},
        {"mask_id", q->mask, KV_MASK_MISMATCH},              {"position_schema_id", q->schema, KV_POSITION_SCHEMA_MISMATCH}, {"state_schema", q->state, KV_STATE_SCHEMA}};
    const struct { const char *field; int64_t want; enum kv_status reason; } numbers[] = {
        {"request_generation", q->request_generation, KV_STALE_REQUEST_GENERATION}, {"checkpoint_generation", q->checkpoint, KV_CHECKPOINT_MISMATCH},
        {"layer", q->layer, KV_LAYER_MISMATCH},                                     {"query_head", q->q_head, KV_QUERY_HEAD_MISMATCH},
        {"kv_head", q->kv_head, KV_KV_HEAD_MISMATCH},                               {"query_position", q->position, KV_QUERY_POSITION_MISMATCH},
        {"producer_generation", q->producer, KV_STALE_PRODUCER_GENERATION}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *have = kv_fixture_text(r, "partials.%d.%s", p, texts[i].field);
        if (r->status != KV_OK) return r->status;
        if (strcmp(have, texts[i].want)) REFUSE(texts[i].reason, texts[i].field, "partial %d has %s '%s', the query '%s'", p, texts[i].field, have, texts[i].want);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t have = kv_fixture_integer(r, "partials.%d.%s", p, numbers[i].field);
        if (r->status != KV_OK) return r->status;
        if (have != numbers[i].want) REFUSE(numbers[i].reason, numbers[i].field, "partial %d has %s %lld, the query %lld", p, numbers[i].field, (long long)have, (long long)numbers[i].want);
    }
    double scale = kv_fixture_number(r, "partials.%d.score_scale", p), finished = kv_fixture_number(r, "partials.%d.finish_ms", p);
    bool after = kv_fixture_bool(r, "partials.%d.after_fallback", p);
    int64_t event = kv_fixture_integer(r, "partials.%d.completion_event", p);
    if (r->status != KV_OK) return r->status;
    if (scale != q->scale) REFUSE(KV_SCORE_SCALE_MISMATCH, "score_scale", "partial %d was scored at %g", p, scale);
    if (after) REFUSE(KV_FALLBACK_PUBLISHED, "after_fallback", "partial %d came after its fallback", p);
    if (event <= 0) REFUSE(KV_NOT_VISIBLE, "completion_event", "partial %d has no completion event", p);
    if (finished > q->deadline_ms) REFUSE(KV_LATE_RECEIPT, "finish_ms", "partial %d finished at %g ms, the deadline is %g ms", p, finished, q->deadline_ms);
    return KV_OK;
}

static enum kv_status check_state(struct kv_fixture_reader *r, const struct query *q, int p, uint8_t covered[MAX_ROWS], struct state *out)
{
    int32_t rows[MAX_ROWS], n = kv_fixture_count(r, MAX_ROWS, "partials.%d.support", p);
    for (int32_t i = 0; i < n; i++) rows[i] = (int32_t)kv_fixture_integer(r, "partials.%d.support.%d", p, (int)i);
    const char *digest = kv_fixture_text(r, "partials.%d.support_digest", p);
    const struct kv_fixture_field *l = kv_fixture_find(r->fixture, "partials.%d.l", p);
    if (r->status != KV_OK) return r->status;
    for (int32_t i = 0; i < n; i++) {
        if (rows[i] < 0 || rows[i] >= q->n_rows) REFUSE(KV_SUPPORT_OUT_OF_RANGE, "support", "partial %d covers position %d of %d", p, (int)rows[i], (int)q->n_rows);
        if (covered[rows[i]]++) REFUSE(KV_SUPPORT_OVERLAP, "support", "position %d is covered twice", (int)rows[i]);
    }
    char hex[65];
    struct kv_support_digest d = kv_support_digest(rows, n);
    kv_hex(d.b, 32, hex);
    if (strcmp(hex, digest)) REFUSE(KV_SUPPORT_DIGEST_MISMATCH, "support_digest", "partial %d names another support", p);
    if (!l || l->kind != KV_FIXTURE_NUMBER || !(l->number > 0)) REFUSE(KV_MASS_MISSING, "l", "partial %d has no mass", p);
    struct state want = attend(q, rows, n);
    out->m = kv_fixture_number(r, "partials.%d.m", p);
    out->l = l->number;
    for (int32_t c = 0; c < q->d; c++) out->u[c] = kv_fixture_number(r, "partials.%d.u.%d", p, (int)c);
    if (r->status != KV_OK) return r->status;
    if (!close_to(out->m, want.m)) REFUSE(KV_STATE_MAXIMUM_MISMATCH, "m", "partial %d has m %g, its rows give %g", p, out->m, want.m);
    if (!close_to(out->l, want.l)) REFUSE(KV_STATE_MASS_MISMATCH, "l", "partial %d has l %g, its rows give %g", p, out->l, want.l);
    for (int32_t c = 0; c < q->d; c++)
        if (!close_to(out->u[c], want.u[c])) REFUSE(KV_STATE_SUM_MISMATCH, "u", "partial %d has u[%d] %g, its rows give %g", p, (int)c, out->u[c], want.u[c]);
    return KV_OK;
}

static enum kv_status check_partials(struct kv_fixture_reader *r)
{
    struct query q = {0};
    uint8_t covered[MAX_ROWS] = {0};
    struct state merged = {.m = -INFINITY}, part = {0};
    read_query(r, &q);
    int32_t n = kv_fixture_count(r, MAX_PARTS, "partials"), all[MAX_ROWS];
    int64_t producers = kv_fixture_integer(r, "state.producers");
    if (r->status != KV_OK) return r->status;
    if (n != producers) REFUSE(KV_RECEIPT_COUNT_MISMATCH, "partials", "%d partials of %lld producers", (int)n, (long long)producers);
    for (int p = 0; p < n; p++) {
        enum kv_status s = check_identity(r, &q, p);
        if (s == KV_OK) s = check_state(r, &q, p, covered, &part);
        if (s != KV_OK) return s;
        double m = merged.m > part.m ? merged.m : part.m, a = isinf(merged.m) ? 0 : exp(merged.m - m), b = exp(part.m - m);
        merged.l = a * merged.l + b * part.l;
        for (int32_t c = 0; c < q.d; c++) merged.u[c] = a * merged.u[c] + b * part.u[c];
        merged.m = m;
    }
    for (int32_t i = 0; i < q.n_rows; i++) {
        all[i] = i;
        if (!covered[i]) REFUSE(KV_SUPPORT_GAP, "partials", "position %d is covered by no partial", (int)i);
    }
    struct state dense = attend(&q, all, q.n_rows);
    for (int32_t c = 0; c < q.d; c++) {
        double output = kv_fixture_number(r, "merged.output.%d", (int)c);
        if (r->status != KV_OK) return r->status;
        if (!close_to(output, merged.u[c] / merged.l) || !close_to(output, dense.u[c] / dense.l))
            REFUSE(KV_MERGE_MISMATCH, "merged.output", "channel %d is %g; merged %g, dense %g", (int)c, output, merged.u[c] / merged.l, dense.u[c] / dense.l);
    }
    return KV_OK;
}

/* ---------------------------------------------------------------- what the papers place where, and the choice */

static enum kv_status check_papers(struct kv_fixture_reader *r)
{
    const char *head_site = kv_fixture_text(r, "headwise.attention_site");
    bool split = kv_fixture_bool(r, "neo.splits_one_request"), exact = kv_fixture_bool(r, "instinfer.labelled_exact");
    const char *mode = kv_fixture_text(r, "instinfer.mode");
    if (r->status != KV_OK) return r->status;
    if (strcmp(head_site, "device")) REFUSE(KV_COMPUTE_SITE_MISMATCH, "headwise.attention_site", "head-wise staging attends on the device, not on '%s'", head_site);
    if (split) REFUSE(KV_REQUEST_SPLIT, "neo.splits_one_request", "NEO places whole requests");
    if (exact && strcmp(mode, "dense")) REFUSE(KV_APPROXIMATE_CALLED_EXACT, "instinfer.labelled_exact", "'%s' beside the data selects rows; placement does not make it exact", mode);
    return KV_OK;
}

static enum kv_status check_choice(struct kv_fixture_reader *r)
{
    int32_t n = kv_fixture_count(r, MAX_CANDIDATES, "choice.candidates"), chosen = -1;
    const char *attempted = kv_fixture_text(r, "choice.attempted"), *published = kv_fixture_text(r, "choice.published"), *fallback = kv_fixture_text(r, "choice.fallback");
    double deadline = kv_fixture_number(r, "choice.deadline_ms"), finish[MAX_CANDIDATES], cost[MAX_CANDIDATES];
    bool allowed = kv_fixture_bool(r, "choice.approximation_allowed"), offered[MAX_CANDIDATES], exact[MAX_CANDIDATES];
    int64_t reserved = kv_fixture_integer(r, "choice.manifest_generation"), current = kv_fixture_integer(r, "choice.current_manifest_generation");
    for (int32_t i = 0; i < n; i++) {
        finish[i] = kv_fixture_number(r, "choice.candidates.%d.predicted_finish_ms", (int)i);
        cost[i] = kv_fixture_number(r, "choice.candidates.%d.declared_cost", (int)i);
        offered[i] = kv_fixture_bool(r, "choice.candidates.%d.supported", (int)i);
        exact[i] = kv_fixture_bool(r, "choice.candidates.%d.exact", (int)i);
        if (!strcmp(kv_fixture_text(r, "choice.candidates.%d.name", (int)i), attempted)) chosen = i;
    }
    if (r->status != KV_OK) return r->status;
    if (reserved != current) REFUSE(KV_STALE_MANIFEST_GENERATION, "choice.manifest_generation", "planned under manifest %lld, current is %lld", (long long)reserved, (long long)current);
    if (!fallback[0]) REFUSE(KV_FALLBACK_UNDECLARED, "choice.fallback", "no fallback is declared");
    if (chosen < 0 || !offered[chosen] || finish[chosen] > deadline) REFUSE(KV_PLACEMENT_INFEASIBLE, "choice.attempted", "'%s' is not feasible within %g ms", attempted, deadline);
    if (!exact[chosen] && !allowed) REFUSE(KV_CONTRACT_FORBIDS, "choice.attempted", "'%s' is approximate and the request did not allow it", attempted);
    for (int32_t i = 0; i < n; i++)
        if (offered[i] && finish[i] <= deadline && (exact[i] || allowed) && cost[i] < cost[chosen]) REFUSE(KV_PLACEMENT_NOT_CHEAPEST, "choice.attempted", "candidate %d costs %g, the chosen %g", (int)i, cost[i], cost[chosen]);
    if (strcmp(attempted, published)) REFUSE(KV_PLACEMENT_UNRECEIPTED, "choice.published", "'%s' was attempted and '%s' published", attempted, published);
    return KV_OK;
}

enum kv_status kv_fixture_near_data(const struct kv_fixture *f, struct kv_error *err)
{
    struct kv_fixture_reader r = {.fixture = f, .err = err, .status = KV_OK};
    enum kv_status s = check_figures(&r);
    if (s == KV_OK) s = check_papers(&r);
    if (s == KV_OK) s = check_partials(&r);
    return s == KV_OK ? check_choice(&r) : s;
}
