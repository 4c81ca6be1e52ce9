/* case.h — small selection cases for tests: random or given tensors, run through the selector and kernels that serve. */
#ifndef KV_TEST_CASE_H
#define KV_TEST_CASE_H

#include "runtime/evaluate/lab.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <check.h>

struct test_case {
    struct kv_lab_case c;
    float *q, *k, *v, *prefill;
};

/* Standard normal tensors that are a function of seed; parameters at their defaults. method "dense": none. */
void case_random(struct test_case *t, const char *method, int32_t n_q, int32_t n_kv, int32_t d, int32_t n_rows, uint64_t seed);
/* One head, width 2. k, v: [n][2]. */
void case_plane(struct test_case *t, const char *method, const float q[2], const float (*k)[2], const float (*v)[2], int32_t n);
void case_param(struct test_case *t, const char *name, double value); /* fails the test when refused */
void case_prefill(struct test_case *t, int32_t n, uint64_t seed);     /* random prefill queries */
void case_widest(struct test_case *t);                                /* parameters under which the method selects every row */
void case_free(struct test_case *t);
struct kv_lab_result case_run(const struct test_case *t);             /* fails the test when refused */

double case_logit(const struct test_case *t, int32_t q_head, int32_t row); /* scaled, in double */
void expect_rows(const struct kv_lab_result *r, int32_t q_head, const int32_t *rows, int32_t n);

#endif
