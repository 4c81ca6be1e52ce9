/* turns_records.h — what a restart must know of a session beside its blocks: its name, its pin, which blocks are its own.
 *
 * One extent of the disk tier a session, sealed under its tenant's key like any block, and as durable. Its identity is the base's with layer −1, the
 * digest of the name for a prefix and a support of its own, so that no lookup of rows finds it. A newer record is durable before the older one goes.
 * Turns thread only. */
#ifndef KV_TURNS_RECORDS_H
#define KV_TURNS_RECORDS_H

#include "runtime/service/turns_state.h"

/* Whether an extent that outlived the last process is a record; if so it is noted and loaded later. */
bool kv_turns_record_found(struct kv_turns *t, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes);
/* Once every block is adopted: sessions with blocks are listed again, pinned ones pinned. Records of another model stay as long as their blocks do;
 * what is damaged or names nothing any more is released. */
void kv_turns_records_load(struct kv_turns *t);
/* Without the lock. Makes room by the directory's policy; without blocks there is nothing to keep. */
enum kv_status kv_turns_record_write(struct kv_turns *t, struct session *s);
void kv_turns_record_release(struct kv_turns *t, struct session *s);
enum kv_status kv_turns_record_erase(struct kv_turns *t, struct session *s); /* durable */
/* Releases the records of sessions whose first block is gone. */
void kv_turns_records_sweep(struct kv_turns *t);

#endif
