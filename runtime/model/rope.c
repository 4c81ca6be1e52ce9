/* rope.c — inverse frequencies of the rotary embedding with the scaling a file declares: none, linear, NTK, YaRN, llama3 factors.
 * In double with the kernels' own functions, so that the tables have the same bits on every machine. */
#include "runtime/model/model.h"

#include <stdlib.h>
#include <string.h>

struct scaling {
    double factor, attn_factor, original_context, beta_fast, beta_slow;
    bool ntk, yarn;
};

static enum kv_status read_number(const struct kv_gguf *g, const char *architecture, const char *suffix, double min, double max,
                                  double *out, struct kv_error *err)
{
    char key[160];
    kv_model_key(architecture, suffix, key);
    enum kv_status s = kv_gguf_float(g, key, out, err);
    if (s == KV_NOT_FOUND) return KV_OK;
    if (s == KV_OK && !(*out >= min && *out <= max))
        return kv_fail(err, KV_MODEL_MALFORMED, key, "%g lies outside %g to %g", *out, min, max);
    return s;
}

static enum kv_status read_scaling(const struct kv_gguf *g, const char *architecture, int32_t context, struct scaling *c, struct kv_error *err)
{
    *c = (struct scaling){.factor = 1, .attn_factor = 1, .original_context = context, .beta_fast = 32, .beta_slow = 1};
    char key[160];
    struct kv_gguf_string type = {"linear", 6};
    kv_model_key(architecture, "rope.scaling.type", key);
    enum kv_status s = kv_gguf_text(g, key, &type, err);
    if (s != KV_OK && s != KV_NOT_FOUND) return s;
    bool none = type.len == 4 && !memcmp(type.data, "none", 4), linear = type.len == 6 && !memcmp(type.data, "linear", 6);
    c->ntk = type.len == 3 && !memcmp(type.data, "ntk", 3);
    c->yarn = type.len == 4 && !memcmp(type.data, "yarn", 4);
    if (!none && !linear && !c->ntk && !c->yarn)
        return kv_fail(err, KV_UNSUPPORTED, key, "RoPE scaling '%.*s' is not supported; none, linear, ntk and yarn are",
                       (int)(type.len < 40 ? type.len : 40), type.data);
    s = read_number(g, architecture, "rope.scale_linear", 1e-6, 1e6, &c->factor, err);
    if (s == KV_OK) s = read_number(g, architecture, "rope.scaling.factor", 0, 1e6, &c->factor, err);
    if (s == KV_OK) s = read_number(g, architecture, "rope.scaling.attn_factor", 1e-6, 1e6, &c->attn_factor, err);
    if (s == KV_OK) s = read_number(g, architecture, "rope.scaling.original_context_length", 1, 1e9, &c->original_context, err);
    if (s == KV_OK) s = read_number(g, architecture, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, &c->beta_fast, err);
    if (s == KV_OK) s = read_number(g, architecture, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, &c->beta_slow, err);
    if (none || c->factor == 0) c->factor = 1;
    return s;
}

static double whole_below(double x)
{
    double t = (double)(int64_t)x;
    return t > x ? t - 1 : t;
}

/* YaRN: the pair index at which a wavelength turns `turns` times over the original context. */
static double turning_pair(const struct scaling *c, int32_t d_rot, double base, double turns)
{
    const double two_pi = 6.283185307179586;
    return d_rot * kv_log(c->original_context / (turns * two_pi)) / (2 * kv_log(base));
}

static void fill(const struct scaling *c, double base, const float *factors, struct kv_weights *w)
{
    int32_t d = w->d_rot;
    double low = 0, high = 0;
    if (c->ntk && d > 2) base *= kv_pow(c->factor, (double)d / (d - 2));
    if (c->yarn) {
        low = whole_below(turning_pair(c, d, base, c->beta_fast));
        high = -whole_below(-turning_pair(c, d, base, c->beta_slow));
        if (low < 0) low = 0;
        if (high > d - 1) high = d - 1;
    }
    for (int32_t i = 0; i < d / 2; i++) {
        double plain = kv_pow(base, -2.0 * i / d) / (factors ? (double)factors[i] : 1.0);
        double share = 0; /* of the unscaled frequency */
        if (c->yarn) {
            double ramp = (i - low) / (high - low > 0.001 ? high - low : 0.001);
            share = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        }
        w->inv_freq[i] = c->ntk ? plain : plain / c->factor * (1 - share) + plain * share;
    }
    w->rope_mscale = (float)(c->attn_factor * (c->yarn ? 1 + 0.1 * kv_log(c->factor) : 1));
}

enum kv_status kv_rope_load(const struct kv_gguf *g, const char *architecture, double base, const struct kv_gguf_tensor *factors,
                            struct kv_weights *w, struct kv_error *err)
{
    struct scaling c;
    double d_rot = w->d_head;
    enum kv_status s = read_number(g, architecture, "rope.dimension_count", 2, w->d_head, &d_rot, err);
    if (s == KV_OK) s = read_scaling(g, architecture, w->context_length, &c, err);
    if (s != KV_OK) return s;
    w->d_rot = (int32_t)d_rot;
    if (w->d_rot % 2) return kv_fail(err, KV_MODEL_MALFORMED, "rope.dimension_count", "%d is odd", w->d_rot);
    const float *values = NULL;
    if (factors) {
        if (factors->type != KV_F32 || factors->n_dims != 1 || factors->dims[0] != w->d_rot / 2)
            return kv_fail(err, KV_MODEL_MALFORMED, "rope_freqs.weight", "expected %d values of F32", w->d_rot / 2);
        values = (const float *)(const void *)factors->data;
        for (int32_t i = 0; i < w->d_rot / 2; i++)
            if (!(values[i] > 0 && values[i] < 1e9f)) return kv_fail(err, KV_MODEL_MALFORMED, "rope_freqs.weight", "value %d is not a positive number", i);
    }
    w->inv_freq = calloc((size_t)w->d_rot / 2, sizeof *w->inv_freq);
    if (!w->inv_freq) return kv_fail(err, KV_OUT_OF_MEMORY, "rope", "no memory for the frequencies");
    fill(&c, base, values, w);
    return KV_OK;
}
