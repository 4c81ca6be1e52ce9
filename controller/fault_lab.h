/* fault_lab.h — the failure lab: a run arms one fault on a request of its own, asks, and checks what must hold afterwards.
 *
 * "The request completed" is no outcome: a run compares the answer with an uncached recompute, the receipts with the reason the fault is to have,
 * the counters that must not move, and what must have been given back. Any thread; one run at a time. */
#ifndef KV_FAULT_LAB_H
#define KV_FAULT_LAB_H

#include "controller/http/api.h"
#include "runtime/residency/faults.h"

#define KV_FAULT_CHECKS 12
struct kv_fault_check {
    char what[24];   /* "strikes", "answer", "receipt", "publication", "counters", "credits", "memory", "disk", "session", … */
    bool pass;
    char detail[192];
};
struct kv_fault_outcome {
    int64_t at_us;   /* CLOCK_REALTIME; 0: never run */
    bool pass;
    int32_t n_checks;
    struct kv_fault_check check[KV_FAULT_CHECKS];
};

struct kv_fault_lab;
enum kv_status kv_fault_lab_create(struct kv_fault_lab **out);
void kv_fault_lab_destroy(struct kv_fault_lab *l);
struct kv_faults *kv_fault_lab_faults(struct kv_fault_lab *l);
void kv_fault_lab_last(struct kv_fault_lab *l, enum kv_fault k, struct kv_fault_outcome *out);

/* Refusals leave nothing armed: CONFLICT (another run, or the fault is armed, or nothing serves what it needs), UNSUPPORTED (no such tier). */
enum kv_status kv_fault_lab_run(struct kv_app *app, enum kv_fault k, struct kv_fault_outcome *out, struct kv_error *err);

#endif
