/* planner_sensitivity.c — the cost surface of retrieval (0x0AC), and one control at a time around its base. Quality is no term of it. */
#include "runtime/execution/planner.h"

#include <math.h>

#define GET(name) kv_plan_get(in, name)
#define ADD(unit, value, formula, ...) kv_plan_add(out, unit, value, formula, __VA_ARGS__)

static const double KIB = 1024, GIB = 1073741824;

static const struct kv_plan_spec specs[] = {
    {"layers", "", "L", 1, {32}, 1, 4096},
    {"kv_heads", "", "H_kv", 1, {8}, 1, 4096},
    {"d_head", "", "d_h", 1, {128}, 1, 4096},
    {"scalar_bytes", "bytes", "b", 1, {2}, 0.25, 8},
    {"positions", "rows", "T", 1, {32768}, 1, 1e9},
    {"requests", "", "C: concurrency", 1, {4}, 1, 1e6},
    {"output_tokens", "tokens", "O: decode steps", 1, {128}, 1, 1e9},
    {"reuse", "", "h: share already on the path", 1, {0.5}, 0, 1},
    {"selected", "", "f: share of the cold support asked for", 1, {0.125}, 0, 1},
    {"coalesced", "", "c: share of those bytes asked for twice", 1, {0.25}, 0, 1},
    {"link_bytes_per_s", "bytes/s", "effective bandwidth", 1, {24.0 * 1073741824.0}, 1, 1e15},
    {"setup_ms", "ms", "setup", 1, {0.08}},
    {"queue_ms", "ms", "queueing", 1, {0.15}},
    {"host_bytes", "bytes", "CPU capacity", 1, {256.0 * 1073741824.0}},
};

static enum kv_status run(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double row = ADD("bytes", GET("layers") * 2 * GET("kv_heads") * GET("d_head") * GET("scalar_bytes"), "L 2 H_kv d_h b", "token_bytes");
    double full = ADD("bytes", GET("positions") * row, "T token_bytes", "request_bytes");
    double resident = ADD("bytes", GET("requests") * full, "C request_bytes", "resident_bytes");
    double cold = ADD("bytes", (1 - GET("reuse")) * resident, "(1 − h) resident", "cold_bytes");
    double asked = ADD("bytes", GET("selected") * cold, "f cold", "requested_bytes");
    double unique = ADD("bytes", (1 - GET("coalesced")) * asked, "(1 − c) requested", "backend_bytes");
    ADD("ms", GET("setup_ms") + GET("queue_ms") + 1e3 * unique / GET("link_bytes_per_s"), "setup + queue + backend / link", "service_ms");
    double decode = ADD("bytes", GET("output_tokens") * unique, "O backend, nothing reused across steps", "decode_bytes");
    ADD("", floor(GET("host_bytes") / full), "⌊M_CPU / M_req⌋", "whole_caches");
    ADD("KiB", row / KIB, "", "token_kib");
    ADD("GiB", full / GIB, "", "request_gib");
    ADD("GiB", resident / GIB, "", "resident_gib");
    ADD("GiB", cold / GIB, "", "cold_gib");
    ADD("GiB", unique / GIB, "", "backend_gib");
    ADD("GiB", decode / GIB, "", "decode_gib");
    return KV_OK;
}
const struct kv_plan_model kv_plan_sensitivity = {"sensitivity", "0x0AC", "bytes and service of retrieval around a base; kvasir plan --sweep varies it", specs, sizeof specs / sizeof *specs, run};

static const struct kv_plan_sweep sweeps[] = {
    {"context", "positions", 5, {8192, 16384, 32768, 65536, 131072}},
    {"concurrency", "requests", 5, {1, 2, 4, 8, 16}},
    {"output length", "output_tokens", 5, {32, 64, 128, 256, 512}},
    {"selector fraction", "selected", 5, {0.03125, 0.0625, 0.125, 0.25, 1}},
    {"reuse", "reuse", 5, {0, 0.25, 0.5, 0.75, 0.9}},
    {"coalescing", "coalesced", 5, {0, 0.125, 0.25, 0.5, 0.75}},
    {"bandwidth", "link_bytes_per_s", 5, {6.0 * 1073741824.0, 12.0 * 1073741824.0, 24.0 * 1073741824.0, 48.0 * 1073741824.0, 96.0 * 1073741824.0}},
    {"queue delay", "queue_ms", 5, {0, 0.15, 1, 10, 100}},
    {"CPU capacity", "host_bytes", 5, {32.0 * 1073741824.0, 64.0 * 1073741824.0, 128.0 * 1073741824.0, 256.0 * 1073741824.0, 512.0 * 1073741824.0}},
};

size_t kv_plan_sweep_count(void)
{
    return sizeof sweeps / sizeof *sweeps;
}

const struct kv_plan_sweep *kv_plan_sweep_at(size_t i)
{
    return i < kv_plan_sweep_count() ? &sweeps[i] : NULL;
}
