/* tournament.h — the queue between decoding and a running tournament, and the thread that measures.
 *
 * The decode thread copies a sampled unit's keys and queries into a free slot, or drops it; the tournament's thread, which only gets time nobody else
 * wants, takes it from there. Indexes are built from keys, as in shadow: without the prompt's queries. */
#ifndef KV_SERVICE_TOURNAMENT_H
#define KV_SERVICE_TOURNAMENT_H

#include "runtime/execution/attention.h"
#include "runtime/service/sequence.h"

struct kv_engine;
struct kv_tournament;
enum kv_status kv_tournament_create(const struct kv_sequence_shape *shape, int32_t max_rows, struct kv_tournament **out, struct kv_error *err);
void kv_tournament_destroy(struct kv_tournament *t); /* after the decode thread ended; t may be NULL */
/* Decode thread, after attention of a layer. Never waits. */
void kv_tournament_offer(struct kv_engine *e, struct kv_step_item *const *items, int32_t n_items, int32_t layer);

#endif
