/* batch.h — which sequences go into one step, by more than their number (contract §8, source 0x08B): one that fetches much would hold all others up
 * at every layer. Alike ones stand together, and what exceeds the step's share of link or staging waits for the next, never long. Pure. */
#ifndef KV_BATCH_H
#define KV_BATCH_H

#include <stdbool.h>
#include <stdint.h>

enum { KV_DEFER_MAX = 4 }; /* steps in a row that a sequence may be left out of */

struct kv_batch_key {
    uint64_t fetch_bytes;   /* predicted for this step; 0: its rows are where it computes */
    int32_t tier, numa_node; /* where they come from; node 0 on a machine of one */
    int32_t candidates;     /* rows that a selector ranks; 0: dense */
    int64_t slack_us;       /* INT64_MAX: no deadline */
    bool approximate;
    uint64_t identity;      /* of model, adapter and representation: of the pipeline that serves */
    uint64_t staging_bytes;
    int32_t deferred;       /* steps in a row it was left out of */
};

/* < 0: a goes first. Left out for long; exact; nearer deadline; then alike ones together, lighter ones first. */
int kv_batch_compare(const struct kv_batch_key *a, const struct kv_batch_key *b);
/* order: [n], filled with the indices of those who go, in order; returns how many. The first always goes, and so does who was left out for KV_DEFER_MAX steps. */
int32_t kv_batch_form(const struct kv_batch_key *k, int32_t n, uint64_t fetch_bytes, uint64_t staging_bytes, int32_t *order);

#endif
