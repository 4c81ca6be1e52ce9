/* stage.h — the six stages of a rollout. release.h draws how they follow each other. */
#ifndef KV_STAGE_H
#define KV_STAGE_H

#include <stdbool.h>

enum kv_stage {
    KV_STAGE_OFF, KV_STAGE_SHADOW, KV_STAGE_CANARY, KV_STAGE_RAMP, KV_STAGE_FULL, KV_STAGE_EXACT_BASELINE, KV_STAGES
};
const char *kv_stage_name(enum kv_stage s);   /* "SHADOW" */
char kv_stage_letter(enum kv_stage s);        /* O S C R F B, as in verbs.def */
bool kv_stage_from_name(const char *name, enum kv_stage *out);

#endif
