/* lab_case.h — a lab case file as the library takes it: JSON, with large tensors named in safetensors files. */
#ifndef KV_LAB_CASE_H
#define KV_LAB_CASE_H

#include "runtime/evaluate/lab.h"

struct kv_lab_file {
    struct kv_lab_case c; /* points into the arrays below */
    float *q, *k, *v, *prefill_q;
    int32_t *persistent, *resident, *cluster_seeds;
    struct kv_lab_step *steps;
};

enum kv_status kv_lab_file_read(const char *file, struct kv_lab_file *out, struct kv_error *err);
void kv_lab_file_free(struct kv_lab_file *f);

/* One tensor of a safetensors file as fp32: F32, F16, BF16 or F64. shape[3]: dimensions, leading ones missing are 1. Caller frees. */
enum kv_status kv_safetensors_read(const char *file, const char *name, int32_t max_rank, int64_t shape[3], float **out, struct kv_error *err);

#endif
