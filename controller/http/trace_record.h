/* trace_record.h — arrivals as they were, in the format that kvasir simulate reads: one JSON object a line, written when a request ends, in order of arrival
 * only as far as ends are. A block is 64 prompt tokens with all before them, named by its digest and the tenant: no text and no token leaves. Any thread. */
#ifndef KV_TRACE_RECORD_H
#define KV_TRACE_RECORD_H

#include "runtime/kvasir.h"

struct kv_trace_record;
enum kv_status kv_trace_record_open(const char *path, struct kv_trace_record **out, struct kv_error *err); /* appends */
void kv_trace_record_close(struct kv_trace_record *t);
/* t may be NULL. at_us: CLOCK_REALTIME of the arrival. */
void kv_trace_record_add(struct kv_trace_record *t, int64_t at_us, const char *tenant, const int32_t *prompt, int32_t n_prompt, int32_t n_output, int64_t deadline_ms, enum kv_contract contract);

#endif
