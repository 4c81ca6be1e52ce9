/* quality.h — held-out prompts scored under the baseline and the live candidate, beside the traffic: what feeds the gate quality_drop.
 *
 * A thread of its own computes one prompt at a time: the answer's tokens are forced, so both arms are asked about the same text. It begins a prompt only
 * while no request waits, and rests so long that it takes no more than its share of the time. A candidate in shadow is computed too and serves nobody.
 * Each step begins the set anew, in another order, and uses each prompt once. */
#ifndef KV_QUALITY_H
#define KV_QUALITY_H

#include "controller/release/control.h"
#include "controller/release/heldout.h"

struct kv_quality;
struct kv_quality_config {
    struct kv_control *control;
    struct kv_engine *engine;
    const struct kv_model *model;
    const char *prompts;      /* path; NULL or "": the passages that ship. Used during create only */
    int32_t context_length;   /* 0: the model's */
    double share;             /* of the time, above 0 */
};
/* FILE_UNREADABLE and what else kv_heldout_load says. */
enum kv_status kv_quality_create(const struct kv_quality_config *c, struct kv_quality **out, struct kv_error *err);
void kv_quality_destroy(struct kv_quality *q); /* before the control thread and the engine; NULL is fine */

#endif
