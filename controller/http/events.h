/* events.h — the one stream of events that consoles follow, and the log that is part of it. Any thread. */
#ifndef KV_EVENTS_H
#define KV_EVENTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kv_events;
struct kv_event_reader;

/* Keeps the last KV_EVENTS_KEPT events for readers that come back with Last-Event-ID. */
#define KV_EVENTS_KEPT 1024
struct kv_events *kv_events_create(int max_readers);
void kv_events_free(struct kv_events *e); /* after the last reader is closed */
/* Takes data's reference. "status" replaces the one before it and is not kept; the rest gets an id and is. */
void kv_events_post(struct kv_events *e, const char *event, json_t *data);
int kv_events_readers(struct kv_events *e);

/* after: Last-Event-ID, 0 for a new reader, who gets what comes from now on. NULL when max_readers are open. */
struct kv_event_reader *kv_events_open(struct kv_events *e, uint64_t after);
/* As kv_http_stream.read: server-sent events, `hello` first; waits up to 200 ms; 0 for nothing. */
ssize_t kv_events_read(void *reader, char *buf, size_t cap);
void kv_events_close(void *reader);

enum kv_log_level { KV_LOG_ERROR, KV_LOG_WARN, KV_LOG_INFO, KV_LOG_DEBUG };
void kv_events_log_level(enum kv_log_level l);
enum kv_log_level kv_events_level_from_name(const char *name);
/* One JSON line on standard error; from info up also a `log` event of the hub named by kv_events_log_to. */
void kv_events_log(enum kv_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same with the trace it belongs to, 32 digits, as a field of its own; empty: none. */
void kv_events_log_traced(enum kv_log_level level, const char *trace, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void kv_events_log_to(struct kv_events *e);

/* RFC 3339 UTC with microseconds, of CLOCK_REALTIME microseconds; 0 gives null. */
json_t *kv_time_json(int64_t at_us);
int64_t kv_realtime_us(void);
int64_t kv_monotonic_us(void);
/* Text of any bytes: what is not UTF-8 becomes U+FFFD. */
json_t *kv_text_json(const char *s, size_t n);
/* null for NAN and infinities, which JSON has no word for. */
json_t *kv_real_json(double v);

#endif
