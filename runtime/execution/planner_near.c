/* planner_near.c — attention near its data: payloads, partial states, head groups, NEO's schedule, SparQ's reads. */
#include "runtime/execution/planner.h"

#include <math.h>

#define GET(name) kv_plan_get(in, name)
#define ADD(unit, value, formula, ...) kv_plan_add(out, unit, value, formula, __VA_ARGS__)
#define MODEL(id, title, where, what) \
    const struct kv_plan_model kv_plan_##id = {title, where, what, id##_spec, (int32_t)(sizeof id##_spec / sizeof *id##_spec), run_##id}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static const struct kv_plan_spec near_data_spec[] = {
    {"batch", "", "B", 1, {1}, 1, 1e6},
    {"positions", "rows", "T", 1, {4096}, 0, 1e9},
    {"q_heads", "", "H_q", 1, {8}, 1, 4096},
    {"kv_heads", "", "H_kv", 1, {8}, 1, 4096},
    {"d_head", "", "d_h", 1, {128}, 1, 4096},
    {"kv_bytes", "bytes", "per stored scalar", 1, {2}, 0.25, 8},
    {"activation_bytes", "bytes", "per activation scalar", 1, {2}, 0.25, 8},
    {"send_gb_per_s", "GB/s (decimal)", "towards the tier", 1, {24}, 1e-6, 1e6},
    {"return_gb_per_s", "GB/s (decimal)", "back", 1, {24}, 1e-6, 1e6},
    {"send_fixed_ms", "ms", "fixed cost of sending", 1, {0.02}},
    {"return_fixed_ms", "ms", "fixed cost of returning", 1, {0.02}},
};
static enum kv_status run_near_data(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double b = GET("batch"), d = GET("d_head"), kv = GET("kv_heads"), row = 2 * b * kv * d * GET("kv_bytes");
    ADD("bytes", row * GET("positions"), "2 B T H_kv d b", "full_kv_bytes");
    double append = ADD("bytes", row, "2 B H_kv d b", "append_bytes");
    ADD("bytes", row * GET("positions") + append, "full + append", "move_bytes");
    double q = ADD("bytes", b * GET("q_heads") * d * GET("activation_bytes"), "B H_q d b_a", "query_bytes");
    double o = ADD("bytes", q, "B H_q d b_a", "output_bytes");
    ADD("bytes", q + append + o, "M_Q + M_append + M_O", "near_bytes");
    double send = ADD("ms", GET("send_fixed_ms") + 1e3 * (q + append) / (GET("send_gb_per_s") * 1e9), "τ + (M_Q + M_append) / BW", "send_ms");
    double back = ADD("ms", GET("return_fixed_ms") + 1e3 * o / (GET("return_gb_per_s") * 1e9), "τ + M_O / BW", "return_ms");
    ADD("ms", send + back, "send + return; the tier's scan comes on top", "near_transfer_ms");
    return KV_OK;
}
MODEL(near_data, "near-data", "0x04S", "bytes of moving K/V to compute against compute to K/V");

static const struct kv_plan_spec headwise_spec[] = {
    {"batch", "", "B", 1, {1}, 1, 1e6},
    {"positions", "rows", "T", 1, {4096}, 0, 1e9},
    {"q_heads", "", "H_q", 1, {8}, 1, 4096},
    {"kv_heads", "", "H_kv", 1, {8}, 1, 4096},
    {"group_heads", "", "g: K/V heads per group", 1, {1}, 1, 4096},
    {"d_head", "", "d_h", 1, {128}, 1, 4096},
    {"kv_bytes", "bytes", "per stored scalar", 1, {2}, 0.25, 8},
};
static enum kv_status run_headwise(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    double g = GET("group_heads"), kv = GET("kv_heads");
    if (g > kv) return kv_fail(err, KV_BAD_ARGUMENT, "group_heads", "a group of %g exceeds %g K/V heads", g, kv);
    double group = ADD("bytes", 2 * GET("batch") * GET("positions") * g * GET("d_head") * GET("kv_bytes"), "2 B T g d b", "group_bytes");
    double groups = ADD("", ceil(kv / g), "⌈H_kv / g⌉", "groups");
    ADD("bytes", 2 * group, "two ping-pong slots", "staging_bytes");
    ADD("bytes", 2 * GET("batch") * GET("positions") * kv * GET("d_head") * GET("kv_bytes"), "every group of a layer", "layer_bytes");
    ADD("", groups, "", "launches_per_layer");
    return KV_OK;
}
MODEL(headwise, "headwise", "0x04U", "head groups: less staging, the same bytes");

static const struct kv_plan_spec partial_state_spec[] = {
    {"batch", "", "B", 1, {1}, 1, 1e6},
    {"q_heads", "", "H_q", 1, {8}, 1, 4096},
    {"d_value", "", "d_v", 1, {128}, 1, 4096},
    {"state_bytes", "bytes", "per state scalar", 1, {4}, 2, 8},
    {"producers", "", "P: partitions that each return one state", 1, {2}, 1, 1e6},
};
static enum kv_status run_partial_state(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double one = ADD("bytes", GET("batch") * GET("q_heads") * (2 + GET("d_value")) * GET("state_bytes"), "B H_q (2 + d_v) b_s", "state_bytes_one");
    ADD("bytes", one * GET("producers"), "P states", "state_bytes_return");
    return KV_OK;
}
MODEL(partial_state, "partial-state", "0x04S", "bytes of the states that partitions return");

static const struct kv_plan_spec neo_spec[] = {
    {"layers", "", "L", 1, {4}, 1, 4096},
    {"linear_0_ms", "ms", "T_l0", 1, {0.65}},
    {"cpu_attention_1_ms", "ms", "T_ca1", 1, {0.55}},
    {"linear_1_ms", "ms", "T_l1", 1, {0.22}},
    {"gpu_attention_0_ms", "ms", "T_ga0", 1, {0.28}},
    {"cpu_attention_0_ms", "ms", "T_ca0", 1, {0.45}},
};
static enum kv_status run_neo(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    (void)err;
    double first = ADD("ms", larger(GET("linear_0_ms"), GET("cpu_attention_1_ms")), "max(T_l0, T_ca1)", "stage_0_ms");
    double gpu = GET("linear_1_ms") + GET("gpu_attention_0_ms");
    double second = ADD("ms", larger(gpu, GET("cpu_attention_0_ms")), "max(T_l1 + T_ga0, T_ca0)", "stage_1_ms");
    double layer = ADD("ms", first + second, "", "layer_ms");
    ADD("ms", layer * GET("layers"), "L layer_ms", "total_ms");
    ADD("bool", GET("cpu_attention_1_ms") <= GET("linear_0_ms"), "T_ca1 ≤ T_l0", "hidden_0");
    ADD("bool", GET("cpu_attention_0_ms") <= gpu, "T_ca0 ≤ T_l1 + T_ga0", "hidden_1");
    return KV_OK;
}
MODEL(neo, "neo", "0x04V", "two asymmetric sub-batches, attention of whole requests beside their data");

static const struct kv_plan_spec sparq_spec[] = {
    {"positions", "rows", "T", 1, {4096}, 1, 1e9},
    {"d_head", "", "d", 1, {128}, 1, 4096},
    {"channels", "", "r", 1, {32}, 1, 4096},
    {"tokens", "", "k", 1, {128}, 1, 1e9},
};
static enum kv_status run_sparq(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    double t = GET("positions"), d = GET("d_head"), r = GET("channels"), k = GET("tokens");
    if (r > d) return kv_fail(err, KV_BAD_ARGUMENT, "channels", "%g channels of a head %g wide", r, d);
    double dense = ADD("elements", 2 * t * d + 2 * d, "2 T d + 2 d", "dense_elements");
    ADD("elements", t * r, "T r", "proxy_elements");
    ADD("elements", 2 * k * d, "2 k d", "gather_elements");
    double sparse = ADD("elements", t * r + 2 * k * d + 4 * d, "T r + 2 k d + 4 d", "sparq_elements");
    ADD("", sparse / dense, "sparq / dense; no statement on quality", "fraction");
    return KV_OK;
}
MODEL(sparq, "sparq", "0x05I", "elements SparQ reads against dense attention");
