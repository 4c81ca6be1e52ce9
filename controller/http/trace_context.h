/* trace_context.h — W3C trace context: which trace a request belongs to. Pure; any thread. */
#ifndef KV_TRACE_CONTEXT_H
#define KV_TRACE_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

/* A traceparent's trace id (16 bytes) and parent span (8), one after the other. False, and out zero, when it is not a valid one: such a header is as good as none. */
bool kv_traceparent_parse(const char *text, uint8_t out[24]);

#endif
