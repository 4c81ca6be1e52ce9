/* fixture_lifecycle.c — validator of contract-5-lifecycle: a completed turn, saved, kept and restored; its states by the table that serves, its figures by
 * the planner (source 0x04F–K). Times in ms, bytes binary. */
#include "runtime/evaluate/fixture.h"
#include "runtime/execution/planner.h"
#include "runtime/service/lifecycle.h"

#include <math.h>
#include <string.h>

enum { MAX_STATES = 16, MAX_WAITING = 16, MAX_LAYERS = 64 };

#define REFUSE(reason, where, ...) return kv_fail(r->err, reason, where, __VA_ARGS__)

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-6 * (1 + fabs(b));
}

/* ---------------------------------------------------------------- identity and frontier */

/* Equal in the snapshot and in the turn that wants it. */
static const struct { const char *name; bool text; enum kv_status reason; } identity[] = {
    {"tenant", true, KV_TENANT_MISMATCH}, {"namespace_generation", false, KV_STALE_NAMESPACE_GENERATION}, {"model", true, KV_MODEL_MISMATCH},
    {"adapters", true, KV_ADAPTER_MISMATCH}, {"prefix", true, KV_PREFIX_MISMATCH}, {"layout", true, KV_CACHE_LAYOUT_MISMATCH},
    {"representation", true, KV_REPRESENTATION_MISMATCH}, {"support", true, KV_SUPPORT_MISMATCH}, {"position_rule", true, KV_POSITION_CONTRACT_MISMATCH},
    {"cache_generation", false, KV_STALE_CACHE_GENERATION}};

static enum kv_status check_identity(struct kv_fixture_reader *r)
{
    for (size_t i = 0; i < sizeof identity / sizeof *identity; i++) {
        const char *n = identity[i].name;
        bool equal = identity[i].text ? !strcmp(kv_fixture_text(r, "completed.snapshot.%s", n), kv_fixture_text(r, "completed.turn.%s", n))
                                      : kv_fixture_integer(r, "completed.snapshot.%s", n) == kv_fixture_integer(r, "completed.turn.%s", n);
        if (r->status != KV_OK) return r->status;
        if (!equal) REFUSE(identity[i].reason, n, "the snapshot's %s is not the turn's", n);
    }
    int64_t shift = kv_fixture_integer(r, "completed.turn.position_shift"), frontier = kv_fixture_integer(r, "completed.snapshot.frontier");
    int64_t committed = kv_fixture_integer(r, "completed.snapshot.committed_frontier");
    int64_t pause = kv_fixture_integer(r, "completed.pause_epoch"), resume = kv_fixture_integer(r, "completed.resume_epoch");
    bool uncommitted = kv_fixture_bool(r, "completed.snapshot.contains_uncommitted_rows");
    if (r->status != KV_OK) return r->status;
    if (shift != 0) REFUSE(KV_POSITION_CONTRACT_MISMATCH, "position_shift", "rows stored after RoPE cannot be moved by %lld positions", (long long)shift);
    if (frontier > committed) REFUSE(KV_SNAPSHOT_BEYOND_FRONTIER, "frontier", "the snapshot ends at %lld, committed are %lld", (long long)frontier, (long long)committed);
    if (uncommitted) REFUSE(KV_UNCOMMITTED_ROWS, "contains_uncommitted_rows", "the snapshot holds rows of a branch that was not committed");
    if (resume != pause + 1) REFUSE(KV_STALE_PAUSE_EPOCH, "resume_epoch", "epoch %lld resumes the pause of epoch %lld", (long long)resume, (long long)pause);
    return KV_OK;
}

/* ---------------------------------------------------------------- states */

static enum kv_status check_states(struct kv_fixture_reader *r)
{
    int32_t n = kv_fixture_count(r, MAX_STATES, "completed.states");
    enum kv_session_state at = KV_SESSION_RUNNING;
    for (int32_t i = 0; i < n; i++) {
        int s = kv_lifecycle_state_find(kv_fixture_text(r, "completed.states.%d", (int)i));
        if (r->status != KV_OK) return r->status;
        if (s < 0) REFUSE(KV_UNKNOWN_KEY, "states", "state %d has no name of the contract", (int)i);
        if (i == 0 ? s != KV_SESSION_RUNNING : kv_lifecycle_move(&at, (enum kv_session_state)s) != KV_OK)
            REFUSE(KV_ILLEGAL_TRANSITION, "states", "%s does not follow %s", kv_session_state_name((enum kv_session_state)s), kv_session_state_name(at));
    }
    if (r->status != KV_OK) return r->status;
    return n > 1 && at == KV_SESSION_RUNNING ? KV_OK : kv_fail(r->err, KV_ILLEGAL_TRANSITION, "states", "the turn does not run again");
}

/* ---------------------------------------------------------------- the save */

static enum kv_status check_save(struct kv_fixture_reader *r, int64_t layers)
{
    int32_t n = kv_fixture_count(r, MAX_LAYERS, "completed.saved_layers");
    int64_t bytes = kv_fixture_integer(r, "completed.restore.history_tokens") * kv_fixture_integer(r, "completed.restore.bytes_per_token");
    bool released = kv_fixture_bool(r, "completed.device_released_before_publication"), quiet = kv_fixture_bool(r, "completed.issued_copies_ended");
    if (r->status != KV_OK) return r->status;
    if (n != layers) REFUSE(KV_SNAPSHOT_INCOMPLETE, "saved_layers", "%d of %lld layers are saved", (int)n, (long long)layers);
    for (int32_t l = 0; l < n; l++) {
        int64_t copied = kv_fixture_integer(r, "completed.saved_layers.%d.bytes", (int)l);
        bool sums = !strcmp(kv_fixture_text(r, "completed.saved_layers.%d.checksum", (int)l), kv_fixture_text(r, "completed.saved_layers.%d.stored_checksum", (int)l));
        bool open = kv_fixture_bool(r, "completed.saved_layers.%d.lease_open", (int)l);
        if (r->status != KV_OK) return r->status;
        if (copied * layers != bytes) REFUSE(KV_SHORT_COPY, "saved_layers", "layer %d holds %lld bytes", (int)l, (long long)copied);
        if (!sums) REFUSE(KV_CHECKSUM_MISMATCH, "saved_layers", "layer %d was stored under another checksum", (int)l);
        if (open) REFUSE(KV_UNCOMMITTED_ROWS, "saved_layers", "layer %d was copied while it was being written", (int)l);
    }
    if (!quiet) REFUSE(KV_COMPUTE_BEFORE_READY, "issued_copies_ended", "quiescing closes new work, it does not end what was issued");
    if (released) REFUSE(KV_LAST_REPLICA, "device_released_before_publication", "the last valid copy went before another was published");
    return KV_OK;
}

/* ---------------------------------------------------------------- figures */

static enum kv_status run_model(struct kv_fixture_reader *r, const char *name, const char *at, struct kv_plan_report *out)
{
    struct kv_plan_inputs in;
    const struct kv_plan_model *m = kv_plan_find(name);
    kv_plan_example(m, &in);
    for (int32_t i = 0; i < m->n_specs; i++) {
        double v = kv_fixture_number(r, "completed.%s.%s", at, m->spec[i].name);
        if (r->status != KV_OK) return r->status;
        enum kv_status s = kv_plan_set(&in, m->spec[i].name, &v, 1, r->err);
        if (s != KV_OK) return s;
    }
    *out = (struct kv_plan_report){0};
    return kv_plan_run(&in, out, r->err);
}

struct figure {
    const char *at, *term; /* completed.published.TERM */
    enum kv_status reason;
};
static const struct figure figures[] = {
    {"layer-restore", "history_bytes", KV_PAYLOAD_LEDGER_MISMATCH}, {"layer-restore", "load_per_layer_ms", KV_STAGE_TIME_MISMATCH}, {"layer-restore", "pipeline_ms", KV_PIPELINE_MISMATCH},
    {"layer-restore", "host_visible_ms", KV_TOTAL_TIME_MISMATCH}, {"layer-restore", "disk_visible_ms", KV_TOTAL_TIME_MISMATCH}, {"layer-restore", "read_buffer_bytes", KV_STAGING_MISMATCH},
    {"layer-restore", "restore_from_host", KV_DECISION_MISMATCH}, {"layer-restore", "restore_from_disk", KV_DECISION_MISMATCH}, {"save", "layer_ms", KV_STAGE_TIME_MISMATCH},
    {"save", "total_ms", KV_TOTAL_TIME_MISMATCH}, {"save", "visible_stall_ms", KV_STALL_MISMATCH}, {"persist", "j_persist", KV_COST_MISMATCH}, {"persist", "j_discard", KV_COST_MISMATCH},
    {"persist", "persist", KV_DECISION_MISMATCH}};

static enum kv_status check_figures(struct kv_fixture_reader *r)
{
    static const char *const models[][2] = {{"layer-restore", "restore"}, {"save", "save"}, {"persist", "persist"}};
    struct kv_plan_report report;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        enum kv_status s = run_model(r, models[m][0], models[m][1], &report);
        if (s != KV_OK) return s;
        for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
            if (strcmp(figures[i].at, models[m][0])) continue;
            double published = kv_fixture_number(r, "completed.published.%s", figures[i].term), computed = kv_plan_term_find(&report, figures[i].term)->value;
            if (r->status != KV_OK) return r->status;
            if (!close_to(published, computed)) REFUSE(figures[i].reason, figures[i].term, "%.9g is published, %.9g follows", published, computed);
        }
    }
    return KV_OK;
}

/* The jobs that are prefetched are a prefix of the waiting ones that fits in bytes; a number of sessions is no window. */
static enum kv_status check_window(struct kv_fixture_reader *r)
{
    const char *unit = kv_fixture_text(r, "completed.window.unit");
    int32_t n = kv_fixture_count(r, MAX_WAITING, "completed.window.waiting_bytes");
    int64_t limit = kv_fixture_integer(r, "completed.window.reserved_bytes"), taken = kv_fixture_integer(r, "completed.window.prefetched"), sum = 0;
    if (r->status != KV_OK) return r->status;
    if (strcmp(unit, "bytes")) REFUSE(KV_BYTE_UNIT_MIXED, "window.unit", "the window is counted in %s", unit);
    if (taken < 0 || taken > n) REFUSE(KV_BAD_ARGUMENT, "window.prefetched", "%lld of %d jobs", (long long)taken, (int)n);
    for (int32_t i = 0; i < taken; i++) sum += kv_fixture_integer(r, "completed.window.waiting_bytes.%d", (int)i);
    if (r->status != KV_OK) return r->status;
    if (sum > limit) REFUSE(KV_HOST_BUDGET, "window.prefetched", "%lld bytes are prefetched, %lld are reserved for it", (long long)sum, (long long)limit);
    return KV_OK;
}

enum kv_status kv_fixture_lifecycle(const struct kv_fixture *f, struct kv_error *err)
{
    struct kv_fixture_reader reader = {f, err, KV_OK}, *r = &reader;
    enum kv_status s = check_identity(r);
    if (s == KV_OK) s = check_states(r);
    if (s == KV_OK) s = check_save(r, kv_fixture_integer(r, "completed.restore.layers"));
    if (s == KV_OK) s = check_figures(r);
    if (s == KV_OK) s = check_window(r);
    return s == KV_OK ? kv_fixture_interrupted(r) : s;
}
