/* scratch.h — memory of selectors: of a thread for its queries, and of an instance for an index that is read from end to end. */
#ifndef KV_SCRATCH_H
#define KV_SCRATCH_H

#include <stddef.h>

/* At least `bytes`, aligned to 64, of the calling thread and until its next call; NULL: no memory. Instances are many and threads few: what every
 * instance worked in for itself would be cold at each query. Allocates when a thread asks for more than ever before; freed as the thread ends. */
void *kv_scratch(size_t bytes);
/* Contents undefined, aligned to 64, in huge pages where that wastes little; free() ends it. NULL: no memory. */
void *kv_index_memory(size_t bytes);

#endif
