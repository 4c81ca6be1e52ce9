/* manifest.c — a candidate's manifest: defaults, checks and the canonical bytes its digest is taken over. */
#include "controller/store/canonical.h"
#include "controller/release/release.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct kv_step default_steps[] = {
    {KV_STAGE_SHADOW, 0, 10, 0},
    {KV_STAGE_CANARY, 0.1, 10, 0},
    {KV_STAGE_RAMP, 0.5, 10, 0},
    {KV_STAGE_FULL, 1, 0, 0},
};

static enum kv_status bad_step(struct kv_error *err, int32_t i, const char *what)
{
    char where[32];
    snprintf(where, sizeof where, "steps[%d]", (int)i);
    kv_fail(err, KV_BAD_ARGUMENT, where, "%s", what);
    kv_hint(err, "steps go SHADOW (fraction 0), CANARY, RAMP, FULL (fraction 1); no stage is left out and fractions only grow");
    return KV_BAD_ARGUMENT;
}

static enum kv_status check_steps(const struct kv_manifest *m, struct kv_error *err)
{
    if (m->n_steps > KV_MAX_STEPS) return bad_step(err, m->n_steps, "there are more steps than the limit of 16");
    enum kv_stage at = KV_STAGE_OFF;
    double fraction = 0;
    for (int32_t i = 0; i < m->n_steps; i++) {
        const struct kv_step *s = &m->steps[i];
        bool again = s->stage == at && (at == KV_STAGE_CANARY || at == KV_STAGE_RAMP);
        if (s->stage != at + 1 && !again) return bad_step(err, i, "the stage does not follow the one before it");
        if (s->stage > KV_STAGE_FULL) return bad_step(err, i, "EXACT_BASELINE is no step");
        if (!(s->fraction >= 0 && s->fraction <= 1)) return bad_step(err, i, "the fraction must lie between 0 and 1");
        if (s->stage == KV_STAGE_SHADOW ? s->fraction != 0 : !(s->fraction > fraction)) return bad_step(err, i, "the fraction must be 0 in SHADOW and grow after it");
        if ((s->stage == KV_STAGE_FULL) != (s->fraction == 1)) return bad_step(err, i, "fraction 1 belongs to FULL and to no other stage");
        if (s->min_seconds < 0 || s->min_seconds > 30 * 86400) return bad_step(err, i, "min_seconds must lie between 0 and 2592000");
        at = s->stage;
        fraction = s->fraction;
    }
    if (at != KV_STAGE_FULL) return bad_step(err, m->n_steps, "the last step must be FULL");
    return KV_OK;
}

static enum kv_status check_params(const struct kv_manifest *m, struct kv_error *err)
{
    for (int32_t i = 0; i < m->pipeline->n_params; i++) {
        const struct kv_param_spec *p = &m->pipeline->params[i];
        double v = m->params.value[i];
        if (v >= p->min && v <= p->max && (!strcmp(p->type, "float") || v == floor(v))) continue;
        kv_fail(err, KV_BAD_ARGUMENT, p->name, "%s must lie between %g and %g", p->name, p->min, p->max);
        kv_hint(err, "the default is %g; kvasir pipelines shows every range", p->def);
        return KV_BAD_ARGUMENT;
    }
    return KV_OK;
}

enum kv_status kv_manifest_seal(struct kv_manifest *m, struct kv_error *err)
{
    if (!m->name[0]) return kv_fail(err, KV_BAD_ARGUMENT, "name", "a rollout needs a name");
    for (const char *p = m->name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) return kv_fail(err, KV_BAD_ARGUMENT, "name", "a rollout's name holds no control characters");
    if (!m->pipeline) return kv_fail(err, KV_UNKNOWN_PIPELINE, "pipeline", "a rollout needs a pipeline");
    if (!m->pipeline->built) {
        kv_fail(err, KV_NOT_BUILT, m->pipeline->name, "pipeline %s is registered and has no implementation yet", m->pipeline->name);
        kv_hint(err, "kvasir pipelines lists what is built");
        return KV_NOT_BUILT;
    }
    if (m->contract != m->pipeline->exactness) {
        kv_fail(err, KV_CONTRACT_FORBIDS, "contract", "pipeline %s is %s; the manifest says %s", m->pipeline->name,
                m->pipeline->exactness == KV_EXACT ? "exact" : "approximate", m->contract == KV_EXACT ? "exact" : "approximate");
        kv_hint(err, "the contract follows from the pipeline: leave it out, or name the same");
        return KV_CONTRACT_FORBIDS;
    }
    if (!(m->byte_cost >= 0 && m->byte_cost <= KV_BYTE_COST_MOST)) return kv_fail(err, KV_BAD_ARGUMENT, "byte_cost", "byte_cost must lie in 0 to %d", KV_BYTE_COST_MOST);
    if (m->byte_cost > 0 && !(m->index_share == -1 || (m->index_share >= 0 && m->index_share <= KV_INDEX_SHARE_MOST))) return kv_fail(err, KV_BAD_ARGUMENT, "index_share", "index_share must lie in 0 to %d", KV_INDEX_SHARE_MOST);
    if (m->n_steps == 0) {
        memcpy(m->steps, default_steps, sizeof default_steps);
        m->n_steps = sizeof default_steps / sizeof *default_steps;
    }
    enum kv_status s = check_steps(m, err);
    if (s == KV_OK) s = check_params(m, err);
    if (s == KV_OK) s = kv_gates_complete(m->contract, m->gates, &m->n_gates, err);
    if (s != KV_OK) return s;
    uint8_t bytes[16384];
    size_t n;
    s = kv_manifest_bytes(m, bytes, sizeof bytes, &n);
    if (s != KV_OK) return kv_fail(err, s, "manifest", "the manifest is longer than %zu bytes", sizeof bytes);
    kv_sha256(bytes, n, m->digest);
    return KV_OK;
}

enum kv_status kv_manifest_bytes(const struct kv_manifest *m, uint8_t *out, size_t cap, size_t *n)
{
    struct kv_canonical c = {out, cap, 0};
    const struct kv_pipeline *p = m->pipeline;
    bool costs = m->byte_cost > 0, share = costs && m->index_share >= 0, headers = costs || m->cohort.n_headers;
    kv_canonical_text(&c, share ? "kvasir-manifest-4" : costs ? "kvasir-manifest-3" : headers ? "kvasir-manifest-2" : "kvasir-manifest-1"); /* what has none of it keeps the bytes of before */
    kv_canonical_text(&c, m->name);
    const char *const fields[] = {p->name,  p->support,      p->representation, p->tier,     p->unit,     p->index,
                                  p->update_phase, p->compute_site, p->fallback,       p->workload, p->placement, p->selector};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) kv_canonical_text(&c, fields[i]);
    kv_canonical_u64(&c, (uint64_t)p->exactness);
    kv_canonical_u64(&c, (uint64_t)m->contract);
    kv_canonical_u64(&c, (uint64_t)p->n_params);
    for (int32_t i = 0; i < p->n_params; i++) {
        kv_canonical_text(&c, p->params[i].name);
        kv_canonical_f64(&c, m->params.value[i]);
    }
    if (costs) kv_canonical_f64(&c, m->byte_cost);
    if (share) kv_canonical_f64(&c, m->index_share);
    kv_canonical_bytes(&c, m->model_artifact, 32);
    kv_canonical_bytes(&c, m->adapter_set, 32);
    kv_canonical_bytes(&c, m->numerics_id, 32);
    kv_canonical_u64(&c, (uint64_t)m->cohort.n_tenants);
    for (int32_t i = 0; i < m->cohort.n_tenants; i++) kv_canonical_text(&c, m->cohort.tenants[i]);
    kv_canonical_u64(&c, (uint64_t)m->cohort.n_classes);
    for (int32_t i = 0; i < m->cohort.n_classes; i++) kv_canonical_text(&c, m->cohort.classes[i]);
    if (headers) kv_canonical_u64(&c, (uint64_t)m->cohort.n_headers);
    for (int32_t i = 0; i < m->cohort.n_headers; i++) kv_canonical_text(&c, m->cohort.headers[i]);
    kv_canonical_u64(&c, (uint64_t)m->n_steps);
    for (int32_t i = 0; i < m->n_steps; i++) {
        kv_canonical_text(&c, kv_stage_name(m->steps[i].stage));
        kv_canonical_f64(&c, m->steps[i].fraction);
        kv_canonical_i64(&c, m->steps[i].min_seconds);
        kv_canonical_u64(&c, m->steps[i].min_samples);
    }
    kv_canonical_u64(&c, (uint64_t)m->n_gates);
    for (int32_t i = 0; i < m->n_gates; i++) {
        kv_canonical_text(&c, m->gates[i].metric);
        kv_canonical_f64(&c, m->gates[i].threshold);
        kv_canonical_u64(&c, m->gates[i].min_n);
    }
    *n = c.n;
    return c.n <= cap ? KV_OK : KV_CAPACITY;
}

static void parse_cohort(struct kv_canonical_reader *r, struct kv_cohort *c, bool headers)
{
    uint64_t n = kv_canonical_read_u64(r);
    for (uint64_t i = 0; i < n && !r->failed; i++)
        if (i >= KV_COHORT_NAMES || !kv_canonical_read_text(r, c->tenants[i], sizeof c->tenants[i])) r->failed = true;
    c->n_tenants = (int32_t)n;
    n = kv_canonical_read_u64(r);
    for (uint64_t i = 0; i < n && !r->failed; i++)
        if (i >= KV_COHORT_NAMES || !kv_canonical_read_text(r, c->classes[i], sizeof c->classes[i])) r->failed = true;
    c->n_classes = (int32_t)n;
    n = headers ? kv_canonical_read_u64(r) : 0;
    for (uint64_t i = 0; i < n && !r->failed; i++)
        if (i >= KV_COHORT_NAMES || !kv_canonical_read_text(r, c->headers[i], sizeof c->headers[i]) || strcspn(c->headers[i], "=") > 63) r->failed = true;
    c->n_headers = (int32_t)n;
}

static void parse_steps_and_gates(struct kv_canonical_reader *r, struct kv_manifest *m)
{
    char stage[32];
    uint64_t n = kv_canonical_read_u64(r);
    for (uint64_t i = 0; i < n && !r->failed; i++) {
        if (i >= KV_MAX_STEPS || !kv_canonical_read_text(r, stage, sizeof stage) || !kv_stage_from_name(stage, &m->steps[i].stage)) {
            r->failed = true;
            return;
        }
        m->steps[i].fraction = kv_canonical_read_f64(r);
        m->steps[i].min_seconds = (int32_t)kv_canonical_read_i64(r);
        m->steps[i].min_samples = kv_canonical_read_u64(r);
    }
    m->n_steps = (int32_t)n;
    n = kv_canonical_read_u64(r);
    for (uint64_t i = 0; i < n && !r->failed; i++) {
        if (i >= KV_MAX_GATES || !kv_canonical_read_text(r, m->gates[i].metric, sizeof m->gates[i].metric)) {
            r->failed = true;
            return;
        }
        m->gates[i].threshold = kv_canonical_read_f64(r);
        m->gates[i].min_n = kv_canonical_read_u64(r);
    }
    m->n_gates = (int32_t)n;
}

enum kv_status kv_manifest_parse(const uint8_t *bytes, size_t n, struct kv_manifest *m, struct kv_error *err)
{
    struct kv_canonical_reader r = {.in = bytes, .n = n};
    char text[1024], name[64];
    memset(m, 0, sizeof *m);
    kv_sha256(bytes, n, m->digest);
    uint8_t digest[32];
    memcpy(digest, m->digest, 32);
    int form = 0;
    if (kv_canonical_read_text(&r, text, sizeof text) && !strncmp(text, "kvasir-manifest-", 16) && text[16] >= '1' && text[16] <= '4' && !text[17]) form = text[16] - '0';
    if (!form || !kv_canonical_read_text(&r, m->name, sizeof m->name) || !kv_canonical_read_text(&r, name, sizeof name))
        return kv_fail(err, KV_STORE_CORRUPT, "manifest", "a stored manifest cannot be read");
    m->pipeline = kv_pipeline_find(name);
    if (!m->pipeline) return kv_fail(err, KV_UNKNOWN_PIPELINE, name, "a stored manifest names pipeline %s, which this program does not have", name);
    for (int i = 0; i < 11; i++) kv_canonical_read_text(&r, text, sizeof text); /* contract fields: compared through the digest */
    kv_canonical_read_u64(&r);
    m->contract = (enum kv_contract)kv_canonical_read_u64(&r);
    uint64_t params = kv_canonical_read_u64(&r);
    kv_params_default(m->pipeline, &m->params);
    for (uint64_t i = 0; i < params && !r.failed; i++) {
        kv_canonical_read_text(&r, text, sizeof text);
        double v = kv_canonical_read_f64(&r);
        if (!r.failed && kv_params_set(m->pipeline, &m->params, text, v, NULL) != KV_OK) r.failed = true;
    }
    m->byte_cost = form > 2 ? kv_canonical_read_f64(&r) : 0;
    m->index_share = form > 3 ? kv_canonical_read_f64(&r) : -1;
    kv_canonical_read_bytes(&r, m->model_artifact, 32);
    kv_canonical_read_bytes(&r, m->adapter_set, 32);
    kv_canonical_read_bytes(&r, m->numerics_id, 32);
    parse_cohort(&r, &m->cohort, form > 1);
    parse_steps_and_gates(&r, m);
    if (r.failed || r.at != r.n || kv_manifest_seal(m, NULL) != KV_OK || memcmp(digest, m->digest, 32)) {
        memcpy(m->digest, digest, 32);
        return kv_fail(err, KV_STORE_CORRUPT, m->name, "the stored manifest of %s is not the one this program would make", m->name);
    }
    return KV_OK;
}
