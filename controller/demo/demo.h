/* demo.h — the main job: a bundled trace plays through the real HTTP API while three rollouts are staged. */
#ifndef KV_DEMO_H
#define KV_DEMO_H

#include "controller/http/api.h"

struct kv_demo;

/* Settings the demo needs and the caller did not give: a fresh state folder, tokens of its tenants, more shadowed units. */
enum kv_status kv_demo_configure(struct kv_config *c, struct kv_error *err);
/* Starts its threads. exit_after: when the third rollout is over, sends SIGTERM to this process. */
enum kv_status kv_demo_start(struct kv_app *app, bool exit_after, struct kv_demo **out, struct kv_error *err);
void kv_demo_stop(struct kv_demo *d); /* ends its traffic and waits for its threads */
/* With exit_after prints the JSON line; removes the fresh state folder; frees. Returns the exit status. */
int kv_demo_finish(struct kv_demo *d);

#endif
