/* pause_runs.h — what tests of paused requests share: a request that is still running when its pause is asked for, however late the asker gets a processor,
 * and its continuation. */
#ifndef KV_PAUSE_RUNS_H
#define KV_PAUSE_RUNS_H

#include "tests/unit/service/engine_runs.h"

enum { STEPS = 200 };

void pause_prepare(struct run *r, int sampled); /* tenant acme, session s-1 */
/* The decode thread stands still from that position of r on until a pause of acme's is asked for. One request at a time. */
void pause_stand_at(struct kv_engine *e, struct run *r, int32_t position);
void pause_go(void); /* or until this */
void pause_stand(struct kv_engine *e, struct run *r, int32_t tokens); /* begins r, which stands once it has published so many */
void pause_after(struct kv_engine *e, struct run *r, int32_t tokens, enum kv_pause_action action, struct kv_pause_view *v);
void pause_continue(struct kv_engine *e, struct run *r, const struct kv_pause_view *v, int32_t *all, struct kv_request *q); /* all: [RUN_MAX] */

#endif
