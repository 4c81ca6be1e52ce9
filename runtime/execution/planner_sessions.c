/* planner_sessions.c — pauses: preserve, swap or recompute, persist or discard, and a tier's value. */
#include "runtime/execution/planner.h"

#include <math.h>

#define GET(name) kv_plan_get(in, name)
#define ADD(unit, value, formula, ...) kv_plan_add(out, unit, value, formula, __VA_ARGS__)
#define MODEL(id, title, where, what) \
    const struct kv_plan_model kv_plan_##id = {title, where, what, id##_spec, (int32_t)(sizeof id##_spec / sizeof *id##_spec), run_##id}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static const struct kv_plan_spec interruption_spec[] = {
    {"context_tokens", "tokens", "C_i: context of the paused request", 1, {2048}, 1, 1e9},
    {"other_tokens", "tokens", "C_other: contexts of the running ones", 1, {4096}, 0, 1e9},
    {"bytes_per_token", "bytes", "K/V bytes per token", 1, {16384}, 1, 1e12},
    {"link_bytes_per_s", "bytes/s", "bandwidth one way", 1, {20.0 * 1073741824.0}, 1, 1e15},
    {"swap_fixed_ms", "ms", "fixed cost one way", 1, {0.1}},
    {"pause_ms", "ms", "T_INT: how long the pause lasts, or has lasted so far", 1, {6}},
    {"recompute_ms", "ms", "T_fwd(C_i)", 1, {3.0}},
    {"chunks", "", "n: chunks of a recompute", 1, {2}, 1, 1e6},
    {"chunk_ms", "ms", "T_fwd(C_i / n)", 1, {1.8}},
};
static enum kv_status run_interruption(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double c = GET("context_tokens"), other = GET("other_tokens"), m = GET("bytes_per_token");
    double swap = ADD("ms", 1e3 * c * m / GET("link_bytes_per_s") + GET("swap_fixed_ms"), "C_i M / link + fixed", "swap_one_way_ms");
    ADD("byte-ms", 2 * swap * (c + other) * m, "2 T_swap C_batch M", "waste_swap_byte_ms");
    double preserve = ADD("byte-ms", GET("pause_ms") * c * m, "T_INT C_i M", "waste_preserve_byte_ms");
    ADD("byte-ms", GET("recompute_ms") * (c + other) * m, "T_fwd(C_i) (C_i + C_other) M", "waste_discard_byte_ms");
    double chunked = ADD("byte-ms", GET("recompute_ms") * c * m / 2 + GET("chunks") * GET("chunk_ms") * other * m, "T_fwd(C_i) C_i M / 2 + n T_fwd(C_i/n) C_other M",
                         "waste_chunked_byte_ms");
    ADD("ms", chunked / (c * m), "W_chunk / (C_i M)", "crossing_ms");
    ADD("byte-ms", smaller(preserve, chunked), "min(W_preserve, W_chunk)", "potential_waste_byte_ms");
    ADD("bool", preserve <= chunked, "W_preserve ≤ W_chunk", "preserve");
    return KV_OK;
}
MODEL(interruption, "interruption", "0x04L", "an interrupted request: preserve, swap or recompute, in byte-ms");

static const struct kv_plan_spec swap_limit_spec[] = {
    {"foreground_ms", "ms", "forward time the swap must hide under", 1, {0.8}},
    {"link_bytes_per_s", "bytes/s", "bandwidth", 1, {20.0 * 1073741824.0}, 1, 1e15},
    {"bytes_per_token", "bytes", "K/V bytes per token", 1, {16384}, 1, 1e12},
    {"context_tokens", "tokens", "context to swap", 1, {2048}, 0, 1e9},
};
static enum kv_status run_swap_limit(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    double limit = ADD("tokens", floor(GET("foreground_ms") * 1e-3 * GET("link_bytes_per_s") / GET("bytes_per_token")), "⌊T_fg BW / M⌋", "tokens_per_iteration");
    if (limit < 1) return kv_fail(err, KV_CAPACITY, "foreground_ms", "not one token fits under the foreground time");
    ADD("", ceil(GET("context_tokens") / limit), "⌈context / limit⌉", "iterations");
    return KV_OK;
}
MODEL(swap_limit, "swap-limit", "0x04M", "tokens that may swap in one iteration");

static const struct kv_plan_spec recompute_chunk_spec[] = {
    {"saturation_tokens", "tokens", "S: query tokens that fill useful compute", 1, {6144}},
    {"running_tokens", "tokens", "B: of the running group", 1, {4096}},
};
static enum kv_status run_recompute_chunk(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double room = GET("saturation_tokens") - GET("running_tokens");
    ADD("tokens", room > 0 ? room : 0, "max(0, S − B)", "chunk_tokens");
    return KV_OK;
}
MODEL(recompute_chunk, "recompute-chunk", "0x04M", "recompute tokens of one iteration under the saturation point");

static const struct kv_plan_spec persist_spec[] = {
    {"reuse", "", "p: probability of reuse", 1, {0.8}, 0, 1},
    {"resume_ms", "ms", "T_resume from the host", 1, {3.483125}},
    {"suffix_ms", "ms", "G_suffix: compute of the new turn alone", 1, {1.8}},
    {"save_visible_ms", "ms", "T_save that is not hidden", 1, {0}},
    {"full_ms", "ms", "T_full: recompute, visible", 1, {10.07}},
    {"full_compute_ms", "ms", "G_full: recompute, compute", 1, {9.6}},
    {"history_mib", "MiB", "M: size kept", 1, {48}},
    {"idle_s", "s", "D: time until reuse", 1, {505}},
    {"weight_time", "/ms", "c_t", 1, {0.5}},
    {"weight_compute", "/ms", "c_g", 1, {0.5}},
    {"weight_transfer", "/MiB", "c_x", 1, {0.01}},
    {"weight_holding", "/MiB/s", "c_h", 1, {2.5e-6}},
};
static enum kv_status run_persist(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double p = GET("reuse"), m = GET("history_mib"), ct = GET("weight_time"), cg = GET("weight_compute"), cx = GET("weight_transfer");
    double reuse = ADD("cost", p * (ct * GET("resume_ms") + cg * GET("suffix_ms") + cx * m), "p (c_t T_resume + c_g G_suffix + c_x M)", "reuse_cost");
    double save = ADD("cost", ct * GET("save_visible_ms") + cx * m, "c_t T_save + c_x M", "save_cost");
    double hold = ADD("cost", GET("weight_holding") * m * GET("idle_s"), "c_h M D", "holding_cost");
    double persist = ADD("cost", reuse + save + hold, "", "j_persist");
    double discard = ADD("cost", p * (ct * GET("full_ms") + cg * GET("full_compute_ms")), "p (c_t T_full + c_g G_full)", "j_discard");
    ADD("bool", persist < discard, "j_persist < j_discard", "persist");
    return KV_OK;
}
MODEL(persist, "persist", "0x04J", "keep a completed turn's history, or drop it");

static const struct kv_plan_spec tier_value_spec[] = {
    {"reuse", "", "p_c", 1, {0.3}, 0, 1},
    {"recompute_ms", "ms", "T_recompute of the chunk", 1, {9.6}},
    {"promote_ms", "ms", "T_promote from the tier", 1, {2.2}},
    {"capacity_cost_ms", "ms", "C_capacity, as time", 1, {0.5}},
    {"write_cost_ms", "ms", "C_write, as time", 1, {0.6}},
};
static enum kv_status run_tier_value(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double saved = ADD("ms", GET("recompute_ms") - GET("promote_ms"), "T_recompute − T_promote", "saved_ms");
    ADD("ms", GET("reuse") * saved - GET("capacity_cost_ms") - GET("write_cost_ms"), "p (T_recompute − T_promote) − C_capacity − C_write", "value_ms");
    return KV_OK;
}
MODEL(tier_value, "tier-value", "0x04E", "value of keeping a chunk in a tier");
