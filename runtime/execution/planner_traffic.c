/* planner_traffic.c — bytes, links and layer pipelines: rows, critical ratio, service chain, exact offload, restore and save. */
#include "runtime/execution/planner.h"
#include "runtime/execution/planner_pipeline.h"

#include <math.h>

#define GET(name) kv_plan_get(in, name)
#define ADD(unit, value, formula, ...) kv_plan_add(out, unit, value, formula, __VA_ARGS__)
#define MODEL(id, title, where, what) \
    const struct kv_plan_model kv_plan_##id = {title, where, what, id##_spec, (int32_t)(sizeof id##_spec / sizeof *id##_spec), run_##id}

static const double KIB = 1024, MIB = 1048576, GIB = 1073741824;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---------------------------------------------------------------- row */

static const struct kv_plan_spec row_spec[] = {
    {"layers", "", "layers that keep K/V", 1, {4}, 1, 4096},
    {"kv_heads", "", "K/V heads", 1, {8}, 1, 4096},
    {"d_head", "", "head width", 1, {128}, 1, 4096},
    {"key_bytes", "bytes", "bytes per stored key scalar", 1, {2}, 0.25, 8},
    {"value_bytes", "bytes", "bytes per stored value scalar", 1, {2}, 0.25, 8},
    {"block_rows", "rows", "positions per block", 1, {64}, 1, 65536},
    {"positions", "rows", "committed positions", 1, {4096}, 0, 1e9},
};
static enum kv_status run_row(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double row = ADD("bytes", GET("kv_heads") * GET("d_head") * (GET("key_bytes") + GET("value_bytes")), "kv_heads d_head (key_bytes + value_bytes)", "row_bytes");
    ADD("bytes", row * GET("block_rows"), "row_bytes block_rows", "block_bytes");
    double token = ADD("bytes", row * GET("layers"), "row_bytes layers", "token_bytes");
    ADD("bytes", row * GET("positions"), "row_bytes positions", "layer_bytes");
    double full = ADD("bytes", token * GET("positions"), "token_bytes positions", "request_bytes");
    ADD("KiB", token / KIB, "", "token_kib");
    ADD("MiB", full / MIB, "", "request_mib");
    ADD("GiB", full / GIB, "", "request_gib");
    return KV_OK;
}
MODEL(row, "row", "0x01E, 0x02B", "bytes of a row, a block, a token and a request");

/* ---------------------------------------------------------------- critical ratio */

static const struct kv_plan_spec critical_ratio_spec[] = {
    {"flop_per_token", "FLOP", "model work per new prefill token", 1, {12.890625e9}, 1, 1e18},
    {"bytes_per_token", "bytes", "K/V bytes per cached token, all layers", 1, {16384}, 1, 1e12},
    {"link_bytes_per_s", "bytes/s", "sustained host-to-device bandwidth", 1, {24.0 * 1073741824.0}, 1, 1e15},
    {"compute_flop_per_s", "FLOP/s", "sustained prefill rate", 1, {300e12}, 1, 1e18},
    {"cached_tokens", "tokens", "tokens restored", 1, {4096}, 0, 1e9},
    {"cold_tokens", "tokens", "of these, the ones that must cross the link", 1, {2304}, 0, 1e9},
    {"new_tokens", "tokens", "tokens computed", 1, {64}, 1, 1e9},
    {"overlap", "", "measured share of the shorter that is hidden (η)", 1, {0}, 0, 1},
};
static enum kv_status run_critical_ratio(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double f = GET("flop_per_token"), b = GET("bytes_per_token"), bw = GET("link_bytes_per_s"), c = GET("compute_flop_per_s");
    double intensity = ADD("FLOP/byte", f / b, "flop_per_token / bytes_per_token", "intensity");
    double balance = ADD("byte/FLOP", bw / c, "link / compute", "balance");
    double critical = ADD("", intensity * balance, "intensity balance", "kappa_crit");
    ADD("", GET("cached_tokens") / GET("new_tokens"), "cached / new", "full_ratio");
    double cold = ADD("", GET("cold_tokens") / GET("new_tokens"), "cold / new", "cold_ratio");
    ADD("ms", 1e3 * GET("cached_tokens") * b / bw, "cached bytes / link", "full_transfer_ms");
    double x = ADD("ms", 1e3 * GET("cold_tokens") * b / bw, "cold bytes / link", "cold_transfer_ms");
    double t = ADD("ms", 1e3 * GET("new_tokens") * f / c, "new flop / compute", "compute_ms");
    ADD("ms", x + t - GET("overlap") * (x < t ? x : t), "t_x + t_c − η min(t_x, t_c)", "overlapped_ms");
    ADD("bool", cold > critical, "cold_ratio > kappa_crit", "transfer_bound");
    return KV_OK;
}
MODEL(critical_ratio, "critical-ratio", "0x03G", "when restoring outweighs computing: a regime test, not a latency");

/* ---------------------------------------------------------------- service chain */

static const struct kv_plan_spec service_chain_spec[] = {
    {"lookup_ms", "ms", "directory lookup", 1, {0.01}},
    {"source_queue_ms", "ms", "waiting at the source tier", 1, {0.2}},
    {"source_read_ms", "ms", "reading at the source tier", 1, {1.5}},
    {"decode_ms", "ms", "decrypting and decoding", 1, {0.4}},
    {"link_queue_ms", "ms", "waiting for the link", 1, {0.05}},
    {"submit_ms", "ms", "submitting", 1, {0.01}},
    {"register_ms", "ms", "registering memory", 1, {0.02}},
    {"wire_bytes", "bytes", "bytes on the wire", 1, {16777216}},
    {"link_bytes_per_s", "bytes/s", "effective bandwidth", 1, {24.0 * 1073741824.0}, 1, 1e15},
    {"layout_ms", "ms", "layout transform", 1, {0.03}},
    {"publish_ms", "ms", "publication", 1, {0.01}},
    {"chunks", "", "equal chunks through the stages", 1, {4}, 1, 1e6},
};
static enum kv_status run_service_chain(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double wire = ADD("ms", 1e3 * GET("wire_bytes") / GET("link_bytes_per_s"), "wire bytes / effective bandwidth", "wire_ms");
    double fixed = GET("lookup_ms") + GET("source_queue_ms") + GET("link_queue_ms") + GET("submit_ms") + GET("register_ms") + GET("publish_ms");
    ADD("ms", fixed, "lookup + queues + submit + register + publish", "fixed_ms");
    double stages[4] = {GET("source_read_ms"), GET("decode_ms"), wire, GET("layout_ms")}, sum = 0, longest = 0;
    for (int i = 0; i < 4; i++) sum += stages[i], longest = larger(longest, stages[i]);
    ADD("ms", fixed + sum, "fixed + read + decode + wire + layout", "unchunked_ms");
    double n = GET("chunks");
    ADD("ms", sum / n, "Σ S_h", "chunk_stage_sum_ms");
    ADD("ms", fixed + sum / n + (n - 1) * longest / n, "fixed + Σ S_h + (n − 1) max S_h", "chunked_ms");
    return KV_OK;
}
MODEL(service_chain, "service-chain", "0x03C", "one promotion's chain of service, whole and in chunks");

/* ---------------------------------------------------------------- exact offload */

static const struct kv_plan_spec exact_offload_spec[] = {
    {"block_bytes", "bytes", "one transfer block of one layer", 1, {262144}, 1, 1e12},
    {"blocks", "blocks", "legal blocks of each layer", 4, {64, 64, 64, 64}, 0, 1e9},
    {"cold_blocks", "blocks", "of these, not on the device", 4, {48, 64, 16, 16}, 0, 1e9},
    {"logical_cold_bytes", "bytes", "bytes of the rows asked for; 0: the blocks' own", 1, {0}},
    {"fixed_ms", "ms", "lookup, queue, submit, layout and publish, per layer", 4, {0.095, 0.095, 0.095, 0.095}},
    {"compute_ms", "ms", "compute of each layer", 4, {0.61, 0.70, 0.72, 0.72}},
    {"link_bytes_per_s", "bytes/s", "host-to-device bandwidth", 1, {24.0 * 1073741824.0}, 1, 1e15},
    {"write_blocks", "blocks", "new blocks demoted, over all layers", 1, {4}},
    {"queue_ms", "ms", "scheduler queue outside service", 1, {1.4}},
    {"requests", "", "requests of one iteration", 1, {3}, 1, 1e6},
    {"descriptor_bytes", "bytes", "per moved block", 1, {64}},
    {"workspace_bytes", "bytes", "kernel workspace", 1, {7.25 * 1048576.0}},
    {"pinned_bytes", "bytes", "pinned staging on the host", 1, {32.0 * 1048576.0}},
    {"scratch_bytes", "bytes", "codec and read buffers on the host", 1, {0}},
    {"recoverable", "bool", "every legal row can be had", 1, {1}, 0, 1},
    {"device_free_bytes", "bytes", "budget", 1, {80.0 * 1048576.0}},
    {"host_free_bytes", "bytes", "budget", 1, {256.0 * 1048576.0}},
    {"pinned_free_bytes", "bytes", "budget", 1, {64.0 * 1048576.0}},
    {"h2d_free_bytes_per_s", "bytes/s", "budget", 1, {24.0 * 1073741824.0}},
    {"d2h_free_bytes_per_s", "bytes/s", "budget", 1, {20.0 * 1073741824.0}},
    {"credits_free", "jobs", "budget of transfer jobs", 1, {8}},
};

/* Per-layer terms and the recurrence. Returns the pipeline's service time. */
static double offload_layers(const struct kv_plan_inputs *in, struct kv_plan_report *out, int32_t n, double *h2d, double *biggest, double *pair, double *jobs)
{
    const double *cold = kv_plan_list(in, "cold_blocks", NULL), *fixed = kv_plan_list(in, "fixed_ms", NULL), *compute = kv_plan_list(in, "compute_ms", NULL);
    struct kv_pipeline_stage stage[KV_PLAN_MAX_VALUES];
    double fetch = 0, work = 0, stall = 0, previous = 0;
    *h2d = *biggest = *pair = *jobs = 0;
    for (int32_t l = 0; l < n; l++) {
        double bytes = cold[l] * GET("block_bytes");
        *h2d += bytes;
        *biggest = larger(*biggest, bytes);
        *pair = larger(*pair, l ? previous + bytes : bytes);
        previous = bytes;
        double f = cold[l] > 0 ? 1e3 * bytes / GET("link_bytes_per_s") + fixed[l] : -1;
        if (f >= 0) fetch += f, ++*jobs;
        work += compute[l];
        stage[l] = (struct kv_pipeline_stage){.fetch = f, .compute = compute[l]};
    }
    double end = kv_pipeline_two_slot(stage, n, 0, 0);
    for (int32_t l = 0; l < n; l++) {
        if (n > 16) break; /* the per-layer terms of deep models would crowd out the totals */
        if (stage[l].fetch >= 0) ADD("ms", stage[l].fetch, "bytes / link + fixed", "layer_%d.fetch_ms", (int)l);
        if (stage[l].fetch >= 0) ADD("ms", stage[l].fetch_end, "s^F + F, s^F = max(a, e^C of l − 2)", "layer_%d.ready_ms", (int)l);
        ADD("ms", stage[l].compute_start, "max(e^C of l − 1, e^F)", "layer_%d.start_ms", (int)l);
        ADD("ms", stage[l].compute_end, "s^C + C", "layer_%d.end_ms", (int)l);
        ADD("ms", stage[l].stall, "s^C − e^C of l − 1", "layer_%d.stall_ms", (int)l);
    }
    for (int32_t l = 0; l < n; l++) stall += stage[l].stall;
    ADD("ms", 1e3 * *h2d / GET("link_bytes_per_s"), "h2d bytes / link", "link_only_ms");
    ADD("ms", fetch, "Σ F", "fetch_ms");
    ADD("ms", work, "Σ C", "compute_total_ms");
    ADD("ms", fetch + work, "Σ F + Σ C", "no_overlap_ms");
    ADD("ms", end, "two-slot recurrence", "pipeline_ms");
    ADD("ms", fetch + work - end, "no_overlap − pipeline", "hidden_ms");
    ADD("ms", stall, "Σ (s^C − e^C)", "stall_ms");
    ADD("", fetch > 0 ? 1 - stall / fetch : 1, "1 − exposed stall / Σ F", "r_overlap");
    return end;
}

/* Admission of one request (0x03F): each budget apart, so that a refusal names the one that fails. */
static void offload_admission(const struct kv_plan_inputs *in, struct kv_plan_report *out, double device, double host, double h2d, double d2h, double jobs, double pipeline_ms)
{
    double h2d_rate = ADD("bytes/s", h2d / (pipeline_ms * 1e-3), "h2d / pipeline, of this request", "h2d_rate_bytes_per_s");
    double d2h_rate = ADD("bytes/s", d2h / (pipeline_ms * 1e-3), "d2h / pipeline, of this request", "d2h_rate_bytes_per_s");
    bool fits[7] = {GET("recoverable") != 0, device <= GET("device_free_bytes"), host <= GET("host_free_bytes"), GET("pinned_bytes") <= GET("pinned_free_bytes"),
                    h2d_rate <= GET("h2d_free_bytes_per_s"), d2h_rate <= GET("d2h_free_bytes_per_s"), jobs <= GET("credits_free")};
    static const char *const names[7] = {"recoverable", "device", "host", "pinned", "h2d_rate", "d2h_rate", "credits"};
    bool all = true;
    for (int i = 0; i < 7; i++) all &= fits[i], ADD("bool", fits[i], "", "fits.%s", names[i]);
    ADD("bool", all, "every fits", "admitted");
}

static enum kv_status run_exact_offload(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    int32_t n, m;
    const double *blocks = kv_plan_list(in, "blocks", &n), *cold = kv_plan_list(in, "cold_blocks", &m);
    if (m != n) return kv_fail(err, KV_BAD_ARGUMENT, "cold_blocks", "blocks and cold_blocks differ in length");
    kv_plan_list(in, "fixed_ms", &m);
    if (m != n) return kv_fail(err, KV_BAD_ARGUMENT, "fixed_ms", "fixed_ms needs one value per layer");
    kv_plan_list(in, "compute_ms", &m);
    if (m != n) return kv_fail(err, KV_BAD_ARGUMENT, "compute_ms", "compute_ms needs one value per layer");
    double full = 0, hits = 0, moved = 0, h2d, biggest, pair, jobs, b = GET("block_bytes");
    for (int32_t l = 0; l < n; l++) {
        if (cold[l] > blocks[l]) return kv_fail(err, KV_BAD_ARGUMENT, "cold_blocks", "layer %d has more cold blocks than blocks", (int)l);
        full += blocks[l] * b, hits += (blocks[l] - cold[l]) * b, moved += cold[l];
    }
    double end = offload_layers(in, out, n, &h2d, &biggest, &pair, &jobs);
    ADD("ms", GET("queue_ms") + end, "queue + pipeline", "visible_ms");
    ADD("bytes", full, "Σ blocks", "request_bytes");
    double logical = GET("logical_cold_bytes") > 0 ? GET("logical_cold_bytes") : h2d;
    ADD("bytes", logical, "rows asked for", "logical_cold_bytes");
    ADD("bytes", h2d, "Σ cold blocks", "h2d_bytes");
    ADD("", logical > 0 ? h2d / logical : 1, "h2d / logical", "a_read");
    double d2h = ADD("bytes", GET("write_blocks") * b, "write_blocks block_bytes", "d2h_bytes");
    ADD("bytes", h2d * GET("requests"), "requests h2d", "iteration_h2d_bytes");
    double descriptors = ADD("bytes", (moved + GET("write_blocks")) * GET("descriptor_bytes"), "moved blocks × descriptor", "descriptor_bytes");
    ADD("", h2d + d2h > 0 ? descriptors / (h2d + d2h) : 0, "descriptors / payload", "r_metadata");
    ADD("bytes", hits, "blocks on the device", "persistent_bytes");
    ADD("", full > 0 ? hits / full : 0, "persistent / request", "r_gpu");
    ADD("bytes", pair, "max_l (M_l + M_{l+1})", "staging_variable_bytes");
    ADD("bytes", 2 * biggest, "2 max_l M_l", "staging_fixed_bytes");
    double rest = hits + d2h + descriptors + GET("workspace_bytes");
    ADD("bytes", rest + pair, "hits + staging + new rows + descriptors + workspace", "device_peak_variable_bytes");
    double peak = ADD("bytes", rest + 2 * biggest, "the same with two fixed slots", "device_peak_fixed_bytes");
    ADD("MiB", (rest + pair) / MIB, "", "device_peak_variable_mib");
    ADD("MiB", peak / MIB, "", "device_peak_fixed_mib");
    double host = ADD("bytes", full + GET("pinned_bytes") + GET("scratch_bytes"), "payload + pinned + scratch", "host_peak_bytes");
    offload_admission(in, out, peak, host, h2d, d2h, jobs, end);
    return KV_OK;
}
MODEL(exact_offload, "exact-offload", "0x03A–F", "layerwise move-to-compute: traffic, two-slot timeline, peaks and admission");

/* ---------------------------------------------------------------- restore and save of a completed turn */

static const struct kv_plan_spec layer_restore_spec[] = {
    {"layers", "", "layers", 1, {4}, 1, 128},
    {"history_tokens", "tokens", "tokens restored", 1, {3072}, 0, 1e9},
    {"bytes_per_token", "bytes", "K/V bytes per token, all layers", 1, {16384}, 1, 1e12},
    {"link_bytes_per_s", "bytes/s", "host-to-device bandwidth", 1, {24.0 * 1073741824.0}, 1, 1e15},
    {"fixed_ms", "ms", "fixed cost per layer", 1, {0.1}},
    {"prefill_ms", "ms", "new-turn prefill per layer", 1, {0.45}},
    {"new_tokens", "tokens", "tokens of the new turn", 1, {64}, 1, 1e9},
    {"lookup_ms", "ms", "lookup and validation", 1, {0.08}},
    {"queue_ms", "ms", "scheduler queue", 1, {0.6}},
    {"disk_ms", "ms", "penalty of reading from disk first", 1, {12}},
    {"recompute_ms", "ms", "recomputing history and new turn instead", 1, {10.07}},
};
static enum kv_status run_layer_restore(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    int32_t n = (int32_t)GET("layers");
    struct kv_pipeline_stage stage[KV_PLAN_MAX_VALUES];
    double bytes = ADD("bytes", GET("history_tokens") * GET("bytes_per_token"), "history_tokens bytes_per_token", "history_bytes");
    double load = ADD("ms", 1e3 * bytes / n / GET("link_bytes_per_s") + GET("fixed_ms"), "layer bytes / link + fixed", "load_per_layer_ms");
    for (int32_t l = 0; l < n; l++) stage[l] = (struct kv_pipeline_stage){.fetch = bytes > 0 ? load : -1, .compute = GET("prefill_ms")};
    double end = ADD("ms", kv_pipeline_two_slot(stage, n, 0, 0), "two-slot recurrence", "pipeline_ms");
    double host = ADD("ms", end + GET("lookup_ms") + GET("queue_ms"), "pipeline + lookup + queue", "host_visible_ms");
    double disk = ADD("ms", host + GET("disk_ms"), "host + disk penalty", "disk_visible_ms");
    ADD("bool", host <= GET("recompute_ms"), "host_visible ≤ recompute", "restore_from_host");
    ADD("bool", disk <= GET("recompute_ms"), "disk_visible ≤ recompute", "restore_from_disk");
    double pressure = n * (load - GET("prefill_ms"));
    ADD("ms", pressure, "T_load L_hist − T_pref L_new", "exposed_ms");
    ADD("bytes", larger(0, pressure) * 1e-3 * GET("link_bytes_per_s"), "B max(0, T_load L_hist − T_pref L_new)", "read_buffer_bytes");
    return KV_OK;
}
MODEL(layer_restore, "layer-restore", "0x04I", "layerwise restore of a completed turn under the new turn's prefill");

static const struct kv_plan_spec save_spec[] = {
    {"layers", "", "layers", 1, {4}, 1, 4096},
    {"layer_bytes", "bytes", "K/V bytes per layer", 1, {12.0 * 1048576.0}},
    {"link_bytes_per_s", "bytes/s", "device-to-host bandwidth", 1, {20.0 * 1073741824.0}, 1, 1e15},
    {"fixed_ms", "ms", "fixed cost per layer", 1, {0.06}},
    {"window_ms", "ms", "time the save may overlap", 1, {3}},
};
static enum kv_status run_save(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double layer = ADD("ms", 1e3 * GET("layer_bytes") / GET("link_bytes_per_s") + GET("fixed_ms"), "layer bytes / link + fixed", "layer_ms");
    double total = ADD("ms", layer * GET("layers"), "layers layer_ms", "total_ms");
    double stall = ADD("ms", larger(0, total - GET("window_ms")), "max(0, total − window)", "visible_stall_ms");
    ADD("bytes", stall * 1e-3 * GET("link_bytes_per_s"), "what the write buffer must still hold", "write_buffer_bytes");
    return KV_OK;
}
MODEL(save, "save", "0x04I", "asynchronous save of a completed turn");
