/* openai_sessions.h — which sessions were seen lately, on which arm: a bounded table for operators. Any thread. */
#ifndef KV_OPENAI_SESSIONS_H
#define KV_OPENAI_SESSIONS_H

#include "controller/release/cohort.h"

#define KV_SESSIONS_KEPT 1024 /* the longest unseen gives way */
struct kv_session_view {
    char session[64], tenant[64];
    enum kv_arm arm; /* of the last request */
    uint64_t requests, tokens;
    int64_t last_us; /* CLOCK_REALTIME */
};
struct kv_sessions;
struct kv_sessions *kv_sessions_create(void);
void kv_sessions_free(struct kv_sessions *s);
/* A request of that session began (tokens 0) or ended (requests 0). */
void kv_sessions_note(struct kv_sessions *s, const char *tenant, const char *session, enum kv_arm arm, uint64_t requests, uint64_t tokens, int64_t now_us);
/* Newest first; out is KV_SESSIONS_KEPT long. */
int32_t kv_sessions_list(struct kv_sessions *s, struct kv_session_view *out);

#endif
