/* planner.c — the list of models, their inputs and their terms. */
#include "runtime/execution/planner.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_plan_model *const models[] = {
#define KV_PLAN_ROW(name) &kv_plan_##name,
    KV_PLAN_MODELS(KV_PLAN_ROW)
#undef KV_PLAN_ROW
};

size_t kv_plan_count(void)
{
    return sizeof models / sizeof *models;
}

const struct kv_plan_model *kv_plan_at(size_t i)
{
    return i < kv_plan_count() ? models[i] : NULL;
}

const struct kv_plan_model *kv_plan_find(const char *name)
{
    for (size_t i = 0; i < kv_plan_count(); i++)
        if (!strcmp(models[i]->name, name)) return models[i];
    return NULL;
}

void kv_plan_example(const struct kv_plan_model *m, struct kv_plan_inputs *out)
{
    memset(out, 0, sizeof *out);
    out->model = m;
    for (int32_t i = 0; i < m->n_specs; i++) {
        out->n[i] = m->spec[i].n;
        memcpy(out->value[i], m->spec[i].example, (size_t)m->spec[i].n * sizeof(double));
    }
}

static int32_t spec_index(const struct kv_plan_model *m, const char *name)
{
    for (int32_t i = 0; i < m->n_specs; i++)
        if (!strcmp(m->spec[i].name, name)) return i;
    return -1;
}

enum kv_status kv_plan_set(struct kv_plan_inputs *in, const char *name, const double *values, int32_t n, struct kv_error *err)
{
    int32_t i = spec_index(in->model, name);
    if (i < 0) {
        kv_fail(err, KV_UNKNOWN_KEY, name, "the model %s has no input of that name", in->model->name);
        kv_hint(err, "kvasir plan --example %s prints its inputs", in->model->name);
        return KV_UNKNOWN_KEY;
    }
    const struct kv_plan_spec *s = &in->model->spec[i];
    if (n < 1 || n > KV_PLAN_MAX_VALUES || (s->n == 1 && n != 1))
        return kv_fail(err, KV_BAD_ARGUMENT, name, s->n == 1 ? "%s takes one number" : "%s takes 1 to 128 numbers", name);
    double max = s->min == 0 && s->max == 0 ? 1e300 : s->max;
    for (int32_t k = 0; k < n; k++)
        if (!(values[k] >= s->min && values[k] <= max))
            return kv_fail(err, KV_BAD_ARGUMENT, name, "%s is %g; it must lie between %g and %g %s", name, values[k], s->min, max, s->unit);
    in->n[i] = n;
    memcpy(in->value[i], values, (size_t)n * sizeof *values);
    return KV_OK;
}

enum kv_status kv_plan_run(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err)
{
    out->n = 0;
    out->overflow = false;
    enum kv_status s = in->model->run(in, out, err);
    if (s != KV_OK) return s;
    for (int32_t i = 0; i < out->n; i++)
        if (!isfinite(out->term[i].value)) return kv_fail(err, KV_BAD_ARGUMENT, out->term[i].name, "%s is not a finite number with these inputs", out->term[i].name);
    return KV_OK;
}

const struct kv_plan_term *kv_plan_term_find(const struct kv_plan_report *r, const char *name)
{
    for (int32_t i = 0; i < r->n; i++)
        if (!strcmp(r->term[i].name, name)) return &r->term[i];
    return NULL;
}

const double *kv_plan_list(const struct kv_plan_inputs *in, const char *name, int32_t *n)
{
    int32_t i = spec_index(in->model, name);
    if (i < 0) abort();
    if (n) *n = in->n[i];
    return in->value[i];
}

double kv_plan_get(const struct kv_plan_inputs *in, const char *name)
{
    return kv_plan_list(in, name, NULL)[0];
}

double kv_plan_add(struct kv_plan_report *r, const char *unit, double value, const char *formula, const char *name, ...)
{
    if (r->n == KV_PLAN_MAX_TERMS) {
        r->overflow = true;
        return value;
    }
    struct kv_plan_term *t = &r->term[r->n++];
    va_list ap;
    va_start(ap, name);
    vsnprintf(t->name, sizeof t->name, name, ap);
    va_end(ap);
    t->unit = unit;
    t->value = value;
    t->formula = formula;
    return value;
}
