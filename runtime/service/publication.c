/* publication.c — see publication.h. */
#include "runtime/service/publication.h"

#include <sched.h>

void kv_publication_begin(struct kv_publication *p)
{
    atomic_store(&p->busy, 1);
}

bool kv_publication_unchanged(const struct kv_publication *p, uint64_t word)
{
    return kv_publication_word(p) == word;
}

void kv_publication_end(struct kv_publication *p)
{
    atomic_store(&p->busy, 0);
}

uint64_t kv_publication_fence(struct kv_publication *p)
{
    uint64_t before = atomic_fetch_or(&p->word, KV_LATCH);
    /* A publication lasts microseconds; a later one that began after the latch holds baseline tokens only. */
    while (atomic_load(&p->busy)) sched_yield();
    return before;
}

bool kv_publication_advance(struct kv_publication *p, uint64_t expected, uint64_t epoch)
{
    if (epoch > KV_EPOCH_MAX || expected > KV_EPOCH_MAX) return false;
    return atomic_compare_exchange_strong(&p->word, &expected, epoch);
}

bool kv_publication_rearm(struct kv_publication *p, uint64_t epoch)
{
    uint64_t now = kv_publication_word(p);
    return epoch <= KV_EPOCH_MAX && (now & KV_LATCH) && atomic_compare_exchange_strong(&p->word, &now, epoch);
}
