/* params.h — parameter values against a list of specs, for pipelines and for methods that run without one. */
#ifndef KV_SELECTION_PARAMS_H
#define KV_SELECTION_PARAMS_H

#include "runtime/kvasir.h"

void kv_specs_default(const struct kv_param_spec *specs, int32_t n, struct kv_params *out);
/* owner: whose parameters these are, for the message. */
enum kv_status kv_specs_set(const struct kv_param_spec *specs, int32_t n, const char *owner, struct kv_params *params,
                            const char *name, double value, struct kv_error *err);

#endif
