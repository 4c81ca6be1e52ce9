/* intent.h — the preallocated record that makes an acknowledged rollback survive kill -9.
 *
 * A 4 KiB file written once at creation; a write is one pwrite of one sector and fdatasync into the older of two slots, so a torn
 * write leaves the other slot whole. Read before the database at start. The record is never cleared: at start it is applied to
 * the rollout it names unless the database already has that rollout at EXACT_BASELINE. Any thread; a mutex inside. */
#ifndef KV_INTENT_H
#define KV_INTENT_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_intent_record {
    uint64_t sequence;       /* grows with every write; 0: never written */
    uint64_t rollout, epoch; /* epoch that was fenced; rollout 0: none was live */
    int64_t at_us;           /* CLOCK_REALTIME */
    enum kv_status reason;
    char actor[64], detail[160];
};

struct kv_intent;
enum kv_status kv_intent_open(const char *path, struct kv_intent **out, struct kv_intent_record *last, struct kv_error *err);
void kv_intent_close(struct kv_intent *i);
/* Durable when it answers OK. r->sequence is filled in. */
enum kv_status kv_intent_write(struct kv_intent *i, struct kv_intent_record *r);

#endif
