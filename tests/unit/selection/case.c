/* case.c — small selection cases for tests. */
#include "tests/unit/selection/case.h"

#include "runtime/selection/draw.h"
#include "runtime/selection/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *normals(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)kv_draw_normal(seed, i);
    return x;
}

static void set_method(struct test_case *t, const char *method)
{
    t->c.method = kv_selector_find(method);
    ck_assert_msg(t->c.method || !strcmp(method, "dense"), "no method %s", method);
    if (t->c.method) kv_specs_default(t->c.method->params, t->c.method->n_params, &t->c.params);
}

void case_random(struct test_case *t, const char *method, int32_t n_q, int32_t n_kv, int32_t d, int32_t n_rows, uint64_t seed)
{
    size_t rows = (size_t)n_kv * (size_t)n_rows * (size_t)d;
    *t = (struct test_case){.c = {.n_q_heads = n_q, .n_kv_heads = n_kv, .d_head = d, .n_rows = n_rows, .row_type = KV_F32}};
    t->c.q = t->q = normals((size_t)n_q * (size_t)d, seed + 1);
    t->c.k = t->k = normals(rows, seed + 2);
    t->c.v = t->v = normals(rows, seed + 3);
    set_method(t, method);
}

void case_plane(struct test_case *t, const char *method, const float q[2], const float (*k)[2], const float (*v)[2], int32_t n)
{
    case_random(t, method, 1, 1, 2, n, 0);
    memcpy(t->q, q, 2 * sizeof *q);
    memcpy(t->k, k, (size_t)n * sizeof *k);
    if (v) memcpy(t->v, v, (size_t)n * sizeof *v);
}

void case_param(struct test_case *t, const char *name, double value)
{
    struct kv_error err;
    ck_assert_msg(kv_specs_set(t->c.method->params, t->c.method->n_params, t->c.method->name, &t->c.params, name, value, &err) == KV_OK, "%s", err.message);
}

void case_prefill(struct test_case *t, int32_t n, uint64_t seed)
{
    free(t->prefill);
    t->c.prefill_q = t->prefill = normals((size_t)t->c.n_q_heads * (size_t)n * (size_t)t->c.d_head, seed + 4);
    t->c.n_prefill_q = n;
}

void case_widest(struct test_case *t)
{
    static const char *const names[] = {"budget_rows", "k", "cap_rows", "top_rows"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int32_t p = 0; p < t->c.method->n_params; p++)
            if (!strcmp(t->c.method->params[p].name, names[i])) case_param(t, names[i], t->c.n_rows);
    if (!strcmp(t->c.method->name, "infinigen")) case_param(t, "alpha", 1e9);
    if (!strcmp(t->c.method->name, "sparq")) case_param(t, "local_rows", 0);
    if (!strcmp(t->c.method->name, "infllm")) case_param(t, "units", 65536), case_param(t, "unit_rows", 7), case_param(t, "local_rows", 5), case_param(t, "sink_rows", 3);
}

void case_free(struct test_case *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->prefill);
}

struct kv_lab_result case_run(const struct test_case *t)
{
    struct kv_lab_result r;
    struct kv_error err = {0};
    enum kv_status status = kv_lab_run(&t->c, &r, &err);
    ck_assert_msg(status == KV_OK, "%s: %s", kv_status_name(status), err.message);
    return r;
}

double case_logit(const struct test_case *t, int32_t q_head, int32_t row)
{
    int32_t d = t->c.d_head, h = q_head / (t->c.n_q_heads / t->c.n_kv_heads);
    double dot = 0;
    for (int32_t c = 0; c < d; c++) dot += (double)t->q[q_head * d + c] * (double)t->k[((size_t)h * (size_t)t->c.n_rows + (size_t)row) * (size_t)d + (size_t)c];
    return dot * (t->c.scale != 0 ? t->c.scale : 1 / sqrt(d));
}

void expect_rows(const struct kv_lab_result *r, int32_t q_head, const int32_t *rows, int32_t n)
{
    const uint64_t *mask = r->support + (size_t)q_head * (size_t)r->n_blocks;
    for (int32_t i = 0; i < n; i++) ck_assert_msg(kv_mask_has(mask, rows[i]), "row %d is not in the support of head %d", rows[i], q_head);
    ck_assert_int_eq(kv_mask_count(mask, r->n_blocks), n);
}
