/* planner_pipeline.h — the two-slot recurrence (contract §4, source 0x03D): from fetch and compute times of a row of layers to
 * start, end and stall of each. The runtime feeds it with measured times, the planner with modelled ones. Pure; any thread. */
#ifndef KV_PLANNER_PIPELINE_H
#define KV_PLANNER_PIPELINE_H

#include <stdint.h>

struct kv_pipeline_stage { /* one layer; any one unit of time throughout */
    double fetch, compute; /* F_l, C_l. A resident layer has fetch < 0: it uses neither link nor slot */
    double fetch_start, fetch_end;     /* s^F, e^F; 0 for resident layers */
    double compute_start, compute_end; /* s^C, e^C */
    double stall;                      /* s^C_l − e^C_{l−1} */
};

/* Fills the computed fields. start: when the first fetch may begin; ready: when compute may begin (e^C_{−1}). Returns e^C of the last. */
double kv_pipeline_two_slot(struct kv_pipeline_stage *stages, int32_t n, double start, double ready);

#endif
