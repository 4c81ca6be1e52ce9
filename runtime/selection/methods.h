/* methods.h — declares every method's table and parameters, made from methods.def. */
#ifndef KV_METHODS_H
#define KV_METHODS_H

#include "runtime/selection/selector.h"

#define KV_METHOD(name, n)                                                                                                \
    extern const struct kv_selector_method kv_selector_##name;                                                            \
    extern const struct kv_param_spec kv_selector_##name##_params[n];
#include "runtime/selection/methods.def"
#undef KV_METHOD

#endif
