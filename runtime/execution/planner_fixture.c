/* planner_fixture.c — the fixture of exact offload: published ledgers, timeline and admission against the planner's own (source 0x02–0x03). */
#include "runtime/evaluate/fixture.h"
#include "runtime/execution/planner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 16 };

#define REFUSE(reason, where, ...) return kv_fail(r->err, reason, where, __VA_ARGS__)

/* Milliseconds and ratios agree to a millionth; bytes exactly. */
static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-6 * (1 + fabs(b));
}

/* Every input of the model stands in the fixture under inputs.*, lists as arrays. */
static enum kv_status read_inputs(struct kv_fixture_reader *r, const struct kv_plan_model *m, const char *at, struct kv_plan_inputs *in)
{
    double values[KV_PLAN_MAX_VALUES];
    kv_plan_example(m, in);
    for (int32_t i = 0; i < m->n_specs; i++) {
        int32_t n = 1;
        if (m->spec[i].n > 1) {
            n = kv_fixture_count(r, MAX_LAYERS, "%s.%s", at, m->spec[i].name);
            for (int32_t k = 0; k < n; k++) values[k] = kv_fixture_number(r, "%s.%s.%d", at, m->spec[i].name, (int)k);
        } else {
            values[0] = kv_fixture_number(r, "%s.%s", at, m->spec[i].name);
        }
        if (r->status != KV_OK) return r->status;
        /* A share outside its range has a reason of its own. */
        if (!strcmp(m->spec[i].name, "overlap") && !(values[0] >= 0 && values[0] <= 1)) REFUSE(KV_OVERLAP_RANGE, "overlap", "an overlap share of %g", values[0]);
        enum kv_status s = kv_plan_set(in, m->spec[i].name, values, n, r->err);
        if (s != KV_OK) return s;
    }
    return KV_OK;
}

static const struct {
    const char *published, *term;
    enum kv_status reason;
} ledgers[] = {
    {"request_bytes", "request_bytes", KV_PAYLOAD_LEDGER_MISMATCH},
    {"h2d_bytes", "h2d_bytes", KV_H2D_LEDGER_MISMATCH},
    {"d2h_bytes", "d2h_bytes", KV_D2H_LEDGER_MISMATCH},
    {"a_read", "a_read", KV_READ_AMPLIFICATION},
    {"iteration_h2d_bytes", "iteration_h2d_bytes", KV_ITERATION_LEDGER_MISMATCH},
    {"descriptor_bytes", "descriptor_bytes", KV_DESCRIPTOR_LEDGER_MISMATCH},
    {"staging_variable_bytes", "staging_variable_bytes", KV_STAGING_MISMATCH},
    {"staging_fixed_bytes", "staging_fixed_bytes", KV_STAGING_FIXED_MISMATCH},
    {"device_peak_bytes", "device_peak_fixed_bytes", KV_DEVICE_PEAK_MISMATCH},
    {"pipeline_ms", "pipeline_ms", KV_PIPELINE_MISMATCH},
    {"stall_ms", "stall_ms", KV_STALL_MISMATCH},
    {"hidden_ms", "hidden_ms", KV_HIDDEN_MISMATCH},
};
static const struct {
    const char *term;
    enum kv_status reason;
} budgets[] = {
    {"fits.recoverable", KV_SUPPORT_NOT_RECOVERABLE}, {"fits.device", KV_DEVICE_BUDGET},     {"fits.host", KV_HOST_BUDGET}, {"fits.pinned", KV_PINNED_BUDGET},
    {"fits.h2d_rate", KV_H2D_BUDGET},                 {"fits.d2h_rate", KV_D2H_BUDGET}, {"fits.credits", KV_QUEUE_FULL},
};

static enum kv_status check_source(struct kv_fixture_reader *r, const struct kv_plan_inputs *in)
{
    double row = kv_fixture_number(r, "geometry.kv_heads") * kv_fixture_number(r, "geometry.d_head") *
                 (kv_fixture_number(r, "geometry.key_bytes") + kv_fixture_number(r, "geometry.value_bytes"));
    double published_row = kv_fixture_number(r, "published.row_bytes"), rows = kv_fixture_number(r, "geometry.block_rows");
    int64_t required = kv_fixture_integer(r, "support.required"), visible = kv_fixture_integer(r, "support.visible");
    const char *unit = kv_fixture_text(r, "units");
    bool lossless = kv_fixture_bool(r, "codec.lossless");
    if (r->status != KV_OK) return r->status;
    if (strcmp(unit, "binary")) REFUSE(KV_BYTE_UNIT_MIXED, "units", "the ledgers are binary, the fixture says '%s'", unit);
    if (required != visible) REFUSE(KV_SUPPORT_INCOMPLETE, "support.visible", "%lld rows are required, %lld are visible", (long long)required, (long long)visible);
    if (!lossless) REFUSE(KV_CODEC_NOT_LOSSLESS, "codec.lossless", "an exact path takes lossless codecs only");
    if (published_row != row) REFUSE(KV_ROW_BYTES_MISMATCH, "published.row_bytes", "a row holds %g bytes, %g are published", row, published_row);
    if (kv_plan_get(in, "block_bytes") != row * rows) REFUSE(KV_BLOCK_BYTES_MISMATCH, "inputs.block_bytes", "a block of %g rows holds %g bytes", rows, row * rows);
    return KV_OK;
}

/* One receipt a cold layer, in order: generation, bytes, slot, and the events of the timeline. */
static enum kv_status check_receipts(struct kv_fixture_reader *r, const struct kv_plan_inputs *in)
{
    int32_t layers, n = kv_fixture_count(r, MAX_LAYERS, "receipts");
    const double *cold = kv_plan_list(in, "cold_blocks", &layers);
    double link_free = 0, slot_free[2] = {0, 0}, block = kv_plan_get(in, "block_bytes");
    int64_t generation = kv_fixture_integer(r, "cache_generation");
    if (r->status != KV_OK) return r->status;
    if (n != layers) REFUSE(KV_RECEIPT_COUNT_MISMATCH, "receipts", "%d receipts for %d layers", (int)n, (int)layers);
    for (int32_t l = 0; l < n; l++) {
        int64_t of = kv_fixture_integer(r, "receipts.%d.generation", (int)l), slot = kv_fixture_integer(r, "receipts.%d.slot", (int)l);
        double bytes = kv_fixture_number(r, "receipts.%d.bytes", (int)l), from = kv_fixture_number(r, "receipts.%d.fetch_start_ms", (int)l);
        double ready = kv_fixture_number(r, "receipts.%d.ready_ms", (int)l), start = kv_fixture_number(r, "receipts.%d.compute_start_ms", (int)l);
        double end = kv_fixture_number(r, "receipts.%d.compute_end_ms", (int)l);
        if (r->status != KV_OK) return r->status;
        if (of != generation) REFUSE(KV_STALE_CACHE_GENERATION, "receipts.generation", "layer %d was fetched under generation %lld, current is %lld", (int)l, (long long)of, (long long)generation);
        if (bytes != cold[l] * block) REFUSE(KV_RECEIPT_BYTES_MISMATCH, "receipts.bytes", "layer %d moved %g bytes of %g", (int)l, bytes, cold[l] * block);
        if (slot < 0 || slot > 1 || from < slot_free[slot] - 1e-6) REFUSE(KV_SLOT_REUSED_EARLY, "receipts.slot", "layer %d fetches into slot %lld before its consumer ended", (int)l, (long long)slot);
        if (from < link_free - 1e-6) REFUSE(KV_LINK_NOT_SERIAL, "receipts.fetch_start_ms", "layer %d fetches before the link is free", (int)l);
        if (start < ready - 1e-6) REFUSE(KV_COMPUTE_BEFORE_READY, "receipts.compute_start_ms", "layer %d computes at %g ms, its rows are ready at %g ms", (int)l, start, ready);
        link_free = ready;
        slot_free[slot] = end;
    }
    return KV_OK;
}

enum kv_status kv_fixture_placement_cost(const struct kv_fixture *f, struct kv_error *err)
{
    static _Thread_local struct kv_plan_inputs in, ratio;
    static _Thread_local struct kv_plan_report report;
    struct kv_fixture_reader reader = {.fixture = f, .err = err, .status = KV_OK}, *r = &reader;
    enum kv_status s = read_inputs(r, &kv_plan_exact_offload, "inputs", &in);
    if (s == KV_OK) s = read_inputs(r, &kv_plan_critical_ratio, "ratio", &ratio);
    if (s == KV_OK) s = check_source(r, &in);
    if (s == KV_OK) s = check_receipts(r, &in);
    if (s == KV_OK) s = kv_plan_run(&in, &report, err);
    if (s != KV_OK) return s;
    for (size_t i = 0; i < sizeof ledgers / sizeof *ledgers; i++) {
        double published = kv_fixture_number(r, "published.%s", ledgers[i].published), planned = kv_plan_term_find(&report, ledgers[i].term)->value;
        if (r->status != KV_OK) return r->status;
        if (!close_to(published, planned)) REFUSE(ledgers[i].reason, ledgers[i].published, "%s is published as %.9g and planned as %.9g", ledgers[i].published, published, planned);
    }
    double ttft = kv_fixture_number(r, "published.ttft_ms");
    if (ttft < kv_plan_term_find(&report, "visible_ms")->value - 1e-6) REFUSE(KV_LATENCY_UNDERREPORTED, "published.ttft_ms", "%g ms is less than queue and pipeline", ttft);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        if (kv_plan_term_find(&report, budgets[i].term)->value == 0) REFUSE(budgets[i].reason, budgets[i].term, "%s fails", budgets[i].term);
    double kappa = kv_fixture_number(r, "published.kappa_crit");
    if (r->status != KV_OK) return r->status;
    if ((s = kv_plan_run(&ratio, &report, err)) != KV_OK) return s;
    if (!close_to(kappa, kv_plan_term_find(&report, "kappa_crit")->value)) REFUSE(KV_CRITICAL_RATIO_MISMATCH, "published.kappa_crit", "κ is published as %.9g", kappa);
    return KV_OK;
}
