/* planner.h — worked numbers of the contract (§4–§5) from their inputs, every intermediate term kept.
 *
 * A model is one row: its inputs with defaults (the worked case), and a function from inputs to named terms. Bytes are binary; a unit of
 * "bytes/s" is never GB unless its name says so. Nothing here measures: a prediction is only as good as the inputs. Pure; any thread. */
#ifndef KV_PLANNER_H
#define KV_PLANNER_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_PLAN_MAX_INPUTS = 32, KV_PLAN_MAX_VALUES = 128, KV_PLAN_MAX_TERMS = 192, KV_PLAN_EXAMPLE_VALUES = 8 };

struct kv_plan_spec {
    const char *name, *unit, *help;
    int32_t n; /* values of the example; 1: a single number, more: one per layer */
    double example[KV_PLAN_EXAMPLE_VALUES];
    double min, max; /* both 0: any finite value ≥ 0 */
};

struct kv_plan_model;
struct kv_plan_inputs {
    const struct kv_plan_model *model;
    int32_t n[KV_PLAN_MAX_INPUTS];
    double value[KV_PLAN_MAX_INPUTS][KV_PLAN_MAX_VALUES];
};

struct kv_plan_term {
    char name[64];
    const char *unit, *formula; /* formula may be "" */
    double value;
};
struct kv_plan_report {
    int32_t n;
    bool overflow; /* more terms than KV_PLAN_MAX_TERMS: the last were dropped */
    struct kv_plan_term term[KV_PLAN_MAX_TERMS];
};

struct kv_plan_model {
    const char *name, *section, *help;
    const struct kv_plan_spec *spec;
    int32_t n_specs;
    enum kv_status (*run)(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err);
};

size_t kv_plan_count(void);
const struct kv_plan_model *kv_plan_at(size_t i);
const struct kv_plan_model *kv_plan_find(const char *name);
void kv_plan_example(const struct kv_plan_model *m, struct kv_plan_inputs *out);
/* UNKNOWN_KEY, or BAD_ARGUMENT with the range. A list input takes 1 to 128 values, a single one exactly one. */
enum kv_status kv_plan_set(struct kv_plan_inputs *in, const char *name, const double *values, int32_t n, struct kv_error *err);
enum kv_status kv_plan_run(const struct kv_plan_inputs *in, struct kv_plan_report *out, struct kv_error *err);
/* NULL when the report has no such term. */
const struct kv_plan_term *kv_plan_term_find(const struct kv_plan_report *r, const char *name);

/* The nine one-control sweeps around the sensitivity base: one input changes, the others stay. */
struct kv_plan_sweep {
    const char *control, *input; /* "context", "positions" */
    int32_t n;
    double value[KV_PLAN_EXAMPLE_VALUES];
};
size_t kv_plan_sweep_count(void);
const struct kv_plan_sweep *kv_plan_sweep_at(size_t i);

/* ---------------------------------------------------------------- for the models' files */

double kv_plan_get(const struct kv_plan_inputs *in, const char *name); /* first value; an unknown name is a bug and stops */
const double *kv_plan_list(const struct kv_plan_inputs *in, const char *name, int32_t *n);
double kv_plan_add(struct kv_plan_report *r, const char *unit, double value, const char *formula, const char *name, ...)
    __attribute__((format(printf, 5, 6))); /* returns value */

#define KV_PLAN_MODELS(X) X(row) X(critical_ratio) X(service_chain) X(exact_offload) X(layer_restore) X(save) X(interruption) X(swap_limit) X(recompute_chunk) \
    X(persist) X(tier_value) X(near_data) X(headwise) X(partial_state) X(neo) X(sparq) X(sensitivity) X(flexgen)
#define KV_PLAN_DECLARE(name) extern const struct kv_plan_model kv_plan_##name;
KV_PLAN_MODELS(KV_PLAN_DECLARE)
#undef KV_PLAN_DECLARE

#endif
