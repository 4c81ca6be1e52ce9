/* planner_flexgen.c — FlexGen's policy search: shares of weights, cache and activations over device, host and disk, and a block size.
 *
 * Cost terms are the paper's, per layer; generation pays the host-to-device copy before the others, as the published code does. The search walks a grid of
 * shares instead of solving a linear programme, so its answer is the best on that grid. Hidden states stay off the disk, as in the runtime. */
#include "runtime/execution/planner.h"

#include <math.h>

#define GET(name) kv_plan_get(in, name)
#define ADD(unit, value, formula, ...) kv_plan_add(out, unit, value, formula, __VA_ARGS__)

static const struct kv_plan_spec specs[] = {
    {"layers", "", "l", 1, {48}, 1, 4096},
    {"hidden", "", "h1", 1, {7168}, 1, 1e6},
    {"ffn", "", "h2", 1, {28672}, 1, 1e7},
    {"prompt_tokens", "tokens", "s", 1, {512}, 1, 1e7},
    {"output_tokens", "tokens", "n", 1, {32}, 1, 1e7},
    {"device_bytes", "bytes", "device memory", 1, {16e9}},
    {"host_bytes", "bytes", "host memory", 1, {208e9}},
    {"disk_bytes", "bytes", "disk", 1, {1.5e12}},
    {"slack", "", "usable share of each memory", 1, {0.8}, 0.01, 1},
    {"host_to_device", "bytes/s", "ctog", 1, {12.89e9}, 1, 1e15},
    {"device_to_host", "bytes/s", "gtoc", 1, {4.82e9}, 1, 1e15},
    {"disk_to_host", "bytes/s", "dtoc", 1, {0.473e9}, 1, 1e15},
    {"host_to_disk", "bytes/s", "ctod", 1, {0.473e9}, 1, 1e15},
    {"matmul_flop_per_s", "FLOP/s", "device, weights", 1, {21.24e12}, 1, 1e18},
    {"attention_flop_per_s", "FLOP/s", "device, attention", 1, {4.3e12}, 1, 1e18},
    {"host_flop_per_s", "FLOP/s", "host, attention over host and disk cache", 1, {0.0123e12}, 1, 1e18},
    {"gpu_batch", "", "candidates of gbs", 5, {8, 16, 24, 32, 48}, 1, 1e6},
    {"batches", "", "candidates of num_batches", 5, {1, 2, 3, 6, 12}, 1, 1e6},
    {"grid", "", "steps of each share", 1, {10}, 1, 20},
};

struct machine {
    double l, h1, h2, s, n, weights; /* weights: bytes of one layer, fp16 */
    double memory[3], ctog, gtoc, dtoc, ctod, matmul, attention, host;
};

struct policy {
    double w[3], c[3], h[2]; /* shares on device, host, disk */
    double gbs, batches, bls;
    double prefill_s, decode_s, total_s; /* per layer, per layer and token, whole */
    double peak[3];
    bool feasible;
};

static double longest(const double *v, int n)
{
    double m = 0;
    for (int i = 0; i < n; i++) m = v[i] > m ? v[i] : m;
    return m;
}

static void cost(const struct machine *m, struct policy *p)
{
    double bls = p->bls, h1 = m->h1, s = m->s, off_w = (p->w[1] + p->w[2]) * m->weights, hidden = 2 * p->h[1] * h1 * bls;
    double mean = s + m->n / 2, linear = 8 * h1 * h1 + 4 * h1 * m->h2;
    double ctog = (off_w + hidden * s) / m->ctog, gtoc = (4 * (p->c[1] + p->c[2]) * (s + 1) * h1 * bls + hidden * s) / m->gtoc;
    double dtoc = p->w[2] * m->weights / m->dtoc, ctod = 4 * p->c[2] * bls * (s + 1) * h1 / m->ctod;
    double comp = bls * s * linear / m->matmul + 4 * bls * s * s * h1 / m->attention;
    p->prefill_s = longest((double[]){ctog + dtoc, gtoc + ctod, comp}, 3);
    ctog = (off_w + hidden) / m->ctog;
    gtoc = hidden / m->gtoc;
    dtoc = (4 * p->c[2] * bls * mean * h1 + p->w[2] * m->weights) / m->dtoc;
    ctod = 4 * p->c[2] * bls * h1 / m->ctod;
    comp = bls * linear / m->matmul + 4 * p->c[0] * bls * mean * h1 / m->attention + 4 * (p->c[1] + p->c[2]) * bls * mean * h1 / m->host;
    p->decode_s = ctog + longest((double[]){gtoc, dtoc, ctod, comp}, 4);
    p->total_s = p->prefill_s * m->l + p->decode_s * (m->n - 1) * m->l;
    double cache = 4 * (s + m->n) * h1 * bls * m->l, states = 2 * s * h1 * bls;
    for (int i = 0; i < 3; i++) p->peak[i] = p->w[i] * m->weights * m->l + p->c[i] * cache + (i < 2 ? p->h[i] * states : 0);
    /* Working room: two layers of weights that are not at home on the device, one device batch of prefill states and its attention rows. */
    p->peak[0] += 2 * (1 - p->w[0]) * m->weights + p->gbs * (4 * s * h1 * 2 + 2 * s * m->h2);
    p->peak[1] += 2 * p->w[2] * m->weights + p->c[2] * cache / m->l * 2;
    p->feasible = true;
    for (int i = 0; i < 3; i++) p->feasible &= p->peak[i] <= m->memory[i];
}

/* The best shares for one block size. */
static void search(const struct machine *m, int grid, struct policy base, struct policy *best, double *tried)
{
    for (int wg = 0; wg <= grid; wg++)
        for (int wc = 0; wc <= grid - wg; wc++)
            for (int cg = 0; cg <= grid; cg++)
                for (int cc = 0; cc <= grid - cg; cc++)
                    for (int hg = 0; hg <= grid; hg += grid) {
                        struct policy p = base;
                        p.w[0] = (double)wg / grid, p.w[1] = (double)wc / grid, p.w[2] = (double)(grid - wg - wc) / grid;
                        p.c[0] = (double)cg / grid, p.c[1] = (double)cc / grid, p.c[2] = (double)(grid - cg - cc) / grid;
                        p.h[0] = (double)hg / grid, p.h[1] = 1 - p.h[0];
                        cost(m, &p);
                        ++*tried;
                        if (p.feasible && (!best->feasible || p.total_s / p.bls < best->total_s / best->bls)) *best = p;
                    }
}

static enum kv_status run(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    struct machine m = {.l = GET("layers"), .h1 = GET("hidden"), .h2 = GET("ffn"), .s = GET("prompt_tokens"), .n = GET("output_tokens"), .ctog = GET("host_to_device"),
                        .gtoc = GET("device_to_host"), .dtoc = GET("disk_to_host"), .ctod = GET("host_to_disk"), .matmul = GET("matmul_flop_per_s"),
                        .attention = GET("attention_flop_per_s"), .host = GET("host_flop_per_s")};
    m.weights = 8 * m.h1 * m.h1 + 4 * m.h1 * m.h2;
    m.memory[0] = GET("device_bytes") * GET("slack"), m.memory[1] = GET("host_bytes") * GET("slack"), m.memory[2] = GET("disk_bytes") * GET("slack");
    int32_t n_gbs, n_batches;
    const double *gbs = kv_plan_list(in, "gpu_batch", &n_gbs), *batches = kv_plan_list(in, "batches", &n_batches);
    if ((double)n_gbs * n_batches > 64) return kv_fail(err, KV_BAD_ARGUMENT, "gpu_batch", "more than 64 block sizes are too many to search");
    struct policy best = {.feasible = false};
    double tried = 0;
    for (int32_t i = 0; i < n_gbs; i++)
        for (int32_t k = 0; k < n_batches; k++)
            search(&m, (int)GET("grid"), (struct policy){.gbs = gbs[i], .batches = batches[k], .bls = gbs[i] * batches[k]}, &best, &tried);
    if (!best.feasible) return kv_fail(err, KV_CAPACITY, "device_bytes", "no policy fits these memories");
    static const char *const place[3] = {"device", "host", "disk"};
    ADD("", tried, "", "policies_tried");
    ADD("", best.gbs, "gbs", "gpu_batch");
    ADD("", best.batches, "", "batches");
    ADD("", best.bls, "gbs batches", "block");
    for (int i = 0; i < 3; i++) ADD("", best.w[i], "", "weights.%s", place[i]);
    for (int i = 0; i < 3; i++) ADD("", best.c[i], "", "cache.%s", place[i]);
    for (int i = 0; i < 2; i++) ADD("", best.h[i], "", "hidden.%s", place[i]);
    for (int i = 0; i < 3; i++) ADD("bytes", best.peak[i], "home + working room", "peak.%s", place[i]);
    ADD("ms", 1e3 * best.prefill_s, "max(ctog + dtoc, gtoc + ctod, compute)", "prefill_layer_ms");
    ADD("ms", 1e3 * best.decode_s, "ctog + max(gtoc, dtoc, ctod, compute)", "decode_layer_ms");
    ADD("s", best.total_s, "T_pre l + T_gen (n − 1) l", "block_s");
    ADD("tokens/s", best.bls * m.n / best.total_s, "bls n / T", "throughput");
    return KV_OK;
}
const struct kv_plan_model kv_plan_flexgen = {"flexgen", "0x02D", "blocked placement: shares of weights, cache and activations by search", specs, sizeof specs / sizeof *specs, run};
