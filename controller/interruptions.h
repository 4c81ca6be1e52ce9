/* interruptions.h — requests that pause for somebody outside, over HTTP: what a continuation needs is written down before anybody is told that
 * the request is paused, so that it survives the process; rows survive where they can, and are computed again where they cannot.
 *
 *   POST /v1/sessions/{id}/pause    ends the running request's answer with finish_reason "pause"
 *   POST /v1/sessions/{id}/result   what was waited for, applied once
 *   POST /v1/sessions/{id}/resume   the rest of the answer, whole or as a stream
 *
 * A chat request with kvasir.tool_pause pauses by itself when its answer completes a tool call. Any thread. */
#ifndef KV_INTERRUPTIONS_H
#define KV_INTERRUPTIONS_H

#include "controller/openai/openai.h"
#include "controller/store/store_pauses.h"

struct kv_interruptions; /* what each running request of a session would need to continue */
struct kv_interruptions *kv_interruptions_create(void);
void kv_interruptions_free(struct kv_interruptions *t);
void kv_interruptions_running(struct kv_interruptions *t, const struct kv_openai *o);
void kv_interruptions_ended(struct kv_interruptions *t, const struct kv_openai *o); /* its stream is closed */
/* After its stream ended with KV_FINISH_PAUSED: somebody paused it, and that is durable; waits for who asks for a pause of its session to write it down. */
bool kv_interruptions_paused(struct kv_interruptions *t, const struct kv_openai *o);
/* A continuation has ended: what it could be resumed from again is to be forgotten. Waits for no disk. */
void kv_interruptions_resumed(const struct kv_openai *o);
/* Forgets it; what cannot be written now is tried again. The status thread, and the last stop. */
void kv_interruptions_forget_ended(struct kv_app *app);
/* Of a continuation that could not begin. */
enum kv_status kv_interruptions_undo(struct kv_app *app, const char *tenant, const char *session, uint64_t epoch, struct kv_error *err);
/* The session is dropped: nothing of its pause can be resumed. *was: it was paused. */
enum kv_status kv_interruptions_drop(struct kv_app *app, const char *tenant, const char *session, bool *was, struct kv_error *err);
/* The time of day by the clock as it was at the start: setting it makes no pause older, and no request later. */
int64_t kv_interruptions_now_us(const struct kv_interruptions *t);

/* After a stream ended with KV_FINISH_PAUSED because the answer made a tool call: makes it durable. *out: {"call_id","pause_epoch","state","action"}. */
enum kv_status kv_interruptions_tool_call(struct kv_openai *o, json_t **out, struct kv_error *err);

/* Gives up pauses that last longer than interruptions.max_pause_s. Cheap while none does; the status thread. */
void kv_interruptions_expire(struct kv_app *app);

json_t *kv_pause_json(const struct kv_stored_pause *p, const struct kv_pause_view *v);

KV_HANDLER(kv_session_pause);
KV_HANDLER(kv_session_result);
KV_HANDLER(kv_session_resume);
KV_HANDLER(kv_api_interruptions);
KV_HANDLER(kv_api_credits);

#endif
