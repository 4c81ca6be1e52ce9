/* fallback.h — the finite table of prepublication actions: its layout, the source's order of predicates, and what is legal.
 *
 * The declarations are part of kvasir.h, since policies and engine share them. Pure functions; any thread. */
#ifndef KV_FALLBACK_H
#define KV_FALLBACK_H

#include "runtime/kvasir.h"

/* The table that follows the source in every cell: what runs when no policy is installed. */
void kv_fallback_source_table(struct kv_fallback_table *out);

#endif
