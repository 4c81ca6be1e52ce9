/* batch.c — see batch.h. */
#include "runtime/service/batch.h"

#include <stdlib.h>

static int less_first(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

int kv_batch_compare(const struct kv_batch_key *a, const struct kv_batch_key *b)
{
    bool late_a = a->deferred >= KV_DEFER_MAX, late_b = b->deferred >= KV_DEFER_MAX;
    if (late_a != late_b) return late_a ? -1 : 1;
    if (a->approximate != b->approximate) return a->approximate ? 1 : -1;
    if (a->slack_us != b->slack_us) return a->slack_us < b->slack_us ? -1 : 1;
    const uint64_t p[] = {a->identity, (uint64_t)a->tier, (uint64_t)a->numa_node, a->fetch_bytes, (uint64_t)a->candidates, a->staging_bytes};
    const uint64_t q[] = {b->identity, (uint64_t)b->tier, (uint64_t)b->numa_node, b->fetch_bytes, (uint64_t)b->candidates, b->staging_bytes};
    int c = 0;
    for (int i = 0; i < 6 && !c; i++) c = less_first(p[i], q[i]);
    return c;
}

static int by_key(const void *x, const void *y, void *keys)
{
    const struct kv_batch_key *k = keys;
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    int c = kv_batch_compare(&k[a], &k[b]);
    return c ? c : (a > b) - (a < b);
}

int32_t kv_batch_form(const struct kv_batch_key *k, int32_t n, uint64_t fetch_bytes, uint64_t staging_bytes, int32_t *order)
{
    for (int32_t i = 0; i < n; i++) order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, by_key, (void *)k);
    int32_t kept = 0;
    bool first = true; /* of those that fetch */
    for (int32_t i = 0; i < n; i++) {
        const struct kv_batch_key *x = &k[order[i]];
        bool fits = x->fetch_bytes <= fetch_bytes && x->staging_bytes <= staging_bytes;
        if (x->fetch_bytes && !fits && !first && x->deferred < KV_DEFER_MAX) continue;
        if (x->fetch_bytes) {
            fetch_bytes -= x->fetch_bytes < fetch_bytes ? x->fetch_bytes : fetch_bytes;
            staging_bytes -= x->staging_bytes < staging_bytes ? x->staging_bytes : staging_bytes;
            first = false;
        }
        order[kept++] = order[i];
    }
    return kept;
}
