/* publication.c — see publication.h. */
#include "runtime/service/publication.h"

#include "runtime/execution/futex.h"

enum { SPINS = 1000 }; /* some 50 us */

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
    if (atomic_load(&p->waiting)) kv_futex_wake(&p->busy);
}

uint64_t kv_publication_fence(struct kv_publication *p)
{
    uint64_t before = atomic_fetch_or(&p->word, KV_LATCH);
    /* A publication lasts microseconds, unless its thread lost its core in the midst of it: whoever yields then gets a core back milliseconds later, whoever
     * is woken at once. A later publication that began after the latch holds baseline tokens only. */
    for (int i = 0; i < SPINS && atomic_load(&p->busy); i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    atomic_fetch_add(&p->waiting, 1);
    while (atomic_load(&p->busy)) kv_futex_wait(&p->busy, 1, -1);
    atomic_fetch_sub(&p->waiting, 1);
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
