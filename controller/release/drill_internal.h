/* drill_internal.h — what drill_*.c share; nobody else includes it. */
#ifndef KV_DRILL_INTERNAL_H
#define KV_DRILL_INTERNAL_H

#include "controller/release/drill.h"
#include "controller/release/heldout.h"

struct drill {
    struct kv_drill_result *out;
    struct kv_model *model;
    struct kv_heldout prompts;
    struct kv_manifest manifest;
    struct kv_fallback_table table;   /* of the active fallback policy */
    enum kv_status table_status;      /* and why it has none */
    char table_why[160];
    char dir[900], program[512];      /* dir: its state folder */
    char *input;                      /* the case as it came: what a victim is given again */
    size_t input_bytes;
};
/* Counts one fact; a false one is a violation, told when it is the first. */
bool kv_drill_check(struct drill *d, bool holds, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

void kv_drill_rollback(struct drill *d);
void kv_drill_tenant_isolation(struct drill *d);
void kv_drill_allocation_failure(struct drill *d);
void kv_drill_stall(struct drill *d);
void kv_drill_illegal_fallback(struct drill *d);
void kv_drill_crash_restart(struct drill *d);
void kv_drill_idempotent_replay(struct drill *d);
int kv_drill_victim(struct drill *d, const char *dir); /* is killed by crash_restart */

#endif
