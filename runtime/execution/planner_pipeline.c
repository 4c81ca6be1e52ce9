/* planner_pipeline.c — the two-slot recurrence. */
#include "runtime/execution/planner_pipeline.h"

static double later(double a, double b)
{
    return a > b ? a : b;
}

double kv_pipeline_two_slot(struct kv_pipeline_stage *stages, int32_t n, double start, double ready)
{
    double link_free = start, compute_end = ready; /* a_{l−1}, e^C_{l−1} */
    for (int32_t l = 0; l < n; l++) {
        struct kv_pipeline_stage *s = &stages[l];
        s->fetch_start = s->fetch_end = 0;
        if (s->fetch >= 0) { /* a resident layer leaves the link as it found it */
            s->fetch_start = later(link_free, l >= 2 ? stages[l - 2].compute_end : start);
            s->fetch_end = link_free = s->fetch_start + s->fetch;
        }
        s->compute_start = later(compute_end, s->fetch_end);
        s->stall = s->compute_start - compute_end;
        s->compute_end = compute_end = s->compute_start + s->compute;
    }
    return compute_end;
}
