/* demo_interruption.h — the demo's session that pauses for a tool in a daemon of its own, which is killed and started again. */
#ifndef KV_DEMO_INTERRUPTION_H
#define KV_DEMO_INTERRUPTION_H

#include <jansson.h>
#include <stdbool.h>

/* Answers a question until its tool call, waits until its rows are on disk, kills that daemon with SIGKILL, starts it again on the same state, gives the
 * result and resumes; then the same without a kill. True when both went on with the same tokens and rows came back from disk. *out (never NULL
 * afterwards): {"session","call_id","state","action","swapped_bytes","killed","restored_tokens","result_state","tokens","bit_exact"}. */
bool kv_demo_interruption(const char *model_file, void (*say)(void *ctx, const char *line), void *ctx, const _Atomic bool *stop, json_t **out);
/* A folder that the demo made, with all in it. */
void kv_demo_remove(const char *folder);

#endif
