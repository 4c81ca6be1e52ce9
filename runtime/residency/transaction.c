/* transaction.c — the transition table, and the copy. */
#include "runtime/residency/transaction.h"

#include "kernels/digest.h"

#define AT(name) (1u << KV_AT_##name)

static const uint16_t next_states[KV_RESIDENCY_STATE_COUNT] = {
    [KV_AT_GPU_VISIBLE] = AT(DEMOTE_RESERVED),
    [KV_AT_DEMOTE_RESERVED] = AT(COPY_OUT) | AT(DEMOTION_FAILED),
    [KV_AT_COPY_OUT] = AT(HOST_VALID) | AT(SECONDARY_VALID) | AT(DEMOTION_FAILED),
    [KV_AT_HOST_VALID] = AT(GPU_RELEASED) | AT(PROMOTE_RESERVED) | AT(DEMOTE_RESERVED),
    [KV_AT_GPU_RELEASED] = 0,
    [KV_AT_SECONDARY_VALID] = AT(GPU_RELEASED) | AT(PROMOTE_RESERVED),
    [KV_AT_DEMOTION_FAILED] = 0,
    [KV_AT_PROMOTE_RESERVED] = AT(COPY_IN) | AT(HOST_VALID) | AT(SECONDARY_VALID),
    [KV_AT_COPY_IN] = AT(GPU_STAGED) | AT(HOST_VALID) | AT(SECONDARY_VALID),
    [KV_AT_GPU_STAGED] = AT(GPU_VISIBLE) | AT(HOST_VALID) | AT(SECONDARY_VALID),
};

const char *kv_residency_state_name(enum kv_residency_state s)
{
    static const char *const names[] = {
#define KV_RESIDENCY_STATE(name) #name,
        KV_RESIDENCY_STATES(KV_RESIDENCY_STATE)
#undef KV_RESIDENCY_STATE
    };
    return (unsigned)s < KV_RESIDENCY_STATE_COUNT ? names[s] : "?";
}

bool kv_residency_may_move(enum kv_residency_state from, enum kv_residency_state to)
{
    return (unsigned)from < KV_RESIDENCY_STATE_COUNT && (unsigned)to < KV_RESIDENCY_STATE_COUNT && (next_states[from] >> to & 1);
}

enum kv_status kv_residency_move(enum kv_residency_state *state, enum kv_residency_state to)
{
    if (!kv_residency_may_move(*state, to)) return KV_ILLEGAL_TRANSITION;
    *state = to;
    return KV_OK;
}

void kv_transfer_copy(const struct kv_transfer *t, struct kv_transfer_done *out)
{
    const void *payload = t->staging;
    uint64_t expected = 0, stored;
    *out = (struct kv_transfer_done){.transfer = *t};
    /* From memory the payload is hashed once, on its way; where the destination keeps no hash, before it leaves. */
    if (t->from->view) out->status = t->from->view(t->from->ctx, t->source, &t->identity, t->bytes, &payload, &expected);
    else out->status = t->from->read(t->from->ctx, t->source, &t->identity, t->staging, t->bytes);
    if (out->status != KV_OK) return;
    if (expected && !t->to->view && kv_xxh3(payload, t->bytes) != expected) {
        out->status = KV_CHECKSUM_MISMATCH;
        return;
    }
    out->status = t->to->write(t->to->ctx, t->destination, &t->identity, payload, t->bytes, &stored);
    if (out->status == KV_OK && expected && stored && stored != expected) out->status = KV_CHECKSUM_MISMATCH;
    if (out->status == KV_OK) out->bytes = t->bytes;
}
