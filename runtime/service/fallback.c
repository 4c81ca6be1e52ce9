/* fallback.c — the finite table of prepublication actions: its layout, the source's order of predicates, and what is legal. */
#include "runtime/service/fallback.h"

static const char *const action_names[KV_FALLBACK_ACTIONS] = {
    [KV_ACCEPT_APPROXIMATE] = "ACCEPT_APPROXIMATE",
    [KV_WIDEN_SEARCH] = "WIDEN_SEARCH",
    [KV_FULL_EXACT_FETCH] = "FULL_EXACT_FETCH",
    [KV_RECOMPUTE_EXACT] = "RECOMPUTE_EXACT",
    [KV_POSTPONE_FOR_EXACT_RETRY] = "POSTPONE_FOR_EXACT_RETRY",
    [KV_ACCEPT_DECLARED_DEGRADED] = "ACCEPT_DECLARED_DEGRADED",
    [KV_REJECT_NO_LEGAL_PATH] = "REJECT_NO_LEGAL_PATH",
};

const char *kv_fallback_action_name(enum kv_fallback_action a)
{
    return (unsigned)a < KV_FALLBACK_ACTIONS ? action_names[a] : "REJECT_NO_LEGAL_PATH";
}

/* Bit i of a cell's index is field i in the order of the struct. */
unsigned kv_fallback_index(const struct kv_fallback_state *s)
{
    return (s->force_exact ? 1u : 0) | (s->uncertain ? 2u : 0) | (s->post_widen ? 4u : 0) | (s->can_widen ? 8u : 0) |
           (s->fetch_fits ? 16u : 0) | (s->recompute_fits ? 32u : 0) | (s->retryable ? 64u : 0) |
           (s->approximation_allowed ? 128u : 0);
}

void kv_fallback_state_of(unsigned index, struct kv_fallback_state *out)
{
    *out = (struct kv_fallback_state){
        .force_exact = index & 1, .uncertain = index >> 1 & 1, .post_widen = index >> 2 & 1, .can_widen = index >> 3 & 1,
        .fetch_fits = index >> 4 & 1, .recompute_fits = index >> 5 & 1, .retryable = index >> 6 & 1,
        .approximation_allowed = index >> 7 & 1,
    };
}

enum kv_fallback_action kv_fallback_source(const struct kv_fallback_state *s)
{
    if (!s->force_exact && !s->uncertain) return KV_ACCEPT_APPROXIMATE;
    if (!s->post_widen && s->uncertain && s->can_widen) return KV_WIDEN_SEARCH;
    if (s->fetch_fits) return KV_FULL_EXACT_FETCH;
    if (s->recompute_fits) return KV_RECOMPUTE_EXACT;
    if (s->retryable) return KV_POSTPONE_FOR_EXACT_RETRY;
    if (s->approximation_allowed && !s->force_exact) return KV_ACCEPT_DECLARED_DEGRADED;
    return KV_REJECT_NO_LEGAL_PATH;
}

bool kv_fallback_legal(const struct kv_fallback_state *s, enum kv_fallback_action a)
{
    if (a == kv_fallback_source(s)) return true;
    switch (a) {
    case KV_ACCEPT_APPROXIMATE: return !s->force_exact && !s->uncertain;
    case KV_WIDEN_SEARCH: return !s->force_exact && !s->post_widen && s->can_widen; /* once, and never for an exact request that needs none */
    case KV_FULL_EXACT_FETCH: return s->fetch_fits;
    case KV_RECOMPUTE_EXACT: return s->recompute_fits;
    case KV_POSTPONE_FOR_EXACT_RETRY: return s->retryable;
    case KV_ACCEPT_DECLARED_DEGRADED: return !s->force_exact && s->approximation_allowed;
    default: return false; /* rejection is for cells without a path, and there the source answers it too */
    }
}

void kv_fallback_source_table(struct kv_fallback_table *out)
{
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        struct kv_fallback_state s;
        kv_fallback_state_of(i, &s);
        out->action[i] = (uint8_t)kv_fallback_source(&s);
    }
}
