/* shadow.c — one selected unit against the dense reference, in double precision. */
#include "runtime/evaluate/shadow.h"

#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <string.h>

enum { MAX_D_HEAD = 1024 };

/* score [n] | top [n] (row keys for recall) | o [d] | o_r [d] | o_o [d] | row [d] (fp32) */
size_t kv_shadow_scratch_doubles(int32_t n_rows, int32_t d_head)
{
    return n_rows < 0 || d_head < 0 ? 0 : 2 * (size_t)n_rows + 4 * (size_t)d_head;
}

static double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static double norm(const double *a, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * a[i];
    return sqrt(sum);
}

static double recall_of(const double *score, uint64_t *keys, int32_t n, int32_t k, const uint64_t *mask)
{
    for (int32_t i = 0; i < n; i++) keys[i] = kv_rank_key((float)score[i], (uint32_t)i);
    kv_rank_select(keys, (size_t)n, (size_t)k);
    int32_t hit = 0;
    for (int32_t i = 0; i < k; i++) hit += !mask || kv_mask_has(mask, (int32_t)kv_rank_index(keys[i]));
    return (double)hit / k;
}

/* Weighted sums over the dense set, the support and the omitted rows, normalised; fills masses, state and V_max of *h. */
static void accumulate(const struct kv_rows *rows, const double *score, const uint64_t *mask, double *o, double *o_r, double *o_o,
                       float *row, struct kv_shadow_head *h)
{
    int32_t n = rows->n_rows, d = rows->d_head;
    /* Each part is summed against its own maximum, so that a support of vanishing mass still has its output. */
    double top_r = -INFINITY, top_o = -INFINITY, l_r = 0, l_o = 0;
    for (int32_t i = 0; i < n; i++) {
        double *top = !mask || kv_mask_has(mask, i) ? &top_r : &top_o;
        if (!(score[i] <= *top)) *top = score[i];
    }
    double top = top_o > top_r ? top_o : top_r, l = 0;
    memset(o, 0, (size_t)d * sizeof *o);
    memset(o_r, 0, (size_t)d * sizeof *o);
    memset(o_o, 0, (size_t)d * sizeof *o);
    for (int32_t i = 0; i < n; i++) {
        bool in = !mask || kv_mask_has(mask, i);
        double p = exp(score[i] - (in ? top_r : top_o)), whole = exp(score[i] - top), squares = 0, *part = in ? o_r : o_o;
        kv_rows_value(rows, i, row);
        for (int32_t c = 0; c < d; c++) {
            double v = row[c];
            squares += v * v;
            part[c] += p * v;
            o[c] += whole * v;
        }
        if (squares > h->v_max * h->v_max) h->v_max = sqrt(squares);
        *(in ? &l_r : &l_o) += p;
        l += whole;
        h->rows += in;
    }
    double w_r = h->rows ? l_r * exp(top_r - top) : 0, w_o = h->rows < n ? l_o * exp(top_o - top) : 0;
    h->retained_mass = n ? w_r / (w_r + w_o) : 1;
    h->omitted_mass = n ? w_o / (w_r + w_o) : 0;
    for (int32_t c = 0; c < d; c++) {
        if (h->rows) o_r[c] /= l_r;
        if (h->rows < n) o_o[c] /= l_o;
        if (n) o[c] /= l;
    }
    h->m = top_r;
    h->l = l_r;
}

static void judge(const struct kv_shadow_unit *u, int32_t g, const double *o, const double *o_r, const double *o_o, struct kv_shadow_head *h)
{
    int32_t d = u->rows->d_head;
    size_t stride = u->output_stride ? u->output_stride : (size_t)d;
    double delta = h->omitted_mass, error = 0, residual = 0, own = 0;
    for (int32_t c = 0; c < d; c++) {
        double e = o_r[c] - o[c], r = e - delta * (o_r[c] - o_o[c]);
        double p = u->output ? (double)u->output[(size_t)g * stride + (size_t)c] - o[c] : e;
        error += p * p;
        residual += r * r;
        own += e * e;
    }
    h->output_error = sqrt(error);
    h->output_norm = norm(o, d);
    h->output_error_relative = h->output_norm > 0 ? h->output_error / h->output_norm : 0;
    h->identity_residual = delta > 0 && delta < 1 ? sqrt(residual) : 0;
    h->bound = 2 * delta * h->v_max;
    /* Rounding of the fp32 output is no violation; nor is that of the reference itself. */
    bool held = sqrt(own) <= h->bound + 1e-12 * (1 + h->v_max);
    if (u->output && !u->estimator) held = held && h->output_error <= h->bound + 1e-5 * (1 + h->v_max);
    h->bound_holds = held;
}

static double worst(double a, double b);

/* ---------------------------------------------------------------- of live units */

/* Two states [group], a row, visible [group], and what the tree needs. */
size_t kv_shadow_online_doubles(int32_t n_rows, int32_t d_head, int32_t group)
{
    size_t g = (size_t)group, d = (size_t)d_head;
    size_t floats = g * (d + 2) * 2 + g + d + kv_attend_scratch_floats(group, d_head, kv_tree_level(kv_mask_words(n_rows))) + 64;
    size_t online = floats / 2 + 1, unit = kv_shadow_scratch_doubles(n_rows, d_head);
    return online > unit ? online : unit;
}

/* error ≤ 2 δ V_max: values are looked at until one is large enough. */
static bool bound_of(const struct kv_rows *rows, double error, double delta, float *row)
{
    for (int32_t i = 0; i < rows->n_rows; i++) {
        float squares = 0;
        kv_rows_value(rows, i, row);
        for (int32_t c = 0; c < rows->d_head; c++) squares += row[c] * row[c];
        double v = sqrt((double)squares);
        if (error <= 2 * delta * v + 1e-5 * (1 + v)) return true;
    }
    return false;
}

/* Finished: u is the output. */
static struct kv_states attend(const struct kv_attention *a, float *memory, float *tree)
{
    struct kv_states s = {memory, memory + a->n_q, memory + 2 * (size_t)a->n_q};
    kv_attend_subtree(kv_kernels(), a, kv_tree_level(a->n_blocks), 0, s, tree);
    kv_kernels()->finish(a->n_q, a->d_head, s, s.u, (size_t)a->d_head);
    return s;
}

enum kv_status kv_shadow_online(const struct kv_shadow_unit *u, double *scratch, size_t scratch_doubles, struct kv_sample *out)
{
    const struct kv_rows *rows = u->rows;
    int32_t n = rows->n_rows, d = rows->d_head, group = rows->group, blocks = kv_mask_words(n);
    if (n < 1 || d < 1 || d > MAX_D_HEAD || scratch_doubles < kv_shadow_online_doubles(n, d, group)) return KV_BAD_ARGUMENT;
    if (u->support && u->n_blocks < blocks) return KV_BAD_ARGUMENT;
    size_t g_n = (size_t)group, values = g_n * (size_t)d, stride = u->output_stride ? u->output_stride : (size_t)d;
    float *memory = (float *)(void *)scratch, *row = memory + 2 * (2 * g_n + values), *tree = row + d;
    int32_t *visible = (int32_t *)(void *)tree;
    tree += (g_n + 15) / 16 * 16;
    for (int32_t g = 0; g < group; g++) visible[g] = n;
    struct kv_attention a = {d, group, u->q, (size_t)d, rows->row_type, rows->scale, u->support ? u->n_blocks : blocks, rows->k, rows->v, visible, NULL};
    struct kv_states all = u->whole.m ? u->whole : attend(&a, memory, tree), some = u->part;
    if (u->support && !some.m) {
        a.support = u->support;
        some = attend(&a, memory + 2 * g_n + values, tree);
    }
    const float *whole = all.u, *part = some.u;
    out->kind = KV_SAMPLE_UNIT;
    out->omitted_mass = out->output_error = out->output_error_relative = 0;
    out->bound_holds = true;
    out->rows_selected = 0;
    out->rows_total = n;
    for (int32_t g = 0; g < group; g++) {
        const uint64_t *mask = u->support ? u->support + (size_t)g * (size_t)u->n_blocks : NULL;
        const float *given = u->output ? u->output + (size_t)g * stride : mask ? part + (size_t)g * (size_t)d : whole + (size_t)g * (size_t)d;
        int32_t selected = mask ? kv_mask_count(mask, blocks) : n;
        double delta = selected == n ? 0 : 1 - (double)some.l[g] * exp((double)some.m[g] - (double)all.m[g]) / (double)all.l[g], error = 0, norm_of = 0;
        if (delta < 0) delta = 0; /* rounding */
        for (int32_t c = 0; c < d; c++) {
            double o = whole[(size_t)g * (size_t)d + (size_t)c], e = (double)given[c] - o;
            error += e * e, norm_of += o * o;
        }
        error = sqrt(error), norm_of = sqrt(norm_of);
        out->omitted_mass = worst(out->omitted_mass, delta);
        out->output_error = worst(out->output_error, error);
        out->output_error_relative = worst(out->output_error_relative, norm_of > 0 ? error / norm_of : 0);
        /* An estimator promises no bound; what is no number breaks it. */
        if (!u->estimator || error != error) out->bound_holds = out->bound_holds && bound_of(rows, error, delta, row);
        if (selected > out->rows_selected) out->rows_selected = selected;
    }
    return KV_OK;
}

static double worst(double a, double b) { return b > a || b != b ? b : a; }

enum kv_status kv_shadow_unit(const struct kv_shadow_unit *u, double *scratch, size_t scratch_doubles, struct kv_sample *out,
                              struct kv_shadow_head *heads, double *dense, double *retained)
{
    const struct kv_rows *rows = u->rows;
    int32_t n = rows->n_rows, d = rows->d_head;
    if (n < 0 || d < 1 || d > MAX_D_HEAD || scratch_doubles < kv_shadow_scratch_doubles(n, d)) return KV_BAD_ARGUMENT;
    if (u->support && u->n_blocks < kv_mask_words(n)) return KV_BAD_ARGUMENT;
    double *score = scratch, *o = scratch + 2 * (size_t)n, *o_r = o + d, *o_o = o_r + d;
    uint64_t *keys = (uint64_t *)(void *)(scratch + n);
    float *row = (float *)(void *)(o_o + d);
    struct kv_sample s = *out;
    s.kind = KV_SAMPLE_UNIT;
    s.omitted_mass = s.output_error = s.output_error_relative = 0;
    s.bound_holds = true;
    s.rows_selected = 0;
    s.rows_total = n;
    for (int32_t g = 0; g < rows->group; g++) {
        const uint64_t *mask = u->support ? u->support + (size_t)g * (size_t)u->n_blocks : NULL;
        struct kv_shadow_head h = {.recall = -1};
        for (int32_t i = 0; i < n; i++) {
            kv_rows_key(rows, i, row);
            score[i] = dot(u->q + (size_t)g * (size_t)d, row, d) * (double)rows->scale;
        }
        accumulate(rows, score, mask, o, o_r, o_o, row, &h);
        judge(u, g, o, o_r, o_o, &h);
        h.recall_k = u->recall_k == KV_RECALL_OWN ? h.rows : u->recall_k < n ? u->recall_k : n;
        if (h.recall_k > 0) h.recall = recall_of(score, keys, n, h.recall_k, mask);
        s.omitted_mass = worst(s.omitted_mass, h.omitted_mass);
        s.output_error = worst(s.output_error, h.output_error);
        s.output_error_relative = worst(s.output_error_relative, h.output_error_relative);
        s.bound_holds = s.bound_holds && h.bound_holds;
        if (h.rows > s.rows_selected) s.rows_selected = h.rows;
        if (heads) heads[g] = h;
        if (dense) memcpy(dense + (size_t)g * (size_t)d, o, (size_t)d * sizeof *o);
        if (retained) memcpy(retained + (size_t)g * (size_t)d, o_r, (size_t)d * sizeof *o);
    }
    *out = s;
    return KV_OK;
}
