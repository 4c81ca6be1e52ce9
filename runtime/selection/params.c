/* params.c — parameter values of a pipeline: defaults, checked setting by name, reading. */
#include "runtime/selection/params.h"

#include "runtime/nearest.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

void kv_specs_default(const struct kv_param_spec *specs, int32_t n, struct kv_params *out)
{
    *out = (struct kv_params){0};
    for (int32_t i = 0; i < n; i++) out->value[i] = specs[i].def;
}

static const char *nearest(const struct kv_param_spec *specs, int32_t n, const char *name)
{
    const char *best = n ? specs[0].name : NULL;
    size_t best_distance = SIZE_MAX;
    for (int32_t i = 0; i < n; i++) {
        size_t d = kv_name_distance(name, specs[i].name);
        if (d < best_distance) best_distance = d, best = specs[i].name;
    }
    return best;
}

enum kv_status kv_specs_set(const struct kv_param_spec *specs, int32_t n, const char *owner, struct kv_params *params,
                            const char *name, double value, struct kv_error *err)
{
    int32_t i = 0;
    while (i < n && strcmp(specs[i].name, name)) i++;
    if (i == n) {
        kv_fail(err, KV_UNKNOWN_KEY, name, "%s has no parameter '%s'", owner, name);
        const char *close = nearest(specs, n, name);
        if (close) kv_hint(err, "did you mean '%s'?", close);
        else kv_hint(err, "%s takes no parameters", owner);
        return KV_UNKNOWN_KEY;
    }
    const struct kv_param_spec *s = &specs[i];
    bool whole = strcmp(s->type, "float") != 0;
    if (!(value >= s->min && value <= s->max) || (whole && value != floor(value))) {
        kv_fail(err, KV_BAD_ARGUMENT, name, "%s %s = %g is not a %s from %g to %g", owner, name, value,
                whole ? "whole number" : "number", s->min, s->max);
        kv_hint(err, "the default is %g", s->def);
        return KV_BAD_ARGUMENT;
    }
    params->value[i] = value;
    return KV_OK;
}

void kv_params_default(const struct kv_pipeline *p, struct kv_params *out) { kv_specs_default(p->params, p->n_params, out); }

enum kv_status kv_params_set(const struct kv_pipeline *p, struct kv_params *params, const char *name, double value, struct kv_error *err)
{
    return kv_specs_set(p->params, p->n_params, p->name, params, name, value, err);
}

double kv_params_get(const struct kv_pipeline *p, const struct kv_params *params, const char *name)
{
    for (int32_t i = 0; i < p->n_params; i++)
        if (!strcmp(p->params[i].name, name)) return params->value[i];
    return NAN;
}
