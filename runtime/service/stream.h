/* stream.h — one request's token log: appended by the decode thread at publication, read by one reader, sized for the whole answer
 * at submit, so that a slow reader never holds anybody up. Shared by both; the last to let go frees it. */
#ifndef KV_STREAM_H
#define KV_STREAM_H

#include "runtime/kvasir.h"

#include <stdatomic.h>

/* Tokens published and not yet read, over all streams of an engine; outlives it while a stream is open. */
struct kv_backlog {
    _Atomic int64_t unsent;
    _Atomic int32_t refs;
};
struct kv_backlog *kv_backlog_create(void);
void kv_backlog_unref(struct kv_backlog *b);

struct kv_log_entry {
    int32_t token;
    float logprob;
    uint64_t epoch, candidate;
    uint8_t published, n_text, n_top; /* published: enum kv_contract */
    char text[sizeof((struct kv_chunk *)0)->text];
};
struct kv_log_top {
    int32_t id;
    float logprob;
};

struct kv_stream {
    _Atomic int32_t refs;
    _Atomic int32_t n_published; /* entries [0, n) are immutable and visible */
    _Atomic int32_t n_read;
    _Atomic uint32_t event;      /* raised by every append and by the end; what the reader sleeps on */
    _Atomic uint32_t waiting;
    _Atomic int32_t finish;      /* enum kv_finish; stats and tail are immutable once it is not RUNNING */
    _Atomic bool cancelled;
    uint64_t id;                 /* of the request; set before the reader has the stream */
    int32_t n_prompt;
    int32_t cap, top_cap;        /* entries; top ids kept per entry */
    struct kv_log_entry *log;
    struct kv_log_top *top;      /* [cap][top_cap] */
    struct kv_backlog *backlog;
    struct kv_request_stats stats;
    char tail[2304];
};

/* refs = 2: the reader's and the engine's. */
struct kv_stream *kv_stream_create(int32_t cap, int32_t top_cap, struct kv_backlog *backlog);
void kv_stream_unref(struct kv_stream *s);
/* Decode thread. The next free entry and its top ids, to be filled before kv_stream_publish makes it visible. */
struct kv_log_entry *kv_stream_next(struct kv_stream *s, struct kv_log_top **top);
void kv_stream_publish(struct kv_stream *s);
/* Tells a waiting reader. Apart, because a woken reader may take the publisher's core, and a rollback waits for a publication. */
void kv_stream_wake(struct kv_stream *s);
void kv_stream_finish(struct kv_stream *s, const struct kv_request_stats *stats);

#endif
